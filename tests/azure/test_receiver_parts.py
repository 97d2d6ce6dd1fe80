"""Receivers, senders and movers over a wire of the test's own: what is asked of it, and what its answers mean."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sbpair.amqp import sections
from sbpair.amqp.frames import FrameBuffer
from sbpair.amqp.sections import PropertyField
from sbpair.azure import mover, receiver, sender, wire
from sbpair.azure.errors import WireError
from sbpair.azure.links import SharedWire
from sbpair.azure.receiver import AzureReceiver, Receipt
from sbpair.azure.wire import Answer, WireDelivery
from sbpair.core import errors
from sbpair.core.message import PARTITION_SHIFT, Disposition, Received
from tests.azure.support import message
from tests.azure.test_wire_parts import SdkLink

TOKEN = UUID(int=7)
MOMENT = 12.345


class OwnWire(wire.ReceiverWire):
    """A connection that is there at once; gives `answers` to requests, one after another, the last again and again."""

    def __init__(self, *answers: Answer, session: str | None = None) -> None:
        super().__init__(SimpleNamespace(_session_id=session, _session=None, _running=True))
        self._link = SdkLink()
        self.answers = list(answers) or [Answer(200, {}, None, "")]
        self.asked: list[tuple[bytes, dict[str, Any]]] = []
        self.granted: list[int] = []
        self.drained = 0
        self.under_way: list[int] = []
        """Delivery ids of what comes while the credit is taken back."""
        self.closed = False

    async def open(self) -> None:
        self._ready = True

    async def close(self) -> None:
        self.closed = self._closing = True

    def grant(self, credit: int) -> None:
        super().grant(credit)
        self.granted.append(credit)

    async def drain(self, *, timeout_seconds: float) -> None:
        assert timeout_seconds > 0
        self.drained += 1
        arrive(self, *self.under_way)

    async def request(self, operation: bytes, body: dict[str, Any], *, timeout_seconds: float) -> Answer:
        self.raise_if_failed()
        assert timeout_seconds > 0
        self.asked.append((operation, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def written(self) -> list[tuple[int, bool, str]]:
        """Delivery id, whether it is settled, and the outcome of each disposition that is to be written."""
        self._credit_posted = False
        frames = [wire._read_frame(body)[1] for _, body in FrameBuffer().feed(self._compose())]
        return [(one[1], one[3], *one[4]) for one in frames]


def receiver_on(own: OwnWire, session: str | None = None, *, following: bool = False) -> AzureReceiver:
    made = AzureReceiver(
        "contoso",
        "q",
        lambda: None,
        lambda _: None,
        session_id=session,
        next_session=following,
        make_wire=lambda _: own,
    )
    made._browsing = SharedWire(lambda: own)  # type: ignore[arg-type,return-value]
    return made


def arrive(own: OwnWire, *numbers: int) -> None:
    for number in numbers:
        own.arrived.append(WireDelivery(message(f"m{number}"), number, TOKEN.bytes_le))
    own.arrival.set()


def held(own: OwnWire | None, number: int, *, tag: bytes = TOKEN.bytes_le) -> Received:
    return Received(message("m"), number, "q", receipt=Receipt(own, WireDelivery(b"", number, tag)))


async def test_a_receive_asks_for_what_is_lacking_and_takes_what_is_there() -> None:
    own = OwnWire()
    made = receiver_on(own)
    arrive(own, 1, 2, 3)
    got = await made.receive(2, wait_seconds=600)
    assert ([one.message_id for one in got], own.granted, len(own.arrived)) == (["m1", "m2"], [], 1)
    assert [one.message_id for one in await made.receive(9, wait_seconds=600)] == ["m3"]
    assert own.granted == [], "what was there is enough"
    assert await made.receive(3, wait_seconds=0.01) == []
    assert own.granted == [3, 0]
    assert await made.receive(0, wait_seconds=0.01) == []
    assert own.granted == [3, 0], "nothing is wanted, and no credit is out"
    for credit, granted in ((3, []), (2, [3]), (4, [])):
        own._link.current_link_credit, own.granted = credit, []
        receiving = asyncio.create_task(made.receive(3, wait_seconds=600))
        while own.arrival.is_set() or not made._receiving.locked():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert own.granted == granted
        arrive(own, credit)
        async with asyncio.timeout(60):
            assert len(await receiving) == 1
        own.arrival.set()
    own._fail(ConnectionResetError("cut"))
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(AzureReceiver._collect(made, own, 1, time.monotonic() + 600), 60)


async def test_what_comes_late_is_given_back_unless_somebody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnWire()
    made = receiver_on(own)
    await made.receive(2, wait_seconds=0)
    idle = made._idle
    assert isinstance(idle, asyncio.TimerHandle)
    monkeypatch.setattr(receiver, "_IDLE_SECONDS", 0.0)
    arrive(own, 1)
    got = await made.receive(2, wait_seconds=0)
    assert ([one.message_id for one in got], idle.cancelled(), own.drained) == (["m1"], True, 0)
    own.under_way = [4]
    arrive(own, 2)
    async with asyncio.timeout(60):
        while own.arrived:
            await asyncio.sleep(0.01)
    own.under_way = []
    assert (own.drained, own.written()) == (1, [(2, True, "released"), (4, True, "released")])
    await made.receive(2, wait_seconds=0)
    own._fail(ConnectionResetError("cut"))
    arrive(own, 6)
    async with asyncio.timeout(60):
        while not isinstance(made._idle, asyncio.Task) or not made._idle.done():
            await asyncio.sleep(0.01)
    assert (own.drained, own.written()) == (1, []), "there is nobody to give it back to"


async def test_a_receiver_that_is_closed_gives_back_what_nobody_took() -> None:
    own, browsing, closed = OwnWire(), OwnWire(Answer(204, None, None, "")), list[object]()
    made = receiver_on(own)
    made._browsing = SharedWire(lambda: browsing)  # type: ignore[arg-type,return-value]
    await made.peek(1)
    made._on_close = lambda one: closed.extend((one, own.closed, browsing.closed))
    own.under_way = [4]
    arrive(own, 1, 2)
    await made.receive(1, wait_seconds=0)
    await made.close()
    assert (own.drained, own.written()) == (1, [(2, True, "released"), (4, True, "released")])
    assert closed == [made, True, True], "all that it had is closed by then"
    assert isinstance(made._idle, type(None))
    with pytest.raises(errors.ConnectionLostError):
        await made.peek(1)
    await receiver_on(OwnWire()).close()


@pytest.mark.parametrize(
    ("disposition", "on_link", "by_request"),
    [
        (Disposition.COMPLETE, "accepted", "completed"),
        (Disposition.ABANDON, "modified", "abandoned"),
        (Disposition.RELEASE, "released", "abandoned"),
        (Disposition.DEFER, "modified", "defered"),
        (Disposition.DEAD_LETTER, "rejected", "suspended"),
    ],
)
async def test_a_message_is_settled_on_its_link_or_by_its_lock_token(
    disposition: Disposition, on_link: str, by_request: str
) -> None:
    own = OwnWire()
    made = receiver_on(own)
    settling = asyncio.create_task(made.settle(held(own, 5), disposition, reason="r", description="d"))
    await asyncio.sleep(0)
    [(number, settled, outcome)] = own.written()
    assert (number, settled, outcome) == (5, disposition is Disposition.RELEASE, on_link)
    state = {on_link: [None] if on_link == "rejected" else []}
    await own._on_disposition([False, 5, 5, True, state, None])
    async with asyncio.timeout(60):
        await settling
    gone = OwnWire()
    gone._fail(ConnectionResetError("cut"))
    for receipt in (Receipt(deferred_token=TOKEN), Receipt(gone, WireDelivery(b"", 5, TOKEN.bytes_le))):
        await made.settle(Received(b"", 5, "q", receipt=receipt), disposition, reason="r", description="d")
        operation, body = own.asked.pop()
        texts = {"deadletter-reason": "r", "deadletter-description": "d"} if on_link == "rejected" else {}
        assert operation == receiver.UPDATE
        assert body == {"disposition-status": by_request, "lock-tokens": own.array([TOKEN])} | texts


async def test_a_message_that_is_deferred_is_not_given_to_anybody_again() -> None:
    for disposition, undeliverable in ((Disposition.DEFER, True), (Disposition.ABANDON, False)):
        own = OwnWire()
        settling = asyncio.create_task(receiver_on(own).settle(held(own, 5), disposition))
        await asyncio.sleep(0)
        [(_, body)] = FrameBuffer().feed(own._compose())
        [fields] = wire._read_frame(body)[1][4].values()
        assert (list(fields)[1:2] == [True]) is undeliverable
        settling.cancel()


async def test_a_lock_that_went_with_its_connection_is_lost() -> None:
    own = OwnWire()
    gone, session = OwnWire(), OwnWire(session="a")
    for one in (gone, session):
        one._fail(ConnectionResetError("cut"))
    for lost in (held(gone, 5, tag=b"short"), held(session, 5)):
        with pytest.raises(errors.LockLostError, match="went with the connection"):
            await receiver_on(own).settle(lost, Disposition.COMPLETE)
    browsed = Received(b"", 1, "q")
    with pytest.raises(errors.ArgumentRefusedError):
        await receiver_on(own).settle(browsed, Disposition.COMPLETE)
    with pytest.raises(errors.ArgumentRefusedError):
        await receiver_on(own).renew_lock(browsed)
    assert own.asked == []


async def test_an_unanswered_settlement_is_in_doubt_only_without_its_link() -> None:
    made = receiver_on(OwnWire())
    for ends, uncertain in ((False, False), (True, True)):
        own = OwnWire()
        settling = asyncio.create_task(made.settle(held(own, 5), Disposition.COMPLETE))
        await asyncio.sleep(0)
        if ends:
            own._fail(WireError("amqp:link:detach-forced", "moved"))
        else:
            await own._on_disposition([False, 5, 5, True, {"rejected": [[b"amqp:internal-error", b"no"]]}, None])
        with pytest.raises(errors.ServiceError) as caught:
            await settling
        assert (caught.value.uncertain, isinstance(caught.value.__cause__, WireError)) == (uncertain, True)


async def test_messages_are_grouped_by_the_connection_that_settles_them() -> None:
    here, other, gone = OwnWire(), OwnWire(), OwnWire()
    gone._fail(ConnectionResetError("cut"))
    by_token = Received(b"", 9, "q", receipt=Receipt(deferred_token=TOKEN))
    half = Received(b"", 8, "q", receipt=Receipt(here))
    received = [held(here, 1), held(here, 2), held(other, 1), half, held(here, 2), by_token, held(gone, 3)]
    found, others = receiver._by_wire([*received, Received(b"", 4, "q")])
    assert {wire_: [*there] for wire_, there in found.items()} == {here: [1, 2], other: [1]}
    assert [one.sequence_number for one in others] == [8, 2, 9, 3, 4]
    assert (found[here][1], found[other][1]) == (received[0], received[2])


async def test_locks_are_renewed_by_token_or_with_their_session() -> None:
    own = OwnWire(Answer(200, {b"expirations": [5500, 9]}, None, ""), Answer(200, {b"expiration": 7250}, None, ""))
    made = receiver_on(own)
    assert await made.renew_lock(held(own, 1)) == 5.5
    session = OwnWire(session="a")
    assert await made.renew_lock(held(session, 1)) == 7.25
    assert (session.session_locked_until, own.session_locked_until) == (7.25, None)
    assert own.asked == [
        (receiver._RENEW, {"lock-tokens": own.array([TOKEN])}),
        (receiver._RENEW_SESSION, {"session-id": "a"}),
    ]
    session.answers = [Answer(200, {b"expiration": 8000}, None, "")]
    assert await receiver_on(session, "a").renew_session() == 8.0


async def test_pages_deferred_messages_sessions_and_states_are_asked_for_in_the_service_s_words() -> None:
    found = [{b"message": message("m"), b"lock-token": TOKEN}]
    own = OwnWire(Answer(200, {b"messages": found}, None, ""))
    made = receiver_on(own)
    assert [one.message_id for one in await made.peek(251, from_sequence_number=0)] == [], "numbers below the one asked"
    assert own.asked.pop(0)[1] == {"from-sequence-number": own.integer(1, "long"), "message-count": 250}
    number = 3 << PARTITION_SHIFT
    deferred = await made.receive_deferred([number + 1, 5, number])
    assert [one.receipt.deferred_token for one in deferred if isinstance(one.receipt, Receipt)] == [TOKEN] * 2
    assert [body["sequence-numbers"] for _, body in own.asked] == [
        own.array([own.integer(one, "long") for one in some]) for some in ([5], [number + 1, number])
    ]
    assert own.asked[0][1]["receiver-settle-mode"] == own.integer(1, "uint")
    own.answers = [Answer(204, None, None, "")]
    assert await made.receive_deferred([1]) == []
    assert await made.delete_batch(5, before=MOMENT) == 0
    assert own.asked[-1][1] == {
        "message-count": own.integer(5, "int"),
        "enqueued-time-utc": own.timestamp(round(MOMENT * 1000)),
    }
    assert await made.session_ids() == []
    own.answers = [Answer(200, {b"message-count": 4}, None, "")]
    assert await made.delete_batch(5, before=MOMENT) == 4
    pages = [[b"b", "a"], ["b"], []]
    own.answers, own.asked = [Answer(200, {b"sessions-ids": page}, None, "") for page in pages], []
    assert await made.session_ids() == ["a", "b"]
    assert [body["skip"] for _, body in own.asked] == [own.integer(skip, "int") for skip in (0, 2, 3)]
    assert own.asked[0][1]["top"] == own.integer(100, "int")


async def test_requests_of_a_session_s_receiver_name_it_on_the_connection_that_holds_it() -> None:
    own = OwnWire(Answer(200, {b"session-state": None}, None, ""), session="a")
    made = receiver_on(own, "a")
    assert await made.session_state() is None
    own.answers = [Answer(202, {b"session-state": bytearray(b"s")}, None, "")]
    assert await made.session_state() == b"s"
    await made.set_session_state(b"new")
    await made.set_session_state(None)
    await made._request(own, b"op", {"session-id": "own"})
    assert [body["session-id"] for _, body in own.asked] == ["a"] * 4 + ["own"]
    assert [body["session-state"] for _, body in own.asked[2:4]] == [bytearray(b"new"), None]
    own.answers = [Answer(410, None, "com.microsoft:session-lock-lost", "lost")]
    with pytest.raises(errors.LockLostError):
        await made.session_state()
    own.answers = [Answer(201, None, "amqp:not-allowed", "no")]
    with pytest.raises(errors.ArgumentRefusedError):
        await made.session_state()
    following = receiver_on(OwnWire(session="b"), following=True)
    assert following.session_id is None
    await following._wire()
    assert following.session_id == "b"
    held_wire = following._held_session
    assert held_wire is not None
    held_wire._fail(ConnectionResetError("cut"))
    with pytest.raises(errors.LockLostError, match="ask for the next one"):
        await following.peek(1)


async def test_only_the_silence_of_a_service_that_looked_for_a_session_means_that_none_waits() -> None:
    class Refused(OwnWire):
        condition = "com.microsoft:timeout"

        async def open(self) -> None:
            raise WireError(self.condition, "said so")

    for following, condition, kind in (
        (True, "com.microsoft:timeout", errors.SessionUnavailableError),
        (False, "com.microsoft:timeout", errors.OperationTimeoutError),
        (True, "amqp:not-found", errors.EntityNotFoundError),
    ):
        own = Refused()
        own.condition = condition
        with pytest.raises(kind) as caught:
            await receiver_on(own, following=following).receive(1, wait_seconds=0)
        assert type(caught.value) is kind


# Senders.


class OwnSender(wire.SenderWire):
    """A link for sends that answers as it is told, as soon as something is to be written."""

    def __init__(self, *states: Any, credit: int = 100) -> None:
        super().__init__(SimpleNamespace(_running=True))
        self._connection = link = SdkLink()
        link._session.remote_incoming_window = 10_000
        self._hook(link)
        self.states, self.credit, self.quiet = list(states), credit, 0.0
        self.answer = Answer(200, {b"sequence-numbers": [5, 6]}, None, "")
        self.asked: list[dict[str, Any]] = []

    async def open(self) -> None:
        self._ready = True
        assert self._sending is not None
        await self._sending._on_flow([0, 100, 0, 100, 4, self._connection.delivery_count, self.credit])

    def send(self, payload: bytes, message_format: int) -> wire.Outgoing:
        outgoing = super().send(payload, message_format)
        assert self._sending is not None
        self._sending.compose()
        if self.states and (state := self.states.pop(0)) is not None:
            [number] = self._sending._unconfirmed
            asyncio.get_running_loop().create_task(
                self._sending._on_disposition([True, number, number, True, state, 0])
            )
        return outgoing

    def silent_for(self) -> float:
        return self.quiet

    async def request(self, operation: bytes, body: dict[str, Any], *, timeout_seconds: float) -> Answer:
        assert operation in (sender._SCHEDULE, sender.CANCEL)
        self.asked.append(body)
        return self.answer


def sender_on(own: OwnSender, closed: list[object] | None = None) -> sender.AzureSender:
    made = sender.AzureSender("contoso", "q", lambda: None, (closed if closed is not None else []).append)
    made._link = SharedWire(lambda: own)
    return made


TIMEOUT = {"rejected": [[b"com.microsoft:timeout", b"late"]]}
INTERNAL = {"rejected": [[b"amqp:internal-error", b"broken"]]}


@pytest.mark.parametrize(
    ("state", "credit", "quiet", "kind", "uncertain", "dropped"),
    [
        (TIMEOUT, 1, 9.0, errors.OperationTimeoutError, True, False),
        (INTERNAL, 1, 9.0, errors.ServiceInternalError, False, False),
        (None, 1, 9.0, errors.OperationTimeoutError, True, True),
        (None, 1, 1.0, errors.OperationTimeoutError, True, False),
        (None, 0, 9.0, errors.OperationTimeoutError, False, False),
    ],
)
async def test_a_send_without_an_answer_is_in_doubt_once_it_was_written(
    state: Any, credit: int, quiet: float, kind: type[errors.ServiceError], uncertain: bool, dropped: bool
) -> None:
    own = OwnSender(state, credit=credit)
    own.quiet = quiet
    made = sender_on(own)
    with pytest.raises(kind) as caught:
        await made.send([b"m"], timeout_seconds=0.05)
    assert (caught.value.uncertain, made._link.current is None) == (uncertain, dropped)
    if state is None:
        assert ("no confirmation in time" if credit else "no link credit in time") in caught.value.message.replace(
            "granted ", ""
        )


async def test_a_message_as_large_as_the_limit_is_sent_and_one_byte_more_is_not() -> None:
    own = OwnSender({"accepted": []}, {"accepted": []})
    made = sender_on(own)
    own._connection.remote_max_message_size = 40
    await made.send([bytes(40)], timeout_seconds=60)
    assert await made.max_message_bytes() == 40
    with pytest.raises(errors.MessageTooLargeError, match="41 bytes exceed the limit of 40"):
        await made.send([bytes(41)], timeout_seconds=60)
    await made.send([], timeout_seconds=0)
    assert await made.schedule([], timeout_seconds=0) == []
    await made.cancel_scheduled([], timeout_seconds=0)
    assert own.asked == []


async def test_what_was_accepted_before_a_refusal_is_named() -> None:
    sent = [message(str(number), body=bytes(400)) for number in range(4)]
    for states, accepted in (([{"accepted": []}, INTERNAL], (0, 1)), ([INTERNAL], None)):
        own = OwnSender(*states)
        own._connection.remote_max_message_size = 100_000
        own._connection.remote_properties = {b"com.microsoft:max-message-batch-size": 1100}
        with pytest.raises(errors.SbpairError) as caught:
            await sender_on(own).send(sent, timeout_seconds=60)
        assert getattr(caught.value, "accepted", None) == accepted


async def test_messages_are_scheduled_and_cancelled_by_request() -> None:
    own, closed = OwnSender(), list[object]()
    made = sender_on(own, closed)
    assert await made.schedule([message("a"), message("b")], timeout_seconds=60) == [5, 6]
    assert [one["message-id"] for one in own.asked[0]["messages"]] == ["a", "b"]
    await made.cancel_scheduled([5], timeout_seconds=60)
    assert own.asked[1] == {"sequence-numbers": own.array([own.integer(5, "long")])}
    for status in (201, 404):
        own.answer = Answer(status, None, "amqp:not-found", "gone")
        with pytest.raises(errors.EntityNotFoundError):
            await made.cancel_scheduled([5], timeout_seconds=60)
    await made.close()
    assert closed == [made]
    with pytest.raises(errors.ConnectionLostError) as caught:
        await made.send([b"m"], timeout_seconds=60)
    assert caught.value.uncertain is False


def limits(message_bytes: int, batch_bytes: int | None) -> Any:
    return SimpleNamespace(max_message_bytes=message_bytes, max_batch_bytes=batch_bytes)


def test_batches_are_as_large_as_may_be() -> None:
    messages = [message(str(number)) for number in range(4)]
    size = len(sender.batch(messages))
    for link, expected in (
        (limits(10_000, size), [4]),
        (limits(10_000, size - 1), [2, 2]),
        (limits(size - 1, size - 1), [4]),
        (limits(size - 1, None), [4]),
        (limits(100 << 20, None), [4]),
    ):
        assert [count for count, _, _ in sender.transfers(link, messages)] == expected


# Links.


class Opening(OwnWire):
    """A wire whose opening ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.opened, self.aborted = asyncio.Event(), 0

    async def open(self) -> None:
        await self.opened.wait()

    async def abort(self) -> None:
        self.aborted += 1


