"""The backlog form and the way back: exact wire types, what is edited, and nothing else."""

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Array, Char, Decimal128, Described, Int, Long, Symbol, Timestamp, Ubyte, Uint, Ulong, same
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError, NotABacklogMessageError, ReservedPropertyError
from sbpair.core.rewrite import (
    NEVER_MS,
    TtlMode,
    compose,
    describe,
    for_backlog,
    for_primary,
    is_ping,
    ping_message,
    strip_broker_annotations,
)

NOW = 1_790_000_000.0
HOUR_MS = 3_600_000


def part(payload, section):
    return sections.read(payload, sections.scan(payload), section)


def prop(payload, index):
    return sections.field(part(payload, Section.PROPERTIES), index)


def raw(payload, section):
    return b"".join(payload[span.start : span.end] for span in sections.scan(payload) if span.section == section)


def home(payload, **kwargs):
    return for_primary(payload, now=NOW, enqueued_at=NOW - 60, **kwargs)


def full_message():
    created = 1_780_000_000_000
    return sections.build(
        header={HeaderField.DURABLE: True, HeaderField.PRIORITY: Ubyte(7), HeaderField.TTL: Uint(HOUR_MS)},
        message_annotations={
            Symbol("x-opt-partition-key"): "cart-7",
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_800_000_000_000),
            Symbol("x-app"): Array(0x98, ()),
        },
        properties={
            PropertyField.MESSAGE_ID: "m-1",
            PropertyField.CORRELATION_ID: Ulong(2**63),
            PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(created + HOUR_MS),
            PropertyField.CREATION_TIME: Timestamp(created),
            PropertyField.GROUP_ID: "cart-7",
            PropertyField.GROUP_SEQUENCE: Uint(3),
            PropertyField.REPLY_TO_GROUP_ID: "answers",
        },
        application_properties={"price": Decimal128(bytes(range(16))), "initial": Char("x"), "n": Long(2**40)},
        data=[b"one", b"two"],
        footer={Symbol("crc"): Int(-1)},
    )


def test_the_aliases_have_the_wire_types_of_the_retired_library():
    backlog = for_backlog(full_message(), "invoices/incoming")
    properties = part(backlog, Section.APPLICATION_PROPERTIES)
    assert same(properties["x-ms-path"], "invoices/incoming")
    assert same(properties["x-ms-sessionid"], "cart-7")
    assert same(properties["x-ms-timetolive"], Described(Symbol("com.microsoft:timespan"), Long(HOUR_MS * 10_000)))
    assert same(properties["x-ms-scheduledenqueuetimeutc"], Timestamp(1_800_000_000_000))


def test_the_aliased_properties_are_cleared_and_the_rest_stays():
    original = full_message()
    backlog = for_backlog(original, "orders")
    assert part(backlog, Section.HEADER) == [True, Ubyte(7)]
    assert prop(backlog, PropertyField.GROUP_ID) is None
    assert prop(backlog, PropertyField.GROUP_SEQUENCE) == 3
    assert prop(backlog, PropertyField.REPLY_TO_GROUP_ID) == "answers"
    assert prop(backlog, PropertyField.MESSAGE_ID) == "m-1"
    assert prop(backlog, PropertyField.ABSOLUTE_EXPIRY_TIME) == NEVER_MS
    assert list(part(backlog, Section.MESSAGE_ANNOTATIONS)) == ["x-app"]
    for section in (Section.DATA, Section.FOOTER):
        assert raw(backlog, section) == raw(original, section)


def test_only_what_is_set_gets_an_alias():
    backlog = for_backlog(compose(body=b"", message_id="1"), "orders")
    assert part(backlog, Section.APPLICATION_PROPERTIES) == {"x-ms-path": "orders"}


def test_the_way_back_restores_everything_with_the_tied_partition_key():
    original = full_message()
    restored = home(for_backlog(original, "orders"))
    assert restored.destination == "orders"
    assert restored.session_id == "cart-7"
    assert restored.message_id == "m-1"
    assert restored.scheduled_at == 1_800_000_000.0
    for section in Section:
        if section != Section.MESSAGE_ANNOTATIONS:
            assert raw(restored.payload, section) == raw(original, section), section
    annotations = part(restored.payload, Section.MESSAGE_ANNOTATIONS)
    assert dict(annotations) == {
        "x-app": Array(0x98, ()),
        "x-opt-scheduled-enqueue-time": Timestamp(1_800_000_000_000),
        "x-opt-partition-key": "cart-7",
    }
    assert restored.partition_key == "cart-7"


