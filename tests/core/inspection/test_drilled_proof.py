"""The proof of what arrived: what a fingerprint tells apart, what it leaves out, and what a comparison says."""

from collections.abc import Mapping
from typing import Any

import pytest

from sbpair.amqp import sections, types
from sbpair.amqp.sections import HeaderField, PropertyField
from sbpair.core.inspection.drilled import Proof, compare, fingerprint
from sbpair.core.message import Received

HEADER = {HeaderField.DURABLE: True, HeaderField.PRIORITY: types.Ubyte(7), HeaderField.TTL: types.Uint(1_000)}


def built(session: str | None = None, annotations: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
    parts: dict[str, Any] = {
        "header": HEADER,
        "properties": {PropertyField.MESSAGE_ID: "m", **({} if session is None else {PropertyField.GROUP_ID: session})},
        "application_properties": {"a": types.Int(1)},
        "data": b"body",
        "footer": {types.Symbol("f"): types.Ubyte(1)},
        "message_annotations": {types.Symbol(key): value for key, value in (annotations or {}).items()} or None,
    }
    return sections.build(**{**parts, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        *({"header": {**HEADER, field: value}} for field, value in
          [(HeaderField.DURABLE, False), (HeaderField.PRIORITY, types.Ubyte(4)), (HeaderField.TTL, types.Uint(1_001)),
           (HeaderField.FIRST_ACQUIRER, True)]),
        {"header": None},
        {"properties": {PropertyField.MESSAGE_ID: "n"}},
        {"application_properties": {"a": types.Long(1)}},
        {"data": b"Body"},
        {"data": [b"bo", b"dy"]},
        {"footer": None},
        {"annotations": {"x-opt-demo": types.Int(1)}},
    ],
)  # fmt: skip
def test_whatever_the_application_has_set_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(built(**changes)) != fingerprint(built())


@pytest.mark.parametrize(
    ("session", "annotations", "header"),
    [
        (None, {"x-opt-sequence-number": types.Long(7), "x-opt-enqueued-time": types.Timestamp(1)}, {}),
        (None, {}, {HeaderField.DELIVERY_COUNT: types.Uint(3)}),
        ("s", {"x-opt-partition-key": "s"}, {}),
    ],
)
def test_what_the_broker_adds_does_not(session: str | None, annotations: Mapping[str, Any], header: Any) -> None:
    assert fingerprint(built(session, annotations, header={**HEADER, **header})) == fingerprint(built(session))


def test_a_partition_key_that_says_something_else_than_the_session_does() -> None:
    assert fingerprint(built("s", {"x-opt-partition-key": "t"})) != fingerprint(built("s"))


def arrived(name: str, session: str | None = None, body: bytes = b"body") -> Received:
    payload = built(session, data=body, properties={PropertyField.MESSAGE_ID: name})
    return Received(payload, 1, "orders", message_id=name, session_id=session)


def test_what_is_missing_doubled_altered_or_out_of_order_is_named() -> None:
    names = ["a1", "a2", "a3", "b1", "b2"]
    messages = {name: arrived(name, name[0]) for name in names}
    expected = {name: fingerprint(one.payload) for name, one in messages.items()}
    whole = compare("here", expected, [messages[name] for name in ("b1", "a1", "a2", "b2", "a3")])
    assert whole == Proof("here", 5, 5, (), (), (), ())
    assert whole.holds
    altered = arrived("b2", "b", b"other")
    told = compare("here", expected, [messages["a3"], messages["a1"], messages["b1"], messages["b1"], altered])
    assert told == Proof("here", 5, 5, ("a2",), ("b1",), ("b2",), ("a1",))
    assert not told.holds
    free = [arrived("2"), arrived("1")]
    assert compare("here", {"1": fingerprint(free[1].payload), "2": fingerprint(free[0].payload)}, free).holds
