"""The parts of the drop-in clients one by one: steps of a call, turns, lent credentials, addresses, what is logged."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage, ServiceBusSender, exceptions

from sbpair.clients import shared
from sbpair.clients.aio import _Turn
from sbpair.clients.failover import (
    PROCESS,
    BackgroundLoop,
    ClientEntity,
    EventCallback,
    EventLogger,
    Failover,
    SenderFailover,
    _Both,
    _log_failure,
)
from sbpair.clients.shared import (
    AGAIN,
    DIVERTED,
    Ask,
    BorrowedCredential,
    LateTurnError,
    PrimaryAttempt,
    borrowed,
    steps,
)
from sbpair.core.access import AuthMethod
from sbpair.core.errors import OperationTimeoutError, ServiceError
from sbpair.core.events import BacklogCounted
from sbpair.core.failover.machine import Route
from sbpair.events import FailedBack, FailedOver, SideFaulted


class Part:
    """A sender's part in the failover, as the steps of a call see it."""

    def __init__(self, *, route: Route = Route.PRIMARY, unverified: bool = False, join: bool = False) -> None:
        self.line: Any = SimpleNamespace(
            entity="orders",
            route=route,
            has_to_join=join,
            ticket=5,
            primarys_error=None,
            sent=0,
            failover=SimpleNamespace(unverified=unverified, holding=False, required=lambda: "required"),
        )
        self.line.note_sent = self.note_sent

    def note_sent(self) -> None:
        self.line.sent += 1

    def ready(self) -> Any:
        return "ready"

    def holds(self, payloads: Any) -> Any:
        return "holds", payloads

    def divert(self, payloads: Any, budget: Any) -> Any:
        return "divert", payloads

    def take_over(self, payloads: Any, error: Any, ticket: int, budget: Any) -> Any:
        return "take over", payloads, error, ticket


def run(part: Part, *answers: Any, timeout: float | None = 60.0, payloads: Any = lambda: [b"m"], **more: Any) -> Any:
    """What a call asks, one after another, and what came of it, if these are the answers."""
    work, asked, left = steps(part, timeout, payloads, **more), [], list(answers)  # type: ignore[arg-type]
    try:
        step = next(work)
        while True:
            asked.append("offer" if isinstance(step, PrimaryAttempt) else step.work)
            if isinstance(step, PrimaryAttempt):
                assert 0 < step.seconds <= (timeout or 60.0)
            answer = left.pop(0)
            step = work.throw(answer) if isinstance(answer, Exception) else work.send(answer)
    except StopIteration as done:
        return asked, done.value
    except Exception as error:  # noqa: BLE001 - what the test looks at
        return asked, error


REFUSED = exceptions.ServiceBusServerBusyError(message="busy")


def test_a_call_asks_the_primary_and_about_its_failure_the_failover() -> None:
    part = Part()
    assert run(part, "sent") == (["offer"], "sent")
    assert part.line.sent == 1
    assert run(part, AGAIN, "sent") == (["offer", "offer"], "sent")
    assert part.line.sent == 2, "what was not offered says nothing of the primary"
    asked, ended = run(part, REFUSED, None, "sent")
    assert ([one if isinstance(one, str) else one[0] for one in asked], ended) == (
        ["offer", "take over", "offer"],
        "sent",
    )
    assert asked[1][1::2] == ([b"m"], 5)
    asked, ended = run(part, REFUSED, object())
    assert (len(asked), ended) == (2, DIVERTED)
    assert run(part, REFUSED, object(), payloads=None)[0][1][1] is None
    assert part.line.sent == 3


def test_what_was_asked_already_is_not_asked_again() -> None:
    part = Part()
    asked, ended = run(part, object(), failed=REFUSED, ticket=3, started=time.monotonic())
    assert ([asked[0][0], asked[0][3]], ended) == (["take over", 3], DIVERTED)
    asked, ended = run(part, None, "sent", failed=REFUSED, ticket=3)
    assert (asked[1], ended) == ("offer", "sent")


def test_a_call_joins_and_verifies_before_it_offers_anything() -> None:
    assert run(Part(unverified=True, join=True), None, None, "sent") == (["required", "ready", "offer"], "sent")