def test_a_session_message_comes_back_with_the_partition_key_that_the_retired_syphon_sets():
    original = compose(body=b"x", message_id="1", session_id="s")
    restored = home(for_backlog(original, "q"))
    assert restored.partition_key == "s"
    assert part(restored.payload, Section.MESSAGE_ANNOTATIONS) == {"x-opt-partition-key": "s"}


def test_a_partition_key_that_differs_from_the_session_is_the_senders_own():
    original = compose(body=b"x", message_id="1", session_id="s", partition_key="p")
    assert home(for_backlog(original, "q")).payload == original


def test_a_partition_key_without_a_session_travels_unchanged():
    original = compose(body=b"x", message_id="1", partition_key="p")
    assert raw(for_backlog(original, "q"), Section.MESSAGE_ANNOTATIONS) == raw(original, Section.MESSAGE_ANNOTATIONS)
    restored = home(for_backlog(original, "q"))
    assert restored.payload == original
    assert restored.partition_key == "p"


@pytest.mark.parametrize("name", ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"])
@pytest.mark.parametrize("kind", [str, Symbol])
def test_a_reserved_name_is_refused(name, kind):
    original = sections.build(application_properties={kind(name): None}, data=b"")
    with pytest.raises(ReservedPropertyError, match=name):
        for_backlog(original, "orders")


# Time to live


def ttl_alias(value):
    return sections.build(application_properties={"x-ms-path": "q", "x-ms-timetolive": value}, data=b"")


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        (Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)), HOUR_MS),
        (Described(Symbol("com.microsoft:timespan"), Long(5)), 1),
        (Described(Symbol("com.microsoft:timespan"), Long(0)), 0),
        (Long(1500), 1500),
        (Int(1500), 1500),
        ("PT1H", HOUR_MS),
        (Symbol("P1DT2H3M4.5S"), 93_784_500),
        ("P1W", 604_800_000),
        (Long(2**41), 2**32 - 1),
    ],
)
def test_a_time_to_live_is_read_liberally(written, milliseconds):
    assert part(home(ttl_alias(written)).payload, Section.HEADER)[HeaderField.TTL] == milliseconds


def test_timespan_max_means_never():
    never = Described(Symbol("com.microsoft:timespan"), Long(2**63 - 1))
    assert raw(home(ttl_alias(never)).payload, Section.HEADER) == b""


@pytest.mark.parametrize(
    "written", [True, 1.5, "tomorrow", "P", "PT", "1H", Described(Symbol("x"), Long(1)), Long(-1), [Int(1)], b"PT1H"]
)
def test_a_time_to_live_of_another_type_is_a_dead_letter(written):
    with pytest.raises(MalformedMessageError, match="x-ms-timetolive") as caught:
        home(ttl_alias(written))
    assert caught.value.reason == "InvalidBacklogProperty"


def test_remaining_takes_the_time_in_the_backlog_off():
    backlog = for_backlog(compose(body=b"", message_id="1", ttl_seconds=90), "q")
    assert part(home(backlog, ttl=TtlMode.FULL).payload, Section.HEADER)[HeaderField.TTL] == 90_000
    assert part(home(backlog, ttl=TtlMode.REMAINING).payload, Section.HEADER)[HeaderField.TTL] == 30_000


def test_remaining_leaves_a_millisecond_to_what_has_expired():
    backlog = for_backlog(compose(body=b"", message_id="1", ttl_seconds=30), "q")
    assert part(home(backlog, ttl=TtlMode.REMAINING).payload, Section.HEADER)[HeaderField.TTL] == 1


def test_remaining_without_an_enqueued_time_is_full():
    backlog = for_backlog(compose(body=b"", message_id="1", ttl_seconds=30), "q")
    restored = for_primary(backlog, now=NOW, enqueued_at=None, ttl=TtlMode.REMAINING)
    assert part(restored.payload, Section.HEADER)[HeaderField.TTL] == 30_000


def test_a_time_to_live_beyond_the_header_survives_in_the_pair_of_times():
    created, ttl = 1_780_000_000_000, 100 * 86_400_000
    original = sections.build(
        header={HeaderField.TTL: Uint(2**32 - 1)},
        properties={
            PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(created + ttl),
            PropertyField.CREATION_TIME: Timestamp(created),
        },
        data=b"",
    )
    backlog = for_backlog(original, "q")
    assert part(backlog, Section.APPLICATION_PROPERTIES)["x-ms-timetolive"].value == ttl * 10_000
    assert home(backlog).payload == original


def test_a_long_time_to_live_of_the_retired_library_gets_the_pair_of_times():
    ttl = 100 * 86_400_000
    restored = home(ttl_alias(Described(Symbol("com.microsoft:timespan"), Long(ttl * 10_000)))).payload
    assert prop(restored, PropertyField.CREATION_TIME) == NOW * 1000
    assert prop(restored, PropertyField.ABSOLUTE_EXPIRY_TIME) == NOW * 1000 + ttl


