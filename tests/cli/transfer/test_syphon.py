"""The syphon as a real process: brings home what comes, tells how it is, stops in good order, shares with others."""

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbpair.runtime.transfer.ledger import outcomes_in
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS, until


class Service:
    """A running `sbpair syphon local`, its log read from a file as it grows."""

    def __init__(self, runner: Sbpair, *arguments: str) -> None:
        self.log = runner.home / f"syphon-{time.monotonic_ns()}.log"
        with self.log.open("w") as stderr:
            common = ("-o", "json", "--log-format", "json", "--metrics-port", "0")
            self.process = runner.begin("syphon", "local", *common, *arguments, stderr=stderr)
        self.url = ""

    def __enter__(self) -> "Service":
        self.url = until(lambda: (found := re.search(r"http://[\d.:]+", self.log.read_text())) and found[0])
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def sample(self, name: str) -> float:
        """Sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"sbpair_syphon_{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, Any]:
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, json.loads(out)

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


CREATE = """
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.entities import QueueSettings
from sbpair.settings import load

async def main(names):
    async with open_sides(load().pair("local")) as sides:
        for name in names:
            await sides.primary_admin.create_queue(name, QueueSettings())

asyncio.run(main(sys.argv[1:]))
"""
PUT = """
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main(destination, count):
    async with open_sides(load().pair("local")) as sides:
        for index in range(10):
            sender = sides.secondary.sender(f"local-primary/x-servicebus-transfer/{index}")
            numbers = range(index, int(count), 10)
            payloads = [for_backlog(compose(body=b"x", message_id=f"m{number}"), destination) for number in numbers]
            for start in range(0, len(payloads), 100):
                await sender.send(payloads[start:start + 100], timeout_seconds=30)
            await sender.close()

asyncio.run(main(*sys.argv[1:]))
"""
LIST = """
import asyncio, json, sys
from sbpair.connect import open_sides
from sbpair.settings import load

async def main(path):
    ids, number = [], 1
    async with open_sides(load().pair("local")) as sides:
        receiver = sides.primary.receiver(path)
        while page := await receiver.peek(250, from_sequence_number=number):
            ids += [one.message_id for one in page]
            number = page[-1].sequence_number + 1
        await receiver.close()
    with open("ids.json", "w") as file:
        json.dump(ids, file)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def home(local: Sbpair) -> Sbpair:
    """The embedded pair with its backlog queues, and queues on the primary."""
    assert local("provision", "local").code == 0
    local.python(CREATE, "orders", "shared", "late", "stuck")
    return local


def at_home(home: Sbpair, path: str) -> list[str]:
    home.python(LIST, path)
    found: list[str] = json.loads((home.home / "ids.json").read_text())
    return found


def expected(count: int) -> list[str]:
    return sorted(f"m{number}" for number in range(count))


def test_it_brings_home_what_lies_there_and_what_comes_and_reports_at_the_end(home: Sbpair, tmp_path: Path) -> None:
    textfile = tmp_path / "sbpair.prom"
    home.python(PUT, "orders", "200")
    ledger = ["--ledger", str(tmp_path / "ledger.jsonl")]
    with Service(home, *ledger, "--metrics-file", str(textfile)) as service:
        until(lambda: service.sample("forwarded_messages_total") == 200)
        home.python(PUT, "orders", "50")
        until(lambda: service.sample("forwarded_messages_total") == 250)
        until(lambda: service.sample("completed_messages_total") == 250)
        assert json.loads(service.get("/healthz")[1]) == {"healthy": True, "troubles": []}
        assert service.get("/healthz")[0] == 200
        assert service.get("/nothing")[0] == 404
        code, document = service.stop()
    assert code == 143
    assert (document["exit_code"], document["exit_name"]) == (143, "interrupted")
    report = document["data"]
    assert (report["forwarded"], report["completed"], report["uncompleted"]) == (250, 250, 0)
    assert report["per_destination"] == {"orders": 250}
    assert sorted(at_home(home, "orders")) == sorted(expected(200) + expected(50))
    assert len(list(outcomes_in(tmp_path / "ledger.jsonl"))) == 250
    text = textfile.read_text()
    assert "# TYPE sbpair_syphon_forwarded_messages_total counter" in text
    assert 'sbpair_syphon_healthy_ratio{pair="local"} 1' in text
    went = [one for one in service.records if one.get("event") == "Forwarded"]
    assert sum(one["messages"] for one in went) == 250
    assert any("SIGTERM" in one["message"] for one in service.records)
    assert any(
        "Syphon of local: local-secondary -> local-primary, 10 queues" in one["message"] for one in service.records
    )


