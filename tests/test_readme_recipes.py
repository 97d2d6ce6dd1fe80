"""The pages' recipes for other programs do there what they promise: a GitHub workflow, systemd, Prometheus, Nagios.

Each text is taken from a page, or written by a command there, and read as its program reads it; only paths of the
machine it is meant for are exchanged for paths here.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sbpair.runtime.transfer.pump import STOP_SECONDS
from tests.cli.forked import FORKS, SERVER
from tests.readme import Place, blocks, reader
from tests.survivors import mark
from tests.waiting import LIMIT_SECONDS, until

SBPAIR = Path(sys.executable).parent / "sbpair"
SAMPLE = re.compile(r'[a-z_]+(?:\{(?:[a-z_]+="[^"\\]*",?)*\})? -?[0-9.e+]+')
EXTRA = "sbpair provision orders --queues 11 --quiet"
"""Leaves a queue that the audit warns of."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with reader(tmp_path_factory.mktemp("recipes")) as ready:
        done = ready.run("sbpair provision orders --quiet")
        assert done.returncode == 0, done.stderr
        yield ready


@pytest.fixture
def warned(place: Place) -> Iterator[Place]:
    """The place while the audit has a warning."""
    assert place.run(EXTRA).returncode == 0
    yield place
    assert place.run("sbpair cleanup orders --yes --quiet").returncode == 0


def line_of_readme(beginning: str) -> str:
    """The one command line of the pages that begins so, with the pair of this place."""
    lines = {line.replace(" local ", " orders ") for block in blocks("sh") for line in block.body.splitlines()}
    (line,) = {line for line in lines if line.startswith(beginning)}
    return line


# GitHub


