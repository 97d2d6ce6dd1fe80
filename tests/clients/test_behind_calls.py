"""What stands behind the calls of a drop-in client: how it is made, the loop that all clients share, what the process
remembers. Without a namespace: nothing here is asked of one."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential

import sbpair
import sbpair.aio
from sbpair import NamespaceAccess, Pair, SendAvailabilityOptions
from sbpair.clients import failover as failovers
from sbpair.clients.failover import LOOP_NAME, PROCESS, BackgroundLoop, ClientEntity, Process
from sbpair.clients.shared import BorrowedCredential
from sbpair.core.errors import AccessDeniedError
from sbpair.core.failover.machine import State
from sbpair.core.inspection.diagnosis import Diagnosis, Verdict, Verification
from sbpair.core.pairing import Condition
from sbpair.events import Event, FailedBack, FailedOver, PairingNoticed
from tests.clients.conftest import own_threads, state_of, wait_until
from tests.waiting import LIMIT_SECONDS

KEY = "Endpoint=sb://{}.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
HOSTS = "weu.servicebus.windows.net", "neu.servicebus.windows.net"
QUIET = SendAvailabilityOptions(3, 0.0, verify="off")
PAIR = Pair("orders-pair", NamespaceAccess("weu", HOSTS[0]), NamespaceAccess("neu", HOSTS[1]), QUIET)


def a_client(**more: Any) -> sbpair.ServiceBusClient:
    return sbpair.ServiceBusClient.from_connection_string(KEY.format("weu"), **{"pair": PAIR} | more)


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    yield
    wait_until(lambda: own_threads() == [])


class Tokens:
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("token", 2**31)


# How a client is made.


def test_both_namespaces_are_reached_with_what_the_client_was_given() -> None:
    ours, theirs = Tokens(), Tokens()
    context = object()
    client = sbpair.aio.ServiceBusClient(
        HOSTS[0], ours, secondary=f"sb://{HOSTS[1]}/", secondary_credential=theirs, user_agent="shop",
        custom_endpoint_address="sb://proxy:5671", ssl_context=context, backlog_queues=4, verify="off",
    )  # fmt: skip
    failover = client._failover
    primary, secondary = (make() for make in failover._make)
    assert (primary._access, secondary._access) == (
        NamespaceAccess("proxy", HOSTS[0]),
        NamespaceAccess("neu", HOSTS[1]),
    )
    common = {"user_agent": "shop", "ssl_context": context}
    assert secondary._client_options == common
    assert primary._client_options == common | {"custom_endpoint_address": "sb://proxy:5671"}
    assert (primary._credential._inner, secondary._credential._inner) == (ours, theirs)
    assert failover.credentials == [primary._credential, secondary._credential]
    assert (failover.pair.name, failover.pair.options.backlog_queue_count) == ("proxy", 4)
    same = sbpair.aio.ServiceBusClient(HOSTS[0], ours, secondary=HOSTS[1], connection_verify="ca.pem", verify="off")
    assert [one._inner for one in same._failover.credentials] == [ours, ours]
    assert same._failover.pair.secondary.ca_file == "ca.pem"
    primary, secondary = (make() for make in same._failover._make)
    assert (primary._access.ca_file, secondary._access.ca_file) == ("ca.pem", "ca.pem")
    assert primary._client_options == secondary._client_options == {}


def test_a_pair_s_own_options_hold_unless_the_client_says_otherwise() -> None:
    assert a_client()._failover.pair.options == QUIET
    assert a_client(ping_interval=5)._failover.pair.options == replace(QUIET, ping_interval_seconds=5)
    given = SendAvailabilityOptions(7, verify="off")
    assert a_client(options=given, ping_interval=5)._failover.pair.options == replace(given, ping_interval_seconds=5)
    secondary = a_client()._failover._make[1]()
    assert (secondary.host, secondary._credential) == (HOSTS[1], None)


def test_the_primary_of_a_pair_is_the_client_s_in_whatever_case() -> None:
    key = AzureNamedKeyCredential("n", "k")
    for host in (HOSTS[0], HOSTS[0].upper()):
        pair = replace(PAIR, primary=replace(PAIR.primary, host=HOSTS[0].title()))
        assert sbpair.ServiceBusClient(host, key, pair=pair)._failover.pair.primary.host == HOSTS[0]
    with pytest.raises(ValueError, match="this client is for"):
        sbpair.ServiceBusClient(HOSTS[1], key, pair=PAIR)


# A client that forces: that asks nothing of a namespace.


def test_events_come_in_order_and_a_client_may_be_closed_by_what_hears_them() -> None:
    heard: list[Event] = []
    client: sbpair.ServiceBusClient

    def on_event(event: Event) -> None:
        heard.append(event)
        if isinstance(event, FailedBack):
            client.close()

    client = a_client(on_event=on_event)
    began = time.monotonic()
    client.force_failover("orders")
    assert [state_of(client.state()), client.state().primary] == [State.FORCED, Condition.UNKNOWN]
    client.fail_back("orders")
    wait_until(lambda: own_threads() == [])
    assert time.monotonic() - began < failovers.CLOSE_SECONDS, "it waited for itself"
    assert [(type(one), getattr(one, "entity", "")) for one in heard[:2]] == [
        (FailedOver, "orders"),
        (FailedBack, "orders"),
    ]


def test_senders_of_one_entity_share_what_is_known_of_it_in_whatever_case() -> None:
    client, other = a_client(), a_client()
    client.force_failover("Orders")
    lines = [one._failover.line(entity) for one in (client, other) for entity in ("orders", "ORDERS")]
    assert [one.route.value for one in lines] == [one.route.value for one in lines[:1]] * 4
    assert (state_of(other.state(), "Orders"), len(other.state().entities)) == (State.FORCED, 1)
    ticket = lines[0].ticket
    client.fail_back("orders")
    assert {one.ticket for one in lines} != {ticket}
    client.close()
    other.close()


def test_a_client_that_was_not_used_needs_no_loop() -> None:
    """Nor does one that was closed before."""
    started: list[str] = []

    def trace(frame: Any, event: str, argument: object) -> None:
        started.append(threading.current_thread().name)

    client = a_client()
    threading.settrace(trace)
    try:
        client.close()
        client.close()
        with a_client() as other:
            other.get_queue_sender("orders")
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    assert LOOP_NAME not in started


def test_a_client_that_nobody_holds_is_closed_without_being_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    client = a_client()
    client.force_failover("orders")
    busy, over = threading.Event(), threading.Event()

    async def block() -> None:
        busy.set()
        over.wait()

    blocking = PROCESS.background.begin(block())
    busy.wait()
    try:
        del client
        gc.collect()
    finally:
        over.set()
    blocking.result(LIMIT_SECONDS)
    wait_until(lambda: own_threads() == [])
    assert "was not closed within" not in caplog.text


async def test_whoever_asks_last_lends_its_event_loop_to_the_credential() -> None:
    client = sbpair.aio.ServiceBusClient(HOSTS[0], Tokens(), secondary=HOSTS[1], verify="off")
    (credential, _) = client._failover.credentials
    assert isinstance(credential, BorrowedCredential)
    await client._failover.acall(asyncio.sleep(0))
    assert credential.loop is asyncio.get_running_loop()
    credential.loop = None
    options = replace(client._failover.pair.options, verify="warn", verify_interval_seconds=0)
    client._failover.pair = replace(client._failover.pair, options=options)
    client._failover.begin_verifying()
    assert credential.loop is asyncio.get_running_loop()
    await asyncio.to_thread(client._failover.begin_verifying)
    assert credential.loop is asyncio.get_running_loop(), "no loop is no news"
    await client.close()


async def test_a_pairing_is_opened_once_however_many_ask_for_it_at_once() -> None:
    client = a_client()
    failover = client._failover

    async def both() -> list[Any]:
        return await asyncio.gather(*(failover._opened() for _ in range(3)))

    first, *others = await failover.acall(both())
    assert others == [first, first]
    await asyncio.to_thread(client.close)
    again = await failover.acall(both())
    assert again[0] is not first
    await asyncio.to_thread(client.close)


def test_closing_waits_for_its_end_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy_for(seconds: float) -> None:
        """The loop, and at its end what was left on it."""

        async def stay() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                time.sleep(seconds)

        async def begin() -> None:
            kept.append(asyncio.create_task(stay()))

        PROCESS.background.begin(begin()).result(LIMIT_SECONDS)
        busy = threading.Event()
        PROCESS.background._started().call_soon_threadsafe(lambda: (busy.set(), time.sleep(seconds)))
        busy.wait()

    kept: list[object] = []
    client = a_client()
    client.force_failover("orders")
    busy_for(0.1)
    client.close()
    assert (client._failover.is_open, own_threads(), caplog.text.count("was not closed")) == (False, [], 0)
    client = a_client()
    client.force_failover("orders")
    monkeypatch.setattr(failovers, "CLOSE_SECONDS", 0.01)
    busy_for(0.5)
    client.close()
    assert "The pairing orders-pair was not closed within 0.01 s." in caplog.text


def test_queues_are_created_with_the_first_sender_where_nothing_is_verified(caplog: pytest.LogCaptureFixture) -> None:
    class Admin:
        closed = False

        async def list_queues(self, prefix: str) -> Any:
            raise AccessDeniedError("no Manage", hint="Ask for it.")
            yield

        async def close(self) -> None:
            self.closed = True

    admin, told = Admin(), list[Event]()
    client = a_client(create_missing=True, on_event=told.append)
    client._failover._make_admin = lambda: admin  # type: ignore[assignment, return-value]
    client.get_queue_sender("orders")
    wait_until(lambda: told != [])
    (noticed,) = told
    assert isinstance(noticed, PairingNoticed)
    assert noticed.code == "not-created"
    assert noticed.message.startswith("Missing backlog queues could not be created: no Manage")
    assert noticed.message.endswith("Ask for it.")
    client.close()
    assert admin.closed


def test_sessions_are_looked_for_only_while_one_is_held() -> None:
    failover = a_client()._failover
    assert not failover.holding
    for holds in (False, True):
        pairing: Any = SimpleNamespace(holds_sessions=holds)
        failover._pairing = pairing
        assert failover.holding is holds
    failover._pairing = None


async def test_what_let_the_first_call_go_on_is_not_asked_again() -> None:
    """A later verification that finds something warns; it stops no sends."""
    client = a_client(verify="require")
    failover = client._failover
    found = [False, True]
    tried: list[bool] = []

    class Pairing:
        verification: Verification | None = None

        async def verify(self, entities: object) -> Verification:
            tried.append(found[0])
            verdict = Verdict.OK if found.pop(0) else Verdict.ERROR
            self.verification = Verification(0.0, (Diagnosis("backlog", "secondary", verdict, "no queue"),), ())
            return self.verification

    pairing: Any = Pairing()
    failover._pairing = pairing
    assert (failover.unverified, failover.line("orders").plain_ticket) == (True, None)
    with pytest.raises(Exception, match=r"verify='require'\. no queue"):
        await failover.required()
    assert failover.unverified
    await failover.required()
    assert (tried, failover.unverified, failover.line("orders").plain_ticket) == ([False, True], False, 0)
    pairing.verification = Verification(0.0, (Diagnosis("b", "s", Verdict.ERROR, ""),), ())
    await failover.required()
    failover.unverified = True
    pairing.verification = Verification(0.0, (Diagnosis("b", "s", Verdict.OK, ""),), ())
    await failover.required()
    assert tried == [False, True], "what is known need not be asked"
    failover._pairing = None


def test_a_send_that_the_primary_takes_is_told_only_where_somebody_waits_for_it() -> None:
    told: list[str] = []

    def known(name: str, state: State, refusal: object) -> Any:
        return SimpleNamespace(
            state=state, refusal_of_primary=refusal, is_stale=lambda now: False, sent=lambda: told.append(name)
        )

    cases = {
        "well": known("well", State.HEALTHY, None),
        "suspect": known("suspect", State.SUSPECT, None),
        "refused": known("refused", State.HEALTHY, object()),
        "new": None,
    }
    entities: Any = SimpleNamespace(known=cases.get, seen=False)
    failover: Any = SimpleNamespace(entities=entities)
    for name in cases:
        ClientEntity(failover, name).note_sent()
    PROCESS.background.begin(asyncio.sleep(0)).result(LIMIT_SECONDS)
    assert told == ["suspect", "refused"]


@pytest.mark.skipif(not hasattr(os, "kill") or os.name == "nt", reason="there are no signals here")
def test_a_call_that_is_interrupted_ends_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")
    client, ended = a_client(), threading.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        client._failover.call(work())
    assert ended.wait(LIMIT_SECONDS)
    client.close()


@pytest.mark.parametrize("began", [False, True])
def test_an_interruption_before_there_is_anything_to_wait_for_ends_the_work_as_well(began: bool) -> None:
    """It comes after the work was handed to the loop, and before the caller has the future."""
    starting, let_go = threading.Event(), threading.Event()
    seen: list[str] = []

    async def work() -> None:
        seen.append("began")
        starting.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    class Interrupted(BackgroundLoop):
        def submit(self, coroutine: Any) -> Any:
            if not began:
                self._started().call_soon_threadsafe(let_go.wait, LIMIT_SECONDS)
            super().submit(coroutine).add_done_callback(lambda _: seen.append("over"))
            if began:
                assert starting.wait(LIMIT_SECONDS)
            raise KeyboardInterrupt

    background = Interrupted("interrupted", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        background.call(work())
    let_go.set()
    wait_until(lambda: "over" in seen)
    assert seen == (["began", "ended", "over"] if began else ["over"])


# What the clients of a process share.


class Known:
    """An entity of which an outage may be known."""

    def __init__(self, *, stale: bool) -> None:
        self.stale = stale

    def is_stale(self, now: float) -> bool:
        return self.stale


def test_what_is_known_is_shared_by_namespaces_options_and_key() -> None:
    process = Process()
    key = AzureNamedKeyCredential("n", "k")
    first = process.entities(PAIR, key)
    upper = replace(PAIR, name="other", primary=replace(PAIR.primary, host=HOSTS[0].upper()))
    upper = replace(upper, secondary=replace(PAIR.secondary, host=HOSTS[1].upper()))
    assert process.entities(upper, AzureNamedKeyCredential("n", "k")) is first
    label = replace(PAIR, primary=replace(PAIR.primary, label="x"))
    host = replace(PAIR, primary=replace(PAIR.primary, host="x"))
    partner = replace(PAIR, secondary=replace(PAIR.secondary, host="x"))
    options = replace(PAIR, options=replace(QUIET, ping_interval_seconds=7))
    for other in (label, host, partner, options):
        assert process.entities(other, key) is not first
    for credential in (AzureNamedKeyCredential("n", "other"), AzureNamedKeyCredential("m", "k"), Tokens()):
        assert process.entities(PAIR, credential) is not first


async def test_an_outage_is_remembered_with_its_own_pair_until_all_of_it_is_stale() -> None:
    process, key = Process(), AzureNamedKeyCredential("n", "k")
    options = replace(PAIR, options=replace(QUIET, ping_interval_seconds=7))
    first, second = process.entities(PAIR, key), process.entities(options, key)
    closed: list[str] = []

    class Pairing:
        async def close(self) -> None:
            closed.append("closed")
            if len(closed) == 1:
                raise OSError("why")

    pairing: Any = Pairing()
    process.opened(pairing)
    assert not process._is_idle()
    with pytest.raises(OSError, match="why"):
        await process.close(pairing, second)
    assert (process._pairings, process._remembered, process._is_idle()) == (set(), {}, True)
    known: dict[str, Any] = {"a": Known(stale=True), "b": Known(stale=False)}
    first._entities = dict(known)
    second._entities = dict(known)
    await process.close(pairing, second)
    assert list(process._remembered.values()) == [second]
    assert process.entities(PAIR, key) is first
    assert list(process._remembered.values()) == [second], "one of it counts"
    known["b"].stale = True
    assert process.entities(options, key) is second
    assert process._remembered == {}


def is_free(lock: Any) -> bool:
    """For another thread."""
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return found[0]


def test_a_child_process_knows_nothing_and_closes_nothing_of_its_parent_s() -> None:
    process, key = Process(), AzureNamedKeyCredential("n", "k")
    pairing: Any = object()
    process.opened(pairing)
    known = process.entities(PAIR, key)
    process._remembered["key"] = known
    process._lock.acquire()
    process.after_fork()
    assert process._is_idle()
    assert process._remembered == {}
    assert failovers._OF_PARENTS.pop() == ({pairing}, {"key": known}, [known])
    assert is_free(process._lock)
    assert process.entities(PAIR, key) is not known


def test_a_client_of_a_child_process_begins_again() -> None:
    client = a_client(verify="warn")
    failover = client._failover
    line = failover.line("orders")
    failover._verifying = failover.used = True
    pairing: Any = object()
    failover._pairing = pairing
    failover._lock.acquire()
    failover.after_fork()
    assert (failover._verifying, failover.used, failover.is_open, line.generation) == (False, False, False, 1)
    assert is_free(failover._lock)
    client.close()
    assert line.generation == 2


# The loop.


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    made = BackgroundLoop("behind", lambda: True)
    yield made
    wait_until(lambda: thread_of("behind") is None)


def thread_of(name: str) -> threading.Thread | None:
    return next((one for one in threading.enumerate() if one.name == name), None)


def on_the_loop(loop: BackgroundLoop, work: Callable[[], object]) -> object:
    async def call() -> object:
        return work()

    return loop.begin(call()).result(LIMIT_SECONDS)


def test_the_loop_keeps_no_process_alive_and_is_closed_when_it_ends(loop: BackgroundLoop) -> None:
    loop.rest()
    loop.join()
    over = threading.Event()
    begun = loop.begin(asyncio.to_thread(over.wait))
    thread, running = thread_of("behind"), loop._loop
    assert thread is not None
    assert running is not None
    assert thread.daemon
    over.set()
    begun.result(LIMIT_SECONDS)
    wait_until(lambda: not thread.is_alive())
    assert running.is_closed()


def test_the_end_of_the_loop_is_waited_for_but_not_by_itself(loop: BackgroundLoop) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.set()
            time.sleep(0.2)
            ended.set()

    tasks: list[Any] = []
    on_the_loop(loop, lambda: (tasks.append(asyncio.create_task(stay())), loop.join()))
    loop.rest()
    loop.join()
    assert ended.is_set()
    thread_of_its_own: list[BaseException] = []

    def end_and_join() -> None:
        loop._asked = 0
        try:
            loop.rest()
            loop.join()
        except RuntimeError as error:
            thread_of_its_own.append(error)
        loop._asked = 1

    on_the_loop(loop, end_and_join)
    assert thread_of_its_own == []


def test_what_may_not_be_asked_there_is_closed(loop: BackgroundLoop) -> None:
    work = asyncio.sleep(0)

    def submit() -> None:
        with pytest.raises(RuntimeError, match="must not send"):
            loop.submit(work)

    on_the_loop(loop, submit)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


def test_a_child_process_begins_a_loop_of_its_own_and_keeps_the_parent_s(loop: BackgroundLoop) -> None:
    over = threading.Event()
    loop.begin(asyncio.to_thread(over.wait))
    parents = loop._loop
    loop._lock.acquire()
    loop.after_fork()
    assert parents is not None
    assert failovers._LOOPS_OF_PARENTS.pop() is parents
    assert (loop._loop, loop._asked, loop.is_here) == (None, 0, False)
    answers: list[object] = []
    other = threading.Thread(target=lambda: answers.append(on_the_loop(loop, asyncio.get_running_loop)))
    other.start()
    other.join(LIMIT_SECONDS)
    assert len(answers) == 1
    assert answers[0] is not parents
    over.set()
    parents.call_soon_threadsafe(parents.stop)


def test_what_fails_beside_the_calls_is_said(caplog: pytest.LogCaptureFixture) -> None:
    client = a_client(verify="warn")

    def fail() -> Any:
        raise OSError("no secondary")

    client._failover._make = fail, fail
    for _ in range(3):
        client.get_queue_sender("orders")
    PROCESS.background.begin(asyncio.sleep(0)).result(LIMIT_SECONDS)
    wait_until(lambda: own_threads() == [])
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.ERROR, "What an outage would need could not be verified: no secondary")
    ]
    client.close()
