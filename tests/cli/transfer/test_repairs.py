"""Many dead letters repaired by one command, and a few messages edited in one document."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.core.editing import as_document
from sbpair.core.message import Disposition
from sbpair.core.rewrite import as_sent, compose
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities
from tests.cli.transfer.test_edit import editor, swap

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def order(number: int, **properties: object) -> bytes:
    return compose(body=f"order {number}", message_id=f"m{number}", application_properties=properties)


def sent(made: Entities, queue: str) -> dict[str | None, bytes]:
    return {one.message_id: as_sent(one.payload).payload for one in made.lying(queue)}


def test_equal_faults_are_mended_by_one_command_and_the_rest_keeps_its_bytes(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, [order(n, country="", n=n, test="x") for n in range(82)], "ValidationError")
    made.dead(queue, [order(100, country="DE", n=7)], "ValidationError")
    made.dead(queue, [order(101, country="")], "Other")
    words = ("dlq", "resubmit", queue, "--reason", "ValidationError", "-o", "json")
    change = ("--set", "country=DE", "--set", "user.n=7", "--set", "sys.Subject=mended", "--unset", "test")
    shown = made.runner(*words, *change, "--dry-run")
    assert (shown.code, shown.data["forwarded"], shown.data["repaired"]["changed"]) == (5, 83, 83), shown
    first, *others = shown.data["repaired"]["differences"]
    assert len(others) == 2
    assert [line for line in first["diff"] if line[0] in "+-"][2:] == [
        '-  "subject": null,',
        '+  "subject": "mended",',
        '-    "country": "",',
        '-    "n": 0,',
        '-    "test": "x"',
        '+    "country": "DE",',
        '+    "n": 7',
    ]
    assert '+    "country": "DE",' in shown.stderr.splitlines()
    assert "83 of 83 dead letters would be changed." in shown.stderr
    ran = made.runner(*words, "--set", "country=DE", "--unset", "test", "--archive", "originals", "--yes")
    assert (ran.code, ran.data["forwarded"], ran.data["repaired"]["changed"]) == (0, 83, 82), ran
    assert sent(made, queue) == {f"m{n}": order(n, country="DE", n=n) for n in range(82)} | {
        "m100": order(100, country="DE", n=7)
    }
    assert made.ids(queue, dead_letter=True) == ["m101"]
    (archive,) = (made.runner.home / "originals").iterdir()
    kept = [json.loads(line) for line in archive.read_text().splitlines()]
    assert [one["message_id"] for one in kept] == [f"m{n}" for n in range(82)]  # what was not changed needs none
    again = made.queue(named("again"))
    restored = made.runner("restore", str(archive), "--pair", "local", "--to", again, "--yes", "-o", "json")
    assert restored.code == 0, restored
    assert sent(made, again)["m5"] == order(5, country="", n=5, test="x")


def test_a_session_id_cures_what_needs_one(made: Entities) -> None:
    queue, sessions = made.queue(named("orders")), made.queue(named("sessions"), requires_session=True)
    made.dead(queue, [order(1)])
    words = ("dlq", "resubmit", queue, "--to", sessions, "--yes", "-o", "json")
    assert made.runner(*words).data["forwarded"] == 0
    ran = made.runner(*words, "--set", "sys.SessionId=s1", "--no-archive")
    assert (ran.code, ran.data["forwarded"]) == (0, 1), ran
    assert [(one.message_id, one.session_id) for one in made.lying(sessions)] == [("m1", "s1")]


def test_every_property_of_a_message_is_set_and_cleared_by_its_name_in_service_bus_sql(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, [order(1)])
    names = ("Label", "CorrelationId", "To", "ReplyTo", "ReplyToSessionId", "ContentType", "SessionId", "MessageId")
    given = [word for name in names for word in ("--set", f"SYS.{name}={name}")]
    sent_again = ("--set", "sys.TimeToLive=PT1H", "--no-archive", "--yes", "-o", "json")
    ran = made.runner("dlq", "resubmit", queue, *given, *sent_again)
    assert (ran.code, ran.data["forwarded"]) == (0, 1), ran
    expected = compose(
        body="order 1",
        message_id="MessageId",
        session_id="SessionId",
        subject="Label",
        correlation_id="CorrelationId",
        to="To",
        reply_to="ReplyTo",
        reply_to_session_id="ReplyToSessionId",
        content_type="ContentType",
        ttl_seconds=3600,
    )
    (there,) = made.lying(queue)
    assert as_document(as_sent(there.payload).payload) == as_document(expected)
    made.settle(queue, ["Broken"], Disposition.DEAD_LETTER)
    cleared = [word for name in names[:-1] for word in ("--unset", f"sys.{name}")]
    ran = made.runner("dlq", "resubmit", queue, *cleared, "--unset", "sys.TimeToLive", *sent_again[2:])
    assert (ran.code, ran.data["forwarded"]) == (0, 1), ran
    (there,) = made.lying(queue)
    assert as_document(as_sent(there.payload).payload) == as_document(compose(body="order 1", message_id="MessageId"))


def test_what_does_not_fit_is_refused_before_anything_is_sent(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, [order(1), order(2, n=2)])
    words = ("dlq", "resubmit", queue, "--yes")
    for options, said in (
        (("--set", "n=two", "--no-archive"), "Message 2: n is a number, which 'two' is not. Nothing was sent"),
        (("--set", "country"), "Give --archive DIR, which keeps the originals in a file, or --no-archive. Nothing"),
        (("--set", "country", "--no-archive"), "--set is NAME=VALUE"),
        (("--set", "sys.DeliveryCount=1", "--no-archive"), "sys.DeliveryCount cannot be changed: it is read-only"),
        (("--unset", "SYS.sequencenumber", "--no-archive"), "sys.SequenceNumber cannot be changed: it is read-only"),
        (("--set", "sys.Lable=x", "--no-archive"), "no property sys.Lable. Did you mean sys.Label?"),
        (("--set", "sys.=x", "--no-archive"), "sys. may be followed by MessageId, SessionId,"),
        (("--set", f"sys.SessionId={'s' * 129}", "--no-archive"), "sys.SessionId has 129 characters; up to 128"),
        (("--set", "sys.TimeToLive=soon", "--no-archive"), "sys.TimeToLive: 'soon' is not a duration"),
        (("--set", "sys.TimeToLive=50d", "--no-archive"), "sys.TimeToLive is 49d"),
        (("--set", "sys.ContentType=é", "--no-archive"), "sys.ContentType has characters that are not ASCII"),
        (("--set", "sys.ScheduledEnqueueTimeUtc=2026-12-01T00:00", "--no-archive"), "has no time zone: add Z for UTC"),
        (("--set", "a=1", "--set", "a=2", "--no-archive"), "a is given twice"),
        (("--set", "sys.Label=a", "--set", "sys.Subject=b", "--no-archive"), "sys.Subject is given twice"),
        (("--set", "sys.To=a", "--unset", "sys.to", "--no-archive"), "sys.to is given twice"),
        (("--unset", "n", "--no-archive", "--archive", "kept"), "not both"),
        (("--no-archive",), "about the originals of --set or --unset"),
        (("--watch", "1m"), "needs --grow"),
        (("--grow", "1,x"), "no list of numbers"),
    ):
        ran = made.runner(*words, *options)
        assert (ran.code, said in ran.stderr) == (2, True), ran
    assert made.ids(queue, dead_letter=True) == ["m1", "m2"]


def test_nothing_is_sent_while_the_originals_cannot_be_kept(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, [order(1)])
    Path(made.runner.home, "file").write_text("")
    ran = made.runner("dlq", "resubmit", queue, "--set", "a=b", "--archive", "file/below", "--yes")
    assert (ran.code, "Cannot write an archive" in ran.stderr) == (1, True), ran
    assert made.ids(queue, dead_letter=True) == ["m1"]


def test_steps_are_told_and_the_same_command_goes_on(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, [order(n) for n in range(4)])
    ran = made.runner("dlq", "resubmit", queue, "--grow", "1,2", "--watch", "1s", "--yes", "--pair", "local")
    assert ran.code == 3, ran
    assert "Stopped: nothing was taken from the queue for 1s, and 1 of 1 message waits there." in ran.stderr
    go_on = f"Go on with: sbpair dlq resubmit {queue} --pair local --grow 1,2 --watch 1s"
    assert f"3 are left. {go_on}" in ran.stderr
    assert (made.ids(queue), made.ids(queue, dead_letter=True)) == (["m0"], ["m1", "m2", "m3"])


def test_a_few_messages_are_edited_in_one_document(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.dead(queue, [order(n, n=n) for n in range(4)])
    words = ("edit", queue, "--dlq", "--where", "n > 0", "-o", "json")
    several = (
        "import json\nfound = json.loads(path.read_text())\n"
        "found[0]['body'] = 'first'\nfound[1]['body'] = 'second'\ndel found[2]\n"
        "path.write_text(json.dumps(found))"
    )
    ran = made.runner(*words, "--yes", env=editor(made, several))
    assert (ran.code, ran.data["forwarded"], ran.data["sequence_numbers"]) == (0, 2, [2, 3]), ran
    assert sent(made, queue) == {
        f"m{n}": compose(body=body, message_id=f"m{n}", application_properties={"n": n})
        for n, body in ((1, "first"), (2, "second"))
    }
    assert made.ids(queue, dead_letter=True) == ["m0", "m3"]
    for code, said in (
        (swap('"sequence_number": 1', '"sequence_number": 99'), "sequence_number of one of them"),
        ("path.write_text('{}')", "no JSON array"),
        (swap('"n": 3', '"n": [3]'), "Message 4: The edited application property 'n' is a list"),
        ("pass", "Nothing was changed in the messages"),
    ):
        ran = made.runner("edit", queue, "--dlq", "--where", "n >= 0", "--yes", env=editor(made, code))
        assert (ran.code, said in ran.stderr, "Nothing was sent" in ran.stderr) == (2, True, True), ran
    ran = made.runner("edit", queue, "--dlq", "--where", "n = 77", "--yes", env=editor(made, "pass"))
    assert (ran.code, "No message that is selected lies in the dead-letter queue" in ran.stderr) == (2, True), ran
    for wrong in ((), ("4", "--where", "n = 1")):
        assert made.runner("edit", queue, *wrong, "--dlq", "--yes").code == 2
    assert made.ids(queue, dead_letter=True) == ["m0", "m3"]
