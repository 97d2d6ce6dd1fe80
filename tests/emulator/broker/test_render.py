"""What a receiver gets: the sender's bytes, and exactly the broker's own additions."""

import uuid

import pytest

from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import Section, build
from sbpair.amqp.types import Byte, Char, Decimal128, Described, Float, Long, Symbol, Timestamp, Ubyte, Uint
from sbpair.emulator.broker.messages import parse
from sbpair.emulator.laws import Laws


def odd_message() -> bytes:
    """Long-form descriptors, footer, foreign annotations, odd types: nothing a decoder would write back the same."""
    long_descriptor = b"\x00\x80" + (0x74).to_bytes(8)
    application = long_descriptor + encode(
        {
            "f": Float(1.5),
            "c": Char("ß"),
            "d": Decimal128(bytes(range(16))),
            "b": Byte(-3),
            "t": Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
        }
    )
    before = build(
        header=[True, Ubyte(7)],
        delivery_annotations={Symbol("x-own"): "mine"},
        message_annotations={Symbol("x-opt-partition-key"): "k", Symbol("x-opt-sequence-number"): Long(99)},
        properties=["id", b"user"],
    )
    after = build(value=Described(Symbol("odd"), [None, {}]), footer={Symbol("crc"): Uint(1)})
    return before + application + after


def stamped(payload: bytes):
    message = parse(payload, Laws())
    message.sequence_number, message.enqueued_at = 5, 1_700_000_000.25
    return message


def test_peek_lock_adds_header_count_token_and_three_annotations(sections_of):
    token = uuid.uuid4()
    got = sections_of(stamped(build(data=b"x")).render(lock_token=token, locked_until=1_700_000_060.0))
    assert got[Section.HEADER] == [None, None, None, None, Uint(0)]
    assert got[Section.DELIVERY_ANNOTATIONS] == {Symbol("x-opt-lock-token"): token}
    assert got[Section.MESSAGE_ANNOTATIONS] == {
        Symbol("x-opt-sequence-number"): Long(5),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_250),
        Symbol("x-opt-locked-until"): Timestamp(1_700_000_060_000),
    }
    assert got[Section.DATA] == b"x"


def test_receive_and_delete_has_empty_delivery_annotations(sections_of):
    got = sections_of(stamped(build(data=b"x")).render())
    assert got[Section.DELIVERY_ANNOTATIONS] == {}
    assert Symbol("x-opt-locked-until") not in got[Section.MESSAGE_ANNOTATIONS]


def test_senders_own_entries_stay_and_broker_names_are_overwritten(sections_of):
    got = sections_of(stamped(odd_message()).render())
    assert got[Section.HEADER][:2] == [True, Ubyte(7)]
    assert got[Section.DELIVERY_ANNOTATIONS] == {Symbol("x-own"): "mine"}
    assert got[Section.MESSAGE_ANNOTATIONS][Symbol("x-opt-sequence-number")] == Long(5)
    assert got[Section.MESSAGE_ANNOTATIONS][Symbol("x-opt-partition-key")] == "k"


@pytest.mark.law("sections-encoded-again")
def test_everything_behind_the_annotations_is_the_same_bytes():
    payload = odd_message()
    properties_onwards = payload[payload.index(b"\x00\x53\x73") :]
    assert stamped(payload).render(lock_token=uuid.uuid4(), locked_until=1.0).endswith(properties_onwards)


async def test_what_was_sent_is_what_is_stored(bench):
    queue = bench.queue()
    queue.send(odd_message())
    assert bench.peek(queue)[0].payload == odd_message()


async def test_dead_lettering_adds_properties_and_keeps_the_rest(bench, sections_of):
    queue = bench.queue()
    queue.send(odd_message())
    queue.main.dead_letter(bench.receive(queue).token, "because", None)
    dead = bench.peek(queue.dead_letters)[0]
    got, original = sections_of(dead.payload), sections_of(odd_message())
    properties = got.pop(Section.APPLICATION_PROPERTIES)
    assert properties.pop("DeadLetterReason") == "because"
    assert properties == original.pop(Section.APPLICATION_PROPERTIES)
    assert got == original
    assert sections_of(dead.render())[Section.MESSAGE_ANNOTATIONS][Symbol("x-opt-deadletter-source")] == "orders"


@pytest.mark.law("sections-in-any-order", "footer-keys-are-symbols")
def test_a_footer_before_the_body_stays_there_and_its_keys_become_symbols(sections_of):
    """rhea writes it there; Java writes keys that are strings, and reads none but symbols."""
    footer, body = build(footer={"crc": "a"}), build(data=b"x")
    rendered = stamped(build(properties=["id"]) + footer + body).render()
    assert rendered.endswith(build(properties=["id"]) + build(footer={Symbol("crc"): "a"}) + body)


def test_sections_that_come_late_are_found_and_edited(sections_of):
    """Header and annotations behind the body: the message has one of each, and the broker's entries."""
    late = build(header=[True], message_annotations={Symbol("mine"): "m"})
    rendered = stamped(build(data=b"x", footer={}) + late + build(properties=["id"])).render()
    got = sections_of(rendered)
    assert got[Section.HEADER] == [True, None, None, None, Uint(0)]
    assert got[Section.MESSAGE_ANNOTATIONS][Symbol("mine")] == "m"
    assert rendered.endswith(build(data=b"x", footer={}) + build(properties=["id"]))