def test_the_workflow_step_provisions_and_annotates(warned: Place, tmp_path: Path) -> None:
    ((step,),) = [yaml.safe_load(block.body) for block in blocks("yaml") if "run:" in block.body]
    install, *script = step["run"].splitlines()
    assert install == "pip install sbpair"
    summary = tmp_path / "summary.md"
    runner = {"GITHUB_ACTIONS": "true", "CI": "true", "GITHUB_STEP_SUMMARY": str(summary)} | step["env"]
    done = subprocess.run(  # GitHub's own way to run a script
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", "\n".join(script)],
        cwd=warned.folder,
        env=warned.environment | runner,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    annotations = [line for line in done.stdout.splitlines() if line.startswith("::")]
    extra = "::warning title=SBP002 contoso-weu/x-servicebus-transfer/10::Index 10 is not below"
    assert any(line.startswith(extra) for line in annotations), done
    assert summary.read_text(encoding="utf-8").startswith("## sbpair audit\n")


# systemd


@pytest.fixture(scope="module")
def units(place: Place) -> Path:
    """The folder with the exported units."""
    done = place.run(line_of_readme("sbpair export systemd"))
    assert done.returncode == 0, done.stderr
    return place.folder / "units"


def unit(file: Path, exchange: dict[str, str]) -> dict[str, list[str]]:
    """The directives of the unit, its paths exchanged, each with its values."""
    text = file.read_text(encoding="utf-8")
    for there, here in exchange.items():
        assert there in text, there
        text = text.replace(there, here)
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def start(service: dict[str, list[str]], line: str, place: Place) -> "subprocess.Popen[str]":
    """Start a line of it as systemd does: from the root, without a home, with no more of an environment than given."""
    secrets = {key: value for key, value in place.environment.items() if key.startswith(("CONTOSO_", "SBPAIR_"))}
    given = dict(one.split("=", 1) for one in service["Environment"])
    return subprocess.Popen(
        shlex.split(line),
        cwd="/",
        env={"PATH": os.defpath} | secrets | given | mark(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_service_serves_and_ends_as_systemd_expects(place: Place, units: Path, tmp_path: Path) -> None:
    port = _free_port()
    machine = {
        "/usr/local/bin/sbpair": str(SBPAIR),
        "/etc/sbpair/sbpair.yaml": str(place.folder / "sbpair.yaml"),
        "/var/lib/sbpair": str(tmp_path / "state"),
        "--metrics-port 9464": f"--metrics-port {port}",
    }
    service = unit(units / "sbpair-syphon-orders.service", machine)
    assert service["StateDirectory"] == ["sbpair"], "systemd makes the folder of the ledger"
    (tmp_path / "state").mkdir()
    (line,) = service["ExecStart"]
    process = start(service, line, place)
    try:
        place.divert_messages()
        home = re.compile(r'^sbpair_syphon_forwarded_messages_total\{.*entity="orders".*\} 20$', re.MULTILINE)
        until(lambda: home.search(_get(port, "/metrics")), process)
        assert _get(port, "/healthz")
        assert float(service["TimeoutStopSec"][0]) >= 3 * STOP_SECONDS, "systemd waits longer than it takes"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert str(process.returncode) in service["SuccessExitStatus"][0].split(), said
    assert process.returncode == 143
    assert all(line.startswith("{") for line in said.splitlines()), said
    assert (tmp_path / "state" / "orders.jsonl").read_text(encoding="utf-8").count('"forwarded"') == 20


def test_the_timed_check_writes_what_the_node_exporter_reads(warned: Place, units: Path, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    machine = {
        "/usr/local/bin/sbpair": str(SERVER.folder() / "sbpair" if FORKS else SBPAIR),
        "/etc/sbpair/sbpair.yaml": str(warned.folder / "sbpair.yaml"),
        "/var/lib/sbpair-metrics": str(folder),
    }
    service = unit(units / "sbpair-check-orders.service", machine)
    assert (service["Type"], service["StateDirectory"]) == (["oneshot"], ["sbpair-metrics"])
    fine = {"0", *service["SuccessExitStatus"][0].split()}
    for line in service["ExecStart"]:
        process = start(service, line, warned)
        _, said = process.communicate(timeout=LIMIT_SECONDS)
        assert str(process.returncode) in fine, said
    assert_metrics(folder / "sbpair-audit-orders.prom")
    names = {one.name for one in folder.iterdir()}
    assert names == {"sbpair-audit-orders.prom", "sbpair-status-orders.prom"}, "nothing half-written is left to be read"


def assert_metrics(file: Path) -> None:
    """Every line is of the text format, the warning and the queues are counted, and the exporter's user may read it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples), samples
    assert 'sbpair_audit_findings{pair="orders",severity="warning"} 1' in samples
    assert 'sbpair_backlog_messages{pair="orders",kind="active"} 0' in samples
    for name in {line.partition("{")[0].partition(" ")[0] for line in samples}:
        assert sum(line.startswith(f"# TYPE {name} ") for line in lines) == 1, name
    assert file.stat().st_mode & 0o044 == 0o044


# Prometheus and Nagios from cron


def test_the_line_for_a_text_file_collector(warned: Place) -> None:
    assert warned.run(line_of_readme("sbpair audit orders -o prometheus")).returncode == 0
    assert_metrics(warned.folder / "sbpair.prom")


def test_the_line_for_nagios_is_a_plugin(place: Place) -> None:
    line = line_of_readme("sbpair audit orders -o nagios")
    well = place.run(line)
    assert (well.returncode, well.stdout.startswith("SBPAIR OK - ")) == (0, True), well
    status, _, performance = well.stdout.splitlines()[0].partition(" | ")
    assert status
    assert all(re.fullmatch(r"'[^'=]+'=-?[0-9.e+]+", one) for one in performance.split())
    away = place.run(f"SBPAIR_TIMEOUT=5s CONTOSO_NEU={shlex.quote(_nobody(place))} {line}")
    assert (away.returncode, away.stdout.startswith("SBPAIR UNKNOWN - ")) == (3, True), away


def test_a_warning_is_one_to_nagios(warned: Place) -> None:
    ran = warned.run(line_of_readme("sbpair audit orders -o nagios"))
    assert (ran.returncode, ran.stdout.startswith("SBPAIR WARNING - ")) == (1, True), ran


def _nobody(place: Place) -> str:
    """The connection string of the secondary with a port on which nobody listens."""
    return re.sub(r":\d+;", f":{_free_port()};", place.environment["CONTOSO_NEU"], count=1)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


# Python


_DEAD_LETTER = """
import asyncio
from sbpair import compose, open_sides
from sbpair.core.message import Disposition
from sbpair.settings import load

async def main():
    async with open_sides(load().pair("orders")) as sides:
        sender, receiver = sides.primary.sender("orders"), sides.primary.receiver("orders")
        await sender.send([compose(body="again", message_id="again")], timeout_seconds=30)
        while not done:
            for one in await receiver.receive(1, wait_seconds=20):
                await receiver.settle(one, Disposition.DEAD_LETTER, reason="Broken")
                done.append(one)

done = []
asyncio.run(main())
"""


def test_the_program_drains_audits_and_resubmits(warned: Place) -> None:
    (program,) = blocks("python", "operations program")
    assert len(program.body.strip().splitlines()) <= 18
    assert warned.run(f"python - <<'EOF'\n{_DEAD_LETTER}\nEOF").returncode == 0
    warned.divert_messages()
    done = warned.run("python - <<'EOF'\n{}\nEOF".format(program.body.replace('"local"', '"orders"')))
    assert done.returncode == 0, done.stderr
    assert "20 messages are back on contoso-weu" in done.stdout
    assert re.search("^SBP[0-9]{3} .*x-servicebus-transfer/10 ", done.stdout, re.MULTILINE)
    assert "orders/$deadletterqueue: 1 sent again" in done.stdout
    lines = (warned.folder / "program.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum('"forwarded"' in line for line in lines) == 20
