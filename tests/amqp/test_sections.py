"""Messages: finding, reading, changing and building sections, on examples."""

import pytest

from sbpair.amqp.decoding import decode_all
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import (
    ABSENT,
    HeaderField,
    PropertyField,
    Section,
    body_sections,
    build,
    edit,
    edit_fields,
    edit_map,
    field,
    read,
    read_span,
    scan,
    section_bytes,
    text_properties,
    with_symbol_keys,
)
from sbpair.amqp.types import AmqpDecodeError, AmqpEncodeError, Array, Long, MapPairs, Symbol, Ubyte, Uint

FULL = build(
    header={HeaderField.TTL: Uint(5000), HeaderField.DURABLE: True},
    delivery_annotations={Symbol("d"): None},
    message_annotations={Symbol("x-opt-partition-key"): "p"},
    properties={PropertyField.MESSAGE_ID: "id", PropertyField.GROUP_ID: "s"},
    application_properties={"a": Long(1), "b": Array(0x50, (Ubyte(1),))},
    data=[b"one", b"two"],
    footer={Symbol("f"): True},
)


def test_build_and_read() -> None:
    spans = scan(FULL)
    assert [span.section for span in spans] == [0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x75, 0x78]
    header = read(FULL, spans, Section.HEADER)
    assert header == [True, None, Uint(5000)]
    assert field(header, HeaderField.TTL) == 5000
    assert field(header, HeaderField.DELIVERY_COUNT) is None
    assert field(None, HeaderField.TTL) is None
    assert read(FULL, spans, Section.PROPERTIES) == ["id", *[None] * 9, "s"]
    assert read(FULL, spans, Section.APPLICATION_PROPERTIES)["a"] == 1
    assert read(FULL, spans, Section.DATA) == b"one"
    assert read(FULL, spans, Section.VALUE) is None
    assert [read_span(FULL, span) for span in body_sections(FULL, spans)] == [b"one", b"two"]


def test_build_by_hand() -> None:
    raw = build(header=[None, Ubyte(4), None], application_properties=MapPairs((("a", None),)), data=b"x")
    assert raw == bytes.fromhex("005370 c00402 40 5004 005374 c10502 a10161 40 005375 a00178")


def test_body_kinds() -> None:
    assert build(value=None) == bytes.fromhex("005377 40")
    assert build(value=ABSENT) == b""
    assert build(sequences=[[], [None]]) == bytes.fromhex("005376 45 005376 c0020140")
    assert build(data=[]) == b""
    with pytest.raises(AmqpEncodeError, match="one kind"):
        build(value=None, data=b"")


def test_no_sections() -> None:
    assert scan(b"") == ()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("005370 45 005370 45", "two HEADER"),
        ("005377 40 005377 40", "two VALUE"),
        ("005375 a000 005377 40", "both"),
        ("005378 c10100 005377 40 005378 c10100", "two FOOTER"),
        ("005375 a000 005378 c10100 005377 40", "both"),
        ("005370 c10100", "cannot hold"),  # a map where a list belongs
        ("005374 45", "cannot hold"),
        ("005375 a100", "cannot hold"),
        ("005376 40", "cannot hold"),
        ("005379 45", "no message section"),
        ("00536f 45", "no message section"),
        ("00a30161 45", "no message section"),
        ("0040 45", "no message section"),
        ("45", "no message section"),
        ("005377 40 ff", "no message section"),
        ("005377 40 00", "cut short"),
        ("005375 a0 05 01", "cut short"),
        ("005377 3f", "unknown constructor"),
        ("00 80 00000000", "cut short"),
    ],
)
def test_what_is_no_message(raw: str, said: str) -> None:
    with pytest.raises(AmqpDecodeError, match=said):
        scan(bytes.fromhex(raw))


def test_null_in_place_of_a_list_or_map() -> None:
    raw = bytes.fromhex("005370 40 005374 40 005377 41")
    spans = scan(raw)
    assert read(raw, spans, Section.HEADER) is None
    assert edit_map(b"\x40", (), {"a": None}) == encode({"a": None})
    assert edit_fields(b"\x40", {0: True}) == encode([True])