def test_messages_are_diverted_where_the_route_or_a_held_session_says_so() -> None:
    away = Part(route=Route.BACKLOG)
    assert run(away, object()) == ([("divert", [b"m"])], DIVERTED)
    assert run(away, payloads=list) == ([], DIVERTED), "no messages are nothing to divert"
    assert run(away, payloads=None) == ([], DIVERTED)
    holding = Part()
    holding.line.failover.holding = True
    assert run(holding, True, object()) == ([("holds", [b"m"]), ("divert", [b"m"])], DIVERTED)
    assert run(holding, False, "sent") == ([("holds", [b"m"]), "offer"], "sent")
    assert run(holding, "sent", payloads=None) == (["offer"], "sent")


def test_the_message_s_own_fault_and_a_turn_that_came_too_late_are_no_failure_of_the_primary() -> None:
    late, large = LateTurnError(), exceptions.MessageSizeExceededError(message="large")
    assert run(Part(), late) == (["offer"], late)
    assert run(Part(), large) == (["offer"], large)
    assert isinstance(run(Part(), ValueError("no message"))[1], ValueError)


def test_a_refusal_of_the_failover_is_raised_as_the_sdk_s_error() -> None:
    refusal = OperationTimeoutError("no time")
    asked, ended = run(Part(), REFUSED, refusal)
    assert (len(asked), type(ended), ended.__notes__) == (2, type(REFUSED), ["no time"])
    assert ended.__cause__ is refusal
    away = Part(route=Route.BACKLOG)
    away.line.primarys_error = REFUSED
    assert type(run(away, refusal)[1]) is type(REFUSED)
    away.line.primarys_error = None
    assert type(run(away, refusal)[1]) is exceptions.OperationTimeoutError

    class Same(Part):
        def take_over(self, payloads: Any, error: ServiceError, ticket: int, budget: Any) -> Any:
            self.failure = error
            return "take over"

    part = Same()
    work = steps(part, None, None)  # type: ignore[arg-type]
    next(work)
    assert isinstance(work.throw(REFUSED), Ask)
    with pytest.raises(exceptions.ServiceBusServerBusyError) as raised:
        work.throw(part.failure)
    assert raised.value is REFUSED, "its own refusal is the SDK's own error"


def test_which_messages_the_sdk_may_have_as_they_are() -> None:
    message, unknown = ServiceBusMessage("m"), SimpleNamespace(_max_message_size_on_link=0)
    known = SimpleNamespace(_max_message_size_on_link=1000)
    several: Iterator[ServiceBusMessage] = iter([message])
    assert [shared.is_simple(unknown, one) for one in (message, [message], several)] == [True, False, False]
    assert [shared.is_simple(known, one) for one in (message, [message], several)] == [True, True, False]
    assert [shared.makes_batch(one) for one in (message, [message], {}, "text")] == [False, True, False, True]
    assert (shared.reusable(several), shared.reusable(message)) == ([message], message)
    assert [shared.is_wrong(timeout) for timeout in (None, 0, -1.0, 0.1)] == [False, True, True, False]
    for numbers in (0, [5, 0]):
        with pytest.raises(exceptions.MessageNotFoundError):
            shared.refuse_diverted(numbers)
    shared.refuse_diverted([5])
    shared.refuse_diverted(5)


# Turns.


