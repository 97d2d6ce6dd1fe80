"""Opens and closes the ledger that a request names, with a line about the run at its beginning and its end; `report`
tells an incident from ledgers; and a look for messages that an earlier run may have sent.
"""

import asyncio
import json
import re
import shlex
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

from sbpair.concurrency import cancel_on
from sbpair.core.access import NamespaceAccess, credential_name, namespace_name
from sbpair.core.backlog import Backlog
from sbpair.core.errors import InterruptedWorkError, MalformedMessageError, ServiceError, UsageError, unwritable
from sbpair.core.events import Doubtful
from sbpair.core.message import PARTITION_SHIFT, MessageState, Received
from sbpair.core.names import split_source
from sbpair.core.redact import json_text
from sbpair.core.rewrite import as_sent
from sbpair.core.transfer.ledger import RUN_BEGAN, RUN_ENDED, LedgerEntry, Way, between, run_line
from sbpair.core.transfer.ledger_report import IncidentCounter, IncidentReport, LedgerChain, LedgerSeen
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.state import Forward, Key, key_of
from sbpair.core.transfer.verdict import Judge
from sbpair.files import AppendedFile, claim
from sbpair.operations.log import stated_reason, who
from sbpair.ports import MessageReceiver, Messaging, Observer, RuntimeClock
from sbpair.runtime.browse import FIRST_SEQUENCE_NUMBER, page_from, pages
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.links import close_quietly, closing
from sbpair.runtime.transfer.ledger import COMMANDS_FILE, Ledger, Recorder, Remembered, known_in, ledgers_in
from sbpair.version import __version__

__all__ = ["IncidentReport", "ReportRequest", "report"]


@asynccontextmanager
async def open_ledger(
    path: Path | None,
    run: "LedgerRun",
    observer: Observer | None,
    *,
    new: bool = False,
    to: Mapping[str, str] | None = None,
    verify: Callable[[Ledger], Awaitable[int]] | None = None,
) -> AsyncIterator[Recorder | None]:
    """The ledger, continued if the file is there, and closed at the end. None without a path.

    Args:
        run: which messages move between which namespaces, and by which command.
        observer: is told of messages that an earlier run may have sent, which this one sends again; their MessageIds
            are added to `FILE.doubtful`. None: a dry run, which knows what the ledger has and writes no file.
        new: the old file is renamed to the first free FILE.N.
        to: as for `Ledger`.
        verify: looks for what is in doubt, records what has arrived and says how many messages that were.

    Raises:
        UsageError: see `Ledger`; or a folder of other files.
        SbpairError: a file cannot be opened or written.
    """
    if path is None:
        yield None
        return
    _refuse_other_folder(path)
    if observer is None:
        known = () if new else ledgers_in(path)
        yield Remembered(run.way, known_in(known, run.way, to or {})[0])
        return
    ledger = _opened(path, run.way, to or {}, new=new)
    try:
        ledger.begin_run(run.began())
        found = 0 if verify is None else await verify(ledger)
        _name_doubtful(ledger, observer, found)
        yield ledger
    finally:
        await ledger.close()


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """A run as its ledger has it. `target` is None where messages go into an archive."""

    command: str
    source: NamespaceAccess
    target: NamespaceAccess | None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def way(self) -> Way:
        """Between which namespaces messages move."""
        return Way(namespace_name(self.source), None if self.target is None else namespace_name(self.target))

    def began(self) -> bytes:
        """The line before all others."""
        credentials = [credential_name(one) for one in (self.source, self.target) if one is not None]
        said = {"who": who(), "command": self.command, "credentials": ", ".join(credentials), "version": __version__}
        return self._line(RUN_BEGAN, {**said, "reason": stated_reason()})

    async def ended(self, ledger: Recorder | None, report: DrainReport, backlog: Backlog | None = None) -> None:
        """Write the line after all others. `backlog`: what it holds after the run.

        Raises:
            LedgerError: it cannot be written.
        """
        if ledger is None or report.dry_run:
            return
        waiting = None
        if backlog is not None and backlog.whole:
            kinds = ("active", "dead_letter", "deferred", "scheduled")
            waiting = {kind: None if backlog.unread else backlog.known(kind) for kind in kinds}
        left = {one.reason: one.count for one in report.left[:_MOST_REASONS]}
        left |= {f"not read: {one.queue}": 0 for one in report.failures[:_MOST_REASONS]}
        await ledger.append([self._line(RUN_ENDED, {"ended_by": report.ended_by, "left": left, "waiting": waiting})])

    def _line(self, outcome: str, about: Mapping[str, Any]) -> bytes:
        return run_line(self.run, outcome, LoopClock().now().isoformat(), between(self.way), about)


