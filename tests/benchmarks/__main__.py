"""Runs every benchmark there is, prints their figures and writes them as JSON.

    python -m tests.benchmarks [--quick] [--only drain] [--json FILE]

A benchmark is a module of this package with `run(quick: bool) -> list[dict]`.
"""

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.table import print_rows

Run = Callable[[bool], list[dict[str, Any]]]


def found() -> dict[str, Run]:
    """The benchmarks by the name of their module."""
    runs: dict[str, Run] = {}
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda one: one.name):
        if module.name.startswith(("_", "test_")):
            continue
        run = getattr(importlib.import_module(f"tests.benchmarks.{module.name}"), "run", None)
        if callable(run):
            runs[module.name] = run
    return runs


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", help="name of a benchmark; repeatable")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"))
    arguments = parser.parse_args()
    runs = found()
    wanted = arguments.only or list(runs)
    if unknown := sorted(set(wanted) - set(runs)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(runs)}")
    document: dict[str, Any] = {"machine": machine(), "quick": arguments.quick, "benchmarks": {}}
    for name in wanted:
        began = time.monotonic()
        rows = runs[name](arguments.quick)
        print(f"\n{name}, {time.monotonic() - began:.0f} s\n")
        print_rows(rows)
        document["benchmarks"][name] = rows
    arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    missed = [row for rows in document["benchmarks"].values() for row in rows if row.get("met") is False]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
