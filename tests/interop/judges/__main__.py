"""`python -m tests.interop.judges [--only NAME] [--cache DIR] [--write]`."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sbpair.emulator
from tests.interop.judges.judging import JUDGES, Verdict, ask, folder_of
from tests.interop.judges.passing import OURS, passage, speaker

KEPT = Path(sbpair.emulator.__file__).parent / "compatibility.json"


def row(verdict: Verdict) -> dict[str, Any]:
    judge = verdict.judge
    failed = sorted(name for name, error in verdict.scenarios.items() if error is not None)
    return {
        "client": judge.client,
        "version": judge.version,
        "language": judge.language,
        "scenarios": len(verdict.scenarios),
        "passed": verdict.passed,
        "failed": failed,
        "not_applicable": list(verdict.not_applicable),
        "tried_on": "",
    }


def table(before: list[dict[str, Any]], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The rows of all judges: as they were found, else as they were known before; then those that others have found."""
    elsewhere = [one for one in before if one["tried_on"]]
    rows = {(one["client"], one["version"]): one for one in before}
    rows |= {(one.judge.client, one.judge.version): row(one) for one in verdicts if one.not_asked is None}
    return [rows[key] for judge in JUDGES if (key := (judge.client, judge.version)) in rows] + elsewhere


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.judges", description=__doc__)
    parser.add_argument("--only", default="", help="judges whose name contains this")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "sbpair-judges")
    parser.add_argument("--write", action="store_true", help=f"keep what was found in {KEPT.name}")
    given = parser.parse_args()
    verdicts = []
    for judge in JUDGES:
        if given.only not in judge.name:
            continue
        verdict = ask(judge, given.cache)
        verdicts.append(verdict)
    speaking = [one.judge for one in verdicts if one.judge.speaks_for_its_language and one.not_asked is None]
    with tempfile.TemporaryDirectory() as scratch:
        speakers = [speaker(judge, folder_of(judge, given.cache)) for judge in speaking]
        found = passage(speakers, Path(scratch))
    verdicts = [found.verdict(verdict) for verdict in verdicts]
    for verdict in verdicts:
        judge = verdict.judge
        if verdict.not_asked is not None:
            print(f"{judge.name}: not asked, {verdict.not_asked}")
            continue
        print(f"{judge.name}: {verdict.passed} of {len(verdict.scenarios)}")
        for reason in verdict.not_applicable:
            print(f"  not applicable: {reason}")
        for name, error in verdict.scenarios.items():
            if error is not None:
                print(f"  {name}: {error}")
    ours = {name: ids for (name, reader), ids in found.differing.items() if reader == OURS and ids}
    for name, ids in ours.items():
        print(f"Of {name}'s typed messages {len(ids)} came to us otherwise than they lay there: {', '.join(ids)}")
    if given.write:
        KEPT.write_text(json.dumps(table(json.loads(KEPT.read_text()), verdicts), indent=1) + "\n")
    return 0 if not ours and all(verdict.passed == len(verdict.scenarios) for verdict in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
