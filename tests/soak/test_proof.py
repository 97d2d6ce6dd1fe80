"""The campaign's proof can fail: each kind of wrong is seen, and only a double with a reason is let pass."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.message import Received
from sbpair.core.rewrite import compose
from tests.soak.proof import Proof, prove
from tests.soak.world import ProcessEnd, Sent, World


class ToldWorld(World):
    """A world of which everything is made up: ten messages that came home well, in one session."""

    def __post_init__(self) -> None:
        payloads = {f"{n}": compose(body=b"x", message_id=f"{n}", session_id="s") for n in range(10)}
        self.sent = {message_id: Sent("orders", "s", payload) for message_id, payload in payloads.items()}
        self.home = {"orders": [self.copy(message_id, at=100.0 + int(message_id)) for message_id in payloads]}
        self.lines = [{"message_id": message_id, "attempts": 1} for message_id in payloads]
        self.waiting: list[str] = []

    def copy(self, message_id: str, *, at: float, destination: str = "orders") -> Received:
        payload = self.sent[message_id].payload
        return Received(payload, int(at), destination, message_id=message_id, session_id="s", enqueued_at=at)

    def arrived(self) -> dict[str, list[Received]]:
        return self.home

    def left(self) -> list[str]:
        return self.waiting

    def entries(self) -> list[dict[str, Any]]:
        return self.lines


@pytest.fixture
def world(tmp_path: Path) -> ToldWorld:
    return ToldWorld(tmp_path, random.Random(0))


def test_all_is_well(world: ToldWorld) -> None:
    proof = prove(world)
    assert proof.holds, proof.complaints()


def lose(world: ToldWorld) -> None:
    del world.home["orders"][4]


def leave(world: ToldWorld) -> None:
    lose(world)
    world.waiting = ["4"]


def alter(world: ToldWorld) -> None:
    other = compose(body=b"y", message_id="3", session_id="s")
    world.home["orders"][3] = Received(other, 3, "orders", message_id="3", session_id="s", enqueued_at=103.0)


def misplace(world: ToldWorld) -> None:
    world.home["invoices"] = [world.copy("9", at=120.0, destination="invoices")]
    del world.home["orders"][9]


def reorder(world: ToldWorld) -> None:
    world.home["orders"][2:4] = reversed(world.home["orders"][2:4])


def forget(world: ToldWorld) -> None:
    del world.lines[5]


def double(world: ToldWorld) -> None:
    world.home["orders"].append(world.copy("5", at=200.0))


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lose, lambda proof: proof.lost == ["4"]),
        (leave, lambda proof: (proof.lost, proof.left) == ([], 1)),
        (alter, lambda proof: proof.altered == ["3"]),
        (misplace, lambda proof: proof.strange == ["invoices/9"]),
        (reorder, lambda proof: proof.disordered == ["orders/s: 2 after 3"]),
        (forget, lambda proof: proof.unrecorded == ["5"]),
        (double, lambda proof: proof.unexplained == ["5"]),
    ],
)
def test_what_is_wrong_is_seen(
    world: ToldWorld, spoil: Callable[[ToldWorld], None], seen: Callable[[Proof], bool]
) -> None:
    spoil(world)
    proof = prove(world)
    assert not proof.holds
    assert seen(proof), proof


def test_a_double_of_what_was_in_flight_at_a_kill_is_explained(world: ToldWorld) -> None:
    double(world)
    world.ends = [ProcessEnd("kill -9", 150.0, frozenset(world.sent) - {"5"})]
    proof = prove(world)
    assert (proof.holds, dict(proof.doubles)) == (True, {"kill -9": 1})


def test_a_double_of_what_the_ledger_had_at_the_kill_is_not(world: ToldWorld) -> None:
    double(world)
    world.ends = [ProcessEnd("kill -9", 150.0, frozenset(world.sent))]
    assert prove(world).unexplained == ["5"]


def test_a_double_after_the_kill_is_not(world: ToldWorld) -> None:
    double(world)
    world.ends = [ProcessEnd("kill -9", 50.0, frozenset())]
    assert prove(world).unexplained == ["5"]


def test_a_double_after_a_lost_answer_is_explained(world: ToldWorld) -> None:
    double(world)
    world.lines[5]["attempts"] = 2
    assert dict(prove(world).doubles) == {"connection": 1}


def test_a_double_is_wrong_where_duplicates_are_detected(world: ToldWorld) -> None:
    copies = [world.copy(message_id, at=100.0 + int(message_id), destination="once") for message_id in world.sent]
    world.sent = {message_id: Sent("once", "s", one.payload) for message_id, one in world.sent.items()}
    world.home = {"once": [*copies, world.copy("5", at=time.time(), destination="once")]}
    world.lines[5]["attempts"] = 2
    assert prove(world).doubles_despite_detection == 1
    assert not prove(world).holds
