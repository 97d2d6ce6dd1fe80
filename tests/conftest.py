"""The order of the suite: what takes longest begins first, so that no worker is left with it alone at the end, and one
worker has all files that share a Spark session.
Its parts: `--part main` is what a run without paths has, `--part long` the rest, `--part all` everything.
And its luck: generated cases are the same ones in each run; `--hypothesis-profile=random` draws others."""

import gc
import os
import re
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.quick import LONG
from tests.reached import FOLDER
from tests.survivors import guard_run

# How long an example takes is the machine's affair: eight workers share two cores with whatever else there is.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True)
settings.register_profile("random", _PATIENT, derandomize=False, print_blob=True)
settings.load_profile("same")

ROOT = Path(__file__).parents[1]

if sys.dont_write_bytecode:
    # Who wants no byte code in the tree gets it elsewhere: each of the workers would rewrite every test again, and each
    # of the hundreds of processes that the tests start would compile sbpair.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path.home() / ".cache" / "sbpair-tests")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# A run under nohup ignores SIGHUP, and so would each process that a test starts and then hangs up on.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # nor would Ctrl-C count in one that a shell put behind itself
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "tests/test_readme.py",
    "tests/soak/test_clients.py",
    "tests/runtime/replication/test_replicate.py",
    "tests/stories/test_recovery.py",
    "tests/cli/program/test_signals.py",
    "tests/cli/transfer/test_move.py",
    "tests/cli/transfer/test_evacuate.py",
    "tests/stories/test_processes.py",
    "tests/cli/test_exit_codes.py",
    "tests/operations/test_drill.py",
    "tests/cli/hostile/test_secrets.py",
    "tests/gateway/test_diverting.py",
    "tests/cli/replication/test_replicate.py",
    "tests/cli/test_terminals.py",
    "tests/stories/test_workers.py",
    "tests/clients/test_sync.py",
    "tests/pipeline/test_command_line.py",
    "tests/cli/failover/test_drill.py",
    "tests/clients/test_consumer.py",
    "tests/runtime/transfer/test_drain_emulator.py",
    "tests/emulator/hostile/test_attacks.py",
    "tests/engine/test_official_clients.py",
    "tests/interop/test_python_sdk.py",
    "tests/cli/inspection/test_provision_cleanup.py",
    "tests/emulator/broker/test_official_client.py",
    "tests/cli/test_schema.py",
    "tests/stories/test_applications.py",
    "tests/interop/test_judges.py",
    "tests/soak/test_recover.py",
    "tests/runtime/transfer/test_drain_order.py",
    "tests/clients/test_refusals.py",
    "tests/operations/test_following.py",
    "tests/cli/failover/test_send.py",
    "tests/stories/test_faults_of_repairs.py",
    "tests/stories/test_restore.py",
    "tests/clients/test_shared.py",
    "tests/cli/test_demo.py",
    "tests/test_readme_recipes.py",
    "tests/cli/test_emulator.py",
    "tests/gateway/test_server.py",
    "tests/cli/test_mistakes.py",
    "tests/clients/test_aio.py",
    "tests/test_package.py",
    "tests/simulation/test_simulation.py",
    "tests/cli/inspection/test_rules.py",
    "tests/cli/program/test_timeout.py",
    "tests/gateway/test_hostile.py",
    "tests/gateway/test_passing.py",
    "tests/cli/transfer/test_syphon.py",
    "tests/core/replication/test_ownership_model.py",
    "tests/operations/test_promotion.py",
    "tests/runtime/transfer/test_syphon_drain.py",
    "tests/soak/test_kills.py",
    "tests/cli/program/test_startup.py",
    "tests/stories/test_destinations.py",
    "tests/test_mutants.py",
)
"""Files of about half a minute and more, the longest first, as the suite's own list of durations has them. Before all
of them come those that share Spark: minutes on one worker."""

APART = (
    "tests/test_readme.py",
    "tests/soak/test_clients.py",
    "tests/runtime/replication/test_replicate.py",
    "tests/stories/test_recovery.py",
    "tests/cli/transfer/test_evacuate.py",
    "tests/stories/test_processes.py",
    "tests/operations/test_drill.py",
    "tests/gateway/test_diverting.py",
    "tests/stories/test_workers.py",
    "tests/clients/test_consumer.py",
    "tests/soak/test_recover.py",
)
"""Those of them whose tests share nothing: any worker takes the next one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=("main", "long", "all"),
        help="Tests to run: without the long ones (as without paths), those alone, or all (as with paths).",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist belongs to the run that has started it
        guard_run()
    assert not (gone := [name for name in LONGEST if not (ROOT / name).exists()]), gone
    gc.disable()  # until all is collected: nothing of that is garbage
    # pytest-xdist deals files out by their number of tests, and the longest ones have the fewest.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if hasattr(config, "workerinput") and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        # Each worker imports all tests. In a fresh clone each would also compile all of them at the same time as the
        # others: beginning at different folders, each finds most of them compiled.
        folders = sorted(str(one) for one in (ROOT / "tests").iterdir() if one.is_dir() or one.match("test_*.py"))
        own, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
        turn = len(folders) * own // workers
        config.args[:] = folders[turn:] + folders[:turn]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    part = config.getoption("part") or ("main" if whole else "all")
    if part != "all":
        out = [item for item in items if item.nodeid.startswith(LONG) != (part == "long")]
        items[:] = [item for item in items if item.nodeid.startswith(LONG) == (part == "long")]
        config.hook.pytest_deselected(items=out)
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return -1 if shares_spark(item.nodeid.split("::")[0]) else places.get(item.path, len(LONGEST))

    items.sort(key=lambda item: (place(item), item.path))


def pytest_collection_finish() -> None:
    # Thousands of tests live as long as the worker; every full collection would look at all of them again.
    gc.freeze()
    gc.enable()


_SPARK_SESSION = re.compile(r'\b(session: "?StartedSpark|spark: "?SparkSession)\b')


@cache
def shares_spark(file: str) -> bool:
    """Whether tests of this file ask for the one Spark session of their worker."""
    return file.startswith("tests/pipeline/") and bool(_SPARK_SESSION.search((ROOT / file).read_text("utf-8")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, but test by test where tests share nothing, and as one the files that share Spark: dealt out
    one by one they would have a JVM started on each worker, which takes ten seconds of a processor and 600 MB before
    the first test."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if file in APART and FOLDER not in os.environ:
                return nodeid  # but the record of a file is written by the worker that has run it
            return "tests/pipeline with Spark" if shares_spark(file) else file

    return Scheduling(config, log)
