"""A folder that cannot be written into is refused before Spark is started for it."""

import sys
from pathlib import Path

import pytest

from sbpair.cli.pipeline.session import check_folder
from sbpair.core.errors import UsageError


def test_a_folder_that_can_be_made_is_left_as_it_is(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "archive")
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match=f"Cannot write into {file}/archive: {file} is a file"):
        check_folder(file / "archive")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is there on Linux")
def test_permissions_that_promise_too_much_are_not_believed() -> None:
    with pytest.raises(UsageError, match="Cannot write into /proc/archive"):
        check_folder(Path("/proc/archive"))
