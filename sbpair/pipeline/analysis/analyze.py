"""One analysis: roll-up, results, and the forecast of the drain.

analysis = Analysis.of(spark, lambda: messages, question, files=files)
analysis.frames["destinations"].show()
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sbpair.core.forecast import Forecast
from sbpair.core.prices import PriceTable
from sbpair.core.snapshot import Snapshot
from sbpair.pipeline.analysis import results
from sbpair.pipeline.analysis.partials import Partials, partials_by_sql
from sbpair.pipeline.analysis.question import Question

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE_CREDITS_PER_SECOND = 1000
"""Throttling credits of a Standard namespace (Service Bus throttling); a message operation costs one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The tables by name. What several of them need is kept in memory."""

    question: Question
    frames: Mapping[str, "DataFrame"] = field(default_factory=dict)
    way: str = ""
    """How the roll-up is made: scan or sql."""

    @classmethod
    def of(
        cls,
        spark: "SparkSession",
        messages: "Callable[[], DataFrame]",
        question: Question,
        *,
        files: Sequence[str] = (),
        snapshots: Sequence[Snapshot] = (),
        cores: int = 2,
    ) -> "Analysis":
        """The analysis of messages, each of which is in the DataFrame once. Where they lie in `files` that the
        executors can open, these are scanned and `messages` is not asked for; otherwise Spark SQL does it all.

        Nothing is computed before a table is asked for; call `close` in the end.
        """
        from sbpair.pipeline.analysis.scan import scan

        scanned = scan(spark, files, question, cores=cores) if files else None
        partials = partials_by_sql(messages(), question) if scanned is None else scanned
        existing = existing_paths(spark, snapshots)
        return cls(question, _frames(partials, existing, question), "sql" if scanned is None else "scan")

    def close(self) -> None:
        for name in ("_sizes", "_times", "sessions", "duplicates"):
            self.frames[name].unpersist()


RESULTS = (
    "destinations",
    "hours",
    "queues",
    "outages",
    "time_to_live",
    "dead_letters",
    "sessions",
    "duplicates",
    "size_histogram",
    "totals",
)
"""The tables of an analysis, in the order they are shown."""


def _frames(partials: Partials, existing: "DataFrame | None", question: Question) -> dict[str, "DataFrame"]:
    sizes, times = results.sizes(partials.size).persist(), results.times(partials.time).persist()
    of_sessions = results.sessions(results.session_places(partials.session)).persist()
    return {
        "destinations": results.destinations(sizes, times, of_sessions, existing, question),
        "hours": results.hours(times),
        "queues": results.queues(sizes),
        "outages": results.outages(times, question),
        "time_to_live": results.time_to_live(times, question),
        "dead_letters": results.dead_letters(sizes),
        "sessions": of_sessions,
        "duplicates": results.duplicates(partials.duplicate).persist(),
        "size_histogram": results.size_histogram(sizes),
        "totals": results.totals(sizes),
        "_sizes": sizes,
        "_times": times,
    }


def existing_paths(spark: "SparkSession", snapshots: Sequence[Snapshot]) -> "DataFrame | None":
    """Paths of the queues and topics of the primaries; None if a snapshot could not list them all."""
    seen = [(one.pair.name, one.primary) for one in snapshots]
    if not seen or any(side.queues is None or side.topics is None for _, side in seen):
        return None
    rows = [
        (pair, path)
        for pair, side in seen
        for path in (*(queue.path for queue in side.queues or ()), *(topic.path for topic in side.topics or ()))
    ]
    return spark.createDataFrame(rows, "pair string, path string")


def forecast(total: Mapping[str, Any], question: Question, prices: PriceTable) -> dict[str, Any]:
    """What taking home a pair's messages needs: operations, time and money. `total`: a row of the table `totals`.

    Receive, complete and send: 2 operations for every started 64 KB and one for the completion. The time is that of
    the question's rate, and no less than the throttling credits of the secondary allow (receives and completions).
    """
    messages, units = int(total["messages"]), int(total["units"])
    needed = Forecast(message_operations=2 * units + messages)
    on_secondary = Forecast(message_operations=units + messages)
    seconds = max(messages / question.messages_per_second, on_secondary.seconds(NAMESPACE_CREDITS_PER_SECOND))
    money: Decimal = needed.money(prices)
    return {
        "pair": total["pair"],
        "messages": messages,
        "bytes": int(total["bytes"]),
        "operations": needed.operations,
        "messages_per_second": question.messages_per_second,
        "seconds": round(seconds, 1),
        "ends_at": question.as_of + seconds,
        "cost_at_most": str(money),
        "currency": prices.currency,
    }