_MOST_REASONS = 100
"""For which a line says that messages were left: it has to stay shorter than the longest line."""


def _refuse_other_folder(path: Path) -> None:
    try:
        is_other = path.is_dir() and not ledgers_in(path) and any(path.iterdir())
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was sent.") from error
    if is_other:
        hint = f"Name a file: --ledger {shlex.quote(str(path / COMMANDS_FILE))}"
        raise UsageError(f"{path} is a folder of other files, without a ledger. Nothing was sent.", hint=hint)


def _opened(path: Path, way: Way, to: Mapping[str, str], *, new: bool) -> Ledger:
    try:
        if new and path.is_dir():
            raise UsageError(
                f"{path} is a folder of ledgers, which is not renamed. Nothing was sent.", hint="Name another one."
            )
        if new and path.is_file() and path.stat().st_size:
            _rename(path)
        return Ledger(path, resume=True, way=way, to=to)
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was sent.") from error


def _rename(path: Path) -> None:
    """Not the file of a running process, which would go on with it under its new name.

    Raises:
        UsageError: another process writes it.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    with path.open("rb") as file:
        if not claim(file):
            raise UsageError(
                f"The ledger {path} is being written by another process, so it was not renamed. Nothing was sent.",
                hint="Wait until that has ended, or name another file with --ledger.",
            )
        path.rename(aside)


def doubtful_file(ledger: Path) -> Path:
    """Where the messages are named that may have arrived twice."""
    return ledger.with_name(f"{ledger.name}.doubtful")


def _name_doubtful(ledger: Ledger, observer: Observer, found: int) -> None:
    """Add what is in doubt and not there yet to the ledger's file of doubtful messages. `found`: how many others were
    found at their destinations."""
    path = doubtful_file(ledger.path)
    known = _named_in(path) | ledger.forwarded
    fresh = {key: to for key, to in ledger.doubtful.items() if key not in known}
    now = LoopClock().now()
    if not fresh:
        if found:
            observer.notify(Doubtful(now.timestamp(), 0, str(path), found))
        return
    lines = b"".join(_doubtful_line(key, to, now.isoformat()) for key, to in fresh.items())
    try:
        file = AppendedFile(path)
        try:
            file.append(lines)
        finally:
            file.close()
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was sent.") from error
    observer.notify(Doubtful(now.timestamp(), len(fresh), str(path), found))


def _doubtful_line(key: Key, destination: str, found_at: str) -> bytes:
    queue, number, message_id, enqueued_at_ms = key
    line = {
        "message_id": message_id,
        "destination": destination,
        "queue": queue,
        "sequence_number": number,
        "enqueued_at_ms": enqueued_at_ms,
        "found_at": found_at,
    }
    return json_text(line).encode() + b"\n"


def _named_in(path: Path) -> frozenset[Key]:
    """Raises UsageError where the file is something else."""
    if not path.is_file():
        return frozenset()
    try:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        return frozenset(
            (one["queue"], one["sequence_number"], one["message_id"], one["enqueued_at_ms"]) for one in lines
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a list of doubtful messages. Nothing was sent.") from error


# An incident, told from its ledgers alone: who moved what, when and where to; and whether lines are as written.

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
    chain, known = LedgerChain(put_together=_OF_STREAM.fullmatch(path.name) is not None), 0
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


# Looks for messages that an earlier run may have sent, before this one sends them again.

FOUND = "found at its destination"
"""Reason in the line of a message that an earlier run had sent."""
VERIFY_SECONDS = 30.0
"""Bound for browsing all destinations together. What is not found by then is sent again."""
_CLOCKS_APART_SECONDS = 60.0
"""How far the clocks of two namespaces may differ without a message being passed over."""


@dataclass(slots=True)
class _Sought:
    """A message in doubt that is still in its queue."""

    key: Key
    payload: bytes
    """As it was sent, without what a service adds."""
    session_id: str | None
    since: float
    """When it was put into its queue: what its destination got before is another message."""

    def is_in(self, received: Received) -> bool:
        try:
            return (received.enqueued_at or 0.0) >= self.since and as_sent(received.payload).payload == self.payload
        except MalformedMessageError:
            return False


Verify = Callable[[Ledger], Awaitable[int]]
"""What `open_ledger` takes."""


def looking_for(
    judge: Judge, *, source: Messaging | Sequence[Received], target: Messaging, clock: RuntimeClock, stop: asyncio.Event
) -> Verify:
    """`record_what_arrived` for `open_ledger`, until `stop` is set."""

    async def look(ledger: Ledger) -> int:
        arrived = record_what_arrived(ledger, judge, source=source, target=target, clock=clock)
        return await cancel_on(stop, arrived) or 0

    return look


async def record_what_arrived(
    ledger: Ledger, judge: Judge, *, source: Messaging | Sequence[Received], target: Messaging, clock: RuntimeClock
) -> int:
    """Browse the destinations of messages in doubt, and record those as sent that lie there; how many.

    A message counts as found if one with its MessageId, its bytes and a later time is there. A MessageId that several
    messages have proves nothing. What cannot be found, since it is not there, was consumed already, went to a topic or
    may not be browsed, is sent again.

    Args:
        judge: says what is sent of a message, and where.
        source: where the messages still lie; or they themselves, out of files.

    Raises:
        LedgerError: the ledger cannot be written.
    """
    if not ledger.doubtful:
        return 0
    ids = Counter(key[2] for key in {*ledger.doubtful, *ledger.forwarded})
    doubtful = {key for key in ledger.doubtful if key[2] is not None and ids[key[2]] == 1}
    sought: dict[str, dict[str, _Sought]] = {}
    found: list[tuple[str, _Sought]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(VERIFY_SECONDS):
            if isinstance(source, Sequence):
                _seek(source, doubtful, judge, sought)
            else:
                for queue in {key[0] for key in doubtful}:
                    await _look_for_rest(source, queue, doubtful, judge, clock, sought)
            for destination, by_id in sought.items():
                await _look_in(target, destination, by_id, clock, found)
    time = clock.now().astimezone(UTC).isoformat()
    arrived = [LedgerEntry(*one.key, to, one.session_id, "forwarded", time, reason=FOUND) for to, one in found]
    await ledger.record(arrived)
    ledger.forwarded |= {(one.queue, one.sequence_number, one.message_id, one.enqueued_at_ms) for one in arrived}
    return len(arrived)


async def _look_for_rest(
    source: Messaging,
    queue: str,
    doubtful: set[Key],
    judge: Judge,
    clock: RuntimeClock,
    sought: dict[str, dict[str, _Sought]],
) -> None:
    """Add what is still in its queue, by destination and MessageId. Where it cannot be browsed: nothing."""
    numbers = [key[1] for key in doubtful if key[0] == queue]
    path, dead_letter = split_source(queue)
    try:
        async with closing(source.receiver(path, dead_letter=dead_letter)) as receiver:
            async for page in pages(receiver, min(numbers), max(numbers), clock=clock, patience_seconds=0.0):
                _seek(page, doubtful, judge, sought)
    except ServiceError:
        return


def _seek(
    messages: Iterable[Received], doubtful: set[Key], judge: Judge, sought: dict[str, dict[str, _Sought]]
) -> None:
    """Add those that are in doubt, by destination and MessageId."""
    for received in messages:
        verdict = judge(received) if key_of(received) in doubtful else None
        if isinstance(verdict, Forward):
            sent = as_sent(verdict.payload).payload
            one = _Sought(key_of(received), sent, verdict.session_id, received.enqueued_at or 0.0)
            sought.setdefault(verdict.destination, {})[str(received.message_id)] = one


async def _look_in(
    target: Messaging,
    destination: str,
    by_id: dict[str, _Sought],
    clock: RuntimeClock,
    found: list[tuple[str, _Sought]],
) -> None:
    """Add what is there. Of a topic, or where browsing is not allowed: nothing."""
    receiver = target.receiver(destination)
    since = min(one.since for one in by_id.values()) - _CLOCKS_APART_SECONDS
    number = FIRST_SEQUENCE_NUMBER
    try:
        while page := await page_from(receiver, number, clock=clock, patience_seconds=0.0):
            for received in page:
                one = by_id.get(received.message_id or "")
                if one is not None and one.is_in(received):
                    found.append((destination, by_id.pop(received.message_id or "")))
            if not by_id:
                return
            last = page[-1]
            number = last.sequence_number + 1
            if _is_before(last, since):
                number = await _first_since(receiver, last.sequence_number, since, clock)
    except ServiceError:
        return
    finally:
        await close_quietly(receiver)


async def _first_since(receiver: MessageReceiver, number: int, since: float, clock: RuntimeClock) -> int:
    """A number after this one with no message of its partition between that came at `since` or later: a destination
    may hold a million messages that were there long before."""
    end = ((number >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
    step, low, high = 1, number, end
    while high - low > 1:
        middle = min(low + step, (low + high) // 2) if high == end else (low + high) // 2
        page = await page_from(receiver, middle, clock=clock, most=1, patience_seconds=0.0)
        if page and page[0].sequence_number < end and _is_before(page[0], since):
            low, step = page[0].sequence_number, 2 * step
        else:
            high = middle
    return low + 1


def _is_before(received: Received, since: float) -> bool:
    """What is scheduled has the time at which it will be there."""
    return received.state is not MessageState.SCHEDULED and (received.enqueued_at or since) < since
