"""`sbpair move`, `sbpair copy` and `sbpair purge` on queues of two embedded namespaces."""

import asyncio
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import pytest

from sbpair.cli.options import Options
from sbpair.cli.transfer.options import patience
from sbpair.core.access import namespace_name
from sbpair.core.entities import QueueSettings
from sbpair.core.errors import LocksLostError
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.pairing import Side
from sbpair.core.retry import PATIENCE_SECONDS, UNREACHED_SECONDS
from sbpair.core.rewrite import as_sent, compose
from sbpair.core.transfer.ledger import Way
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.resend import DUE, IN_DOUBT, NOT_SCHEDULED, OTHER_STATE, STATE_STAYS, Resender, Selection
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.ports import Ends, Sides, TransactedMessaging
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import ToQueue, TransferRequest
from sbpair.runtime.transfer.ledger import Begun, Ledger, outcomes_in, sent_in
from sbpair.runtime.transfer.move import move
from sbpair.runtime.transfer.moving import MoveJob
from tests.cli.process import Sbpair
from tests.cli.screens import answer
from tests.cli.transfer.entities import Entities
from tests.fakes import RecordingObserver
from tests.waiting import LIMIT_SECONDS, until

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def messages(*ids: str) -> list[bytes]:
    return [compose(body=one, message_id=one) for one in ids]


