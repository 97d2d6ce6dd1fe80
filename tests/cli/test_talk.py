"""What is said on stderr in the form that `--log-format` asks for, from the first line to the error at the end."""

import json

from tests.cli.process import Sbpair


def test_an_error_is_a_json_line_too(sbpair: Sbpair) -> None:
    ran = sbpair("peek", "nobody", "--log-format", "json")
    assert ran.code == 2
    (line,) = [json.loads(text) for text in ran.stderr.splitlines()]
    assert (line["level"], "'nobody'" in line["message"], "sbpair.yaml" in line["hint"]) == ("error", True, True)
    assert line["time"].startswith("20")


def test_what_is_said_after_the_work_is_json_too(local: Sbpair) -> None:
    """In a pipe the table's notes and summary are talk."""
    ran = local("audit", "local", "--log-format", "json")
    assert ran.code == 5
    lines = [json.loads(text) for text in ran.stderr.splitlines()]
    assert "management calls" in lines[0]["message"]
    assert "in 1 pair" in lines[-1]["message"]


def test_a_consumer_says_what_it_does_as_json(local: Sbpair) -> None:
    assert local("replicate", "provision", "local", "boxes").code == 0
    consume = ("replicate", "consume", "local", "boxes", "--exec", "true", "--journal", "sqlite:talk.db")
    ran = local(*consume, "--until-idle", "1s", "--log-format", "json")
    assert ran.code == 0
    assert [json.loads(text)["message"][:30] for text in ran.stderr.splitlines()] == ["Consuming boxes of local. Jour"]
