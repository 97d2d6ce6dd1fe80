"""Arguments of another type are refused where they are given."""

import pytest

from sbpair.core.arguments import check_types
from sbpair.core.replication.ownership import Terms


def test_what_fits_is_taken() -> None:
    check_types(entity="orders", concurrency=2, delay_seconds=0.5, max_messages=None, pair="orders", terms=Terms())
    check_types(on_event=print, until_idle_seconds=3, options=None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("entity", b"orders", "`entity` is the path of a queue or topic, not of type bytes."),
        ("concurrency", 2.0, "`concurrency` is a whole number, not of type float."),
        ("concurrency", True, "`concurrency` is a whole number, not of type bool."),
        ("delay_seconds", "5s", "`delay_seconds` is a number of seconds, not of type str."),
        ("max_messages", "5", "`max_messages` is a whole number, not of type str."),
        ("pair", None, "`pair` is the name of a configured pair, or a Pair, not of type NoneType."),
    ],
)
def test_another_type_is_refused_without_its_value(name: str, value: object, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        check_types(**{name: value})
    assert str(raised.value) == said
