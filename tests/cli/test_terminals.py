"""Every command on terminals of every width and kind, and in pipes whose reader goes: readable, quiet, no traceback."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.cells import cell_len

from sbpair.cli.app import COMMANDS
from tests.cli.process import Sbpair
from tests.cli.screens import Job, Screen, answer, show, show_each
from tests.waiting import LIMIT_SECONDS

LINES: Mapping[str, tuple[str, ...]] = {
    "demo": ("demo --help",),
    "discover": ("discover --help",),
    "emulator": ("emulator --not-emulated", "emulator fault list"),
    "provision": ("provision local --dry-run", "provision local --queues 12 --dry-run --exit-zero"),
    "audit": ("audit local --exit-zero", "audit --list-checks", "audit --explain SBP001"),
    "cleanup": ("cleanup local --exit-zero",),
    "peek": ("peek local --body", "peek local --group-by destination,session", "peek local --queue 99"),
    "drain": ("drain local --dry-run --exit-zero",),
    "syphon": ("syphon --help",),
    "restore": ("restore --help",),
    "evacuate": ("evacuate local-primary local-secondary --dry-run --exit-zero", "evacuate --help"),
    "entity": (
        "entity list --pair local",
        "entity show orders --pair local",
        "entity peek orders --pair local",
        "entity create --help",
    ),
    "rules": ("rules --help", "rules unmatched --help"),
    "diff": ("diff local-primary local-secondary --exit-zero",),
    "move": ("move --help",),
    "promotion": ("promotion --help", "promotion report --help"),
    "copy": ("copy --help",),
    "edit": ("edit --help",),
    "purge": ("purge --help",),
    "dlq": ("dlq --help", "dlq list orders --pair local", "dlq resubmit --help"),
    "replicate": ("replicate provision local parcels --dry-run --exit-zero",),
    "send": ("send local orders --file lines",),
    "gateway": ("gateway --help",),
    "drill": ("drill local orders --dry-run --exit-zero",),
    "ping": ("ping local --count 1 --interval 0",),
    "cost": ("cost --messages-per-day 100000 --queues 5,10 --compare", "cost --explain-prices"),
    "status": ("status local --interval 0", "status local --watch --interval 10ms --count 2"),
    "doctor": ("doctor local",),
    "pipeline": ("pipeline --help", "pipeline analyze --help"),
    "export": ("export --help", "export alerts --dir rules"),
    "config": ("config show", "config check", "config --help"),
    "schema": ("schema", "schema audit"),
    "completion": ("completion bash",),
    "incident": ("incident --help",),
    "report": ("report --help",),
    "exporter": ("exporter --help",),
    "top": ("top --help",),
    "explain": ("explain --help",),
    "session": ("session --help",),
    "message": ("message --help",),
    "undefer": ("undefer --help",),
    "cheat": ("cheat", "cheat drain"),
    "help": ("help", "help permissions", "help exit-codes", "help config", "help environment"),
}
"""What every command prints with some of everything: tables, prose, documents, help pages, errors."""
ALL = [line for lines in LINES.values() for line in lines]
SOME = (
    "audit --list-checks",
    "audit --explain SBP001",
    "config show",
    "cost --messages-per-day 100000 --queues 5,10 --compare",
    "emulator --not-emulated",
    "help config",
    "peek local --body",
    "pipeline --help",
    "schema audit",
    "status local --watch --interval 10ms --count 2",
)
"""One of each kind."""
WIDTHS = (60, 80, 200)
AS_THEY_ARE = ("--help", "schema", "completion", "help config")
"""Documents and examples are not broken; the terminal does it."""
TO_COPY = re.compile(r"  sbpair |'https://")
"""A line that begins so is whole, and broken by the terminal: it is copied as one."""
LEAST_COLUMNS = 60

PUT = """\
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main():
    async with open_sides(load().pair("local")) as sides:
        sender = sides.secondary.sender("local-primary/x-servicebus-transfer/3")
        bodies = ("plain", "Gr\\u00fc\\u00dfe \\u2014 \\u4f60\\u597d \\U0001f680", "\\x1b[31mred")
        for number, body in enumerate(bodies):
            payload = compose(message_id=f"m{number}", subject=f"\\u00dcbung {number}", body=body)
            await sender.send([for_backlog(payload, "invoices/incoming")], timeout_seconds=30)
        await sender.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def full(local: Sbpair) -> Sbpair:
    """The pair `local` with a backlog, in a home with a configuration."""
    assert local("provision", "local").code == 0
    local.make_queue("orders")
    local.python(PUT)
    (local.home / "lines").write_text("one\ntwo\n", encoding="utf-8")
    (local.home / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  trouble: {primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}, "
        "environment: \u00e4rger}\n",
        encoding="utf-8",
    )
    assert local("status", "local", "--interval", "0").code == 0  # the first use of that file is told here
    return local


