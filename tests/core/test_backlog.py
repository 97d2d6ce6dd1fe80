"""The verdict on a backlog: "empty" only where everything was read and nothing was found, and what to do otherwise."""

from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.backlog import Backlog, BacklogVerdict, FoundBy, QueueContents, QueueState, advice, headline
from sbpair.core.serialization import output_schema, to_plain

EMPTY = QueueContents("contoso/x-servicebus-transfer/0", active=0, deferred=0, scheduled=0, dead_letter=0)


def queue(index: int, **values: object) -> QueueContents:
    return replace(EMPTY, queue=f"contoso/x-servicebus-transfer/{index}", **values)  # type: ignore[arg-type]


def backlog(*queues: QueueContents, **values: object) -> Backlog:
    return Backlog("orders", 1000.0, queues, **values)  # type: ignore[arg-type]


NUMBERS = st.none() | st.integers(0, 2)
QUEUES = st.builds(
    QueueContents,
    queue=st.just("contoso/x-servicebus-transfer/3"),
    configured=st.booleans(),
    missing=st.booleans(),
    active=NUMBERS,
    deferred=NUMBERS,
    scheduled=NUMBERS,
    dead_letter=NUMBERS,
    oldest_enqueued_at=st.none() | st.just(5.0),
    error_code=st.none() | st.just("connection-lost"),
)


@given(st.lists(QUEUES, max_size=4), st.sampled_from(FoundBy), st.booleans())
def test_empty_is_said_only_of_what_was_read_in_full_and_holds_nothing(
    queues: list[QueueContents], found_by: FoundBy, whole: bool
) -> None:
    seen = backlog(*queues, found_by=found_by, whole=whole)
    there = [one for one in queues if not one.missing]
    proven = (
        bool(there)
        and whole
        and found_by is not FoundBy.CONFIGURED
        and all(one.error_code is None and one.oldest_enqueued_at is None for one in there)
        and all(one.active == one.scheduled == one.dead_letter == 0 and not one.deferred for one in there)
    )
    assert seen.confirmed_empty == proven
    assert "is empty" not in headline(seen) or proven


@given(st.lists(QUEUES, max_size=4), st.sampled_from(FoundBy))
def test_whatever_is_not_empty_is_told(queues: list[QueueContents], found_by: FoundBy) -> None:
    seen = backlog(*queues, found_by=found_by)
    if not seen.confirmed_empty:
        assert advice(seen)
        assert all(one.commands for one in advice(seen))


@pytest.mark.parametrize(
    ("seen", "says", "words", "command"),
    [
        (backlog(queue(0)), BacklogVerdict.EMPTY, "The backlog is empty: 1 queue read", None),
        (
            backlog(queue(0, active=500, oldest_enqueued_at=991.0), queue(12, active=1, configured=False)),
            BacklogVerdict.WAITING,
            "501 messages are waiting in 2 queues (12 not configured), the oldest for 9s.",
            "sbpair drain orders",
        ),
        (
            backlog(queue(0, active=1)),
            BacklogVerdict.WAITING,
            "1 message is waiting in 1 queue.",
            "sbpair drain orders",
        ),
        (
            backlog(queue(0, dead_letter=10)),
            BacklogVerdict.SET_ASIDE,
            "10 dead letters remain in 1 queue. Run: sbpair peek orders --dlq --group-by reason,destination; "
            "then: sbpair drain orders --dlq",
            "sbpair drain orders --dlq",
        ),
        (
            backlog(queue(0, deferred=2)),
            BacklogVerdict.SET_ASIDE,
            "2 deferred messages remain",
            "sbpair drain orders --deferred",
        ),
        (
            backlog(queue(0, scheduled=1)),
            BacklogVerdict.SET_ASIDE,
            "1 scheduled message waits",
            "sbpair peek orders --group-by state,scheduled",
        ),
        (
            backlog(queue(0, missing=True), queue(1, missing=True)),
            BacklogVerdict.NO_QUEUES,
            "No backlog queue exists. Create them. Run: sbpair provision orders",
            "sbpair provision orders",
        ),
        (
            backlog(queue(0), queue(4), found_by=FoundBy.PROBED),
            BacklogVerdict.EMPTY,
            "of any kind. Queues above number 6 were not looked for: listing them needs Manage.",
            None,
        ),
        (backlog(found_by=FoundBy.CONFIGURED), BacklogVerdict.UNKNOWN, "is not known", "sbpair doctor orders"),
        (
            backlog(queue(0), queue(1, active=None, error_code="timeout", detail="No answer.")),
            BacklogVerdict.UNKNOWN,
            "Not read: contoso/x-servicebus-transfer/1: No answer.",
            "sbpair doctor orders",
        ),
    ],
)
def test_sentences_and_commands(seen: Backlog, says: BacklogVerdict, words: str, command: str | None) -> None:
    assert seen.verdict is says
    assert words in headline(seen)
    assert command is None or command in [one for each in advice(seen) for one in each.commands]


