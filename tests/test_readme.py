"""Every command, file and program in the README works as printed, in order, against the embedded namespace."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbpair.core.failover import diagram

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block with the comment on the line above it."""

    note: str
    language: str
    body: str

    @property
    def exit_codes(self) -> set[int]:
        words = self.note.removeprefix("exit: ") if self.note.startswith("exit: ") else "0"
        return {int(word) for word in words.split(" or ")}


_DIVERT = """
import asyncio
from sbpair import compose, for_backlog, open_sides
from sbpair.settings import load

async def main():
    pair = load().pair("orders")
    payloads = [for_backlog(compose(body=f"{n}", message_id=f"m{n}"), "orders") for n in range(20)]
    async with open_sides(pair) as sides:
        await sides.secondary.sender(pair.backlog_paths()[0]).send(payloads, timeout_seconds=30)

asyncio.run(main())
"""

BLOCKS = [Block(match["note"] or "", match["language"], match["body"]) for match in _BLOCK.finditer(README)]


def blocks(language: str, note: str | None = None) -> list[Block]:
    return [one for one in BLOCKS if one.language == language and (note is None or one.note == note)]


def file_named(name: str) -> str:
    return next(one.body for one in BLOCKS if one.note == f"file: {name}")


@dataclass(frozen=True)
class Place:
    """A folder as the README's reader has it, with running namespaces and the environment to reach them."""

    folder: Path
    environment: dict[str, str]

    def divert_messages(self) -> None:
        """Put a few messages for `orders` into a backlog queue, as an outage would have."""
        done = self.run(f"python - <<'EOF'\n{_DIVERT}\nEOF")
        assert done.returncode == 0, done.stderr

    def run(self, script: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        shell = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(
            shell, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("reader")
    for name in ("sbpair.yaml", "seed.yaml"):
        (folder / name).write_text(file_named(name), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_", "GITHUB_"))}
    environment = kept | {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}
    command = ["sbpair", "emulator", "--namespace", "contoso-weu", "--namespace", "contoso-neu"]
    emulator = subprocess.Popen(
        [*command, "--port", "0", "--seed", "seed.yaml"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert emulator.stdout is not None
        assert emulator.stderr is not None
        primary, secondary = (emulator.stdout.readline().split("\t")[1].strip() for _ in range(2))
        authority = emulator.stderr.readline().split(": ")[1].strip()
        yield Place(
            folder,
            environment
            | {"CONTOSO_WEU": primary, "CONTOSO_NEU": secondary}
            | {"SBPAIR_PRIMARY_CA_FILE": authority, "SBPAIR_SECONDARY_CA_FILE": authority},
        )
    finally:
        emulator.send_signal(signal.SIGTERM)
        emulator.communicate(timeout=30)


@pytest.mark.timeout(600)
def test_every_shell_block_works_in_the_order_printed(place: Place) -> None:
    """One test, because later blocks use what earlier ones made."""
    provisioned = place.run("sbpair provision orders")
    assert provisioned.returncode == 0, provisioned.stderr
    for block in blocks("sh"):
        if block.note.startswith(("command:", "runs until stopped", "elsewhere")):
            continue
        if block.note == "with a backlog":
            place.divert_messages()
        done = place.run(block.body, timeout=300)
        assert done.returncode in block.exit_codes, f"{block.body}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", blocks("sh", "runs until stopped"), ids=lambda block: block.body.split()[1])
def test_what_runs_until_stopped_starts_and_stops(place: Place, block: Block, tmp_path: Path) -> None:
    environment = place.environment | {"XDG_STATE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {block.body.strip()}"],
        cwd=place.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    assert process.poll() is None, process.communicate()[1]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_the_program_runs(place: Place) -> None:
    for block in blocks("python", "python"):
        done = place.run(f"python - <<'EOF'\n{block.body}\nEOF")
        assert done.returncode == 0, done.stderr
        assert "primary" in done.stdout


def test_the_diagram_is_drawn_from_the_table() -> None:
    (drawn,) = blocks("mermaid")
    assert drawn.body.strip() == diagram().strip()


@pytest.mark.timeout(330)
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
        env={"HOME": str(tmp_path), "PATH": f"{python}{os.pathsep}/usr/bin{os.pathsep}/bin", **_package_index()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "PROVED" in done.stdout + done.stderr


def _package_index() -> dict[str, str]:
    """Where pip finds packages on this machine, if it is told by the environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
