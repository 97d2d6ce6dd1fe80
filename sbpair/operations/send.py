"""`send`: messages to a queue or topic, to the backlog while the primary is down."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from sbpair.concurrency import cancel_on, end, map_concurrently, patiently, with_timeout
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.errors import InterruptedWorkError, SbpairError, ServiceError, UsageError
from sbpair.core.events import MessageSent
from sbpair.core.failover.measured import MeasuredDestination, SendDryRun, SentMessages, SentPlace
from sbpair.core.pairing import Side
from sbpair.core.summary import describe
from sbpair.core.transfer.state import Limited
from sbpair.core.transfer.verdict import Wanted, taken
from sbpair.ports import Ends, MessageSender, Messaging, NamespaceAdmin, Observer, Sides
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import SendResult, Sent, SentTo, session_of
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.dry_run import ask_destinations

__all__ = ["SendDryRun", "SendRequest", "SentMessages", "plan_send", "send"]

TIMEOUT_SECONDS = 30.0
"""For one try of a message, on the primary and the backlog together."""
AFTER_STOP_SECONDS = 3.0
"""What sends under way get to end after `stop`; then they count as failed, and may have been stored or not."""


@dataclass(frozen=True, slots=True)
class SendRequest(Limited):
    """What is sent where. The failover is governed by the options of the pair."""

    entity: str
    """Queue or topic."""
    messages: AsyncIterable[bytes]
    """Encoded messages (`sbpair.compose`), read as they are sent."""
    concurrency: int = 10
    """Sends at once; messages of one session go one after another."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """For one try of a message."""
    retry_seconds: float = 180.0
    """A message is tried again for this long before it counts as failed."""
    partitioned: bool = False
    """The entity is partitioned: check the partition keys."""
    hold_sessions: bool = False
    """Keep order within a session across failover and failback."""


async def send(
    ends: Sides | Ends, request: SendRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> SentMessages:
    """Send messages to a pair, diverting them while the primary is down; or to one namespace without a partner.

    A message that nobody takes is counted as failed and does not end the run. Needs Send; on both namespaces of a pair.

    Args:
        ends: a pair, or the ends of a single namespace (`source`).
        observer: gets a `MessageSent` event for each message in the order given, and the events of the failover.
        stop: takes no more messages; those under way get three seconds. A source that waits has to end by itself.

    Raises:
        UsageError, ServiceError: the pairing could not be opened. Nothing was sent.
    """
    stop = stop or asyncio.Event()
    places: Counter[tuple[str, str]] = Counter()
    uncertain = failed = 0
    async with _results(ends, request, observer, stop) as results:
        async for sent in results:
            if observer is not None:
                observer.notify(_event(sent))
            if sent.result is None:
                failed += 1
                continue
            places[sent.result.where.value, sent.result.queue or ""] += 1
            uncertain += sent.result.uncertain
    rows = [SentPlace(where, queue, count) for (where, queue), count in sorted(places.items())]
    if failed:
        rows.append(SentPlace("failed", "", failed))
    diverted = sum(count for (where, _), count in places.items() if where == "backlog")
    return SentMessages(request.entity, places.total(), diverted, uncertain, failed, tuple(rows))


async def plan_send(
    ends: Sides | Ends,
    request: SendRequest,
    *,
    sides: Sequence[Side] = (Side.PRIMARY,),
    stop: asyncio.Event | None = None,
) -> SendDryRun:
    """Read the messages and ask the destinations what `send` would meet; nothing is sent. Needs Send.

    Args:
        sides: of a pair, which are asked.

    Raises:
        InterruptedWorkError: `stop` was set before the end.
    """
    stop, wanted, places = stop or asyncio.Event(), Wanted(), []
    async for payload in request.messages:
        wanted.add(len(payload), describe(payload).session_id)
    asked: list[tuple[Side | None, NamespaceAccess, Messaging, NamespaceAdmin | None]]
    if isinstance(ends, Ends):
        asked = [(None, ends.source_access, ends.source, ends.admin)]
    else:
        pair = ends.pair
        both = (pair.primary, ends.primary, ends.primary_admin), (pair.secondary, ends.secondary, ends.secondary_admin)
        asked = [(side, *both[side is Side.SECONDARY]) for side in sides]
    for side, access, messaging, admin in asked:
        seen = await ask_destinations([request.entity], messaging=messaging, admin=admin, stop=stop)
        name = shown_name(access)
        places += [
            MeasuredDestination(side, name, one.path, *taken(one, wanted), one.asked or one.error is not None)
            for one in seen
        ]
    return SendDryRun(request.entity, True, wanted.messages, wanted.size_bytes, tuple(places))


def _event(sent: Sent) -> MessageSent:
    now, result = LoopClock().now().timestamp(), sent.result
    if result is None:
        return MessageSent(now, sent.position, error=sent.error)
    return MessageSent(now, sent.position, result.where.value, result.queue, result.uncertain)


async def _until(stop: asyncio.Event, messages: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for message in messages:
        if stop.is_set():
            return
        yield message


@asynccontextmanager
async def _results(
    ends: Sides | Ends, request: SendRequest, observer: Observer | None, stop: asyncio.Event
) -> AsyncIterator[AsyncIterator[Sent]]:
    if isinstance(ends, Ends):
        async with closing(ends.source.sender(request.entity)) as sender:
            yield _send_all(
                _until(stop, request.messages),
                sender,
                overlap=request.concurrency,
                timeout_seconds=request.timeout_seconds,
                retry_seconds=request.retry_seconds,
                stop=stop,
            )
        return
    async with _pairing(ends, request, observer, stop) as pairing:
        yield pairing.sender(request.entity, partitioned=request.partitioned or None).send_all(
            _until(stop, request.messages),
            overlap=request.concurrency,
            timeout_seconds=request.timeout_seconds,
            retry_seconds=request.retry_seconds,
            stop=stop,
        )


@asynccontextmanager
async def _pairing(
    sides: Sides, request: SendRequest, observer: Observer | None, stop: asyncio.Event
) -> AsyncIterator[PairedNamespaces]:
    """A pairing over the sides, closed soon after `stop`: a namespace that does not answer would hold it for minutes.

    Raises:
        UsageError, ServiceError: it could not be opened; they say that nothing was sent.
    """
    try:
        pairing = await PairedNamespaces.open(
            sides.pair,
            PairingContext.over(sides, observer, hold_sessions=request.hold_sessions or None),
            secondary_admin=sides.secondary_admin,
            create_missing=sides.pair.options.create_missing,
        )
    except (ServiceError, UsageError, InterruptedWorkError) as error:
        raise error.with_state("Nothing was sent.") from error.__cause__

    async def close_after_stop() -> None:
        await stop.wait()
        await pairing.close(wait_seconds=AFTER_STOP_SECONDS)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pairing)
        closing = asyncio.create_task(close_after_stop(), name="close after a stop")

        async def finish() -> None:
            if not stop.is_set():
                await end(closing)
            else:
                await closing

        stack.push_async_callback(finish)
        yield pairing


# To a namespace that has no partner: what it does not take is tried again for a while, and has failed then.


async def _send_all(
    payloads: AsyncIterable[bytes],
    sender: MessageSender,
    *,
    overlap: int,
    timeout_seconds: float,
    retry_seconds: float,
    stop: asyncio.Event,
) -> AsyncGenerator[Sent, None]:
    """Send encoded messages to one queue or topic, up to `overlap` at once, those of a session one after another.

    Yields one `Sent` per message, in the order given. `retry_seconds`: for so long a message is tried again after an
    error that time may cure. A result after such a try is `uncertain` if an earlier one may have stored the message.
    """
    halt = asyncio.Event()

    async def soon_after_stop() -> None:
        await stop.wait()
        await asyncio.sleep(AFTER_STOP_SECONDS)
        halt.set()

    async def accepted(payload: bytes) -> SendResult:
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain
            try:
                sending = sender.send([payload], timeout_seconds=timeout_seconds)
                await with_timeout(timeout_seconds, sending, what=f"Sending to {sender.entity}", entity=sender.entity)
            except ServiceError as error:
                uncertain = error.uncertain = uncertain or error.uncertain
                raise

        await patiently(attempt, patience_seconds=0.0 if stop.is_set() else retry_seconds)
        return SendResult(SentTo.NAMESPACE, uncertain=uncertain)

    async def one(position: int, payload: bytes) -> Sent:
        try:
            result = await cancel_on(halt, accepted(payload))
        except SbpairError as error:
            return Sent(position, error=error)
        if result is None:
            unknown = f"{sender.entity} had not answered when this was stopped: it may have the message, or not."
            return Sent(position, error=InterruptedWorkError(unknown))
        return Sent(position, result)

    stopping = asyncio.create_task(soon_after_stop(), name="end what is under way after a signal")
    sending = map_concurrently(payloads, one, overlap=overlap, lane=session_of)
    try:
        async for sent in sending:
            yield sent
    finally:
        await sending.aclose()
        await end(stopping)
