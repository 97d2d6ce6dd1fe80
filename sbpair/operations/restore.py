"""Archived messages, sent to their destinations: each once by its ledger, each session in order."""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import time
from typing import Any

from sbpair.concurrency import run_until
from sbpair.core import system_properties
from sbpair.core.access import shown_name
from sbpair.core.errors import InterruptedWorkError, InvalidDestinationError, MessageError, ServiceError, UsageError
from sbpair.core.message import Origin, Received
from sbpair.core.names import Names, is_dead_letter_path, is_destination
from sbpair.core.pairing import Pair
from sbpair.core.retry import PATIENCE_SECONDS, UNREACHED_SECONDS
from sbpair.core.rewrite import as_sent, for_primary
from sbpair.core.summary import describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.report import DrainReport, reasons
from sbpair.core.transfer.restored import Restorable, Restored, RestorePlan, RestoreResult, Unsendable
from sbpair.core.transfer.state import Forward, Limited, Limits, key_of
from sbpair.core.transfer.verdict import NOT_CONFIGURED
from sbpair.core.words import counted
from sbpair.operations.ledgers import LedgerRun, looking_for, open_ledger
from sbpair.ports import Ends, Observer, Sides
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.transfer.restore import keep_lines, not_known, still_queued
from sbpair.runtime.transfer.restore import restore as send_back

__all__ = ["RestoreRequest", "RestoreResult", "restore"]

MOST_LINE_BYTES = 256 * 1024 * 1024
"""Of a line with a message of 100 MB, the largest there is, in Base64."""


@dataclass(frozen=True, slots=True)
class RestoreRequest(Limited):
    """Which archived messages to send, and how. Durations in seconds."""

    files: tuple[Path, ...]
    """Files that drain, cleanup, purge or `peek -o jsonl` wrote, or folders of them."""
    wanted: MessageFilter = EVERYTHING
    to: str | None = None
    """A queue or topic that all of them are sent to, whatever their own destinations. None: to those."""
    only: tuple[str, ...] | None = None
    """Queues and topics that may be sent to; messages for others are left. None: all."""
    max_messages: int | None = None
    """At most this many, those that came into the backlog first."""
    rate_per_second: float | None = None
    budget_per_second: float | None = None
    """Messages a second that leave enough of the namespace's throttling credits to others."""
    concurrency: int = 8
    """Batches that are sent at a time."""
    patience_seconds: float = PATIENCE_SECONDS
    """The messages of a destination that fails for this long are left."""
    unreached_seconds: float = UNREACHED_SECONDS
    """The same for a destination that has not worked yet."""
    ledger: Path | None = None
    """The file that records each message. What it already has is not sent again."""
    new_ledger: bool = False
    """Begin a new ledger; the old file stays beside it as FILE.N."""
    verify_doubtful: bool = True
    """As for a drain."""
    although_in_the_queues: bool = False
    """Do not ask whether messages that were only browsed still lie in their queues."""
    although_gone: bool = False
    """Send messages, too, that were only browsed and have left their queues since."""
    plan: RestorePlan | None = None
    """What a dry run has chosen: exactly these messages are sent, and `files` are not read again."""
    dry_run: bool = False