def test_the_backlog_queues_own_time_to_live_stays_behind():
    original = compose(body=b"x", message_id="1")
    delivered = sections.edit(
        for_backlog(original, "q"),
        {
            Section.HEADER: sections.build(header={HeaderField.TTL: Uint(14 * 86_400_000)}),
            Section.PROPERTIES: sections.build(
                properties={PropertyField.MESSAGE_ID: "1", PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(NEVER_MS)}
            ),
        },
    )
    assert home(delivered).payload == original


ARRIVED_MS = round((NOW - 60) * 1000)


def stamped_by_queue(payload, *, queue_ttl_ms):
    """The message as a backlog queue with a time to live of its own delivers it, with the stamps of the service."""
    properties = dict(enumerate(part(payload, Section.PROPERTIES) or []))
    properties[PropertyField.ABSOLUTE_EXPIRY_TIME] = Timestamp(ARRIVED_MS + queue_ttl_ms)
    properties.setdefault(PropertyField.CREATION_TIME, None)
    if properties[PropertyField.CREATION_TIME] is None:
        properties[PropertyField.CREATION_TIME] = Timestamp(ARRIVED_MS)
    return sections.edit(
        payload,
        {
            Section.HEADER: sections.build(header={HeaderField.TTL: Uint(queue_ttl_ms)}),
            Section.MESSAGE_ANNOTATIONS: sections.build(
                message_annotations={Symbol("x-opt-enqueued-time"): Timestamp(ARRIVED_MS)}
            ),
            Section.PROPERTIES: sections.build(properties=properties),
        },
    )


def test_the_creation_time_that_a_backlog_queue_stamps_stays_behind():
    original = compose(body=b"x", message_id="1")
    assert home(stamped_by_queue(for_backlog(original, "q"), queue_ttl_ms=HOUR_MS)).payload == original


def test_a_senders_own_creation_time_is_kept_beside_the_stamps():
    original = sections.build(properties=["1", *[None] * 8, Timestamp(5)], data=b"")
    assert home(stamped_by_queue(for_backlog(original, "q"), queue_ttl_ms=HOUR_MS)).payload == original


def test_a_message_with_a_time_to_live_of_its_own_gets_it_back_without_the_stamps():
    original = compose(body=b"x", message_id="1", ttl_seconds=90)
    assert home(stamped_by_queue(for_backlog(original, "q"), queue_ttl_ms=HOUR_MS)).payload == original


def test_a_time_to_live_that_wrapped_around_is_read_from_the_pair_of_times():
    created, ttl = 1_780_000_000_000, 100 * 86_400_000
    properties = {
        PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(created + ttl),
        PropertyField.CREATION_TIME: Timestamp(created),
    }
    wrapped = sections.build(header={HeaderField.TTL: Uint(ttl % 2**32)}, properties=properties, data=b"")
    alias = part(for_backlog(wrapped, "q"), Section.APPLICATION_PROPERTIES)["x-ms-timetolive"]
    assert alias.value == ttl * 10_000


# Schedule


def scheduled_alias(value):
    return sections.build(application_properties={"x-ms-path": "q", "x-ms-scheduledenqueuetimeutc": value}, data=b"")


@pytest.mark.parametrize(
    "written",
    [
        Timestamp(1_800_000_000_500),
        "2027-01-15T08:00:00.5Z",
        "2027-01-15T08:00:00.5",
        Symbol("2027-01-15T10:00:00.5+02:00"),
    ],
)
def test_a_scheduled_time_is_read_liberally(written):
    restored = home(scheduled_alias(written))
    assert restored.scheduled_at == 1_800_000_000.5
    annotations = part(restored.payload, Section.MESSAGE_ANNOTATIONS)
    assert same(dict(annotations), {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_800_000_000_500)})


@pytest.mark.parametrize("written", [Long(5), "soon", True])
def test_a_scheduled_time_of_another_type_is_a_dead_letter(written):
    with pytest.raises(MalformedMessageError, match="x-ms-scheduledenqueuetimeutc"):
        home(scheduled_alias(written))


# The destination


@pytest.mark.parametrize("value", [None, Int(5), b"orders", "", "/"])
def test_no_usable_path_is_not_a_backlog_message(value):
    payload = sections.build(application_properties={"x-ms-path": value}, data=b"")
    with pytest.raises(NotABacklogMessageError, match="agent that does not use send availability") as caught:
        home(payload)
    assert caught.value.reason == "NotABacklogMessage"


def test_no_application_properties_is_not_a_backlog_message():
    with pytest.raises(NotABacklogMessageError):
        home(sections.build(data=b""))


