"""The command: see the package."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .groups import GROUPS, SENDING
from .reporting import CLIENT_REASONS, DIVERTING_REASONS, GATEWAY_REASONS, Summary, load_reasons, summarize
from .returning import backlog_returned
from .running import CLIENTS, Choice, namespace_of, new_emulator, run
from .sources import FetchError, prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; 0 if no test failed for an unknown reason, 1 if one did, 2 if nothing could be fetched."""
    options = _parser().parse_args(arguments)
    of_all = GROUPS if options.client in ("sdk", "gateway") else SENDING
    names = [options.only] if options.only else list(of_all)
    with tempfile.TemporaryDirectory(prefix="live-suite-") as scratch:
        folder = Path(options.keep or scratch)
        try:
            prepare(folder)
        except FetchError as error:
            print(error, file=sys.stderr)
            return 2
        summaries = _run_all(names, Choice(options.k, options.workers, options.client), folder)
    for summary in summaries:
        print(f"\n{summary.text()}")
    return 1 if any(summary.failures for summary in summaries) else 0


def _run_all(names: Sequence[str], choice: Choice, folder: Path) -> list[Summary]:
    reasons = load_reasons()
    if choice.client == "gateway":
        reasons += load_reasons(GATEWAY_REASONS)
    elif choice.client != "sdk":
        reasons += load_reasons(CLIENT_REASONS)
    if choice.client == "diverting":
        reasons += load_reasons(DIVERTING_REASONS)
    summaries = []
    with new_emulator() as emulator:
        for name in names:
            with backlog_returned(emulator, choice.client, namespace_of(GROUPS[name])):
                summaries.append(summarize(name, run(GROUPS[name], choice, emulator, folder), reasons))
    return summaries


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.interop.live_suite",
        description="Run azure-servicebus's own live tests against the embedded namespace.",
    )
    parser.add_argument("--only", choices=sorted(GROUPS), help="one group of tests instead of all")
    parser.add_argument(
        "--client",
        choices=CLIENTS,
        default="sdk",
        help="what the tests use: the SDK's clients, the same through a gateway, sbpair's clients, "
        "or those while every entity has failed over",
    )
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    parser.add_argument(
        "--workers", type=int, default=10, help="processes for the data tests, which mostly sleep (default: 10)"
    )
    parser.add_argument("--keep", metavar="FOLDER", help="work in this new folder and leave it there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
