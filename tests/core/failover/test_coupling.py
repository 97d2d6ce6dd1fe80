"""Close and fault as documented: the partner has five seconds, in processes with the syphon."""

import pytest

from sbpair.core.pairing import Condition, Coupling, Side


@pytest.mark.parametrize("condition", [Condition.CLOSED, Condition.FAULTED])
@pytest.mark.parametrize("side", Side)
def test_the_partner_is_faulted_five_seconds_after_a_close_or_fault(side: Side, condition: Condition) -> None:
    coupling = Coupling(with_syphon=True)
    coupling.ended(side, condition, 100.0)
    assert coupling.next_deadline() == 105.0
    assert coupling.due(104.9) is None
    assert coupling.due(105.0) is side.partner


def test_a_partner_that_closes_in_time_is_left_alone() -> None:
    coupling = Coupling(with_syphon=True)
    coupling.ended(Side.PRIMARY, Condition.CLOSED, 0.0)
    coupling.ended(Side.SECONDARY, Condition.CLOSED, 4.9)
    assert coupling.next_deadline() is None
    assert coupling.due(1_000.0) is None


def test_without_the_syphon_the_sides_are_independent() -> None:
    coupling = Coupling(with_syphon=False)
    coupling.ended(Side.PRIMARY, Condition.FAULTED, 0.0)
    assert coupling.next_deadline() is None
    assert coupling.condition(Side.SECONDARY) is Condition.OPEN


def test_the_first_word_on_a_side_stands() -> None:
    coupling = Coupling(with_syphon=True)
    coupling.ended(Side.PRIMARY, Condition.CLOSED, 0.0)
    coupling.ended(Side.PRIMARY, Condition.FAULTED, 3.0)
    assert coupling.condition(Side.PRIMARY) is Condition.CLOSED
    assert coupling.next_deadline() == 5.0


def test_an_open_side_has_not_ended() -> None:
    coupling = Coupling(with_syphon=True)
    coupling.ended(Side.PRIMARY, Condition.OPEN, 0.0)
    assert coupling.next_deadline() is None