def test_strings_may_be_symbols():
    payload = sections.build(
        application_properties={Symbol("x-ms-path"): Symbol("a/b"), "x-ms-sessionid": Symbol("s")}, data=b""
    )
    restored = home(payload)
    assert (restored.destination, restored.session_id) == ("a/b", "s")
    assert same(prop(restored.payload, PropertyField.GROUP_ID), "s")


def test_a_session_of_another_type_is_a_dead_letter():
    payload = sections.build(application_properties={"x-ms-path": "q", "x-ms-sessionid": Int(1)}, data=b"")
    with pytest.raises(MalformedMessageError, match="x-ms-sessionid"):
        home(payload)


@pytest.mark.parametrize("garbage", [b"\x00", b"garbage", b"\x00Su\xa0\x05abc", b"\x00St\xc1\x05\x02\xa1\x01a"])
def test_bytes_that_are_no_message_are_malformed(garbage):
    with pytest.raises(MalformedMessageError):
        home(garbage)
    with pytest.raises(MalformedMessageError):
        for_backlog(garbage, "q")


@pytest.mark.parametrize(
    ("section", "value"),
    [(Section.PROPERTIES, b"\xc0\x03\x01\xa1\x05"), (Section.APPLICATION_PROPERTIES, b"\xc1\x03\x01\xa1\x00")],
)
def test_a_section_that_cannot_be_parsed_is_named(section, value):
    message = EncodedMessage(sections.section_bytes(section, value) + sections.build(data=b""))
    with pytest.raises(MalformedMessageError, match=f"^The {section.name.lower().replace('_', ' ')} of the message "):
        message.read(section)


# What a broker adds

BROKER = {
    Symbol("x-opt-enqueued-time"): Timestamp(1),
    Symbol("x-opt-sequence-number"): Long(2**50),
    Symbol("x-opt-enqueue-sequence-number"): Long(0),
    Symbol("x-opt-locked-until"): Timestamp(2),
    Symbol("x-opt-partition-id"): Int(3),
    Symbol("x-opt-message-state"): Int(0),
    Symbol("x-opt-deadletter-source"): "contoso/x-servicebus-transfer/0",
}


def delivered(backlog, annotations=None, app_annotations=None):
    """As a broker hands it out: annotations, a lock token, a header with a delivery count."""
    fields = part(backlog, Section.HEADER) or []
    header = dict(enumerate(fields)) | {HeaderField.DELIVERY_COUNT: Uint(4)}
    return sections.edit(
        backlog,
        {
            Section.HEADER: sections.build(header=header),
            Section.DELIVERY_ANNOTATIONS: sections.build(delivery_annotations={Symbol("x-opt-lock-token"): b"t" * 16}),
            Section.MESSAGE_ANNOTATIONS: sections.build(
                message_annotations=BROKER | dict(part(backlog, Section.MESSAGE_ANNOTATIONS) or {})
            ),
        },
    )


def test_broker_fields_stay_behind():
    for original in (compose(body=b"x", message_id="1"), compose(body=b"x", message_id="1", partition_key="p")):
        backlog = for_backlog(original, "q")
        assert home(delivered(backlog)).payload == original
        assert strip_broker_annotations(delivered(backlog)) == backlog


def test_a_dead_letters_reason_is_taken_off_only_when_it_comes_from_there():
    original = compose(body=b"x", message_id="1", application_properties={"DeadLetterReason": "mine", "a": "b"})
    backlog = for_backlog(original, "q")
    assert home(backlog).payload == original
    rescued = part(home(backlog, from_dead_letter=True).payload, Section.APPLICATION_PROPERTIES)
    assert rescued == {"a": "b"}


# Pings and summaries


def test_the_documented_ping():
    ping = ping_message(message_id="p", session_id="s")
    assert is_ping(ping)
    assert part(ping, Section.HEADER)[HeaderField.TTL] == 1000
    assert sections.read(ping, sections.scan(ping), Section.DATA) == b""
    assert not is_ping(compose(body=b"", message_id="1", content_type="text/plain"))


def test_a_summary_shows_what_the_aliases_stand_for():
    summary = describe(for_backlog(full_message(), "invoices/incoming"))
    assert summary.destination == "invoices/incoming"
    assert summary.session_id == "cart-7"
    assert summary.ttl_seconds == 3600
    assert summary.scheduled_at == 1_800_000_000
    assert summary.message_id == "m-1"
    assert summary.correlation_id == str(2**63)
    assert summary.body_kind == "data"


def test_a_summary_of_garbage_says_so():
    summary = describe(b"garbage")
    assert summary.unreadable is not None
    assert summary.size_bytes == 7
