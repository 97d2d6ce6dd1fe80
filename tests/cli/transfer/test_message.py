"""`sbpair message` and `sbpair undefer` on queues of an embedded namespace: what is done with one message, in place."""

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from sbpair.core.message import Disposition, MessageState
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.rewrite import as_sent, compose
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def letters(*ids: str, **more: object) -> list[bytes]:
    return [compose(body=f"body of {one}", message_id=one, **more) for one in ids]  # type: ignore[arg-type]


def number_of(made: Entities, queue: str, message_id: str, *, dead_letter: bool = False) -> str:
    found = made.lying(queue, dead_letter=dead_letter)
    return str(next(one.sequence_number for one in found if one.message_id == message_id))


def test_one_message_is_shown_and_another_number_is_refused(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, *letters("a", "b", application_properties={"country": "DE"}))
    shown = made.runner("message", "show", queue, number_of(made, queue, "b"), "-o", "json")
    assert shown.code == 0
    assert (shown.data["message_id"], shown.data["body"], shown.data["state"]) == ("b", "body of b", "active")
    table = made.runner("message", "show", queue, number_of(made, queue, "b"), "-o", "tsv")
    assert {"property country\tDE", "body\tbody of b"} <= set(table.stdout.splitlines())
    gone = made.runner("message", "show", queue, "99")
    assert (gone.code, "No message with the number 99 lies in" in gone.stderr) == (2, True)
    made.settle(queue, [""], Disposition.DEAD_LETTER)
    number = str(made.lying(queue, dead_letter=True)[0].sequence_number)
    for typed, right in (([number], [number, "--dlq"]), ([number_of(made, queue, "b"), "--dlq"], None)):
        gone = made.runner("explain", f"local-primary:{queue}", *typed)
        command = f"has this number: sbpair explain local-primary:{queue} {' '.join(right or typed[:1])}\n"
        assert (gone.code, command in gone.stderr) == (2, True), gone


def test_one_message_is_dead_lettered_and_the_others_stay_as_they_were(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, *letters("a", "b", "c"))
    number = number_of(made, queue, "b")
    words = ("message", "dead-letter", queue, number, "--reason", "Poison", "--description", "stops all", "-o", "json")
    planned = made.runner(*words, "--dry-run")
    assert (planned.code, planned.data["dead_lettered"], made.ids(queue)) == (5, 1, ["a", "b", "c"]), planned
    ran = made.runner(*words, "--yes", "--pair", "local")
    assert (ran.code, ran.data["dead_letter_reasons"], ran.data["left"]) == (0, {"Poison": 1}, {}), ran
    assert f"1 message of {queue} was dead-lettered." in ran.stderr
    assert [(one.message_id, one.delivery_count) for one in made.lying(queue)] == [("a", 0), ("c", 0)]
    (dead,) = made.runner("dlq", "peek", queue, "-o", "json").data["messages"]
    assert (dead["message_id"], dead["reason"], dead["description"]) == ("b", "Poison", "stops all")
    again = made.runner(*words, "--yes")
    assert (again.code, "No message with the number" in again.stderr) == (2, True)


def test_the_message_that_holds_up_a_session_is_dead_lettered(made: Entities) -> None:
    queue = made.queue(named("sessions"), requires_session=True)
    made.send(queue, *letters("a", "b", session_id="s"), *letters("c", session_id="t"))
    assert made.state(queue, "s", b"at step 2") == b"at step 2"
    ran = made.runner("message", "dead-letter", queue, number_of(made, queue, "a"), "--yes", "-o", "json")
    assert (ran.code, ran.data["dead_lettered"]) == (0, 1), ran
    assert (made.ids(queue), made.ids(queue, dead_letter=True)) == (["b", "c"], ["a"])
    assert made.state(queue, "s") == b"at step 2"


def test_a_deferred_message_is_dead_lettered_by_its_number_and_a_scheduled_one_is_refused(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, *letters("deferred"))
    made.settle(queue, [""], Disposition.DEFER)
    made.send(queue, *letters("active"), *letters("scheduled", scheduled_at=time.time() + 3600))
    ran = made.runner("message", "dead-letter", queue, number_of(made, queue, "deferred"), "--yes", "-o", "json")
    assert (ran.code, ran.data["dead_letter_reasons"]) == (0, {"Operator": 1}), ran
    refused = made.runner("message", "dead-letter", queue, number_of(made, queue, "scheduled"), "--yes")
    assert (refused.code, "is scheduled: it cannot be dead-lettered" in refused.stderr) == (2, True)
    assert sorted(map(str, made.ids(queue))) == ["active", "scheduled"]


