"""The parts of a wire one by one, each on the values that it is shown: credit, windows, outcomes, errors, options."""

import asyncio
import gc
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus._pyamqp.error import AMQPConnectionError, AMQPException, ErrorCondition, TokenAuthFailure
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from sbpair.amqp.frames import FrameBuffer, FramingError
from sbpair.amqp.performatives import DISPOSITION, FLOW, TRANSFER, accepted
from sbpair.azure import wire
from sbpair.azure.errors import WireError
from sbpair.core.errors import Category, EntityNotFoundError, UnknownServiceError

WRAPS = 2**32
ID = b"t" * 16


class Session:
    """The SDK's session as far as links ask it."""

    def __init__(self) -> None:
        self.channel = 3
        self.next_outgoing_id = WRAPS - 1
        self.remote_incoming_window = 100
        self.next_incoming_id, self.incoming_window, self.outgoing_window = WRAPS + 5, 7, 9
        self.remote_outgoing_window = 50
        self._input_handles: dict[int, Any] = {}


class SdkLink:
    """The SDK's link of an entity, and the connection under it."""

    def __init__(self) -> None:
        self._session = Session()
        self.handle, self.delivery_count, self.current_link_credit = 4, WRAPS - 1, 0
        self._remote_max_frame_size = 512
        self.remote_max_message_size: int | None = None
        self.remote_properties: dict[bytes, int] | None = None
        self.state, self._error = SimpleNamespace(value=3, name="ATTACHED"), None
        self.flows: list[dict[str, Any]] = []

    async def flow(self, **how: Any) -> None:
        self.flows.append(how)


def sending_link() -> tuple[wire.SendingLink, SdkLink, list[str]]:
    link, posted = SdkLink(), list[str]()
    return wire.SendingLink(link, link, lambda: posted.append("posted")), link, posted


def receiver() -> tuple[wire.ReceiverWire, SdkLink]:
    made = wire.ReceiverWire(None)
    made._link = link = SdkLink()
    link._session._input_handles[4] = link
    made._connection = SimpleNamespace(_incoming_endpoints={3: link._session})
    return made, link


def performed(data: bytes) -> list[tuple[int, int, list[Any]]]:
    """Channel, performative and fields of each frame."""
    found = [(channel, *wire._read_frame(body)) for channel, body in FrameBuffer().feed(data)]
    return [(channel, code, list(fields)) for channel, code, fields in found]


async def test_messages_are_written_in_turn_as_far_as_credit_and_window_go() -> None:
    sending, link, posted = sending_link()
    first, cancelled, second = (sending.send(text, 0) for text in (b"first", b"cancelled", b"second" * 200))
    cancelled.confirmed.cancel()
    assert sending.compose() == b"", "without credit"
    await sending._on_flow([0, 100, 0, 100, 4, WRAPS - 1, 2])
    assert len(posted) == 4, "each send and each flow says that there may be something to write"
    link._session.remote_incoming_window = 1
    [(channel, code, fields)] = performed(sending.compose())
    assert (channel, code, fields[:5], bytes(fields[wire._PAYLOAD])) == (
        *(3, TRANSFER),
        [4, WRAPS - 1, (0).to_bytes(4), 0, False],
        b"first",
    )
    assert (first.written, second.written, link._session.remote_incoming_window) == (True, False, 0)
    assert sending.compose() == b"", "the session's window is used up, whatever credit is left"
    link._session.remote_incoming_window = 10
    frames = performed(sending.compose())
    assert b"".join(bytes(fields[wire._PAYLOAD]) for _, _, fields in frames) == b"second" * 200
    assert (link._session.remote_incoming_window, link._session.next_outgoing_id) == (10 - len(frames), len(frames))
    assert (link.delivery_count, [*sending._unconfirmed]) == (1, [WRAPS - 1, 0])
    later = sending.send(b"later", 0)
    assert sending.compose() == b"", "both credits are used"
    assert not later.written


async def test_a_flow_of_the_session_alone_leaves_the_credit_of_the_link() -> None:
    sending, link, _ = sending_link()
    link.delivery_count = 0
    for handle, count, credit, left in ((4, None, 5, 5), (None, 0, 9, 5), (4, 0, None, 5), (4, 0, 0, 0)):
        await sending._on_flow([0, 100, 0, 100, handle, count, credit])
        assert sending._credit == left


async def test_no_more_is_written_at_once_than_a_write_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_WRITE_BYTES", 300)
    sending, _, _ = sending_link()
    await sending._on_flow([0, 100, 0, 100, 4, WRAPS - 1, 10])
    for _ in range(5):
        sending.send(bytes(250), 0)
    written = [len(performed(sending.compose())) for _ in range(3)]
    assert written == [2, 2, 1]


