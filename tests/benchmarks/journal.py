"""`python -m tests.benchmarks.journal`: what a claim of a consumer costs as its journal grows.

A claim is what a consumer does for a message: read its document, make or swap it. Measured in an SQLite journal with
1,000 documents and with a million, each document that of a finished message; then how long the slowest write waits
while a million documents run out of their time. `--documents N` for another size.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from sbpair.journal.sqlite import SqliteJournal

SMALL = 1_000
CLAIMS = 2_000
DOCUMENT = {
    "session_id": "parcel-1234567",
    "message_id": "0a1b2c3d-0a1b-2c3d-0a1b-0a1b2c3d4e5f",
    "state": "completed",
    "owner": "",
    "fence": 7,
    "attempt": 1,
    "completed_at": 1_790_000_000.123,
    "settled": ["primary", "secondary"],
}


async def filled(path: Path, documents: int, forget_at: float) -> None:
    """Write the documents past the journal's own interface, which writes each to the disk by itself."""
    journal = SqliteJournal(path)
    await journal.create("session", "first", DOCUMENT, ttl_seconds=3600)
    await journal.close()
    text = json.dumps(DOCUMENT, separators=(",", ":"))
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO entries VALUES ('message', ?, ?, 1, ?)",
            ((f"orders parcel-{number % 9973} m-{number:08}", text, forget_at) for number in range(documents)),
        )
    connection.close()


async def claims(path: Path) -> tuple[float, float]:
    """Median milliseconds of a claim (a read, a creation, a swap), and the slowest write in milliseconds."""
    journal = SqliteJournal(path)
    took, slowest = [], 0.0
    for number in range(CLAIMS):
        began = time.perf_counter()
        key = f"orders parcel-{number % 9973} new-{number:08}"
        assert await journal.read("message", key) is None
        before = time.perf_counter()
        entry = await journal.create("message", key, DOCUMENT, ttl_seconds=3600)
        slowest = max(slowest, time.perf_counter() - before)
        before = time.perf_counter()
        await journal.replace(entry, DOCUMENT, ttl_seconds=3600)
        slowest = max(slowest, time.perf_counter() - before)
        took.append(time.perf_counter() - began)
    await journal.close()
    return statistics.median(took) * 1000, slowest * 1000


async def measure(documents: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        later, earlier = time.time() + 86_400, time.time() - 1
        print(f"{'documents':>12} {'claim ms':>9} {'slowest write ms':>17} {'file MB':>8}")
        medians = []
        for count, forget_at, name in ((SMALL, later, ""), (documents, later, ""), (documents, earlier, " expired")):
            path = Path(folder) / f"{count}{name.strip()}.db"
            await filled(path, count, forget_at)
            median, slowest = await claims(path)
            medians.append(median)
            megabytes = path.stat().st_size / 1e6
            print(f"{f'{count:,}{name}':>17} {median:9.2f} {slowest:17.1f} {megabytes:8.1f}")
        print(f"A claim among {documents:,} documents costs {medians[1] / medians[0]:.2f} times one among {SMALL:,}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    asyncio.run(measure(parser.parse_args().documents))