async def test_a_link_is_opened_once_for_all_and_anew_once_it_has_failed() -> None:
    made: list[Opening] = []

    def make() -> Opening:
        made.append(Opening())
        return made[-1]

    link = SharedWire(make)
    async with asyncio.timeout(60):
        asking = [asyncio.create_task(link.get(timeout_seconds=600)) for _ in range(3)]
        with pytest.raises(TimeoutError, match=r"within 0\.0 seconds"):
            await link.get(timeout_seconds=0.01)
        made[0].opened.set()
        assert [await one for one in asking] == [made[0]] * 3
        assert await link.get(timeout_seconds=0) is made[0]
        made[0]._fail(ConnectionResetError("cut"))
        assert link.current is None
        asking = [asyncio.create_task(link.get(timeout_seconds=600))]
        while len(made) < 2:
            await asyncio.sleep(0)
        assert made[0].aborted == 1
        made[1].opened.set()
        assert await asking[0] is made[1] is link.current
        await link.drop()
        await link.drop()
        assert (link.current, made[1].aborted, made[1].closed) == (None, 1, False)
        asking = [asyncio.create_task(link.get(timeout_seconds=600))]
        while len(made) < 3:
            await asyncio.sleep(0)
        await link.close()
        with pytest.raises((asyncio.CancelledError, errors.ConnectionLostError)):
            await asking[0]
    with pytest.raises(errors.ConnectionLostError):
        await link.get(timeout_seconds=1)