async def test_what_a_peer_says_of_its_own_deliveries_is_no_answer_to_a_send() -> None:
    sending, _, _ = sending_link()
    await sending._on_flow([0, 100, 0, 100, 4, WRAPS - 1, 3])
    sent = [sending.send(b"m", 0) for _ in range(3)]
    sending.compose()
    await sending._on_disposition([False, WRAPS - 1, 0, True, {"accepted": []}, None])
    assert not any(one.answered for one in sent)
    await sending._on_disposition([True, WRAPS - 1, 0, True, {"accepted": []}, None])
    assert [(one.answered, one.confirmed.done()) for one in sent] == [(True, True), (True, True), (False, False)]


def test_a_link_says_what_it_takes_and_why_it_ended() -> None:
    sending, link, _ = sending_link()
    assert (sending.max_message_bytes, sending.max_batch_bytes, sending.ended) == (256 * 1024, None, None)
    link.remote_max_message_size, link.remote_properties = 99, {b"com.microsoft:max-message-batch-size": 77}
    assert (sending.max_message_bytes, sending.max_batch_bytes) == (99, 77)
    link.remote_properties = {b"com.microsoft:max-message-batch-size": 0}
    assert sending.max_batch_bytes is None
    link.state = SimpleNamespace(value=6)
    assert "detached" in str(sending.ended)
    link._error = AMQPException(ErrorCondition.NotFound, description="gone")
    assert "gone" in str(sending.ended)


async def test_a_sender_whose_link_is_not_there_says_so() -> None:
    sender = wire.SenderWire(None)
    assert (sender.max_message_bytes, sender.max_batch_bytes, sender._compose()) == (256 * 1024, None, b"")
    with pytest.raises(WireError, match="not open"):
        sender.send(b"m", 0)
    sender._give_up(ConnectionResetError())
    link = SdkLink()
    link.remote_max_message_size, link.remote_properties = 99, {b"com.microsoft:max-message-batch-size": 77}
    sender._connection = link
    sender._hook(link)
    assert (sender.max_message_bytes, sender.max_batch_bytes) == (99, 77)
    outgoing = sender.send(b"m", 0)
    assert sender._wake.is_set()
    sender._give_up(ConnectionResetError("gone"))
    assert isinstance(outgoing.confirmed.exception(), ConnectionResetError)
    sender._closing = True
    with pytest.raises(WireError, match="was closed"):
        sender.send(b"m", 0)


async def test_credit_is_told_once_with_the_numbers_of_its_session() -> None:
    made, link = receiver()
    made.grant(12)
    assert (made.credit, made._wake.is_set()) == (12, True)
    [(channel, code, fields)] = performed(made._compose())
    assert (channel, code, fields[:7]) == (3, FLOW, [5, 7, WRAPS - 1, 9, 4, WRAPS - 1, 12])
    assert made._compose() == b""
    assert link.flows == []


async def test_credit_is_taken_back_only_where_there_is_some_and_waited_for_until_the_peer_says_so() -> None:
    made, link = receiver()
    async with asyncio.timeout(60):
        await made.drain(timeout_seconds=600)
        assert link.flows == [], "there is none"
        made._drained.set()  # the answer to an earlier one
        made.grant(1)
        draining = asyncio.create_task(made.drain(timeout_seconds=600))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert link.flows == [{"link_credit": 0, "drain": True, "echo": True}]
        assert (draining.done(), made._compose()) == (False, b""), "the credit is not told besides"
        await made._on_flow([])
        await draining
        await made.drain(timeout_seconds=0.01)  # a peer that does not answer ends no one


async def test_settlements_are_written_and_those_that_are_given_back_want_no_answer() -> None:
    made, _ = receiver()
    deliveries = [wire.WireDelivery(b"", number, b"t") for number in (8, 11)]
    made.release(deliveries)
    assert made._wake.is_set()
    frames = performed(made._compose())
    assert [(code, fields[0], fields[1], fields[3], [*fields[4]]) for _, code, fields in frames] == [
        (DISPOSITION, True, number, True, ["released"]) for number in (8, 11)
    ]
    made.settle(deliveries[0], accepted(), "accepted")
    made.settle_all([11], accepted(), "accepted")
    frames = performed(made._compose())
    assert [(fields[1], fields[3], [*fields[4]]) for _, _, fields in frames] == [
        (number, False, ["accepted"]) for number in (8, 11)
    ]


async def test_one_settled_once_more_and_what_is_forgotten_have_an_end() -> None:
    made, _ = receiver()
    delivery = wire.WireDelivery(b"", 8, b"t")
    first, second = (made.settle(delivery, accepted(), "accepted") for _ in range(2))
    assert isinstance(first.exception(), TimeoutError)
    together = made.settle_all([1, 2], accepted(), "accepted")
    await made._on_disposition([False, 1, 1, True, {"accepted": []}, None])
    made.settle(wire.WireDelivery(b"", 1, b"t"), accepted(), "accepted")
    made.forget(together)
    assert sorted(made._unsettled) == [1, 8], "only what has no answer yet is forgotten"
    made._give_up(ConnectionResetError("gone"))
    assert isinstance(second.exception(), ConnectionResetError)
    assert (made._unsettled, made.arrival.is_set(), made._drained.is_set()) == ({}, True, True)


