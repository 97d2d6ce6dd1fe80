"""`sbpair send` as a real process: lines and JSON lines, failover, round trips with peek, exit codes."""

import base64
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS, until

Fault = Callable[[str, str], None]
PRIMARY = "local-primary"


@pytest.fixture(scope="module", autouse=True)
def queue(local: Sbpair) -> None:
    local.make_queue("orders")
    local.make_queue("copies")
    local.make_queue("values")
    provisioned = local("provision", "local", "--no-input")
    assert provisioned.code == 0, provisioned.stderr


def bodies(local: Sbpair, entity: str) -> list[str]:
    """What waits in a queue of the primary, browsed."""
    asked = ("--side", "primary", "--entity", entity, "--body", "--limit", "1000", "-o", "jsonl")
    browsed = local("peek", "local", *asked)
    assert browsed.code == 0, browsed.stderr
    return [json.loads(line)["body"] for line in browsed.stdout.splitlines()]


def test_raw_lines_and_json_lines(local: Sbpair) -> None:
    sent = local("send", "local", "orders", "-o", "json", stdin="one\n\ntwo\n")
    assert (sent.code, sent.data["accepted"], sent.data["diverted"]) == (0, 2, 0)
    record = {"body": {"n": 3}, "message_id": "m3", "ttl": "1h", "application_properties": {"colour": "red"}}
    sent = local("send", "local", "orders", stdin=json.dumps(record) + "\n")
    assert sent.code == 0, sent.stderr
    assert {"one", "two", '{"n": 3}'} <= set(bodies(local, "orders"))


def test_options_give_what_a_line_does_not_say(local: Sbpair) -> None:
    options = ("--session-id", "s1", "--property", "country=DE", "--property", "colour=red", "--ttl", "1h")
    lines = ["plain", json.dumps({"body": "own", "session_id": "s2", "application_properties": {"colour": "blue"}})]
    for line in lines:
        sent = local("send", "local", "values", *options, "--message-id", f"id of {line[:5]}", stdin=f"{line}\n")
        assert sent.code == 0, sent.stderr
    asked = ("--side", "primary", "--entity", "values", "--body", "-o", "json")
    plain, own = sorted(local("peek", "local", *asked).data["messages"], key=lambda one: str(one["session_id"]))
    assert (plain["body"], plain["session_id"], plain["message_id"]) == ("plain", "s1", "id of plain")
    assert plain["application_properties"] == {"country": "DE", "colour": "red"}
    assert (own["session_id"], own["ttl_seconds"]) == ("s2", 3600)
    assert own["application_properties"] == {"country": "DE", "colour": "blue"}
    twice = local("send", "local", "values", "--message-id", "m", stdin="a\nb\n")
    assert (twice.code, "for one line alone" in twice.stderr) == (3, True), twice.stderr


def test_backslashes_in_a_path_are_slashes(local: Sbpair) -> None:
    local.make_queue("spelled/so")
    sent = local("send", "spelled\\so", "--namespace", PRIMARY, stdin="a\n")
    assert sent.code == 0, sent.stderr
    assert bodies(local, "spelled/so") == ["a"]


def test_a_stream_tells_what_became_of_each_line(local: Sbpair) -> None:
    sent = local("send", "local", "orders", "-o", "jsonl", stdin="a\nb\nc\n")
    lines = [json.loads(line) for line in sent.stdout.splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3]
    assert {line["where"] for line in lines} == {"primary"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"boddy": 1}', "unknown field 'boddy'"),
        ("{not json", "not valid JSON"),
        ('{"body": "x", "ttl": 5}', "ttl is a duration"),
        ('{"body": "x", "scheduled_at": "soon"}', "ISO 8601"),
        ('{"payload_base64": "***"}', "not Base64"),
        ('{"body": "x", "session_id": "' + "s" * 129 + '"}', "128 characters"),
    ],
)
def test_a_bad_line_stops_before_anything_after_it(local: Sbpair, line: str, message: str) -> None:
    sent = local("send", "local", "orders", "--input", "jsonl", stdin=line + '\n{"body": "never"}\n')
    assert sent.code == 2
    assert f"line 1: {message}" in sent.stderr.replace(line, "") or message in sent.stderr
    assert "never" not in bodies(local, "orders")


def test_while_the_primary_is_dark_messages_go_to_the_backlog_and_home_again(local: Sbpair, fault: Fault) -> None:
    fault(PRIMARY, "dark")
    sent = local("send", "local", "orders", "--failover-interval", "1s", stdin="d1\nd2\nd3\n")
    assert sent.code == 5, sent.stderr
    assert "FAILED OVER orders" in sent.stderr
    assert "3 accepted (3 diverted)" in sent.stderr
    assert local("emulator", "fault", "clear", PRIMARY).code == 0
    drained = local("drain", "local", "-o", "json")
    assert (drained.code, drained.data["forwarded"], drained.data["confirmed_empty"]) == (0, 3, True)
    assert {"d1", "d2", "d3"} <= set(bodies(local, "orders"))


def test_interval_zero_reroutes_the_failing_message_itself(local: Sbpair, fault: Fault) -> None:
    fault(PRIMARY, "dark")
    sent = local("send", "local", "orders", "--failover-interval", "0", "--retry-for", "0", stdin="at once\n")
    assert sent.code == 5, sent.stderr
    assert local("emulator", "fault", "clear", PRIMARY).code == 0
    assert local("drain", "local").code == 0


