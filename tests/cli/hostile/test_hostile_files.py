"""Files from strangers: oversized, deeply nested, of wrong types, with escapes and scripts in their names."""

import json
from pathlib import Path

import pytest

from tests.cli.process import Ran, Sbpair

ESCAPE = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e"
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
DEEP = "[" * 200_000
READERS = {
    "snapshot": ("audit", "--snapshot"),
    "cost of a snapshot": ("cost", "--snapshot"),
    "prices": ("cost", "--prices"),
    "usage": ("cost", "--usage"),
    "plan": ("provision", "orders", "--plan"),
    "cleanup plan": ("cleanup", "orders", "--plan"),
    "configuration": ("config", "check", "--config"),
    "seed": ("emulator", "--port", "0", "--seed"),
}
RUINS = {
    "deep.json": DEEP,
    "deep.yaml": "a: " + "{a: " * 3000,
    "wrong.json": json.dumps({"snapshots": [3], "plans": ["x"], "version": [], "pairs": 7, "meters": "no"}),
    "list.json": "[]",
    "nothing.json": "",
    "null.json": "null",
    "nan.json": '{"snapshots": [NaN], "plans": [Infinity]}',
    "bytes.json": "\x00\x01\x02",
    "bomb.yaml": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "circle.yaml": "version: &v [*v]\n",
    "object.yaml": "version: !!python/object/apply:os.system ['touch touched']\n",
}


@pytest.fixture
def configured(sbpair: Sbpair) -> Sbpair:
    (sbpair.home / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  orders: {primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}}\n",
        encoding="utf-8",
    )
    return sbpair


@pytest.mark.parametrize("reader", READERS)
def test_a_ruined_file_is_a_usage_error(configured: Sbpair, reader: str) -> None:
    for name, text in RUINS.items():
        path = configured.home / name
        path.write_text(text, encoding="utf-8")
        if reader in ("configuration", "seed") and name in ("nothing.json", "null.json"):
            continue
        ran = configured(*READERS[reader], str(path), timeout=60)
        assert ran.code == 2, (name, ran)
        assert "Traceback" not in ran.stderr, (name, ran)
        assert any(line.startswith("Error: ") for line in ran.stderr.splitlines()), (name, ran)
        assert len(ran.stderr) < 2000, name
    assert not (configured.home / "touched").exists()


def snapshot(local: Sbpair) -> dict[str, object]:
    path = local.home / "real.json"
    assert local("audit", "local", "--snapshot-out", str(path)).code in (0, 5)
    document: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return document


def poisoned(value: object, poison: str) -> object:
    """The document with the poison in every text that names something."""
    if isinstance(value, dict):
        named = ("name", "path", "reason", "label", "host")
        return {k: v + poison if k in named and isinstance(v, str) else poisoned(v, poison) for k, v in value.items()}
    return [poisoned(item, poison) for item in value] if isinstance(value, list) else value


def test_a_snapshot_from_a_stranger_drives_neither_terminal_nor_browser_nor_files(local: Sbpair) -> None:
    document = snapshot(local)
    path = local.home / "hostile.json"
    path.write_text(json.dumps(poisoned(document, ESCAPE + SCRIPT + "/../../up")), encoding="utf-8")
    before = files(local.home.parent)
    for output in ("table", "tsv", "jsonl", "json", "yaml", "markdown", "github", "junit", "nagios", "prometheus"):
        ran = local("audit", "--snapshot", str(path), "-o", output, "--history", "history", "--exit-zero")
        assert_tame(ran)
    page = local("audit", "--snapshot", str(path), "-o", "html", "--exit-zero")
    assert_tame(page)
    assert "<script>alert" not in page.stdout
    assert "<img src=x" not in page.stdout
    new = {one.relative_to(local.home.parent) for one in files(local.home.parent) - before}
    assert all(one.parts[:2] == (local.home.name, "history") for one in new if one.suffix == ".jsonl"), new


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def assert_tame(ran: Ran) -> None:
    assert "Traceback" not in ran.stderr, ran.stderr
    for text in (ran.stdout, ran.stderr):
        assert not [sign for sign in "\x1b\x07\x9b\u202e" if sign in text]


def test_a_file_that_is_no_ledger_is_neither_cut_nor_continued(configured: Sbpair) -> None:
    for text in ("one line without an end", '{"queue": 1}\n', '{"queue": [], "sequence_number": {}}\n', "x\ny\n"):
        path = configured.home / "precious"
        path.write_text(text, encoding="utf-8")
        ran = configured("drain", "orders", "--ledger", str(path), env={"SBPAIR_AUTH": "environment"})
        assert ran.code == 2, ran
        assert "not a line of a ledger" in ran.stderr
        assert path.read_text(encoding="utf-8") == text


def test_a_device_as_output_stays_a_device(configured: Sbpair) -> None:
    ran = configured("config", "schema", "--outfile", "/dev/null")
    assert ran.code == 0
    assert Path("/dev/null").is_char_device()
