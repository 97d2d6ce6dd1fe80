"""Every command, file and program in the README and the pages works as printed, in order, in a world of its own."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.pipeline.spark.java import find_java, launcher_home
from tests.cli.forked import FORKS, SERVER
from tests.core.failover.drawn import diagram, error_table
from tests.pipeline.cluster import QUICK
from tests.readme import PATIENT, README, ROOT, STORIES, WORLDS, blocks
from tests.survivors import mark
from tests.waiting import LIMIT_SECONDS


class Reader:
    """Somebody who pastes one block after another into one shell, with a folder and a home that were empty before."""

    def __init__(self, folder: Path, programs: Path = Path(sys.executable).parent) -> None:
        self.folder = folder
        self.others: list[subprocess.Popen[str]] = []
        self._exported = folder / ".exported"
        self._exported.write_text("", encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THE_READERS)}
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), kept["PATH"]])
        java = str(launcher_home(find_java(), folder / "java"))  # that of the extra where the machine has none
        self.environment = kept | PATIENT | {"HOME": str(folder), "PATH": path, "JAVA_HOME": java}

    def paste(self, script: str, codes: set[int], timeout: float = 600) -> str:
        """Run it to its end; what it exports stays. Returns what was said."""
        wrapped = f"source {self._exported}\nset -euo pipefail\n{script}\nset +u\nexport -p > {self._exported}\n"
        done = subprocess.run(
            ["bash", "-c", wrapped],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode in codes, f"{script}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def start(self, script: str) -> "subprocess.Popen[str]":
        """Run it in another terminal, until it has said something."""
        process = subprocess.Popen(
            ["bash", "-c", f"source {self._exported}\nexec {script.strip()}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.others.append(process)
        said, _, _ = select.select([process.stdout, process.stderr], [], [], 120)
        assert said, f"nothing was said, so it has not started to serve: {script}"
        assert process.poll() is None, process.communicate()[1]
        return process

    def stop(self, process: "subprocess.Popen[str]") -> None:
        """Ctrl-C."""
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
        self.others.remove(process)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors

    def run_python(self, *programs: str, java_options: str = "") -> str:
        started = f"JAVA_TOOL_OPTIONS='{java_options}' python" if java_options else "python"
        return self.paste("{} - <<'EOF'\n{}\nEOF".format(started, "\n".join(programs)), {0})


_NOT_THE_READERS = ("SBPAIR_", "XDG_", "GITHUB_", "CONTOSO_")


@pytest.fixture
def stranger(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """One who reads the README has `sbpair` as it is installed. The commands of the other pages, a hundred, are forked
    on the shell's streams: that it starts is proven by then."""
    installed = not FORKS or "readme" in request.node.name
    reader = Reader(tmp_path) if installed else Reader(tmp_path, SERVER.folder())
    try:
        yield reader
    finally:
        for process in reader.others:
            process.kill()
            process.communicate()


@pytest.mark.timeout(7200)  # up to thirty commands: as many processes, and a few JVMs
def test_the_readme_runs_from_the_top_to_the_bottom(stranger: Reader) -> None:
    read(stranger, "README")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("page", sorted({*WORLDS} - {"README"}))
def test_a_page_runs_from_the_top_to_the_bottom(stranger: Reader, page: str) -> None:
    read(stranger, page)


def read(stranger: Reader, text: str) -> None:
    """Every file, command and program as printed, in one environment, each with what those above have left."""
    spark: list[str] = []
    said: dict[str, str] = {}
    for block in WORLDS[text]:
        began = time.monotonic()
        match block.language, block.note:
            case "sh", note if note.startswith(("elsewhere", "command: ")):
                continue
            case "sh", "keeps running":
                stranger.start(block.body)
            case "sh", "starts again":
                stranger.stop(stranger.others[0])
                stranger.start(block.body)
            case "sh", "runs until stopped":
                stranger.stop(stranger.start(block.body))
            case "sh", _:
                said[block.body] = stranger.paste(block.body, block.exit_codes)
            case _, note if note.startswith("file: "):
                (stranger.folder / note.removeprefix("file: ")).write_text(block.body, encoding="utf-8")
            case "python", note if note in PROGRAMS:
                said[block.note] = stranger.run_python(block.body)
            case "python", "spark program" | "spark stream":
                spark.append(block.body)
        print(f"{time.monotonic() - began:6.1f} {block.body.strip().splitlines()[0][:90]}")
    if spark:
        # Spark waits 10 s for a Python worker's start, of which a JVM that compiles thoroughly leaves too little to it.
        said["spark"] = stranger.run_python(*spark, java_options=QUICK)
    everything = "\n".join(said.values())
    assert "(status 404)" not in everything
    for expected in SAID[text]:
        assert expected in everything, expected
    if spark:
        assert list((stranger.folder / "backlog").glob("*.parquet"))
        sent = [line for file in (stranger.folder / "sent").glob("*.jsonl") for line in file.open()]
        assert [json.loads(line)["outcome"] for line in sent]