async def restore(
    ends: Sides | Ends, request: RestoreRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> RestoreResult:
    """Send messages out of files to the destinations that they name, each session in the order of the backlog.

    A line whose message cannot be sent to where it was to go (a destination that is none, a property that says nothing)
    is named with its reason and copied, byte by byte, into a file of the same name in the folder `unsent` beside its
    own; all others are sent.

    Needs Send on the namespace they go to; and Listen, for messages that were only browsed, where those may still lie.

    Args:
        ends: the sides of a pair, whose primary they go to; or the namespace they go to, as `target`.
        request: what to do. With `dry_run` the files are read and the queues browsed, and the result says what would be
            sent; its `plan` makes a second call send exactly that.
        stop: ends the run after the batches in flight; the result says what was sent until then.

    Returns:
        How many messages were sent where, and why others were not.

    Raises:
        UsageError: a file is missing, or no line of it is a message; messages that were only browsed are still in their
            queues, or have left them, and the request does not allow for that; the ledger is that of other namespaces.
            Nothing was sent.
        SbpairError: a file cannot be read, or the ledger cannot be written.
        ServiceError: the queues of messages that were only browsed cannot be read. Nothing was sent.
        InterruptedWorkError: `stop` was set before the first message. Nothing was sent.
    """
    stop = stop or asyncio.Event()
    way = _Way.of(ends)
    plan = request.plan
    run = LedgerRun("restore", way.ends.source_access, way.ends.target_access)
    if plan is None:
        plan = await asyncio.to_thread(_plan, request, stop.is_set)
        async with open_ledger(request.ledger, run, None, new=request.new_ledger) as known:
            done = frozenset() if known is None else known.forwarded
        todo = [message for message in plan.messages if key_of(message.received) not in done]
        if not request.although_in_the_queues:
            await run_until(stop, _refuse_doubles(way, todo, although_gone=request.although_gone))
        if request.dry_run:
            would = Counter(message.forward.destination for message in todo)
            return way.result(plan, Restored(dict(would), plan.left, len(plan.messages) - len(todo)), True)
    kept_in = await asyncio.to_thread(keep_lines, plan.unsendable)
    observer = observer or Quiet()
    forwards = {key_of(one.received): one.forward for one in plan.messages}
    looking = looking_for(
        lambda received: forwards[key_of(received)],
        source=[one.received for one in plan.messages],
        target=way.ends.target,
        clock=LoopClock(),
        stop=stop,
    )
    verify = looking if request.verify_doubtful else None
    async with open_ledger(request.ledger, run, observer, new=request.new_ledger, verify=verify) as ledger:
        restored = await send_back(
            plan.messages,
            primary=way.ends.target,
            ledger=ledger,
            clock=LoopClock(),
            observer=observer,
            stop=stop,
            limits=Limits(
                sends=request.concurrency,
                rate_per_second=request.rate_per_second,
                budget_per_second=request.budget_per_second,
                patience_seconds=request.patience_seconds,
                unreached_seconds=request.unreached_seconds,
            ),
        )
        restored = replace(restored, left=restored.left | plan.left)
        await run.ended(ledger, DrainReport(left=reasons(restored.left), ended_by="stop" if stop.is_set() else "empty"))
    return replace(way.result(plan, restored, False), kept_in=kept_in)


@dataclass(frozen=True, slots=True)
class _Way:
    """Where messages that were only browsed may still lie, and where all of them go."""

    ends: Ends
    pair: Pair | None

    @classmethod
    def of(cls, ends: Sides | Ends) -> "_Way":
        if isinstance(ends, Ends):
            return cls(ends, None)
        pair = ends.pair
        between = Ends(ends.secondary, ends.primary, source_access=pair.secondary, target_access=pair.primary)
        return cls(between, pair)

    def result(self, plan: RestorePlan, restored: Restored, dry_run: bool) -> RestoreResult:
        pair = None if self.pair is None else self.pair.name
        return RestoreResult(pair, shown_name(self.ends.target_access), dry_run, plan.chosen, restored, plan)


async def _refuse_doubles(way: _Way, messages: Sequence[Restorable], *, although_gone: bool) -> None:
    try:
        waiting = await still_queued(way.ends.source, messages, clock=LoopClock())
    except ServiceError as error:
        raise not_known(error) from error
    if waiting:
        where, hint = "lie in their queues: they would be there twice", "`sbpair copy` copies messages"
        if way.pair is not None:
            where = "wait in the backlog queues; a drain would send them a second time"
            hint = f"Send them back with `sbpair drain {way.pair.name}`"
        raise UsageError(
            f"{waiting:,} of {len(messages):,} messages still {where}. Nothing was sent.",
            hint=f"{hint}. --although-in-the-queues sends these nevertheless.",
        )
    if (gone := sum(message.browsed for message in messages)) and not although_gone:
        raise UsageError(
            f"{gone:,} of {counted(len(messages), 'message')} were only browsed and have left their queues since: a "
            "drain or syphon may have sent them back already. Nothing was sent.",
            hint="Name its ledger (--ledger drain.jsonl): what it has is left out. --although-gone sends them "
            "nevertheless.",
        )


# Which messages of the files are sent.


def _plan(request: RestoreRequest, stopped: Callable[[], bool]) -> RestorePlan:
    """The chosen messages, each once, in the order in which they were put into the backlog. A destination, whose case
    does not matter, has the spelling that came first."""
    spellings: dict[str, str] = {}
    by_key: dict[Any, Restorable] = {}
    unsendable = []
    for message in read_archives(request.files, to=request.to):
        if stopped():
            raise InterruptedWorkError("Stopped before the end.")
        if isinstance(message, Unsendable):
            unsendable.append(message)
        elif not request.wanted.is_set or _is_wanted(message, request.wanted):
            by_key[key_of(message.received)] = _spelled(message, spellings)
    ordered = [by_key[key] for key in sorted(by_key, key=lambda key: (key[3], key[0], key[1]))]
    chosen = ordered if request.max_messages is None else ordered[: request.max_messages]
    if request.only is None:
        return RestorePlan(tuple(chosen), unsendable=tuple(unsendable))
    names = Names(request.only)
    inside = tuple(message for message in chosen if message.forward.destination in names)
    outside = [message.forward.destination for message in chosen if message.forward.destination not in names]
    return RestorePlan(inside, Counter(NOT_CONFIGURED + path for path in outside), tuple(unsendable))


def _spelled(message: Restorable, spellings: dict[str, str]) -> Restorable:
    """With the first spelling of its destination."""
    path = message.forward.destination
    return replace(message, forward=replace(message.forward, destination=spellings.setdefault(path.lower(), path)))


def _is_wanted(message: Restorable, wanted: MessageFilter) -> bool:
    summary = describe(message.received.payload)
    return wanted.wants(message.received, replace(summary, destination=message.forward.destination))


def read_archives(given: Sequence[Path], *, to: str | None = None) -> Iterator[Restorable | Unsendable]:
    """The messages of all lines of these files, and of the *.jsonl files of these folders. `to`: as for a request.

    Raises:
        UsageError: there is no such file, it cannot be read, or no line of it is a message.
    """
    for path in given:
        if not path.exists():
            raise UsageError(f"There is no file or folder {path}.")
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found:
            raise UsageError(f"{path} holds no *.jsonl file.", hint="`sbpair pipeline replay` reads Parquet archives.")
        for file in found:
            yield from _messages(file, to)


def _messages(file: Path, to: str | None) -> Iterator[Restorable | Unsendable]:
    """The whole lines; one that a crash cut off was never settled, so its message is still in the queue."""
    foreign: list[Restorable | Unsendable] = []  # until a line is a message: the file may be anything
    known = False
    try:
        with file.open("rb") as opened:
            offset = 0
            for number, line in enumerate(iter(lambda: opened.readline(MOST_LINE_BYTES), b""), 1):
                begins_at, offset = offset, offset + len(line)
                try:
                    message: Restorable | Unsendable = _message(json.loads(line), to)
                    known = True
                except MessageError as error:
                    message = Unsendable(file, number, begins_at, len(line), error.reason, error.description)
                    known = True
                except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError):
                    if not line.endswith(b"\n") and not opened.peek(1):
                        break
                    message = Unsendable(file, number, begins_at, len(line), NO_MESSAGE, _NO_MESSAGE)
                if known:
                    yield from foreign
                    foreign.clear()
                    yield message
                else:
                    foreign.append(message)
                    if len(foreign) == MOST_FOREIGN_LINES:
                        break
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror or error}.") from error
    if foreign:
        raise UsageError(
            f"{file} is no archive that drain, cleanup, purge or peek wrote: it begins with "
            f"{counted(len(foreign), 'line')} that hold no message. Nothing was sent."
        )


