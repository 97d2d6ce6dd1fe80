"""`sbpair session` and `sbpair explain` on entities of an embedded namespace."""

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose
from sbpair.ports import Sides
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def letters(session: str, *ids: str) -> list[bytes]:
    return [compose(body=one, message_id=one, session_id=session) for one in ids]


@pytest.fixture
def sessions(made: Entities) -> str:
    """Three sessions: s with messages and a state, t with messages, u with a state alone."""
    queue = made.queue(named("sessions"), requires_session=True)
    made.send(queue, *letters("s", "a", "b", "c"), *letters("t", "d"))
    made.settle(queue, [""], Disposition.DEFER, session="s")
    made.state(queue, "s", b"at step 2")
    made.state(queue, "u", b"\xff\x00")
    return queue


def while_held(made: Entities, queue: str, session: str, work: Callable[[], Any]) -> Any:
    import asyncio

    async def holding(sides: Sides) -> Any:
        receiver = sides.primary.receiver(queue, session_id=session)
        await receiver.session_state()
        try:
            return await asyncio.to_thread(work)
        finally:
            await receiver.close()

    done: Callable[[Sides], Awaitable[Any]] = holding
    return made.do(done)


def test_sessions_are_listed_with_what_they_hold_and_who_is_locked(made: Entities, sessions: str) -> None:
    ran = made.runner("session", "list", sessions, "-o", "json")
    assert ran.code == 0, ran
    assert [(one["session_id"], one["active"], one["deferred"], one["locked"]) for one in ran.data["sessions"]] == [
        ("s", 2, 1, None),
        ("t", 1, 0, None),
        ("u", 0, 0, None),
    ]
    tried = while_held(made, sessions, "t", lambda: made.runner("session", "list", sessions, "--lock", "-o", "json"))
    assert [(one["session_id"], one["locked"], one["state_bytes"]) for one in tried.data["sessions"]] == [
        ("s", False, 9),
        ("t", True, None),
        ("u", False, 2),
    ]
    plain = made.queue(named("plain"))
    refused = made.runner("session", "list", plain)
    assert (refused.code, "See its messages: sbpair entity peek" in refused.stderr) == (2, True), refused
    kept = made.runner("session", "clear", plain, "s", "--yes")
    assert (kept.code, "Its state is as it was." in kept.stderr) == (2, True), kept


def test_a_state_is_shown_set_and_cleared_and_messages_stay(made: Entities, sessions: str) -> None:
    shown = made.runner("session", "show", sessions, "s", "-o", "json")
    assert (shown.code, shown.data["state_text"], shown.data["session"]["active"]) == (0, "at step 2", 2), shown
    assert made.runner("session", "show", sessions, "u", "-o", "json").data["state_hex"] == "ff00"
    planned = made.runner("session", "set-state", sessions, "s", "at step 3", "--dry-run")
    assert (planned.code, made.state(sessions, "s")) == (5, b"at step 2"), planned
    ran = made.runner("session", "set-state", sessions, "s", "at step 3", "--yes", "--pair", "local", "-o", "json")
    assert (ran.code, ran.data["changed"], bytes.fromhex(ran.data["previous_hex"])) == (0, True, b"at step 2"), ran
    assert made.state(sessions, "s") == b"at step 3"
    assert (ran.data["session"]["active"], ran.data["session"]["state_bytes"]) == (2, 9), ran
    again = made.runner("session", "set-state", sessions, "s", "at step 3", "--yes", "-o", "json")
    assert (again.code, again.data["changed"]) == (0, False)
    piped = made.runner("session", "set-state", sessions, "s", "--from-file", "-", "--yes", stdin="from stdin")
    assert (piped.code, made.state(sessions, "s")) == (0, b"from stdin"), piped
    cleared = made.runner("session", "clear", sessions, "u", "--yes")
    assert (cleared.code, made.state(sessions, "u")) == (0, None), cleared
    again = made.runner("session", "clear", sessions, "u", "--yes")
    assert (again.code, f"of {sessions} on local-primary is empty already." in again.stderr) == (0, True), again
    assert made.ids(sessions) == ["a", "b", "c", "d"]
    assert made.runner("session", "set-state", sessions, "s", "--yes").code == 2


def test_a_session_that_a_receiver_holds_is_not_changed(made: Entities, sessions: str) -> None:
    ran = while_held(made, sessions, "s", lambda: made.runner("session", "clear", sessions, "s", "--yes"))
    assert (ran.code, "is locked by another receiver. Its state is as it was" in ran.stderr) == (2, True), ran
    shown = while_held(made, sessions, "s", lambda: made.runner("session", "show", sessions, "s", "-o", "json"))
    assert (shown.code, shown.data["session"]["locked"], shown.data["state_text"]) == (3, True, None), shown
    assert made.state(sessions, "s") == b"at step 2"


def test_a_message_is_explained_with_what_stands_before_it(made: Entities, sessions: str) -> None:
    numbers = {one.message_id: str(one.sequence_number) for one in made.lying(sessions)}
    ran = made.runner("explain", sessions, numbers["c"], "-o", "json")
    assert (ran.code, ran.data["cause"]) == (0, "behind-in-session"), ran
    assert ran.data["command"] == f"sbpair explain local-primary:{sessions} {numbers['b']}"
    table = made.runner("explain", sessions, numbers["c"])
    assert "1 message of its session stands before it" in table.stderr
    behind = made.runner("explain", sessions, numbers["b"], "-o", "json")
    assert (behind.data["cause"], behind.data["command"]) == (
        "behind-deferred",
        f"sbpair undefer local-primary:{sessions}",
    )
    gone = made.runner("explain", sessions, "999")
    assert (gone.code, "No message with the number 999" in gone.stderr) == (2, True)


def test_a_dead_letter_of_a_subscription_is_explained_with_its_rule(made: Entities) -> None:
    subscription = made.subscription(named("news"), "audit")
    payload = compose(body="x", message_id="a")
    made.send(subscription.partition("/")[0], payload, payload)
    made.settle(subscription, ["Broken"])
    number = str(made.lying(subscription, dead_letter=True)[0].sequence_number)
    ran = made.runner("explain", subscription, number, "--dlq", "-o", "json")
    assert (ran.code, ran.data["cause"], ran.data["dead_letter"]) == (0, "consumer-rejected", True), ran
    told = {one["about"]: one["text"] for one in ran.data["statements"]}
    assert told["rule"] == "taken by the rule $Default"
    assert "1 other of its MessageId" in told["duplicates"]


def test_a_dry_run_clears_nothing(made: Entities, sessions: str) -> None:
    ran = made.runner("session", "clear", sessions, "u", "--dry-run")
    assert (ran.code, made.state(sessions, "u")) == (5, b"\xff\x00"), ran
