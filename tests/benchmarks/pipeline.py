"""The pipeline's archiving and replaying, beside what the namespaces give and plain scripts that do the same.

    python -m tests.benchmarks.pipeline [--quick | --alone]

The namespaces are a process of their own. Every way starts with its process up and a Spark session open; what starting
one takes is told apart. CPU is that of a way's processes with all their descendants. Plain scripts run in one process
and in as many as Spark has cores; the faster counts. Rounds take turns and the best one counts.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded, embedded
from tests.benchmarks.pipeline_workers import CORES, PAIR
from tests.benchmarks.processes import Memory, answer, ask, cpu_seconds, tell
from tests.benchmarks.table import Row, print_rows

SIZES, QUICK_SIZES = (10_000, 40_000), (3_000,)
ROUNDS = 3
SIZE_BYTES = 1_000
FAR_MS = 20.0
STARTS = 3
START_AIM = 1.2
_ROOT = Path(__file__).parents[2]
_CONFIGURATION = """\
version: 1
pairs:
  {pair}:
    primary: {{namespace: primary, host: localhost, connection_string: {{file: {folder}/primary.key}}, ca_file: {ca}}}
    secondary:
      {{namespace: secondary, host: localhost, connection_string: {{file: {folder}/secondary.key}}, ca_file: {ca}}}
