"""`python -m tests.interop.judges [--only NAME] [--newest | --gateway | --dark] [--cache DIR] [--write]`."""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sbpair.emulator
from tests.interop.judges.judging import JUDGES, Judge, NotFetchedError, Verdict, ask, folder_of
from tests.interop.judges.outage import through_an_outage
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
        "tried_on": datetime.now(UTC).date().isoformat(),
    }


def table(before: list[dict[str, Any]], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The rows of all judges: as they were found, else as they were known before; then those that others have found."""
    clients = {(judge.client, judge.language) for judge in JUDGES}
    elsewhere = [one for one in before if (one["client"], one["language"]) not in clients]
    rows = {(one["client"], one["version"]): one for one in before}
    rows |= {(one.judge.client, one.judge.version): row(one) for one in verdicts if one.not_asked is None}
    return [rows[key] for judge in JUDGES if (key := (judge.client, judge.version)) in rows] + elsewhere


def chosen(only: str, newest: bool) -> Iterator[Judge]:
    """The judges to ask. `newest`: in the releases that the registries now have as the newest."""
    for judge in JUDGES:
        if only not in judge.name or (newest and judge.package is None):
            continue
        if newest and judge.package is not None:
            version = judge.package.newest()
            if version != judge.version:
                print(f"{judge.client}: {version} is newer than {judge.version}", flush=True)
            yield dataclasses.replace(judge, version=version)
        else:
            yield judge


def asked(judge: Judge, given: argparse.Namespace) -> Verdict:
    """What a judge says; that it could not be had or did not run is said by it, too."""
    try:
        if given.dark:
            return through_an_outage(judge, given.cache)
        return ask(judge, given.cache, gateway=given.gateway)
    except NotFetchedError as error:
        return Verdict(judge, {}, not_asked=str(error))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Verdict(judge, {"it runs": str(error)})


def show(verdict: Verdict) -> None:
    """What a judge has found."""
    judge = verdict.judge
    if verdict.not_asked is not None:
        print(f"{judge.name}: not asked, {verdict.not_asked}", flush=True)
        return
    print(f"{judge.name}: {verdict.passed} of {len(verdict.scenarios)}", flush=True)
    for reason in verdict.not_applicable:
        print(f"  not applicable: {reason}")
    for name, error in verdict.scenarios.items():
        if error is not None:
            print(f"  {name}: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.judges", description=__doc__)
    parser.add_argument("--only", default="", help="judges whose name contains this")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "sbpair-judges")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--newest", action="store_true", help="the releases that the registries have as the newest")
    how.add_argument("--gateway", action="store_true", help="through `sbpair gateway`; no typed messages")
    how.add_argument("--dark", action="store_true", help="send through `sbpair gateway` while the primary goes dark")
    how.add_argument("--write", action="store_true", help=f"keep what was found in {KEPT.name}")
    given = parser.parse_args()
    verdicts = []
    for judge in chosen(given.only, given.newest):
        if judge.streams or not given.dark:
            verdicts.append(asked(judge, given))
            print(f"{judge.name}: asked", file=sys.stderr, flush=True)
    ours: dict[str, list[str]] = {}
    if not given.gateway and not given.dark:
        speaking = [one.judge for one in verdicts if one.judge.speaks_for_its_language and one.passed]
        with tempfile.TemporaryDirectory() as scratch:
            speakers = [speaker(judge, folder_of(judge, given.cache)) for judge in speaking]
            found = passage(speakers, Path(scratch))
        verdicts = [found.verdict(verdict) for verdict in verdicts]
        ours = {name: ids for (name, reader), ids in found.differing.items() if reader == OURS and ids}
    for verdict in verdicts:
        show(verdict)
    for name, ids in ours.items():
        print(f"Of {name}'s typed messages {len(ids)} came to us otherwise than they lay there: {', '.join(ids)}")
    if given.write:
        KEPT.write_text(json.dumps(table(json.loads(KEPT.read_text()), verdicts), indent=1) + "\n")
    return 0 if not ours and all(verdict.passed == len(verdict.scenarios) for verdict in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