async def test_a_disposition_of_the_peer_s_own_role_settles_nothing() -> None:
    made, _ = receiver()
    confirmed = made.settle(wire.WireDelivery(b"", 8, b"t"), accepted(), "accepted")
    await made._on_disposition([True, 8, 8, True, {"accepted": []}, None])
    assert not confirmed.done()
    await made._on_disposition([False, 8, 8, False, [b"id", {"accepted": []}], None])
    assert confirmed.result() is None, "in a transaction the outcome is provisional"


async def test_each_of_several_that_were_refused_has_an_error_of_its_own() -> None:
    made, _ = receiver()
    settling = made.settle_all([1, 2, 3], accepted(), "accepted")
    await made._on_disposition([False, 1, 2, True, {"rejected": [[b"amqp:not-allowed", b"no", None]]}, None])
    answers = dict(await settling.answers(asyncio.get_running_loop().time() + 60))
    assert [getattr(one, "description", None) for one in answers.values()] == ["no"] * 2
    assert answers[1] is not answers[2]
    assert settling.open == {3}
    waiting = asyncio.create_task(settling.answers(asyncio.get_running_loop().time() + 600))
    await asyncio.sleep(0)
    settling.answer([3], None)
    async with asyncio.timeout(60):
        assert await waiting == [(3, None)], "what was told is not told again"


def a_transfer(payload: bytes = b"x") -> memoryview:
    """A delivery in one frame on the link's handle."""
    frames = wire.transfers(4, 6, b"tag!", 0, payload, 4096, settled=False)
    [(head, part)] = frames
    return memoryview(head + part)


async def test_a_message_in_one_frame_is_taken_past_the_sdk_only_where_all_is_as_usual() -> None:
    made, link = receiver()
    session = link._session
    body = a_transfer(b"message")

    def unusual(change: Callable[[], None], back: Callable[[], None]) -> bool:
        change()
        took = made._took(3, body)
        back()
        return took

    assert not unusual(lambda: setattr(made, "_link", None), lambda: setattr(made, "_link", link))
    assert not unusual(lambda: setattr(made, "_assembly", wire._Assembly()), lambda: setattr(made, "_assembly", None))
    assert not unusual(lambda: setattr(session, "incoming_window", 1), lambda: setattr(session, "incoming_window", 7))
    assert not unusual(lambda: session._input_handles.clear(), lambda: session._input_handles.update({4: link}))
    assert not made._took(2, body), "another channel"
    assert not made.arrived
    session.incoming_window, link.current_link_credit, link.delivery_count = 2, 5, WRAPS - 1
    assert made._took(3, body)
    [delivery] = made.arrived
    assert (delivery.payload, delivery.delivery_id, delivery.tag) == (b"message", 6, b"tag!")
    assert (made._seen, made.arrival.is_set()) == (1, True)
    assert (session.next_incoming_id, session.remote_outgoing_window, session.incoming_window) == (WRAPS + 6, 49, 1)
    assert (link.delivery_count, link.current_link_credit) == (0, 4)


def test_the_session_of_a_link_and_until_when_it_is_locked() -> None:
    made = wire.ReceiverWire(SimpleNamespace(_session_id=NEXT_AVAILABLE_SESSION, _session=None))
    assert (made.session_id, made.session_locked_until) == (None, None)
    locked = SimpleNamespace(timestamp=lambda: 12.5)
    for until, expected in ((None, None), (locked, 12.5)):
        made._sdk = SimpleNamespace(_session_id="a", _session=SimpleNamespace(locked_until_utc=until))
        assert (made.session_id, made.session_locked_until) == ("a", expected)
    made.session_renewed_until = 0.0
    assert made.session_locked_until == 0.0


@pytest.mark.parametrize(
    ("state", "expected", "condition", "text"),
    [
        ({"accepted": []}, "accepted", None, ""),
        ({"rejected": [None]}, "rejected", None, ""),
        ({"rejected": []}, "rejected", None, ""),
        ({"rejected": [[b"amqp:not-found", b"no such", None]]}, "accepted", "amqp:not-found", "no such"),
        ({"rejected": [[b"amqp:not-found"]]}, "accepted", "amqp:not-found", ""),
        ({"rejected": [[b"amqp:not-found", b"why"]]}, "rejected", "amqp:not-found", "why"),
        ({"modified": []}, "accepted", "amqp:internal-error", "The service answered `modified` where `accepted`"),
        (None, "accepted", "amqp:internal-error", "The service answered `None`"),
        ([ID], "declared", None, ""),
        ([ID], "accepted", "amqp:internal-error", "The service answered `declared`"),
        ([ID, {"accepted": []}], "accepted", None, ""),
        ([ID, {"released": []}], "accepted", "amqp:internal-error", "`released`"),
        ([ID, None], "accepted", "amqp:internal-error", "`None`"),
    ],
)
def test_what_an_outcome_means(state: Any, expected: str, condition: str | None, text: str) -> None:
    refusal = wire._refusal(state, expected)
    assert (None if refusal is None else getattr(refusal, "condition", "")) == condition
    assert text in str(refusal or "")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (b"a\xff", "a�"), (bytearray(b"b"), "b"), ("c", "c"), (5, "5"), (b"", ""), (ErrorCondition, None)],
)
def test_a_text_of_the_peer_is_read_whatever_its_type(value: Any, text: str | None) -> None:
    assert wire._text(value) == (str(value) if text is None else text)


