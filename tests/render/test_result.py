"""Tables whose columns the fields of their rows declare."""

from dataclasses import dataclass, field

from sbpair.core.serialization import AS_TIME, column
from sbpair.render.result import Column, columns_of, table_of


@dataclass(frozen=True)
class Counted:
    queue: str = field(metadata=column("Queue"))
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
