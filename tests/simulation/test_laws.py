"""Histories under bent laws: which are lived, what is said of those that break a rule, and a share of the real ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from sbpair.emulator.laws import BOOK
from tests.simulation.laws import EXPLAINED, FLIPS, Bent, bent_plan, flip
from tests.simulation.plan import draw
from tests.simulation.test_simulation import simulate


@dataclass(frozen=True)
class Told:
    seed: int
    failure: str = ""


class Histories:
    """Ends every history that is lived under one bent law with a violation."""

    def __init__(self, breaking: str) -> None:
        self.breaking = breaking
        self.lived: list[Bent] = []

    def many(self, seeds: Sequence[int], hours: float, processes: int, bent: Bent) -> Iterator[Told]:
        self.lived.append(bent)
        broken = any(name == self.breaking for name, _ in bent)
        return (Told(seed, "Violation: message 7 never arrived" if broken else "") for seed in seeds)


def test_every_form_of_every_law_that_bends_is_lived(capsys: pytest.CaptureFixture[str]) -> None:
    histories = Histories("")
    assert flip(0.1, range(2), 1, histories.many) == 0
    assert histories.lived == [(), *((pair,) for pair in FLIPS if pair not in EXPLAINED)]
    assert len(FLIPS) == sum(len(law.values) - 1 for law in BOOK) > 50
    assert f"{len(FLIPS) + 1} of {len(FLIPS) + 1} held" in capsys.readouterr().out


def test_a_broken_rule_names_the_law_and_what_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    histories = Histories("settle-one-partition")
    assert flip(0.1, range(3, 5), 1, histories.many, ["settle-one-partition", "footer-keys-are-symbols"]) == 1
    told = capsys.readouterr().out
    assert "settle-one-partition lax: loss: Violation: message 7 never arrived" in told
    assert "Assumed: " in told
    assert "(reported: " in told
    assert "Replay: python -m tests.simulation --seed 3 --hours 0.1 --bend settle-one-partition=lax" in told
    assert "2 of 3 held" in told


def test_most_worlds_under_bent_laws_have_partitioned_queues() -> None:
    plans = [bent_plan(draw(seed, 0.1), (("session-key", "lax"),)) for seed in range(8)]
    assert [plan.partitioned for plan in plans].count(True) == 6
    assert {plan.laws for plan in plans} == {(("session-key", "lax"),)}


def test_refusals_of_partitioned_queues_and_their_absence_are_survived() -> None:
    ran = simulate("--laws", "partitioned-batch-key", "partitioned-batch-keyless", "--seeds", "3", "--hours", "0.05")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 of 3 held, 2 of them with a bent law, in 3 histories each." in ran.stdout
