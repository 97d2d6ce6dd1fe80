"""A fresh world for each story: two embedded namespaces, the pair `local`, nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import embedded_pair
from tests.cli.process import Sbpair
from tests.stories.world import World

SEED = """\
local-primary: {keys: {send: [Send]}}
local-secondary: {keys: {listen: [Listen]}}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "seed.yaml").write_text(SEED, encoding="utf-8")
    said = tmp_path / "emulator.txt"
    environ: dict[str, str] = {}
    with (
        said.open("w") as stdout,
        embedded_pair(Sbpair(tmp_path, environ), "--seed", "seed.yaml", stdout=stdout) as one,
    ):
        yield World(one, environ, said)
