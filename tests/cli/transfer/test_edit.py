"""`sbpair edit` with programs for an editor, on queues of an embedded namespace."""

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.core.message import Disposition, MessageState
from sbpair.core.rewrite import as_sent, compose
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def editor(made: Entities, code: str) -> dict[str, str]:
    """Environment with an editor that runs `code`; `path` is its file."""
    script = made.runner.home / f"editor{next(NUMBERS)}.py"
    script.write_text(f"import sys, pathlib\npath = pathlib.Path(sys.argv[-1])\n{code}\n", encoding="utf-8")
    return {"EDITOR": f"'{sys.executable}' '{script}' --wait", "VISUAL": "", "TMPDIR": str(made.runner.home)}


def swap(old: str, new: str) -> str:
    return f"path.write_text(path.read_text().replace({old!r}, {new!r}))"


def test_a_dead_letter_is_changed_and_goes_to_its_queue(made: Entities) -> None:
    queue = made.queue(named("orders"))
    sent = [compose(body=f"order {n}", message_id=f"m{n}", application_properties={"n": n}) for n in range(3)]
    made.dead(queue, sent)
    number = made.lying(queue, dead_letter=True)[1].sequence_number
    words = ("edit", queue, str(number), "--dlq", "-o", "json")
    shown = made.runner(*words, "--dry-run", env=editor(made, swap("order 1", "order one")))
    assert (shown.code, shown.data["forwarded"], '-  "body": "order 1"' in shown.data["diff"]) == (5, 1, True), shown
    assert len(made.ids(queue, dead_letter=True)) == 3
    ran = made.runner(*words, "--yes", env=editor(made, swap("order 1", "order one")))
    assert (ran.code, ran.data["forwarded"], ran.data["original_faults"]) == (0, 1, {"Broken": 1}), ran
    assert made.ids(queue, dead_letter=True) == ["m0", "m2"]
    changed = compose(body="order one", message_id="m1", application_properties={"n": 1})
    assert [as_sent(one.payload).payload for one in made.lying(queue)] == [changed]
    kept = list(made.runner.home.glob("sbpair-edit-*"))
    assert len(kept) == 1  # of the dry run, which names it
    assert str(kept[0]) in shown.stderr


def test_active_deferred_and_scheduled_messages_are_changed_where_they_lie(made: Entities) -> None:
    queue = made.queue(named("orders"))
    at = round(time.time()) + 3600
    made.send(queue, compose(body="deferred", message_id="deferred"))
    made.settle(queue, [""], Disposition.DEFER)
    made.send(queue, compose(body="x", message_id="other"), compose(body="active", message_id="active"))
    made.send(queue, compose(body="scheduled", message_id="scheduled", scheduled_at=at))
    shown = made.runner("entity", "peek", queue, "-o", "json").data["messages"]
    numbers = {one["message_id"]: one["sequence_number"] for one in shown}
    assert {one["message_id"]: one["state"] for one in shown} == {
        "deferred": "deferred",
        "other": "active",
        "active": "active",
        "scheduled": "scheduled",
    }
    for one in ("deferred", "active", "scheduled"):
        edits = editor(made, swap(f'"body": "{one}"', f'"body": "new {one}"'))
        ran = made.runner("edit", queue, str(numbers[one]), "--yes", "-o", "json", env=edits)
        assert (ran.code, ran.data["forwarded"]) == (0, 1), ran
    lies = {one.message_id: one for one in made.lying(queue)}
    assert {name: as_sent(one.payload).payload for name, one in lies.items()} == {
        "other": compose(body="x", message_id="other"),
        "deferred": compose(body="new deferred", message_id="deferred"),
        "active": compose(body="new active", message_id="active"),
        "scheduled": compose(body="new scheduled", message_id="scheduled", scheduled_at=at),
    }
    assert lies["scheduled"].state is MessageState.SCHEDULED


def test_a_message_of_a_session_is_changed_behind_its_others_and_the_state_stays(made: Entities) -> None:
    queue = made.queue(named("sessions"), requires_session=True)
    made.send(queue, *(compose(body=f"{s}{n}", message_id=f"{s}{n}", session_id=s) for n in range(2) for s in "ab"))
    assert made.state(queue, "a", b"of a") == b"of a"
    number = next(one.sequence_number for one in made.lying(queue) if one.message_id == "a0")
    ran = made.runner("edit", queue, str(number), "--yes", "-o", "json", env=editor(made, swap('"a0"', '"first"')))
    assert (ran.code, ran.data["forwarded"], ran.data["guarantee"]) == (0, 1, "exactly-once"), ran
    lies = made.lying(queue)
    assert [one.message_id for one in lies if one.session_id == "a"] == ["a1", "first"]
    assert [one.message_id for one in lies if one.session_id == "b"] == ["b0", "b1"]
    assert made.state(queue, "a") == b"of a"


def test_an_editor_that_fails_or_changes_nothing_leaves_the_message(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, compose(body="a", message_id="a"))
    number = str(made.lying(queue)[0].sequence_number)
    before = made.lying(queue)
    for environment, said in (
        (editor(made, "sys.exit(3)"), "exit code 3"),
        (editor(made, "pass"), "Nothing was changed"),
        (editor(made, "path.write_text('no json')"), "--from-file"),
        ({"EDITOR": "", "VISUAL": ""}, "Neither VISUAL nor EDITOR"),
        ({"EDITOR": "no-such-editor; touch made-by-a-shell", "VISUAL": ""}, "did not work"),
        ({"EDITOR": "'", "VISUAL": ""}, "no command line"),
    ):
        ran = made.runner("edit", queue, number, "--yes", env=environment)
        assert (ran.code, said in ran.stderr, "Nothing was sent" in ran.stderr) == (2, True, True), ran
    assert not Path(made.runner.home, "made-by-a-shell").exists()
    gone = made.runner("edit", queue, "99", "--yes", env=editor(made, "pass"))
    assert (gone.code, "No message with the number 99" in gone.stderr) == (2, True)
    assert made.lying(queue) == before


def test_an_edited_file_is_taken_without_an_editor_and_kept_text_can_be_sent(made: Entities) -> None:
    queue = made.queue(named("orders"))
    made.send(queue, compose(body="a", message_id="a"))
    number = str(made.lying(queue)[0].sequence_number)
    shown = made.runner("edit", queue, number, "--dry-run", env=editor(made, swap('"a"', '"b"')))
    file = shown.stderr.partition("--from-file ")[2].split()[0]
    assert Path(file).stat().st_mode & 0o077 == 0
    ran = made.runner("edit", queue, number, "--from-file", file, "--yes", "-o", "json")
    assert (ran.code, ran.data["forwarded"]) == (0, 1), ran
    assert [as_sent(one.payload).payload for one in made.lying(queue)] == [compose(body="b", message_id="b")]
