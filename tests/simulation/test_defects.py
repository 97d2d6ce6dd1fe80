"""A planted defect that no longer fits the product shows nothing: it is told, and counts as found by nobody."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import ServiceError
from tests.simulation import defects
from tests.simulation.defects import Misfit, hunt, misfit, put, replace

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 600


@dataclass
class History:
    """What `hunt` is told of one."""

    seed: int
    failure: str = ""
    misfit: str = ""


def hunted(*histories: History) -> int:
    def many(seeds: Sequence[int], hours: float, processes: int, name: str) -> Iterator[History]:
        yield from histories

    return hunt(0.1, len(histories), 1, many, ["message-left-out"])


def test_one_that_does_not_fit_is_not_found_whatever_it_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert hunted(History(1), History(2, failure="Violation: a message is lost", misfit="TypeError: no len()")) == 1
    told = capsys.readouterr().out
    assert "message-left-out: DOES NOT FIT the product any more: seed 2: TypeError: no len()" in told
    assert "found" not in told
    assert hunted(History(1), History(2, failure="Violation: a message is lost")) == 0
    assert "1 of 1 defects found; the median took 2 seeds" in capsys.readouterr().out


class Product:
    """Something to plant defects in."""

    async def send(self, item: str) -> str:
        return item

    async def answers(self) -> AsyncIterator[str]:
        yield "a"

    def settle(self, item: str) -> str:
        if item == "busy":
            raise ServiceError("busy")
        return item

    @property
    def count(self) -> int:
        return 1


@pytest.fixture
def product() -> type[Product]:
    """One of its own for each test, and no misfit of another's."""
    defects._misfits.clear()
    return type("Planted", (Product,), {})


async def used(product: Product) -> None:
    """A product that survives whatever is planted in it."""
    with suppress(Exception):
        product.settle("busy")
    with suppress(Exception):
        product.settle("x")
    with suppress(Exception):
        await product.send("x")
    with suppress(Exception):
        _ = [one async for one in product.answers()]
    with suppress(Exception):
        _ = product.count


async def test_what_fits_is_used_and_its_errors_are_those_of_the_product(product: type[Product]) -> None:
    replace(product, "settle", lambda settle: lambda self, item: settle(self, item) * 2)
    put(product, "count", property(lambda self: 2))
    await used(product())
    assert (product().settle("x"), product().count, misfit()) == ("xx", 2, "")
    with pytest.raises(ServiceError):
        product().settle("busy")
    assert misfit() == ""


async def _no_such_attribute(self: Any, item: str) -> Any:
    return self.nothing


async def _no_length(self: Any) -> AsyncIterator[Any]:
    yield len(self)


def _own_index(self: Any, item: str) -> Any:
    return [][len(item)]


@pytest.mark.parametrize(
    ("name", "planted", "told"),
    [
        ("settle", lambda self: "x", "takes 1 positional argument but 2 were given"),
        ("settle", _own_index, "IndexError: list index out of range"),
        ("send", _no_such_attribute, "AttributeError: 'Planted' object has no attribute 'nothing'"),
        ("answers", _no_length, "TypeError: object of type 'Planted' has no len()"),
        ("count", property(lambda self: self.nothing), "AttributeError: 'Planted' object has no attribute 'nothing'"),
    ],
)
async def test_a_misfit_is_noted_also_where_the_product_survives_it(
    product: type[Product], name: str, planted: Any, told: str
) -> None:
    put(product, name, planted)
    await used(product())
    assert told in misfit()


def test_a_history_that_ends_with_a_misfit_of_an_object_in_between_is_no_broken_promise(product: type[Product]) -> None:
    assert misfit(AssertionError("a message is lost")) == ""
    assert misfit(TypeError("'Kept' object is not iterable")) == "TypeError: 'Kept' object is not iterable"


def test_nothing_is_planted_where_the_product_has_nothing(product: type[Product]) -> None:
    for plant in (lambda: put(product, "gone", 1), lambda: replace(product, "gone", lambda gone: gone)):
        with pytest.raises(Misfit, match="Planted has no gone"):
            plant()
    assert not hasattr(product, "gone")


HISTORY = """
from sbpair.core.transfer.custody import Custody
from sbpair.core.transfer.report import Accepted, Moment
from tests.simulation.__main__ import live
from tests.simulation.defects import defect, replace

@defect("a tally is told of no list")
def _of_no_list():
    def make(accepted):
        def alone(self, items, destination):
            for item in items:
                self._tally.note(Moment.ACCEPTED, Accepted(item, destination))
        return alone
    replace(Custody, "accepted", make)

print(live(1, 0.02, defect="of-no-list").misfit)
"""


def test_a_history_tells_what_did_not_fit() -> None:
    assert "TypeError: object of type 'Item' has no len()" in lived(HISTORY)


EACH = """
from tests.simulation.__main__ import live
from tests.simulation.defects import DEFECTS

told = {name: live(20, 0.05, defect=name) for name in DEFECTS}
print("without a misfit:", sum(not one.misfit for one in told.values()) == len(DEFECTS) > 30)
print("\\n".join(f"{name}: {one.misfit}" for name, one in told.items() if one.misfit))
"""


def test_every_defect_fits_the_product() -> None:
    """One history with each of them: of a drain that is ended in the middle of its ledger's writes, so that most of
    what is planted is called. Which of them that history finds is left open."""
    told = lived(EACH)
    assert "without a misfit: True" in told, told


def lived(script: str) -> str:
    """What a program prints that lives through histories."""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