def test_edit_replaces_inserts_and_removes_at_the_right_place() -> None:
    raw = build(properties=["id"], data=[b"1", b"2"])
    header = build(header=[True])
    application_properties = build(application_properties={"a": None})
    footer = build(footer={})
    edited = edit(
        raw,
        {
            Section.FOOTER: footer,
            Section.APPLICATION_PROPERTIES: application_properties,
            Section.HEADER: header,
            Section.PROPERTIES: None,
            Section.MESSAGE_ANNOTATIONS: None,
        },
    )
    assert edited == header + application_properties + build(data=[b"1", b"2"]) + footer


def test_edit_replaces_the_whole_body() -> None:
    raw = build(header=[True], data=[b"1", b"2"], footer={})
    value = build(value="v")
    assert edit(raw, {Section.DATA: None, Section.VALUE: value}) == build(header=[True], value="v", footer={})
    assert edit(raw, {Section.DATA: build(data=b"3")}) == build(header=[True], data=b"3", footer={})
    with pytest.raises(AmqpEncodeError, match="one kind"):
        edit(raw, {Section.VALUE: value})


def test_delivery_annotations_may_come_last_and_stay_there() -> None:
    late = build(delivery_annotations={Symbol("d"): None})
    raw = build(properties=["id"], data=b"1") + late
    spans = scan(raw)
    assert read(raw, spans, Section.DELIVERY_ANNOTATIONS) == {"d": None}
    header, footer = build(header=[True]), build(footer={})
    edited = edit(raw, {Section.HEADER: header, Section.FOOTER: footer}, spans)
    assert edited == header + build(properties=["id"], data=b"1") + footer + late
    assert scan(edited)[-1].section is Section.DELIVERY_ANNOTATIONS
    moved = edit(raw, {Section.DELIVERY_ANNOTATIONS: late}, spans)
    assert moved == late + build(properties=["id"], data=b"1")
    with pytest.raises(AmqpDecodeError, match="two DELIVERY_ANNOTATIONS"):
        scan(late + raw)


def test_sections_in_another_order_are_read_and_each_keeps_its_place() -> None:
    """As rhea writes them, with the footer before the body; and properties behind all else."""
    footer, body, properties = build(footer={"f": None}), build(data=[b"1", b"2"]), build(properties=["id"])
    raw = footer + body + properties
    spans = scan(raw)
    assert [span.section for span in spans] == [Section.FOOTER, Section.DATA, Section.DATA, Section.PROPERTIES]
    assert read(raw, spans, Section.PROPERTIES) == ["id"]
    header = build(header=[True])
    changed = edit(raw, {Section.HEADER: header, Section.DATA: build(data=b"3")}, spans)
    assert changed == header + build(data=b"3") + footer + properties


def test_keys_of_a_map_become_symbols_and_nothing_else_changes() -> None:
    long_key = b"\xb1\x00\x00\x00\x01b"
    entries = (
        b"\xa1\x01a" + encode("a") + long_key + b"\x40" + encode(Symbol("c")) + b"\x40" + encode("\u00e9") + b"\x40"
    )
    value = bytes((0xC1, len(entries) + 1, 8)) + entries
    symbols = with_symbol_keys(value)
    expected = value.replace(b"\xa1\x01a" + encode("a"), b"\xa3\x01a" + encode("a")).replace(
        long_key, b"\xb3" + long_key[1:]
    )
    assert symbols == expected
    assert with_symbol_keys(b"\x40") == b"\x40"
    with pytest.raises(AmqpDecodeError):
        with_symbol_keys(encode([]))


@pytest.mark.parametrize(
    "change",
    [b"", encode({}), section_bytes(Section.FOOTER, encode({})), build(application_properties={}) * 2],
    ids=["nothing", "a value", "another section", "twice"],
)
def test_edit_refuses_what_is_not_that_section(change: bytes) -> None:
    with pytest.raises(AmqpEncodeError, match="APPLICATION_PROPERTIES"):
        edit(FULL, {Section.APPLICATION_PROPERTIES: change})


