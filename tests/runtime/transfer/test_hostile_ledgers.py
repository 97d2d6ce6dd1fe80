"""A ledger says between which namespaces its messages moved, and drives no terminal that shows it."""

import json
from pathlib import Path

import pytest

from sbpair.core.errors import UsageError
from sbpair.core.transfer.ledger import LedgerEntry, Way
from sbpair.runtime.transfer.ledger import Ledger
from tests.runtime.transfer.test_drain_emulator import browse, compose, stage

WAY = Way("contoso-neu.servicebus.windows.net", "contoso-weu.servicebus.windows.net")
KEY = ("q/0", 7, "m\x1b]0;evil\x07", 1)


def entry(**more: object) -> LedgerEntry:
    known = {"queue": KEY[0], "sequence_number": KEY[1], "message_id": KEY[2], "enqueued_at_ms": KEY[3]}
    rest = {"destination": "orders", "session_id": None, "outcome": "forwarded", "time": "2026-11-01T00:00:00Z"}
    return LedgerEntry(**(known | rest | more))  # type: ignore[arg-type]


async def written(path: Path, *entries: LedgerEntry, way: Way | None = WAY) -> bytes:
    ledger = Ledger(path, way=way)
    await ledger.record(entries)
    await ledger.close()
    return path.read_bytes()


async def test_the_ledger_of_other_namespaces_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    before = await written(path, entry())
    for other in (Way("another.servicebus.windows.net", WAY.to_namespace), Way(WAY.from_namespace, None)):
        with pytest.raises(UsageError, match=r"records messages from 'contoso-neu.*this run moves them from"):
            Ledger(path, resume=True, way=other)
    assert path.read_bytes() == before
    again = Ledger(path, resume=True, way=WAY)
    await again.close()
    assert again.forwarded == {KEY}


async def test_a_ledger_of_another_destination_is_refused_and_what_was_only_completed_names_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    await written(path, entry(), entry(destination="", outcome="already-forwarded"))
    again = Ledger(path, resume=True, way=WAY, to={"Q/0": "ORDERS"})
    await again.close()
    assert again.forwarded == {("Q/0", *KEY[1:])}, "as this run spells it, so that its messages are known"
    with pytest.raises(UsageError, match="sent to 'orders'; this run sends to 'parked'"):
        Ledger(path, resume=True, way=WAY, to={"q/0": "parked"})


async def test_one_line_of_another_pair_among_many_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    await written(path, *[entry(sequence_number=number) for number in range(50)])
    line = json.loads(path.read_bytes().splitlines()[0]) | {"from_namespace": "x\x1b[31m", "sequence_number": 99}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(UsageError, match="Line 51") as refused:
        Ledger(path, resume=True, way=WAY)
    assert refused.value.message.isprintable()


async def test_lines_that_say_nothing_of_namespaces_are_no_reason_to_complete_a_message(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    before = await written(path, entry(), way=None)
    assert b"from_namespace" not in before
    with pytest.raises(UsageError, match="does not say between which namespaces"):
        Ledger(path, resume=True, way=WAY)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["\x1b]0;x\x07", "\x9b31m", "\x7f", "\u202egnp", "\u2028::error::", "##[group]", "\ufeff"]
)
async def test_no_line_drives_a_terminal_or_a_build_runner(tmp_path: Path, name: str) -> None:
    data = await written(tmp_path / "ledger.jsonl", entry(message_id=name, session_id=name, reason=name, queue=name))
    (line,) = data.decode().splitlines()
    assert line.isprintable()
    assert "##[" not in line
    assert json.loads(line)["session_id"] == name


async def test_neither_does_an_archive(tmp_path: Path) -> None:
    from sbpair.runtime.transfer.drain import ToArchive

    async with stage(queues=1) as on:
        await on.divert([compose(body=b"x", message_id="m\x1b[2J\x9b\u202e##[error]")])
        await on.drain(to=ToArchive(tmp_path))
    (text,) = [file.read_text(encoding="utf-8") for file in tmp_path.glob("*.jsonl")]
    (line,) = text.splitlines()
    assert line.isprintable()
    assert "##[" not in line
    assert json.loads(line)["message_id"] == "m\x1b[2J\x9b\u202e##[error]"


async def test_what_an_earlier_run_is_said_to_have_sent_is_told_in_the_closing_sentence(tmp_path: Path) -> None:
    """A tampered ledger can have a message completed that was never sent: every format says how many there were."""
    from sbpair.core.transfer.conclusion import Asked, closing

    async with stage(queues=1) as on:
        await on.divert([compose(body=b"x", message_id="m")])
        (waiting,) = await on.in_backlog()
        ledger = Ledger(tmp_path / "ledger.jsonl")
        await ledger.record([entry(queue=waiting.queue, sequence_number=waiting.sequence_number, message_id="m",
                                   enqueued_at_ms=round((waiting.enqueued_at or 0.0) * 1000))])  # fmt: skip
        await ledger.close()
        again = Ledger(tmp_path / "ledger.jsonl", resume=True)
        report = await on.drain(ledger=again)
        await again.close()
        assert await browse(on.primary.receiver("orders")) == []
    assert (report.forwarded, report.already_forwarded) == (0, 1)
    assert "1 had been sent before and was completed without being sent again" in closing(
        report, None, Asked("orders", "contoso-weu", "sbpair drain orders")
    )