# Movers.


class Transaction:
    """The coordinator of a namespace, and a link to a destination, that answer as they are told."""

    def __init__(
        self, *, commit: Exception | None = None, answered: bool = True, sent: Exception | None = None
    ) -> None:
        self.commit, self.answered, self.sent = commit, answered, sent
        self.discharged: list[tuple[bytes, bool]] = []
        self.payloads: list[tuple[bytes, int]] = []
        self.max_message_bytes, self.max_batch_bytes = 256 * 1024, None
        self.coordinator = self

    async def sending_to(self, entity: str) -> "Transaction":
        assert entity == "to"
        return self

    async def declare(self) -> bytes:
        return b"id"

    def _outgoing(self, error: Exception | None, answered: bool) -> wire.Outgoing:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wire._resolve(future, error)
        return wire.Outgoing(b"", 0, future, answered=answered)

    def discharge(self, transaction_id: bytes, *, fail: bool) -> wire.Outgoing:
        self.discharged.append((transaction_id, fail))
        return self._outgoing(None if fail else self.commit, self.answered)

    def send(self, payload: bytes, message_format: int, state: Any = None, **_: Any) -> wire.Outgoing:
        self.payloads.append((payload, message_format))
        return self._outgoing(self.sent, True)


async def move(transaction: Transaction, payloads: Sequence[bytes], taken: Exception | None = None) -> list[str]:
    """Move through it; what was done to the connection."""
    done: list[str] = []

    async def take(transaction_id: bytes) -> None:
        done.append(f"took in {transaction_id.decode()}")
        if taken is not None:
            raise taken

    async def drop() -> None:
        done.append("dropped")

    received = [Received(payload, number, "from") for number, payload in enumerate(payloads)]
    try:
        await mover._move(
            transaction,  # type: ignore[arg-type]
            received,
            payloads,
            "to",
            take,
            drop,
            ends=("contoso", "from"),
            timeout_seconds=60,
        )
    except errors.ServiceError as error:
        done.append(f"{type(error).__name__} {getattr(error, 'lost', '')} {error.uncertain} {error.entity}")
    return done


