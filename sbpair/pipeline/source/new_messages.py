"""New messages out of the columns of a frame: what a Spark program sends to a queue or a topic with `servicebus`.

    body            string or binary
    message_id      string; a row without one is refused: by it a repeated task knows what was sent
    session_id, partition_key, correlation_id, content_type, subject, to, reply_to, reply_to_session_id    string
    ttl_ms          time to live in milliseconds
    scheduled_at    timestamp at which it becomes active
    properties      map of application properties with strings, numbers, booleans, binaries or timestamps; or as the
                    sources read them, with type and value

`body` and `message_id` must be there, everything else may be missing or null. Rows of one session keep their order
within a partition of the frame, however the session is spelled:
`frame.repartition(8, lower("session_id")).sortWithinPartitions(lower("session_id"), "placed_at")`.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.durations import as_utc
from sbpair.core.errors import UsageError
from sbpair.core.message import Origin, Received
from sbpair.core.rewrite import TEXT_FIELDS, compose
from sbpair.pipeline.rows import PROPERTIES_TYPE, from_typed, values_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS: Final = "rows"
"""Where a ledger says that new messages lay."""

_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "body": ("string", "binary"),
    **dict.fromkeys(TEXT_FIELDS, ("string",)),
    "ttl_ms": ("int", "bigint"),
    "scheduled_at": ("timestamp",),
    "properties": (
        PROPERTIES_TYPE,
        *(f"map<string,{kind}>" for kind in ("string", "boolean", "int", "bigint", "double", "binary", "timestamp")),
    ),
}
_NEEDED = ("body", "message_id")


def check_new_messages(schema: "StructType") -> None:
    """Raises UsageError: a needed column is missing, one is of another type, or one is not known."""
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    if missing := [name for name in _NEEDED if name not in given]:
        raise UsageError(
            f"The frame lacks {', '.join(missing)}.",
            hint=f"New messages have the columns {', '.join(_TYPES)}; messages that were read have a payload.",
        )
    for name, kind in given.items():
        if name not in _TYPES:
            raise UsageError(
                f"A message has nothing for the column {name!r}.",
                hint=f"Known columns are {', '.join(_TYPES)}. Drop it, or put it into properties.",
            )
        if kind not in _TYPES[name]:
            raise UsageError(f"The column {name!r} is {' or '.join(_TYPES[name])}, not {kind}.")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of which no message can be made."""

    message_id: str | None
    reason: str
    row: Mapping[str, Any]

    def line(self) -> bytes:
        """The row in JSON, bytes in Base64."""
        return json.dumps({"reason": self.reason, "row": self.row}, default=_as_text).encode() + b"\n"


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def new_messages(batch: "pa.RecordBatch") -> Iterator[Received | BadRow]:
    """The messages that rows describe; a row of which none can be made stands for itself."""
    columns = {name: values_of(batch.column(number)) for number, name in enumerate(batch.schema.names)}
    if "scheduled_at" in columns:
        columns["scheduled_at"] = [None if at_us is None else at_us / 1_000_000 for at_us in columns["scheduled_at"]]
    for number in range(batch.num_rows):
        row = {name: values[number] for name, values in columns.items()}
        message_id = row["message_id"]
        try:
            yield Received(_payload(**row), 0, ROWS, message_id, origin=Origin(ROWS, 0, message_id, -1))
        except UsageError as error:
            yield BadRow(message_id, error.message, row)
        except (ValueError, OverflowError, TypeError) as error:
            yield BadRow(message_id, f"A message cannot have these values: {error}.", row)


def _payload(
    *,
    message_id: str | None,
    body: str | bytes | None,
    ttl_ms: int | None = None,
    properties: Any = None,
    **others: Any,
) -> bytes:
    if not message_id:
        raise UsageError("The row has no message_id.")
    return compose(
        body=body if body is not None else b"",
        message_id=message_id,
        ttl_seconds=None if ttl_ms is None else ttl_ms / 1000,
        application_properties=None if properties is None else {name: _property(one) for name, one in properties},
        **others,
    )


def _property(value: Any) -> Any:
    if isinstance(value, dict):
        return from_typed(value["type"], value["value"])
    return as_utc(value) if isinstance(value, datetime) else value
