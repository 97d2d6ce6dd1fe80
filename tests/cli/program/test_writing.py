"""Before anything is written: it is said and asked on a terminal, and never done to a pair that nobody named."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.process import Sbpair
from tests.cli.screens import answer

HOST = re.compile(r" at 127\.0\.0\.1:[0-9]+")
PRIMARY, SECONDARY = "local-primary [production]", "local-secondary [production]"
WRITING = [
    (("drain", "mine"), f"messages of the backlog queues on {SECONDARY} back to {PRIMARY}?", "Nothing was moved."),
    (("syphon", "mine", "--dlq"), f"dead letters of the backlog queues on {SECONDARY}", "Nothing was moved."),
    (("send", "mine", "orders", "-f", "lines"), f"Send to orders on {PRIMARY}", "Nothing was sent."),
    (
        ("restore", "saved.jsonl", "--pair", "mine"),
        f"Restore 0 messages to {PRIMARY}; without --ledger the same command would send them again?",
        "Nothing was sent.",
    ),
    (("ping", "mine", "orders", "--message"), f"Send ping messages to orders on {PRIMARY}?", "Nothing was sent."),
    (
        ("replicate", "provision", "mine", "parcels"),
        f"Create parcels on {PRIMARY} and {SECONDARY}",
        "Nothing was changed.",
    ),
    (
        ("replicate", "send", "mine", "orders", "-f", "lines", "--session-id", "s"),
        f"Send to orders on {PRIMARY} and {SECONDARY}",
        "Nothing was sent.",
    ),
    (
        ("replicate", "consume", "mine", "orders", "--exec", "cat", "--journal", "sqlite:j.db"),
        f"Consume orders on {PRIMARY} and {SECONDARY}",
        "Nothing was received.",
    ),
    (
        ("pipeline", "archive", "mine", "--archive", "archive", "--take"),
        f"Take the messages of the backlog queues on {SECONDARY} into archive",
        "Nothing was taken.",
    ),
    (
        ("pipeline", "replay", "mine", "--archive", "archive", "--ledger", "replayed"),
        f"Replay messages of archive to {PRIMARY}?",
        "Nothing was sent.",
    ),
]
LINES = [" ".join(arguments) for arguments, _, _ in WRITING]


@pytest.fixture(scope="module")
def home(local: Sbpair) -> Sbpair:
    """`local` with a configured pair `mine` in production over the same namespaces, and some input files."""
    state = json.loads((local.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    pair = {
        side: {
            "namespace": one["name"],
            "host": "localhost",
            "connection_string": {"file": one["connection_string_file"]},
            "ca_file": state["ca_file"],
        }
        for side, one in zip(("primary", "secondary"), state["namespaces"], strict=True)
    }
    document = {"version": 1, "pairs": {"mine": pair | {"environment": "production"}}}
    (local.home / "sbpair.json").write_text(json.dumps(document), encoding="utf-8")
    (local.home / "lines").write_text("hello\n", encoding="utf-8")
    (local.home / "saved.jsonl").write_text("", encoding="utf-8")
    return local


def configured(home: Sbpair) -> dict[str, str]:
    return {"SBPAIR_CONFIG": str(Path(home.home) / "sbpair.json")}


@pytest.mark.parametrize(("arguments", "question", "state"), WRITING, ids=LINES)
def test_it_says_where_it_writes_and_a_no_changes_nothing(
    home: Sbpair, arguments: tuple[str, ...], question: str, state: str
) -> None:
    screen = answer(home, *arguments, question="[y/N]", typed="n", environ=configured(home))
    shown = " ".join(screen.shown.split())
    assert HOST.search(shown), "the name alone does not tell where an embedded namespace is"
    assert question in HOST.sub("", shown), shown
    assert shown.count("[y/N]") == 1, shown
    assert screen.code == 2, shown
    assert f"Cancelled. {state}" in shown


def test_another_answer_is_asked_again(home: Sbpair) -> None:
    screen = answer(home, *WRITING[0][0], question="[y/N]", typed="maybe\rn", environ=configured(home))
    assert "Answer y or n. [y/N]" in screen.shown
    assert screen.code == 2, screen


@pytest.mark.parametrize("line", ["drain mine", "entity delete local-primary:asked-ahead"])
def test_what_was_typed_before_the_question_is_no_answer(home: Sbpair, line: str) -> None:
    home.make_queue("asked-ahead")
    question, ahead = ("[y/N]", "y\n") if line == "drain mine" else ("to go on", "asked-ahead\n")
    screen = answer(home, *line.split(), question=question, typed="n", ahead=ahead, environ=configured(home))
    assert (screen.code, "Cancelled" in screen.shown) == (2, True), screen
    assert home("entity", "delete", "local-primary:asked-ahead", "--yes").code == 0


UNNAMED = [
    [word for word in arguments if word not in ("mine", "--pair")]
    for arguments, _, _ in WRITING
    if arguments[0] != "ping"  # whose first entity would be taken for the pair
]


@pytest.mark.parametrize("arguments", UNNAMED, ids=" ".join)
def test_nothing_is_written_to_a_pair_that_nobody_named(home: Sbpair, arguments: list[str]) -> None:
    ran = home(*arguments, "--no-input", env=configured(home))
    assert ran.code == 2, ran
    assert "No pair was named, and this command writes. Nothing was done." in ran.stderr
    assert f"Name it: {'--pair ' if arguments[0] == 'restore' else ''}mine\n" in ran.stderr


def test_a_yes_goes_on_and_so_does_the_option(home: Sbpair) -> None:
    assert home("provision", "mine", "--yes", env=configured(home)).code == 0
    home.make_queue("asked")
    send = ("send", "mine", "asked", "-f", "lines")
    screen = answer(home, *send, question="[y/N]", typed="y", environ=configured(home))
    assert screen.code == 0, screen
    asked = HOST.sub("", " ".join(screen.shown.split()))
    assert "Send to asked on local-primary [production], to the backlog on local-secondary" in asked
    assert screen.shown.count("[y/N]") == 1, "also where the question needs two lines"
    quiet = home(*send, "--yes", env=configured(home))
    assert (quiet.code, "[y/N]" in quiet.stderr) == (0, False)
    browsed = home("peek", "local", "--entity", "asked", "--side", "primary", "-o", "json")
    assert len(browsed.data["messages"]) == 2


def test_a_dry_run_sends_nothing_and_says_what_would_be_taken(home: Sbpair) -> None:
    home.make_queue("looked-at")
    send = home("send", "mine", "looked-at", "-f", "lines", "--dry-run", "-o", "json", env=configured(home))
    assert send.code == 5, send
    (place,) = send.data["places"]
    assert (send.data["messages"], place["would_take"], place["would_refuse"]) == (1, 1, {})
    assert "1 message would be sent to looked-at on local-primary. Nothing was sent." in HOST.sub("", send.stderr)
    both = ("replicate", "send", "mine", "looked-at", "-f", "lines", "--session-id", "s", "--dry-run", "-o", "json")
    twice = home(*both, env=configured(home))
    assert twice.code == 5, twice
    assert [place["would_take"] for place in twice.data["places"]] == [1, 0]
    assert twice.data["places"][1]["would_refuse"] == {"entity-not-found": 1}
    broken = home("send", "mine", "looked-at", "--input", "jsonl", "--dry-run", stdin="{no\n", env=configured(home))
    assert broken.code == 2
    assert "It would stop at line 1" in broken.stderr
    ping = home("ping", "mine", "looked-at", "--message", "--dry-run", "-c", "1", "-o", "json", env=configured(home))
    assert ping.code == 5, ping
    assert [one["by"] for one in ping.data["entities"]] == ["link"]
    told = HOST.sub("", ping.stderr)
    assert "1 ping message would be sent to each of looked-at on local-primary [production]" in told
    assert home("ping", "mine", "looked-at", "--dry-run", env=configured(home)).code == 2
    browsed = home("peek", "local", "--entity", "looked-at", "--side", "primary", "-o", "json")
    assert browsed.data["messages"] == []


def test_a_dry_run_is_not_asked_about(home: Sbpair) -> None:
    assert home("provision", "mine", "--yes", env=configured(home)).code == 0
    shown = home("drain", "mine", "--dry-run", env=configured(home))
    assert (shown.code, "[y/N]" in shown.stderr) == (0, False), shown