PROGRAMS = ("python", "consumer program", "operations program")
EMPTY = "The backlog is empty: 10 queues read, no message of any kind."
SAID = {
    "README": (
        "497 messages are back on local-primary",
        EMPTY,
        "120 messages are back on local-primary",
        "messages there. Nothing was changed. Do it: sbpair evacuate",
    ),
    "applications": ("primary: open", "517 messages are waiting"),
    "automation": ("SBPAIR OK", "10 "),
    "dead-letters": ("ValidationError\t33", "40 dead letters", "country is missing", "12 of 12 messages would be sent"),
    "drills": (
        "4 entities would be created beside the live ones",
        "PROVED: each accepted message arrived once, unchanged",
        "live entities are the same as before.",
        "quota\torders\t16\t8\t0",
        "diverted\tproved",
    ),
    "entities": (
        "customer-7",
        "22 messages of orders were moved",
        "The queue orders-parked on local-primary is deleted.",
    ),
    "evacuation": ("it accepted 186 messages. local-primary is empty", "It is closed to senders, and was counted"),
    "library": ("497 messages are back on local-primary", "orders/$deadletterqueue: 5 sent again"),
    "recovery": ("120 messages are back on local-primary", EMPTY, "was changed, dropped, moved or added"),
    "replication": ("parcel-7", "parcel-8 arrived"),
    "spark": ("|local-primary/x-s",),
}
"""What a reader of each text has seen in the end."""


def test_every_page_that_shows_commands_has_a_world_of_its_own() -> None:
    """What says that it runs elsewhere, until it is stopped, or with another machine's files does not count."""
    alone = {name for name, story in STORIES.items() if any(one.language == "sh" and not one.note for one in story)}
    assert alone - set(WORLDS) == {"contributing", "measurements", "security", "testing"} & alone
    assert set(SAID) == set(WORLDS)


MISTAKES = """
import datetime

import sbpair
import sbpair.aio
from azure.core.credentials import AzureSasCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

NOW = datetime.datetime.now(datetime.UTC)
client = sbpair.ServiceBusClient("contoso.servicebus.windows.net", AzureSasCredential("s"), secondary="fabrikam")
with client.get_queue_sender("orders", client_identifier="shop") as sender:
    batch = sender.create_message_batch()
    for one in (ServiceBusMessage("m"), AmqpAnnotatedMessage(data_body=b"m"), {"body": "m"}, batch):
        sender.send_messages(one, timeout=5)
    sender.send_messages([ServiceBusMessage("m")])
    sender.send_messages("text")  # type: ignore[arg-type]
    sender.send_messages([b"bytes"])  # type: ignore[arg-type]
    numbers: list[int] = sender.schedule_messages([ServiceBusMessage("m")], NOW)
    sender.schedule_messages(5, NOW)  # type: ignore[arg-type]
    sender.schedule_messages(batch, NOW)  # type: ignore[arg-type]
sbpair.ServiceBusClient("contoso", "key", secondary="fabrikam")  # type: ignore[arg-type]
client.get_topic_sender("orders", client_identifier=5)  # type: ignore[arg-type]


async def main(client: sbpair.aio.ServiceBusClient) -> list[int]:
    async with client.get_topic_sender("orders") as sender:
        await sender.send_messages(5)  # type: ignore[arg-type]
        await sender.send_messages([ServiceBusMessage("m")])
        return await sender.schedule_messages("text", NOW)  # type: ignore[arg-type]
"""
"""Strict mypy refuses a comment that leaves nothing out: each of these lines is a mistake that it finds."""


def test_programs_are_run_and_pass_a_strict_type_check(tmp_path: Path) -> None:
    """Those for Spark have parts between them; those for tests are run by a test of their own."""
    programs = [(name, one) for name, story in STORIES.items() for one in story if one.language == "python"]
    ours = [(name, one) for name, one in programs if name not in ("spark", "testing")]
    assert {name for name, _ in ours} == {"README", "applications", "library", "replication"}
    for name, one in ours:
        assert one.note in PROGRAMS, f"{name}: nothing runs {one.body}"
        (tmp_path / f"{name.lower()}.py").write_text(one.body, encoding="utf-8")
    (tmp_path / "mistakes.py").write_text(MISTAKES, encoding="utf-8")
    checks = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run([*checks, *sorted(tmp_path.glob("*.py"))], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_that_is_shown_is_one(stranger: Reader) -> None:
    (block,) = blocks("yaml", "configuration")
    (stranger.folder / "sbpair.yaml").write_text(block.body, encoding="utf-8")
    assert "contoso-weu" in stranger.paste("sbpair config show", {0})


def test_the_page_for_tests_runs_as_printed(stranger: Reader) -> None:
    """Its files, its tests with pytest and unittest, and both ways to start a namespace from a file."""
    for block in STORIES["testing"]:
        if block.note.startswith("file: "):
            (stranger.folder / block.note.removeprefix("file: ")).write_text(block.body, encoding="utf-8")
        elif block.note == "runs until stopped":
            stranger.stop(stranger.start(block.body))
        elif block.language == "sh" and block.body.startswith(("python -m pytest", "sbpair emulator --laws")):
            stranger.paste(block.body, {0})


def test_the_readme_fits_on_three_pages() -> None:
    assert len(README.encode()) <= 9_000


def test_the_diagram_is_drawn_from_the_table() -> None:
    (drawn,) = blocks("mermaid")
    assert drawn.body.strip() == diagram().strip()


def test_the_errors_that_count_are_told_from_the_table() -> None:
    page = (ROOT / "sbpair" / "cli" / "pages" / "failover.md").read_text(encoding="utf-8")
    assert error_table() in page


def test_the_demo_command_does_its_own_set_up(tmp_path: Path) -> None:
    """As pasted, in a copy of the sources, with a new HOME and nothing of this environment on the PATH."""
    copy = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "node_modules", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    python = Path(sys.base_prefix) / "bin"
    (block,) = blocks("sh", "command: demo")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body],
        cwd=copy,
        env={
            "HOME": str(tmp_path),
            "PATH": f"{python}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "PIP_COMPILE": "no",  # what is imported is compiled all the same, and most of what is installed is not
            **_package_index(),
            **mark(),
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "PROVED" in done.stdout + done.stderr


def _package_index() -> dict[str, str]:
    """Where pip finds packages on this machine, if it is told by the environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