"""


@dataclass(frozen=True)
class Cost:
    """What one way took for so many messages."""

    messages: int
    seconds: float
    cpu_seconds: float
    namespace_cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    def per_10k(self, seconds: float) -> float:
        return seconds * 10_000 / self.messages


@dataclass
class Bench:
    """The processes, and a folder for what they write."""

    on: Embedded
    folder: Path
    config: Path
    plain: "list[subprocess.Popen[str]]"
    spark: "subprocess.Popen[str]"
    start_seconds: float
    _folders: int = field(default=0)

    def fresh(self) -> Path:
        self._folders += 1
        made = self.folder / f"{self._folders:03}"
        made.mkdir()
        return made

    def cost(self, name: str, orders: "Sequence[tuple[subprocess.Popen[str], Mapping[str, Any]]]") -> Cost:
        """Have processes do something at the same time."""
        processes = [process for process, _ in orders]
        before = sum(cpu_seconds(one.pid) for one in processes), cpu_seconds(self.on.process.pid)
        began = time.perf_counter()
        for process, order in orders:
            tell(process, **order)
        messages = sum(answer(process) for process in processes)
        seconds = time.perf_counter() - began
        after = sum(cpu_seconds(one.pid) for one in processes), cpu_seconds(self.on.process.pid)
        found = Cost(messages, seconds, after[0] - before[0], after[1] - before[1])
        cpu = f"CPU {found.cpu_seconds:.1f} s, of the namespaces {found.namespace_cpu_seconds:.1f} s"
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"{name}, {messages:,}: {seconds:.2f} s, {cpu}, {load}", file=sys.stderr, flush=True)
        return found

    def scripts(self, name: str, order: Callable[[Sequence[str], int, int], Mapping[str, Any]]) -> Iterator[Cost]:
        """One process for all queues, then all processes for some each; `order(queues, part, of)`."""
        for of in (1, CORES):
            given = [(self.plain[part], order(BACKLOG[part::of], part, of)) for part in range(of)]
            yield self.cost(f"{name} in {of} process(es)", given)

    def browse(self) -> list[Cost]:
        return list(self.scripts("browse", lambda queues, _, __: {"what": "browse", "queues": queues}))

    def parquet(self) -> list[Cost]:
        folder = str(self.fresh())
        return list(
            self.scripts("pyarrow", lambda queues, _, __: {"what": "parquet", "queues": queues, "folder": folder})
        )

    def archive(self, *, take: bool = False, into: Path | None = None, reserve: int | None = None) -> Cost:
        order = {"what": "archive", "folder": str(into or self.fresh()), "take": take, "reserve": reserve}
        return self.cost("archive --take" if take else "archive", [(self.spark, order)])

    def take(self, messages: int) -> Cost:
        """Receiving empties the queues, so there is one way only: all processes."""
        each = messages // len(BACKLOG)
        orders = [{"what": "take", "queues": BACKLOG[part::CORES], "each": each} for part in range(CORES)]
        return self.cost("receive and settle", list(zip(self.plain, orders, strict=True)))

    def replay(self, archive: Path, *, reserve: int | None = None) -> Cost:
        ledger = str(self.fresh() / "ledger")
        order = {"what": "replay", "folder": str(archive), "ledger": ledger, "reserve": reserve}
        return self.cost("replay", [(self.spark, order)])

    def send(self, archive: Path) -> list[Cost]:
        files = [str(file) for file in sorted((archive / "data").rglob("*.parquet"))]
        costs = []
        for of in (1, CORES):
            for part in range(of):
                ask(self.plain[part], "load", files=files, part=part, of=of)
            orders = [(self.plain[part], {"what": "send", "destination": DESTINATION}) for part in range(of)]
            costs.append(self.cost(f"bare send in {of} process(es)", orders))
        return costs


@contextmanager
def bench() -> Iterator[Bench]:
    """Everything started."""
    with embedded() as on, tempfile.TemporaryDirectory(prefix="sbpair-pipeline-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        for access in (on.primary, on.secondary):
            assert access.connection_string is not None
            (folder / f"{access.label}.key").write_text(access.connection_string.reveal())
        config = folder / "sbpair.yaml"
        config.write_text(_CONFIGURATION.format(pair=PAIR, folder=folder, ca=on.primary.ca_file))
        plain = [stack.enter_context(_worker("plain", config)) for _ in range(CORES)]
        spark = stack.enter_context(_worker("spark", config))
        for process in plain:
            answer(process)
        yield Bench(on, folder, config, plain, spark, answer(spark))


@contextmanager
def _worker(kind: str, config: Path) -> "Iterator[subprocess.Popen[str]]":
    """Its first line tells the seconds that its start took."""
    command = [sys.executable, "-m", "tests.benchmarks.pipeline_workers", kind, str(config)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _best(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda one: one.seconds)


@dataclass(frozen=True)
class Sized:
    """The best of each way for one number of messages."""

    browse: Cost
    pyarrow: Cost
    archive: Cost
    settle: Cost
    take: Cost
    send: Cost
    replay: Cost


def measured(on: Bench, messages: int, rounds: int) -> Sized:
    """All ways, taking turns."""
    found: dict[str, list[Cost]] = {name: [] for name in Sized.__dataclass_fields__}
    on.on.fill(messages, SIZE_BYTES)
    for _ in range(rounds):
        found["browse"] += on.browse()
        found["pyarrow"] += on.parquet()
        found["archive"].append(on.archive())
    found["settle"].append(on.take(messages))
    for _ in range(rounds):
        on.on.fill(messages, SIZE_BYTES)
        archive = on.fresh()
        found["take"].append(on.archive(take=True, into=archive))
        found["replay"].append(on.replay(archive))
        found["send"] += on.send(archive)
    wrong = [one for costs in found.values() for one in costs if one.messages != messages]
    assert not wrong, wrong
    return Sized(**{name: _best(costs) for name, costs in found.items()})


def _compared(messages: int, best: Sized) -> Iterator[Row]:
    case = f"{messages:,} x {SIZE_BYTES // 1000} KB"

    def rate(name: str, cost: Cost) -> Row:
        return Row("pipeline", case, f"messages a second: {name}", round(cost.per_second))

    def ratio(name: str, ours: Cost, other: Cost, at_most: float | None = None) -> Row:
        return Row("pipeline", case, f"time: {name}", round(ours.seconds / other.seconds, 2), "x", at_most=at_most)

    def cpu(name: str, cost: Cost) -> Row:
        return Row("pipeline", case, f"CPU s per 10,000: {name}", round(cost.per_10k(cost.cpu_seconds), 2), "s")

    yield rate("the namespaces' limit, plain browse", best.browse)
    yield rate("plain pyarrow", best.pyarrow)
    yield rate("archive", best.archive)
    aim = 1.2 if messages == SIZES[-1] else None
    yield ratio("archive / plain pyarrow", best.archive, best.pyarrow, at_most=aim)
    yield ratio("archive / plain browse", best.archive, best.browse)
    yield rate("the namespaces' limit, receive and settle", best.settle)
    yield rate("archive --take", best.take)
    yield ratio("archive --take / receive and settle", best.take, best.settle)
    both = Cost(messages, best.pyarrow.seconds + best.settle.seconds, 0.0, 0.0)
    yield ratio("archive --take / plain pyarrow, then receive and settle", best.take, both)
    yield rate("the namespaces' limit, bare send", best.send)
    yield rate("replay", best.replay)
    yield ratio("replay / bare send", best.replay, best.send)
    names = {
        "browse": "plain browse",
        "pyarrow": "plain pyarrow",
        "settle": "receive and settle",
        "take": "archive --take",
    }
    for name in Sized.__dataclass_fields__:
        yield cpu(names.get(name, name), getattr(best, name))
    serving = best.archive.per_10k(best.archive.namespace_cpu_seconds)
    yield Row("pipeline", case, "CPU s per 10,000: the namespaces, archive", round(serving, 2), "s")


def _growth(sizes: Sequence[int], found: Sequence[Sized]) -> Iterator[Row]:
    if len(sizes) < 2:
        return
    case = f"{sizes[0]:,} to {sizes[-1]:,}"
    for name in ("archive", "take", "replay"):
        first, last = (getattr(one, name) for one in (found[0], found[-1]))
        grown = (last.seconds / last.messages) / (first.seconds / first.messages)
        yield Row("pipeline", case, f"time per message grows by: {name}", round(grown, 2), "x", at_most=1.3)
        more = (last.messages - first.messages) / (last.seconds - first.seconds)
        yield Row("pipeline", case, f"messages a second, of those that are more: {name}", round(more))


def _far(on: Bench, messages: int) -> Iterator[Row]:
    """The same browse with a long round trip."""
    on.on.fill(messages, SIZE_BYTES)
    on.on.delay(FAR_MS)
    pyarrow = _best([cost for _ in range(ROUNDS) for cost in on.parquet()])
    archive = _best([on.archive() for _ in range(ROUNDS)])
    on.on.delay(0)
    case = f"{messages:,} x {SIZE_BYTES // 1000} KB, {FAR_MS:.0f} ms"
    yield Row("pipeline", case, "messages a second: plain pyarrow", round(pyarrow.per_second))
    yield Row("pipeline", case, "messages a second: archive", round(archive.per_second))
    yield Row("pipeline", case, "time: archive / plain pyarrow", round(archive.seconds / pyarrow.seconds, 2), "x")


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; `quick` takes a minute at most, the whole about ten."""
    sizes = QUICK_SIZES if quick else SIZES
    rows: list[Row] = []
    with bench() as on:
        memory = Memory(on.spark.pid)
        memory.start()
        rows.append(Row("pipeline", "first in its session", "session start", round(on.start_seconds, 1), "s"))
        rows += _first(on)
        found = [measured(on, messages, 1 if quick else ROUNDS) for messages in sizes]
        for messages, best in zip(sizes, found, strict=True):
            rows += _compared(messages, best)
        rows += _growth(sizes, found)
        memory.stop()
        rows.append(
            Row("pipeline", f"{sizes[-1]:,}", "peak memory, all processes", round(memory.highest / 2**20), "MB")
        )
        if not quick:
            rows += _far(on, sizes[0])
            rows += _alone(on, sizes[0])
    return [row.as_dict() for row in rows]


