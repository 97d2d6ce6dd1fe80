"""Any number of embedded pairs in a process of their own, with many queues, a round trip, and a count of HTTP calls.

Also the workers: an audit's gathering, and a script that gets every queue, each in a fresh process for its memory.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbpair.azure import make_admin
from sbpair.concurrency import side_by_side
from sbpair.connect import open_sides
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.inspection.audit import run as run_checks
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.gather import gather
from tests.benchmarks.processes import ask, peak_rss_mb

if TYPE_CHECKING:
    from sbpair.emulator import Emulator

BACKLOG_QUEUES = 10
_NEVER = 10**9


@dataclass(frozen=True)
class Fleet:
    """The running namespaces, seen from the benchmark."""

    process: "subprocess.Popen[str]"
    told: Mapping[str, Any]

    def watch(self, round_trip_ms: float) -> None:
        """Begin to count anew, with this round trip."""
        ask(self.process, "watch", round_trip_ms=round_trip_ms)

    def calls(self) -> int:
        """HTTP calls since `watch`, all namespaces."""
        return int(ask(self.process, "calls"))

    def work(self, kind: str, **options: Any) -> dict[str, Any]:
        """Have a fresh process do it; its figures."""
        order = json.dumps({"kind": kind, **self.told, **options})
        command = [sys.executable, "-m", "tests.benchmarks.fleet", "work"]
        done = subprocess.run(command, input=order, capture_output=True, encoding="utf-8", check=True)
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures


@contextmanager
def fleet(pairs: int, queues: int) -> Iterator[Fleet]:
    """`pairs` healthy pairs; each secondary has `queues` queues, the backlog queues among them."""
    command = [sys.executable, "-m", "tests.benchmarks.fleet", "serve", str(pairs), str(queues)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Fleet(process, json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()


async def _serve(pairs: int, queues: int) -> None:
    from sbpair.emulator import Emulator
    from sbpair.emulator.entities import QueueDescription

    documented = QueueDescription(
        max_size_in_megabytes=5120, max_delivery_count=2_147_483_647, dead_lettering_on_message_expiration=True
    )
    sides = [(f"primary-{index:03}", f"secondary-{index:03}") for index in range(pairs)]
    async with Emulator([name for pair in sides for name in pair]) as emulator:
        for primary, secondary in sides:
            emulator.namespace(primary).create_queue("orders", QueueDescription(max_size_in_megabytes=5120))
            paths = [f"{primary}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES)]
            for path in [*paths, *(f"other/{index:05}" for index in range(queues - BACKLOG_QUEUES))]:
                emulator.namespace(secondary).create_queue(path, documented)
        strings = [[emulator.connection_string(name) for name in pair] for pair in sides]
        print(json.dumps({"pairs": strings, "ca_file": str(emulator.ca_path)}), flush=True)
        counters: dict[str, str] = {}
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(_obey(emulator, counters, json.loads(line))), flush=True)


def _obey(emulator: "Emulator", counters: dict[str, str], order: Mapping[str, Any]) -> int:
    """`watch`: a fault that never strikes counts what it might have struck."""
    if order["what"] == "watch":
        for name in emulator.names:
            faults = emulator.faults(name)
            faults.clear()
            faults.add(f"delay:rtt={order['round_trip_ms']}ms")
            counters[name] = faults.add(f"fail:op=http,after={_NEVER}")
        return 0
    seen = ({one.id: one.seen for one in emulator.faults(name).list()}[counters[name]] for name in emulator.names)
    return sum(seen)


def _pairs(order: Mapping[str, Any]) -> list[Pair]:
    def access(text: str, label: str) -> NamespaceAccess:
        secret = Secret(text)
        return NamespaceAccess(label, host_of(text), AuthMethod.CONNECTION_STRING, secret, ca_file=order["ca_file"])

    return [
        Pair(
            f"pair-{index:03}",
            access(primary, f"primary-{index:03}"),
            access(secondary, f"secondary-{index:03}"),
            entities=("orders",),
        )
        for index, (primary, secondary) in enumerate(order["pairs"])
    ]


async def _audit(order: Mapping[str, Any]) -> dict[str, Any]:
    async def one(pair: Pair) -> Snapshot:
        async with open_sides(pair) as sides:
            return await gather(
                pair,
                primary=sides.primary_admin,
                secondary=sides.secondary_admin,
                clock=LoopClock(),
                peek=peeking(sides.secondary) if order["browse"] else None,
                credits_per_second=order["credits_per_second"],
            )

    pairs = _pairs(order)
    snapshots = await side_by_side(one, pairs, at_once=8)
    reports = [run_checks(snapshot, pair) for snapshot, pair in zip(snapshots, pairs, strict=True)]
    wrong = [finding for report in reports for finding in report.findings if finding.code in ("SBP001", "SBP002")]
    assert not wrong, wrong
    return {"calls": sum(snapshot.calls.management for snapshot in snapshots)}


async def _every_queue(order: Mapping[str, Any]) -> dict[str, Any]:
    """What a script does: list the names, then get each queue with its counts, one after the other."""
    calls = 0
    for pair in _pairs(order):
        for access in (pair.primary, pair.secondary):
            admin = make_admin(access)
            paths = [queue.path async for queue in admin.list_queues()]
            for path in paths:
                await admin.get_queue(path)
            calls += len(paths)
            await admin.close()
    return {"gets": calls}


def _work() -> None:
    order = json.loads(sys.stdin.read())
    began = time.monotonic()
    figures = asyncio.run({"audit": _audit, "every queue": _every_queue}[order["kind"]](order))
    seconds = time.monotonic() - began
    cpu = time.process_time()  # since the process began, its imports included
    figures |= {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_megabytes": round(peak_rss_mb(), 1)}
    print(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(_serve(int(sys.argv[2]), int(sys.argv[3])))
    else:
        _work()
    sys.exit(Exit.OK)