def test_every_kind_of_message_is_named_with_its_command() -> None:
    found = advice(
        backlog(queue(0, active=3, dead_letter=2), queue(1, deferred=1, scheduled=4), queue(2, missing=True))
    )
    assert [one.commands[-1] for one in found] == [
        "sbpair drain orders",
        "sbpair drain orders --dlq",
        "sbpair drain orders --deferred",
        "sbpair peek orders --group-by state,scheduled",
        "sbpair provision orders",
    ]
    assert found[1].commands[0] == "sbpair drain orders", "first what waits, then the dead letters"


def test_a_lower_bound_is_called_one() -> None:
    assert "At least 1,000 messages" in headline(backlog(queue(0, active=1000, at_least=True)))


def test_states() -> None:
    queues = (
        queue(0, missing=True),
        queue(1),
        queue(2, active=None),
        queue(3, active=None, oldest_enqueued_at=1.0),
        queue(4, dead_letter=1),
        queue(5, deferred=1),
        queue(6, scheduled=1),
        queue(7, active=1, dead_letter=1),
        queue(8, oldest_enqueued_at=1.0),  # counted as empty, and a message was seen
    )
    assert [one.state for one in queues] == [
        QueueState.MISSING,
        QueueState.EMPTY,
        QueueState.UNKNOWN,
        QueueState.WAITING,
        QueueState.DEAD_LETTERS,
        QueueState.DEFERRED,
        QueueState.SCHEDULED,
        QueueState.WAITING,
        QueueState.WAITING,
    ]


NOT_KNOWN: dict[str, object] = dict.fromkeys(("active", "dead_letter", "deferred", "scheduled"))


def test_what_is_not_known_of_one_queue_is_not_known_of_the_backlog() -> None:
    seen = backlog(
        queue(0, active=3, dead_letter=2, deferred=1, scheduled=4), queue(1, error_code="timeout", **NOT_KNOWN)
    )
    assert (seen.active, seen.dead_letter, seen.deferred, seen.scheduled) == (None, None, None, None)
    written = to_plain(seen)
    assert {written[kind] for kind in ("active", "dead_letter", "deferred", "scheduled")} == {None}
    assert [seen.known(kind) for kind in ("active", "dead_letter", "deferred", "scheduled")] == [3, 2, 1, 4]
    told = [one.sentence for one in advice(seen)]
    assert told[:4] == [
        "At least 3 messages are waiting in 1 queue.",
        "At least 2 dead letters remain in 1 queue.",
        "At least 1 deferred message remains in 1 queue.",
        "At least 4 scheduled messages wait for the time they are scheduled for in 1 queue; drain again after that.",
    ]


def test_deferred_messages_that_are_counted_among_the_others_are_not_known() -> None:
    seen = backlog(queue(0, active=900, deferred=None))
    assert (seen.active, seen.deferred, seen.dead_letter) == (900, None, 0)
    assert headline(seen).startswith("900 messages are waiting")


def test_a_missing_queue_holds_nothing() -> None:
    seen = backlog(queue(0), queue(1, missing=True, **NOT_KNOWN))
    assert (seen.active, seen.dead_letter, seen.deferred, seen.scheduled) == (0, 0, 0, 0)


def test_a_backlog_is_written_with_what_may_be_said_of_it() -> None:
    written = to_plain(backlog(queue(0, dead_letter=2)))
    jsonschema.validate(written, output_schema(Backlog))
    assert (written["verdict"], written["confirmed_empty"], written["dead_letter"]) == ("set-aside", False, 2)
    assert (written["queues"][0]["state"], written["queues_found_by"]) == ("dead letters", "listed")
    assert written["next_commands"][-1] == "sbpair drain orders --dlq"