def test_two_of_them_share_the_work(home: Sbpair) -> None:
    with Service(home) as one, Service(home) as other:
        until(lambda: one.get("/healthz")[0] == other.get("/healthz")[0] == 200)
        for _ in range(3):
            home.python(PUT, "shared", "500")
        until(lambda: sum(each.sample("forwarded_messages_total") for each in (one, other)) == 1500)
        reports = [each.stop(signal.SIGINT) for each in (one, other)]
    assert [code for code, _ in reports] == [130, 130]
    counts = [document["data"]["forwarded"] for _, document in reports]
    assert sum(counts) == 1500
    assert min(counts) > 0
    assert sorted(at_home(home, "shared")) == sorted(expected(500) * 3)


def test_it_says_that_it_is_unhealthy_while_its_queues_fail_and_recovers(
    home: Sbpair, fault: Callable[[str, str], None]
) -> None:
    with Service(home, "--poll", "2s") as service:
        until(lambda: service.sample("last_poll_timestamp_seconds"))
        fault("local-secondary", "dark:for=5s")
        _, text = until(lambda: (answer := service.get("/healthz"))[0] == 503 and answer)
        assert "times in a row (connection-lost)" in json.loads(text)["troubles"][0]
        assert service.sample("healthy_ratio") == 0
        home_again = until(lambda: service.get("/healthz")[0] == 200)
        assert home_again
        home.python(PUT, "late", "20")
        until(lambda: service.sample("forwarded_messages_total") == 20)
        assert service.stop()[0] == 143
    assert sorted(at_home(home, "late")) == expected(20)


def test_a_second_signal_leaves_at_once(home: Sbpair, fault: Callable[[str, str], None]) -> None:
    with Service(home) as service:
        until(lambda: service.sample("last_poll_timestamp_seconds") or service.sample("waiting_messages") == 0)
        fault("local-secondary", "silent")
        service.process.send_signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in service.log.read_text())
        service.process.send_signal(signal.SIGTERM)
        out, _ = service.process.communicate(timeout=LIMIT_SECONDS)
        assert (service.process.returncode, out) == (143, ""), "one signal alone ends with a report"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--new-ledger",), "--ledger FILE"),
        (("--poll", "0s"), "one second or more"),
        (("--metrics-port", "{taken}"), "Cannot serve metrics"),
        (("--metrics-file", "/proc/nothing/sbpair.prom"), "Cannot write the metrics file"),
    ],
)
def test_usage_errors(home: Sbpair, arguments: tuple[str, ...], says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = home("syphon", "local", *(argument.format(taken=port) for argument in arguments))
    assert (ran.code, ran.stdout) == (2, "")
    assert says in ran.stderr


def test_a_ledger_belongs_to_one_process(home: Sbpair, tmp_path: Path) -> None:
    ledger = ("--ledger", str(tmp_path / "ledger.jsonl"))
    with Service(home, *ledger) as service:
        ran = home("syphon", "local", *ledger)
        assert (ran.code, ran.stdout) == (2, "")
        assert "by another process" in ran.stderr
        assert service.stop()[0] == 143


def test_it_starts_again_after_an_error_and_sends_nothing_twice(
    home: Sbpair, fault: Callable[[str, str], None], tmp_path: Path
) -> None:
    """A ledger on a full disk, until there is room again: nothing is sent meanwhile."""
    home.python(PUT, "stuck", "30")
    fault("local-secondary", "expire-locks:lock=2s")
    disk, other_disk = tmp_path / "disk", tmp_path / "other-disk"
    disk.symlink_to("/dev")
    other_disk.symlink_to(tmp_path)
    with Service(home, "--ledger", str(disk / "full"), "--poll", "1s") as service:
        until(lambda: service.sample("restarts_total") >= 2)
        assert at_home(home, "stuck") == []
        other_disk.replace(disk)
        until(lambda: service.sample("forwarded_messages_total") == 30)
        report = service.stop()[1]["data"]
    said = [one for one in service.records if one.get("event") == "Restarting"]
    assert f"Cannot write the ledger {disk}/full: No space left" in said[0]["message"]
    assert sorted(at_home(home, "stuck")) == expected(30)
    assert (report["forwarded"], report["already_forwarded"]) == (30, 0)
