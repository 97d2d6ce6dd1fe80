"""`sbpair diff` and `sbpair export --namespace`, as an operator runs them."""

import json
from pathlib import Path

import pytest

from sbpair.cli.inspection.diff import read_snapshot
from tests.cli.process import Sbpair

SEED = """\
contoso-weu:
  tier: Premium
  queues:
    orders: {lock_duration_seconds: 30, forward_to: later}
    later: {max_size_in_megabytes: 81920}
  topics:
    news: {subscriptions: {all: {}, some: {rules: {big: {sql: amount > 1000}}}}}
  keys: {sender: {rights: [Send], key: {env: NOT_SET}}}
"""
OTHER = (
    SEED.replace("lock_duration_seconds: 30, ", "")
    .replace("> 1000", "> 999")
    .replace("    later", "    extra: {}\n    later")
)


@pytest.fixture
def files(sbpair: Sbpair) -> Path:
    (sbpair.home / "a.yaml").write_text(SEED, encoding="utf-8")
    (sbpair.home / "b.yaml").write_text(OTHER, encoding="utf-8")
    return sbpair.home


def test_two_files_differ_by_entities_settings_and_rules(sbpair: Sbpair, files: Path) -> None:
    ran = sbpair("diff", "a.yaml", "b.yaml", "-o", "json")
    assert ran.code == 5, ran
    found = [(one["entity"], one["what"], one["a"], one["b"]) for one in ran.data["differences"]]
    assert found == [
        ("extra", "entity", None, "queue"),
        ("news/Subscriptions/some", "rule big", "amount > 1000", "amount > 999"),
        ("orders", "lock duration", "30s", "1m"),
    ]
    assert (ran.data["same"], ran.data["ignored"]) == (False, 0)
    assert sbpair("diff", "a.yaml", "b.yaml").records[2]["what"] == "lock duration"
    assert (
        "| orders | queue | lock duration | 30s | 1m |" in sbpair("diff", "a.yaml", "b.yaml", "-o", "markdown").stdout
    )
    assert "3 differences in 3 entities" in ran.stderr
    assert sbpair("diff", "a.yaml", "a.yaml").code == 0


def test_what_is_ignored_is_counted(sbpair: Sbpair, files: Path) -> None:
    ignore = ("--ignore", "EXTRA", "--ignore", "*:rule *", "--ignore", "ord*:lock duration")
    ran = sbpair("diff", "a.yaml", "b.yaml", *ignore, "-o", "json")
    assert (ran.code, ran.data["same"], ran.data["ignored"]) == (0, True, 3)
    assert "3 differences ignored" in ran.stderr
    assert sbpair("diff", "a.yaml", "b.yaml", *ignore[:-1], "ord*:status").code == 5


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.json", None, "no file missing.json"),
        ("two.yaml", "one: {}\ntwo: {}\n", "2 namespaces"),
        ("seed.yaml", "one: {queues: {orders: {lock_duration_seconds: 999}}}\n", "line 1"),
        ("snapshot.json", '{"format_version": 2}', "format version 2"),
        ("snapshot.json", '{"format_version": 1', "Cannot read snapshot.json"),
        ("snapshot.json", '{"snapshots": [{"format_version": 1}]}', "snapshot"),
        ("binary.json", "\x00\x01", "binary.json"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    sbpair: Sbpair, files: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (files / name).write_text(text, encoding="utf-8")
    ran = sbpair("diff", "a.yaml", name)
    assert (ran.code, ran.stdout) == (2, ""), ran
    assert said in ran.stderr


def test_a_live_namespace_as_files_that_are_the_same(local: Sbpair) -> None:
    assert local("entity", "create", "orders-parked", "--pair", "local", "--lock", "2m", "--yes").code == 0
    assert local("entity", "create", "news", "--topic", "--pair", "local", "--yes").code == 0
    assert local("entity", "create", "news/Subscriptions/all", "--pair", "local", "--yes").code == 0
    for kind in ("config-json", "snapshot", "terraform", "bicep"):
        ran = local("export", kind, "--namespace", "local-primary", "--dir", "code", "-o", "json")
        assert ran.code == 0, ran
        assert ran.data["pair"] is None
        assert ("Not in the file: messages" in ran.stderr) == (kind != "snapshot")
        for path in (Path(one["path"]) for one in ran.data["files"]):
            assert "SharedAccessKey=" not in (local.home / path).read_text(encoding="utf-8")
    for file in ("Config.json", "sbpair-local-primary.json"):
        ran = local("diff", f"code/{file}", "local-primary", "-o", "json")
        assert (ran.code, ran.data["same"]) == (0, True), ran
    assert json.loads((local.home / "code" / "Config.json").read_text())["UserConfig"]["Namespaces"][0]["Queues"]
    assert local("entity", "delete", "news", "--pair", "local", "--yes").code == 0
    changed = local("diff", "code/sbpair-local-primary.json", "local-primary", "-o", "json")
    assert changed.code == 5
    assert {one["entity"] for one in changed.data["differences"]} == {"news", "news/Subscriptions/all"}
    assert changed.data["a"]["taken_at"] < changed.data["b"]["taken_at"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("alerts --namespace local-primary", "is not of a namespace"),
        ("config-json", "name it with --namespace"),
        ("snapshot orders", "name it with --namespace"),
        ("bicep orders --namespace local-primary --auth azure-cli", "and no pair"),
    ],
)
def test_export_says_what_is_of_a_namespace(sbpair: Sbpair, line: str, said: str) -> None:
    ran = sbpair("export", *line.split())
    assert (ran.code, ran.stdout) == (2, ""), ran
    assert said in ran.stderr


def test_a_plan_is_no_snapshot_although_it_has_a_version(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"plans": [{"format_version": 1}]}')
    assert read_snapshot(plan) is None