def test_every_command_is_among_them() -> None:
    assert set(LINES) == set(COMMANDS)


def assert_sound(line: str, screen: Screen) -> None:
    text = screen.shown + screen.talk
    assert screen.code in (0, 1) if "--queue 99" in line else screen.code == 0, (line, screen)
    assert "Traceback" not in text, (line, text)
    assert "defect" not in text, (line, text)
    assert "Error" not in screen.shown, (line, text)


@pytest.mark.parametrize("columns", WIDTHS)
def test_nothing_is_wider_than_the_terminal_and_nothing_breaks(full: Sbpair, columns: int) -> None:
    lines = ALL if columns == LEAST_COLUMNS else [*SOME, "audit local --exit-zero", "status local --interval 0"]
    screens = show_each(full, [Job(line.split(), columns) for line in lines])
    for line, screen in zip(lines, screens, strict=True):
        assert_sound(line, screen)
        if not any(word in line for word in AS_THEY_ARE):
            wide = [one for one in screen.lines if cell_len(one) > columns and not TO_COPY.match(one)]
            assert not wide, (line, wide)


def test_help_fits_a_narrow_terminal_but_for_its_examples(full: Sbpair) -> None:
    jobs = [Job([name, "--help"], LEAST_COLUMNS) for name in COMMANDS]
    for job, screen in zip(jobs, show_each(full, jobs), strict=True):
        wide = [one for one in screen.lines if cell_len(one) > LEAST_COLUMNS]
        assert not [one for one in wide if not any(sign in one for sign in ("sbpair ", "--", "|"))], (job, wide)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("status local --interval 0", ("Queue State", "Backlog queues local-primary/x-servicebus-transfer/...")),
        ("peek local --body", ("Destination invoices/incoming", "Message id")),
        ("ping local --count 1 --interval 0", ("Entity  connect ms  p50 ms", "By browse; Result ok")),
        ("audit --list-checks", ("Code    Severity  Of         What it finds",)),
    ],
)
def test_tables_at_60_columns_are_tables_or_blocks_that_can_be_read(
    full: Sbpair, line: str, said: tuple[str, ...]
) -> None:
    (screen,) = show_each(full, [Job(line.split(), LEAST_COLUMNS)])
    flat = " ".join(" ".join(screen.lines).split())
    for words in said:
        assert " ".join(words.split()) in flat, screen.shown


def test_a_wide_terminal_gets_one_grid(full: Sbpair) -> None:
    screen = show(full, "status", "local", "--interval", "0", columns=200)
    assert "\u2588" in screen.shown
    assert sum("local-primary/x-servicebus-transfer/" in line for line in screen.lines) == 1
    assert {line.split()[0] for line in screen.lines if line} >= set(map(str, range(10)))
    assert "Same in all" not in screen.shown


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"CI": "true", "GITHUB_ACTIONS": "true"}, True),
        ({"CI": "true", "GITHUB_ACTIONS": "true", "NO_COLOR": "1"}, False),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_colours_are_for_terminals_that_want_them(full: Sbpair, environ: dict[str, str], colours: bool) -> None:
    jobs = [Job(line.split(), 80, environ) for line in (*SOME, "status local --interval 0 --no-color")]
    *screens, without = show_each(full, jobs)
    for job, screen in zip(jobs, screens, strict=False):
        assert_sound(" ".join(job.arguments), screen)
        if not colours:
            assert not screen.colours, job
        if environ.get("TERM") == "dumb":
            assert "\x1b" not in screen.shown, job
    assert not without.colours
    listed = next(s for job, s in zip(jobs, screens, strict=False) if "--list-checks" in job.arguments)
    assert bool(listed.colours) is colours


def test_the_question_before_a_deletion_is_coloured_unless_forbidden(full: Sbpair) -> None:
    assert full("provision", "local", "--queues", "11").code == 0
    full.python(PUT.replace("transfer/3", "transfer/10"))
    ask = ("cleanup", "local", "--yes")
    question = "Type its name"
    assert answer(full, *ask, question=question, typed="").colours
    for arguments, environ in (((), {"NO_COLOR": "1"}), (("--no-color",), {})):
        screen = answer(full, *ask, *arguments, question=question, typed="", environ=environ)
        assert question in screen.shown
        assert not screen.colours
    typed = answer(full, *ask, question=question, typed="local-primary/x-servicebus-transfer/10")
    assert (typed.code, "deleted" in typed.talk) == (0, True), typed


def test_a_question_is_read_once_whatever_the_answer(full: Sbpair) -> None:
    drain = ("drain", "local", "--destination", "nothing/that/is/there/so/that/the/question/takes/two/lines")
    for answered, code in (("n", 2), ("y", 0)):
        screen = answer(full, *drain, question="[y/N]", typed=answered)
        lines = [line for line in screen.lines if line]
        (asked,) = [line for line in lines if "[y/N]" in line]
        assert re.search(rf"\w\? \[y/N\]: ?{answered}$", asked), "the answers stand behind words"
        assert (screen.code, screen.shown.count("Drain local")) == (code, 1), screen
        assert "0 messages would go back to local-primary" in " ".join(screen.lines), "what would become of them"


