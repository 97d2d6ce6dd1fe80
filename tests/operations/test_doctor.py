"""An examination of a pair through the public call, on embedded namespaces."""

from dataclasses import replace

import pytest

import sbpair
from sbpair.connect import open_sides
from sbpair.core.inspection.diagnosis import Verdict
from sbpair.core.outcome import Exit
from sbpair.operations import DoctorRequest, doctor
from tests.operations.conftest import World, backlog_queue


def test_every_right_is_there_and_nothing_is_sent(world: World) -> None:
    pair = replace(world.pair, entities=("orders",))
    found = sbpair.run(doctor, pair, DoctorRequest())
    assert found.exit is Exit.OK
    assert {row.result for row in found.checks} == {Verdict.OK}
    assert world.waiting("orders") == 0
    assert found.summary().endswith(" ok.")


def test_what_is_not_there_is_made_by_the_command_of_its_side(world: World) -> None:
    for name, path in (("contoso", "orders"), ("fabrikam", backlog_queue(0))):
        world.emulator.namespace(name).delete_queue(path)
    found = sbpair.run(doctor, replace(world.pair, entities=("orders",)), DoctorRequest())
    steps = {row.subject: row.next_step for row in found.checks if row.detail == "it does not exist"}
    assert steps.pop(f"secondary {backlog_queue(0)}") == "sbpair provision embedded"
    assert steps and all(step.endswith("create it: sbpair entity create orders") for step in steps.values())


def test_for_an_application_only_links_are_tried(world: World) -> None:
    pair = replace(world.pair, entities=("orders",))
    found = sbpair.run(doctor, pair, DoctorRequest(for_application=True))
    assert found.exit is Exit.OK
    assert {(row.check, row.result) for row in found.checks} == {("backlog", Verdict.OK), ("entity", Verdict.OK)}
    assert world.waiting("orders") == 0


def test_for_an_application_a_backlog_that_is_not_there_is_an_error(world: World) -> None:
    for path in world.pair.backlog_paths():
        world.emulator.namespace("fabrikam").delete_queue(path)
    found = sbpair.run(doctor, world.pair, DoctorRequest(for_application=True))
    assert found.exit is Exit.FAILED
    (row,) = found.checks
    assert "sbpair provision" in row.next_step


def test_for_an_application_part_of_a_backlog_is_a_warning(world: World) -> None:
    world.emulator.namespace("fabrikam").delete_queue(backlog_queue(1))
    found = sbpair.run(doctor, world.pair, DoctorRequest(for_application=True))
    assert [row.result for row in found.checks] == [Verdict.OK, Verdict.WARNING]
    assert (found.checks[1].detail.split(" on ")[0], found.exit) == (f"The backlog queue {backlog_queue(1)}", Exit.OK)


@pytest.mark.parametrize(("fault", "exit"), [("refuse", Exit.UNREACHABLE)])
async def test_a_side_that_does_not_answer(world: World, fault: str, exit: Exit) -> None:
    world.emulator.faults("fabrikam").add(fault)
    async with open_sides(world.pair) as sides:
        found = await doctor(sides, DoctorRequest(timeout_seconds=2))
    assert found.exit is exit
    assert {row.subject.split()[0] for row in found.checks if row.result is Verdict.ERROR} == {"secondary"}