def test_browsed_messages_go_through_a_pipe_unchanged(local: Sbpair) -> None:
    assert local("send", "local", "orders", stdin='{"body": "piped", "message_id": "p1"}\n').code == 0
    browsed = local("peek", "local", "--side", "primary", "--entity", "orders", "--limit", "1000", "-o", "jsonl")
    line = next(line for line in browsed.stdout.splitlines() if '"p1"' in line)
    assert base64.b64decode(json.loads(line)["payload_base64"])
    assert local("send", "local", "copies", stdin=line + "\n").code == 0
    copied = local("peek", "local", "--side", "primary", "--entity", "copies", "--body", "-o", "jsonl")
    record = json.loads(copied.stdout.splitlines()[0])
    assert (record["message_id"], record["body"]) == ("p1", "piped")


def test_a_namespace_alone_takes_messages_without_a_pair_and_nothing_is_diverted(local: Sbpair) -> None:
    to = ("alone", "--namespace", "local-primary")
    local.make_queue("alone")
    shown = local("send", *to, "--dry-run", "-o", "json", stdin="a\nb\n")
    assert (shown.code, shown.data["places"][0]["side"], shown.data["places"][0]["would_take"]) == (5, None, 2), shown
    for words in (("local", *to), (*to, "--policy", "sdk"), ("local", "alone", "--auth", "azure-cli")):
        assert local("send", *words, stdin="never\n").code == 2, words
    sent = local("send", *to, "--session-id", "s", "-o", "jsonl", stdin="a\nb\nc\n")
    assert sent.code == 0, sent
    assert [json.loads(line)["where"] for line in sent.stdout.splitlines()] == ["namespace"] * 3
    assert "3 accepted by alone on local-primary, 0 failed." in sent.stderr
    assert bodies(local, "alone") == ["a", "b", "c"]
    refused = local("send", "nowhere", "--namespace", "local-primary", "-o", "json", stdin="x\n")
    assert (refused.code, refused.data["failures"][0]["error"]) == (1, "entity-not-found")


def test_an_entity_that_is_not_there_fails_every_line(local: Sbpair) -> None:
    sent = local("send", "local", "nowhere", "-o", "json", stdin="x\n")
    assert sent.code == 1
    assert sent.data["failures"][0]["error"] == "entity-not-found"
    for verbose, told in ([], 1), (["-v"], 3):
        sent = local("send", "local", "nowhere", *verbose, stdin="x\ny\nz\n")
        assert sent.stderr.count("could not be found") == told, sent
        assert ("line 1 and 2 more lines: entity-not-found" in sent.stderr) is (told == 1)


@pytest.mark.parametrize(
    ("trouble", "code", "kind"), [("unauthorized:entity=orders", 4, "unauthorized"), ("dark", 6, "connection-lost")]
)
def test_the_exit_code_says_what_all_failures_have_in_common(
    local: Sbpair, fault: Fault, trouble: str, code: int, kind: str
) -> None:
    fault(PRIMARY, trouble)
    patience = ("--failover-interval", "10m", "--retry-for", "0", "--timeout", "5s")
    sent = local("send", "local", "orders", *patience, "-o", "json", stdin="x\ny\n")
    assert (sent.code, sent.data["failed"]) == (code, 2), sent
    assert {failure["error"] for failure in sent.data["failures"]} == {kind}


def test_failures_of_several_kinds_have_nothing_in_common_and_some_accepted_make_it_partial(
    local: Sbpair, fault: Fault
) -> None:
    local.make_queue("small")
    fault(PRIMARY, "unauthorized:entity=small,count=1")
    lines = "x\n" + "y" * 300_000 + "\n"
    sent = local("send", "local", "small", "--retry-for", "0", "--concurrency", "1", "-o", "json", stdin=lines)
    assert (sent.code, sent.data["failed"]) == (1, 2), sent
    sent = local("send", "local", "small", "--retry-for", "0", "-o", "json", stdin=lines)
    assert (sent.code, sent.data["accepted"], sent.data["failed"]) == (3, 1, 1), sent


def test_usage_errors(local: Sbpair, tmp_path: Path) -> None:
    assert local("send", "local", "bad name", stdin="x").code == 2
    assert local("send", "local", "orders", "-f", str(tmp_path / "missing")).code == 2
    assert local("send", "local", "orders", "--failover-interval", "61m", stdin="x").code == 2
    assert local("send", "local", "orders", "--failover-interval", "soon", stdin="x").code == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_reading_and_tells_what_was_sent(local: Sbpair, number: int, code: int) -> None:
    process = local.begin("send", "local", "orders", "-o", "jsonl", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("before the signal\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["where"] == "primary"
    process.send_signal(number)
    until(lambda: process.poll() is not None)
    assert process.returncode == code
    process.stdin.close()
    process.stdout.close()


def test_a_signal_ends_the_retries_of_a_message_that_is_not_taken(local: Sbpair, fault: Fault) -> None:
    fault(PRIMARY, "dark")
    process = local.begin("send", "local", "orders", "--failover-interval", "1h", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("never taken\n")
    process.stdin.close()
    process.stdin = None
    assert process.stderr is not None
    assert any("trying again" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert "0 accepted" in errors
