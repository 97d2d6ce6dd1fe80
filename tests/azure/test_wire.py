"""The hooks into the SDK: they work with the installed one, and a changed one is refused."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import azure.servicebus
import pytest
from azure.servicebus._pyamqp.aio import AMQPClientAsync
from azure.servicebus._pyamqp.aio._cbs_async import CBSAuthenticator
from azure.servicebus._pyamqp.aio._connection_async import Connection
from azure.servicebus._pyamqp.aio._receiver_async import ReceiverLink
from azure.servicebus._pyamqp.aio._sender_async import SenderLink
from azure.servicebus._pyamqp.aio._session_async import Session
from azure.servicebus._pyamqp.constants import ManagementExecuteOperationResult
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from sbpair.amqp.performatives import accepted
from sbpair.amqp.types import Described
from sbpair.azure import wire
from sbpair.azure.errors import WireError
from sbpair.azure.links import SharedWire
from sbpair.azure.receiver import AzureReceiver, Receipt
from sbpair.core.errors import IncompatibleSdkError, OperationTimeoutError, ServiceError
from sbpair.core.message import Disposition, Received
from tests.hostile import within

LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_tested", False)


def test_the_installed_sdk_passes_without_a_running_loop() -> None:
    wire.self_test()
    assert wire._tested


async def test_the_installed_sdk_passes_inside_a_loop_and_costs_nothing() -> None:
    wire.self_test()
    took = []
    for _ in range(5):
        wire._tested = False
        began = time.thread_time()
        wire.self_test()
        took.append(time.thread_time() - began)
    assert min(took) < 0.02


async def test_a_later_release_is_taken_by_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azure.servicebus.__version__", "7.16.0")
    monkeypatch.setattr(wire, "_tested", False)
    wire.self_test()
    assert wire._tested


async def test_another_major_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azure.servicebus.__version__", "8.0.0")
    with pytest.raises(IncompatibleSdkError, match=r"8\.0\.0") as caught:
        wire.self_test()
    assert "pip install" in caught.value.hint


async def test_a_moved_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Connection, "_process_incoming_frame")
    with pytest.raises(IncompatibleSdkError, match=r"Connection\._process_incoming_frame"):
        wire.self_test()


async def test_a_session_that_no_longer_asks_the_link_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def elsewhere(self: Session, frame: object) -> None:
        return None

    monkeypatch.setattr(Session, "_incoming_transfer", elsewhere)
    with pytest.raises(IncompatibleSdkError, match="payload"):
        wire.self_test()


async def test_links_that_cannot_be_hooked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceiverLink, "__slots__", (), raising=False)
    monkeypatch.setattr(ReceiverLink, "__setattr__", _refuse_hooks)
    with pytest.raises(IncompatibleSdkError, match="hooked"):
        wire.self_test()


def _refuse_hooks(self: object, name: str, value: object) -> None:
    if name.startswith("_incoming"):
        raise AttributeError(f"{name} cannot be hooked")
    object.__setattr__(self, name, value)


@pytest.fixture
def untried() -> Iterator[None]:
    """What was found out about features counts for one test."""
    wire.lacks.cache_clear()
    yield
    wire.lacks.cache_clear()


@pytest.mark.usefixtures("untried")
def test_the_installed_sdk_has_all_that_features_stand_on() -> None:
    release = tuple(int(part) for part in azure.servicebus.__version__.split(".")[:2])
    assert [sentence for sentence in wire.missing_features() if release >= (7, 15)] == []


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("owner", "name", "feature"),
    [
        (azure.servicebus.ServiceBusSender, "_do_retryable_operation", wire.Feature.FAILOVER),
        (PyamqpTransport, "encode_message", wire.Feature.FAILOVER),
        (Connection, "create_session", wire.Feature.TRANSACTIONS),
        (Session, "_outgoing_transfer", wire.Feature.TRANSACTIONS),
        (AMQPClientAsync, "mgmt_request_async", wire.Feature.BROWSING),
        (CBSAuthenticator, "_on_execute_operation_complete", wire.Feature.REFUSALS),
    ],
)
def test_what_is_missing_costs_its_feature_with_a_sentence_and_the_rest_works(
    owner: type, name: str, feature: wire.Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = next(one for one in owner.__mro__ if name in vars(one))
    monkeypatch.delattr(parts, name)
    monkeypatch.setattr(wire, "_tested", False)
    wire.self_test()
    lack = wire.lacks(feature)
    assert lack is not None
    assert lack.startswith(f"With azure-servicebus {azure.servicebus.__version__} {feature}: ")
    assert lack in wire.missing_features()


async def test_a_refused_self_test_is_tried_again_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("azure.servicebus.__version__", "8.0.0")
        with pytest.raises(IncompatibleSdkError):
            wire.self_test()
    wire.self_test()


class NeverOpen:
    """A wire that does not open, and says how it was left."""

    failed = False

    async def open(self) -> None:
        await asyncio.Event().wait()


async def test_a_wire_that_was_not_open_in_time_is_none() -> None:
    link: SharedWire[Any] = SharedWire(NeverOpen, open_seconds=0.05)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match=r"no connection within 0\.1 seconds"):
        await link.get(timeout_seconds=LIMIT_SECONDS)
    assert link.current is None


def a_transfer(
    delivery_id: object, tag: object, payload: bytes, *, more: bool = False, aborted: bool = False
) -> list[object]:
    return [0, delivery_id, tag, 0, False, more, None, None, None, aborted, None, payload]


@pytest.mark.parametrize(("delivery_id", "tag"), [(1, 2**32 - 1), (1, "tag"), (None, b"tag"), ([1], b"tag")])
async def test_a_transfer_without_a_proper_id_and_tag_is_refused(delivery_id: object, tag: object) -> None:
    with within(seconds=1, megabytes=1), pytest.raises(WireError, match="id or tag"):
        await wire.ReceiverWire(None)._on_transfer(a_transfer(delivery_id, tag, b"x"))


async def test_a_message_without_end_is_not_collected() -> None:
    receiver = wire.ReceiverWire(None)
    part = bytes(1 << 24)
    for _ in range(8):
        await receiver._on_transfer(a_transfer(1, b"tag", part, more=True))
    with pytest.raises(WireError, match="came in"):
        await receiver._on_transfer(a_transfer(1, b"tag", b"x", more=True))


class Credited:
    """The link's share of what a transfer changes."""

    delivery_count = 0
    current_link_credit = 2
    _session = SimpleNamespace(channel=0)


