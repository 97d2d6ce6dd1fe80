"""Messages as the retired library itself wrote them: what it sent, what it diverted, what its own syphon made of that.

`retired-library.jsonl` holds 44 messages each of WindowsAzure.ServiceBus 5.0.0 and 2.7.5, recorded from AMQP. Draining
must make the first form out of the second, value for value and type for type; our failover sender must make the second
out of the first. Only creation-time and absolute-expiry-time differ by the time of sending. One message is an exception
(g35): its time to live of 100 days wrapped around to 14 hours in the library, and comes back as 100 days here.
"""

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import MapPairs, Symbol, Timestamp, Uint, same
from sbpair.core.rewrite import NEVER_MS
from sbpair.core.system_properties import MAX_HEADER_TTL_MS, TICKS_PER_MS, TIME_TO_LIVE

DIRECTLY, DIVERTED = "sent_directly", "in_the_backlog"
WRAPPED_BY_THE_LIBRARY = "g35"
"""The end of its id."""
HUNDRED_DAYS_MS = 100 * 86_400_000
SECTIONS = {
    "header": Section.HEADER,
    "delivery_annotations": Section.DELIVERY_ANNOTATIONS,
    "annotations": Section.MESSAGE_ANNOTATIONS,
    "properties": Section.PROPERTIES,
    "application_properties": Section.APPLICATION_PROPERTIES,
    "data": Section.DATA,
    "value": Section.VALUE,
    "footer": Section.FOOTER,
}
TIMES = (PropertyField.ABSOLUTE_EXPIRY_TIME, PropertyField.CREATION_TIME)
BROKER_ANNOTATIONS = {"x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-enqueue-sequence-number"}
BROKER_ANNOTATIONS |= {"x-opt-message-state", "x-opt-locked-until", "x-opt-deadletter-source"}


@dataclass(frozen=True)
class Golden:
    """One recorded message; `forms` by name."""

    library: str
    message_id: str
    destination: str
    backlog_queue: str
    forms: dict[str, bytes]

    def __str__(self) -> str:
        return f"{self.library}-{self.message_id}"


def under_its_own_id(golden: Golden) -> Golden:
    """The same message, with the library's version in its id: both libraries' messages are called g1 to g44."""
    name = str(golden)

    def renamed(payload: bytes) -> bytes:
        fields = next(span for span in sections.scan(payload) if span.section is Section.PROPERTIES)
        edited = sections.edit_fields(payload[fields.value_start : fields.end], {PropertyField.MESSAGE_ID: name})
        return sections.edit(payload, {Section.PROPERTIES: sections.section_bytes(Section.PROPERTIES, edited)})

    return replace(golden, message_id=name, forms={form: renamed(payload) for form, payload in golden.forms.items()})


def load() -> list[Golden]:
    lines = (Path(__file__).parent / "retired-library.jsonl").read_text().splitlines()
    return [
        Golden(
            row["library"],
            row["message_id"],
            row["destination"],
            row["backlog_queue"],
            {name: payload_of(row[name]) for name in (DIRECTLY, DIVERTED)},
        )
        for row in map(json.loads, lines)
    ]


def payload_of(form: dict[str, Any]) -> bytes:
    """The bytes of a recorded form, its sections in the order of the standard."""
    assert form.keys() <= SECTIONS.keys()
    return b"".join(
        sections.section_bytes(section, annotations_value(form[name]) if name == "annotations" else raw(form[name]))
        for name, section in SECTIONS.items()
        if name in form
    )


def raw(text: str) -> bytes:
    return base64.b64decode(text)


def annotations_value(recorded: dict[str, Any]) -> bytes:
    """Annotations are recorded as JSON: strings, and the scheduled time in milliseconds."""
    return encode(
        {Symbol(key): Timestamp(value) if isinstance(value, int) else value for key, value in recorded.items()}
    )