def test_errors_of_the_sdk_are_told_by_condition_status_and_text() -> None:
    def told(error: Exception) -> tuple[Any, ...]:
        plain = wire._plain(error)
        return type(plain), *(getattr(plain, name, None) for name in ("condition", "status", "description"))

    kind, condition, _, text = told(FramingError("bad"))
    assert (kind, condition, text) == (WireError, "amqp:connection:framing-error", "The answer is not AMQP: bad")
    assert told(TokenAuthFailure(404, b"no such")) == (WireError, None, 404, "no such")
    assert told(TokenAuthFailure(None, "none"))[2] == 401
    assert told(AMQPException(ErrorCondition.NotFound, description=b"gone"))[1::2] == ("amqp:not-found", "gone")
    assert told(AMQPException(b"vendor:own", message="said", description=None))[1::2] == ("vendor:own", "said")
    inside = AMQPConnectionError(b"amqp:socket-error", message="", description=None, error=OSError("cable"))
    assert told(inside)[1::2] == ("amqp:socket-error", "cable")
    other = OSError("other")
    assert wire._plain(other) is other


async def test_what_waits_is_told_once_and_an_error_that_nobody_takes_is_no_noise() -> None:
    loop, noise = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: noise.append(context))
    future: asyncio.Future[None] = loop.create_future()
    wire._resolve(future, None)
    wire._resolve(future, OSError("late"))
    assert future.result() is None
    lost: asyncio.Future[None] = loop.create_future()
    wire._resolve(lost, OSError("lost"))
    del lost
    gc.collect()
    await asyncio.sleep(0)
    assert noise == []