@pytest.mark.parametrize("more", [False, True])
async def test_an_aborted_transfer_is_no_message_and_has_used_its_credit(more: bool) -> None:
    receiver = wire.ReceiverWire(None)
    receiver._link = link = Credited()
    await receiver._on_transfer(a_transfer(1, b"tag", b"begun ", more=True))
    await receiver._on_transfer(a_transfer(None, None, b"and given up", more=more, aborted=True))
    assert not receiver.arrived
    assert not receiver.arrival.is_set()
    assert (link.delivery_count, link.current_link_credit) == (1, 1)
    await receiver._on_transfer(a_transfer(2, b"next", b"whole"))
    assert [one.payload for one in receiver.arrived] == [b"whole"], "nothing of the aborted one is before it"


async def test_an_outcome_that_is_not_settled_is_not_the_answer() -> None:
    """The service may still decide otherwise: what counts is the settled one that follows."""
    receiver = wire.ReceiverWire(None)
    receiver._link = Credited()
    confirmed = receiver.settle(wire.WireDelivery(b"", 5, b"tag"), accepted(), "accepted")
    await receiver._on_disposition([False, 5, 5, False, {"accepted": []}, None])
    assert not confirmed.done()
    await receiver._on_disposition([False, 5, 5, True, {"rejected": [[b"amqp:not-allowed", b"no", None]]}, None])
    with pytest.raises(WireError, match="no"):
        await confirmed


class Sent:
    """A transfer that waits for its disposition, as the SDK's sender link keeps it."""

    sent = True

    def __init__(self, delivery_id: int) -> None:
        self.frame = {"delivery_id": delivery_id}
        self.outcomes: list[object] = []

    async def on_settled(self, reason: object, state: object) -> None:
        self.outcomes.append(state)


@pytest.mark.parametrize(("of_receiver", "reached"), [(False, 0), (True, 1)])
async def test_a_disposition_reaches_only_the_deliveries_of_its_direction(of_receiver: bool, reached: int) -> None:
    """The peer refuses the settlement of its delivery 5 while our transfer 5, a request, waits for an answer."""
    session = Session(None, 0, network_trace=False, network_trace_params={})
    wire._part_dispositions(session)
    link = session.create_sender_link("q/$management")
    assert isinstance(link, SenderLink)
    session._input_handles[1] = link
    waiting = Sent(5)
    link._pending_deliveries.append(waiting)
    await session._incoming_disposition(
        [of_receiver, 5, 5, True, {"rejected": [[b"amqp:not-allowed", b"", None]]}, None]
    )
    assert len(waiting.outcomes) == reached
    assert len(link._pending_deliveries) == 1 - reached


