"""Before anything is written: it is said and asked on a terminal, and never done to a pair that nobody named."""

import json
from pathlib import Path

import pytest

from tests.cli.process import Sbpair
from tests.cli.screens import answer

PRIMARY, SECONDARY = "local-primary [production]", "local-secondary [production]"
WRITING = [
    (("drain", "mine"), f"messages of the backlog queues on {SECONDARY} back to {PRIMARY}?", "Nothing was moved."),
    (("syphon", "mine", "--dlq"), f"dead letters of the backlog queues on {SECONDARY}", "Nothing was moved."),
    (("send", "mine", "orders", "-f", "lines"), f"Send to orders on {PRIMARY}", "Nothing was sent."),
    (("restore", "saved.jsonl", "--pair", "mine"), f"Restore 0 messages to {PRIMARY}?", "Nothing was sent."),
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
    assert question in shown, shown
    assert screen.code == 2, shown
    assert f"The answer was no. {state}" in shown


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


def test_a_yes_goes_on_and_so_does_the_option(home: Sbpair) -> None:
    assert home("provision", "mine", "--yes", env=configured(home)).code == 0
    home.make_queue("asked")
    send = ("send", "mine", "asked", "-f", "lines")
    screen = answer(home, *send, question="[y/N]", typed="y", environ=configured(home))
    assert screen.code == 0, screen
    assert "Send to asked on local-primary [production], to the backlog on local-secondary" in screen.shown
    quiet = home(*send, "--yes", env=configured(home))
    assert (quiet.code, "[y/N]" in quiet.stderr) == (0, False)
    browsed = home("peek", "local", "--entity", "asked", "--side", "primary", "-o", "json")
    assert len(browsed.data["messages"]) == 2


def test_a_dry_run_is_not_asked_about(home: Sbpair) -> None:
    assert home("provision", "mine", "--yes", env=configured(home)).code == 0
    shown = home("drain", "mine", "--dry-run", env=configured(home))
    assert (shown.code, "[y/N]" in shown.stderr) == (0, False), shown