async def test_turns_are_handed_on_in_the_order_in_which_they_were_asked_for() -> None:
    turn, order = _Turn(), list[int]()
    assert turn.take_if_free()
    assert not turn.take_if_free()
    until = time.monotonic() + 600

    async def call(number: int, gone: bool = False) -> bool:
        taken = await turn.take(until, lambda: gone)
        order.append(number)
        return taken

    waiting = [asyncio.create_task(call(number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    turn.release()
    assert await waiting[0]
    await asyncio.sleep(0)
    assert (order, turn.take_if_free(), waiting[2].done()) == ([0], False, False)
    turn.release()
    assert await waiting[2]
    assert not turn.take_if_free(), "it is the last one's until that gives it back"
    turn.release()
    assert (order, turn.take_if_free()) == ([0, 2], True)


async def test_a_turn_that_nobody_needs_any_more_goes_to_the_next() -> None:
    turn = _Turn()
    assert turn.take_if_free()
    async with asyncio.timeout(60):
        leaving = asyncio.create_task(turn.take(time.monotonic() + 600, lambda: True))
        staying = asyncio.create_task(turn.take(time.monotonic() + 600, lambda: False))
        await asyncio.sleep(0)
        turn.release()
        assert (await leaving, await staying) == (False, True)
        with pytest.raises(LateTurnError):
            await turn.take(time.monotonic(), lambda: False)
        late = asyncio.create_task(turn.take(time.monotonic() + 0.01, lambda: False))
        with pytest.raises(LateTurnError):
            await late
        turn.release()
        assert turn.take_if_free()


def test_a_turn_of_an_event_loop_that_has_ended_is_free() -> None:
    turn = _Turn()

    async def take() -> bool:
        return turn.take_if_free()

    assert [asyncio.run(take()) for _ in range(2)] == [True, True]


# Credentials.


class Tokens:
    """A synchronous credential."""

    def __init__(self, lifetime_seconds: float) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.asked: list[tuple[tuple[str, ...], dict[str, Any], int]] = []

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.asked.append((scopes, options, threading.get_ident()))
        return AccessToken("token", int(time.time() + self.lifetime_seconds))


async def test_a_lent_credential_is_asked_once_for_each_scope_until_its_token_is_about_to_expire() -> None:
    tokens = Tokens(3600)
    lent = borrowed(tokens)
    assert isinstance(lent, BorrowedCredential)
    for scope in ("a", "a", "b"):
        await lent.get_token(scope, tenant_id="t")
    assert [one[:2] for one in tokens.asked] == [(("a",), {"tenant_id": "t"}), (("b",), {"tenant_id": "t"})]
    assert tokens.asked[0][2] != threading.get_ident(), "it may take long"
    brief = Tokens(shared.REFRESH_BEFORE_EXPIRY_SECONDS - 5)
    again = borrowed(brief)
    for _ in range(2):
        await again.get_token("a")
    assert len(brief.asked) == 2
    await again.close()


async def test_signatures_are_computed_where_they_are_wanted_each_time() -> None:
    class Signature(Tokens):
        token_type = b"servicebus.windows.net:sastoken"

    signature = Signature(3600)
    lent = borrowed(signature)
    assert lent.token_type == Signature.token_type
    for _ in range(2):
        await lent.get_token("a")
    assert [one[2] for one in signature.asked] == [threading.get_ident()] * 2
    assert not hasattr(borrowed(Tokens(1)), "token_type")
    for key in (AzureNamedKeyCredential("n", "k"), AzureSasCredential("s")):
        assert borrowed(key) is key


async def test_an_asynchronous_credential_is_asked_on_the_loop_that_was_seen_last() -> None:
    class Asynchronous:
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            self.loop = asyncio.get_running_loop()
            return AccessToken("token", int(time.time() + 3600))

    own = Asynchronous()
    lent = borrowed(own)
    with pytest.raises(RuntimeError, match="no new one was seen"):
        await lent.get_token("a")
    lent.loop = asyncio.get_running_loop()
    await asyncio.to_thread(asyncio.run, lent.get_token("a"))
    assert own.loop is asyncio.get_running_loop()
    ended = asyncio.new_event_loop()
    ended.close()
    lent.loop = ended
    with pytest.raises(RuntimeError, match="has ended"):
        await lent.get_token("b")


KEY = "Endpoint=sb://Fabrikam.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a2V5"


def test_how_the_secondary_is_reached() -> None:
    identity, key, own = Tokens(1), AzureNamedKeyCredential("n", "k"), Tokens(1)
    access, credential = shared._secondary(KEY.replace("Endpoint", "ENDPOINT"), key, None)
    assert (access.label, access.auth, credential) == ("fabrikam", AuthMethod.CONNECTION_STRING, None)
    for named in ("sb://fabrikam.servicebus.windows.net/", "fabrikam.servicebus.windows.net"):
        access, credential = shared._secondary(named, identity, None)
        assert (access.label, access.host) == ("fabrikam", "fabrikam.servicebus.windows.net")
        assert credential._inner is identity
    _, credential = shared._secondary("fabrikam.servicebus.windows.net", key, own)
    assert credential._inner is own
    signature = SimpleNamespace(get_token=lambda: None, token_type=b"sas")
    for foreign in (key, signature):
        with pytest.raises(ValueError, match="which the secondary does not know"):
            shared._secondary("fabrikam.servicebus.windows.net", foreign, None)


def test_where_a_client_connects_to() -> None:
    assert shared._address("host", {}) == "host"
    assert shared._address("host", {"custom_endpoint_address": None}) == "host"
    assert shared._address("host", {"custom_endpoint_address": "sb://other:5671/path"}) == "other:5671"


# What is told.


def test_what_happens_is_logged_by_its_weight_and_told_to_the_application(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sbpair")
    events = [
        FailedOver(1.0, "orders", "timeout"),
        FailedBack(2.0, "orders", 1.0, 1),
        SideFaulted(3.0, "secondary", "unauthorized", "no"),
        BacklogCounted(4.0, "q", 1),
    ]
    told: list[Any] = []
    both = _Both(EventLogger("pair"), EventCallback(told.append))
    for event in events:
        both.notify(event)
    assert told == events
    assert [one.levelno for one in caplog.records if one.levelno >= logging.WARNING] == [logging.WARNING] * 3
    caplog.clear()

    def breaks(event: Any) -> None:
        raise RuntimeError("broken")

    EventCallback(breaks).notify(events[0])
    EventCallback(None).notify(events[0])
    assert [one.getMessage() for one in caplog.records] == ["The application's on_event failed on FailedOver."]


def test_a_verification_in_the_background_that_fails_is_logged_unless_it_was_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import concurrent.futures

    done, failed, cancelled = (concurrent.futures.Future[None]() for _ in range(3))
    done.set_result(None)
    failed.set_exception(OSError("why"))
    cancelled.cancel()
    for one in (done, failed, cancelled):
        _log_failure(one)
    assert [one.getMessage() for one in caplog.records] == ["What an outage would need could not be verified: why"]


def test_a_background_is_asked_from_other_threads_alone_and_begins_again_after_a_rest() -> None:
    idle: list[bool] = [False]
    background = BackgroundLoop("parts", lambda: idle[0])

    async def from_within() -> tuple[bool, str]:
        work = asyncio.sleep(0)
        try:
            background.submit(work)
        except RuntimeError as error:
            return background.is_here, str(error)
        return background.is_here, ""

    here, said = background.submit(from_within()).result(60)
    assert (here, "must not send" in said, background.is_here) == (True, True, False)
    thread = background._thread
    background.rest()
    assert background._thread is thread, "something goes on there"
    idle[0] = True
    background.rest()
    background.join()
    assert thread is not None
    assert (background._loop, thread.is_alive()) == (None, False)
    assert background.begin(asyncio.sleep(0, "again")).result(60) == "again"
    background.rest()
    background.join()


class Known:
    """What is known of an entity."""

    def __init__(self, **what: Any) -> None:
        self.ticket, self.quiet, self.stale, self.cause = 7, True, False, None
        vars(self).update(what)

    def is_stale(self, now: float) -> bool:
        return self.stale


def a_line(
    known: Known | None, *, unverified: bool = False, holding: bool = False, is_open: bool = False
) -> ClientEntity:
    asked: list[str] = []

    def find(key: str) -> Known | None:
        asked.append(key)
        return known

    failover: Any = SimpleNamespace(
        unverified=unverified, holding=holding, is_open=is_open, entities=SimpleNamespace(known=find, seen=False)
    )
    line = ClientEntity(failover, "Orders")
    assert line.ticket in (0, 7)
    assert set(asked) <= {"orders"}
    return line


def test_a_message_goes_the_plain_way_only_where_there_is_nothing_else_to_do() -> None:
    assert a_line(None).plain_ticket == 0
    assert a_line(Known()).plain_ticket == 7
    assert a_line(Known(), unverified=True).plain_ticket is None
    assert a_line(None, unverified=True).plain_ticket is None
    assert a_line(Known(quiet=False)).plain_ticket is None
    assert a_line(Known(), holding=True).plain_ticket is None
    assert [a_line(known).has_to_join for known in (None, Known(), Known(quiet=False))] == [False, False, True]
    assert not a_line(Known(quiet=False), is_open=True).has_to_join
    assert not a_line(Known(quiet=False, stale=True)).has_to_join
    assert (a_line(Known(stale=True)).ticket, a_line(Known()).ticket, a_line(None).route) == (0, 7, Route.PRIMARY)


def test_the_primary_s_error_is_the_sdk_s_own_however_deep_it_lies() -> None:
    outer = ServiceError("ours")
    outer.__cause__ = OSError("between")
    outer.__cause__.__cause__ = REFUSED
    assert a_line(Known(cause=outer)).primarys_error is REFUSED
    assert a_line(Known(cause=OSError("none"))).primarys_error is None
    assert a_line(None).primarys_error is None


async def test_a_sender_s_part_is_opened_once_for_each_generation_of_its_client() -> None:
    class Sender:
        def __init__(self) -> None:
            self.limits: list[int] = []
            self.given_back = 0

        def note_limit(self, limit: int) -> None:
            self.limits.append(limit)

        def give_queue_back(self) -> None:
            self.given_back += 1

    made: list[Sender] = []

    async def sender(entity: str) -> Sender:
        assert entity == "orders"
        made.append(Sender())
        return made[-1]

    line: Any = SimpleNamespace(entity="orders", generation=0, failover=SimpleNamespace(sender=sender))
    part = SenderFailover(line)
    part.close()
    assert await part.ready() is await part.ready()
    assert (len(made), made[0].limits) == (1, [])
    part.max_message_bytes = 9
    await part.ready()
    assert made[0].limits == [9]
    line.generation = 1
    assert await part.ready() is made[1]
    line.generation = 2
    part.close()
    assert [one.given_back for one in made] == [0, 0], "what an earlier client had is gone with it"
    await part.ready()
    part.close()
    part.close()
    assert [one.given_back for one in made] == [0, 0, 1]


async def test_those_that_open_at_once_wait_for_one_lock_of_their_loop() -> None:
    client: Any = SimpleNamespace(_opening_on=None)

    async def lock() -> asyncio.Lock:
        return Failover._opening(client)

    first = await lock()
    assert await lock() is first
    assert await asyncio.to_thread(asyncio.run, lock()) is not first


def test_the_process_keeps_its_loop_while_a_pairing_is_open_or_an_entity_is_pinged() -> None:
    before = set(PROCESS._pairings)
    try:
        PROCESS._pairings.clear()
        pairing: Any = object()
        PROCESS.opened(pairing)
        assert not PROCESS._is_idle()
        PROCESS._pairings.clear()
        assert PROCESS._is_idle() == all(one.resting for one in list(PROCESS._entities.values()))
    finally:
        PROCESS._pairings.update(before)


def test_a_keyword_is_one_of_the_sdk_s_or_of_a_pairing() -> None:
    options, theirs = shared.split_keywords({"failover_interval": 5.0, "retry_total": 1})
    assert (options, theirs) == ({"failover_interval": 5.0}, {"retry_total": 1})
    with pytest.raises(TypeError, match="retry_totl"):
        shared.split_keywords({"retry_totl": 1})
    with pytest.raises(TypeError):
        shared.check_keywords({"self": 1}, ServiceBusSender, "here")
    shared.check_keywords({"mine": 1}, ServiceBusSender, "here", more=("mine",))

    def call(self: object, named: int, **kwargs: object) -> None:
        """It has :keyword int said: a documentation."""

    shared.check_keywords({"named": 1, "said": 1}, call, "here")
    for other in ("self", "kwargs", "documentation"):
        with pytest.raises(TypeError, match=other):
            shared.check_keywords({other: 1}, call, "here")
