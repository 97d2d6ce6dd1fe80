"""Appended records: whole or not at all, and one writer."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.files import AppendedFile, is_claimed

CLAIM = """
import sys
from pathlib import Path
from sbpair.files import AppendedFile
file = AppendedFile(Path(sys.argv[1]))
print(file.claim(), flush=True)
sys.stdin.read()
"""


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """Files of this process cannot grow beyond this; Python ignores the signal that would end it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_does_not_fit_is_cut_off_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    file = AppendedFile(path)
    file.append(b"first\n")
    with room_for(10), pytest.raises(OSError, match="too large"):
        file.append(b"second\n")
    assert path.read_bytes() == b"first\n"
    file.append(b"third\n")
    file.close()
    assert path.read_bytes() == b"first\nthird\n"


def test_closing_after_a_refusal_refuses_nothing() -> None:
    file = AppendedFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        file.append(b"line\n")
    file.close()


def test_a_claim_holds_until_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert not is_claimed(path)
    command = [sys.executable, "-c", CLAIM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert is_claimed(path)
        mine = AppendedFile(path)
        assert not mine.claim()
        other.kill()
    assert not is_claimed(path)
    assert mine.claim()
    mine.close()