class Peer:
    """The SDK's connection as far as `Wire` asks it."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._last_frame_received_time = 0.0
        self.readable = True

    def _can_read(self) -> bool:
        return self.readable


def an_open_wire() -> tuple[wire.Wire, Peer, SdkLink]:
    made = wire.Wire(SimpleNamespace(_running=True))
    made._connection, made._link, made._ready = peer, link, _ = Peer(), SdkLink(), True
    return made, peer, link


async def test_a_wire_fails_once_with_what_ended_it() -> None:
    made, peer, link = an_open_wire()
    made._tell()
    made.raise_if_failed()
    assert (made.failed, made.silent_for() < 60, peer._last_frame_received_time > 0) == (False, True, True)
    link.state = SimpleNamespace(value=6)
    made._ready = False
    made._tell()
    assert not made.failed, "a link that is not attached yet is no end"
    made._ready = True
    news = made._news
    made._tell()
    assert (made.failed, news.is_set()) == (True, True)
    with pytest.raises(WireError, match="The link was detached"):
        made.raise_if_failed()
    made._fail(OSError("later"))
    with pytest.raises(WireError, match="detached"):
        await made._listen()
    for error, readable, text in ((OSError("why"), True, "why"), (None, False, "closed the connection")):
        made, peer, link = an_open_wire()
        link._error = AMQPException(ErrorCondition.NotFound, description="gone")
        peer._error, peer.readable = error, readable
        made._tell()
        with pytest.raises((OSError, WireError), match=text):
            made.raise_if_failed()
    made, peer, link = an_open_wire()
    link.state, link._error = SimpleNamespace(value=6), AMQPException(ErrorCondition.NotFound, description="gone")
    made._closing = True
    made._tell()
    assert made._failure is None, "a farewell is no failure"
    with pytest.raises(WireError, match="The connection was closed"):
        made.raise_if_failed()
    made._closing = False
    made._tell()
    with pytest.raises(WireError, match="gone"):
        made.raise_if_failed()


async def test_who_listens_hears_of_frames_once_and_of_a_failure_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, _ = an_open_wire()
    monkeypatch.setattr(wire, "_LISTEN_SECONDS", 600.0)
    async with asyncio.timeout(60):
        made._seen = 1
        await made._listen()
        listening = asyncio.create_task(made._listen())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not listening.done(), "those frames it was told of"
        made._seen = 2
        made._tell()
        await listening
        listening = asyncio.create_task(made._listen())
        await asyncio.sleep(0)
        made._fail(OSError("broken"))
        with pytest.raises(OSError, match="broken"):
            await listening
        made, _, _ = an_open_wire()
        monkeypatch.setattr(wire, "_LISTEN_SECONDS", 0.01)
        await made._listen()


async def test_the_end_of_a_task_ends_the_wire_unless_it_was_cancelled() -> None:
    made, _, _ = an_open_wire()
    task = asyncio.create_task(asyncio.sleep(600))
    task.cancel()
    await asyncio.wait([task])
    made._task_ended(task)
    assert not made.failed

    async def broken() -> None:
        raise ConnectionResetError("cut")

    task = asyncio.create_task(broken())
    await asyncio.wait([task])
    made._task_ended(task)
    with pytest.raises(ConnectionResetError, match="cut"):
        made.raise_if_failed()


class Tokens:
    """An authenticator of the SDK: counts."""

    asked = 0

    async def handle_token(self) -> bool:
        self.asked += 1
        return True


async def test_tokens_of_all_links_are_minded_and_silence_ends_the_house(monkeypatch: pytest.MonkeyPatch) -> None:
    made, peer, _ = an_open_wire()
    own, more, beats = Tokens(), Tokens(), list[float]()

    async def beat(now: float) -> None:
        beats.append(now)
        if len(beats) == 2:
            made._heard_at = -1e9

    peer._get_remote_timeout = beat  # type: ignore[attr-defined]
    made._client = SimpleNamespace(_cbs_authenticator=own)
    made._more_tokens = [None, more]
    made._heard_at = time.monotonic()
    monkeypatch.setattr(wire, "_HOUSEKEEPING_SECONDS", 0.0)
    with pytest.raises(WireError, match="Nothing was heard for 90 seconds"):
        async with asyncio.timeout(60):
            await made._keep_house()
    assert (len(beats), own.asked, more.asked) == (2, 2, 2)


def test_a_refused_link_to_management_is_told_and_not_kept() -> None:
    def operation(*errors: Exception | None) -> Any:
        links = [SimpleNamespace(_error=error) for error in errors]
        pair = SimpleNamespace(_request_link=links[0], _response_link=links[1])
        return SimpleNamespace(_mgmt_error=OSError("old"), _mgmt_link=pair)

    made, _, _ = an_open_wire()
    given = OSError("given")
    assert made._management_error(given) is given, "there is no client"
    refused = AMQPException(ErrorCondition.NotFound, description="gone")
    whole, broken = operation(None, None), operation(None, refused)
    made._client = SimpleNamespace(_mgmt_links={b"a": whole, b"b": broken})
    assert str(made._management_error(given)).endswith("gone")
    assert (list(made._client._mgmt_links), whole._mgmt_error, broken._mgmt_error) == ([b"a"], None, None)
    whole._mgmt_error = given
    assert made._management_error(given) is given
    assert whole._mgmt_error is None


async def test_a_wire_that_is_closed_says_farewell_only_where_somebody_hears_it() -> None:
    for ready, failure, said in ((True, None, 1), (False, None, 0), (True, OSError("cut"), 0)):
        made, _, link = an_open_wire()
        made._ready, made._failure, waited = ready, failure, list[bool]()
        made._connection = SimpleNamespace(_transport=None, listen=None)

        async def detach(*, close: bool, waited: list[bool] = waited, made: wire.Wire = made) -> None:
            waited.append(close)
            assert made.failed, "nobody sends any more"

        async def close_async() -> None:
            return None

        link.detach = detach  # type: ignore[attr-defined]
        made._client = SimpleNamespace(close_async=close_async)
        async with asyncio.timeout(60):
            await made.close()
        assert (waited, made.failed, made._sdk._running) == ([True] * said, True, False)
        assert hasattr(made._connection, "listen") == (said == 0)


def test_an_answer_of_management_has_its_condition_and_text() -> None:
    for properties, condition in ((None, None), ({}, None), ({b"errorCondition": b"com.microsoft:timeout"}, "com.")):
        answer = wire._as_answer("404", SimpleNamespace(application_properties=properties, value={1: 2}), b"why")
        assert (answer.status, answer.value, answer.description) == (404, {1: 2}, "why")
        assert (answer.condition or "").startswith(condition or "")
        assert (answer.condition is None) == (condition is None)


class Client:
    """The SDK's client: what it is asked for."""

    def get_queue_receiver(self, queue: str, **options: Any) -> Any:
        return queue, options

    def get_subscription_receiver(self, topic: str, subscription: str, **options: Any) -> Any:
        return topic, subscription, options

    def get_queue_sender(self, queue: str, **options: Any) -> Any:
        return queue, options


