"""Before extra queues are deleted: their messages into an archive, or to the primary."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sbpair.core.access import shown_name
from sbpair.core.pairing import Pair
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.summary import Emptied
from sbpair.operations.drain import DrainRequest, ToArchive, ToPrimary, drain
from sbpair.operations.ends import Sides
from sbpair.operations.log import OperationsLog, context_of
from sbpair.ports import Observer

__all__ = ["EmptyRequest", "empty"]


@dataclass(frozen=True, slots=True)
class EmptyRequest:
    """Which queues are emptied before they are deleted, and where to."""

    queues: tuple[str, ...]
    """Their paths on the secondary."""
    archive: Path | None = None
    """The folder where files with the messages are written; None: the messages go to the primary."""
    log: Path | None = None
    """The operations log. None: nothing is recorded."""


async def empty(
    sides: Sides, request: EmptyRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Emptied:
    """Move what queues hold into files, or to the primary: first the messages, then the dead letters.

    Args:
        sides: the pair's open namespaces.
        request: which queues.
        observer: gets the events on the way.
        stop: ends the run once it is set; the result says what was moved until then.

    Returns:
        What became of the messages and of the dead letters.

    Raises:
        As `drain`; and SbpairError: the operations log cannot be written.
    """
    to = ToPrimary() if request.archive is None else ToArchive(request.archive)
    reports = []
    with OperationsLog(request.log) as log:
        for dead_letter in (False, True):
            asked = DrainRequest(queues=request.queues, dead_letter=dead_letter, to=to)
            report = (await drain(sides, asked, observer=observer, stop=stop)).report
            action = "drain" if request.archive is None else "archive"
            log.write(_line(sides.pair, request.queues, action, dead_letter, report))
            reports.append(report)
    return Emptied(sides.pair.name, shown_name(sides.pair.primary), *reports)


def _line(pair: Pair, queues: Sequence[str], action: str, dead_letter: bool, report: DrainReport) -> dict[str, Any]:
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