def values(payload: bytes) -> dict[Section, Any]:
    """What a message says, without what its last broker said: delivery count, lock, numbers and times of arrival."""
    found = {span.section: sections.read_span(payload, span) for span in sections.scan(payload)}
    header = (found.pop(Section.HEADER, []) + [None] * 5)[:5]
    header[HeaderField.DELIVERY_COUNT] = None
    annotations = pairs(found.pop(Section.MESSAGE_ANNOTATIONS, {}))
    own = {key: value for key, value in annotations.items() if key not in BROKER_ANNOTATIONS}
    found.pop(Section.DELIVERY_ANNOTATIONS, None)
    properties = (found.get(Section.PROPERTIES, []) + [None] * 13)[:13]
    return found | {Section.HEADER: header, Section.MESSAGE_ANNOTATIONS: own, Section.PROPERTIES: properties}


def pairs(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, MapPairs) else value


def lifetime(found: dict[Section, Any]) -> int | None:
    """Expiry less creation in milliseconds, which the time of sending does not change; both are taken off."""
    expiry, created = (found[Section.PROPERTIES][index] for index in TIMES)
    for index in TIMES:
        found[Section.PROPERTIES][index] = None
    assert (expiry is None) == (created is None)
    return None if expiry is None else expiry - created


def assert_as_sent_directly(golden: Golden, payload: bytes) -> None:
    came, sent = values(payload), values(golden.forms[DIRECTLY])
    came_lives, sent_lives = lifetime(came), lifetime(sent)
    if golden.message_id.endswith(WRAPPED_BY_THE_LIBRARY):
        assert sent[Section.HEADER][HeaderField.TTL] == HUNDRED_DAYS_MS % 2**32
        assert same(came[Section.HEADER][HeaderField.TTL], Uint(MAX_HEADER_TTL_MS))
        came[Section.HEADER][HeaderField.TTL] = sent[Section.HEADER][HeaderField.TTL]
    assert (came_lives is None) == (sent_lives is None)
    if came_lives is not None and sent_lives is not None:
        # The library rounds its two times, which have ticks of 100 ns, to milliseconds one by one.
        assert abs(came_lives - sent_lives) <= 1
    assert came.keys() == sent.keys()
    for section, value in sent.items():
        assert same(came[section], value), f"{golden}: {section.name} {came[section]!r} is not {value!r}"


def assert_as_diverted(golden: Golden, payload: bytes, *, leaving_out: Collection[str] = ()) -> None:
    """What we divert says what the library's message in the backlog says, but for these application properties.

    The header's ttl alone differs: the library wanted none and wrote 18 days, which is never wrapped to 32 bits.
    """
    ours, theirs = values(payload), values(golden.forms[DIVERTED])
    for name in leaving_out:
        ours[Section.APPLICATION_PROPERTIES].pop(name, None)
        theirs[Section.APPLICATION_PROPERTIES].pop(name, None)
    if theirs[Section.HEADER][HeaderField.TTL] is not None:
        assert theirs[Section.HEADER][HeaderField.TTL] == 1_566_804_069
        assert ours[Section.PROPERTIES][PropertyField.ABSOLUTE_EXPIRY_TIME] == NEVER_MS
    ours_to_live, theirs_to_live = (
        found[Section.APPLICATION_PROPERTIES].pop(TIME_TO_LIVE, None) for found in (ours, theirs)
    )
    assert (ours_to_live is None) == (theirs_to_live is None)
    if ours_to_live is not None:
        assert same(ours_to_live.descriptor, theirs_to_live.descriptor)
        assert type(ours_to_live.value) is type(theirs_to_live.value)
        # The library's clock had gone on by some ticks of 100 ns; AMQP carries milliseconds.
        assert ours_to_live.value // TICKS_PER_MS == theirs_to_live.value // TICKS_PER_MS
    ours[Section.PROPERTIES][PropertyField.CREATION_TIME] = theirs[Section.PROPERTIES][PropertyField.CREATION_TIME]
    ours[Section.HEADER][HeaderField.TTL] = theirs[Section.HEADER][HeaderField.TTL]
    assert ours.keys() == theirs.keys()
    for section, value in theirs.items():
        assert same(ours[section], value), f"{golden}: {section.name} {ours[section]!r} is not {value!r}"


GOLDEN = load()