def test_all_that_can_be_received_goes_to_the_other_namespace_and_sessions_keep_their_order(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.queue(queue, Side.SECONDARY)
    sent = [compose(body=str(n), message_id=f"m{n}", session_id=f"s{n % 2}") for n in range(20)]
    made.dead(queue, messages("dead"))
    made.send(queue, *messages("deferred"))
    made.settle(queue, [""], Disposition.DEFER)
    made.send(queue, *sent)
    ran = made.runner(
        *("move", queue, f"local-secondary:{queue}", "--with-dlq", "--ledger", f"{queue}.jsonl", "--yes", "-o", "json")
    )
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (0, 22, {}), ran
    assert made.ids(queue) == made.ids(queue, dead_letter=True) == []
    lies = made.lying(queue, Side.SECONDARY)
    assert sorted(as_sent(one.payload).payload for one in lies) == sorted([*sent, *messages("dead", "deferred")])
    for session in ("s0", "s1"):
        assert [as_sent(one.payload).payload for one in lies if one.session_id == session] == sent[int(session[1]) :: 2]
    assert len(list(outcomes_in(made.runner.home / f"{queue}.jsonl"))) == 22


@pytest.mark.parametrize("sessions", [False, True])
def test_until_idle_takes_what_comes_later_too(made: Entities, sessions: bool) -> None:
    queue, other = (made.queue(named(name), requires_session=sessions) for name in ("orders", "other"))
    sent = [
        compose(body=str(n), message_id=f"m{n}", session_id=f"s{n % 2}" if sessions else None, scheduled_at=at)
        for n, at in enumerate((None, None, None, None, round(time.time()) + 3600))
    ]
    until_idle = ("move", queue, other, "--yes", "-o", "json", "--until-idle")
    made.send(queue, *sent[:2])
    process = made.runner.begin(*until_idle, "2m", "--limit", "4", stderr=subprocess.DEVNULL)
    until(lambda: len(made.ids(other)) == 2)
    made.send(queue, *sent[2:])
    report = json.loads(process.communicate(timeout=LIMIT_SECONDS)[0])["data"]
    assert (report["forwarded"], report["ended_by"], report["guarantee"]) == (4, "count", "exactly-once")
    ran = made.runner(*until_idle, "100ms")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (0, 1, {}), ran
    assert sorted(as_sent(one.payload).payload for one in made.lying(other)) == sorted(sent)
    ran = made.runner(*until_idle, "100ms")
    assert (ran.code, ran.data["forwarded"], made.ids(queue)) == (0, 0, []), ran


def test_what_was_told_before_the_question_is_not_told_again(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("other"))
    made.send(queue, *messages("one"))
    screen = answer(made.runner, "move", queue, other, question="[y/N]", typed="y")
    assert (screen.code, made.ids(other)) == (0, ["one"])
    said = screen.shown + screen.talk
    assert [said.count(words) for words in ("Exactly once:", "Messages are unchanged", "were moved", "was moved")] == [
        1,
        1,
        0,
        1,
    ]


def test_how_long_a_side_may_fail_is_said_by_one_option_or_the_time_out() -> None:
    assert patience(Options(timeout="5s"), None) == {"patience_seconds": 5.0, "unreached_seconds": UNREACHED_SECONDS}
    assert patience(Options(timeout="5s"), "7s") == {"patience_seconds": 7.0, "unreached_seconds": 7.0}


def test_scheduled_messages_keep_their_time_and_what_is_due_soon_stays(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("other"))
    at = round(time.time()) + 3600
    later = compose(body=b"", message_id="later", scheduled_at=at)
    made.send(queue, compose(body=b"", message_id="soon", scheduled_at=at - 3570), later, *messages("now"))
    ran = made.runner("move", queue, other, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (3, 2, {DUE: 1}), ran
    assert (ran.data["guarantee"], ran.data["in_transactions"]) == ("exactly-once", 2)
    assert made.ids(queue) == ["soon"]
    moved = {one.message_id: one for one in made.lying(other)}
    assert moved["later"].state is MessageState.SCHEDULED and moved["now"].state is MessageState.ACTIVE
    assert as_sent(moved["later"].payload).payload == later


def test_what_is_scheduled_to_a_topic_is_moved_copied_and_deleted_there(made: Entities) -> None:
    topic, queue = named("news"), made.queue(named("queue"))
    subscription = made.subscription(topic, "all")
    at = round(time.time()) + 3600
    later = [compose(body=f"b{n}", message_id=f"later{n}", scheduled_at=at + n) for n in range(3)]
    made.send(topic, *later, *messages("now"))
    copied = made.runner("copy", topic, queue, "--yes", "-o", "json")
    assert (copied.code, copied.data["forwarded"]) == (0, 3), copied
    assert "only its scheduled messages lie in it" in copied.stderr
    assert made.ids(topic) == ["later0", "later1", "later2"]
    moved = made.runner("move", topic, f"local-secondary:{made.queue(queue, Side.SECONDARY)}", "-n1", "--yes")
    assert (moved.code, made.ids(topic)) == (0, ["later1", "later2"]), moved
    moved = made.runner("move", topic, queue, "--where", "sys.MessageId = 'later1'", "--yes", "-o", "json")
    assert (moved.code, moved.data["guarantee"], made.ids(topic)) == (0, "exactly-once", ["later2"]), moved
    purged = made.runner("purge", topic, "--archive", "purged", "--yes", "-o", "json")
    assert (purged.code, purged.data["forwarded"], made.ids(topic)) == (0, 1, []), purged
    there = made.lying(queue)
    assert sorted(as_sent(one.payload).payload for one in there) == sorted([*later, later[1]])
    assert {one.state for one in there} == {MessageState.SCHEDULED}
    assert [as_sent(one.payload).payload for one in made.lying(queue, Side.SECONDARY)] == later[:1]
    assert made.ids(subscription) == ["now"]
    refused = made.runner("move", topic, queue, "--with-dlq", "--yes")
    assert (refused.code, "has no dead letters; its subscriptions have" in refused.stderr) == (2, True)


class _Interrupts:
    """A namespace in which one message is not to be had any more when it is to be moved."""

    def __init__(self, messaging: TransactedMessaging, message_id: str, *, in_doubt: bool) -> None:
        self._messaging = messaging
        self._message_id = message_id
        self._in_doubt = in_doubt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messaging, name)

    def scheduled_mover(self, entity: str) -> "_Interrupts":
        self._mover, self._sender = self._messaging.scheduled_mover(entity), self._messaging.sender(entity)
        return self

    async def max_message_bytes(self, entity: str) -> int:
        return await self._mover.max_message_bytes(entity)

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        place = next((n for n, one in enumerate(received) if one.message_id == self._message_id), None)
        if place is not None and self._in_doubt:
            lost = LocksLostError("The commit was not answered.", lost=(place,))
            lost.uncertain = True
            raise lost
        if place is not None and len(received) > 1:
            await self._sender.cancel_scheduled([received[place].sequence_number], timeout_seconds=30)
        await self._mover.move(received, payloads, entity, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        await self._mover.close()
        await self._sender.close()


class _Dies(Ledger):
    """Of a process that is killed after a send was accepted, and before it could write that down."""

    async def confirm(self, begun: Begun, sent: Collection[int], *, certain: bool = True) -> None:
        if sent:
            raise _KilledError
        await super().confirm(begun, sent, certain=certain)


async def moved_without_facts(
    sides: Sides,
    source: str,
    target: str,
    *,
    stop: asyncio.Event | None = None,
    keep: bool = False,
    scheduled: bool = False,
    transactions: TransactedMessaging | None = None,
    ledger: Ledger | None = None,
) -> DrainReport:
    here, seen = sides.pair.primary, DestinationSeen(target)
    return await move(
        MoveJob(
            TransferRequest((source,), to=ToQueue(target), leave_missing=True, scheduled=scheduled),
            Ends(sides.primary, sides.primary, transactions=transactions, source_access=here, target_access=here),
            Resender(seen, Selection(), same_entity=False, now=time.time),
            seen=seen,
            facts={},
            clock=LoopClock(),
            observer=RecordingObserver(),
            ledger=ledger,
            stop=stop or asyncio.Event(),
            copy=keep,
        )
    )


class _KilledError(Exception):
    pass


def test_a_kill_leaves_in_doubt_what_went_outside_of_a_transaction_and_it_is_not_sent_twice(made: Entities) -> None:
    queue = made.queue(named("orders"), lock_duration_seconds=5.0)
    parts = made.queue(named("parts"), enable_partitioning=True)
    made.send(queue, *messages("a", "b", "c"))
    path = made.runner.home / f"{queue}.jsonl"

    async def work(sides: Sides) -> None:
        here = sides.pair.primary
        ledger = _Dies(path, way=Way(namespace_name(here), namespace_name(here)))
        with pytest.raises(_KilledError):
            await moved_without_facts(
                sides, queue, parts, transactions=cast(TransactedMessaging, sides.primary), ledger=ledger
            )
        await ledger.close()

    made.do(work)
    sent = made.ids(parts)
    assert sent
    until(lambda: made.ids(queue) == ["a", "b", "c"])
    ran = made.runner("move", queue, parts, "--ledger", str(path), "--yes", "-o", "json")
    assert (ran.code, ran.data["already_forwarded"]) == (0, len(sent)), ran
    assert (sorted(made.ids(parts)), made.ids(queue)) == (["a", "b", "c"], [])


@pytest.mark.parametrize("in_doubt", [False, True])
def test_what_is_scheduled_no_more_is_left_with_the_reason_and_its_session_goes_on(
    made: Entities, in_doubt: bool
) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("other"))
    at = round(time.time()) + 3600
    made.send(queue, *(compose(body=b"", message_id=f"m{n}", session_id="s", scheduled_at=at) for n in range(5)))

    async def work(sides: Sides) -> DrainReport:
        interrupting = cast(TransactedMessaging, _Interrupts(sides.primary, "m2", in_doubt=in_doubt))
        return await moved_without_facts(sides, queue, other, scheduled=True, transactions=interrupting)

    report = made.do(work)
    why = IN_DOUBT if in_doubt else NOT_SCHEDULED
    assert [(one.reason, one.count) for one in report.left] == [(why, 1)]
    assert (report.forwarded, report.in_transactions, report.completed) == (4, 4, 4)
    assert made.ids(other) == ["m0", "m1", "m3", "m4"]
    assert made.ids(queue) == (["m2"] if in_doubt else [])


def test_what_a_partitioned_queue_takes_in_no_transaction_goes_outside_of_one(made: Entities) -> None:
    queue = made.queue(named("orders"))
    parts = made.queue(named("parts"), enable_partitioning=True)
    sent = [compose(body=b"", message_id=f"s{n}", session_id=f"s{n % 2}") for n in range(4)]
    made.send(queue, *messages("a", "b", "c"), *sent)
    shown = made.runner("move", queue, parts, "--dry-run", "-o", "json")
    assert (shown.code, shown.data["guarantee"]) == (5, "at-least-once"), shown
    assert shown.data["at_least_once_because"].startswith("3 of 7 messages would be sent outside of a transaction")
    written = made.runner("move", queue, parts, "--plan-out", f"{queue}.json")
    assert written.code == 0, written
    ran = made.runner("move", queue, parts, "--plan", f"{queue}.json", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["in_transactions"]) == (0, 7, 4), ran
    assert ran.data["guarantee"] == "at-least-once"
    assert "is partitioned and takes" in ran.data["at_least_once_because"]
    assert ran.data["at_least_once_because"].startswith("3 of 7 messages were sent outside of a transaction")
    assert sorted(made.ids(parts)) == ["a", "b", "c", "s0", "s1", "s2", "s3"]
    assert made.ids(queue) == []


def test_sessions_move_in_order_with_their_states_and_what_each_has_deferred(made: Entities) -> None:
    queue = made.queue(named("sessions"), requires_session=True)
    made.queue(queue, Side.SECONDARY, requires_session=True)
    sent = [
        compose(body=str(n), message_id=f"m{n}", session_id=f"{'sS'[n % 2]}{n % 3}") for n in range(30)
    ]  # spelled in two ways
    made.send(queue, compose(body=b"", message_id="first", session_id="s1"))
    made.settle(queue, [""], Disposition.DEFER, session="s1")
    made.send(queue, *sent)
    for session, state in (("s1", b"one"), ("only a state", b"two")):
        made.state(queue, session, state)
    ran = made.runner("move", queue, f"local-secondary:{queue}", "--ledger", f"{queue}.jsonl", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["session_states"], ran.data["left"]) == (0, 31, 2, {}), ran
    assert len(sent_in(made.runner.home / f"{queue}.jsonl")) == 31, "a line of a state is no message"
    assert (ran.data["guarantee"], ran.data["in_transactions"]) == ("at-least-once", 0)
    assert made.ids(queue) == []
    lies = made.lying(queue, Side.SECONDARY)
    for number in range(3):
        of_one = [as_sent(one.payload).payload for one in lies if str(one.session_id).lower() == f"s{number}"]
        assert [one for one in of_one if one in sent] == sent[number::3]
    assert sorted(as_sent(one.payload).payload for one in lies if one.message_id != "first") == sorted(sent)
    for session, state in (("s0", None), ("s1", b"one"), ("only a state", b"two")):
        assert made.state(queue, session, side=Side.SECONDARY) == state
        assert made.state(queue, session) is None


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_what_is_stopped_before_it_begins_says_so_and_browses_no_further(
    made: Entities, fault: Callable[[str, str], None], keep: bool, busy: bool
) -> None:
    source, target = made.queue(named("stopped")), made.queue(named("target"))
    made.send(source, *messages("waits"))
    if busy:
        fault("local-primary", f"throttle:entity={source},operation=management")

    async def work(sides: Sides) -> tuple[str, int, bool]:
        stop = asyncio.Event()
        stop.set()
        report = await moved_without_facts(sides, source, target, stop=stop, keep=keep, scheduled=True)
        return report.ended_by, report.forwarded, report.confirmed_empty

    began = time.monotonic()
    assert made.do(work) == ("stop", 0, False)
    assert time.monotonic() - began < PATIENCE_SECONDS, "it went on to browse what it would leave"
    assert made.runner("emulator", "fault", "clear", "local-primary").code == 0
    assert made.ids(source) == ["waits"]


@pytest.mark.parametrize("command", ["move", "copy"])
def test_when_its_time_is_up_it_says_how_much_is_left_and_goes_on(made: Entities, command: str) -> None:
    source, target = made.queue(named("slow")), made.queue(named("target"))
    made.send(source, *messages("a", "b", "c", "d", "e"))
    words = (command, source, target, "--ledger", f"{source}.jsonl", "--yes", "-o", "json")
    ran = made.runner(*words, "--for", "1s", "--rate", "0.1")
    assert (ran.code, ran.data["ended_by"]) == (3, "time"), ran
    assert sum(ran.data["left"].values()) == 5 - ran.data["forwarded"] > 0
    assert f"{command} {source} {target} --rate 0.1 --ledger" in ran.stderr
    made.send(apart := made.queue(named("slow")), *messages("a", "b"))
    other = made.runner(command, apart, made.queue(named("target")), "--yes", "--for", "1s", "--rate", "0.1")
    assert ("Go on with: " in other.stderr) == (command == "move"), other
    assert ("Without --ledger a second run copies everything again." in other.stderr) == (command == "copy"), other
    assert made.runner(*words).code == 0
    assert sorted(made.ids(target)) == ["a", "b", "c", "d", "e"]


def test_who_may_not_ask_for_settings_finds_sessions_by_asking_for_them(made: Entities) -> None:
    queue, plain = made.queue(named("sessions"), requires_session=True), made.queue(named("plain"))
    sent = [compose(body=str(n), message_id=f"m{n}", session_id=f"s{n % 2}") for n in range(6)]
    made.send(queue, *sent)
    made.send(plain, *sent)

    async def work(sides: Sides) -> list[int]:
        moved = []
        for source in (queue, plain):
            target = f"{source}-moved"
            await sides.primary_admin.create_queue(target, QueueSettings())
            report = await moved_without_facts(sides, source, target)
            moved.append(report.forwarded)
        return moved

    assert made.do(work) == [6, 6]
    for source in (queue, plain):
        assert made.ids(source) == []
        lies = made.lying(f"{source}-moved")
        for number in range(2):
            of_one = [as_sent(one.payload).payload for one in lies if one.session_id == f"s{number}"]
            assert of_one == sent[number::2]


def test_a_session_with_another_state_at_the_destination_stays_whole(made: Entities) -> None:
    queue, other = (made.queue(named("sessions"), requires_session=True) for _ in range(2))
    made.send(queue, *(compose(body=b"", message_id=one, session_id=one) for one in ("a", "b")))
    made.state(queue, "a", b"here")
    made.state(other, "a", b"there")
    ran = made.runner("move", queue, other, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (3, 1, {OTHER_STATE: 1}), ran
    assert (made.ids(queue), made.ids(other), made.state(other, "a")) == (["a"], ["b"], b"there")


def test_a_state_stays_where_its_session_goes_to_a_queue_without_sessions(made: Entities) -> None:
    queue, other = made.queue(named("sessions"), requires_session=True), made.queue(named("plain"))
    made.send(queue, compose(body=b"", message_id="a", session_id="a"))
    made.state(queue, "a", b"here")
    ran = made.runner("move", queue, other, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (3, 1, {STATE_STAYS: 1}), ran
    assert (made.ids(other), made.state(queue, "a")) == (["a"], b"here")


def test_of_sessions_a_filter_moves_some_and_their_states_stay(made: Entities) -> None:
    queue, other = (made.queue(named("sessions"), requires_session=True) for _ in range(2))
    made.send(queue, *(compose(body=b"", message_id=one, session_id=one) for one in ("a", "b")))
    made.state(queue, "a", b"here")
    ran = made.runner("move", queue, other, "--session-id", "a", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["filtered_out"]) == (0, 1, 1), ran
    assert (made.ids(queue), made.ids(other), made.state(queue, "a")) == (["b"], ["a"], b"here")


def test_a_copy_leaves_all_where_it_is_and_its_ledger_doubles_nothing(made: Entities) -> None:
    queue = made.queue(named("sessions"), requires_session=True)
    made.queue(queue, Side.SECONDARY)
    sent = [compose(body=str(n), message_id=f"m{n}", session_id="s") for n in range(5)]
    later = compose(body=b"", message_id="later", session_id="s", scheduled_at=round(time.time()) + 3600)
    made.send(queue, sent[0])
    made.settle(queue, [""], Disposition.DEFER, session="s")
    made.send(queue, *sent[1:], later)
    before = made.lying(queue)
    words = ("copy", queue, f"local-secondary:{queue}", "--ledger", f"{queue}.jsonl", "--yes", "-o", "json")
    shown = made.runner(*words, "--dry-run")
    assert (shown.code, shown.data["forwarded"]) == (5, 6)
    ran = made.runner(*words)
    assert (ran.code, ran.data["forwarded"], ran.data["completed"]) == (0, 6, 0), ran
    again = made.runner(*words)
    assert (again.code, again.data["forwarded"], again.data["already_forwarded"]) == (0, 0, 6), again
    assert made.lying(queue) == before
    lies = made.lying(queue, Side.SECONDARY)
    assert [as_sent(one.payload).payload for one in lies if one.state is MessageState.ACTIVE] == sent
    assert [as_sent(one.payload).payload for one in lies if one.state is MessageState.SCHEDULED] == [later]


def test_a_ledger_knows_a_queue_however_it_is_spelled(made: Entities) -> None:
    """The service does not tell them apart: a message that was sent from `orders` is not sent again from `ORDERS`."""
    queue, target = made.queue(named("orders")), made.queue(named("orders"))
    made.send(queue, *messages("a", "b"))
    words = ("--ledger", f"{queue}.jsonl", "--yes", "-o", "json")
    assert made.runner("copy", queue, target, *words).data["forwarded"] == 2
    again = made.runner("copy", queue.upper(), target, *words)
    assert (again.code, again.data["forwarded"], again.data["already_forwarded"]) == (0, 0, 2), again
    moved = made.runner("move", queue.upper(), target.upper(), *words)
    assert (moved.code, moved.data["forwarded"]) == (0, 0), moved
    assert (made.ids(queue), made.ids(target)) == ([], ["a", "b"])


def test_a_ledger_of_another_destination_is_refused_before_it_completes_what_never_went_there(made: Entities) -> None:
    queue, test, parked = (made.queue(named("orders")) for _ in range(3))
    made.send(queue, *messages("a"))
    words = ("--ledger", f"{queue}.jsonl", "--yes")
    assert made.runner("copy", queue, test, *words).code == 0
    ran = made.runner("move", queue, parked, *words)
    assert (ran.code, "would complete it without sending it" in ran.stderr) == (2, True), ran
    assert (made.ids(queue), made.ids(parked)) == (["a"], [])
    assert made.runner("move", queue, test, *words).code == 0
    assert (made.ids(queue), made.ids(test)) == ([], ["a"])


def test_dead_letters_are_copied_alone_also_to_their_own_queue(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("dead"))
    ran = made.runner("copy", queue, queue, "--dlq", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"]) == (0, 1), ran
    assert (made.ids(queue), made.ids(queue, dead_letter=True)) == (["dead"], ["dead"])


def test_a_dry_run_of_a_move_changes_nothing_and_a_filter_leaves_the_rest(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("other"))
    made.send(queue, *messages("a", "b"))
    words = ("move", queue, other, "--where", "sys.MessageId = 'b'", "-o", "json")
    shown = made.runner(*words, "--dry-run")
    assert (shown.code, shown.data["forwarded"]) == (5, 1)
    assert made.ids(queue) == ["a", "b"]
    ran = made.runner(*words, "--yes")
    assert (ran.code, ran.data["forwarded"]) == (0, 1)
    assert (made.ids(queue), made.ids(other)) == (["a"], ["b"])


def test_what_cannot_be_moved_is_refused_before_the_first_message(made: Entities) -> None:
    queue, sessions = made.queue(named("orders")), made.queue(named("sessions"), requires_session=True)
    for words, said in (
        (("move", queue, queue), "FROM and TO are both"),
        (("copy", queue, queue), "FROM and TO are both"),
        (("copy", queue, sessions, "--dlq", "--with-dlq"), "not both"),
        (("purge", queue, "--archive", "kept", "--no-archive"), "not both"),
        (("purge", queue, "--dry-run"), "deletes it permanently. Nothing"),
        (("copy", queue, "news/Subscriptions/audit"), "nothing can be sent to it"),
        (("move", f"{queue}/$DeadLetterQueue", queue), "sbpair dlq"),
    ):
        ran = made.runner(*words, "--yes")
        assert (ran.code, said in ran.stderr) == (2, True), ran


def test_a_purged_queue_is_empty_and_its_archive_brings_all_back(made: Entities) -> None:
    queue = made.queue(named("orders"))
    sent = messages("a", "b")
    made.send(queue, *sent)
    made.settle(queue, [""], Disposition.DEFER)
    shown = made.runner("purge", queue, "--archive", f"kept-{queue}", "--dry-run", "-o", "json")
    assert (shown.code, shown.data["forwarded"]) == (5, 2)
    ran = made.runner("purge", queue, "--archive", f"kept-{queue}", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], made.ids(queue)) == (0, 2, [])
    restored = made.runner("restore", f"kept-{queue}", "--namespace", "local-primary", "--yes", "-o", "json")
    assert (restored.code, restored.data["pair"], restored.data["namespace"]) == (0, None, "local-primary"), restored
    assert sorted(as_sent(one.payload).payload for one in made.lying(queue)) == sent


@pytest.mark.parametrize("archive", [False, True])
def test_a_purge_takes_sessions_and_what_is_scheduled_into_one_archive(made: Entities, archive: bool) -> None:
    queue, folder = made.queue(named("sessions"), requires_session=True), f"kept-{next(NUMBERS)}"
    sent = [compose(body=str(n), message_id=f"m{n}", session_id=f"s{n % 3}") for n in range(6)]
    at = round(time.time()) + 3600
    later = [compose(body=b"", message_id=f"l{n}", session_id=f"s{n}", scheduled_at=at) for n in range(2)]
    made.send(queue, *sent, *later)
    words = ("purge", queue, *(("--archive", folder) if archive else ("--no-archive",)), "-o", "json")
    counter = "forwarded" if archive else "purged"
    shown = made.runner(*words, "--dry-run")
    assert (shown.code, shown.data[counter], len(made.ids(queue))) == (5, 8, 8), shown
    some = made.runner(*words, "--limit", "3", "--yes")
    assert (some.code, some.data[counter], len(made.ids(queue))) == (0, 3, 5), some
    ran = made.runner(*words, "--yes")
    assert (ran.code, ran.data[counter], ran.data["left"], made.ids(queue)) == (0, 5, {}, []), ran
    if archive:
        assert len(list((made.runner.home / folder).iterdir())) == 2, "one file of each run"
        assert made.runner("restore", folder, "--pair", "local", "--yes").code == 0
        lies = made.lying(queue)
        assert sorted(as_sent(one.payload).payload for one in lies) == sorted([*sent, *later])
        assert {one.message_id for one in lies if one.state is MessageState.SCHEDULED} == {"l0", "l1"}
