"""What a drill says of itself beside earlier ones."""

import pytest

from sbpair.core.inspection.drilled import Drilled, DrilledEntity, DrillLine, Proof, Reaction


def drilled(entity: str, divert_seconds: float | None) -> DrilledEntity:
    diverted = 0 if divert_seconds is None else 3
    expects = Reaction.WAITED if divert_seconds is None else Reaction.DIVERTED
    proof = Proof(entity, 9, 9, (), (), (), ())
    return DrilledEntity("dark", entity, 9, diverted, 0, divert_seconds, None, None, None, 0, expects, proof)


def earlier(entity: str, divert_seconds: float | None) -> DrillLine:
    return DrillLine("2026-11-23T08:00:00+00:00", entity, divert_seconds, None, None, None, "proved")


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        (5.0, [("orders", 2.0), ("orders", 4.0), ("invoices", 90.0)],
         ["orders: diverted after 5.0 s; the median was 3.0 s in 2 earlier drills."]),
        (5.0, [("invoices", 90.0)], []),
        (5.0, [("orders", None)], []),
        (None, [("orders", 2.0)], []),
    ],
)  # fmt: skip
def test_the_time_is_held_against_that_of_the_entitys_earlier_drills(
    now: float | None, before: list[tuple[str, float | None]], said: list[str]
) -> None:
    lines = tuple(earlier(*one) for one in before)
    told = Drilled("pair", 0.0, False, (), 2, entities=(drilled("orders", now),), earlier=lines)
    assert [note for note in told.notes() if "median" in note] == said
