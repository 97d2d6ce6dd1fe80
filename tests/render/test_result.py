"""Tables whose columns the fields of their rows declare."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbpair.core.serialization import AS_TIME, column, metric
from sbpair.render.result import Column, Metric, columns_of, metrics_of, table_of


@dataclass(frozen=True)
class Counted:
    queue: str = field(metadata=column("Queue", colours=True))
    host: str
    messages: int | None = field(metadata=column("Messages", counts=True))
    at: float = field(metadata={**AS_TIME, **column("At", spare=True)})


def test_a_field_that_declares_a_column_is_one_and_no_other_is() -> None:
    assert columns_of(Counted) == (
        Column("queue", "Queue"),
        Column("messages", "Messages", right=True, counts=True),
        Column("at", "At", spare=True),
    )


def test_a_row_has_what_the_plain_form_has() -> None:
    table = table_of(Counted, [Counted("orders", "weu", None, 0.0)], "Queues")
    assert table.title == "Queues"
    assert [[row[column.key] for column in table.columns] for row in table.rows] == [
        ["orders", None, "1970-01-01T00:00:00.000Z"]
    ]


def test_a_table_shows_the_fields_that_are_named_in_their_order_and_is_coloured_by_the_field_that_says_so() -> None:
    table = table_of(Counted, [], show=("at", "queue"))
    assert [column.key for column in table.columns] == ["at", "queue"]
    assert table.style_key == "queue"


@dataclass(frozen=True)
class Figures:
    skipped: int = field(metadata=metric("skipped_checks"))
    findings: Mapping[str, int] = field(metadata=metric("findings", label="severity"))
    size_bytes: int | None = field(metadata=metric("size_bytes"))
    hidden: int = 5


def test_a_number_is_a_sample_and_a_mapping_one_for_each_entry_and_what_is_not_known_is_none() -> None:
    pair = ("pair", "orders")
    assert list(metrics_of(Figures(2, {"error": 1, "info": 0}, None), pair)) == [
        Metric("skipped_checks", 2, (pair,)),
        Metric("findings", 1, (pair, ("severity", "error"))),
        Metric("findings", 0, (pair, ("severity", "info"))),
    ]
