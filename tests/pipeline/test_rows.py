"""A message as a row: every column out of the exact bytes, and a digest that says whether the sender's part changed."""

import uuid
from inspect import signature

from pyspark.sql.pandas.types import to_arrow_schema

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, PropertyField
from sbpair.amqp.types import Described, Long, Symbol, Timestamp, Ubyte, Uint
from sbpair.core.message import PING_CONTENT_TYPE, MessageState, Received
from sbpair.core.rewrite import compose, for_backlog
from sbpair.pipeline.rows import (
    MESSAGE_COLUMNS,
    arrow_schema,
    content_digest,
    message_row,
    source_columns,
    spark_schema,
    to_batch,
    typed_text,
)

QUEUE = "shop-weu/x-servicebus-transfer/3"


def row_of(payload: bytes, **facts: object) -> dict[str, object]:
    received = Received(payload, 7, QUEUE, **facts)  # type: ignore[arg-type]
    return dict(zip((name for name, *_ in MESSAGE_COLUMNS), message_row("shop", received), strict=True))


def test_columns_tell_of_the_original_message() -> None:
    payload = for_backlog(
        compose(
            body=b"12345",
            message_id="m",
            session_id="s",
            ttl_seconds=90,
            content_type="text/plain",
            subject="invoice",
            application_properties={"country": "DE", "n": 5},
        ),
        "invoices/incoming",
    )
    row = row_of(payload, enqueued_at=1_790_000_000.123, delivery_count=2, state=MessageState.DEFERRED)
    assert row["pair"] == "shop"
    assert (row["queue"], row["dead_letter"], row["sequence_number"]) == (QUEUE, False, 7)
    assert row["enqueued_at"] == 1_790_000_000_123_000
    assert (row["destination"], row["session_id"], row["ttl_ms"]) == ("invoices/incoming", "s", 90_000)
    assert (row["message_id"], row["subject"], row["content_type"]) == ("m", "invoice", "text/plain")
    assert (row["delivery_count"], row["state"], row["is_ping"]) == (2, "deferred", False)
    assert row["size_bytes"] == len(payload)
    assert row["payload"] == payload
    properties = dict(row["properties"])  # type: ignore[call-overload]
    assert properties["country"] == {"type": "string", "value": "DE"}
    assert properties["n"] == {"type": "int", "value": "5"}


def test_a_dead_letter_queue_is_a_flag_and_a_ping_is_known() -> None:
    payload = for_backlog(compose(body=b"", message_id="p", content_type=PING_CONTENT_TYPE), "orders")
    received = Received(payload, 1, f"{QUEUE}/$DeadLetterQueue")
    row = dict(zip((name for name, *_ in MESSAGE_COLUMNS), message_row("shop", received), strict=True))
    assert (row["queue"], row["dead_letter"], row["is_ping"]) == (QUEUE, True, True)


def test_bytes_that_are_no_message_are_kept_with_the_reason() -> None:
    row = row_of(b"\x00Sr\xffnonsense")
    assert row["payload"] == b"\x00Sr\xffnonsense"
    assert row["unreadable"]
    assert row["digest"] is None
    assert to_batch([tuple(row.values())], arrow_schema()).num_rows == 1


def test_times_that_no_column_can_show_are_left_out() -> None:
    payload = sections.build(
        properties={PropertyField.MESSAGE_ID: "m"},
        application_properties={"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": Timestamp(2**62)},
        data=b"x",
    )
    assert row_of(payload)["scheduled_at"] is None


def test_the_digest_is_of_what_the_sender_wrote() -> None:
    def delivered(deliveries: int, lock: bytes, body: bytes = b"same") -> bytes:
        return sections.build(
            header={HeaderField.DELIVERY_COUNT: Uint(deliveries)},
            delivery_annotations={Symbol("x-opt-lock-token"): lock},
            message_annotations={Symbol("x-opt-sequence-number"): Long(deliveries)},
            properties={PropertyField.MESSAGE_ID: "m"},
            data=body,
        )

    assert content_digest(delivered(0, b"one")) == content_digest(delivered(3, b"two"))
    assert content_digest(delivered(0, b"one")) != content_digest(delivered(0, b"one", b"other"))


def test_a_message_of_which_a_section_cannot_be_read_has_a_digest_all_the_same() -> None:
    """By it the message is known again when it is to be completed in its queue."""
    payload = b"\x00\x53\x73\xc0\x03\x01\xa1\x09" + sections.build(data=b"x")
    row = row_of(payload)
    assert row["unreadable"]
    assert row["digest"] == content_digest(payload) is not None


def test_every_amqp_type_is_named_and_shown() -> None:
    assert typed_text(True) == {"type": "boolean", "value": "true"}
    assert typed_text(Ubyte(3)) == {"type": "ubyte", "value": "3"}
    assert typed_text(b"\x00\xff") == {"type": "binary", "value": "00ff"}
    assert typed_text(uuid.UUID(int=1)) == {"type": "uuid", "value": str(uuid.UUID(int=1))}
    assert typed_text(None) == {"type": "null", "value": None}
    span = Described(Symbol("com.microsoft:timespan"), Long(10_000_000))
    assert typed_text(span) == {"type": "described", "value": '{"timespan_seconds": 1.0}'}


def test_batches_have_exactly_the_schema_that_spark_wants() -> None:
    batch = to_batch([message_row("shop", Received(compose(body=b"x", message_id="m"), 1, QUEUE))], arrow_schema())
    # Spark 4.0 and 4.1 know no other time zone.
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    assert batch.schema == arrow_schema() == to_arrow_schema(spark_schema(MESSAGE_COLUMNS), **zone)
    assert arrow_schema(source_columns()) == to_arrow_schema(spark_schema(source_columns()), **zone)
