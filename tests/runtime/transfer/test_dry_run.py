"""What a dry run asks of destinations, and what it does without the right to ask."""

import asyncio

import pytest

from sbpair.core.entities import QueueFacts, QueueSettings
from sbpair.core.errors import Category, ConnectionLostError, EntityNotFoundError, ServerBusyError, UnauthorizedError
from sbpair.core.message import Disposition, Received
from sbpair.core.rewrite import compose
from sbpair.core.transfer.custody import PURGED
from sbpair.core.transfer.report import FILTERED_OUT, UNDELIVERABLE
from sbpair.core.transfer.state import Finish, Forward, Leave, Verdict, key_of
from sbpair.core.transfer.verdict import LARGE_BYTES, WAITS_IN_SESSION, DestinationSeen, refused_by
from sbpair.runtime.transfer.dry_run import NOT_FOUND_REASON, OVER_THE_LIMIT, DryRun, ask_destinations
from sbpair.runtime.transfer.reading import Source
from tests.fakes import FakeClock, FakeNamespace, virtual_time


@virtual_time
async def test_a_destination_that_only_a_sender_may_ask_tells_its_limit() -> None:
    namespace = FakeNamespace("contoso", FakeClock())
    namespace.add_queue("orders")
    messaging, stop = namespace.messaging(), asyncio.Event()
    paths = ["orders", "gone"]
    orders, gone = await ask_destinations(paths, messaging=messaging, admin=namespace.admin(), stop=stop)
    assert (orders.path, orders.limit_bytes, orders.asked) == ("orders", namespace.max_message_bytes, True)
    assert orders.queue is not None
    assert isinstance(gone.error, EntityNotFoundError)
    namespace.fail("admin", UnauthorizedError("needs Manage"))
    for admin in (namespace.admin(), None):
        orders, gone = await ask_destinations(paths, messaging=messaging, admin=admin, stop=stop)
        assert orders == DestinationSeen("orders", namespace.max_message_bytes)
        assert (gone.path, type(gone.error)) == ("gone", EntityNotFoundError)
    stop.set()
    assert await ask_destinations(paths, messaging=messaging, admin=None, stop=stop) == []


def message(number: int, size_bytes: int = 10, queue: str = "q") -> Received:
    return Received(bytes(size_bytes), number, queue, message_id=str(number))


def forward(number: int, destination: str, session: str | None = None, size_bytes: int = 10) -> Forward:
    return Forward(
        LARGE if size_bytes > LARGE_BYTES else bytes(size_bytes),
        destination,
        session,
        fault=f"fault {number}" if number % 2 else None,
    )


def dry_run(verdicts: dict[int, Verdict], **options: object) -> DryRun:
    return DryRun(lambda received: verdicts[received.sequence_number], **options)  # type: ignore[arg-type]


SEEN = DestinationSeen("Orders", 100, queue=QueueFacts("orders", QueueSettings()), asked=True)


def test_every_message_is_told_by_what_would_become_of_it() -> None:
    verdicts: dict[int, Verdict] = {
        1: forward(1, "Orders"),
        2: forward(2, "orders"),
        3: forward(3, "orders"),
        4: Finish(Disposition.DEAD_LETTER, "dead", "reason"),
        5: Finish(Disposition.COMPLETE, PURGED),
        6: Finish(Disposition.COMPLETE, PURGED),
        7: Finish(Disposition.COMPLETE, "ping"),
        8: Leave("because"),
        9: Leave(FILTERED_OUT),
        10: forward(10, "orders"),
    }
    run = dry_run(verdicts, most=1, sent_before={key_of(message(10))})
    for number in verdicts:
        run.add(message(number))
    run.add(message(4, queue="q/$deadletterqueue"))
    assert run.destinations == {"Orders"}
    report = run.report([SEEN], seconds=1.0, stopped=False)
    assert (report.forwarded, report.forwarded_bytes, report.per_destination) == (1, 10, (("Orders", 1),))
    assert (report.purged, report.pings, report.already_forwarded, report.filtered_out) == (1, 1, 1, 1)
    assert (report.dead_lettered, report.dead_letter_reasons) == (1, (("reason", 1),))
    assert {left.reason: left.count for left in report.left} == {
        "because": 1,
        OVER_THE_LIMIT: 3,
        f"{UNDELIVERABLE}reason": 1,
    }
    assert report.original_faults == (("fault 1", 1),)
    assert (report.ended_by, report.dry_run, report.unchecked) == ("empty", True, ())
    assert run.report([], seconds=1.0, stopped=True).ended_by == "stop"
    assert run.report([DestinationSeen("Orders", 5)], seconds=1.0, stopped=False).unchecked == ("Orders",)