async def test_a_move_is_committed_rolled_back_or_in_doubt() -> None:
    both = [message("a"), message("b")]
    gone = WireError("amqp:not-found", "The messaging entity 'sb://contoso/from' could not be found.")
    there = WireError("amqp:not-found", "The messaging entity 'sb://contoso/to' could not be found.")
    table: tuple[tuple[Transaction, Exception | None, list[str], list[bool]], ...] = (
        (Transaction(), None, ["took in id"], [False]),
        (Transaction(sent=there), None, ["took in id", "EntityNotFoundError  False to"], [True]),
        (Transaction(), gone, ["took in id", "EntityNotFoundError  False from"], [True]),
        (
            Transaction(),
            errors.LocksLostError("lost", entity="from", lost=(1,)),
            ["took in id", "LocksLostError (1,) False from"],
            [True],
        ),
        (
            Transaction(commit=ConnectionResetError("cut"), answered=False),
            None,
            ["took in id", "dropped", "LocksLostError (0, 1) True from"],
            [False],
        ),
        (Transaction(commit=there), None, ["took in id", "EntityNotFoundError  False to"], [False]),
    )
    for transaction, taken, done, discharged in table:
        assert await move(transaction, both, taken) == done
        assert transaction.discharged == [(b"id", fail) for fail in discharged]
    exact, small = Transaction(), Transaction()
    exact.max_message_bytes = len(both[0])
    assert await move(exact, both[:1]) == ["took in id"]
    small.max_message_bytes = len(both[0]) - 1
    assert await move(small, both) == ["MessageTooLargeError  False None"]
    assert small.discharged == []


