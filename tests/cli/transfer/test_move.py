"""`sbpair move` and `sbpair purge` on queues of two embedded namespaces."""

import itertools
import time
from collections.abc import Iterator

import pytest

from sbpair.core.message import Disposition
from sbpair.core.pairing import Side
from sbpair.core.rewrite import as_sent, compose
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

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
    assert len((made.runner.home / f"{queue}.jsonl").read_text().splitlines()) == 22


def test_scheduled_messages_stay_and_are_named(made: Entities) -> None:
    queue, other = made.queue(named("orders")), made.queue(named("other"))
    made.send(queue, compose(body=b"", message_id="later", scheduled_at=time.time() + 3600), *messages("now"))
    ran = made.runner("move", queue, other, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"], ran.data["left"]) == (3, 1, {"scheduled": 1})
    assert (made.ids(queue), made.ids(other)) == (["later"], ["now"])


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
        (("move", sessions, queue), "by session"),
        (("purge", sessions, "--no-archive"), "by session"),
        (("move", queue, "news/Subscriptions/audit"), "nothing can be sent to it"),
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
    assert made.runner("restore", f"kept-{queue}", "--pair", "local", "--yes").code == 0
    assert sorted(as_sent(one.payload).payload for one in made.lying(queue)) == sent
