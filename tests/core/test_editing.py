"""Messages as documents: what is not edited keeps its bytes, what is edited keeps its type, the rest is refused."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sbpair.amqp.sections import HeaderField, PropertyField, Section, build
from sbpair.amqp.types import Float, Int, Long, Symbol, Timestamp, Ubyte, Uint
from sbpair.core.editing import Editable, Editables, Repair, as_document, document_text, edited, read_document
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import UsageError
from sbpair.core.message import Received

TYPED = {
    "text": "a",
    "small": Ubyte(1),
    "int": Int(2),
    "long": Long(3),
    "double": 0.5,
    "float": Float(0.1),
    "yes": True,
    "none": None,
    "id": uuid.UUID(int=5),
    "bytes": b"\xff",
    "at": Timestamp(1),
}
MESSAGE = build(
    header={HeaderField.TTL: Uint(5000)},
    message_annotations={Symbol("x-opt-partition-key"): "s", Symbol("mine"): Long(1)},
    properties={
        PropertyField.MESSAGE_ID: "m",
        PropertyField.GROUP_ID: "s",
        PropertyField.CONTENT_TYPE: Symbol("application/json"),
        PropertyField.CREATION_TIME: Timestamp(1000),
        PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(6000),
        PropertyField.CORRELATION_ID: uuid.UUID(int=9),
    },
    application_properties=TYPED,
    data='{"länd": "DEE"}'.encode(),
    footer={Symbol("f"): b"\x00"},
)
BODIES = [
    MESSAGE,
    build(data=b"\x00\xff"),
    build(data=[b"a", b"b"]),
    build(value={"a": Int(1)}),
    build(sequences=[[Int(1)]]),
    build(properties={PropertyField.MESSAGE_ID: uuid.UUID(int=1)}, data=b""),
]


def with_(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**document, **fields}


@pytest.mark.parametrize("payload", BODIES)
def test_a_document_that_was_only_read_and_written_gives_the_same_bytes(payload: bytes) -> None:
    assert edited(payload, read_document(document_text(as_document(payload)))) == payload


def test_an_edit_changes_its_section_and_no_other_byte() -> None:
    before = as_document(MESSAGE)
    assert before["body"] == '{"länd": "DEE"}'
    after = edited(MESSAGE, with_(before, body='{"länd": "DE"}'))
    assert after == MESSAGE.replace(
        "\xa0\x10".encode("latin-1") + '{"länd": "DEE"}'.encode(), b"\xa0\x0f" + '{"länd": "DE"}'.encode()
    )


def test_an_edited_property_keeps_its_type_and_the_others_their_bytes() -> None:
    before = as_document(MESSAGE)
    properties = {**before["application_properties"], "small": 7, "long": 8, "float": 0.25, "new": 2**40}
    del properties["id"]
    message = EncodedMessage(edited(MESSAGE, with_(before, application_properties=properties)))
    found = dict(message.entries(Section.APPLICATION_PROPERTIES))
    wanted = {**TYPED, "small": Ubyte(7), "long": Long(8), "float": Float(0.25), "new": Long(2**40)}
    del wanted["id"]
    assert {name: (type(value), value) for name, value in found.items()} == {
        name: (type(value), value) for name, value in wanted.items()
    }


def test_a_session_takes_its_partition_key_along_and_a_time_to_live_its_expiry() -> None:
    before = as_document(MESSAGE)
    message = EncodedMessage(edited(MESSAGE, with_(before, session_id="t", time_to_live_ms=9000)))
    assert message.entry(Section.MESSAGE_ANNOTATIONS, "x-opt-partition-key") == "t"
    assert message.field(Section.HEADER, HeaderField.TTL) == 9000
    assert message.field(Section.PROPERTIES, PropertyField.ABSOLUTE_EXPIRY_TIME) == 10_000
    none = EncodedMessage(edited(MESSAGE, with_(before, time_to_live_ms=None)))
    assert none.field(Section.PROPERTIES, PropertyField.ABSOLUTE_EXPIRY_TIME) is None


def test_a_schedule_is_set_and_taken_away() -> None:
    payload = build(data=b"")
    later = edited(payload, with_(as_document(payload), scheduled_at="2026-11-22T08:00:00+01:00"))
    assert as_document(later)["scheduled_at"] == "2026-11-22T07:00:00.000+00:00"
    assert edited(later, with_(as_document(later), scheduled_at=None)) == payload


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.pop("subject"), "lacks fields: subject"),
        (lambda one: one.update(colour="red"), "cannot be edited: colour"),
        (lambda one: one.update(message_id=5), "neither a text nor null"),
        (lambda one: one.update(session_id="s" * 129), "129 characters"),
        (lambda one: one.update(time_to_live_ms=-1), "neither null nor a number"),
        (lambda one: one.update(time_to_live_ms=True), "neither null nor a number"),
        (lambda one: one.update(scheduled_at="tomorrow"), "no time such as"),
        (lambda one: one.update(scheduled_at="2026-11-22T08:00:00"), "no time zone"),
        (lambda one: one.update(application_properties=[]), "no JSON object"),
        (lambda one: one["application_properties"].update(id="x"), "can only be removed|JSON cannot say"),
        (lambda one: one["application_properties"].update(text=[1]), "a list or an object"),
        (lambda one: one["application_properties"].update(small=256), "does not fit"),
        (lambda one: one["application_properties"].update(new=2**70), "does not fit"),
        (lambda one: one.update(body=None), "no text"),
        (lambda one: one.update(body="\ud800"), "half of a character"),
    ],
)
def test_what_a_message_cannot_have_is_refused_and_named(change: Callable[[dict[str, Any]], object], said: str) -> None:
    document = json.loads(document_text(as_document(MESSAGE)))
    change(document)
    with pytest.raises(UsageError, match=said):
        edited(MESSAGE, document)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 200_000])
def test_a_text_that_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="The edited message is"):
        read_document(text)


@pytest.mark.parametrize(
    ("put", "without", "field", "value"),
    [
        ({"sys.Label": "new"}, (), "subject", "new"),
        ({"SYS.ReplyToSessionId": "r"}, (), "reply_to_session_id", "r"),
        ({"sys.contenttype": "text/plain"}, (), "content_type", "text/plain"),
        ({"sys.TimeToLive": "90s"}, (), "time_to_live_ms", 90_000),
        ({}, ("sys.SessionId",), "session_id", None),
    ],
)
def test_a_repair_changes_properties_of_the_message(
    put: dict[str, str], without: tuple[str, ...], field: str, value: object
) -> None:
    edit = Repair(put, without).form_of(Received(MESSAGE, 7, "orders"))
    assert edit is not None
    assert as_document(edit.payload).get(field) == value


def test_a_repair_keeps_the_kind_of_an_application_property_and_makes_new_ones_texts() -> None:
    edit = Repair({"int": "12", "user.small": "3", "fresh": "12"}, ("text", "user.none")).form_of(
        Received(MESSAGE, 7, "orders")
    )
    assert edit is not None
    found = as_document(edit.payload)["application_properties"]
    assert (found["int"], found["small"], found["fresh"]) == (12, 3, "12")
    assert not {"text", "none"} & found.keys()
    assert Repair({"int": "2"}).form_of(Received(MESSAGE, 7, "orders")) is None, "nothing changes"


@pytest.mark.parametrize(
    ("put", "said"),
    [
        ({"sys.EnqueuedTimeUtc": "x"}, "sys.EnqueuedTimeUtc cannot be changed"),
        ({"sys.Lable": "x"}, "Did you mean sys.Label?"),
        ({"a": "1", "user.a": "2"}, "user.a is given twice"),
        ({"sys.TimeToLive": "soon"}, "sys.TimeToLive"),
        ({"sys.MessageId": "x" * 129}, "sys.MessageId"),
    ],
)
def test_an_impossible_repair_is_refused_before_any_message(put: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Repair(put)
    assert said in refused.value.message


def test_of_several_messages_those_that_say_something_new_are_edited() -> None:
    both = Editables(tuple(Editable.of(Received(MESSAGE, number, "orders")) for number in (4, 9)), several=True)
    objects = json.loads(both.text)
    assert both.changed(json.dumps(objects)) == ()
    objects[1]["subject"] = "new"
    (found,) = both.changed(json.dumps(objects))
    assert (found[0].received.sequence_number, as_document(found[1].payload)["subject"]) == (9, "new")
    assert both.changed(json.dumps(objects[:1])) == (), "what is taken out stays as it is"
    for other in ({}, [objects[0], 9], [{**objects[0], "sequence_number": 5}], [objects[0], objects[0]]):
        with pytest.raises(UsageError):
            both.changed(json.dumps(other))
    objects[1]["body"] = {"no": "such form"}
    with pytest.raises(UsageError, match="Message 9: "):
        both.changed(json.dumps(objects))
