"""Plain forms and schemas of dataclasses: what differs between what is read and what is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest

from sbpair.core.errors import UsageError
from sbpair.core.serialization import (
    AS_OBJECT,
    AS_TIME,
    HIDDEN,
    INLINED,
    OMITTED_IF_NONE,
    Money,
    Time,
    json_schema,
    named,
    output_schema,
    published,
    rounded,
    says,
    to_plain,
)


class Shade(StrEnum):
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True)
class Inner:
    count: int
    shade: Shade = Shade.DARK


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(metadata=INLINED)
    columns: Mapping[str, str | None] = field(metadata=INLINED)
    at: Time
    price: Money = field(metadata=named("from"))
    kind: Literal["text", "hex"]
    folder: Path
    rows: tuple[Inner, ...]
    anything: Any = None
    note: str | None = None
    forecast: Inner | None = field(default=None, metadata=OMITTED_IF_NONE)


OUTER = Outer(
    Inner(3), {"path": "orders"}, "2026-01-01T00:00:00Z", Decimal("1.50"), "hex", Path("a/b"), (Inner(1, Shade.LIGHT),)
)


def test_fields_say_how_they_are_written() -> None:
    assert to_plain(OUTER) == {
        "count": 3,
        "shade": "dark",
        "path": "orders",
        "at": "2026-01-01T00:00:00Z",
        "from": "1.50",
        "kind": "hex",
        "folder": "a/b",
        "rows": [{"count": 1, "shade": "light"}],
        "anything": None,
        "note": None,
    }


def test_the_schema_of_an_output_is_open_and_names_what_is_always_there() -> None:
    schema = output_schema(Outer)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(to_plain(OUTER), schema)
    assert schema["additionalProperties"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert set(schema["required"]) == set(to_plain(OUTER)) - {"path"}
    assert schema["properties"]["forecast"]["required"] == ["count", "shade"]
    assert schema["properties"]["at"] == {"type": "string", "format": "date-time"}
    assert "additionalProperties" not in schema["properties"]["forecast"]


@pytest.mark.parametrize(
    "wrong", [{"count": "3"}, {"shade": "grey"}, {"from": "1,50"}, {"kind": "octal"}, {"path": 7}, {"rows": [{}]}]
)
def test_the_schema_refuses(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(to_plain(OUTER) | wrong, output_schema(Outer))


def test_what_is_read_may_leave_out_what_has_a_default_and_nothing_else_may_stand_there() -> None:
    schema = json_schema(Inner)
    jsonschema.validate({"count": 1}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"count": 1, "colour": "red"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"count": 1}, output_schema(Inner))


def test_a_union_has_one_schema_for_each_of_its_kinds() -> None:
    described = Annotated[Mapping[str, Any], says(description="A document.")]
    schema = output_schema(Inner | described)
    assert schema["anyOf"][1] == {"type": "object", "additionalProperties": {}, "description": "A document."}


@dataclass(frozen=True)
class Pair:
    name: str
    number: int


@dataclass(frozen=True)
class Failed:
    queue: str
    error: UsageError = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class Told:
    named: tuple[tuple[str, int], ...] = field(metadata=AS_OBJECT)
    pairs: tuple[Pair, ...] = field(metadata=AS_OBJECT)
    failed: tuple[Failed, ...]
    why: UsageError | None
    secret: object = field(metadata=HIDDEN)
    seconds: float | None = field(metadata=rounded(1))
    at: float = field(metadata=AS_TIME)
    gone: float | None = field(metadata=AS_TIME)
    moment: datetime
    counted: int = field(default=2, metadata={"what": "All of them."})

    @published
    def shade(self) -> Shade | None:
        return Shade.DARK if self.counted else None

    @published
    def since(self) -> Time:
        return "2026-01-01T00:00:00Z"


TOLD = Told(
    (("orders", 1), ("carts", 2)),
    (Pair("full", 3),),
    (Failed("q", UsageError("Refused.", hint="Ask.")),),
    UsageError("No."),
    secret=object(),
    seconds=1.26,
    at=0.0,
    gone=None,
    moment=datetime(2026, 1, 1, tzinfo=UTC),
)


def test_what_else_fields_may_say() -> None:
    assert to_plain(TOLD) == {
        "named": {"orders": 1, "carts": 2},
        "pairs": {"full": 3},
        "failed": [{"queue": "q", "code": "usage", "message": "Refused.", "hint": "Ask."}],
        "why": {"code": "usage", "message": "No.", "hint": ""},
        "seconds": 1.3,
        "at": "1970-01-01T00:00:00.000Z",
        "gone": None,
        "moment": "2026-01-01T00:00:00.000Z",
        "counted": 2,
        "shade": "dark",
        "since": "2026-01-01T00:00:00Z",
    }


def test_the_schema_follows_what_fields_say() -> None:
    schema = output_schema(Told)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(to_plain(TOLD), schema)
    assert set(schema["required"]) == set(schema["properties"]) == set(to_plain(TOLD))
    properties = schema["properties"]
    assert properties["pairs"] == properties["named"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert properties["failed"]["items"]["required"] == ["queue", "code", "message", "hint"]
    assert properties["at"] == properties["since"] == {"type": "string", "format": "date-time"}
    assert properties["gone"]["anyOf"] == [properties["at"], {"type": "null"}]
    assert properties["counted"] == {"type": "integer", "description": "All of them."}
    assert properties["shade"]["anyOf"][0] == {"enum": ["light", "dark"]}


def test_a_later_field_of_the_same_name_counts() -> None:
    @dataclass(frozen=True)
    class Over:
        inner: Inner = field(metadata=INLINED)
        count: str

    assert to_plain(Over(Inner(1), "one"))["count"] == "one"
    described = output_schema(Over)
    assert described["properties"]["count"] == {"type": "string"}
    assert described["required"] == ["count", "shade"]


def test_what_is_published_is_typed_and_of_the_instance() -> None:
    assert TOLD.shade is Shade.DARK
    assert isinstance(Told.shade, published)
