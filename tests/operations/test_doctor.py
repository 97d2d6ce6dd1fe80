"""An examination of a pair through the public call, on embedded namespaces."""

from dataclasses import replace

import pytest

import sbpair
from sbpair.connect import open_sides
from sbpair.core.inspection.diagnosis import Verdict
from sbpair.core.outcome import Exit
from sbpair.operations import DoctorRequest, doctor
from tests.operations.conftest import World


def test_every_right_is_there_and_nothing_is_sent(world: World) -> None:
    pair = replace(world.pair, entities=("orders",))
    found = sbpair.run(doctor, pair, DoctorRequest())
    assert found.exit is Exit.OK
    assert {row.result for row in found.checks} == {Verdict.OK}
    assert world.waiting("orders") == 0
    assert found.summary().endswith(" ok.")


@pytest.mark.parametrize(("fault", "exit"), [("refuse", Exit.UNREACHABLE)])
async def test_a_side_that_does_not_answer(world: World, fault: str, exit: Exit) -> None:
    world.emulator.faults("fabrikam").add(fault)
    async with open_sides(world.pair) as sides:
        found = await doctor(sides, DoctorRequest(timeout_seconds=2))
    assert found.exit is exit
    assert {row.subject.split()[0] for row in found.checks if row.result is Verdict.ERROR} == {"secondary"}
