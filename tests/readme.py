"""What the README and the pages of `sbpair help` show, taken out of them, and the place where a reader tries it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.forked import FORKS, SERVER
from tests.cli.process import ROOT  # which has Ctrl-C count, also in a suite that runs in the background
from tests.waiting import LIMIT_SECONDS

README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


PATIENT = {"SBPAIR_TIMEOUT": "5m"}
"""On a busy machine an answer takes longer than a command waits for it."""


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


def _blocks_of(text: str) -> list[Block]:
    return [Block(match["note"] or "", match["language"], match["body"]) for match in _BLOCK.finditer(text)]


TEXTS = {"README": README} | {
    page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "sbpair" / "cli" / "pages").glob("*.md"))
}
STORIES = {name: _blocks_of(text) for name, text in TEXTS.items()}
"""The blocks of each text, in their order: what a reader pastes into one shell, in a folder that was empty before."""
RUNNING = ("keeps running", "starts again")
WORLDS = {name: blocks for name, blocks in STORIES.items() if any(block.note in RUNNING for block in blocks)}
"""Those that begin with a world of their own, in which all their commands work as printed."""

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
CONFIGURATION = """\
version: 1
pairs:
  orders:
    primary:   {namespace: contoso-weu, host: localhost, connection_string: {env: CONTOSO_WEU}}
    secondary: {namespace: contoso-neu, host: localhost, connection_string: {env: CONTOSO_NEU}}
    entities: [orders, invoices/incoming]
"""


def blocks(language: str, note: str | None = None) -> list[Block]:
    return [
        block
        for story in STORIES.values()
        for block in story
        if block.language == language and (note is None or block.note == note)
    ]


def file_named(name: str) -> str:
    return next(block.body for story in STORIES.values() for block in story if block.note == f"file: {name}")


@dataclass(frozen=True)
class Place:
    """A folder as a reader has it, with running namespaces and the environment to reach them."""

    folder: Path
    environment: dict[str, str]

    def divert_messages(self) -> None:
        """Put a few messages for `orders` into a backlog queue, as an outage would have."""
        done = self.run(f"python - <<'EOF'\n{_DIVERT}\nEOF")
        assert done.returncode == 0, done.stderr

    def run(self, script: str, timeout: float = LIMIT_SECONDS) -> "subprocess.CompletedProcess[str]":
        shell = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(
            shell, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout
        )


@contextmanager
def reader(folder: Path) -> Iterator[Place]:
    """A reader with a configured pair `orders` in `folder`, and its namespaces, running. Its commands are forked on the
    shell's streams: that the installed program starts is proven by the README's own world and by the service."""
    (folder / "sbpair.yaml").write_text(CONFIGURATION, encoding="utf-8")
    for name in ("seed.yaml", "Config.json", "test_shop.py"):
        (folder / name).write_text(file_named(name), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_", "GITHUB_"))}
    programs = [*([str(SERVER.folder())] if FORKS else []), str(Path(sys.executable).parent), kept["PATH"]]
    environment = kept | PATIENT | {"HOME": str(folder), "PATH": os.pathsep.join(programs)}
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
        emulator.communicate(timeout=LIMIT_SECONDS)
