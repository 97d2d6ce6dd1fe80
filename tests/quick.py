"""A part of the suite, with pytest's own options after it.

`python -m tests.quick` is the part to run while editing: what decides and what is written, the pure rooms, the runtime
on virtual time, settings, formats and helps. What starts namespaces, Spark or other people's clients, and the programs
of tests that wait for real time, is left to the whole suite.

`python -m tests.quick emulator` runs the tests of a room or of a word alone: the folders of that name below `tests`, on
every floor, and the files named after it.

`--under-load` runs either, or without a room what once depended on the speed of the machine, beside busy processes,
two for each processor.
"""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PATHS = (
    "tests/amqp",
    "tests/core",
    "tests/golden",
    "tests/journal",
    "tests/render",
    "tests/settings",
    "tests/sqlfilter",
    "tests/cli/test_advice.py",
    "tests/cli/test_contents.py",
    "tests/runtime/inspection/test_backlog.py",
    "tests/runtime/inspection/test_gather.py",
    "tests/runtime/replication/test_handlers.py",
    "tests/test_concurrency.py",
    "tests/runtime/failover/test_sender.py",
    "tests/runtime/failover/test_sender_simulation.py",
    "tests/runtime/transfer/test_service.py",
    "tests/test_public_names.py",
)
LEFT_OUT = ("tests/sqlfilter/test_complement.py", "tests/render/test_reports.py")
"""Thousands of drawn cases, and a browser; `LONG` is left out as well."""
TIMED = (
    "tests/cli/inspection/test_status.py",
    "tests/cli/program/test_waits.py",
    "tests/cli/test_terminals.py",
    "tests/cli/transfer/test_syphon.py",
    "tests/emulator/test_window.py",
    "tests/stories/test_processes.py",
    "tests/test_readme.py",
    "tests/test_readme_recipes.py",
)
"""What waits for answers of other processes, and was red on a busy machine before it waited for them alone."""
LONG = (
    "tests/benchmarks/",
    "tests/cli/failover/test_drill.py::test_a_killed_drill_is_cleaned_up_by_the_next_at_every_step",
    "tests/cli/replication/test_replicate.py::test_a_short_soak",
    "tests/contract/test_journals.py::test_what_was_created_is_read_by_others",
    "tests/core/replication/test_ownership_model.py",
    "tests/core/test_examples.py",
    "tests/core/test_walks.py",
    "tests/core/transfer/test_triage.py::test_texts_that_are_not_told_apart_take_no_memory",
    "tests/emulator/broker/test_spending.py",
    "tests/emulator/hostile/test_attacks.py",
    "tests/engine/test_nonsense.py",
    "tests/gateway/test_campaign.py",
    "tests/interop/",
    "tests/pipeline/analysis/test_analyze.py::test_all_engines_say_the_same_of_a_large_archive",
    "tests/pipeline/test_archive.py::test_a_file_system_behind_hadoop_works_the_same",
    "tests/pipeline/test_command_line.py",
    "tests/pipeline/test_delta.py",
    "tests/pipeline/test_every_order.py",
    "tests/pipeline/test_faults.py",
    "tests/pipeline/test_kills.py",
    "tests/pipeline/test_one_ledger.py",
    "tests/pipeline/test_reconcile.py",
    "tests/pipeline/test_replay.py",
    "tests/pipeline/test_streaming_writer.py::test_a_new_checkpoint_or_another_job_with_the_same_ledger_sends_nothing_twice",
    "tests/pipeline/test_streaming_writer.py::test_a_repeated_micro_batch_sends_nothing_twice",
    "tests/runtime/failover/test_sender_simulation.py",
    "tests/runtime/test_lives.py",
    "tests/runtime/transfer/test_drain_order.py",
    "tests/runtime/transfer/test_syphon_campaign.py",
    "tests/simulation/",
    "tests/soak/",
    "tests/stories/test_faults_of_repairs.py",
    "tests/stories/test_filters.py",
    "tests/stories/test_processes.py",
    "tests/stories/test_restore.py",
    "tests/stories/test_workers.py",
    "tests/test_mutants.py",
    "tests/test_package.py",
    "tests/test_readme.py::test_a_page_runs_from_the_top_to_the_bottom",
    "tests/test_readme.py::test_the_demo_command_does_its_own_set_up",
    "tests/test_survivors.py",
)
"""Beginnings of the names of tests that a run without paths leaves out, and the landing check runs after it: they take
more than half of the suite's time. Kills and faults at every step, drawn histories, attacks, clients and workers of
others, Spark's longest jobs, releases, and the commands of each page of `sbpair help`; what they try, tests of the main
part try once."""
UNDER_LOAD = "--under-load"
BUSY_PER_PROCESSOR = 2
MOST_BUSY_SECONDS = 3600
CPU_SECONDS = 180
"""What the part to run while editing may cost. Beside other work a processor does less in a second, so this is a bound
only where less than half of the processors were busy before."""
_BUSY = f"""
import select, sys, time
end = time.monotonic() + {MOST_BUSY_SECONDS}
while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]:
    sum(range(100_000))
"""


def part(room: str) -> list[str]:
    """Folders and files of the tests of a room (`emulator`) or word (`transfer`), relative to the repository."""
    folders = [one for one in HERE.rglob(room) if one.is_dir() and not {"approved", "__pycache__"} & set(one.parts)]
    files = [one for one in HERE.rglob(f"test_{room}.py") if not any(folder in one.parents for folder in folders)]
    return sorted(one.relative_to(HERE.parent).as_posix() for one in (*folders, *files))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute; they end with the block, with this process, and after an hour at the latest."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main(arguments: Sequence[str]) -> int:
    """Run the part that the arguments name; pytest's exit code, 2 for a room that has no tests."""
    under_load = UNDER_LOAD in arguments
    given = [one for one in arguments if one != UNDER_LOAD]
    rooms = []
    while given and given[0].isidentifier():
        rooms.append(given.pop(0))
    paths = [path for room in rooms for path in part(room)]
    if unknown := [room for room in rooms if not part(room)]:
        print(f"No tests of {', '.join(unknown)}: no such folder or file below tests.", file=sys.stderr)
        return 2
    paths = paths or [*(TIMED if under_load else (*PATHS, "--part=main", *(f"--ignore={one}" for one in LEFT_OUT)))]
    quiet = os.getloadavg()[0] < (os.cpu_count() or 1) / 2
    with busy(BUSY_PER_PROCESSOR * (os.cpu_count() or 1)) if under_load else contextlib.nullcontext():
        code = int(
            pytest.main(["-q", "-n", "2", "--dist", "loadfile" if rooms or under_load else "load", *paths, *given])
        )
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in spent)
    if rooms or under_load or given:
        print(f"CPU seconds: {seconds:.0f}")
        return code
    judged = "" if quiet else ", not judged: other processes computed when it began"
    print(f"CPU seconds: {seconds:.0f}, at most {CPU_SECONDS}{judged}")
    return code or int(quiet and seconds > CPU_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
