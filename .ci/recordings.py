"""Two sessions in a terminal of 80 columns, recorded from real runs: `python .ci/recordings.py SITE`.

`ten-minutes.cast` is the README's first walk; in `worst-night.cast` the primary goes dark under a drain, which is then
killed, run again, and reported on. Both are files of asciinema (version 2), written beside the pages of
`sbpair help --html`, with a page that plays them: by asciinema's own player from npm, whose digest is below, copied so
that the page fetches nothing. `asciinema play FILE` plays them in a terminal.
"""

import base64
import codecs
import contextlib
import hashlib
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

COLUMNS, ROWS = 80, 24
PLAYER = "asciinema-player@3.18.0"
PLAYER_SHA512 = "5gpt2ipFcy4NKmgkv+c/QXnJ9zMicxqWROCOuJqgwwtiYKM8Qe9hnDOvfqke5bW6M2DW/seO3uQYkQ0xeUUVtw=="
PROMPT = rb"\x1b\]133;A\x07"
"""What a shell writes before a prompt, and no terminal shows: the command before has ended."""
KEY_SECONDS, MOST_IDLE_SECONDS, LIMIT_SECONDS = 0.04, 1.5, 180


class Recording:
    """A shell in a terminal, and every byte that it writes with its time."""

    def __init__(self, home: Path, program: Path) -> None:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            environ = {"HOME": str(home), "PATH": f"{program.parent}:/usr/bin:/bin", "TERM": "xterm-256color"}
            environ |= {"LANG": "C.UTF-8", "PS1": "\\[\\e]133;A\\a\\]$ ", "LINES": str(ROWS), "COLUMNS": str(COLUMNS)}
            environ["INPUTRC"] = str(home / "inputrc")
            (home / "inputrc").write_text("set enable-bracketed-paste off\n")
            os.chdir(home)
            os.execvpe("/bin/bash", ["bash", "--norc", "--noprofile"], environ)  # noqa: S606
        ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._events: list[tuple[float, bytes]] = []
        self._read_until(PROMPT)

    def run(self, command: str, *, when: tuple[bytes, Callable[[], None]] | None = None) -> None:
        """Type a command and wait for its end; `when`: do that once the output has these bytes."""
        for letter in command:
            os.write(self._terminal, letter.encode())
            self._pause(KEY_SECONDS)
        self._pause(0.3)
        os.write(self._terminal, b"\r")
        if when is not None:
            self._read_until(when[0])
            when[1]()
        self._read_until(PROMPT)
        self._pause(1.2)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._read(left)

    def _read_until(self, wanted: bytes) -> None:
        written, end = b"", time.monotonic() + LIMIT_SECONDS
        while not re.search(wanted, written):
            if time.monotonic() > end:
                raise SystemExit(f"{wanted!r} did not come: {written[-500:]!r}")
            written += self._read(0.2)

    def _read(self, seconds: float) -> bytes:
        if not select.select([self._terminal], [], [], seconds)[0]:
            return b""
        content = os.read(self._terminal, 65_536)
        self._events.append((time.monotonic(), content))
        return content

    def finish(self, title: str) -> str:
        """The session as a file of asciinema; what was waited for longer is shortened."""
        os.close(self._terminal)
        os.waitpid(self._process, 0)
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": title}
        lines, at, before = [json.dumps(header)], 0.0, self._events[0][0]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a letter
        for moment, content in self._events:
            at, before = at + min(moment - before, MOST_IDLE_SECONDS), moment
            lines.append(json.dumps([round(at, 3), "o", decoder.decode(content)]))
        return "\n".join([*lines, ""])