class Holding(wire.TransactedWire):
    """An open connection with transactions; answers requests and settlements as it is told."""

    def __init__(self, *, refused: Exception | None = None) -> None:
        super().__init__(SimpleNamespace(_session_id=None, _session=None, _running=True), lambda _: None)
        self._link, self.refused = SdkLink(), refused
        self.asked: list[dict[str, Any]] = []
        self._ready = True

    async def request(self, operation: bytes, body: dict[str, Any], *, timeout_seconds: float) -> Answer:
        assert isinstance(body, wire.Within)
        assert body.transaction_id == b"id"
        self.asked.append(body)
        return Answer(200, None, None, "") if self.refused is None else Answer(410, None, self.refused.args[0], "gone")

    def settle(self, delivery: WireDelivery, outcome: Any, expected: str) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert expected == "accepted"
        wire._resolve(future, self.refused if delivery.delivery_id == 2 else None)
        return future


def mover_on(holding: wire.Wire | None) -> mover.AzureMover:
    made = mover.AzureMover(
        "contoso", "q", lambda: None, lambda _: None, session_id=None, open_seconds=1.0, make_sender=lambda _: None
    )
    made._link._wire = holding  # type: ignore[assignment]
    return made


async def test_what_settles_a_message_in_a_transaction_is_its_delivery_or_its_lock_token() -> None:
    holding, before, session = Holding(), OwnWire(), OwnWire(session="a")
    receipts: list[object] = [
        Receipt(holding, WireDelivery(b"", 1, b"t")),
        Receipt(before, WireDelivery(b"", 2, TOKEN.bytes_le)),
        Receipt(deferred_token=TOKEN),
    ]

    def messages(*more: object) -> list[Received]:
        return [Received(b"", number, "q", receipt=receipt) for number, receipt in enumerate([*receipts, *more])]

    found, deliveries, tokens = mover_on(holding)._in_hand(messages())
    assert (found, [*deliveries], tokens) == (holding, [0], {1: TOKEN, 2: TOKEN})
    lost = Receipt(session, WireDelivery(b"", 3, TOKEN.bytes_le)), Receipt(before, WireDelivery(b"", 4, b"short")), None
    with pytest.raises(errors.LocksLostError) as caught:
        mover_on(holding)._in_hand(messages(*lost))
    assert caught.value.lost == (3, 4, 5)
    for nothing in (None, OwnWire()):
        with pytest.raises(errors.LocksLostError) as caught:
            mover_on(nothing)._in_hand(messages()[1:])
        assert caught.value.lost == (0, 1)


