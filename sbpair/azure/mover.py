"""Moves messages between two entities of a namespace, in transactions: sent there and completed here, or neither.

A killed process leaves nothing half-done, so nothing is lost and nothing is there twice. Where the answer to a commit
is lost, the receipts are lost with it: what was not committed comes again, and what was committed does not.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from sbpair.amqp.performatives import accepted, in_transaction
from sbpair.azure.errors import WireError, translate, translating
from sbpair.azure.links import SharedWire
from sbpair.azure.receiver import PEEK, UPDATE, AzureReceiver, Receipt
from sbpair.azure.sender import CANCEL, transfers
from sbpair.azure.wire import (
    CoordinatorWire,
    RequestingWire,
    SendingLink,
    SendingWithin,
    TransactedWire,
    WireDelivery,
    Within,
)
from sbpair.core.errors import (
    EntityNotFoundError,
    LockLostError,
    LocksLostError,
    MessageTooLargeError,
    SbpairError,
    ServiceError,
)
from sbpair.core.message import PARTITION_SHIFT, Received
from sbpair.core.names import split_source
from sbpair.core.rewrite import MAX_SEQUENCE_NUMBER, sent_through

_ROLL_BACK_SECONDS = 5.0
_PROBE_SECONDS = 15.0
_NOT_THERE = "com.microsoft:message-not-found"


async def _move(
    wire: SendingWithin,
    received: Sequence[Received],
    payloads: Sequence[bytes],
    entity: str,
    take: Callable[[bytes], Awaitable[None]],
    drop: Callable[[], Awaitable[None]],
    *,
    ends: tuple[str, str],
    timeout_seconds: float,
) -> None:
    """Send to `entity`, and take away what was sent, in one transaction.

    Args:
        take: takes it away within the transaction with this id.
        drop: gives the connection up, on which nobody knows what was committed.
        ends: label of the namespace, and path of where the messages lie.

    Raises:
        LocksLostError: what `take` says of them; or all, and `uncertain`, as the commit was not answered.
        ServiceError: nothing was moved.
    """
    host, source = ends
    tried = f"move messages of {source} to {entity} on {host}"
    committing = False
    try:
        async with asyncio.timeout(timeout_seconds):
            link = await wire.sending_to(entity)
            _check_sizes(link, payloads, f"{entity} on {host}")
            payloads = [_through(one, payload, link) for one, payload in zip(received, payloads, strict=True)]
            transaction = await wire.coordinator.declare()
            try:
                await _send_and_take(link, transaction, payloads, take)
            except BaseException:
                await _roll_back(wire, transaction)
                raise
            commit = wire.coordinator.discharge(transaction, fail=False)
            committing = True
            await commit.confirmed
    except SbpairError:
        raise
    except Exception as error:
        if committing and not commit.answered:
            await drop()
            unknown = LocksLostError(
                f"Could not {tried}: the commit was not answered. What was not moved is still there.",
                entity=source,
                lost=tuple(range(len(payloads))),
            )
            unknown.uncertain = True
            raise unknown from error
        translated = translate(error, tried, entity)
        translated.uncertain = False
        top = split_source(source)[0]
        if isinstance(translated, EntityNotFoundError) and re.search(
            rf"['/]{re.escape(top)}'", str(error), re.IGNORECASE
        ):
            translated.entity = source  # a commit answers for both
        raise translated from error


def _check_sizes(link: SendingLink, payloads: Sequence[bytes], to: str) -> None:
    limit = link.max_message_bytes
    largest = max(len(one) for one in payloads)
    if largest > limit:
        raise MessageTooLargeError(f"Could not send to {to}: {largest} bytes exceed its limit of {limit}.")


def _through(received: Received, payload: bytes, link: SendingLink) -> bytes:
    """The payload for a transaction that takes the message from its partition; unchanged where there is no room."""
    if not received.sequence_number >> PARTITION_SHIFT:
        return payload
    bound = sent_through(payload, received.payload)
    return bound if len(bound) <= link.max_message_bytes else payload


async def _send_and_take(
    link: SendingLink, transaction: bytes, payloads: Sequence[bytes], take: Callable[[bytes], Awaitable[None]]
) -> None:
    """All at once. Raises what was refused, a send before the rest."""
    sending = [
        link.send(payload, message_format, in_transaction(transaction)).confirmed
        for _, payload, message_format in transfers(link, payloads)
    ]
    *sent, taken = await asyncio.gather(*sending, take(transaction), return_exceptions=True)
    for answer in (*sent, taken):
        if isinstance(answer, BaseException):
            raise answer


async def _roll_back(wire: SendingWithin, transaction: bytes) -> None:
    """As well as can be: one that is not rolled back ends by itself, without effect."""
    with suppress(Exception):
        async with asyncio.timeout(_ROLL_BACK_SECONDS):
            await wire.coordinator.discharge(transaction, fail=True).confirmed


class AzureMover(AzureReceiver):
    """`sbpair.ports.MessageMover`: a receiver whose messages go to other entities of its namespace in transactions.

    Args:
        make_sender: gives the SDK's sender for an entity.
    """

    def __init__(
        self,
        host: str,
        source: str,
        make_sdk: Callable[[], Any],
        on_close: Callable[[object], None],
        *,
        session_id: str | None,
        open_seconds: float,
        make_sender: Callable[[str], Any],
    ) -> None:
        super().__init__(
            host,
            source,
            make_sdk,
            on_close,
            session_id=session_id,
            open_seconds=open_seconds,
            make_wire=lambda sdk: TransactedWire(sdk, make_sender),
        )
        self._make_sdk = make_sdk

    async def why_not(self) -> ServiceError | None:
        tried = f"begin a transaction on {self._host}"
        with translating(tried, self._source, within_seconds=_PROBE_SECONDS):
            link = SharedWire(lambda: CoordinatorWire(self._make_sdk()))
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    coordinator = (await link.get(timeout_seconds=_PROBE_SECONDS)).coordinator
                    await coordinator.discharge(await coordinator.declare(), fail=True).confirmed
            except WireError as error:
                return translate(error, tried, self._source)
            finally:
                await link.close()
        return None

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        wire, deliveries, tokens = self._in_hand(received)

        async def take(transaction: bytes) -> None:
            await self._complete(wire, transaction, deliveries, tokens)

        async def drop() -> None:
            # Nothing is to be done with receipts of which nobody knows whether they are good still.
            if self._link.current is wire:
                await self._link.drop()

        ends = self._host, self._source
        await _move(wire, received, payloads, entity, take, drop, ends=ends, timeout_seconds=timeout_seconds)

    def _in_hand(self, received: Sequence[Received]) -> tuple[TransactedWire, dict[int, WireDelivery], dict[int, UUID]]:
        """The open connection, and by place what settles each message there: its delivery, or its lock token, by which
        locks outlive a connection, those of sessions apart.

        Raises:
            LocksLostError: some came with a session on an earlier connection, or there is none.
        """
        wire = self._link.current
        deliveries: dict[int, WireDelivery] = {}
        tokens: dict[int, UUID] = {}
        for place, message in enumerate(received):
            receipt = message.receipt
            if not isinstance(receipt, Receipt):
                continue
            if receipt.delivery is not None and receipt.wire is wire:
                deliveries[place] = receipt.delivery
            elif receipt.token is not None and (receipt.wire is None or receipt.wire.session_id is None):
                tokens[place] = receipt.token
        lost = tuple(place for place in range(len(received)) if place not in deliveries and place not in tokens)
        if not isinstance(wire, TransactedWire):
            lost = tuple(range(len(received)))
        if lost or not isinstance(wire, TransactedWire):
            raise LocksLostError(
                f"The connection on which messages of {self._source} were received is gone; they will be redelivered.",
                entity=self._source,
                lost=lost,
            )
        return wire, deliveries, tokens

    async def _complete(
        self, wire: TransactedWire, transaction: bytes, deliveries: dict[int, WireDelivery], tokens: dict[int, UUID]
    ) -> None:
        """Complete in the transaction, all at once. Raises what was refused."""
        state = in_transaction(transaction, accepted())
        completing = {place: wire.settle(one, state, "accepted") for place, one in deliveries.items()}
        *answers, by_token = await asyncio.gather(
            *completing.values(), self._complete_by_token(wire, transaction, tokens), return_exceptions=True
        )
        failed = {place: one for place, one in zip(completing, answers, strict=True) if isinstance(one, BaseException)}
        if isinstance(by_token, BaseException):
            failed |= dict.fromkeys(tokens, by_token)
        for error in failed.values():
            translated = translate(error, f"complete messages of {self._source} on {self._host}", self._source)
            if isinstance(translated, LockLostError):
                raise LocksLostError(translated.message, entity=self._source, lost=tuple(failed)) from error
            translated.uncertain = False
            raise translated from error

    async def _complete_by_token(self, wire: TransactedWire, transaction: bytes, tokens: dict[int, UUID]) -> None:
        if tokens:
            body = {"disposition-status": "completed", "lock-tokens": wire.array(list(tokens.values()))}
            await self._request(wire, UPDATE, Within(transaction, body))

    async def max_message_bytes(self, entity: str) -> int:
        tried = f"open a link to {entity} on {self._host}"
        with translating(tried, entity, within_seconds=_PROBE_SECONDS):
            async with asyncio.timeout(_PROBE_SECONDS):
                wire = await self._wire()
                if not isinstance(wire, TransactedWire):
                    raise TypeError("The receiver's connection holds no transactions.")
                return (await wire.sending_to(entity)).max_message_bytes


class AzureScheduledMover:
    """`sbpair.ports.ScheduledMover`: sent there and cancelled here in one transaction, by requests alone."""

    def __init__(
        self,
        host: str,
        source: str,
        make_sdk: Callable[[], Any],
        on_close: Callable[[object], None],
        *,
        make_sender: Callable[[str], Any],
    ) -> None:
        self._host = host
        self._source = source
        self._link = SharedWire(lambda: RequestingWire(make_sdk(), make_sender))
        self._on_close = on_close
        self._first_on: RequestingWire | None = None

    async def _wire(self, *, timeout_seconds: float) -> RequestingWire:
        """The connection, on which the link to `$management` of the source is the first after the coordinator's: the
        service sends through the entity of that one."""
        wire = await self._link.get(timeout_seconds=timeout_seconds)
        if self._first_on is not wire:
            nothing = {"from-sequence-number": wire.integer(MAX_SEQUENCE_NUMBER, "long"), "message-count": 1}
            await wire.request(PEEK, nothing, timeout_seconds=timeout_seconds)
            self._first_on = wire
        return wire

    async def max_message_bytes(self, entity: str) -> int:
        tried = f"open a link to {entity} on {self._host}"
        with translating(tried, entity, within_seconds=_PROBE_SECONDS):
            async with asyncio.timeout(_PROBE_SECONDS):
                wire = await self._wire(timeout_seconds=_PROBE_SECONDS)
                return (await wire.sending_to(entity)).max_message_bytes

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        tried = f"connect to {self._source} on {self._host}"
        with translating(tried, self._source, within_seconds=timeout_seconds):
            wire = await self._wire(timeout_seconds=timeout_seconds)

        async def take(transaction: bytes) -> None:
            await self._cancel(wire, transaction, [one.sequence_number for one in received], timeout_seconds)

        async def drop() -> None:
            if self._link.current is wire:
                await self._link.drop()

        ends = self._host, self._source
        await _move(wire, received, payloads, entity, take, drop, ends=ends, timeout_seconds=timeout_seconds)

    async def _cancel(
        self, wire: RequestingWire, transaction: bytes, numbers: Sequence[int], timeout_seconds: float
    ) -> None:
        tried = f"cancel scheduled messages on {self._source} of {self._host}"
        body = {"sequence-numbers": wire.array([wire.integer(number, "long") for number in numbers])}
        answer = await wire.request(CANCEL, Within(transaction, body), timeout_seconds=timeout_seconds)
        if answer.status != 200:
            refused = WireError(answer.condition, answer.description, status=answer.status)
            translated = translate(refused, tried, self._source)
            if answer.condition == _NOT_THERE and len(numbers) == 1:
                raise LocksLostError(translated.message, entity=self._source, lost=(0,)) from refused
            raise translated from refused

    async def close(self) -> None:
        await self._link.close()
        self._on_close(self)
