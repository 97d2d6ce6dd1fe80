"""Processes that the pipeline's benchmark compares: plain scripts over our Azure adapters, and one with Spark.

    python -m tests.benchmarks.pipeline_workers plain|spark CONFIG

They take orders by lines of JSON (`processes.ask`). The plain ones are asynchronous and see to all their queues at
once.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sbpair.azure import frames
from sbpair.azure.frames import batch
from sbpair.azure.messaging import AzureMessaging
from sbpair.azure.wire import SenderWire, make_sdk_sender
from sbpair.core.message import Disposition, Received
from sbpair.core.retry import credits_beside
from sbpair.core.rewrite import for_primary
from sbpair.pipeline.executors import PairByName
from tests.benchmarks.movers import parts

PAIR = "bench"
CORES = 2
PAGE_MESSAGES = 250
BATCHES_IN_FLIGHT = 4
JVM_ROWS = 100_000
"""What the command says that the JVM will see of an archive in a folder."""


class Plain:
    """What a script without Spark does."""

    def __init__(self, config: Path) -> None:
        import azure.servicebus.aio  # noqa: F401 - loaded before the clock starts
        import pyarrow.parquet  # noqa: F401

        self._pair = PairByName.load(PAIR, config).resolve()
        self._payloads: list[bytes] = []

    def do(self, what: str, **values: Any) -> Any:
        return asyncio.run(getattr(self, what)(**values))

    async def browse(self, queues: Sequence[str]) -> int:
        """Look at everything; nothing is written."""
        return await self._pages(queues, lambda page: None)

    async def parquet(self, queues: Sequence[str], folder: str) -> int:
        """Look at everything and write one file a queue, in the columns of an archive."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from sbpair.pipeline.rows import arrow_schema, message_row, to_batch

        rows: dict[str, list[Any]] = {}

        def keep(page: Sequence[Received]) -> None:
            rows.setdefault(page[0].source, []).extend(message_row(PAIR, one) for one in page)

        count = await self._pages(queues, keep)
        for queue, found in rows.items():
            name = f"{queue.rpartition('/')[2]}.parquet"
            table = pa.Table.from_batches([to_batch(found, arrow_schema())])
            pq.write_table(table, Path(folder) / name, compression="zstd", write_page_checksum=True)
        return count

    async def _pages(self, queues: Sequence[str], keep: Callable[[Sequence[Received]], None]) -> int:
        messaging = AzureMessaging(self._pair.secondary)

        async def one(queue: str) -> int:
            receiver, number, count = messaging.receiver(queue), 1, 0
            while page := await receiver.peek(PAGE_MESSAGES, from_sequence_number=number):
                number, count = page[-1].sequence_number + 1, count + len(page)
                keep(page)
            return count

        counts = await asyncio.gather(*(one(queue) for queue in queues))
        await messaging.close()
        return sum(counts)

    async def take(self, queues: Sequence[str], each: int) -> int:
        """Receive and complete, as fast as they come."""
        messaging = AzureMessaging(self._pair.secondary)

        async def one(queue: str) -> None:
            receiver, left = messaging.receiver(queue), each
            while left:
                received = await receiver.receive(PAGE_MESSAGES, wait_seconds=1.0)
                await asyncio.gather(*(receiver.settle(message, Disposition.COMPLETE) for message in received))
                left -= len(received)

        await asyncio.gather(*(one(queue) for queue in queues))
        await messaging.close()
        return each * len(queues)

    async def load(self, files: Sequence[str], part: int, of: int) -> int:
        """Keep in memory what a replay of these files sends, or a part of it."""
        import pyarrow.parquet as pq

        found = (one for file in files for one in pq.ParquetFile(file).read(["payload"]).column(0).to_pylist())
        self._payloads = [for_primary(one, now=time.time(), enqueued_at=None).payload for one in found][part::of]
        return len(self._payloads)

    async def send(self, destination: str) -> int:
        """Send them in batches, a few of them on their way at a time."""
        wire = SenderWire(make_sdk_sender(AzureMessaging(self._pair.primary)._sdk_client(), destination))
        await wire.open()
        room = asyncio.Semaphore(BATCHES_IN_FLIGHT)

        async def one(payloads: Sequence[bytes]) -> None:
            async with room:
                await wire.send(batch(payloads), frames.BATCH_FORMAT).confirmed

        await asyncio.gather(*(one(some) for some in parts(self._payloads)))
        await wire.close()
        return len(self._payloads)


class Spark:
    """The pipeline, in one session."""

    def __init__(self, config: Path) -> None:
        from sbpair.pipeline import register
        from sbpair.pipeline.spark.session import open_spark

        began = time.perf_counter()
        self._config, self._pair = config, PairByName.load(PAIR, config)
        self._opened = open_spark(rows=JVM_ROWS, master=f"local[{CORES},4]")
        self._session = self._opened.__enter__()
        register(self._session.spark)
        self.start_seconds = time.perf_counter() - began

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    def do(self, what: str, **values: Any) -> Any:
        return getattr(self, what)(**values)

    def archive(self, folder: str, take: bool, reserve: int | None = None) -> int:
        from sbpair.pipeline.archive import ArchiveRequest, archive

        budget = None if reserve is None else credits_beside(reserve)
        report = archive(self._session, ArchiveRequest(self._pair, folder, take=take, budget_per_second=budget))
        assert not take or report.settled == report.rows, report
        return report.rows

    def replay(self, folder: str, ledger: str, reserve: int | None = None) -> int:
        from sbpair.pipeline.replay import ReplayRequest, replay
        from sbpair.pipeline.tables import SparkTables

        asked = ReplayRequest(self._pair, (folder,), Path(ledger), although_in_queues=True, reserve=reserve)
        return replay(SparkTables(self._session), asked, session=self._session).forwarded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("plain", "spark"))
    parser.add_argument("config", type=Path)
    arguments = parser.parse_args()
    worker: Any = Spark(arguments.config) if arguments.kind == "spark" else Plain(arguments.config)
    print(json.dumps(getattr(worker, "start_seconds", 0.0)), flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.do(**json.loads(line))), flush=True)
    if arguments.kind == "spark":
        worker.close()


if __name__ == "__main__":
    main()