def _first(on: Bench) -> Iterator[Row]:
    """The first time of each: Spark loads its classes and starts its Python workers."""
    on.on.fill(100, SIZE_BYTES)
    archive = on.fresh()
    for name, cost in (("archive --take", on.archive(take=True, into=archive)), ("replay", on.replay(archive))):
        yield Row("pipeline", "first in its session", f"{name} of 100", round(cost.seconds, 1), "s")


def _alone(on: Bench, messages: int) -> Iterator[Row]:
    """The whole command, from its start to its end, against a session as PySpark starts it with one count over what was
    archived; in turns."""
    on.on.fill(messages, SIZE_BYTES)
    case = f"{messages:,} x {SIZE_BYTES // 1000} KB, start and end included"
    ours, bare = [], []
    for _ in range(STARTS):
        archive = on.fresh()
        asked = ["sbpair", "pipeline", "archive", PAIR, "--archive", str(archive), "--config", str(on.config), "-q"]
        ours.append(_command(on, asked, ""))
        files = "\n".join(str(file) for file in sorted((archive / "data").rglob("*.parquet")))
        counted = ["tests.benchmarks.analyze", "--child", "bare", "--rows", str(messages)]
        bare.append(_command(on, counted, files))
    for name, runs in (("archive", ours), ("bare session with one count", bare)):
        yield Row("pipeline", case, f"time: {name}", round(statistics.median(runs), 1), "s")
    ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
    yield Row("pipeline", case, "time: archive / bare session", round(ratio, 2), "x", at_most=START_AIM)


def _command(on: Bench, module: Sequence[str], text: str) -> float:
    """A module as a program of its own; its seconds."""
    environ = {**os.environ, "HOME": str(on.folder), "PYTHONPATH": str(_ROOT)}
    command, began = [sys.executable, "-m", *module], time.perf_counter()
    subprocess.run(command, cwd=on.folder, env=environ, input=text, text=True, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    print(f"{' '.join(module[:3])}: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pipeline")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true", help="only the whole command, beside a bare session")
    given = parser.parse_args()
    if given.alone:
        with bench() as on:
            print_rows([row.as_dict() for row in _alone(on, SIZES[0])])
    else:
        print_rows(run(given.quick))


if __name__ == "__main__":
    main()
