import pytest

from sbpair.core.words import are, ranges, were


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [((), ""), ((0,), "0"), ((0, 1, 2), "0-2"), ((0, 3), "0, 3"), ((0, 1, 5, 7, 8, 9), "0-1, 5, 7-9")],
)
def test_indexes_are_shown_as_ranges(numbers: tuple[int, ...], shown: str) -> None:
    assert ranges(numbers) == shown


def test_a_verb_agrees_with_its_number() -> None:
    assert [(are(number), were(number)) for number in (0, 1, 2)] == [("are", "were"), ("is", "was"), ("are", "were")]
