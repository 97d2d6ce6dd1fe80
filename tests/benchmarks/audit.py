"""How many calls, how long and how much memory an audit takes, beside a script that gets every queue.

    python -m tests.benchmarks.audit [--quick] [--json FILE]

Embedded namespaces in another process, 20 ms round trip, real HTTPS. Calls are counted by the namespaces. `paced` is
how the command runs (200 of 1,000 throttling credits a second for each namespace), `unpaced` without that limit.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.fleet import Fleet, fleet
from tests.benchmarks.table import print_rows

ROUND_TRIP_MS = 20.0
PACED_CREDITS = 200.0
PAIRS = (1, 10, 50)
QUEUES = (100, 1000, 3000)
LAST_PAGE_CALLS = 2
"""A listing that ends with a full page is taken to have one more, empty one, which not every namespace asks for."""
QUEUES_A_PAIR = 20
"""On each secondary where the number of pairs is what varies."""


def run(quick: bool) -> list[dict[str, Any]]:
    """One row a case and way of doing it. `quick` leaves the largest out, and the script where it takes minutes."""
    rows: list[dict[str, Any]] = []
    for pairs in PAIRS[:2] if quick else PAIRS:
        with fleet(pairs, QUEUES_A_PAIR) as running:
            rows += _case(running, f"{pairs} pair(s) of {QUEUES_A_PAIR} queues", script=True)
    for queues in QUEUES[:2] if quick else QUEUES:
        with fleet(1, queues) as running:
            rows += _case(running, f"1 pair of {queues:,} queues", script=not quick or queues <= QUEUES[0])
    return rows


def _case(running: Fleet, case: str, *, script: bool) -> Iterator[dict[str, Any]]:
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("audit, paced", "audit", {"browse": True, "credits_per_second": PACED_CREDITS}),
        ("audit, unpaced", "audit", {"browse": True, "credits_per_second": None}),
    ]
    if script:
        ways.append(("script that gets every queue", "every queue", {}))
    for name, kind, options in ways:
        running.watch(ROUND_TRIP_MS)
        figures = running.work(kind, **options)
        calls = running.calls()
        said = figures.get("calls", calls)
        assert calls <= said <= calls + LAST_PAGE_CALLS, (figures, calls)
        yield {
            "case": case,
            "way": name,
            "calls": calls,
            "throttling_credits": calls * 10,
            "seconds": figures["seconds"],
            "cpu_seconds": figures["cpu_seconds"],
            "peak_megabytes": figures["peak_megabytes"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.audit", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    arguments = parser.parse_args()
    rows = run(arguments.quick)
    print_rows(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
