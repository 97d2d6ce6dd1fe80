"""The drain's speed, CPU and memory against simpler ways to bring a backlog home.

    python -m tests.benchmarks.drain [--quick]

Every figure is a ratio of two measurements of one run; the namespaces are a process of their own, whose round trip is
lengthened by a fault. The naive loop, and for long backlogs the careful script, move fewer messages; what they would
have taken for all is in proportion.
"""

import argparse
import sys
from collections.abc import Iterator
from math import sqrt
from statistics import mean, median, stdev
from typing import Any

from tests.benchmarks.embedded import Embedded, embedded
from tests.benchmarks.movers import MORE_CHAINS, Cost, measure
from tests.benchmarks.table import Row, print_rows

KB = 1000
NAIVE_MESSAGES = {0: 300, 10: 100, 50: 40}
SLOW_SETTLING = ("settle-delay:rtt=100ms,p=0.3", "settle-delay:rtt=20ms")
"""Of live namespaces it is reported (Azure/azure-service-bus issue 749) that a settlement takes 20 ms or 100 ms."""
CAREFUL_MOST = {0: 5000, 10: 2000, 50: 1000}


class Bench:
    """Measures ways to move a backlog, one after the other."""

    def __init__(self, on: Embedded) -> None:
        self._on = on

    def cost(
        self,
        way: str,
        messages: int,
        *,
        size_bytes: int = KB,
        delay_ms: int = 0,
        profile: bool = False,
        slow_settling: bool = False,
    ) -> Cost:
        filled = messages * 10 if way == "naive" else messages
        self._on.delay(0)
        self._on.fill(filled, size_bytes)
        self._on.delay(delay_ms)
        for text in SLOW_SETTLING if slow_settling else ():
            self._on.strike("secondary", text)
        found = measure(self._on, way, messages, profile=profile)
        counts = self._on.counts()
        assert (found.messages, counts["home"]) == (messages, messages), (way, found, counts)
        case = f"{way}, {messages:,} x {size_bytes // KB} KB, {delay_ms} ms"
        spent = f"{found.seconds:.1f} s, CPU {found.cpu_seconds:.1f} s, {found.peak_rss_mb:.0f} MB"
        print(f"{case}: {spent}", file=sys.stderr, flush=True)
        return found

    def compare(self, messages: int, *, size_bytes: int, delay_ms: int) -> Iterator[Row]:
        """One backlog, four ways."""
        case = f"{messages:,} x {size_bytes // KB} KB, {delay_ms} ms"
        scale = 1 if size_bytes == KB else 4
        ours = self.cost("ours", messages, size_bytes=size_bytes, delay_ms=delay_ms)
        bare = self.cost("bare", messages, size_bytes=size_bytes, delay_ms=delay_ms)
        few = min(messages, CAREFUL_MOST[delay_ms] // scale)
        careful = self.cost("careful", few, size_bytes=size_bytes, delay_ms=delay_ms)
        few = min(messages, NAIVE_MESSAGES[delay_ms] // scale)
        naive = self.cost("naive", few, size_bytes=size_bytes, delay_ms=delay_ms)
        rate = messages / ours.seconds
        naive_rate = (naive.messages - 1) / naive.steady_seconds
        aim = 100.0 if delay_ms == 10 and size_bytes == KB else None
        yield Row("drain", case, "messages a second", round(rate))
        yield Row("drain", case, "speed / naive loop", round(rate / naive_rate, 1), "x", at_least=aim)
        yield Row("drain", case, "speed / careful script", round(rate / (careful.messages / careful.seconds), 1), "x")
        yield Row("drain", case, "speed / bare pump", round(bare.seconds / ours.seconds, 2), "x")
        share = _per_10k(careful) / _per_10k(ours)
        aim = 3.0 if delay_ms == 0 and size_bytes == KB else None
        yield Row("drain", case, "messages per CPU s / careful script", round(share, 2), "x", at_least=aim)
        yield Row("drain", case, "CPU s per 10,000: ours", round(_per_10k(ours), 2), "s")
        yield Row("drain", case, "CPU s per 10,000: bare pump", round(_per_10k(bare), 2), "s")
        yield Row("drain", case, "CPU s per 10,000: careful", round(_per_10k(careful), 2), "s")
        yield Row("drain", case, "CPU s per 10,000: naive", round(_per_10k(naive), 2), "s")

    def over_bare(self, messages: int, pairs: int) -> Iterator[Row]:
        """What one more message costs, in pairs of runs that alternate: the start of a process is taken off."""
        case = f"{messages:,} x 1 KB, 0 ms, {pairs} pairs"
        few, spent = messages // 10, {"ours": [], "bare": []}  # type: tuple[int, dict[str, list[float]]]
        for _ in range(pairs):
            for way, found in spent.items():
                more = self.cost(way, messages).cpu_seconds - self.cost(way, few).cpu_seconds
                found.append(more * 1e6 / (messages - few))
        ratios = [ours / bare for ours, bare in zip(spent["ours"], spent["bare"], strict=True)]
        yield Row("drain", case, "CPU of a message: ours", round(median(spent["ours"])), "us")
        yield Row("drain", case, "CPU of a message: bare pump", round(median(spent["bare"])), "us", at_most=60)
        yield Row("drain", case, "CPU of a message / bare pump", round(median(ratios), 2), "x", at_most=1.5)

    def slow_settling(self, messages: int) -> Iterator[Row]:
        """What it costs that settlements are answered late: a few of these times in all, as many are under way."""
        case = f"{messages:,} x 1 KB, 10 ms, settled in 20 or 100 ms"
        prompt = self.cost("ours", messages, delay_ms=10)
        slow = self.cost("ours", messages, delay_ms=10, slow_settling=True)
        yield Row("drain", case, "messages a second", round(messages / slow.seconds))
        yield Row("drain", case, "time more than settled at once", round(slow.seconds - prompt.seconds, 2), "s")
        yield Row("drain", case, "time / settled at once", round(slow.seconds / prompt.seconds, 2), "x")

    def ledger(self, messages: int) -> Iterator[Row]:
        case = f"{messages:,} x 1 KB, 0 ms"
        without, with_one = self.cost("ours", messages), self.cost("ours+ledger", messages)
        ratio = with_one.cpu_seconds / without.cpu_seconds
        yield Row("drain", case, "CPU with / without a ledger", round(ratio, 2), "x")
        yield Row("drain", case, "time with / without a ledger", round(with_one.seconds / without.seconds, 2), "x")

    def chain(self, messages: int, pairs: int) -> Iterator[Row]:
        """What the chain of a ledger's lines costs of a drain, in pairs of runs that alternate: that of many chains
        shared among them, with the lines' joining, which a ledger without a chain needs as well."""
        shares = []
        for number in range(pairs):
            spent = {}
            for way in ("ours+ledger", "ours+chains")[:: 1 if number % 2 else -1]:
                spent[way] = self.cost(way, messages).cpu_seconds
            shares.append(100 * (spent["ours+chains"] / spent["ours+ledger"] - 1) / MORE_CHAINS)
        case, middle = f"{messages:,} x 1 KB, 0 ms, {pairs} pairs", mean(shares)
        either_way = 1.96 * stdev(shares) / sqrt(pairs)
        yield Row("drain", case, "of its CPU: the ledger's chain", round(middle, 2), "%", at_most=3)
        yield Row("drain", case, "95 % confidence: lower end", round(middle - either_way, 2), "%")
        yield Row("drain", case, "95 % confidence: upper end", round(middle + either_way, 2), "%")

    def memory(self, counts: list[int]) -> Iterator[Row]:
        """Peak memory and CPU as the backlog grows."""
        costs = {count: self.cost("ours", count) for count in counts}
        first = costs[counts[0]]
        for count, found in costs.items():
            yield Row("drain", f"{count:,} x 1 KB, 0 ms", "peak memory", round(found.peak_rss_mb), "MB")
            yield Row("drain", f"{count:,} x 1 KB, 0 ms", "messages a second", round(count / found.seconds))
        last = costs[counts[-1]]
        grown = last.peak_rss_mb / first.peak_rss_mb
        case = f"{counts[0]:,} to {counts[-1]:,}"
        yield Row("drain", case, "peak memory grows by", round(grown, 2), "x", at_most=1.5)
        grown = _per_10k(last) / _per_10k(first)
        yield Row("drain", case, "CPU per message grows by", round(grown, 2), "x", at_most=1.3)

    def rooms(self, messages: int) -> Iterator[Row]:
        """Where the client's CPU time goes, by cProfile (which makes many small calls look dearer than they are)."""
        for place, share in self.cost("ours", messages, profile=True).rooms.items():
            yield Row("drain", f"{messages:,} x 1 KB, 0 ms", f"share of CPU: {place}", round(share * 100), "%")


def _per_10k(cost: Cost) -> float:
    return cost.cpu_seconds * 10_000 / cost.messages


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; `quick` takes about two minutes, the whole about 25."""
    rows: list[Row] = []
    with embedded() as on:
        bench = Bench(on)
        many = 5_000 if quick else 10_000
        for delay_ms in (0, 10, 50):
            rows += bench.compare(many, size_bytes=KB, delay_ms=delay_ms)
        for delay_ms in (0, 10) if quick else (0, 10, 50):
            rows += bench.compare(500 if quick else 2_000, size_bytes=100 * KB, delay_ms=delay_ms)
        rows += bench.over_bare(many, 1 if quick else 3)
        rows += bench.slow_settling(many)
        rows += bench.ledger(many)
        rows += bench.chain(many, 4 if quick else 10)
        rows += bench.memory([1_000, 5_000] if quick else [10_000, 100_000, 1_000_000])
        rows += bench.rooms(many)
    return [row.as_dict() for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.drain")
    parser.add_argument("--quick", action="store_true")
    print_rows(run(parser.parse_args().quick))


if __name__ == "__main__":
    main()
