"""Before extra queues are deleted: their messages into an archive, or home."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.drain import run_drain
from sbpair.cli.operations import OperationsLog, how_to_apply
from sbpair.cli.options import Options
from sbpair.core.pairing import Pair

if TYPE_CHECKING:
    import asyncio

    from sbpair.runtime.draining import DrainReport


@dataclass(frozen=True, slots=True)
class Emptied:
    """What became of the messages of some queues. `active` and `dead` are the two passes."""

    pair: Pair
    queues: tuple[str, ...]
    active: "DrainReport"
    dead: "DrainReport"

    def notes(self) -> Iterator[str]:
        """What happened, in sentences."""
        for report, kind in ((self.active, "message(s)"), (self.dead, "dead letter(s)")):
            if report.archive is not None and report.completed:
                yield f"{self.pair.name}: {report.completed:,} {kind} archived in {report.archive}."
            elif report.forwarded:
                yield f"{self.pair.name}: {report.forwarded:,} {kind} went home."
            for left in report.left:
                yield f"{self.pair.name}: {left.count:,} {kind} left: {left.reason}."


async def empty_queues(
    options: Options, pair: Pair, queues: Sequence[str], archive: Path | None, stop: "asyncio.Event", log: OperationsLog
) -> Emptied:
    """Move what the queues hold into files in `archive`, or home if that is None: messages first, then dead letters."""
    from sbpair.runtime.draining import DrainRequest, ToArchive, ToPrimary

    to = ToPrimary() if archive is None else ToArchive(archive)
    reports = []
    for dead_letter in (False, True):
        request = DrainRequest(queues=tuple(queues), dead_letter=dead_letter, to=to)
        report = await run_drain(options, pair, request, stop)
        log.write(_line(pair, queues, "drain" if archive is None else "archive", dead_letter, report))
        reports.append(report)
    return Emptied(pair, tuple(queues), *reports)


def _line(pair: Pair, queues: Sequence[str], action: str, dead_letter: bool, report: "DrainReport") -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **(how_to_apply("cleanup", pair).context or {}),
        "pair": pair.name,
        "namespace": pair.secondary.host,
        "action": action,
        "queues": list(queues),
        "dead_letter": dead_letter,
        "result": "done" if report.confirmed_empty else "partial",
        "messages": report.completed,
        "archive": None if report.archive is None else str(report.archive),
    }
