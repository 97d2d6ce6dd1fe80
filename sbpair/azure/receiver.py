"""MessageReceiver over azure-servicebus: exact bytes under peek-lock, settled in a pipeline, browsed, deferred."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sbpair.amqp.performatives import accepted, modified
from sbpair.azure import frames
from sbpair.azure.errors import WireError, translate, translating
from sbpair.azure.links import OPEN_SECONDS, SharedWire
from sbpair.azure.wire import Answer, ManagementWire, ReceiverWire, Settling, Wire, WireDelivery
from sbpair.concurrency import each_answered, waiting
from sbpair.core.errors import ArgumentRefusedError, LockLostError, ServiceError, SessionUnavailableError
from sbpair.core.message import PARTITION_SHIFT, Disposition, MessageState, Received
from sbpair.core.rewrite import read_delivered

# Browsing in pages, complete on partitioned entities too.
#
# A sequence number carries its partition in the top 16 bits. The service answers each request with a page from one
# partition, not necessarily that of the lowest number, and an empty page speaks for where it was asked only.
# `next_page` gives the messages in the order of their numbers, so that "last number + 1" continues: a page keeps to the
# lowest partition it holds, partitions that an answer passed over are asked by name, and an end is confirmed at the
# next partition. Sources: message browsing and partitioning documents.

_MAX_PASSED_OVER = 16
"""Partitions of an entity: more than that are not passed over, the numbers just begin higher."""

Ask = Callable[[int], Awaitable[list[Received]]]


def partition_of(sequence_number: int) -> int:
    """Partition of a sequence number; 0 on entities without partitions."""
    return sequence_number >> PARTITION_SHIFT


class Browser:
    """Remembers between pages whether the entity has shown itself to be partitioned."""

    def __init__(self) -> None:
        self._partitioned = False

    async def next_page(self, ask: Ask, start: int) -> list[Received]:
        """Messages from `start` on, ascending, of one partition; empty at the end of the entity."""
        start = max(start, 1)
        page = await self._ask(ask, start)
        if not page and self._partitioned:
            start = (partition_of(start) + 1) << PARTITION_SHIFT
            page = await self._ask(ask, start)
        if not page:
            return []
        for partition in self._passed_over(start, page):
            earlier = _of(await self._ask(ask, max(start, partition << PARTITION_SHIFT)), partition)
            if earlier:
                return earlier
        return _of(page, partition_of(page[0].sequence_number))

    async def _ask(self, ask: Ask, start: int) -> list[Received]:
        page = sorted(
            (one for one in await ask(start) if one.sequence_number >= start), key=lambda one: one.sequence_number
        )
        self._partitioned = self._partitioned or any(partition_of(one.sequence_number) for one in page)
        return page

    def _passed_over(self, start: int, page: list[Received]) -> range:
        """Partitions between the one asked and the one that answered; its own partition is asked once more."""
        asked, answered = partition_of(start), partition_of(page[0].sequence_number)
        return range(asked, answered) if answered - asked <= _MAX_PASSED_OVER else range(asked, asked)


def _of(page: list[Received], partition: int) -> list[Received]:
    return [one for one in page if partition_of(one.sequence_number) == partition]


REQUEST_SECONDS = 30.0
"""Bound of one renewal, browse page or deferred receive."""
SETTLE_SECONDS = 15.0
"""Bound of the wait for a settlement's confirmation."""

_IDLE_SECONDS = 1.0
_DRAIN_SECONDS = 1.0
_FLOW_SECONDS = 5.0
"""What a receive may take beyond its wait to tell the service about credit: only a stalled connection needs it."""
_MAX_PEEK = 250
PEEK = b"com.microsoft:peek-message"
_NO_SESSION_WAITS = "com.microsoft:timeout"
"""How the service refuses a link for the next available session; its silence is a time-out of ours."""
_RECEIVE_DEFERRED = b"com.microsoft:receive-by-sequence-number"
_RENEW = b"com.microsoft:renew-lock"
_RENEW_SESSION = b"com.microsoft:renew-session-lock"
UPDATE = b"com.microsoft:update-disposition"
_SESSIONS = b"com.microsoft:get-message-sessions"
_GET_STATE = b"com.microsoft:get-session-state"
_SET_STATE = b"com.microsoft:set-session-state"
_DELETE_BATCH = b"com.microsoft:batch-delete-messages"
_ALL_SESSIONS_MS = 253_402_300_800_000
"""The end of time, as a list's "state set since": all sessions with messages or state."""
_SESSIONS_PAGE = 100
_PEEK_LOCK_MODE = 1
_TOKEN_BYTES = 16
_ON_LINK = {
    Disposition.COMPLETE: (accepted(), "accepted"),
    Disposition.ABANDON: (modified(), "modified"),
    Disposition.DEFER: (modified(undeliverable=True), "modified"),
}
_BY_REQUEST = {
    Disposition.COMPLETE: "completed",
    Disposition.ABANDON: "abandoned",
    Disposition.RELEASE: "abandoned",
    Disposition.DEFER: "defered",
    Disposition.DEAD_LETTER: "suspended",
}


