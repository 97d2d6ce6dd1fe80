"""An incident, told from its ledgers alone: who moved what, when and where to; and whether lines are as written."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.transfer.ledger_report import Chain, IncidentCounter, IncidentReport, LedgerSeen
from sbpair.ports import Observer
from sbpair.runtime.transfer.ledger import ledgers_in

__all__ = ["IncidentReport", "ReportRequest", "report"]

MOST_LINE_BYTES = 1024 * 1024
MOST_SIGNATURE_BYTES = 16 * 1024
_OF_STREAM = re.compile(r"stream-.+-to-\d+\.jsonl")
"""The ledgers of a stream's micro-batches, one after the other."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Which ledgers are read."""

    ledgers: tuple[Path, ...]
    """Files, or folders as Spark jobs write them."""
    verify: bool = False
    """Whether lines that are not as written make the result one of findings."""


async def report(
    request: ReportRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> IncidentReport:
    """Read ledgers and add up what they tell. No namespace is contacted.

    Returns:
        What was done in all runs, what was left, and what is wrong with the lines.

    Raises:
        UsageError: there is no such ledger, it cannot be read, or it is none.
    """
    return await asyncio.to_thread(_read_all, request, stop or asyncio.Event())


def _read_all(request: ReportRequest, stop: asyncio.Event) -> IncidentReport:
    incident, seen = IncidentCounter(), []
    for path in request.ledgers:
        if not (files := ledgers_in(path)):
            raise UsageError(f"There is no ledger {path}." if not path.is_dir() else f"{path} holds no ledger.")
        seen += [_read(file, incident, stop) for file in files]
    return incident.report(tuple(seen), verified=request.verify)


def _read(path: Path, incident: IncidentCounter, stop: asyncio.Event) -> LedgerSeen:
    chain, known = Chain(put_together=_OF_STREAM.fullmatch(path.name) is not None), 0
    try:
        with path.open("rb") as file:
            for text in iter(lambda: file.readline(MOST_LINE_BYTES), b""):
                if stop.is_set():
                    raise InterruptedWorkError("Stopped before the end.")
                if (line := chain.add(text)) is not None:
                    incident.add(line)
                    known += 1
        signature = _signature_of(path)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from error
    if chain.lines and not known:
        raise UsageError(f"{path} is not a ledger: none of its lines is one of a ledger.")
    return chain.seen(str(path), ended=incident.over(), signature=signature)


def _signature_of(path: Path) -> str | None:
    beside = path.with_name(f"{path.name}.sig")
    if not beside.is_file():
        return None
    with beside.open("rb") as file:
        return file.read(MOST_SIGNATURE_BYTES).decode(errors="replace")
