"""What `python -m tests.shape` measures, on a package made for it, and what it refuses."""

from pathlib import Path

import pytest

from tests.shape import broken, files_of_a_message, measure, mirrored, over_budget

SOURCE = '''
class Pump:
    def run(self, one, two, *rest, three=3, **more):
        """What it does,

        in three lines."""
        return one


@command(output="x")
def drain(a, b, c):
    return a


async def free(): return 1
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    (folder / "core" / "transfer").mkdir(parents=True)
    (folder / "core" / "__init__.py").write_text("from made.core.names import Name\n")
    (folder / "core" / "names.py").write_text("class Name: ...\n")
    (folder / "core" / "transfer" / "pump.py").write_text(SOURCE)
    (folder / "core" / "transfer" / "order.py").write_text("first = 1\nsecond = 2\n")
    (folder / "ports.py").write_text("")
    return folder


def test_lines_are_counted_by_room_and_by_capability(package: Path) -> None:
    found = measure(package)
    assert found.rooms == {"core": SOURCE.count("\n") + 4, "": 0}
    assert found.capabilities == {"core": 2, "transfer": SOURCE.count("\n") + 2, "": 0}


def test_functions_count_without_their_docstring_and_options_of_commands_not_at_all(package: Path) -> None:
    found = measure(package)
    assert found.classes == {"core/names.py:Name": 1, "core/transfer/pump.py:Pump": 6}
    assert found.functions == {"core/transfer/pump.py:run": 2, "core/transfer/pump.py:free": 1}
    assert found.parameters == {"core/transfer/pump.py:run": 5, "core/transfer/pump.py:free": 0}


@pytest.mark.parametrize(
    ("figure", "exceptions", "said"),
    [
        (9, {}, []),
        (11, {}, ["Lines of a: 11, at most 10"]),
        (11, {"a": 11}, []),
        (12, {"a": 11}, ["Lines of a: 12, at most 11"]),
        (11, {"a": 12}, ["Lines of a: 11, so that its exception of 12 is to be lowered"]),
        (10, {"a": 12}, ["Lines of a: 10, so that it needs no exception any more"]),
        (9, {"gone": 12}, ["Lines of gone: 0, so that it needs no exception any more"]),
    ],
)
def test_an_exception_may_only_shrink(figure: int, exceptions: dict[str, int], said: list[str]) -> None:
    assert list(broken("Lines", {"a": figure}, 10, exceptions)) == said


def test_a_room_has_a_bound_and_so_have_all_together() -> None:
    assert list(over_budget({"core": 10, "": 2}, {"core": 10, "": 2}, 12)) == []
    said = list(over_budget({"core": 11, "gate": 5}, {"core": 10}, 15))
    assert said == [
        "Lines of core: 11, at most 10",
        "The room gate has 5 lines and no bound",
        "Lines in all: 16, at most 15",
    ]


@pytest.mark.parametrize(
    ("test", "source", "found"),
    [
        ("core/transfer/test_pump.py", "", {"made.core.transfer.pump"}),
        ("core/transfer/test_big_pump_starts.py", "", {"made.core.transfer.pump"}),
        ("core/transfer/test_all.py", "from made.core.transfer.order import first", {"made.core.transfer.order"}),
        ("core/transfer/test_all.py", "from made.core.transfer import order", {"made.core.transfer.order"}),
        ("core/test_all.py", "from made.core import Name", {"made.core.names"}),
        ("core/test_pump.py", "from made.core.transfer.pump import Pump", set()),
        ("core/transfer/test_pumps.py", "", set()),
    ],
)
def test_a_module_is_mirrored_by_tests_in_the_folder_of_its_path(
    package: Path, tmp_path: Path, test: str, source: str, found: set[str]
) -> None:
    file = tmp_path / "tests" / test
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert mirrored(package, tmp_path / "tests") == found


def test_the_files_of_a_drained_message_are_those_that_run_for_each() -> None:
    touched = files_of_a_message(30)
    assert {"azure/wire.py", "core/transfer/custody.py", "core/transfer/verdict.py"} <= touched
    assert not {"operations/drain.py", "connect.py"} & touched, "these run once"
    assert not [file for file in touched if file.startswith("emulator/")], "the namespaces run on another thread"
