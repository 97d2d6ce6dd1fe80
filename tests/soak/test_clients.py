"""The short form of the campaign of outages; the long one is `python -m tests.soak.clients`."""

import pytest

from tests.soak.clients import KINDS, Shape, campaign, report

SHORT = {
    "tasks": ("dark", "half-open", "link detached"),
    "threads": ("refused", "entity disabled", "half-open"),
    "forks": ("token expired", "throttled", "dark"),
}


@pytest.mark.parametrize("kind", SHORT)
def test_an_application_comes_back_from_each_outage_as_it_was(kind: str) -> None:
    result = campaign(
        3,
        Shape(kind, "sender", 5 if kind == "forks" else 20, 0.5, measured_seconds=3.0),
        outages=len(SHORT[kind]),
        kinds=SHORT[kind],
    )
    assert not result.lost, report(result)
    assert all(not one.late and one.served for one in result.outages), report(result)
    assert result.connections_are_as_before, report(result)


def test_every_kind_of_outage_is_in_the_short_form() -> None:
    assert {kind for kinds in SHORT.values() for kind in kinds} == set(KINDS)
