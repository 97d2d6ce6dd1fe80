"""`sbpair dlq` on queues and subscriptions of an embedded namespace: counted, shown, sent again, deleted."""

import itertools
from collections.abc import Iterator

import pytest

from sbpair.core.message import Disposition
from sbpair.core.rewrite import as_sent, compose
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

DESPITE = "--despite-duplicate-detection"
NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def messages(*ids: str) -> list[bytes]:
    return [compose(body=one, message_id=one) for one in ids]


def test_dead_letters_are_counted_by_reason_with_the_most_frequent_first(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a"), "TTLExpiredException")
    made.dead(queue, messages("b", "c"), "Broken")
    ran = made.runner("dlq", "list", queue, "-o", "json")
    assert ran.code == 0
    assert [(one["reason"], one["messages"]) for one in ran.data["reasons"]] == [
        ("Broken", 2),
        ("TTLExpiredException", 1),
    ]
    assert ran.data["reasons"][0]["description"] == "told by a test"
    assert ran.data["reasons"][0]["oldest"] <= ran.data["reasons"][0]["newest"]
    filtered = made.runner("dlq", "list", queue, "--reason", "broken", "--where", "sys.MessageId = 'b'", "-o", "json")
    assert filtered.data["messages"] == 1


def test_peek_shows_what_matches_and_takes_nothing(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a", "b"))
    ran = made.runner("dlq", "peek", f"local-primary:{queue}", "--where", "sys.MessageId = 'b'", "--body", "-o", "json")
    assert [(one["message_id"], one["body"], one["reason"]) for one in ran.data["messages"]] == [("b", "b", "Broken")]
    assert made.ids(queue, dead_letter=True) == ["a", "b"]


def test_peek_counts_by_what_it_is_asked_for(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a", "b"))
    made.dead(queue, messages("c"), "Other")
    made.send(queue, *messages("d"))
    ran = made.runner("dlq", "peek", queue, "--group-by", "reason,state", "-o", "json")
    assert ran.data["messages"] == []
    assert [(one["reason"], one["messages"]) for one in ran.data["groups"]] == [("Broken", 2), ("Other", 1)]
    ran = made.runner("entity", "peek", queue, "--group-by", "state", "--limit", "1", "-o", "json")
    assert [(one["state"], one["messages"]) for one in ran.data["groups"]] == [("active", 1)]


def test_a_resubmitted_message_has_the_bytes_with_which_it_was_sent(made: Entities) -> None:
    queue = made.queue(named("orders"), default_message_time_to_live_seconds=86_400.0)
    sent = compose(
        body=b"\x00\xff",
        message_id="a",
        subject="invoice",
        application_properties={"amount": 1, "big": 2**40, "name": "Grüße"},
        ttl_seconds=3600,
    )
    made.dead(queue, [sent])
    ran = made.runner("dlq", "resubmit", queue, "--yes", "--pair", "local", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (0, 1, {})
    assert ran.data["original_faults"] == {"Broken": 1}
    (lies,) = made.lying(queue)
    assert as_sent(lies.payload).payload == sent
    assert made.ids(queue, dead_letter=True) == []


def test_a_plan_says_that_dead_letters_are_no_longer_taken_back_together(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a", "b"))
    planned = made.runner("dlq", "resubmit", queue, "--plan-out", "again.json")
    assert (planned.code, "cannot be undone at once: `sbpair message dead-letter`" in planned.stderr) == (0, True), (
        planned
    )
    purge = made.runner("dlq", "purge", queue, "--archive", "kept ones", "--plan-out", "purge.json")
    assert (purge.code, "Undo it with: sbpair restore 'kept ones'" in purge.stderr) == (0, True), purge
    assert made.ids(queue, dead_letter=True) == ["a", "b"]


def test_only_the_reason_asked_for_is_resubmitted_and_the_rest_stays(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a", "b"), "Broken")
    made.dead(queue, messages("c"), "Other")
    words = ("dlq", "resubmit", queue, "--reason", "Broken", "--limit", "1", "-o", "json")
    for more, code in (("--dry-run", 5), ("--yes", 0)):
        ran = made.runner(*words, more)
        assert (ran.code, ran.data["forwarded"], ran.data["original_faults"]) == (code, 1, {"Broken": 1})
    assert made.ids(queue) == ["a"]
    assert made.ids(queue, dead_letter=True) == ["b", "c"]


def test_a_dry_run_tells_the_same_and_changes_nothing(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("repair"))
    made.dead(queue, messages("a", "b"))
    ran = made.runner("dlq", "resubmit", queue, "--to", other, "--dry-run", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["per_destination"]) == (5, 2, {other: 2})
    assert made.ids(other) == []
    assert made.ids(queue, dead_letter=True) == ["a", "b"]


def test_what_a_destination_would_refuse_or_drop_stays_with_the_reason(made: Entities) -> None:
    queue, sessions = made.queue(named("orders"), requires_duplicate_detection=True), named("sessions")
    made.queue(sessions, requires_session=True)
    made.dead(queue, [*messages("a"), compose(body=b"s", message_id="b", session_id="s1")])
    swallowed = made.runner("dlq", "resubmit", queue, DESPITE, "--yes", "-o", "json")
    assert (swallowed.code, swallowed.data["forwarded"]) == (3, 0)
    assert all("duplicate detection would drop it until" in reason for reason in swallowed.data["left"])
    ran = made.runner("dlq", "resubmit", queue, "--to", sessions, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"]) == (3, 1)
    assert ran.data["left"] == {"the destination requires a session id": 1}
    assert made.ids(sessions) == ["b"]
    assert made.ids(queue, dead_letter=True) == ["a"]


def test_of_two_with_one_id_duplicate_detection_would_drop_the_second(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("repair"), requires_duplicate_detection=True)
    made.dead(queue, messages("a", "a", "b"))
    ran = made.runner("dlq", "resubmit", queue, "--to", other, DESPITE, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], sum(ran.data["left"].values())) == (3, 2, 1)
    again = made.runner("dlq", "resubmit", queue, "--to", other, DESPITE, "--yes", "-o", "json")
    assert (again.code, again.data["forwarded"], sum(again.data["left"].values())) == (3, 0, 1)
    assert made.ids(other) == ["a", "b"]
    assert made.ids(queue, dead_letter=True) == ["a"]


def test_an_id_that_a_consumer_has_taken_is_not_sent_to_where_it_would_be_dropped_unseen(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("repair"), requires_duplicate_detection=True)
    made.dead(queue, messages("a"))
    made.send(other, *messages("a"))
    made.settle(other, [""], Disposition.COMPLETE)
    for verb, command in (
        ("sent", ("dlq", "resubmit", queue, "--to", other)),
        ("copied", ("copy", queue, other, "--dlq")),
    ):
        for rest in ("--dry-run", "--yes"):
            ran = made.runner(*command, rest)
            assert (ran.code, DESPITE in ran.stderr, f"Nothing was {verb}." in ran.stderr) == (2, True, True), ran
    assert made.ids(queue, dead_letter=True) == ["a"]


def test_a_destination_that_hands_all_on_is_refused_before_the_first_message(made: Entities) -> None:
    queue, other = made.queue(named("orders")), named("closed")
    made.queue(other, forward_to=made.queue(named("elsewhere")))
    made.dead(queue, messages("a"))
    ran = made.runner("dlq", "resubmit", queue, "--to", other, "--yes")
    assert ran.code == 2
    assert "forwards what it gets to" in ran.stderr
    assert "Nothing was sent." in ran.stderr
    ran = made.runner("copy", named("nothing"), queue, "--yes")
    assert (ran.code, "No queue could be read; nothing was copied.\n" in ran.stderr) == (1, True), ran
    assert made.ids(queue, dead_letter=True) == ["a"]


def test_a_destination_that_does_not_exist_is_named(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a"))
    ran = made.runner("dlq", "resubmit", queue, "--to", "nowhere", "--yes")
    assert ran.code == 1
    assert "create it: sbpair entity create local-primary:nowhere" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_dead_letters_of_a_subscription_go_where_somebody_says(made: Entities) -> None:
    subscription, repair = made.subscription(named("news"), "audit"), made.queue(named("repair"))
    made.dead(subscription, messages("a"))
    refused = made.runner("dlq", "resubmit", subscription, "--yes")
    assert (refused.code, "nothing can be sent to it alone" in refused.stderr) == (2, True)
    ran = made.runner("dlq", "resubmit", subscription, "--to", f"local-secondary:{repair}", "--yes")
    assert ran.code == 1  # that queue is on the other namespace
    ran = made.runner("dlq", "resubmit", subscription, "--to", repair, "--yes", "-o", "json")
    assert (ran.code, ran.data["to"]) == (0, repair)
    assert made.ids(repair) == ["a"]


def test_a_ledger_keeps_what_was_sent_from_being_sent_again(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("repair"))
    made.dead(queue, messages("a", "b", "c"))
    words = ("dlq", "resubmit", queue, "--to", other, "--ledger", "again.jsonl", "--yes", "-o", "json")
    assert made.runner(*words, "-n", "1").data["forwarded"] == 1
    ledger = made.runner.home / "again.jsonl"
    kept = ledger.read_bytes()
    assert made.runner(*words).data["forwarded"] == 2
    assert ledger.read_bytes().startswith(kept)
    assert made.ids(other) == ["a", "b", "c"]


def test_purged_dead_letters_are_in_the_archive_and_come_back_from_it(made: Entities) -> None:
    queue = made.queue(named("orders"))
    sent = messages("a", "b")
    made.dead(queue, sent)
    ran = made.runner("dlq", "purge", queue, "--archive", f"kept-{queue}", "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"]) == (0, 2)
    assert made.ids(queue, dead_letter=True) == []
    back = made.runner("restore", f"kept-{queue}", "--pair", "local", "--yes")
    assert back.code == 0, back
    assert [as_sent(one.payload).payload for one in made.lying(queue)] == sent


def test_purging_for_good_takes_what_matches_only(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a", "b", "c"))
    shown = made.runner("dlq", "purge", queue, "--no-archive", "--where", "sys.MessageId <> 'b'", "--dry-run")
    assert (shown.code, "2 dead letters" in shown.stderr) == (5, True)
    ran = made.runner("dlq", "purge", queue, "--no-archive", "--where", "sys.MessageId <> 'b'", "--yes", "-o", "json")
    assert (ran.code, ran.data["purged"]) == (0, 2)
    assert made.ids(queue, dead_letter=True) == ["b"]


def test_purging_wants_an_archive_or_a_word_against_it_and_somebody_who_says_yes(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, messages("a"))
    assert "--no-archive" in made.runner("dlq", "purge", queue, "--yes").stderr
    unasked = made.runner("dlq", "purge", queue, "--no-archive")
    assert (unasked.code, "there is no terminal to confirm on" in unasked.stderr) == (2, True)
    assert made.ids(queue, dead_letter=True) == ["a"]


def test_a_topic_holds_no_dead_letters(made: Entities) -> None:
    topic = made.subscription(named("news"), "audit").partition("/")[0]
    ran = made.runner("dlq", "resubmit", topic, "--yes")
    assert (ran.code, f"{topic}/Subscriptions/NAME" in ran.stderr) == (2, True)


def test_the_partition_key_of_a_session_is_kept(made: Entities) -> None:
    queue, other = made.queue(named("orders"), requires_session=True), made.queue(named("repair"))
    made.send(queue, compose(body=b"s", message_id="a", session_id="s1", partition_key="s1"))
    made.settle(queue, ["Broken"], session="s1")
    assert made.runner("dlq", "resubmit", queue, "--to", other, "--yes").code == 0
    (lies,) = made.lying(other)
    assert (lies.session_id, lies.partition_key) == ("s1", "s1")
