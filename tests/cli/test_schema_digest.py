"""The digest of approved schemas loses nothing that a script relies on, and a change is named for what it means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli import approve_schemas
from tests.cli.schema_digest import Reader, changes, kinds_of, written

TEXT = {"type": "string"}
NULL = {"type": "null"}
TIME = {"type": "string", "format": "date-time"}


def thing(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required]}


def some(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schemas]}


def values(*each: object) -> dict[str, Any]:
    return {"enum": [*each]}


def many(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def named(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


NUMBER, WHOLE = {"type": "number"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (thing(a=TEXT), thing(a=TEXT, b=TEXT), ["additive: drain.b: is new"]),
        (thing(a=TEXT, b=TEXT), thing(a=TEXT), ["BREAKING: drain.b: has gone"]),
        (thing(a=TEXT), thing(b=TEXT), ["BREAKING: drain.a: has gone", "additive: drain.b: is new"]),
        (thing(("a",), a=TEXT), thing(a=TEXT), ["BREAKING: drain.a: may be missing"]),
        (thing(a=TEXT), thing(("a",), a=TEXT), ["additive: drain.a: is always there"]),
        (thing(a=TEXT), thing(a=some(TEXT, NULL)), ["BREAKING: drain.a: may be null"]),
        (thing(a=some(TEXT, NULL)), thing(a=TEXT), ["additive: drain.a: is never null"]),
        (thing(a=WHOLE), thing(a=TEXT), ["BREAKING: drain.a: may be string", "BREAKING: drain.a: is never integer"]),
        (thing(a=WHOLE), thing(a=NUMBER), ["BREAKING: drain.a: may be number"]),
        (thing(a=NUMBER), thing(a=WHOLE), ["additive: drain.a: only integer"]),
        (thing(a=TEXT), thing(a=TIME), ['additive: drain.a: only string {"format": "date-time"}']),
        (thing(a=TIME), thing(a=TEXT), ["BREAKING: drain.a: may be string"]),
        (thing(a=values("x")), thing(a=values("x", "y")), ['additive: drain.a: may be "y" as well']),
        (thing(a=values("x", "y")), thing(a=values("x")), ['BREAKING: drain.a: is never "y"']),
        (thing(a=TEXT), thing(a=values("x")), ['additive: drain.a: only "x"']),
        (thing(a=values("x")), thing(a=TEXT), ["BREAKING: drain.a: may be string"]),
        (
            thing(a=many(TEXT)),
            thing(a=many(WHOLE)),
            ["BREAKING: drain.a[]: may be integer", "BREAKING: drain.a[]: is never string"],
        ),
        (thing(a=many(thing(b=TEXT))), thing(a=many(thing())), ["BREAKING: drain.a[].b: has gone"]),
        (thing(a=named(WHOLE)), thing(a=named(NUMBER)), ["BREAKING: drain.a.*: may be number"]),
        (thing(a=many(TEXT)), thing(a=TEXT), ["BREAKING: drain.a: may be string", "BREAKING: drain.a: is never list"]),
        (thing(a=TEXT), some(thing(a=TEXT), thing(b=TEXT)), ["additive: drain: another form of the object"]),
        (some(thing(a=TEXT), thing(b=TEXT)), thing(a=TEXT), ["BREAKING: drain: a form of the object has gone"]),
        (
            thing(a=TEXT),
            thing(a=thing(b=TEXT)),
            ["BREAKING: drain.a: another form of the object", "BREAKING: drain.a: is never string"],
        ),
    ],
)
def test_a_change_is_named_for_what_it_means(old: dict[str, Any], new: dict[str, Any], said: list[str]) -> None:
    found = changes({"drain": kinds_of(old)}, {"drain": kinds_of(new)})
    assert [str(change) for change in found] == said
    assert changes({"drain": kinds_of(new)}, {"drain": kinds_of(new)}) == []


def test_a_command_comes_additively_and_goes_breaking() -> None:
    some_kinds = kinds_of(TEXT)
    found = changes({"drain": some_kinds}, {"move": some_kinds})
    assert [str(change) for change in found] == [
        "BREAKING: drain: the command has gone",
        "additive: move: a new command",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        some(thing(a=many(some(thing(b=TEXT), NULL))), thing(a=many(thing(c=values("x | y", 1, True, "]{"))))),
        thing(a=named(many(named({}))), b={"type": "string", "pattern": r"^[{]\)| x$"}, c=named(thing(d=TIME))),
        {"type": "object", "properties": {"a": TEXT}, "additionalProperties": NUMBER},
        thing(),
    ],
)
def test_what_was_written_is_read_back(schema: dict[str, Any]) -> None:
    # The second command has the same objects, in other places.
    places = {"drain": kinds_of(schema), "dlq list": kinds_of(thing(("a",), a=schema, b=many(schema)))}
    assert Reader(written(places)).places() == places


def test_a_keyword_that_the_digest_has_no_place_for_is_no_secret() -> None:
    for schema in ({"type": "array", "items": TEXT, "minItems": 1}, thing() | {"minProperties": 1}):
        with pytest.raises(AssertionError):
            kinds_of(schema)
    assert kinds_of({"type": "integer", "minimum": 0}) != kinds_of(WHOLE)


def test_the_digest_of_all_commands_is_read_back_and_small() -> None:
    places = approve_schemas.current()
    assert Reader(written(places)).places() == places
    assert approve_schemas.APPROVED.read_text(encoding="utf-8") == written(places)


def test_additive_changes_are_accepted_by_a_command_and_breaking_ones_only_if_that_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schemas.txt"
    places = approve_schemas.current()
    file.write_text(written({name: kinds for name, kinds in places.items() if name != "drain"}), encoding="utf-8")
    assert approve_schemas.main([], file) == 0
    assert capsys.readouterr().out == "additive: drain: a new command\n"
    assert approve_schemas.differences(file) == []
    old = written(places | {"drained": places["drain"]})
    file.write_text(old, encoding="utf-8")
    assert approve_schemas.main([], file) == 1
    assert capsys.readouterr().out == "BREAKING: drained: the command has gone\n"
    assert file.read_text(encoding="utf-8") == old
    assert approve_schemas.main(["--breaking"], file) == 0
    assert approve_schemas.differences(file) == []
