"""What a read of the data source costs a worker that is warm, beside azure-servicebus browsing the same messages.

    python -m tests.benchmarks.read [--messages 12000]

CPU time of one process, the best of some rounds that take turns: all columns, two of them, and the SDK, whose messages
are asked for id, properties, body and time. Spark itself is not in it.
"""

import argparse
import os
import time
from collections.abc import Callable

from azure.servicebus import ServiceBusClient

from sbpair.pipeline.rows import source_columns
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.source.reader import batches_of
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, NumberRange
from tests.benchmarks.embedded import BACKLOG, Embedded, embedded
from tests.benchmarks.table import Row, print_rows

SECRET = "SBPAIR_BENCHMARK_READ"
FEW = ("sequence_number", "body_text")
SIZE_BYTES = 200
ROUNDS = 4
PAGE_MESSAGES = 250


def measure(on: Embedded, messages: int) -> list[Row]:
    on.fill(messages, SIZE_BYTES)
    assert on.secondary.connection_string is not None
    text = os.environ[SECRET] = on.secondary.connection_string.reveal()
    given = {"namespace": "secondary", "host": on.secondary.host, "connectionStringEnv": SECRET}
    given |= {"caFile": str(on.secondary.ca_file), "entity": BACKLOG[0]}
    options = ReadOptions.parse(given, of_backlog=False)

    def read(columns: tuple[tuple[str, str, str], ...]) -> int:
        spans = (NumberRange(path, False, 1, LAST_SEQUENCE_NUMBER) for path in BACKLOG)
        return sum(batch.num_rows for span in spans for batch in batches_of(options, span, columns))

    def browse() -> int:
        count = 0
        with ServiceBusClient.from_connection_string(text, connection_verify=str(on.secondary.ca_file)) as client:
            for path in BACKLOG:
                with client.get_queue_receiver(path) as receiver:
                    number = 0
                    while page := receiver.peek_messages(PAGE_MESSAGES, sequence_number=number):
                        number = (page[-1].sequence_number or 0) + 1
                        for one in page:
                            _ = one.message_id, one.application_properties, b"".join(one.body), one.enqueued_time_utc
                        count += len(page)
        return count

    every = source_columns()
    ways: dict[str, Callable[[], int]] = {
        "all columns": lambda: read(every),
        "two columns": lambda: read(tuple(one for one in every if one[0] in FEW)),
        "azure-servicebus": browse,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.process_time()
            assert way() == messages
            best[name] = min(best[name], time.process_time() - began)
    case = f"{messages:,} messages of {SIZE_BYTES} B"
    found = [Row("read", case, name, round(seconds * 1e6 / messages, 1), "us") for name, seconds in best.items()]
    sdk = best["azure-servicebus"]
    aims = {"all columns": 1.5, "two columns": 1.0}
    return found + [
        Row("read", case, f"{name} / SDK", round(best[name] / sdk, 2), "x", at_most=aim) for name, aim in aims.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.read", description=__doc__)
    parser.add_argument("--messages", type=int, default=12_000)
    with embedded() as on:
        print_rows([row.as_dict() for row in measure(on, parser.parse_args().messages)])


if __name__ == "__main__":
    main()
