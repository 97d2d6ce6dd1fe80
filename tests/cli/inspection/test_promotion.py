"""`sbpair promotion report`, as an operator runs it after a promotion."""

import shlex

import pytest

from tests.cli.process import Sbpair


def test_what_is_gone_back_and_fewer_is_said_with_a_command_for_each(local: Sbpair) -> None:
    where = ("--namespace", "local-primary")
    for name in ("orders", "parked"):
        assert local("entity", "create", name, *where, "--yes").code == 0
    assert local("send", "local", "orders", "--message-id", "first", stdin="one").code == 0
    assert local("export", "snapshot", *where, "--dir", "last").code == 0
    snapshot = ("--snapshot", "last/sbpair-local-primary.json")
    browsed = local("peek", "local", "--entity", "orders", "--side", "primary", "-o", "jsonl")
    (local.home / "peeked.jsonl").write_text(browsed.stdout, encoding="utf-8")
    files = (*snapshot, "--archive", "peeked.jsonl")
    report = ("promotion", "report", *where, *files)
    nothing = local(*report, "-o", "json")
    assert (nothing.code, nothing.data["claims"], nothing.data["known"]) == (0, [], 1), nothing
    moved = local("move", "local-primary:orders", "local-primary:parked", "--ledger", "moved.jsonl", "--yes")
    assert moved.code == 0, moved
    assert local("promotion", "report", *where, "--ledger", "moved.jsonl", "--archive", "peeked.jsonl").code == 0
    assert local("purge", "parked", *where, "--no-archive", "--yes").code == 0
    ran = local(*report, "--consumers-stopped", "-o", "json")
    assert ran.code == 5
    found = {one["claim"]: one for one in ran.data["claims"]}
    assert set(found) == {"lost", "fewer"}
    assert found["lost"]["entity"] == "orders"
    again = shlex.split(found["lost"]["command"])[1:]
    assert again[:2] == ["restore", "peeked.jsonl"]
    assert "1 lost, 1 fewer" in ran.stderr
    unsure = local(*report, "-o", "json")
    assert {one["claim"] for one in unsure.data["claims"]} == {"unaccounted", "fewer"}
    assert "--consumers-stopped" in unsure.stderr
    assert local(*report, "--since", "2h").code == 5
    assert local(*again, "--yes").code == 0
    assert local(*report, "--since", "1ms", "--exit-zero").code == 0
    assert local("promotion", "report", *where, "--archive", "peeked.jsonl").code == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "nothing to compare"),
        ("--snapshot missing.json", "missing.json"),
        ("--snapshot plain.json", "no snapshot"),
        ("--ledger missing.jsonl --namespace contoso-weu --auth azure-cli", "There is no ledger missing.jsonl"),
        (
            "--archive missing.jsonl --namespace contoso-weu --auth azure-cli",
            "There is no file or folder missing.jsonl.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(sbpair: Sbpair, line: str, said: str) -> None:
    (sbpair.home / "plain.json").write_text("{}", encoding="utf-8")
    ran = sbpair("promotion", "report", *line.split())
    assert (ran.code, ran.stdout) == (2, ""), ran
    assert said in ran.stderr
