"""What drain and syphon share: the request out of options, the report as a result."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.forecasts import as_data, in_words
from sbpair.cli.queues import backlog_path
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.result import Check, Column, CommandResult, Metric, Severity, Table

if TYPE_CHECKING:
    from sbpair.core.forecast import Forecast
    from sbpair.core.message import TtlMode
    from sbpair.runtime.draining import DrainReport, DrainRequest, ToArchive, ToPrimary, ToQueue


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """Options of drain and syphon as given on the command line; durations in seconds."""

    queues: list[str] | None
    dead_letter: bool
    to: str
    path: str | None
    session: str | None
    where: str | None
    rate: float | None
    concurrency: int
    ttl: "TtlMode"
    max_messages: int | None = None
    for_seconds: float | None = None
    dry_run: bool = False


def make_request(pair: Pair, options: MoveOptions) -> "DrainRequest":
    """The request for the runtime.

    Raises:
        UsageError: a queue index the pair does not have, an unknown target, a filter that cannot be read.
    """
    from sbpair.core.where import parse_where
    from sbpair.runtime.draining import DrainRequest

    return DrainRequest(
        queues=backlog_paths(pair, options.queues),
        dead_letter=options.dead_letter,
        to=_target(options.to),
        path=options.path,
        session=options.session,
        where=None if options.where is None else parse_where(options.where),
        max_messages=options.max_messages,
        for_seconds=options.for_seconds,
        rate_per_second=options.rate,
        concurrency=options.concurrency,
        ttl=options.ttl,
        dry_run=options.dry_run,
    )


@contextmanager
def ledger_errors(path: Path | None) -> Iterator[None]:
    """A ledger that cannot be opened or written as an error of ours."""
    try:
        yield
    except OSError as error:
        raise SbpairError(
            f"Cannot write the ledger {path}: {error}", hint="What was sent, but not recorded, is still in the backlog."
        ) from error


def backlog_paths(pair: Pair, queues: list[str] | None) -> tuple[str, ...]:
    """Paths of the pair's backlog queues, or of those with the given indexes or paths."""
    own = pair.backlog_paths()
    wanted = {backlog_path(pair, queue): queue for queue in queues or ()}
    for path, queue in wanted.items():
        if path not in own:
            raise UsageError(f"Pair {pair.name!r} has backlog queues 0 to {len(own) - 1}; there is no {queue}.")
    return tuple(wanted) or own


def _target(text: str) -> "ToPrimary | ToArchive | ToQueue":
    from sbpair.runtime.draining import ToArchive, ToPrimary, ToQueue

    kind, _, rest = text.partition(":")
    match kind, bool(rest):
        case "primary", False:
            return ToPrimary()
        case "archive", True:
            return ToArchive(Path(rest))
        case "queue", True:
            return ToQueue(check_entity_path(rest))
    raise UsageError(f"--to is primary, archive:DIRECTORY or queue:NAME, not {text!r}.")


def report_result(command: str, pair: Pair, report: "DrainReport") -> CommandResult:
    """A report of the pump as tables, data and exit code."""
    verb = "would go" if report.dry_run else "went"
    rows: list[dict[str, Any]] = [
        {"what": "home", "where": destination, "messages": count} for destination, count in report.per_destination
    ]
    rows += [{"what": "dead-lettered", "where": reason, "messages": n} for reason, n in report.dead_letter_reasons]
    rows += [{"what": "was dead-lettered for", "where": fault, "messages": n} for fault, n in report.original_faults]
    rows += [{"what": "left", "where": one.reason, "messages": one.count} for one in report.left]
    if report.pings:
        rows.append({"what": "ping messages completed", "where": "", "messages": report.pings})
    rows += [
        {"what": "not read", "where": f"{one.queue}: {one.error.message}", "messages": None} for one in report.failures
    ]
    columns = (Column("what", "What"), Column("where", "Where or why"), Column("messages", "Messages", right=True))
    forecast = _moved(report)
    return CommandResult(
        command,
        {"pair": pair.name, **_report_data(report), "forecast" if report.dry_run else "used": as_data(forecast)},
        (Table("", columns, rows),),
        notes=(*_notes(report), f"{'It would take' if report.dry_run else 'It took'} {in_words(forecast)}."),
        summary=f"{report.forwarded:,} message(s) {verb} home from {pair.name}; {_ending(report)}.",
        exit=_exit(report),
        checks=tuple(_checks(pair, report)),
        metrics=tuple(_metrics(pair, report)),
    )