def test_receivers_are_asked_of_the_sdk_as_they_are_wanted() -> None:
    plain = {"prefetch_count": 1, "keep_alive": 0}

    def made(path: str, **how: Any) -> Any:
        usual = {"dead_letter": False, "session_id": None, "next_session_seconds": None}
        return wire.make_sdk_receiver(Client(), path, **usual | how)

    assert made("q") == ("q", plain)
    assert made("q", dead_letter=True) == ("q", {**plain, "sub_queue": ServiceBusSubQueue.DEAD_LETTER})
    assert made("q", session_id="") == ("q", {**plain, "session_id": ""})
    assert made("q", session_id="a", next_session_seconds=0.0) == (
        "q",
        {**plain, "session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 0.0},
    )
    assert made("a/t/Subscriptions/s") == ("a/t", "s", plain)
    assert wire.make_sdk_sender(Client(), "q") == ("q", {"keep_alive": 0})


def test_a_batch_is_as_large_as_the_link_or_the_standard_tier_takes() -> None:
    from azure.servicebus import ServiceBusSender

    sender = ServiceBusSender("host", AzureNamedKeyCredential("name", "key"), queue_name="q")
    assert wire.empty_batch(sender, None).max_size_in_bytes == 256 * 1024
    assert wire.empty_batch(sender, 256 * 1024).max_size_in_bytes == 256 * 1024
    with pytest.raises(ValueError, match="too large"):
        wire.empty_batch(sender, 256 * 1024 + 1)
    sender._max_batch_size_on_link = 1000
    assert wire.empty_batch(sender, None).max_size_in_bytes == 1000
    assert wire.knows_limits(sender) == 0
    many = [ServiceBusMessage(bytes(400)) for _ in range(3)]
    assert len(wire.encode_outgoing(many, sender)) == 3, "what is not known of a link is not held against a list"
    sender._max_message_size_on_link = 1000
    assert wire.knows_limits(sender) == 1000
    with pytest.raises(MessageSizeExceededError):
        wire.encode_outgoing(many, sender)
    assert len(wire.encode_outgoing(many[:2], sender)) == 2
    assert not wire.is_closed(sender)
    kept = sender._handler = object()
    sender._running = True
    assert wire.forget_connection(sender) is kept
    assert (sender._handler, sender._running) == (None, False)
    wire.close_forgotten(None)
    wire.begin_close(sender)
    assert wire.is_closed(sender)


@pytest.mark.skipif(not wire._opens_within(), reason="this SDK opens links without a bound of its own")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("seconds", "tried"), [(5.0, 5.0), (50.0, 7.0)])
async def test_a_link_is_opened_in_time_and_each_try_within_the_one_of_the_sdk(
    asynchronous: bool, seconds: float, tried: float
) -> None:
    from azure.servicebus import ServiceBusSender as Synchronous

    given: list[Any] = []
    sdk: Any = ServiceBusSender if asynchronous else Synchronous
    one = sdk("host", AzureNamedKeyCredential("name", "key"), queue_name="q")
    one._config.try_timeout = 7.0

    async def asynchronously(timeout: float | None = None) -> None:
        given.append(timeout)

    if asynchronous:
        one._open = asynchronously
        await wire.open_within_async(one, seconds)
    else:
        one._open = lambda timeout=None: given.append(timeout)
        wire.open_within(one, seconds)
    assert given == [pytest.approx(tried, abs=0.5)]


def sdk_error(condition: str | bytes | None, inner: BaseException | None) -> ServiceBusError:
    error = ServiceBusError("The SDK says little.", error=inner)  # type: ignore[arg-type]
    error._condition = condition  # type: ignore[attr-defined]
    return error


