"""A ledger to resume that is damaged, foreign or huge: continued where it is one, else refused and left as it is."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.errors import UsageError
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.runtime.transfer.ledger import Ledger
from tests.hostile import bounded, damaged, json_bytes, mutated, tame, within

LINE = asdict(LedgerEntry("q", 7, "order-1", 1_790_000_000_000, "orders", "s", "forwarded", "2026-11-01T00:00:00Z"))
WHOLE = b"".join(json_bytes(LINE | {"sequence_number": number}) + b"\n" for number in range(1, 4))


def resume(path: Path) -> frozenset[Any]:
    """What the ledger says was sent."""

    async def read() -> frozenset[Any]:
        ledger = Ledger(path, resume=True)
        await ledger.close()
        return ledger.forwarded

    return asyncio.run(read())


@bounded(250)
@given(damaged(WHOLE) | mutated(LINE).map(lambda line: json_bytes(line) + b"\n") | st.binary(max_size=60))
def test_a_ledger_is_resumed_or_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(data)
    told = tame(lambda: resume(path), UsageError)
    after = path.read_bytes()
    if isinstance(told, UsageError):
        assert after == data
    else:
        assert data.startswith(after) and (after == b"" or after.endswith(b"\n"))
        assert all([type(part) in (str, int, type(None)) for part in key] for key in told)


@pytest.mark.parametrize(
    "data",
    [
        b'{"queue": "' + b"x" * 3_000_000,
        WHOLE + b'{"queue": "' + b"x" * 3_000_000 + b"\n",
        b'{"queue": ' + b"[" * 100_000 + b"\n",
        b"\x00" * 3_000_000,
    ],
    ids=range(4),
)
def test_a_line_longer_than_any_of_ours_is_no_line_and_takes_no_memory(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(data)
    with within(seconds=5, megabytes=20), pytest.raises(UsageError, match="is not a line of a ledger"):
        resume(path)
    assert path.read_bytes() == data


def test_a_line_with_other_types_is_no_line(tmp_path: Path) -> None:
    for change in (
        {"queue": 1},
        {"sequence_number": "7"},
        {"message_id": 5},
        {"enqueued_at_ms": None},
        {"outcome": []},
    ):
        path = tmp_path / "ledger"
        path.write_text(json.dumps(LINE | change) + "\n", encoding="utf-8")
        with pytest.raises(UsageError, match="Line 1"):
            resume(path)