@dataclass(slots=True, eq=False)
class Receipt:
    """What settles a message: its delivery on a link, or the lock token alone (deferred messages)."""

    wire: ReceiverWire | None = None
    delivery: WireDelivery | None = None
    deferred_token: UUID | None = None

    @property
    def token(self) -> UUID | None:
        """The lock token, by which `$management` knows the lock. On a link it is the delivery's tag."""
        if self.delivery is None:
            return self.deferred_token
        return UUID(bytes_le=self.delivery.tag) if len(self.delivery.tag) == _TOKEN_BYTES else None


def to_received(payload: bytes, source: str, receipt: object = None, locked_until: float | None = None) -> Received:
    """As `frames.read_received`; most messages have the form that is read at a stretch."""
    try:
        usual = read_delivered(payload, browsed=receipt is None)
    except frames.UNREADABLE:
        usual = None
    if usual is not None:
        number, enqueued_at, until, delivery_count, head = usual
        return Received(
            payload,
            number,
            source,
            head[4],
            head[5],
            None,
            enqueued_at,
            locked_until if locked_until is not None or receipt is None else until,
            delivery_count,
            MessageState.ACTIVE,
            receipt,
            None,
            None,
            head,
        )
    return frames.read_received(payload, source, receipt, locked_until)


class AzureReceiver:
    """Receives from one queue, subscription or sub-queue; `session_id` binds it to that session.

    Nothing is asked of the service but what a `receive` waits for; what comes in late is handed
    to the next call, or released (without a failed delivery) when there is none within a second.
    """

    def __init__(
        self,
        host: str,
        source: str,
        make_sdk: Callable[[], Any],
        on_close: Callable[[object], None],
        *,
        session_id: str | None,
        next_session: bool = False,
        open_seconds: float = 15.0,
        make_wire: Callable[[Any], ReceiverWire] = ReceiverWire,
    ) -> None:
        self._host = host
        self._source = source
        self._wanted_session = session_id
        self._next_session = next_session
        self._link = SharedWire(lambda: make_wire(make_sdk()), open_seconds=open_seconds)
        self._browsing = SharedWire(lambda: ManagementWire(make_sdk()))
        self._open_seconds = open_seconds
        self._browser = Browser()
        self._receiving = asyncio.Lock()
        self._idle: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._held_session: ReceiverWire | None = None
        self._on_close = on_close

    @property
    def source(self) -> str:
        return self._source

    @property
    def session_id(self) -> str | None:
        held = self._held_session
        return held.session_id if held is not None else self._wanted_session

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        with translating(f"receive from {self._source} on {self._host}", self._source, waited_for=False):
            wire = await self._wire()
            deadline = time.monotonic() + wait_seconds
            async with asyncio.timeout(wait_seconds + _FLOW_SECONDS), self._receiving:
                await self._stop_idling()
                deliveries = await self._collect(wire, max_messages, deadline)
                self._expect_nothing(wire, got_any=bool(deliveries))
            source, until = self._source, wire.session_locked_until
            return [to_received(one.payload, source, Receipt(wire, one), until) for one in deliveries]

    async def _wire(self) -> ReceiverWire:
        if self._next_session and self._held_session is not None and self._held_session.failed:
            raise LockLostError(f"The session of {self._source} is lost; ask for the next one.", entity=self._source)
        try:
            # The service looks for the next session as long as it is let, so that is no wait for an answer.
            tried = "" if self._next_session else f"open a link to {self._source} on {self._host}"
            with waiting(tried, self._open_seconds):
                wire = await self._link.get(timeout_seconds=self._open_seconds)
        except WireError as error:
            if self._next_session and error.condition == _NO_SESSION_WAITS:
                raise SessionUnavailableError(f"No session of {self._source} waits.", entity=self._source) from error
            raise
        if self._wanted_session is not None or self._next_session:
            self._held_session = wire
        return wire

    async def _collect(self, wire: ReceiverWire, max_messages: int, deadline: float) -> list[WireDelivery]:
        while not wire.arrived:
            wire.raise_if_failed()
            wire.arrival.clear()
            self._top_up(wire, max_messages)
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await wire.arrival.wait()
            except TimeoutError:
                break
        wire.raise_if_failed()
        return [wire.arrived.popleft() for _ in range(min(max_messages, len(wire.arrived)))]

    def _top_up(self, wire: ReceiverWire, wanted: int) -> None:
        # Credit of an earlier call may still be out: only what is lacking is a reason for another flow frame.
        if wire.credit < wanted:
            wire.grant(wanted)

    def _expect_nothing(self, wire: ReceiverWire, *, got_any: bool) -> None:
        """Nobody waits any more. Credit that is left after a success is for messages already on their way."""
        if not got_any and wire.credit > 0:
            wire.grant(0)
        # A timer: a task would be begun and cancelled for each receive.
        self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._idles, wire)

    def _idles(self, wire: ReceiverWire) -> None:
        self._idle = asyncio.create_task(self._give_back_late_ones(wire))
        self._idle.add_done_callback(_forget)

    async def _give_back_late_ones(self, wire: ReceiverWire) -> None:
        async with self._receiving:
            if not wire.failed:
                await wire.drain(timeout_seconds=_DRAIN_SECONDS)
                self._release_arrived(wire)

    def _release_arrived(self, wire: ReceiverWire) -> None:
        if wire.arrived and not wire.failed:
            wire.release(list(wire.arrived))
        wire.arrived.clear()

    async def _stop_idling(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        """Lock deferred messages by number, all or none of those in one partition."""
        found: list[Received] = []
        with self._asking(f"receive deferred messages of {self._source} on {self._host}"):
            wire = await self._request_wire()
            for partition in sorted({partition_of(number) for number in sequence_numbers}):
                numbers = [number for number in sequence_numbers if partition_of(number) == partition]
                found += await self._deferred(wire, numbers)
        return found

    async def _deferred(self, wire: Wire, numbers: Sequence[int]) -> list[Received]:
        body = {
            "sequence-numbers": wire.array([wire.integer(number, "long") for number in numbers]),
            "receiver-settle-mode": wire.integer(_PEEK_LOCK_MODE, "uint"),
        }
        answer = await self._request(wire, _RECEIVE_DEFERRED, body)
        if answer.status == 204:
            return []
        return [
            to_received(bytes(one[b"message"]), self._source, Receipt(deferred_token=one[b"lock-token"]))
            for one in answer.value[b"messages"]
        ]

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        with self._asking(f"browse {self._source} on {self._host}"):
            wire = await self._request_wire()

            async def ask(start: int) -> list[Received]:
                body = {
                    "from-sequence-number": wire.integer(start, "long"),
                    "message-count": min(max_messages, _MAX_PEEK),
                }
                answer = await self._request(wire, PEEK, body)
                entries = answer.value[b"messages"] if answer.status == 200 else []
                return [to_received(bytes(one[b"message"]), self._source) for one in entries]

            return await self._browser.next_page(ask, from_sequence_number)

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        receipt = received.receipt
        if not isinstance(receipt, Receipt):
            raise ArgumentRefusedError("A browsed message has no lock and cannot be settled.", entity=self._source)
        with translating(f"{disposition} a message of {self._source} on {self._host}", self._source):
            wire, delivery = _on_link(receipt)
            if wire is None or delivery is None:
                await self._settle_by_request(receipt, disposition, reason, description)
            elif disposition is Disposition.RELEASE:
                wire.release([delivery])
            else:
                await self._settle_on_link(wire, delivery, disposition, reason, description)

    async def _settle_on_link(
        self, wire: ReceiverWire, delivery: WireDelivery, disposition: Disposition, reason: str, description: str
    ) -> None:
        if disposition is Disposition.DEAD_LETTER:
            outcome, expected = frames.rejected(reason, description), "rejected"
        else:
            outcome, expected = _ON_LINK[disposition]
        confirmed = wire.settle(delivery, outcome, expected)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await confirmed
        except TimeoutError as error:
            raise TimeoutError("the settlement was not confirmed in time") from error
        except WireError as error:
            raise self._not_settled(wire, disposition, error) from error

    def _not_settled(self, wire: ReceiverWire, disposition: Disposition, error: Exception) -> ServiceError:
        translated = translate(error, f"{disposition} a message of {self._source} on {self._host}", self._source)
        # Without the link there is no answer: the settlement may have been applied.
        translated.uncertain = wire.failed
        translated.__cause__ = error
        return translated

    async def settle_all(
        self, received: Sequence[Received], disposition: Disposition
    ) -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
        by_wire, others = _by_wire(received) if disposition in _ON_LINK else ({}, list(received))
        until = asyncio.get_running_loop().time() + SETTLE_SECONDS
        begun = [(wire, found, wire.settle_all(list(found), *_ON_LINK[disposition])) for wire, found in by_wire.items()]
        try:
            async for answer in each_answered(others, lambda one: self.settle(one, disposition)):
                yield answer
            for wire, found, settling in begun:
                async for answers in self._answers(wire, settling, until, disposition):
                    yield [(found[number], error) for number, error in answers]
        finally:
            for wire, _, settling in begun:
                wire.forget(settling)

    async def _answers(
        self, wire: ReceiverWire, settling: Settling, until: float, disposition: Disposition
    ) -> AsyncGenerator[list[tuple[int, ServiceError | None]], None]:
        """What becomes of each delivery, by its id; until all have an answer or the time is up."""
        left = len(settling.open) + len(settling.answered)
        while left:
            answers = await settling.answers(until)
            left -= len(answers)
            yield [(number, self._answer(wire, disposition, error)) for number, error in answers]

    def _answer(self, wire: ReceiverWire, disposition: Disposition, error: Exception | None) -> ServiceError | None:
        if isinstance(error, TimeoutError):
            return translate(error, f"{disposition} a message of {self._source} on {self._host}", self._source)
        return None if error is None else self._not_settled(wire, disposition, error)

    async def _settle_by_request(
        self, receipt: Receipt, disposition: Disposition, reason: str, description: str
    ) -> None:
        """By lock token: for deferred messages, and for locks that outlived the link they came on."""
        if receipt.token is None or (receipt.wire is not None and receipt.wire.session_id is not None):
            raise LockLostError(f"The lock went with the connection to {self._source}.", entity=self._source)
        wire = await self._request_wire()
        body: dict[str, Any] = {
            "disposition-status": _BY_REQUEST[disposition],
            "lock-tokens": wire.array([receipt.token]),
        }
        if disposition is Disposition.DEAD_LETTER:
            body |= {"deadletter-reason": reason, "deadletter-description": description}
        await self._request(wire, UPDATE, body)

    async def renew_lock(self, received: Received) -> float:
        receipt = received.receipt
        if not isinstance(receipt, Receipt):
            raise ArgumentRefusedError("A browsed message has no lock to renew.", entity=self._source)
        with self._asking(f"renew a lock on {self._source} of {self._host}"):
            wire = await self._request_wire()
            if receipt.wire is not None and receipt.wire.session_id is not None:
                return await self._renew_session(wire, receipt.wire)
            answer = await self._request(wire, _RENEW, {"lock-tokens": wire.array([receipt.token])})
            return int(answer.value[b"expirations"][0]) / 1000

    async def renew_session(self) -> float:
        with translating(f"renew the lock of a session of {self._source} on {self._host}", self._source):
            wire = await self._wire()
            return await self._renew_session(wire, wire)

    async def _renew_session(self, wire: Wire, holder: ReceiverWire) -> float:
        answer = await self._request(wire, _RENEW_SESSION, {"session-id": holder.session_id})
        holder.session_renewed_until = int(answer.value[b"expiration"]) / 1000
        return holder.session_renewed_until

    async def delete_batch(self, most: int, *, before: float) -> int:
        with self._asking(f"delete messages of {self._source} on {self._host}"):
            wire = await self._request_wire()
            moment = wire.timestamp(round(before * 1000))
            body = {"message-count": wire.integer(most, "int"), "enqueued-time-utc": moment}
            answer = await self._request(wire, _DELETE_BATCH, body)
            return int(answer.value[b"message-count"]) if answer.status == 200 else 0

    async def session_ids(self) -> list[str]:
        found: list[str] = []
        with self._asking(f"list the sessions of {self._source} on {self._host}"):
            wire = await self._request_wire()
            while True:
                body = {
                    "last-updated-time": wire.timestamp(_ALL_SESSIONS_MS),
                    "skip": wire.integer(len(found), "int"),
                    "top": wire.integer(_SESSIONS_PAGE, "int"),
                }
                answer = await self._request(wire, _SESSIONS, body)
                page = answer.value[b"sessions-ids"] if answer.status == 200 else []
                if not page:
                    return sorted(set(found))
                found += [one.decode() if isinstance(one, bytes) else str(one) for one in page]

    async def session_state(self) -> bytes | None:
        with self._asking(f"read the state of a session of {self._source} on {self._host}"):
            answer = await self._request(await self._wire(), _GET_STATE, {"session-id": self.session_id})
            state = answer.value[b"session-state"]
            return None if state is None else bytes(state)

    async def set_session_state(self, state: bytes | None) -> None:
        with self._asking(f"set the state of a session of {self._source} on {self._host}"):
            body = {"session-id": self.session_id, "session-state": None if state is None else bytearray(state)}
            await self._request(await self._wire(), _SET_STATE, body)

    async def _request_wire(self) -> Wire:
        """The receiver's own connection if it is there, else one for requests alone."""
        if self._wanted_session is not None or self._next_session:
            return await self._wire()
        return self._link.current or await self._browsing.get(timeout_seconds=REQUEST_SECONDS)

    def _asking(self, tried: str) -> AbstractContextManager[None]:
        """Around requests and the connection they need; `tried` as for `translating`."""
        return translating(tried, self._source, within_seconds=OPEN_SECONDS + REQUEST_SECONDS)

    async def _request(self, wire: Wire, operation: bytes, body: dict[str, Any]) -> Answer:
        session_id = self.session_id
        if session_id is not None:
            body.setdefault("session-id", session_id)
        async with asyncio.timeout(REQUEST_SECONDS + 1.0):
            answer = await wire.request(operation, body, timeout_seconds=REQUEST_SECONDS)
        if answer.status not in (200, 202, 204):
            raise WireError(answer.condition, answer.description, status=answer.status)
        return answer

    async def close(self) -> None:
        await self._stop_idling()
        wire = self._link.current
        if wire is not None:
            await wire.drain(timeout_seconds=_DRAIN_SECONDS)
            self._release_arrived(wire)
        await self._link.close()
        await self._browsing.close()
        self._on_close(self)


def _on_link(receipt: object) -> tuple[ReceiverWire | None, WireDelivery | None]:
    """What a receipt is settled on as long as its connection lasts; Nones for every other."""
    if not isinstance(receipt, Receipt) or receipt.wire is None or receipt.wire.failed:
        return None, None
    return receipt.wire, receipt.delivery


def _by_wire(received: Sequence[Received]) -> tuple[dict[ReceiverWire, dict[int, Received]], list[Received]]:
    """The messages that are settled on a connection, by their delivery ids, and all others. Most often all came on one
    connection."""
    found: dict[ReceiverWire, dict[int, Received]] = {}
    others: list[Received] = []
    last: ReceiverWire | None = None
    for message in received:
        receipt = message.receipt
        if last is None or not isinstance(receipt, Receipt) or receipt.wire is not last or receipt.delivery is None:
            wire, delivery = _on_link(receipt)
            if wire is None or delivery is None:
                others.append(message)
                continue
            last, there = wire, found.setdefault(wire, {})
        else:
            delivery = receipt.delivery
        if there.setdefault(delivery.delivery_id, message) is not message:
            others.append(message)  # the peer has given two the same number, and each has to get an answer
    return found, others


def _forget(task: "asyncio.Task[None]") -> None:
    """A connection that breaks while late messages are released is told to the next caller, by the wire."""
    if not task.cancelled():
        task.exception()