async def test_a_refusal_within_a_transaction_names_what_it_refused() -> None:
    deliveries = {4: WireDelivery(b"", 1, b"t"), 5: WireDelivery(b"", 2, b"t")}
    holding = Holding()
    await mover_on(holding)._complete(holding, b"id", deliveries, {})
    assert holding.asked == []
    await mover_on(holding)._complete(holding, b"id", {}, {3: TOKEN})
    assert holding.asked == [{"disposition-status": "completed", "lock-tokens": holding.array([TOKEN])}]
    for condition, kind, lost in (
        ("com.microsoft:message-lock-lost", errors.LocksLostError, (5, 3)),
        ("com.microsoft:server-busy", errors.ServerBusyError, ()),
    ):
        holding = Holding(refused=WireError(condition, "no"))
        holding.refused.args = (condition,)  # type: ignore[union-attr]
        with pytest.raises(kind) as caught:
            await mover_on(holding)._complete(holding, b"id", deliveries, {3: TOKEN})
        assert (getattr(caught.value, "lost", ()), caught.value.uncertain) == (lost, False)


def test_a_message_of_a_partition_is_sent_through_it_where_there_is_room() -> None:
    payload = sections.build(properties={PropertyField.MESSAGE_ID: "a"}, data=b"x")
    for number, room, bound in ((5, 1000, False), (1 << PARTITION_SHIFT, 1000, True), (1 << PARTITION_SHIFT, 0, False)):
        source = Received(payload_with_key(payload), number, "q")
        limit = limits(room or len(payload), None)
        assert (mover._through(source, payload, limit) != payload) is bound


def payload_with_key(payload: bytes) -> bytes:
    annotations = sections.build(message_annotations={"x-opt-partition-key": "k"})
    return annotations + payload
