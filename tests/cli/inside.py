"""Runs the command line within the test's process: for tests that try hundreds of inputs on commands that contact
nobody. Everything else starts the real process (`tests.cli.process`)."""

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from sbpair.cli.running import run
from tests.cli.process import Ran


def run_inside(home: Path, *arguments: str) -> Ran:
    """What the command says and its exit code, with `home` as the user's home."""
    out, err = _stream(), _stream()
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(_variables(before, home))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = int(run(list(arguments)))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Ran(code, _text(out), _text(err))


def _variables(present: Mapping[str, str], home: Path) -> dict[str, str]:
    kept = {name: value for name, value in present.items() if name in ("PATH", "TMPDIR", "LANG")}
    return kept | {"HOME": str(home), "SBPAIR_CONFIG": str(home / "sbpair.yaml")}


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
