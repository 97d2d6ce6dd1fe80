"""`audit`: read both namespaces of a pair into one snapshot, and judge it by the checks."""

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sbpair.concurrency import run_until
from sbpair.core.durations import epoch_seconds
from sbpair.core.errors import UsageError, unwritable
from sbpair.core.inspection import audit as checks
from sbpair.core.inspection.audit.result import AuditedPair, history_line
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.inspection.trend import COUNTS, Audit
from sbpair.core.pairing import Pair
from sbpair.core.redact import json_text, quoted
from sbpair.core.serialization import to_plain
from sbpair.files import make_private_folder, open_private
from sbpair.ports import Ends, Observer, Sides
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.gather import gather, gather_namespace

__all__ = [
    "AuditRequest",
    "AuditedPair",
    "append_history",
    "audit",
    "audit_namespace",
    "audit_snapshot",
    "read_history",
]

MOST_DESTINATIONS = 16
"""Messages of each backlog queue that are browsed for where they are to go."""
MOST_LINE_BYTES = 64 * 1024 * 1024
"""Of a history."""


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What an audit does.

    Raises:
        UsageError: an unknown code.
    """

    checks: Collection[str] = ()
    """Codes of the checks to run; none: all."""
    ignore: Collection[str] = ()
    """Findings to leave out: `CODE`, or `CODE:PATTERN` of subjects."""
    others: tuple[Pair, ...] = ()
    """The pairs of the configuration, for the checks across pairs; the audited pair itself does not count."""

    def __post_init__(self) -> None:
        for code in (*self.checks, *(entry.partition(":")[0] for entry in self.ignore)):
            checks.explain(code)


async def audit(
    sides: Sides, request: AuditRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> AuditedPair:
    """Read everything about a pair and run the checks. Changes nothing.

    What cannot be read is recorded in the result, and the checks that need it are skipped with the reason.

    Args:
        observer: gets `GatherProgress` events.

    Raises:
        InterruptedWorkError: `stop` was set before everything was read.
    """
    snapshot = await run_until(
        stop or asyncio.Event(),
        gather(
            sides.pair,
            primary=sides.primary_admin,
            secondary=sides.secondary_admin,
            clock=LoopClock(),
            observer=observer,
            peek=peeking(sides.secondary, most=MOST_DESTINATIONS),
        ),
    )
    return audit_snapshot(snapshot, request, pair=sides.pair)


async def audit_namespace(
    ends: Ends, request: AuditRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> AuditedPair:
    """Read one namespace, of a pair or not, and run the checks of what loses messages. Changes nothing.

    Needs Manage, and Listen for how long messages have waited. What cannot be read is recorded in the result, and the
    checks that need it are skipped with the reason.

    Raises:
        UsageError: its entities cannot be listed by what `ends` has, or a check is not one of a namespace.
        InterruptedWorkError: `stop` was set before everything was read.
    """
    if ends.admin is None or ends.topology is None:
        raise UsageError(f"The entities of {ends.source_access.label} cannot be listed with this credential.")
    work = gather_namespace(
        ends.source_access,
        admin=ends.admin,
        topology=ends.topology,
        peek=peeking(ends.source, dead_letters=False),
        clock=LoopClock(),
        observer=observer,
    )
    snapshot, found = await run_until(stop or asyncio.Event(), work)
    pair, codes = snapshot.pair.to_pair(), request.checks or None
    return AuditedPair(checks.run(snapshot, pair, checks=codes, ignore=request.ignore, found=found), snapshot)


def audit_snapshot(snapshot: Snapshot, request: AuditRequest, *, pair: Pair | None = None) -> AuditedPair:
    """Run the checks on a snapshot that was taken before. Contacts nothing.

    Args:
        snapshot: for example of `AuditedPair.snapshot`.
        request: see `audit`.
        pair: as it is configured now; None: as it was when the snapshot was taken.
    """
    pair = pair or snapshot.pair.to_pair()
    others = [other for other in request.others if other.name != pair.name]
    report = checks.run(snapshot, pair, checks=request.checks or None, ignore=request.ignore, others=others)
    return AuditedPair(report, snapshot)


def append_history(folder: Path, audited: AuditedPair) -> None:
    """Append a line about an audit to the pair's file in `folder`, from which trends are made.

    Raises:
        SbpairError: it cannot be written.
    """
    line = json_text(to_plain(history_line(audited.snapshot, audited.report)))
    try:
        make_private_folder(folder)
        with open_private(folder / f"{quote(audited.report.pair, safe=' ')}.jsonl", "ab") as file:
            file.write(line.encode() + b"\n")
    except OSError as error:
        raise unwritable(folder, error) from error


def read_history(folder: Path, *, since: float | None = None) -> list[Audit]:
    """The audits of a history folder in the order of their times, each once; from `since` (UTC epoch seconds) on.

    Raises:
        UsageError: no such folder, or a line that is not of a history.
    """
    if not folder.exists():
        raise UsageError(f"There is no {folder}.", hint="sbpair audit --history DIR writes a history.")
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
    found = {(one.pair, one.at): one for file in files for one in _audits(file)}
    wanted = (one for one in found.values() if since is None or one.at >= since)
    return sorted(wanted, key=lambda one: (one.pair, one.at))


def _audits(file: Path) -> Iterator[Audit]:
    try:
        with file.open("rb") as opened:
            for line in iter(lambda: opened.readline(MOST_LINE_BYTES), b""):
                if line.strip():
                    yield _audit(line, file)
    except OSError as error:
        raise UsageError(f"Cannot read the history {file}: {error}.") from error


def _audit(line: bytes, file: Path) -> Audit:
    """Anything but time and pair may be missing: older releases wrote less."""
    try:
        read = json.loads(line)
        at, pair = epoch_seconds(read["taken_at"]), read["pair"]
        if not isinstance(pair, str):
            raise TypeError("the pair is no text")
        return Audit(
            pair,
            at,
            {str(code): int(count or 0) for code, count in (read.get("findings") or {}).items()},
            frozenset(map(str, read.get("skipped") or ())),
            _queues(read.get("queues")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        shown = line[:100].decode(errors="replace").strip()
        raise UsageError(f"{file} has a line that is not of an audit history: {quoted(shown)}.") from error


def _queues(read: Any) -> Mapping[str, Mapping[str, int]] | None:
    if read is None:
        return None
    return {str(one.get("queue")): {name: int(one.get(name) or 0) for name in COUNTS} for one in read if one}
