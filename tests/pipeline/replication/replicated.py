"""Archives of both sides of active/active and a journal, as peeks, archives and consumers leave them, with a story of
each thing that can go wrong."""

import asyncio
import base64
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.core.replication.ordering import Place, Stamp, stamped
from sbpair.core.replication.ownership import (
    Current,
    Finished,
    Gap,
    Head,
    MessageRecord,
    Passed,
    SessionEntry,
    SessionState,
)
from sbpair.core.rewrite import compose
from sbpair.journal.sqlite import SqliteJournal
from sbpair.pipeline.manifest import ArchiveFile, Commit, LocalStore, append
from sbpair.pipeline.rows import arrow_schema
from sbpair.runtime.replication.store import MESSAGE, SESSION, key_of

LONG_SECONDS = 10.0 * 365 * 86_400
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
HOUR, DAY = 3600.0, 86_400.0
DESTINATION = "orders"


class Archives:
    """Messages of both sides, written as the two kinds of archives are."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"primary": [], "secondary": []}

    def put(
        self,
        session: str,
        message: str,
        numbers: tuple[int | None, int | None],
        *,
        stamp: Stamp | None = None,
        ago: float = HOUR,
        **changed: Any,
    ) -> None:
        """One message with its numbers on both sides; None: not there."""
        payload = compose(body=message, message_id=message, session_id=session)
        for (_, rows), number in zip(self.rows.items(), numbers, strict=True):
            if number is not None:
                rows.append(
                    {
                        "queue": "Orders",
                        "sequence_number": number,
                        "enqueued_at": NOW - ago,
                        "state": "active",
                        "dead_letter": False,
                        "dead_letter_reason": None,
                        "message_id": message,
                        "session_id": session,
                        "stamp": stamp,
                        "payload": payload if stamp is None else stamped(payload, stamp),
                    }
                    | changed
                )

    def as_lines(self, folder: Path) -> dict[str, list[str]]:
        """As `peek -o jsonl` writes them."""
        found = {}
        for side, rows in self.rows.items():
            file = folder / f"{side}.jsonl"
            file.write_text("".join(json.dumps(_line(row)) + "\n" for row in rows))
            found[side] = [str(file)]
        return found

    def as_parquet(self, folder: Path) -> dict[str, list[str]]:
        return {side: [_parquet(folder / side, rows)] for side, rows in self.rows.items()}


def _line(row: dict[str, Any]) -> dict[str, Any]:
    payload = row["payload"]
    if row["dead_letter_reason"] is not None:
        payload = compose(
            body="", message_id=row["message_id"], session_id=row["session_id"],
            application_properties={"DeadLetterReason": row["dead_letter_reason"]},
        )  # fmt: skip
        payload = payload if row["stamp"] is None else stamped(payload, row["stamp"])
    return {
        "queue": row["queue"] + ("/$deadletterqueue" if row["dead_letter"] else ""),
        "sequence_number": row["sequence_number"],
        "enqueued_at": datetime.fromtimestamp(row["enqueued_at"], UTC).isoformat(),
        "message_id": row["message_id"],
        "state": row["state"],
        "payload_base64": base64.b64encode(payload).decode(),
    }


def _parquet(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    schema = arrow_schema()
    filled = [{name: _cell(row, name) for name in schema.names} for row in rows]
    path = folder / "data" / "a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(filled, schema=schema), path, row_group_size=3)
    file = ArchiveFile("data/a.parquet", "shop", "Orders", False, "unknown", len(rows), path.stat().st_size, 1, 10**6)
    append(LocalStore(folder), Commit(NOW, "run", added=(file,)), still_valid=lambda _: None)
    return str(folder)


def _cell(row: dict[str, Any], name: str) -> Any:
    stamp: Stamp | None = row["stamp"]
    if name == "pair":
        return "shop"
    if name == "enqueued_at":
        return datetime.fromtimestamp(row[name], UTC)
    if name == "properties" and stamp is not None:
        after = " ".join(str(one) for one in stamp.after)
        ids = json.dumps([one.message_id for one in stamp.after])
        said = {
            "x-sbpair-stream": ("string", stamp.place.stream),
            "x-sbpair-number": ("long", str(stamp.place.number)),
            "x-sbpair-after": ("string", after),
            "x-sbpair-after-ids": ("string", ids),
        }
        return [(key, {"type": kind, "value": value}) for key, (kind, value) in said.items()]
    return row.get(name)


def done(
    session: str, message: str, fence: int, *, attempts: int = 1, settled: Sequence[str] = ("primary", "secondary"),
    state: SessionState = SessionState.COMPLETED, code: str = "", reason: str = "", at: float = NOW - HOUR / 2,
) -> MessageRecord:  # fmt: skip
    finished = Finished(message, state, at, code, reason, attempts, fence)
    return MessageRecord(DESTINATION, session, finished, tuple(settled))


def place(number: int, message: str = "", stream: str = "st") -> Place:
    return Place(stream, number, message)


def story() -> tuple[Archives, list[MessageRecord], list[SessionEntry], dict[tuple[str, str], set[str]]]:
    """Sessions, each with what is to be said of its messages."""
    archives, records, entries = Archives(), [], []
    expected: dict[tuple[str, str], set[str]] = {}
    put = archives.put

    put("fine", "f1", (1, 11))
    put("fine", "f2", (2, 12))
    records += [done("fine", "f1", 5), done("fine", "f2", 6)]

    put("swapped", "a", (3, 13))
    put("swapped", "b", (4, 14))
    put("swapped", "c", (5, 15))
    records += [done("swapped", "a", 8), done("swapped", "b", 7), done("swapped", "c", 9)]
    expected["swapped", "a"] = set()
    expected["swapped", "b"] = {"out_of_order"}

    put("either", "x", (6, 17))
    put("either", "y", (7, 16))
    records += [done("either", "x", 2), done("either", "y", 1)]
    expected["either", "y"] = {"sides_differ"}

    for number in (1, 2, 3):
        stamp = Stamp(place(number), (place(number - 1, f"n{number - 1}"),) if number > 1 else ())
        put("numbers", f"n{number}", (30 - number, 40 - number), stamp=stamp)
        records.append(done("numbers", f"n{number}", {1: 1, 2: 3, 3: 2}[number]))
    expected["numbers", "n3"] = {"out_of_order"}
    entries.append(SessionEntry(DESTINATION, "numbers", heads=(Head("st", 3, NOW - HOUR),)))

    put("waits", "w2", (50, 51), stamp=Stamp(place(2), (place(1, "w1"),)))
    gap = Gap(place(1), "w1", "w2", NOW - HOUR)
    entries.append(SessionEntry(DESTINATION, "waits", gap=gap))
    expected["waits", "w1"] = {"missing"}
    expected["waits", "w2"] = {"unprocessed"}

    put("after", "q2", (52, 53), stamp=Stamp(place(7, stream="two"), (place(4, "q1", "one"),)))
    put("after", "q1", (54, 55), stamp=Stamp(place(4, stream="one")))
    records += [done("after", "q2", 1), done("after", "q1", 2)]
    expected["after", "q2"] = {"out_of_order"}

    put("never", "v1", (60, 61))
    expected["never", "v1"] = {"unprocessed"}
    put("never", "v2", (62, None), ago=5 * DAY)  # its record may be forgotten
    put("begun", "g1", (63, 64), ago=5 * DAY)
    entries.append(SessionEntry(DESTINATION, "begun", SessionState.WORKING, "me", 3, NOW, Current("g1", 2, NOW)))
    expected["begun", "g1"] = {"unprocessed"}
    put("dead", "d1", (65, 66), dead_letter=True, dead_letter_reason="OrderUnknown")
    expected["dead", "d1"] = {"unprocessed"}

    put("failed", "e1", (70, 71))
    put("failed", "e2", (72, 73), dead_letter=True, dead_letter_reason="HandlerFailed", ago=9 * DAY)
    records.append(
        done("failed", "e1", 1, attempts=5, state=SessionState.FAILED, code="HandlerFailed", reason="exit 1")
    )
    expected["failed", "e1"] = {"failed"}
    expected["failed", "e2"] = {"failed"}
    put("passed", "p1", (74, 75), stamp=Stamp(place(1, stream="late")))
    heads = (Head("late", 2, NOW - HOUR),)
    entries.append(SessionEntry(DESTINATION, "passed", heads=heads, passed=(Passed("late", 1, 1, NOW - HOUR),)))
    expected["passed", "p1"] = {"failed"}

    put("twice", "t1", (80, 81))
    records.append(done("twice", "t1", 1, attempts=2))
    expected["twice", "t1"] = {"twice"}

    put("here", "h1", (90, None))
    put("here", "h2", (91, None))
    put("there", "i1", (None, 92))
    records += [done("here", "h1", 1, settled=["primary"]), done("here", "h2", 2), done("there", "i1", 1, settled=())]
    expected["here", "h1"] = {"one_side"}
    expected["there", "i1"] = {"one_side"}

    put("again", "z1", (93, 94))
    put("again", "z2", (95, 96))
    put("again", "z1", (97, 98), ago=HOUR / 4)  # sent again after it was finished
    entries.append(SessionEntry(DESTINATION, "again", recent=(done("again", "z2", 2).finished,)))
    records.append(done("again", "z1", 1))
    return archives, records, entries, {key: said for key, said in expected.items() if said}


def journal_of(path: Path, records: Iterable[MessageRecord], entries: Iterable[SessionEntry]) -> Path:
    async def write() -> None:
        journal = SqliteJournal(path)
        await journal.check()
        for entry in entries:
            key = key_of(entry.destination, entry.session_id)
            await journal.create(SESSION, key, entry.to_dict(), ttl_seconds=LONG_SECONDS)
        for record in records:
            key = key_of(record.destination, record.session_id, record.finished.message_id)
            await journal.create(MESSAGE, key, record.to_dict(), ttl_seconds=LONG_SECONDS)
        await journal.close()

    asyncio.run(write())
    return path