async def test_an_answer_that_comes_as_the_time_is_up_is_taken_and_the_others_are_told_that_they_have_none() -> None:
    settling = wire.Settling((1, 2))
    loop = asyncio.get_running_loop()
    loop.call_soon(settling.answer, (1,), None)  # before the time-out of a moment that is past, in the same turn
    answers = dict(await settling.answers(loop.time() - 1))
    assert answers[1] is None
    assert isinstance(answers[2], TimeoutError)
    assert len(answers) == 2


class Counting(wire.ReceiverWire):
    """Counts the settlements that it is to write."""

    posted = 0

    def _post(self, delivery_id: int, outcome: Described, *, settled: bool) -> None:
        super()._post(delivery_id, outcome, settled=settled)
        self.posted += 1


async def test_two_deliveries_of_the_same_number_each_get_an_answer() -> None:
    """A peer must not number them so; what is settled with them still ends."""
    connection = Counting(None)
    connection._link = Credited()
    taken = [
        Received(b"", place, "q", receipt=Receipt(connection, wire.WireDelivery(b"", number, b"t")))
        for place, number in enumerate((4, 5, 5, 6))
    ]
    receiver = AzureReceiver("host", "q", lambda: None, lambda _: None, session_id=None)

    async def confirmed() -> None:
        while connection.posted < len(taken):
            await asyncio.sleep(0)
        await connection._on_disposition([False, 4, 6, True, {"accepted": []}, None])

    peer = asyncio.create_task(confirmed())
    answers: dict[int, ServiceError | None] = {}
    async with asyncio.timeout(LIMIT_SECONDS):
        async for some in receiver.settle_all(taken, Disposition.COMPLETE):
            for one, error in some:
                assert one.sequence_number not in answers
                answers[one.sequence_number] = error
        await peer
    assert [number for number, error in sorted(answers.items()) if error is None] == [0, 2, 3]
    assert isinstance(answers[1], OperationTimeoutError)
    assert not connection._unsettled


class Attached:
    """The SDK's link and its session, as far as a sender asks them."""

    handle = channel = next_outgoing_id = 0
    remote_incoming_window = 100

    def __init__(self, delivery_count: int = 0) -> None:
        self.delivery_count = delivery_count
        self._session = self
        self._remote_max_frame_size = 4096


@pytest.mark.parametrize(
    ("state", "accepted"),
    [({"accepted": []}, True), ({"released": []}, False), ({"modified": []}, False), (None, False)],
)
async def test_only_accepted_is_accepted(state: object, accepted: bool) -> None:
    """Whatever else the peer says of a message, it has not taken it."""
    link = Attached()
    sending = wire.SendingLink(link, link, lambda: None)
    outgoing = sending.send(b"payload", 0)
    await sending._on_flow([0, 100, 0, 100, 0, 0, 1])
    assert sending.compose()
    await sending._on_disposition([True, 0, 0, True, state, None])
    assert outgoing.answered
    assert (outgoing.confirmed.exception() is None) == accepted


async def test_credit_for_sends_counts_from_the_last_one_that_the_peer_has_seen() -> None:
    link = Attached(delivery_count=2**32 - 1)
    sending = wire.SendingLink(link, link, lambda: None)
    for _ in range(8):
        sending.send(b"payload", 0)
    for seen, credit, written in ((2**32 - 1, 3, 3), (1, 4, 6), (None, None, 6)):
        await sending._on_flow([0, 100, 0, 100, None if seen is None else 0, seen, credit])
        sending.compose()
        assert len(sending._unconfirmed) == written


async def test_all_that_waits_is_told_when_the_link_is_given_up() -> None:
    """What was never written too: nobody would ever answer it."""
    link = Attached()
    sending = wire.SendingLink(link, link, lambda: None)
    waiting = [sending.send(b"payload", 0) for _ in range(2)]
    await sending._on_flow([0, 100, 0, 100, 0, 0, 1])
    sending.compose()
    sending.give_up(ConnectionResetError("gone"))
    assert [one.written for one in waiting] == [True, False]
    assert [type(one.confirmed.exception()) for one in waiting if one.confirmed.done()] == [ConnectionResetError] * 2


async def test_why_a_token_was_refused_is_kept_where_the_peer_names_a_condition_beside_it() -> None:
    authenticator = CBSAuthenticator.__new__(CBSAuthenticator)
    authenticator._network_trace_params = {}
    wire._keep_status(authenticator)
    bad_status = ManagementExecuteOperationResult.FAILED_BAD_STATUS
    await authenticator._on_execute_operation_complete(bad_status, 404, "No such queue.", None, "amqp:not-found")
    assert (authenticator._token_status_code, authenticator._token_status_description) == (404, "No such queue.")