NO_MESSAGE = "NoMessage"
"""Reason of a line that holds no message at all."""
_NO_MESSAGE = "It is not a message that drain, cleanup, purge or peek wrote."
MOST_FOREIGN_LINES = 1_000
"""This many lines without a message at the beginning of a file, and it is no archive."""


def _message(read: Mapping[str, Any], to: str | None) -> Restorable:
    received = received_in(read)
    return Restorable(received, _forward(read, received.payload, received.source, to), browsed="state" in read)


def received_in(read: Mapping[str, Any]) -> Received:
    """The message of an archive's line, as it lay in its queue; raises what `_messages` takes for no message."""
    payload = base64.b64decode(read["payload_base64"], validate=True)
    enqueued = read["enqueued_at"]
    seconds = datetime.fromisoformat(enqueued).timestamp() if isinstance(enqueued, str) else enqueued
    message_id, queue, number = read["message_id"], read["queue"], read["sequence_number"]
    if not isinstance(queue, str) or not isinstance(number, int) or not isinstance(message_id, str | None):
        raise TypeError("queue, sequence_number or message_id")
    origin = Origin(queue, number, message_id, -1 if seconds is None else round(seconds * 1000))
    return Received(payload, number, queue, message_id, enqueued_at=seconds, origin=origin)


def _forward(read: Mapping[str, Any], payload: bytes, queue: str, to: str | None) -> Forward:
    """What is sent, and where.

    Raises:
        MessageError: it cannot be sent to its destination.
    """
    if system_properties.PATH in describe(payload).application_properties:
        try:
            restored = for_primary(payload, now=time(), enqueued_at=None, from_dead_letter=True)
            destination = to or restored.destination
            return Forward(restored.payload, destination, restored.session_id, restored.partition_key)
        except MessageError:
            if to is None:
                raise  # with a destination of the user's choice it goes as it is
    destination = to or read.get("destination", read.get("path"))
    if not isinstance(destination, str) or not is_destination(destination.strip("/")):
        raise InvalidDestinationError("The message names no queue or topic to go to.")
    sent = as_sent(payload, from_dead_letter=is_dead_letter_path(queue))
    return Forward(sent.payload, destination.strip("/"), sent.session_id, sent.partition_key)