def test_what_the_sdk_s_error_was_made_from_says_more() -> None:
    def category(condition: str | bytes | None, inner: BaseException | None) -> Category:
        error = sdk_error(condition, inner)
        translated = wire.translate_sdk_error(error, "send", "q")
        assert translated.__cause__ is error
        return translated.category

    assert isinstance(wire.translate_sdk_error(sdk_error(None, None), "send", "q"), UnknownServiceError)
    assert category(wire._CLIENT_SIDE, None) is Category.CONNECTION
    assert category(None, KeyError("link")) is Category.CONNECTION
    assert category(None, AttributeError("link")) is Category.CONNECTION
    assert category(None, TokenAuthFailure(404, b"no such queue")) is Category.NOT_FOUND
    assert category(b"amqp:not-found", OSError("no news")) is Category.CONNECTION, "the inner one comes first"
    assert category("amqp:not-found", None) is Category.NOT_FOUND
    caused = sdk_error(None, None)
    caused.__cause__ = TokenAuthFailure(404, b"no such queue")
    assert isinstance(wire.translate_sdk_error(caused, "send", "q"), EntityNotFoundError)


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (TypeError(), True),
        (ValueError(), True),
        (MessageSizeExceededError(message="large"), True),
        (WireError("amqp:not-allowed", "no"), True),
        (WireError("com.microsoft:server-busy", "busy"), True),
        (WireError("amqp:resource-limit-exceeded", "full"), True),
        (WireError("amqp:not-found", "gone"), False),
        (OSError("cut"), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_a_link_stays_where_the_service_answered_on_it(error: BaseException, stays: bool) -> None:
    assert wire.leaves_link(error) is stays


def test_credentials_are_told_apart_by_what_they_hold() -> None:
    def key(name: str) -> object:
        return SimpleNamespace(named_key=name)

    class Other(SimpleNamespace):
        pass

    assert wire.secrets_of(key("a")) == wire.secrets_of(key("a"))
    assert wire.secrets_of(key("a")) != wire.secrets_of(key("b"))
    assert wire.secrets_of(SimpleNamespace(token="a")) != wire.secrets_of(SimpleNamespace(signature="a"))
    assert wire.secrets_of(Other(named_key="a")) != wire.secrets_of(key("a"))


class WebSocket:
    """What the SDK's WebSocket transport holds; its `receive_bytes` raises at the end."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.closed, self.closings = False, 0

    async def receive_bytes(self) -> bytes:
        if not self.chunks:
            raise TypeError("Received message is not bytes")
        return self.chunks.pop(0)

    async def close(self) -> None:
        self.closed, self.closings = True, self.closings + 1


async def test_bytes_are_read_from_either_transport_until_its_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"data")
    reader.feed_eof()
    socket = WebSocket(b"data", b"")
    for transport in (SimpleNamespace(reader=reader), SimpleNamespace(sock=socket)):
        source = wire._Source(transport)
        assert await source.read() == b"data"
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            await source.read()
    with pytest.raises(ConnectionResetError, match="WebSocket"):
        await wire._Source(SimpleNamespace(sock=socket)).read()
    for _ in range(2):
        await wire._abort_transport(SimpleNamespace(_transport=SimpleNamespace(session=socket)))
    assert socket.closings == 1
    await wire._abort_transport(None)
    aborted: list[str] = []
    writer = SimpleNamespace(transport=SimpleNamespace(abort=lambda: aborted.append("aborted")))
    await wire._abort_transport(SimpleNamespace(_transport=SimpleNamespace(writer=writer)))
    assert aborted == ["aborted"]


async def test_the_tasks_of_a_wire_end_with_it() -> None:
    class SdkSession:
        def create_sender_link(self, *arguments: Any) -> Any:
            return "sender", arguments

        def create_receiver_link(self, *arguments: Any) -> Any:
            return "receiver", arguments

    hooked: list[Any] = []

    class Hooked(wire.Wire):
        def _hook(self, link: Any) -> None:
            hooked.append(link)

    made = Hooked(SimpleNamespace(_running=True))
    reader = asyncio.StreamReader()
    transport = SimpleNamespace(reader=reader, _read_buffer=SimpleNamespace(read=lambda: b""))
    session = SdkSession()
    connection = Peer()
    connection._transport = transport  # type: ignore[attr-defined]
    client: Any = SimpleNamespace(_connection=connection, _session=session, _cbs_authenticator=None)
    made._take_over(client)
    tasks = list(made._tasks)
    assert session.create_receiver_link("q") == ("receiver", ("q",)), "the entity's own link"
    assert session.create_sender_link("$management") == ("sender", ("$management",)), "and later ones are the SDK's"
    assert hooked == [("receiver", ("q",))] == [made._link]
    await asyncio.sleep(0)
    assert (len(tasks), [task.done() for task in tasks], made.silent_for() < 60) == (3, [False] * 3, True)
    await made.abort()
    assert ([task.cancelled() for task in tasks], made._tasks, made._sdk._running) == ([True] * 3, [], False)
    ended = Hooked(SimpleNamespace(_running=True))
    ended._take_over(client)
    reader.feed_eof()
    async with asyncio.timeout(60):
        while not ended.failed:
            await asyncio.sleep(0)
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        ended.raise_if_failed()
    await ended.abort()


async def test_what_is_written_is_taken_as_long_as_there_is_something() -> None:
    made, _, _ = an_open_wire()
    written, left = list[bytes](), [b"one", b"two", b"", b"three", b""]

    async def write(data: bytes) -> None:
        written.append(data)

    made._compose = lambda: left.pop(0)  # type: ignore[method-assign]
    made._connection = SimpleNamespace(_transport=SimpleNamespace(write=write), _last_frame_sent_time=0.0)
    writing = asyncio.create_task(made._write_loop())
    await asyncio.sleep(0)
    assert written == []
    for expected in ([b"one", b"two"], [b"one", b"two", b"three"]):
        made._wake.set()
        async with asyncio.timeout(60):
            while made._wake.is_set():
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert written == expected
    assert made._connection._last_frame_sent_time > 0
    writing.cancel()


async def test_a_link_to_another_entity_is_one_in_any_spelling_until_it_ends() -> None:
    asked: list[str] = []

    class Within(wire.RequestingWire):
        refuses: Exception | None = None

        async def _claim(self, sdk: Any) -> None:
            if self.refuses is not None:
                raise self.refuses

        async def _attach(
            self, session: Any, address: Any, target: Any = None, credit: int | None = None
        ) -> wire.SendingLink:
            asked.append(address)
            link = SdkLink()
            return wire.SendingLink(link, link, lambda: None)

    made = Within(SimpleNamespace(_running=True), lambda entity: SimpleNamespace(_entity_uri=f"uri of {entity}"))
    made._client, made._connection = SimpleNamespace(_session=None), Peer()
    first = await made.sending_to("Orders")
    assert await made.sending_to("oRDERS") is first
    other = await made.sending_to("invoices")
    assert asked == ["uri of Orders", "uri of invoices"]
    waiting, going = first.send(b"m", 0), other.send(b"m", 0)
    await other._on_flow([0, 100, 0, 100, 4, other._link.delivery_count, 5])
    assert b"m" in made._compose()
    first._link.state = SimpleNamespace(value=6)
    made._tell()
    assert "detached" in str(waiting.confirmed.exception())
    assert (going.confirmed.done(), made.failed) == (False, False), "the others and the connection go on"
    assert await made.sending_to("orders") is not first
    made.refuses = TokenAuthFailure(404, b"no such queue")
    with pytest.raises(WireError, match="no such queue"):
        await made.sending_to("third")
    made._connection._error = ConnectionResetError("cut")
    made._tell()
    assert isinstance(going.confirmed.exception(), ConnectionResetError)
    with pytest.raises(ConnectionResetError):
        await made.sending_to("orders")


async def test_the_coordinator_s_transactions_are_declared_and_discharged() -> None:
    sending, _, _ = sending_link()
    coordinator = wire.CoordinatorLink(sending)
    await sending._on_flow([0, 100, 0, 100, 4, WRAPS - 1, 9])
    for transaction_id, refused in ((b"i" * 64, False), (b"i" * 65, True)):
        declaring = asyncio.create_task(coordinator.declare())
        await asyncio.sleep(0)
        sending.compose()
        [number] = sending._unconfirmed
        await sending._on_disposition([True, number, number, True, [transaction_id], None])
        if refused:
            with pytest.raises(WireError, match="65 bytes"):
                await declaring
        else:
            assert await declaring == transaction_id
    ends = [coordinator.discharge(b"id", fail=fail) for fail in (True, False)]
    assert ends[0].payload != ends[1].payload
    assert {one.expected for one in ends} == {"accepted"}
    transacting = wire.CoordinatorWire(SimpleNamespace(_running=True))
    with pytest.raises(WireError, match="coordinator is not open"):
        assert transacting.coordinator
    transacting._coordinator, transacting._connection = coordinator, Peer()
    assert transacting.coordinator is coordinator
    assert transacting._compose() != b""
    sending._link.state = SimpleNamespace(value=6)
    transacting._tell()
    assert transacting.failed
    assert "detached" in str(ends[0].confirmed.exception())
    cut = wire.CoordinatorWire(SimpleNamespace(_running=True))
    cut._connection = peer = Peer()
    peer.readable = False
    cut._tell()
    assert cut.failed, "and the connection is minded with it"


async def test_what_waits_when_the_writing_begins_is_written_and_what_comes_while_it_writes() -> None:
    """Nobody wakes the loop a second time for it."""
    waiting, written, over = [b"before it began"], list[bytes](), asyncio.Event()

    async def write(data: bytes) -> None:
        written.append(data)
        if data == b"before it began":
            waiting.append(b"while it wrote")
            link._wake.set()
        await asyncio.sleep(0)
        if data == b"later":
            over.set()

    connection = SimpleNamespace(_last_frame_sent_time=0.0, _transport=SimpleNamespace(write=write))
    link: Any = SimpleNamespace(
        _connection=connection, _wake=asyncio.Event(), _compose=lambda: waiting.pop(0) if waiting else b""
    )
    link._wake.set()
    writing = asyncio.create_task(wire.Wire._write_loop(link))
    async with asyncio.timeout(60):
        while len(written) < 2:
            await asyncio.sleep(0)
        waiting.append(b"later")
        link._wake.set()
        await over.wait()
    writing.cancel()
    assert written == [b"before it began", b"while it wrote", b"later"]
    assert connection._last_frame_sent_time > 0


async def test_a_connection_is_opened_with_our_silence_then_taken_over_and_ended_in_good_order() -> None:
    log: list[object] = []

    class Client:
        _idle_timeout: float | None = None
        _connection = _cbs_authenticator = None
        _session = "session"
        ready = iter([False, True])

        async def open_async(self) -> None:
            log.append(("open", self._idle_timeout))

        async def client_ready_async(self) -> bool:
            log.append("asked")
            return next(self.ready)

    class Ordered(wire.Wire):
        def _make_client(self, authentication: Any) -> None:
            self._sdk._handler = Client()

        def _take_over(self, client: Any) -> None:
            log.append("taken over")
            self._link = SimpleNamespace(get_state=lambda: SimpleNamespace(value=wire._ATTACHED))
            self._tasks.append(asyncio.create_task(self.work()))

        async def _before_the_link(self, session: Any) -> None:
            log.append(("before the link", session))

        async def work(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                log.append(("stopped", self.failed))

        def _give_up(self, error: Exception) -> None:
            log.append(("given up", str(error)))

    key = AzureNamedKeyCredential("name", "key")
    made = Ordered(ServiceBusSender("host", key, queue_name="q"))
    made._sdk._running = True
    await made._open()
    assert log == [
        ("open", wire.IDLE_TIMEOUT_SECONDS), "taken over", ("before the link", "session"), "asked", "asked",
    ]  # fmt: skip
    await asyncio.sleep(0)
    log.clear()
    await made.abort()
    assert log == [("stopped", True), ("given up", "amqp:socket-error: The connection was closed.")]
    assert made._sdk._running is False