@contextlib.contextmanager
def world(program: Path) -> Iterator[tuple[Path, Callable[..., None]]]:
    """A home with two embedded namespaces as an outage leaves them, and a way to run commands that are not shown."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environ = {"HOME": folder, "PATH": "/usr/bin:/bin"}
        command = [str(program), "emulator", "--sample", "outage", "--port", "0"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environ}
        emulator = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]

        def hidden(*arguments: str) -> None:
            subprocess.run([str(program), *arguments], check=True, **quiet)  # type: ignore[call-overload]

        try:
            while subprocess.run([str(program), "status", "local"], **quiet).returncode:  # type: ignore[call-overload]
                if emulator.poll() is not None:
                    raise SystemExit("The embedded namespaces have ended.")
            yield home, hidden
        finally:
            emulator.terminate()
            emulator.wait()


def ten_minutes(program: Path) -> str:
    with world(program) as (home, _):
        session = Recording(home, program)
        for command in (
            "sbpair status local",
            "sbpair peek local --group-by destination",
            "sbpair drain local --dry-run",
            "sbpair drain local --yes --ledger drain.jsonl",
            "sbpair drain local --yes --dlq --ledger drain.jsonl",
            "sbpair status local --fail-on warning",
        ):
            session.run(command)
        return session.finish("sbpair: the first ten minutes")


def worst_night(program: Path) -> str:
    with world(program) as (home, hidden):
        session = Recording(home, program)
        drain = "sbpair drain local --yes --ledger drain.jsonl --rate 60"

        def dark() -> None:
            hidden("emulator", "fault", "add", "local-primary", "dark:for=8s")

        def kill() -> None:
            found = subprocess.run(
                ["pgrep", "-f", f"{program} drain local"], capture_output=True, text=True, check=True
            )
            os.kill(int(found.stdout.split()[0]), signal.SIGKILL)

        session.run("sbpair status local")
        session.run("# The primary goes dark while the drain runs, and comes back.")
        session.run(f"{drain} --limit 240", when=(rb"\d\d/240 ", dark))
        session.run("# Somebody kills the next one.")
        session.run(drain, when=(rb"1\d\d/257 ", kill))
        session.run("# The same command goes on.")
        session.run(drain)
        session.run("sbpair report drain.jsonl")
        session.run("sbpair report --verify drain.jsonl")
        return session.finish("sbpair: a dark primary, a killed drain, and a report")


PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Recorded sessions</title><link rel="stylesheet" href="style.css"><link rel="stylesheet" href="player.css">
<style>main {{ max-width: 60em; margin: auto }}</style></head>
<body><main><p><a href="index.html">sbpair</a></p><h1>Recorded sessions</h1>
{sections}
</main><script src="player.js"></script>
<script>
{scripts}
</script></body></html>
"""


def write(site: Path, program: Path) -> None:
    """Record both sessions, and write them, their page and its player beside the pages of `site`."""
    with tempfile.TemporaryDirectory() as folder:
        npm = shutil.which("npm") or "npm"
        subprocess.run([npm, "pack", "--silent", PLAYER], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        packed = next(Path(folder).glob("*.tgz")).read_bytes()
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != PLAYER_SHA512:
        raise SystemExit(f"{PLAYER} has other bytes than it had.")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name, wanted in (("asciinema-player.min.js", "player.js"), ("asciinema-player.css", "player.css")):
            (site / wanted).write_bytes(archive.extractfile(f"package/dist/bundle/{name}").read())  # type: ignore[union-attr]
    sections, scripts = [], []
    for name, record in (("ten-minutes", ten_minutes), ("worst-night", worst_night)):
        cast = record(program)
        (site / f"{name}.cast").write_text(cast, encoding="utf-8")
        title = json.loads(cast.partition("\n")[0])["title"].partition(": ")[2].capitalize()
        sections.append(f'<h2>{title}</h2>\n<div id="{name}"></div>\n<p><a href="{name}.cast">{name}.cast</a></p>')
        # In the page itself: one that is opened as a file may fetch nothing.
        data = json.dumps(cast).replace("</", "<\\/")
        scripts.append(
            f'AsciinemaPlayer.create({{data: {data}}}, document.getElementById("{name}"), {{fit: "width"}});'
        )
    page = PAGE.format(sections="\n".join(sections), scripts="\n".join(scripts))
    (site / "recordings.html").write_text(page, encoding="utf-8")
    index = site / "index.html"
    linked = re.sub(
        r"(?=<h2)", '<p><a href="recordings.html">Recorded sessions</a></p>\n', index.read_text("utf-8"), count=1
    )
    index.write_text(linked, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.executable).with_name("sbpair"))
