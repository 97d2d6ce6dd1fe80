"""Calls of an application on a sender, one by one: what the SDK's sender and the failover are asked for them, with
which arguments, in which time, and what comes of their answers. Both are written anew here, and answer at once; the
synchronous and the asynchronous client have to do the same."""

import asyncio
import datetime
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
import pytest
from azure.servicebus import ServiceBusMessage, exceptions

import sbpair
import sbpair.aio
from sbpair.azure.wire import Feature, lacks
from sbpair.clients import aio, sync
from sbpair.clients.shared import LateTurnError, offering
from sbpair.core.failover.machine import Route

KEY = "Endpoint=sb://{}.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
LATER = datetime.datetime(2035, 1, 1, tzinfo=datetime.UTC)
MESSAGE = ServiceBusMessage("m")
BUSY = exceptions.ServiceBusServerBusyError(message="busy")
LOST = exceptions.ServiceBusConnectionError(message="lost")
SECONDS = 40.0
FOR_PRIMARY = 30.0
"""Of these, while there is a quarter to keep for the backlog."""
ROUNDING = 5.0
"""A busy machine takes its time between two lines."""


class Told:
    """The SDK's part of a sender: writes down what it is asked, and answers as it is told: in turn, None at last."""

    asked: list[tuple[Any, ...]]
    answers: list[Any]

    def answer(self, *asked: Any, timeout: float | None = None) -> Any:
        self.asked.append((*asked, None if timeout is None else round(timeout / ROUNDING) * ROUNDING, offering.get()))
        answer = self.answers.pop(0) if self.answers else None
        if callable(answer):
            answer = answer()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class TheirSender(Told, sdk.ServiceBusSender):
    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        return self.answer("send", message, kwargs, timeout=timeout)

    def schedule_messages(self, messages: Any, at: Any, *, timeout: float | None = None, **kwargs: Any) -> list[int]:
        return self.answer("schedule", messages, at, kwargs, timeout=timeout)

    def cancel_scheduled_messages(self, numbers: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        return self.answer("cancel", numbers, kwargs, timeout=timeout)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> Any:
        return self.answer("batch", max_size_in_bytes)

    def _do_retryable_operation(self, operation: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        assert operation == self._open
        return self.answer("open", timeout=timeout)


class TheirAsyncSender(Told, sdk_aio.ServiceBusSender):
    async def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        answer = self.answer("send", message, kwargs, timeout=timeout)
        if inspect.isawaitable(answer):
            await answer

    async def schedule_messages(self, messages: Any, at: Any, *, timeout: float | None = None, **kw: Any) -> list[int]:
        return self.answer("schedule", messages, at, kw, timeout=timeout)

    async def cancel_scheduled_messages(self, numbers: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        return self.answer("cancel", numbers, kwargs, timeout=timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> Any:
        return self.answer("batch", max_size_in_bytes)

    async def _do_retryable_operation(self, operation: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        assert operation == self._open
        return self.answer("open", timeout=timeout)


class OurSender(sync.ServiceBusSender, TheirSender):  # type: ignore[misc]
    pass


class OurAsyncSender(aio.ServiceBusSender, TheirAsyncSender):  # type: ignore[misc]
    pass


class OurClient(sbpair.ServiceBusClient):
    _sender_class = OurSender


class OurAsyncClient(sbpair.aio.ServiceBusClient):
    _sender_class = OurAsyncSender


class Link:
    """A connection to the primary that the sender holds."""

    _connection = _keep_alive_thread = None

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()

    async def close_async(self) -> None:
        self.closed.set()


class Part:
    """The failover's part of a sender."""

    def __init__(self, route: Route = Route.PRIMARY, *, plain: bool = True) -> None:
        self.asked: list[Any] = []
        self.takes_over = False
        self.max_message_bytes = 0
        self.closed = 0
        failover = SimpleNamespace(
            unverified=False,
            holding=False,
            entities=SimpleNamespace(seen=False),
            call=lambda work: work,
            acall=self.acall,
        )  # fmt: skip
        self.line: Any = SimpleNamespace(
            entity="orders", route=route, ticket=7, plain_ticket=7 if plain else None, has_to_join=False,
            primarys_error=None, failover=failover, note_sent=lambda: self.asked.append("sent"),
        )  # fmt: skip

    async def acall(self, work: Any) -> Any:
        return work

    def divert(self, payloads: list[bytes], budget: Any) -> str:
        self.asked.append(("divert", len(payloads), budget.total_seconds, self.max_message_bytes))
        return "stored"

    def take_over(self, payloads: list[bytes] | None, error: Any, ticket: int, budget: Any) -> str | None:
        self.asked.append(("take over", payloads and len(payloads), type(error).__name__, ticket))
        return "stored" if self.takes_over else None

    def close(self) -> None:
        self.closed += 1


class Called:
    """A sender with both."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._is_async = isinstance(client, OurAsyncClient)
        self.sender = client.get_queue_sender("orders")
        self.sender.asked, self.sender.answers = [], []
        self.set(Part())

    def set(self, part: Part) -> None:
        self.part = part
        self.sender._part, self.sender._opened_under = part, 7

    def __call__(self, name: str, *arguments: Any, of: Any = None, **named: Any) -> Any:
        """What the call gives or raises. `of`: by default the sender."""
        call = getattr(self.sender if of is None else of, name)

        async def run() -> Any:
            found = call(*arguments, **named)
            return await found if inspect.isawaitable(found) else found

        try:
            return asyncio.run(run()) if self._is_async else call(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - what the test looks at
            return error

    def answering(self, *answers: Any) -> None:
        self.sender.answers[:] = answers

    @property
    def primary(self) -> list[tuple[Any, ...]]:
        """What the primary was asked since the last look."""
        found, self.sender.asked = self.sender.asked, []
        return found

    @property
    def failover(self) -> list[Any]:
        found, self.part.asked = self.part.asked, []
        return found


@pytest.fixture(params=[OurClient, OurAsyncClient])
def called(request: pytest.FixtureRequest) -> Iterator[Called]:
    client = request.param.from_connection_string(KEY.format("a"), secondary=KEY.format("b"), verify="off")
    yield Called(client)


def known_limits(called: Called, size: int = 1000) -> None:
    called.sender._max_message_size_on_link = size


def test_a_plain_send_is_the_sdk_s_with_time_kept_for_the_backlog(called: Called) -> None:
    assert called("send_messages", MESSAGE, timeout=SECONDS, session="x") is None
    assert called.primary == [("send", MESSAGE, {"session": "x"}, FOR_PRIMARY, True)]
    assert (called.failover, called.part.line.failover.entities.seen) == ([], True)
    called("send_messages", MESSAGE)
    assert called.primary == [("send", MESSAGE, {}, 45.0, True)]
    assert offering.get() is False
    called.answering(ValueError("timeout"))
    assert str(called("send_messages", MESSAGE, timeout=0)) == "timeout"
    assert called.primary == [("send", MESSAGE, {}, 0.0, False)], "the SDK says what is wrong with it"


@pytest.mark.parametrize("taken", [True, False])
def test_after_a_failure_the_failover_decides_on_what_is_left_of_the_time(called: Called, taken: bool) -> None:
    called.part.takes_over = taken
    called.answering(BUSY)
    assert called("send_messages", MESSAGE, timeout=SECONDS) is None
    first = ("send", MESSAGE, {}, FOR_PRIMARY, True)
    assert called.primary == ([first] if taken else [first, first])
    assert called.failover == [("take over", 1, "ServerBusyError", 7)] + ([] if taken else ["sent"])
    called.answering(ValueError("no message"))
    assert str(called("send_messages", MESSAGE)) == "no message"
    assert called.failover == []


def test_what_is_no_plain_send_goes_by_the_steps_of_the_failover(called: Called) -> None:
    called.set(Part(plain=False))
    assert called("send_messages", MESSAGE, timeout=SECONDS, session="x") is None
    assert called.primary == [("send", MESSAGE, {"session": "x"}, FOR_PRIMARY, True)]
    assert called.failover == ["sent"]
    called.set(Part(Route.BACKLOG, plain=False))
    known_limits(called)
    assert called("send_messages", iter([MESSAGE, MESSAGE]), timeout=SECONDS) is None
    assert (called.primary, called.failover) == ([], [("divert", 2, SECONDS, 1000)])
    called.sender._shutdown.set()
    assert "shutdown" in str(called("send_messages", MESSAGE))
    assert called.failover == [], "a closed sender diverts nothing"


def test_a_list_opens_the_link_in_the_time_of_the_call_and_only_where_there_is_none(called: Called) -> None:
    called.answering(lambda: time.sleep(0.01))
    assert called("send_messages", iter([MESSAGE]), timeout=SECONDS) is None
    opened = FOR_PRIMARY if lacks(Feature.TIME_LIMITS) is None else None
    assert called.primary == [("open", opened, True), ("send", [MESSAGE], {}, FOR_PRIMARY, True)]
    known_limits(called)
    for several in ([MESSAGE], iter([MESSAGE])):
        called("send_messages", several, timeout=SECONDS)
        assert called.primary == [("send", [MESSAGE], {}, FOR_PRIMARY, True)]
    called.sender._max_message_size_on_link = 0
    called.set(Part(plain=False))
    called("send_messages", MESSAGE, timeout=SECONDS)
    assert called.primary == [("send", MESSAGE, {}, FOR_PRIMARY, True)], "one message opens it by itself"


def test_scheduling_gives_the_sdk_s_numbers_and_those_that_cannot_be_cancelled(called: Called) -> None:
    called.answering([5, 6])
    assert called("schedule_messages", iter([MESSAGE, MESSAGE]), LATER, timeout=SECONDS, x=1) == [5, 6]
    assert called.primary == [("schedule", [MESSAGE, MESSAGE], LATER, {"x": 1}, FOR_PRIMARY, True)]
    called.answering(None)
    called("schedule_messages", MESSAGE, LATER, timeout=-1.0, x=1)
    assert called.primary == [("schedule", MESSAGE, LATER, {"x": 1}, 0.0, False)]
    called.set(Part(Route.BACKLOG))
    assert called("schedule_messages", [MESSAGE, MESSAGE], LATER, timeout=SECONDS) == [0, 0]
    assert called("schedule_messages", [], LATER) == []
    assert (called.primary, called.failover) == ([], [("divert", 2, SECONDS, 0)])
    for numbers in (0, [5, 0]):
        assert isinstance(called("cancel_scheduled_messages", numbers), exceptions.MessageNotFoundError)
    assert called.primary == []


def test_a_cancellation_of_scheduled_messages_has_all_of_its_time(called: Called) -> None:
    assert called("cancel_scheduled_messages", [5], timeout=SECONDS, x=1) is None
    assert called.primary == [("cancel", [5], {"x": 1}, SECONDS, True)]
    called("cancel_scheduled_messages", 5)
    called("cancel_scheduled_messages", 5, timeout=0)
    assert called.primary == [("cancel", 5, {}, 60.0, True), ("cancel", 5, {}, 0.0, False)]
    called.set(Part(Route.BACKLOG))
    called.answering(LOST)
    assert called("cancel_scheduled_messages", 5) is LOST
    assert called.failover == [], "nothing of it counts"


def test_a_batch_is_the_sdk_s_or_of_the_size_that_every_namespace_takes(called: Called) -> None:
    called.answering(None, "theirs")
    assert called("create_message_batch", 500) == "theirs"
    assert [one[0] for one in called.primary] == ["open", "batch"]
    assert called.failover == ["sent"]
    known_limits(called)
    called.answering("theirs")
    assert called("create_message_batch", 500) == "theirs"
    assert (called.primary, called.failover) == ([("batch", 500, None, False)], [])
    called.sender._max_message_size_on_link = 0
    called.set(Part(Route.BACKLOG))
    assert called("create_message_batch", 500).max_size_in_bytes == 500
    assert called("create_message_batch").max_size_in_bytes == 262_144
    assert isinstance(called("create_message_batch", 262_145), ValueError)
    assert (called.primary, called.failover) == ([], [])
    called.sender._shutdown.set()
    assert "shutdown" in str(called("create_message_batch"))


@pytest.mark.parametrize("plain", [True, False])
def test_a_batch_that_the_sdk_makes_while_it_sends_is_no_call_of_the_application(called: Called, plain: bool) -> None:
    called.set(Part(plain=plain))
    called.answering(lambda: called.sender.create_message_batch(5))
    assert called("send_messages", MESSAGE) is None
    assert [one[0] for one in called.primary] == ["send", "batch"]
    assert called.failover == ([] if plain else ["sent"])


def test_entering_opens_the_link_and_a_failure_is_judged_without_a_message(called: Called) -> None:
    entering = "__aenter__" if isinstance(called.sender, OurAsyncSender) else "__enter__"
    assert called(entering) is called.sender
    assert [one[0] for one in called.primary] == ["open"]
    called.answering(LOST)
    called.part.takes_over = True
    called(entering)
    assert called.failover == ["sent", ("take over", None, "ConnectionLostError", 7)]
    called.sender._shutdown.set()
    called.part.takes_over = False
    assert "shutdown" in str(called(entering))
    assert [one[0] for one in called.primary] == ["open"]


@pytest.mark.parametrize(
    ("answer", "stays"),
    [(None, True), (BUSY, True), (ValueError("no message"), True), (LOST, False), (OSError("gone"), False)],
)
def test_a_link_is_used_again_unless_it_may_be_broken(called: Called, answer: Any, stays: bool) -> None:
    link = called.sender._handler = Link()
    called.sender._running = True
    called.answering(answer)
    called.part.takes_over = True
    raised = called("cancel_scheduled_messages", 5)
    assert (called.sender._handler is link, called.sender._running) == (stays, stays)
    assert stays or link.closed.wait(60)
    if isinstance(answer, OSError):
        assert isinstance(raised, exceptions.ServiceBusConnectionError)
        assert (str(raised), raised.__cause__) == ("The link was lost: gone", answer)


def test_a_link_of_before_the_last_outage_is_not_used_again(called: Called) -> None:
    link = called.sender._handler = Link()
    called.part.line.ticket = 8
    called("send_messages", MESSAGE)
    assert called.sender._handler is None
    assert link.closed.wait(60)
    newer = called.sender._handler = Link()
    called("send_messages", MESSAGE)
    assert called.sender._handler is newer


@pytest.mark.parametrize("answer", [LOST, OSError("gone"), None])
def test_what_a_close_breaks_off_says_nothing_of_the_primary(called: Called, answer: Any) -> None:
    """And the link that the SDK opens meanwhile is closed."""
    link = Link()

    def closed_meanwhile() -> Any:
        called.sender._shutdown.set()
        called.sender._handler = link
        return answer

    called.answering(closed_meanwhile)
    raised = called("send_messages", MESSAGE)
    assert called.failover == []
    assert called.sender._handler is None
    assert link.closed.wait(60)
    assert "shutdown" in str(raised) if answer else raised is None


def test_closing_refuses_calls_closes_the_link_and_leaves_the_failover(called: Called) -> None:
    link = called.sender._handler = Link()
    called("close")
    assert (called.part.closed, called.sender._handler) == (1, None)
    assert link.closed.wait(60)
    called("close")
    assert "shutdown" in str(called("__aenter__" if isinstance(called.sender, OurAsyncSender) else "__enter__"))


def test_a_client_closes_its_senders_first_and_is_open_again_once_it_is_entered(called: Called) -> None:
    failover, closed = called.client._failover, []
    vars(called.part)["close"] = lambda: closed.append(failover.closed)
    entering = "__aenter__" if isinstance(called.sender, OurAsyncSender) else "__enter__"
    called("close", of=called.client)
    assert (closed, failover.closed) == ([False], True)
    assert called(entering, of=called.client) is called.client
    assert not failover.closed
    called("close", of=called.client)
    assert called.client.get_queue_sender("orders") is not called.sender
    assert not failover.closed


def test_a_sender_of_a_child_process_leaves_the_parent_s_link_and_waits_for_no_thread_of_it() -> None:
    sender = Called(OurClient.from_connection_string(KEY.format("a"), secondary=KEY.format("b"), verify="off")).sender
    link = sender._handler = Link()

    def fork(over: threading.Event) -> None:
        assert sender in sync._senders
        sender._after_fork()
        assert (sender._handler, sync._OF_PARENTS.pop(), link.closed.is_set()) == (None, link, False)
        assert sender._turn.acquire(blocking=False)

    while_another_call_holds(sender, fork)


# Calls that overlap.


def while_another_call_holds(sender: OurSender, work: Callable[[threading.Event], None]) -> None:
    holds, over = threading.Event(), threading.Event()

    turn = sender._turn

    def hold() -> None:
        with turn:
            holds.set()
            over.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    holds.wait()
    try:
        work(over)
    finally:
        over.set()
        holding.join()


@pytest.fixture
def shared() -> Called:
    return Called(OurClient.from_connection_string(KEY.format("a"), secondary=KEY.format("b"), verify="off"))


def test_a_thread_that_waits_for_its_turn_has_what_is_left_of_its_time(shared: Called) -> None:
    def work(over: threading.Event) -> None:
        threading.Timer(0.1, over.set).start()
        shared("send_messages", MESSAGE, timeout=SECONDS)

    while_another_call_holds(shared.sender, work)
    assert shared.primary == [("send", MESSAGE, {}, FOR_PRIMARY, True)]
    assert shared.failover == ["sent"]
    while_another_call_holds(shared.sender, lambda over: called_late(shared, "send_messages", MESSAGE))
    while_another_call_holds(shared.sender, lambda over: called_late(shared, "cancel_scheduled_messages", 5))
    assert (shared.primary, shared.failover) == ([], [])
    assert shared.sender._turn.acquire(blocking=False), "nobody has it any more"


def called_late(shared: Called, name: str, what: Any) -> None:
    assert isinstance(shared(name, what, timeout=0.1), LateTurnError)


def test_a_thread_that_waits_is_diverted_as_soon_as_the_entity_is(shared: Called) -> None:
    def work(over: threading.Event) -> None:
        threading.Timer(0.1, lambda: vars(shared.part.line).update(route=Route.BACKLOG)).start()
        shared("send_messages", MESSAGE, timeout=SECONDS)

    while_another_call_holds(shared.sender, work)
    assert (shared.primary, shared.failover) == ([], [("divert", 1, SECONDS, 0)])
    shared.set(Part())

    def both(over: threading.Event) -> None:
        def leave() -> None:
            shared.part.line.route = Route.BACKLOG
            over.set()

        threading.Timer(0.1, leave).start()
        shared("send_messages", MESSAGE, timeout=SECONDS)

    while_another_call_holds(shared.sender, both)
    assert (shared.primary, len(shared.failover)) == ([], 1)
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(shared.sender._turn.acquire(blocking=False)))
    other.start()
    other.join()
    assert taken == [True], "the turn that came too late was given back"


async def test_a_task_that_waits_for_its_turn_has_what_is_left_of_its_time() -> None:
    client = OurAsyncClient.from_connection_string(KEY.format("a"), secondary=KEY.format("b"), verify="off")
    called = Called(client)
    sender = called.sender
    assert sender._turn.take_if_free()
    for name, what, kept in (("send_messages", MESSAGE, FOR_PRIMARY), ("cancel_scheduled_messages", 5, SECONDS)):
        waiting = asyncio.create_task(getattr(sender, name)(what, timeout=SECONDS))
        while not sender._turn._waiting:
            await asyncio.sleep(0)
        sender._turn.release()
        await waiting
        assert [one[-2:] for one in called.primary] == [(kept, True)]
        assert sender._turn.take_if_free(), "it was given back"
    leaving = asyncio.create_task(sender.send_messages(MESSAGE, timeout=SECONDS))
    await asyncio.sleep(0)
    called.part.line.route = Route.BACKLOG
    await leaving
    assert (called.primary, called.failover) == ([], ["sent", ("divert", 1, SECONDS, 0)])
    called.part.line.route = Route.PRIMARY
    with pytest.raises(LateTurnError):
        await sender.send_messages(MESSAGE, timeout=0.1)
    with pytest.raises(LateTurnError):
        await sender.cancel_scheduled_messages(5, timeout=0.1)
    assert called.primary == []