def test_edit_map_by_hand() -> None:
    # {"a": long 1 in full width, symbol "b": uint 0 in full width}
    before = bytes.fromhex("c1 15 04 a10161 81 0000000000000001 a30162 70 00000000")
    assert edit_map(before, {"a"}, {}) == bytes.fromhex("c1 09 02 a30162 70 00000000")
    assert edit_map(before, (), {"b": None, "c": True}) == bytes.fromhex(
        "c1 15 06 a10161 81 0000000000000001 a30162 40 a10163 41"
    )
    assert edit_map(before, {"a", "b"}, {"b": None}) == bytes.fromhex("c1 05 02 a30162 40")
    assert edit_map(before, {"nobody"}, {}) == before


def test_edit_map_sets_each_of_two_equal_keys() -> None:
    before = encode(MapPairs((("a", None), (Symbol("a"), None))))
    assert decode_all(edit_map(before, (), {"a": True})) == (("a", True), ("a", True))


def test_edit_map_passes_by_keys_that_cannot_be_hashed() -> None:
    before = encode(MapPairs((([], None), ("a", None))))
    assert decode_all(edit_map(before, {"a"}, {"b": None})) == (([], None), ("b", None))


def test_lists_grow_into_the_wide_form_and_stay_there() -> None:
    wide_list = edit_fields(encode([None, True]), {0: "x" * 255})
    assert wide_list[0] == 0xD0
    assert edit_fields(wide_list, {0: None}) == bytes.fromhex("d0 00000006 00000002 40 41")


def test_edit_fields_by_hand() -> None:
    before = bytes.fromhex("c0 09 03 70 00000001 40 56 01")
    assert edit_fields(before, {1: True}) == bytes.fromhex("c0 09 03 70 00000001 41 56 01")
    assert edit_fields(before, {2: None}) == bytes.fromhex("c0 06 01 70 00000001")
    assert edit_fields(before, {4: False}) == bytes.fromhex("c0 0b 05 70 00000001 40 56 01 40 42")
    assert edit_fields(before, {0: None, 2: None}) == b"\x45"
    assert edit_fields(b"\x45", {2: None}) == b"\x45"
    assert edit_fields(before, {}) == before
    with pytest.raises(AmqpEncodeError, match="index"):
        edit_fields(before, {-1: None})


@pytest.mark.parametrize(
    "value", ["", "41", "45", "c1", "c10201", "c10101", "c1030240", "c10302404040", "c1030340404040", "d10000"]
)
def test_edit_map_refuses_what_is_no_map(value: str) -> None:
    with pytest.raises(AmqpDecodeError):
        edit_map(bytes.fromhex(value), {"a"}, {})


@pytest.mark.parametrize("value", ["", "41", "c10100", "4540", "c0", "c00201", "c0010140", "c003014040", "d00000"])
def test_edit_fields_refuses_what_is_no_list(value: str) -> None:
    with pytest.raises(AmqpDecodeError):
        edit_fields(bytes.fromhex(value), {0: True})


def test_entries_added_and_removed_again_leave_no_trace_in_the_form_of_the_map():
    narrow = encode({f"k{number:02}": "v" * 10 for number in range(14)})
    grown = edit_map(narrow, (), {"x": "y" * 100})
    assert (narrow[0], grown[0]) == (0xC1, 0xD1)
    assert edit_map(grown, {"x"}, {}) == narrow


def test_a_map_that_is_wide_without_need_stays_wide():
    wide = b"\xd1\x00\x00\x00\x0a\x00\x00\x00\x02" + b"\xa1\x01a\xa1\x01b"
    assert edit_map(edit_map(wide, (), {"x": "y"}), {"x"}, {}) == wide


def test_properties_that_are_text_go_by_their_names_and_no_others() -> None:
    given = text_properties("1", None, {"subject": "paid", "content_type": "text/plain"})
    assert given[PropertyField.SUBJECT] == "paid" and isinstance(given[PropertyField.CONTENT_TYPE], Symbol)
    assert read(raw := build(properties=given), scan(raw), Section.PROPERTIES)[: PropertyField.SUBJECT + 1] == [
        "1",
        None,
        None,
        "paid",
    ]
    with pytest.raises(
        TypeError, match="'subjekt' is no property of a message; known: message_id, session_id, correlation_id"
    ):
        text_properties("1", None, {"subjekt": "paid"})  # type: ignore[typeddict-unknown-key]