def _moved(report: "DrainReport") -> "Forecast":
    """Operations of what moved (or would): received, completed, sent, in steps of 64 KB at the average size."""
    from sbpair.core.forecast import Forecast, of_messages

    if not report.forwarded:
        return Forecast(message_operations=2 * (report.dead_lettered + report.pings))
    average = -(-report.forwarded_bytes // report.forwarded)
    rest = Forecast(message_operations=2 * (report.dead_lettered + report.pings + report.already_forwarded))
    return of_messages(report.forwarded, average) + rest


def _report_data(report: "DrainReport") -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "forwarded": report.forwarded,
        "forwarded_bytes": report.forwarded_bytes,
        "completed": report.completed,
        "already_forwarded": report.already_forwarded,
        "uncompleted": report.uncompleted,
        "dead_lettered": report.dead_lettered,
        "released": report.released,
        "pings": report.pings,
        "locks_lost": report.locks_lost,
        "per_destination": dict(report.per_destination),
        "dead_letter_reasons": dict(report.dead_letter_reasons),
        "original_faults": dict(report.original_faults),
        "left": {one.reason: one.count for one in report.left},
        "failures": [
            {"queue": one.queue, "code": one.error.code, "message": one.error.message} for one in report.failures
        ],
        "confirmed_empty": report.confirmed_empty,
        "ended_by": report.ended_by,
        "archive": None if report.archive is None else str(report.archive),
        "seconds": round(report.seconds, 3),
    }


def _notes(report: "DrainReport") -> list[str]:
    notes = []
    if report.archive is not None:
        notes.append(f"Archive: {report.archive}")
    if any(one.reason.endswith("(unauthorized)") for one in report.left):
        notes.append(
            "The credential lacks the right Send on the primary; what each command needs: sbpair help permissions"
        )
    if any(one.reason == "deferred" for one in report.left):
        notes.append("Deferred messages come only when they are asked for by number: sbpair drain --deferred does.")
    if report.already_forwarded:
        notes.append(f"{report.already_forwarded:,} had been sent before; they were completed, not sent again.")
    if report.uncompleted:
        notes.append(
            f"{report.uncompleted:,} were sent, but their completion was not confirmed: they come again, with the same "
            "MessageId."
        )
    return notes


def _ending(report: "DrainReport") -> str:
    if report.dry_run:
        return "nothing was changed"
    if report.confirmed_empty:
        return "the backlog is confirmed empty"
    left = sum(one.count for one in report.left)
    ended = {"stop": "stopped by a signal", "time": "the time was up", "count": "the wanted number was reached"}
    return ended.get(report.ended_by, f"{left:,} left, see why above" if left else "emptiness could not be confirmed")


def _exit(report: "DrainReport") -> Exit:
    if report.dry_run:
        return Exit.FINDINGS if report.forwarded or report.dead_lettered else Exit.OK
    if report.failures or report.dead_lettered or report.uncompleted:
        return Exit.PARTIAL
    if report.confirmed_empty or report.ended_by in ("time", "count", "stop"):
        return Exit.OK
    return Exit.PARTIAL


def _checks(pair: Pair, report: "DrainReport") -> list[Check]:
    left = sum(one.count for one in report.left)
    severity = Severity.WARNING if left or report.failures else Severity.OK
    return [Check("backlog", pair.name, severity, f"{report.forwarded:,} home, {left:,} left")]


def _metrics(pair: Pair, report: "DrainReport") -> list[Metric]:
    labels = (("pair", pair.name),)
    left = sum(one.count for one in report.left)
    return [
        Metric("sbpair_forwarded_messages", "Messages that went home in this run.", report.forwarded, labels),
        Metric("sbpair_left_messages", "Messages left in the backlog after this run.", left, labels),
        Metric("sbpair_dead_lettered_messages", "Messages dead-lettered in this run.", report.dead_lettered, labels),
    ]