def test_a_destination_is_one_whatever_its_spelling() -> None:
    run = dry_run({1: forward(1, "Orders"), 2: forward(2, "orders")})
    for number in (1, 2):
        run.add(message(number))
    assert (run.destinations, run.forwarded) == ({"Orders"}, 2)
    assert run.report([SEEN], seconds=1.0, stopped=False).per_destination == (("Orders", 2),)


GONE = DestinationSeen("orders", error=EntityNotFoundError("gone"))
BUSY = DestinationSeen("orders", error=ServerBusyError("busy"))
LARGE = compose(body=bytes(LARGE_BYTES), message_id="large", session_id="s")
SMALL = DestinationSeen("orders", len(LARGE) - 1, queue=QueueFacts("orders", QueueSettings()), asked=True)
EXACT = DestinationSeen("orders", len(LARGE), queue=QueueFacts("orders", QueueSettings()), asked=True)


@pytest.mark.parametrize(
    ("seen", "options", "queue", "going", "left", "dead"),
    [
        (GONE, {}, "q", 0, {"destination unavailable: orders (entity-not-found)": 4}, {}),
        (GONE, {"dead_letter_missing": True}, "q", 0, {}, {NOT_FOUND_REASON: 4}),
        (GONE, {"dead_letter_missing": True}, "q/$deadletterqueue", 0, {UNDELIVERABLE + NOT_FOUND_REASON: 4}, {}),
        (BUSY, {"dead_letter_missing": True}, "q", 0, {"destination unavailable: orders (server-busy)": 4}, {}),
        (SMALL, {}, "q", 1, {refused_by("orders", Category.TOO_LARGE): 1, WAITS_IN_SESSION: 2}, {}),
        (EXACT, {}, "q", 4, {}, {}),
        (SMALL, {"dead_letter_refused": True}, "q", 3, {}, {"MessageTooLarge": 1}),
        (SMALL, {}, "q/$deadletterqueue", 3, {UNDELIVERABLE + "MessageTooLarge": 1}, {}),
    ],
)
def test_what_a_destination_does_not_take_is_left_or_dead_lettered(
    seen: DestinationSeen, options: dict[str, bool], queue: str, going: int, left: dict[str, int], dead: dict[str, int]
) -> None:
    """The second message of a session is too large: two wait behind it."""
    sizes = {1: 10, 2: len(LARGE), 3: 10, 4: 10}
    run = dry_run({n: forward(n, "orders", "s", size) for n, size in sizes.items()}, **options)
    for number, size in sizes.items():
        run.add(message(number, size, queue))
    report = run.report([seen], seconds=1.0, stopped=False)
    assert (report.forwarded, dict(report.dead_letter_reasons)) == (going, dead)
    assert {one.reason: one.count for one in report.left} == left
    assert report.forwarded_bytes == sum(sizes.values()) * going // 4
    assert sum(left.values()) + sum(dead.values()) + going == 4


@pytest.mark.parametrize(("over", "session", "without"), [(0, "s", False), (1, "s", True), (1, None, False)])
def test_a_message_that_may_be_too_large_counts_without_the_key_that_a_drain_adds(
    over: int, session: str | None, without: bool
) -> None:
    def large(body: int, key: str | None = "s") -> bytes:
        return compose(body=bytes(body), message_id="large", session_id="s", partition_key=key)

    body = 2 * LARGE_BYTES - len(large(LARGE_BYTES)) + over
    run = dry_run({1: Forward(large(body), "orders", session)})
    run.add(message(1))
    counted = run.report([], seconds=1.0, stopped=False).forwarded_bytes
    assert counted == (len(large(body, None)) if without else LARGE_BYTES + over)


@virtual_time
async def test_a_namespace_that_nobody_answers_for_is_waited_for_once() -> None:
    for error, failed, asked in (
        (ConnectionLostError("gone"), [True, True, True], 1),
        (ServerBusyError("busy"), [True, True, True], 3),
        (EntityNotFoundError("none"), [True, False, False], 3),
    ):
        clock = FakeClock()
        namespace = FakeNamespace("contoso", clock)
        paths = ["a", "b", "c"]
        for path in paths:
            namespace.add_queue(path)
        namespace.fail("peek", error, entity="a" if failed[1] is False else "*")
        sources = [Source(path, namespace.messaging().receiver(path)) for path in paths]
        run = dry_run({})
        await run.browse(sources, clock=clock, stop=asyncio.Event(), patience_seconds=30.0)
        assert [source.failed is not None for source in sources] == failed
        assert sum(1 for (operation, _) in namespace.calls if operation == "peek") == asked
        assert namespace.closed_receivers == paths
        assert clock.monotonic() <= 60.0, "the others are asked once"
    stop = asyncio.Event()
    stop.set()
    namespace.calls.clear()
    await run.browse(sources, clock=clock, stop=stop, patience_seconds=30.0)
    assert not namespace.calls
