"""Before extra queues are deleted: their messages into an archive, or to the primary."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.options import Options
from sbpair.cli.transfer.drain import drain_showing
from sbpair.core.access import shown_name
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.operations.log import OperationsLog, context_of

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.transfer.conclusion import DrainResult
    from sbpair.core.transfer.report import DrainReport


@dataclass(frozen=True, slots=True)
class Emptied:
    """What became of the messages of some queues. `active` and `dead` are the two passes."""

    pair: Pair
    queues: tuple[str, ...]
    active: "DrainResult"
    dead: "DrainResult"

    def notes(self) -> Iterator[str]:
        """What happened, in sentences."""
        for drained, noun in ((self.active, "message"), (self.dead, "dead letter")):
            report = drained.report
            number = counted(report.forwarded, noun)
            if report.archive is not None and report.forwarded:
                yield f"{self.pair.name}: {number} archived in {report.archive}."
            elif report.forwarded:
                yield f"{self.pair.name}: {number} back on {shown_name(self.pair.primary)}."
            for left in report.left:
                yield f"{self.pair.name}: {counted(left.count, noun)} left: {left.reason}."


async def empty_queues(
    options: Options, pair: Pair, queues: Sequence[str], archive: Path | None, stop: "asyncio.Event", log: OperationsLog
) -> Emptied:
    """Move what the queues hold into files in `archive`, or to the primary if that is None: messages, then dead
    letters."""
    from sbpair.operations.drain import DrainRequest, ToArchive, ToPrimary

    to = ToPrimary() if archive is None else ToArchive(archive)
    runs = []
    for dead_letter in (False, True):
        request = DrainRequest(queues=tuple(queues), dead_letter=dead_letter, to=to)
        drained = await drain_showing(options, pair, request, stop)
        log.write(_line(pair, queues, "drain" if archive is None else "archive", dead_letter, drained.report))
        runs.append(drained)
    return Emptied(pair, tuple(queues), *runs)


def _line(pair: Pair, queues: Sequence[str], action: str, dead_letter: bool, report: "DrainReport") -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **context_of("cleanup", pair.secondary),
        "pair": pair.name,
        "namespace": pair.secondary.host,
        "action": action,
        "queues": list(queues),
        "dead_letter": dead_letter,
        "result": "done" if report.confirmed_empty else "partial",
        "messages": report.completed,
        "archive": None if report.archive is None else str(report.archive),
    }
