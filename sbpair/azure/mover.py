"""Moves messages between two entities of a namespace, in transactions: sent there and completed here, or neither.

A killed process leaves nothing half-done, so nothing is lost and nothing is there twice. Where the answer to a commit
is lost, the receipts are lost with it: what was not committed comes again, and what was committed does not.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from sbpair.azure import frames
from sbpair.azure.errors import WireError, translate, translating
from sbpair.azure.links import Link
from sbpair.azure.receiver import UPDATE, AzureReceiver, Receipt
from sbpair.azure.sender import DEFAULT_MAX_MESSAGE_BYTES, transfers
from sbpair.azure.wire import CoordinatorWire, Delivery, SendingLink, TransactedWire, Within
from sbpair.core.errors import LockLostError, LocksLostError, MessageTooLargeError, SbpairError, ServiceError
from sbpair.core.message import Received

_ROLL_BACK_SECONDS = 5.0
_PROBE_SECONDS = 15.0


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
        with translating(f"begin a transaction on {self._host}", self._source):
            link = Link(lambda: CoordinatorWire(self._make_sdk()))
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    coordinator = (await link.get(timeout_seconds=_PROBE_SECONDS)).coordinator
                    await coordinator.discharge(await coordinator.declare(), fail=True).confirmed
            except WireError as error:
                return translate(error, f"begin a transaction on {self._host}", self._source)
            finally:
                await link.close()
        return None

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        tried = f"move messages of {self._source} to {entity} on {self._host}"
        wire, deliveries, tokens = self._in_hand(received)
        committing = False
        try:
            async with asyncio.timeout(timeout_seconds):
                link = await wire.sending_to(entity)
                self._check_sizes(link, payloads, entity)
                transaction = await wire.coordinator.declare()
                try:
                    await self._within(wire, link, transaction, (deliveries, tokens), payloads)
                except BaseException:
                    await self._roll_back(wire, transaction)
                    raise
                commit = wire.coordinator.discharge(transaction, fail=False)
                committing = True
                await commit.confirmed
        except SbpairError:
            raise
        except Exception as error:
            if committing and not commit.answered:
                await self._drop(wire)
                raise LocksLostError(
                    f"Could not {tried}: the commit was not answered. What was not moved comes again.",
                    entity=self._source,
                    lost=tuple(range(len(received))),
                ) from error
            translated = translate(error, tried, entity)
            translated.uncertain = False
            raise translated from error

    def _in_hand(self, received: Sequence[Received]) -> tuple[TransactedWire, dict[int, Delivery], dict[int, UUID]]:
        """The open connection, and by place what settles each message there: its delivery, or its lock token, by which
        locks outlive a connection, those of sessions apart.

        Raises:
            LocksLostError: some came with a session on an earlier connection, or there is none.
        """
        wire = self._link.current
        deliveries: dict[int, Delivery] = {}
        tokens: dict[int, UUID] = {}
        for place, one in enumerate(received):
            receipt = one.receipt
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
                f"The connection on which messages of {self._source} were received is gone; they come again.",
                entity=self._source,
                lost=lost,
            )
        return wire, deliveries, tokens

    def _check_sizes(self, link: SendingLink, payloads: Sequence[bytes], entity: str) -> None:
        limit = link.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES
        largest = max(len(one) for one in payloads)
        if largest > limit:
            raise MessageTooLargeError(
                f"Could not send to {entity} on {self._host}: {largest} bytes are more than the {limit} that it takes.",
                entity=entity,
            )

    async def _within(
        self,
        wire: TransactedWire,
        link: SendingLink,
        transaction: bytes,
        settled: tuple[dict[int, Delivery], dict[int, UUID]],
        payloads: Sequence[bytes],
    ) -> None:
        """Send and complete in the transaction, all at once. Raises what was refused."""
        deliveries, tokens = settled
        sending = [
            link.send(payload, message_format, frames.transactional(transaction)).confirmed
            for _, payload, message_format in transfers(link, payloads)
        ]
        state = frames.transactional(transaction, frames.ACCEPTED)
        completing = {place: wire.settle(one, state, "accepted") for place, one in deliveries.items()}
        answers = await asyncio.gather(
            *completing.values(), self._complete_by_token(wire, transaction, tokens), *sending, return_exceptions=True
        )
        refused = [one for one in answers[len(completing) + 1 :] if isinstance(one, BaseException)]
        if refused:
            raise refused[0]
        failed = {place: one for place, one in zip(completing, answers, strict=False) if isinstance(one, BaseException)}
        if isinstance(by_token := answers[len(completing)], BaseException):
            failed |= dict.fromkeys(tokens, by_token)
        for error in failed.values():
            translated = translate(error, f"complete messages of {self._source} on {self._host}", self._source)
            if isinstance(translated, LockLostError):
                raise LocksLostError(translated.message, entity=self._source, lost=tuple(failed)) from error
            raise error

    async def _complete_by_token(self, wire: TransactedWire, transaction: bytes, tokens: dict[int, UUID]) -> None:
        if tokens:
            body = {"disposition-status": "completed", "lock-tokens": wire.array(list(tokens.values()))}
            await self._request(wire, UPDATE, Within(transaction, body))

    async def _roll_back(self, wire: TransactedWire, transaction: bytes) -> None:
        """As well as can be: one that is not rolled back ends by itself, without effect."""
        with suppress(Exception):
            async with asyncio.timeout(_ROLL_BACK_SECONDS):
                await wire.coordinator.discharge(transaction, fail=True).confirmed

    async def _drop(self, wire: TransactedWire) -> None:
        """Nothing is to be done with receipts of which nobody knows whether they are good still."""
        if self._link.current is wire:
            await self._link.drop()

    async def max_message_bytes(self, entity: str) -> int:
        with translating(f"open a link to {entity} on {self._host}", entity):
            async with asyncio.timeout(_PROBE_SECONDS):
                wire = await self._wire()
                if not isinstance(wire, TransactedWire):
                    raise TypeError("The receiver's connection holds no transactions.")
                return (await wire.sending_to(entity)).max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES
