"""What every command has in common: usage errors, exit codes, pipes, colours, start-up. No namespace is needed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair import __version__
from sbpair.cli.app import GROUPS
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS

COMMANDS = (
    "demo",
    "emulator",
    "provision",
    "audit",
    "cleanup",
    "peek",
    "drain",
    "syphon",
    "send",
    "ping",
    "cost",
    "discover",
    "status",
    "doctor",
    "export",
    "schema",
    "config show",
    "config check",
    "config schema",
    "config use",
    "completion",
)
READING = ("audit", "peek", "status", "doctor", "cost")
"""Their help says that they change nothing."""
NEED_A_PAIR = ("provision", "audit", "cleanup", "peek", "drain", "syphon", "status", "ping")


def test_version(sbpair: Sbpair) -> None:
    ran = sbpair("--version")
    assert (ran.code, ran.stdout) == (0, f"sbpair {__version__}\n")


def test_help_lists_every_command(sbpair: Sbpair) -> None:
    ran = sbpair("--help")
    assert ran.code == 0
    assert ran.stderr == ""
    for command in COMMANDS:
        assert f"\n  {command.split()[0]} " in ran.stdout


def test_help_groups_the_commands_in_the_order_of_the_contract_and_names_common_options_once(sbpair: Sbpair) -> None:
    text = sbpair("--help").stdout
    places = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    assert next(iter(GROUPS)) == "Find and recover"
    for option in ("--config", "--output", "--outfile", "--no-color", "--quiet", "--log-format", "--timeout"):
        assert text.count(f"{option} ") + text.count(f"{option}\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_says_where_the_common_options_are(sbpair: Sbpair, command: str) -> None:
    ran = sbpair(*command.split(), "-h")
    assert ran.code == 0
    examples = ran.stdout.split("Examples:")[1].split("\n\n")[0].strip().splitlines()
    assert len(examples) >= 2
    assert all("sbpair " in line for line in examples)
    assert "(--config, -o, --outfile," in ran.stdout
    assert "\n  --outfile " not in ran.stdout
    assert "see sbpair --help" in " ".join(ran.stdout.split())
    assert not re.search(r"<\w+(\[\w+\])?>|\[\[|range|<=", ran.stdout)
    said = re.search(r"[Rr]eads only|changes nothing|[Cc]ontacts nothing", " ".join(ran.stdout.split()))
    assert bool(said) or command not in READING


def test_an_unknown_command_suggests_the_nearest(sbpair: Sbpair) -> None:
    ran = sbpair("audti")
    assert (ran.code, ran.stdout) == (2, "")
    assert "'audti'" in ran.stderr
    assert "'audit'" in ran.stderr


def test_an_unknown_option_suggests_the_nearest_and_names_the_help(sbpair: Sbpair) -> None:
    ran = sbpair("audit", "--ignroe", "SBP001")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--ignroe" in ran.stderr
    assert "--ignore" in ran.stderr
    assert "sbpair audit --help" in ran.stderr


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("drain --pair orders", "PAIR is an argument: sbpair drain PAIR"),
        ("audit --pair=orders", "PAIR is an argument: sbpair audit PAIR"),
        ("dlq list --entity orders", "ENTITY is an argument: sbpair dlq list ENTITY"),
    ],
)
def test_an_argument_that_is_written_as_an_option_is_named(sbpair: Sbpair, line: str, right: str) -> None:
    ran = sbpair(*line.split())
    assert (ran.code, right in ran.stderr) == (2, True), ran


def test_no_command_at_all_shows_the_help(sbpair: Sbpair) -> None:
    ran = sbpair()
    assert ran.code == 2
    assert "Usage: sbpair" in ran.stdout + ran.stderr


@pytest.mark.parametrize("command", NEED_A_PAIR)
def test_without_configuration_a_command_says_how_to_write_one(sbpair: Sbpair, command: str) -> None:
    ran = sbpair(command)
    assert (ran.code, ran.stdout) == (2, "")
    assert "No pair is configured" in ran.stderr
    assert "sbpair demo" in ran.stderr
    assert "local" in ran.stderr


@pytest.mark.parametrize("arguments", [("-o", "json", "audit"), ("audit", "-o", "json"), ("audit", "--output=json")])
def test_common_options_work_before_and_after_the_command(sbpair: Sbpair, arguments: tuple[str, ...]) -> None:
    ran = sbpair(*arguments)
    assert ran.code == 2
    document = json.loads(ran.stdout)
    assert list(document) == ["command", "version", "exit_code", "exit_name", "error"]
    assert (document["command"], document["exit_code"], document["exit_name"]) == ("audit", 2, "usage")
    assert list(document["error"]) == ["code", "message", "hint"]
    assert document["error"]["code"] == "configuration"


def test_an_option_after_the_command_wins_over_one_before(sbpair: Sbpair) -> None:
    ran = sbpair("-o", "json", "cost", "--explain-prices", "-o", "tsv")
    assert ran.stdout.startswith("meter\tunit\t")


def test_options_of_a_group_are_taken_at_every_place(sbpair: Sbpair) -> None:
    for arguments in (
        ("-o", "json", "config", "show"),
        ("config", "-o", "json", "show"),
        ("config", "show", "-o", "json"),
    ):
        assert sbpair(*arguments).data["files"] == []


def test_a_usage_error_of_the_parser_is_json_too(sbpair: Sbpair) -> None:
    ran = sbpair("audit", "-o", "json", "--nope")
    assert ran.code == 2
    assert "--nope" in ran.error["message"]


def test_a_bad_duration_names_the_option_that_can_be_written(sbpair: Sbpair) -> None:
    ran = sbpair("cost", "--outage", "4 parsecs")
    assert ran.code == 2
    assert "'4 parsecs'" in ran.stderr
    assert "1h30m" in ran.stderr


def test_nagios_output_of_a_failure_is_unknown(sbpair: Sbpair) -> None:
    ran = sbpair("audit", "-o", "nagios")
    assert ran.code == 3
    assert ran.stdout.startswith("SBPAIR UNKNOWN - No pair is configured")


def test_a_format_that_a_command_does_not_have_is_a_usage_error(sbpair: Sbpair) -> None:
    ran = sbpair("config", "show", "-o", "junit")
    assert (ran.code, ran.stdout) == (2, "")
    assert "junit" in ran.stderr


def test_a_closed_pipe_ends_quietly_with_0(sbpair: Sbpair) -> None:
    process = sbpair.start("config", "schema")
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="a shell pipe")
def test_head_does_not_break_a_pipeline(sbpair: Sbpair) -> None:
    line = f"set -o pipefail; '{sys.executable}' -m sbpair cost --explain-prices | head -1"
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        encoding="utf-8",
        env=sbpair.variables(),
        cwd=sbpair.home,
        timeout=LIMIT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "variables",
    [{}, {"GITHUB_ACTIONS": "true", "CI": "true"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}],
    ids=lambda variables: " ".join(variables) or "plain",
)
@pytest.mark.parametrize("arguments", [("audit", "--help"), ("cost", "--explain-prices", "-o", "table"), ("audit",)])
def test_a_pipe_never_gets_escapes(sbpair: Sbpair, variables: dict[str, str], arguments: tuple[str, ...]) -> None:
    ran = sbpair(*arguments, env=variables)
    assert "\x1b" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cost --messages-per-day 100x", "'--messages-per-day': '100x' is not a whole number. Write 100, 100k or 1M."),
        ("cost --messages-per-day 1.5", "'1.5' is not a whole number"),
        ("emulator --port 70000", "'--port': '70000' is out of range: from 0 to 65,535."),
        ("drain orders --rate -5", "'--rate': '-5' is out of range: 0.01 or more."),
        ("cost --outage 15x", "--outage: '15x' is not a duration. Write 30s"),
    ],
)
def test_a_bad_number_or_duration_is_told_with_its_option(sbpair: Sbpair, line: str, said: str) -> None:
    ran = sbpair(*line.split())
    assert (ran.code, ran.stdout) == (2, "")
    assert said in ran.stderr


def test_numbers_may_be_written_short(sbpair: Sbpair) -> None:
    short, long = (sbpair("cost", "--messages-per-day", text, "-o", "json") for text in ("1.2M", "1200000"))
    assert short.code == long.code == 0
    assert short.data == long.data


@pytest.mark.parametrize("line", ["move contoso-weu:a contoso-weu:b --yes", "config show"])
def test_a_format_that_a_command_lacks_is_refused_before_it_begins(sbpair: Sbpair, line: str) -> None:
    """Nobody has configured anything, which is what the command would find out first."""
    ran = sbpair(*line.split(), "-o", "html")
    assert (ran.code, ran.stdout) == (2, "")
    assert "has no output format 'html'; it has table, json, jsonl, yaml, tsv, markdown." in ran.stderr


def test_a_format_that_a_command_has_only_sometimes_is_told_afterwards(sbpair: Sbpair) -> None:
    ran = sbpair("cost", "--explain-prices", "-o", "nagios")
    assert ran.code == 3, "unknown, in the words of monitoring"
    assert "has no output format 'nagios'" in ran.stderr + ran.stdout


def test_an_outfile_that_cannot_be_written_is_a_failure(sbpair: Sbpair) -> None:
    (sbpair.home / "file").write_text("x", encoding="utf-8")
    ran = sbpair("cost", "--explain-prices", "--outfile", str(sbpair.home / "file" / "out.txt"))
    assert ran.code == 1
    assert "Cannot write" in ran.stderr
    assert "Nothing was done." in ran.stderr


def test_an_outfile_holds_what_stdout_would(sbpair: Sbpair) -> None:
    path = sbpair.home / "deep" / "prices.json"
    ran = sbpair("cost", "--explain-prices", "-o", "json", "--outfile", str(path))
    assert (ran.code, ran.stdout) == (0, "")
    assert path.read_text(encoding="utf-8") == sbpair("cost", "--explain-prices", "-o", "json").stdout


def test_a_file_named_like_the_configuration_is_found_upwards(sbpair: Sbpair, tmp_path: Path) -> None:
    (tmp_path / "sbpair.yaml").write_text("version: 1\nauht: azure-cli\n", encoding="utf-8")
    ran = sbpair("config", "check", "-o", "json")
    assert ran.code == 2
    assert ran.error["message"].endswith("sbpair.yaml:2: unknown key 'auht'.")
    assert ran.error["hint"] == "Did you mean 'auth'?"