def test_a_dumb_terminal_shows_every_look_as_it_comes(full: Sbpair) -> None:
    watch = ("status", "local", "--watch", "--interval", "10ms", "--count", "3")
    screen = show(full, *watch, environ={"TERM": "dumb"})
    assert sum("primary=reachable" in line for line in screen.lines) == 3


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_a_terminal_has_no_sign_for_is_escaped(full: Sbpair, encoding: str) -> None:
    screens = show_each(full, [Job(line.split(), 80, {}, encoding) for line in SOME])
    for line, screen in zip(SOME, screens, strict=True):
        assert_sound(line, screen)
    bodies = screens[SOME.index("peek local --body")].shown
    assert "\\u4f60\\u597d \\ud83d\\ude80" in bodies
    assert ("Gr\\u00fc\\u00dfe" if encoding == "ascii" else "Gr\u00fc\u00dfe") in bodies
    checked = screens[SOME.index("config show")].shown
    assert ("\\u00e4rger" if encoding == "ascii" else "\u00e4rger") in checked


def test_the_c_locale_is_no_trouble(full: Sbpair) -> None:
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line in ("config check", "peek local --body", "help permissions", "audit --list-checks -o table"):
        ran = full(*line.split(), env=plain)
        assert (ran.code, ran.stderr) == (0, ""), (line, ran)
        assert ran.stdout.isascii()


def test_a_reader_that_has_gone_is_no_failure_of_any_command(full: Sbpair) -> None:
    lines = [line for line in ALL if "--queue 99" not in line]
    screens = show_each(full, [Job(line.split(), reader=False) for line in lines])
    for line, screen in zip(lines, screens, strict=True):
        assert_sound(line, screen)


@pytest.mark.skipif(os.name == "nt", reason="a shell's pipe")
@pytest.mark.parametrize("line", [*SOME, "--version", "--help", "drain --help", "emulator fault list"])
def test_a_reader_that_has_seen_enough_is_no_failure(full: Sbpair, line: str) -> None:
    quiet = ["-q"] if line.startswith("cost ") else []  # its closing sentence goes to stderr, in a pipe, too
    command = " ".join(f"'{word}'" for word in full.command([*line.split(), *quiet]))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1 >&2; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        encoding="utf-8",
        env=full.variables(),
        cwd=full.home,
        timeout=LIMIT_SECONDS,
    )
    assert done.stdout == "0\n", done
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_talk_that_nobody_listens_to_stops_no_work(full: Sbpair, tmp_path: Path) -> None:
    """stderr into a pipe whose reader is gone: a send goes on and says so on stdout."""
    reading, writing = os.pipe()
    os.close(reading)
    process = full.start("send", "local", "orders", "--file", "lines", "-v", "-o", "json", stderr=writing)
    os.close(writing)
    out, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert json.loads(out)["data"]["accepted"] == 2


def test_records_that_nobody_reads_stop_no_sending(full: Sbpair) -> None:
    (full.home / "many").write_text("x\n" * 200, encoding="utf-8")
    full.make_queue("unread")
    reading, writing = os.pipe()
    os.close(reading)
    process = full.start("send", "local", "unread", "--file", "many", "-o", "jsonl", stdout=writing)
    os.close(writing)
    _, talk = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, talk
    assert "Traceback" not in talk
    counted = full("peek", "local", "--side", "primary", "--entity", "unread", "-n", "1000", "-o", "json")
    assert len(counted.data["messages"]) == 200


def test_closed_streams_are_no_trouble(full: Sbpair) -> None:
    command = " ".join(f"'{word}'" for word in full.command(("audit", "--list-checks")))
    for closed in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
        done = subprocess.run(
            ["bash", "-c", f"{command} {closed}"],
            capture_output=True,
            env=full.variables(),
            cwd=full.home,
            timeout=LIMIT_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, b""), closed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("audit --list-checks", "Make room"),
        ("--version", "Fix this (space"),
        ("config show -o json", "--outfile"),
        ("--help", "Fix this (space"),
        ("entity create local-primary:kept --yes -o json", "exit code 0. kept on local-primary is created"),
        ("entity delete local-primary:kept --yes --outfile /dev/full", "The queue kept on local-primary is deleted"),
    ],
)
def test_output_onto_a_full_disk_is_a_failure_and_tells_what_was_done(full: Sbpair, line: str, said: str) -> None:
    with Path("/dev/full").open("w") as disk:
        process = full.start(*line.split(), stdout=disk)
        _, talk = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "No space left" in talk
    assert said in talk
    assert "Traceback" not in talk
