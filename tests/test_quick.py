"""`python -m tests.quick`: the parts it names exist, and the processes of `--under-load` end."""

import subprocess
import sys
from pathlib import Path

import pytest

import sbpair
from tests.cli.process import ROOT
from tests.conftest import shares_spark
from tests.quick import LONG, PATHS, TIMED, busy, main, part
from tests.survivors import CAN_GUARD

ROOMS = sorted(one.name for one in Path(sbpair.__file__).parent.iterdir() if (one / "__init__.py").exists())


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_tests_that_run_alone(room: str) -> None:
    assert f"tests/{room}" in part(room)


def test_a_word_has_its_tests_on_every_floor_and_files_are_found_by_their_names() -> None:
    assert {"tests/core/transfer", "tests/runtime/transfer", "tests/cli/transfer"} <= set(part("transfer"))
    assert {"tests/emulator", "tests/cli/test_emulator.py"} <= set(part("emulator"))
    assert not [one for one in part("emulator") if one.startswith("tests/emulator/")], "what is in the folder runs once"


def test_what_the_lists_name_is_there() -> None:
    assert not [path for path in (*PATHS, *TIMED) if not (ROOT / path).exists()]


def test_what_is_left_to_the_landing_check_is_there() -> None:
    for file, _, test in (one.partition("::") for one in LONG):
        assert (ROOT / file).exists(), file
        assert f"def {test}(" in (ROOT / file).read_text("utf-8") if test else True, test


def test_files_that_share_a_spark_session_go_to_one_worker() -> None:
    files = [f"tests/pipeline/test_{name}.py" for name in ("archive", "reconcile", "rows", "spans")]
    assert [shares_spark(file) for file in files] == [True, True, False, False]


def collected(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_a_run_without_paths_and_the_long_part_are_all_and_share_nothing() -> None:
    paths = ["tests/soak/test_proof.py", "tests/test_quick.py", "tests/core/transfer/test_triage.py"]
    whole = ["-o", f"testpaths={' '.join(paths)}"]
    main, long, everything = collected(*whole), collected(*whole, "--part", "long"), collected(*whole, "--part", "all")
    assert main and long and not main & long
    assert main | long == everything == collected(*paths), "a path is run whole"
    assert long == {name for name in everything if name.startswith(LONG)}


def test_a_room_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulaotr"]) == 2
    assert "No tests of emulaotr" in capsys.readouterr().err


@pytest.mark.skipif(not CAN_GUARD, reason="needs Linux")
def test_busy_processes_compute_and_end_with_what_started_them() -> None:
    def children(of: int) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{of}/task/{of}/children").read_text().split()]

    def ran(process: int) -> int:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0])

    script = "import time; from tests.quick import busy\nwith busy(2): print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None and starter.stdout.read(1)
        started = children(starter.pid)
        assert len(started) == 2
        while not all(ran(one) > 500_000_000 for one in started):
            assert all(Path(f"/proc/{one}").exists() for one in started)
        starter.kill()
    while any(Path(f"/proc/{one}/exe").exists() for one in started):
        pass
    with busy(1):
        pass
