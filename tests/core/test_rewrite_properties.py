"""The round trip over generated messages of every section and type: only the documented fields may differ."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sbpair.amqp import sections
from sbpair.amqp.decoding import decode
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
    same,
)
from sbpair.azure.frames import read_received
from sbpair.azure.receiver import to_received
from sbpair.core.errors import MalformedMessageError, MessageError, ReservedPropertyError
from sbpair.core.rewrite import LAST_MS, as_usual, for_backlog, for_primary, opened, strip_broker_annotations
from sbpair.core.summary import describe, describe_message
from sbpair.core.transfer.state import Forward
from sbpair.core.transfer.verdict import Classifier


def whole(kind, bits, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high).map(kind)


texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
symbols = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(Symbol)
times = st.integers(0, LAST_MS).map(Timestamp)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    symbols,
    st.binary(max_size=300),
    st.floats(),
    st.uuids(),
    times,
    st.integers(0, 2**32 - 1).map(Float.from_bits),
    st.integers(0, 0xD7FF).map(lambda point: Char(chr(point))),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    whole(Ubyte, 8, False),
    whole(Ushort, 16, False),
    whole(Uint, 32, False),
    whole(Ulong, 64, False),
    whole(Byte, 8, True),
    whole(Short, 16, True),
    whole(Int, 32, True),
    whole(Long, 64, True),
    whole(Long, 64, True).map(lambda ticks: Described(Symbol("com.microsoft:timespan"), ticks)),
    st.lists(whole(Int, 32, True), max_size=3).map(lambda items: Array(0x71, tuple(items))),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
# Names that the broker gives and the rewrite takes away, and the four that it refuses, have tests of their own.
annotation_names = symbols.filter(lambda key: not key.startswith("x-opt-"))
property_names = texts.filter(lambda key: not key.startswith(("x-ms-", "DeadLetter")))
ids = st.one_of(texts, st.uuids(), whole(Ulong, 64, False), st.binary(max_size=16))


@st.composite
def messages(draw):
    """Any message a client can send, with the fields that the rewrite looks at more often than by chance."""
    session = draw(st.none() | texts)
    annotations = draw(st.dictionaries(annotation_names, values, max_size=3))
    key = draw(st.sampled_from([None, session, "other"]))
    if key is not None:
        annotations[Symbol("x-opt-partition-key")] = key
    if draw(st.booleans()):
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = draw(times)
    header = {
        HeaderField.DURABLE: draw(st.none() | st.booleans()),
        HeaderField.PRIORITY: draw(st.none() | whole(Ubyte, 8, False)),
        HeaderField.TTL: draw(st.none() | whole(Uint, 32, False)),
        HeaderField.FIRST_ACQUIRER: draw(st.none() | st.booleans()),
    }
    properties = {
        PropertyField.MESSAGE_ID: draw(st.none() | ids),
        PropertyField.USER_ID: draw(st.none() | st.binary(max_size=9)),
        PropertyField.SUBJECT: draw(st.none() | texts),
        PropertyField.CORRELATION_ID: draw(st.none() | ids),
        PropertyField.CONTENT_TYPE: draw(st.none() | symbols),
        PropertyField.CREATION_TIME: draw(st.none() | st.integers(0, 2**42).map(Timestamp)),
        PropertyField.GROUP_ID: session,
        PropertyField.GROUP_SEQUENCE: draw(st.none() | whole(Uint, 32, False)),
        PropertyField.REPLY_TO_GROUP_ID: draw(st.none() | texts),
    }
    created, ttl = properties[PropertyField.CREATION_TIME], header[HeaderField.TTL]
    if created is not None and draw(st.booleans()):
        expiry = created + (ttl if ttl is not None else draw(st.integers(0, 2**40)))
        properties[PropertyField.ABSOLUTE_EXPIRY_TIME] = Timestamp(min(expiry, LAST_MS))
    body = draw(
        st.one_of(
            st.lists(st.binary(max_size=300), max_size=3).map(lambda data: {"data": data}),
            values.map(lambda value: {"value": value}),
            st.lists(st.lists(values, max_size=3), min_size=1, max_size=2).map(lambda parts: {"sequences": parts}),
        )
    )
    return sections.build(
        header=header if draw(st.booleans()) or ttl is not None else None,
        delivery_annotations=draw(st.none() | st.dictionaries(annotation_names, values, max_size=2)),
        message_annotations=annotations or None,
        properties=properties if draw(st.booleans()) or session is not None else None,
        application_properties=draw(st.none() | st.dictionaries(property_names, values, min_size=1, max_size=4)),
        footer=draw(st.none() | st.dictionaries(symbols, values, max_size=2)),
        **body,
    )


def raw(payload, section):
    return b"".join(payload[span.start : span.end] for span in sections.scan(payload) if span.section == section)


def content(payload, section):
    """The section's bytes; of application properties the entries alone, as a map that once had to grow into the 32 bit
    form for the aliases keeps that form."""
    whole = raw(payload, section)
    if section != Section.APPLICATION_PROPERTIES or not whole:
        return whole
    return whole[12:] if whole[3] == 0xD1 else whole[6:]


def read(payload, section):
    return sections.read(payload, sections.scan(payload), section)


def home(payload):
    return for_primary(payload, now=1_790_000_000.0, enqueued_at=None)


def with_tied_key(payload):
    """The original as it is to come back: a session brings its partition key along."""
    annotations = dict(read(payload, Section.MESSAGE_ANNOTATIONS) or {})
    session = sections.field(read(payload, Section.PROPERTIES), PropertyField.GROUP_ID)
    if session:
        annotations.setdefault(Symbol("x-opt-partition-key"), session)
    return annotations


@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_the_round_trip_leaves_every_other_byte_identical(original):
    restored = home(for_backlog(original, "some/queue"))
    assert restored.destination == "some/queue"
    for section in Section:
        if section != Section.MESSAGE_ANNOTATIONS:
            assert content(restored.payload, section) == content(original, section), section.name
    # The schedule and the tied key come back at the end of the map, all else stands in its place.
    come_back, went = read(restored.payload, Section.MESSAGE_ANNOTATIONS) or {}, with_tied_key(original)
    assert sorted(come_back) == sorted(went)
    assert all(encode(come_back[key]) == encode(went[key]) for key in went)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_the_backlog_form_changes_only_the_documented_fields(original):
    backlog = for_backlog(original, "q")
    for section in (Section.DELIVERY_ANNOTATIONS, Section.DATA, Section.SEQUENCE, Section.VALUE, Section.FOOTER):
        assert raw(backlog, section) == raw(original, section)
    before = read(original, Section.APPLICATION_PROPERTIES) or {}
    after = read(backlog, Section.APPLICATION_PROPERTIES)
    assert all(same(after[key], before[key]) for key in before)
    assert {str(key) for key in after if key not in before} <= {
        "x-ms-path",
        "x-ms-sessionid",
        "x-ms-timetolive",
        "x-ms-scheduledenqueuetimeutc",
    }
    assert sections.field(read(backlog, Section.HEADER), HeaderField.TTL) is None
    assert sections.field(read(backlog, Section.PROPERTIES), PropertyField.GROUP_ID) is None


@settings(max_examples=35, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_stripping_twice_is_stripping_once(original):
    once = strip_broker_annotations(original)
    assert strip_broker_annotations(once) == once == original


@settings(max_examples=50, deadline=None)
@given(st.data(), messages())
def test_damaged_bytes_raise_one_kind_of_error(data, original):
    assume(original)
    position = data.draw(st.integers(0, len(original) - 1))
    damaged = bytearray(original)
    damaged[position] ^= data.draw(st.integers(1, 255))
    try:
        home(for_backlog(bytes(damaged), "q"))
    except (MalformedMessageError, ReservedPropertyError):
        return


def as_delivered(payload, number=7):
    """With what a broker puts on a message that it hands out under a lock."""
    spans = sections.scan(payload)

    def section_with(section, more):
        span = next((one for one in spans if one.section == section), None)
        there = b"\x40" if span is None else payload[span.value_start : span.end]
        return sections.section_bytes(section, sections.edit_map(there, (), more))

    stamps = {
        Symbol("x-opt-sequence-number"): Long(number),
        Symbol("x-opt-enqueued-time"): Timestamp(1_790_000_000_000),
        Symbol("x-opt-locked-until"): Timestamp(1_790_000_060_123),
    }
    token = encode({Symbol("x-opt-lock-token"): uuid.UUID(int=2**127 + 5)})
    return sections.edit(
        payload,
        {
            Section.DELIVERY_ANNOTATIONS: sections.section_bytes(Section.DELIVERY_ANNOTATIONS, token),
            Section.MESSAGE_ANNOTATIONS: section_with(Section.MESSAGE_ANNOTATIONS, stamps),
        },
    )


def outcome(payload, received=None):
    """Of a message that was received by what is known of it, as the drain does it."""
    decoded, head = (None, None) if received is None else (received.decoded, received.head)
    try:
        usual = None if head is None else as_usual(payload, head)
        return usual or for_primary(payload, now=1_790_000_000.0, enqueued_at=None, decoded=decoded)
    except MessageError as error:
        return type(error), str(error)


@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), messages())
def test_what_the_receiver_has_decoded_changes_nothing(data, original):
    if data.draw(st.booleans()):  # most messages have no annotations of their own: those take a shorter way
        original = sections.edit(original, {Section.HEADER: None, Section.MESSAGE_ANNOTATIONS: None})
    number = data.draw(st.sampled_from([0, 7, 127, 128, 2**62]))
    delivered = bytearray(as_delivered(for_backlog(original, "some/queue"), number))
    if data.draw(st.booleans()):
        # Mostly in the sections that are decoded twice otherwise, and in the lock token, which is not decoded at all.
        position = data.draw(st.integers(0, min(len(delivered) - 1, 200)))
        delivered[position] ^= data.draw(st.integers(1, 255))
    payload = bytes(delivered)
    received = to_received(payload, "q", receipt=object())
    the_long_way = read_received(payload, "q")
    assert replace(received, receipt=None, locked_until=None, decoded=None) == the_long_way
    assert outcome(payload, received) == outcome(payload)
    other = bytes([*payload])  # the same bytes, and yet others: nothing is known of these
    if received.decoded is not None:
        assert received.decoded.take(other) == {}


def test_a_lock_token_among_other_annotations_is_taken_out_alone():
    backlog = for_backlog(sections.build(message_annotations=None, data=b"x"), "some/queue")
    token = {Symbol("x-opt-lock-token"): uuid.UUID(int=9)}
    alone = sections.section_bytes(Section.DELIVERY_ANNOTATIONS, encode(token))
    more = sections.section_bytes(Section.DELIVERY_ANNOTATIONS, encode({**token, Symbol("other"): "kept"}))
    assert raw(home(sections.edit(backlog, {Section.DELIVERY_ANNOTATIONS: alone})).payload, 0x71) == b""
    kept = home(sections.edit(backlog, {Section.DELIVERY_ANNOTATIONS: more})).payload
    assert read(kept, Section.DELIVERY_ANNOTATIONS) == {"other": "kept"}


@pytest.mark.parametrize("wide", [False, True])
def test_long_forms_of_untouched_sections_stay_long(wide):
    """A section with a symbolic descriptor and 32 bit lengths, as other encoders write it, is not rewritten."""
    body = b"\x00\xa3\x10amqp:data:binary" + (b"\xb0\x00\x00\x00\x01x" if wide else b"\xa0\x01x")
    fields = b"\x00\x00\x00\x01\x98" + uuid.UUID(int=7).bytes
    properties = b"\x00\x80" + (0x73).to_bytes(8, "big") + b"\xd0" + len(fields).to_bytes(4, "big") + fields
    original = properties + body
    assert home(for_backlog(original, "q")).payload == original


def test_the_shorter_way_is_taken_by_a_message_as_brokers_deliver_most():
    """Otherwise the comparison of both ways would compare one of them with itself."""
    delivered = as_delivered(for_backlog(sections.build(properties={0: "m-1"}, data=b"body"), "some/queue"))
    assert to_received(delivered, "q", receipt=object()).head is not None
    annotated = as_delivered(
        for_backlog(sections.build(message_annotations={Symbol("mine"): Int(1)}, data=b"body"), "q")
    )
    assert to_received(annotated, "q", receipt=object()).head is None


@pytest.mark.parametrize(("keys", "left"), [((b"a",), {"b": 2}), ((b"a", b"b"), None), ((b"x",), {"a": 1, "b": 2})])
def test_entries_are_taken_out_of_a_map_as_edit_map_would_remove_them(keys, left):
    encoded = encode({"a": Int(1), Symbol("b"): Int(2)})
    taken, rest = sections.take_entries(encoded, frozenset(keys))
    assert rest == (b"" if left is None else sections.edit_map(encoded, {key.decode() for key in keys}, {}))
    assert {key: decode(value)[0] for key, value in taken.items()} == {
        key: {b"a": 1, b"b": 2}[key] for key in keys if key in (b"a", b"b")
    }


@pytest.mark.parametrize("items", [4, 6])
def test_annotations_that_come_twice_are_read_the_long_way(items):
    """With a true number of items in the map, which is a map of pairs, and with a false one, which is no map."""
    number = b"\xa3\x15x-opt-sequence-number"
    entries = number + b"\x55\x05" + number + b"\x55\x06" + b"\xa3\x13x-opt-enqueued-time\x83" + bytes(8)
    annotations = b"\x00\x53\x72\xc1" + bytes((len(entries) + 1, items)) + entries
    payload = annotations + sections.build(properties={0: "m-1"}, data=b"body")
    received = to_received(payload, "q", receipt=object())
    assert replace(received, receipt=None, decoded=None) == read_received(payload, "q")
    assert received.head is None


@pytest.mark.parametrize("late", [b"\x00\x53\x73\xc0\x03\x01\xa1\x00", b"\x00\x53\x70\xc0\x02\x01\x41", b"\x01"])
def test_what_stands_behind_the_properties_and_must_not_is_read_the_long_way(late):
    """Properties and a header that come again, and what is no section."""
    delivered = as_delivered(for_backlog(sections.build(properties={0: "m-1"}, data=b"body"), "q"))
    properties = next(span for span in sections.scan(delivered) if span.section == Section.PROPERTIES)
    payload = delivered[: properties.end] + late + delivered[properties.end :]
    received = to_received(payload, "q", receipt=object())
    assert replace(received, receipt=None, locked_until=None, decoded=None) == read_received(payload, "q")
    assert received.head is None


DELIVERY = {
    "none": None,
    "empty": {},
    "token": {Symbol("x-opt-lock-token"): uuid.UUID(int=9)},
    "other": {Symbol("other"): "kept"},
}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), messages(), st.sampled_from(sorted(DELIVERY)))
def test_a_browsed_message_says_the_same_whichever_way_it_is_read(data, original, delivery):
    """As azure-servicebus' broker and the embedded one show it, damaged or not, and with sections where they rarely
    are."""
    if data.draw(st.booleans()):
        original = sections.edit(original, {Section.HEADER: None, Section.MESSAGE_ANNOTATIONS: None})
    shown = as_delivered(for_backlog(original, "some/queue"), data.draw(st.sampled_from([0, 128])))
    map_ = DELIVERY[delivery]
    raw_map = None if map_ is None else sections.section_bytes(Section.DELIVERY_ANNOTATIONS, encode(map_))
    shown = bytearray(sections.edit(shown, {Section.DELIVERY_ANNOTATIONS: raw_map}))
    if data.draw(st.booleans()):
        shown[data.draw(st.integers(0, len(shown) - 1))] ^= data.draw(st.integers(1, 255))
    late = st.sampled_from([b"", b"\x00\x53\x72\xc1\x01\x00", b"\x00\x53\x70\x45", b"\x00\x53\x71\xc1\x01\x00"])
    payload = bytes(shown) + data.draw(late)
    browsed = to_received(payload, "q")
    assert browsed == read_received(payload, "q")
    if browsed.head is not None:
        try:
            said = describe_message(opened(payload, browsed.head))
        except MessageError:
            said = None
        the_long_way = describe(payload)
        assert repr(said) == repr(the_long_way) or (said is None and the_long_way.unreadable)


def test_a_browsed_message_is_read_the_shorter_way_too():
    for map_ in (DELIVERY["none"], DELIVERY["empty"], DELIVERY["token"]):
        raw_map = None if map_ is None else sections.section_bytes(Section.DELIVERY_ANNOTATIONS, encode(map_))
        shown = as_delivered(for_backlog(sections.build(properties={0: "m-1"}, data=b"body"), "some/queue"))
        assert to_received(sections.edit(shown, {Section.DELIVERY_ANNOTATIONS: raw_map}), "q").head is not None
    twice = as_delivered(for_backlog(sections.build(data=b"body"), "q")) + b"\x00\x53\x72\xc1\x01\x00"
    head = to_received(twice, "q").head
    assert head is not None
    with pytest.raises(MessageError):
        opened(twice, head)


@pytest.mark.parametrize("place", [PropertyField.MESSAGE_ID, PropertyField.GROUP_ID])
@pytest.mark.parametrize("value", [b"id", Symbol("id"), Timestamp(7), Ulong(7), uuid.UUID(int=7), "id"])
def test_an_id_of_a_rare_type_is_read_the_long_way(place, value):
    sent = sections.build(properties={place: value}, application_properties={"x-ms-path": "q"}, data=b"body")
    payload = as_delivered(sent)
    received = to_received(payload, "q", receipt=object())
    assert replace(received, receipt=None, locked_until=None, decoded=None) == read_received(payload, "q")


@pytest.mark.parametrize("size", [1, 255, 256, 70_000])
def test_the_usual_way_is_for_one_section_of_data_of_any_size(size):
    for data, usual in ((bytes(size), True), ([bytes(size), b"x"], False)):
        delivered = as_delivered(for_backlog(sections.build(properties={0: "m-1"}, data=data), "q"))
        restored = as_usual(delivered, to_received(delivered, "q", receipt=object()).head)
        assert restored == (home(delivered) if usual else None)


@pytest.mark.parametrize("annotated", [False, True])
def test_a_reason_of_a_dead_letter_that_is_no_text_goes_like_any_other(annotated):
    """Nobody has to read it: it is taken off."""
    annotations = {Symbol("mine"): Int(1)} if annotated else None
    original = sections.build(message_annotations=annotations, properties={0: "m-1"}, data=b"body")
    backlog = sections.build(
        message_annotations=annotations,
        properties={0: "m-1"},
        application_properties={"x-ms-path": "q", "DeadLetterReason": "text"},
        data=b"body",
    )
    delivered = as_delivered(backlog).replace(b"\xa1\x04text", b"\xa1\x04te\xfft")
    received = to_received(delivered, "q/$deadletterqueue", receipt=object())
    verdict = Classifier(now=lambda: 1_790_000_000.0)(received)
    assert isinstance(verdict, Forward)
    assert verdict.payload == original


@pytest.mark.parametrize("sessions", [False, True])
def test_a_property_that_nobody_can_decode_passes_unchanged(sessions):
    """With and without a session."""
    text = sections.build(properties={10: "s"} if sessions else {}, application_properties={"a": "text"}, data=b"body")
    original = text.replace(b"\xa1\x04text", b"\xa1\x04te\xfft")
    delivered = as_delivered(for_backlog(text, "q")).replace(b"\xa1\x04text", b"\xa1\x04te\xfft")
    head = to_received(delivered, "q", receipt=object()).head
    assert head is not None
    restored = as_usual(delivered, head)
    assert restored == home(delivered)
    assert raw(restored.payload, Section.APPLICATION_PROPERTIES) == raw(original, Section.APPLICATION_PROPERTIES)