@pytest.mark.parametrize("kind", ["active", "deferred", "scheduled", "dead"])
def test_one_message_of_any_state_is_deleted_and_kept_in_an_archive(made: Entities, kind: str) -> None:
    queue = made.queue(named("orders"))
    if kind == "dead":
        made.dead(queue, letters("x", "y"))
    elif kind == "deferred":
        made.send(queue, *letters("x", "y"))
        made.settle(queue, ["", ""], Disposition.DEFER)
    else:
        made.send(queue, *letters("x", "y", **({"scheduled_at": time.time() + 3600} if kind == "scheduled" else {})))
    dead = kind == "dead"
    words = ("message", "complete", queue, number_of(made, queue, "x", dead_letter=dead), *(["--dlq"] if dead else []))
    assert made.runner(*words, "--yes").code == 2
    ran = made.runner(*words, "--archive", f"kept-{kind}", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (0, 1, {}), ran
    assert made.ids(queue, dead_letter=dead) == ["y"]
    restored = made.runner("restore", f"kept-{kind}", "--yes", "--pair", "local")
    assert restored.code == 0, restored
    assert "x" in made.ids(queue)


def test_a_scheduled_message_gets_another_time_and_is_there_once(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, *letters("a", scheduled_at=time.time() + 3600), *letters("now"))
    number = number_of(made, queue, "a")
    ran = made.runner("message", "reschedule", queue, number, "2h", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["guarantee"]) == (0, 1, "exactly-once"), ran
    found = [one for one in made.lying(queue) if one.message_id == "a"]
    assert [one.state for one in found] == [MessageState.SCHEDULED]
    shown = made.runner("message", "show", queue, str(found[0].sequence_number), "-o", "json").data
    assert abs(time.time() + 7200 - _epoch(shown["scheduled_at"])) < 120
    exact = made.runner(
        "message", "reschedule", queue, str(found[0].sequence_number), "2099-01-01T00:00Z", "--yes", "-o", "json"
    )
    assert exact.code == 0, exact
    shown = made.runner("entity", "peek", queue, "--where", "sys.MessageId = 'a'", "-o", "json").data["messages"]
    assert [one["scheduled_at"] for one in shown] == ["2099-01-01T00:00:00.000Z"]
    active = made.runner("message", "reschedule", queue, number_of(made, queue, "now"), "2h", "--yes")
    assert (active.code, "is active, not scheduled" in active.stderr) == (2, True)


def _epoch(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_deferred_messages_become_active_in_their_queue_and_nothing_else_is_received(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, *letters("d1", "d2", "d3", application_properties={"n": 1}))
    made.settle(queue, [""] * 3, Disposition.DEFER)
    made.send(queue, *letters("active"), *letters("scheduled", scheduled_at=time.time() + 3600))
    before = {one.message_id: as_sent(one.payload).payload for one in made.lying(queue)}
    planned = made.runner("undefer", queue, "--dry-run", "-o", "json")
    assert (planned.code, planned.data["forwarded"], planned.data["guarantee"]) == (5, 3, "exactly-once"), planned
    some = made.runner("undefer", queue, "--where", "sys.MessageId = 'd2'", "--yes", "-o", "json")
    assert (some.code, some.data["forwarded"], some.data["in_transactions"]) == (0, 1, 1), some
    ran = made.runner("undefer", queue, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (0, 2, {}), ran
    assert {one.message_id: as_sent(one.payload).payload for one in made.lying(queue)} == before
    states = {one.message_id: (one.state, one.delivery_count) for one in made.lying(queue)}
    assert states == {
        **dict.fromkeys(("d1", "d2", "d3", "active"), (MessageState.ACTIVE, 0)),
        "scheduled": (MessageState.SCHEDULED, 0),
    }
    nothing = made.runner("undefer", queue, "--yes", "-o", "json")
    assert (nothing.code, nothing.data["forwarded"]) == (0, 0)


def test_deferred_messages_of_sessions_become_active_behind_the_others(made: Entities) -> None:
    queue = made.queue(named("sessions"), requires_session=True)
    made.send(queue, *letters("a", session_id="s"))
    made.settle(queue, [""], Disposition.DEFER, session="s")
    made.send(queue, *letters("b", session_id="s"), *letters("c", session_id="t"))
    assert made.state(queue, "s", b"state") == b"state"
    ran = made.runner("undefer", queue, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["guarantee"]) == (0, 1, "exactly-once"), ran
    assert [(one.message_id, one.state) for one in made.lying(queue) if one.session_id == "s"] == [
        ("b", MessageState.ACTIVE),
        ("a", MessageState.ACTIVE),
    ]
    assert made.state(queue, "s") == b"state"


def test_a_dry_run_finds_the_message_and_changes_nothing(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, *letters("a"), *letters("later", scheduled_at=time.time() + 3600))
    before = made.lying(queue)
    number = number_of(made, queue, "a")
    ran = made.runner("message", "complete", queue, number, "--no-archive", "--dry-run", "-o", "json")
    assert (ran.code, ran.data["purged"]) == (5, 1), ran
    later = number_of(made, queue, "later")
    ran = made.runner("message", "reschedule", queue, later, "2h", "--dry-run", "-o", "json")
    assert (ran.code, ran.data["forwarded"]) == (5, 1), ran
    assert made.lying(queue) == before


@pytest.mark.parametrize("command", ["explain", "message show", "move"])
def test_throttled_requests_end_in_time_and_advise_only_options_of_the_command(
    made: Entities, fault: Callable[[str, str], None], command: str
) -> None:
    queue = made.queue(named("busy"))
    made.send(queue, *letters("a"))
    to = [made.queue(named("target")), "--yes"] if command == "move" else [number_of(made, queue, "a")]
    fault("local-primary", f"throttle:entity={queue},operation=management")
    began = time.monotonic()
    ran = made.runner(*command.split(), queue, *to, "--timeout", "1s")
    assert (ran.code, time.monotonic() - began < PATIENCE_SECONDS) == (1, True), ran
    assert ("--rate" in ran.stderr, "try again later" in ran.stderr) == (command == "move", True), ran
