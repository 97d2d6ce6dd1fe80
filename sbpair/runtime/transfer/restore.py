"""Sends messages out of files to where they were to go: by the pump of a drain, each once by its ledger.

Where a session's message is refused, or not accepted in time, the session ends: what comes later may not overtake.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from sbpair.concurrency import NO_USE_WAITING
from sbpair.core.errors import Category, ServiceError, unwritable
from sbpair.core.message import Received
from sbpair.core.names import split_source
from sbpair.core.retry import PATIENCE_SECONDS, UNREACHED_SECONDS
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.restored import Restorable, Restored, Unsendable
from sbpair.core.transfer.state import Limits, LockClock, Verdict, key_of
from sbpair.core.words import merge_spellings
from sbpair.files import make_private_folder, write_private
from sbpair.ports import Messaging, Observer, RuntimeClock
from sbpair.runtime.browse import pages
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.pump import Pump
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import NamespaceSink, Sink
from sbpair.runtime.transfer.stored import StoredMessages

RECEIVE_MESSAGES = 500
"""Batches of stored messages are as large as the link takes, not as a receive brings them."""
INTERRUPTED = "interrupted"
NOT_TO_BE_WAITED_FOR = NO_USE_WAITING - {Category.NOT_FOUND}
"""A destination that refuses for these reasons is given up at once; one that is missing is decided on by itself."""

USUAL_LIMITS = Limits(patience_seconds=PATIENCE_SECONDS, unreached_seconds=UNREACHED_SECONDS)


async def still_queued(secondary: Messaging, messages: Sequence[Restorable], *, clock: RuntimeClock) -> int:
    """How many of the messages that were only browsed lie in their queues now; the others have gone somewhere.

    Raises:
        ServiceError: a queue cannot be browsed; one that does not exist holds nothing.
    """
    by_queue: dict[str, set[tuple[int, int]]] = {}
    for message in messages:
        if message.browsed:
            queue, number, _, enqueued_ms = key_of(message.received)
            by_queue.setdefault(queue, set()).add((number, enqueued_ms))
    found = 0
    for queue, wanted in by_queue.items():
        path, dead_letter = split_source(queue)
        try:
            async with closing(secondary.receiver(path, dead_letter=dead_letter)) as receiver:
                async for page in pages(receiver, min(wanted)[0], max(wanted)[0], clock=clock):
                    at = ((one.sequence_number, round((one.enqueued_at or 0.0) * 1000)) for one in page)
                    found += sum(place in wanted for place in at)
        except ServiceError as error:
            if error.category is not Category.NOT_FOUND:
                raise
    return found


def not_known(error: ServiceError) -> ServiceError:
    """The error of looking whether messages still wait, saying what follows from it."""
    return error.with_state(
        "So it is not known whether these messages still wait in the backlog queues. Nothing was sent; "
        "--although-in-the-queues sends without looking."
    )


async def restore(
    messages: Sequence[Restorable],
    *,
    primary: Messaging,
    ledger: Recorder | None,
    clock: RuntimeClock,
    observer: Observer,
    stop: asyncio.Event,
    limits: Limits = USUAL_LIMITS,
) -> Restored:
    """Send the messages, given in the order in which they were put into the backlog. `stop` ends it after the batches
    under way; what the ledger has is not sent again.

    Args:
        limits: how fast, and how long a destination may fail before it keeps its messages; what else it bounds is
            decided here.

    Raises:
        LedgerError: the ledger cannot be written; what was sent and not recorded will be sent again.
    """
    done = ledger.forwarded if ledger is not None else frozenset()
    todo = {key_of(one.received): one for one in messages}
    todo = {key: one for key, one in todo.items() if key not in done}
    limits = replace(
        limits,
        shared=False,
        left_messages=len(todo) + 1,  # all of them are in memory already
        no_use_waiting=NOT_TO_BE_WAITED_FOR,
    )
    machine = Settlement(limits, undeliverable=None, sessions_wait=True, leave_missing=True)
    left = await send_stored(
        StoredMessages(one.received for one in todo.values()),
        lambda received: todo[key_of(received)].forward,
        machine,
        NamespaceSink(primary),
        ledger=ledger,
        clock=clock,
        observer=observer,
        stop=stop,
    )
    tally = machine.tally
    left += Counter({INTERRUPTED: len(todo) - tally.numbers["forwarded"] - left.total()})
    return Restored(
        sent=merge_spellings(tally.names["per_destination"]),
        left=dict(+left),
        already_sent=len(messages) - len(todo),
        sent_again=tally.numbers["sent_again"],
        first_error=next(iter(machine.destinations.given_up().values()), None),
    )


async def send_stored(
    stored: StoredMessages,
    classify: Callable[[Received], Verdict],
    machine: Settlement,
    sink: Sink,
    *,
    ledger: Recorder | None,
    clock: RuntimeClock,
    observer: Observer,
    stop: asyncio.Event,
    settled_by_us: bool = True,
) -> Counter[str]:
    """Send stored messages until there are no more, or until `stop`; what was left, by reason. `settled_by_us`: the
    receiver does nothing with what was sent but forget it.

    Raises:
        LedgerError: the ledger cannot be written.
        SbpairError: the sink says that nothing more may be sent.
    """
    forgets = stored if settled_by_us else None
    source = Source(stored.source, stored, LockClock(math.inf), receive_messages=RECEIVE_MESSAGES, stored=forgets)
    pump = Pump(
        [source],
        machine,
        classify,
        sink,
        clock=clock,
        observer=observer,
        ledger=ledger,
        endless=False,
        patience_seconds=math.inf,
    )
    pump.start()
    try:
        await pump.settle_down(stop)
        left = Counter(machine.custody.left().values())
    finally:
        await pump.finish()
        await sink.close()
    if pump.fatal is not None:
        raise pump.fatal
    return left


# What of an archive cannot be sent is kept beside it.

UNSENT = "unsent"
"""Folder in that of an archive or a ledger with what could not be sent; not read with an archive's own files."""


def keep_lines(lines: Sequence[Unsendable]) -> tuple[Path, ...]:
    """Copy the lines into the folder `unsent` beside their file, and return the files; a second run writes the same.

    Raises:
        SbpairError: a file cannot be written. Nothing was sent.
    """
    by_file: dict[Path, list[Unsendable]] = {}
    for line in lines:
        by_file.setdefault(line.file, []).append(line)
    kept_in = []
    for file, found in by_file.items():
        if file.parent.name == UNSENT:
            kept_in.append(file)
            continue
        folder = file.parent / UNSENT
        try:
            make_private_folder(folder)
            with file.open("rb") as source:
                lines_of_file = b"".join(_line_at(source, line) for line in found)
            kept_in.append(_kept(folder / file.name, lines_of_file))
        except OSError as error:
            raise unwritable(folder / file.name, error).with_state("Nothing was sent.") from error
    return tuple(kept_in)


def _kept(path: Path, lines: bytes) -> Path:
    """The file with exactly these lines. One with others is left as it is: somebody may have corrected them."""
    free, number = path, 1
    while free.exists() and free.read_bytes() != lines:
        free, number = path.with_name(f"{path.stem}.{number}{path.suffix}"), number + 1
    if not free.exists():
        write_private(free, lines)
    return free


def _line_at(source: BinaryIO, line: Unsendable) -> bytes:
    source.seek(line.offset_bytes)
    return source.read(line.size_bytes)
