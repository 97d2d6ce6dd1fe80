"""What scripts may rely on in the JSON of all commands, in few lines, and what a change of it means to them.

A digest has one block for each object that some command writes; an object that stands in several places is written
where it was met first:

    drain.forecast
      management_calls message_operations: integer
      money_at_most?: string | null

`?` marks a field that may be missing, `[...]` a list, `{*: ...}` an object of any names, `{drain.forecast}` the object
of that block and `{}` the one whose block has the place itself as its name. Descriptions are no part of it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DATA = "data"
_DESCRIBING = {"description", "title", "$schema"}


@dataclass(frozen=True)
class Field:
    """A place in a document."""

    kinds: "tuple[Kind, ...]"
    optional: bool = False


@dataclass(frozen=True)
class Kind:
    """One of the kinds of value that a place may have."""

    name: str
    """`string`, `integer`, ...; `list`, `map`, `object`, `value`."""
    more: str = ""
    """A value, or the other keywords of the schema, as JSON."""
    items: "tuple[Kind, ...]" = ()
    """Of a list or map."""
    fields: tuple[tuple[str, Field], ...] = ()
    """Of an object, by their names."""


# From a schema


def kinds_of(schema: Mapping[str, Any]) -> tuple[Kind, ...]:
    """The kinds of value that a JSON Schema allows, one kind once."""
    stated = {key: value for key, value in schema.items() if key not in _DESCRIBING}
    if "anyOf" in stated:
        (each,) = stated.values()  # nothing may stand beside it
        return tuple(dict.fromkeys(kind for one in each for kind in kinds_of(one)))
    if "enum" in stated:
        assert set(stated) <= {"enum", "type"}, schema
        return tuple(Kind("value", json.dumps(value)) for value in stated["enum"])
    name = stated.pop("type", "any")
    if name == "array":
        items = kinds_of(stated.pop("items"))
        assert not stated, schema
        return (Kind("list", items=items),)
    if name == "object":
        return (_object(stated),)
    return (Kind(name, json.dumps(stated, sort_keys=True) if stated else ""),)


def _object(stated: dict[str, Any]) -> Kind:
    if "properties" not in stated:
        values = kinds_of(stated.pop("additionalProperties", {}))
        assert not stated, stated
        return Kind("map", items=values)
    required, fields = stated.pop("required", []), stated.pop("properties")
    # More names beside the fields are as good as a field `*`.
    if "additionalProperties" in stated:
        fields = fields | {"*": stated.pop("additionalProperties")}
    assert not stated, stated
    each = {name: Field(kinds_of(one), name not in required) for name, one in fields.items()}
    return Kind("object", fields=tuple(sorted(each.items())))


# As text


def written(places: Mapping[str, tuple[Kind, ...]]) -> str:
    """The digest: for each command what it may write."""
    blocks: dict[str, list[str]] = {}
    names: dict[Kind, str] = {}
    first = [f"{command}: {_text(kinds, command, names, blocks)}" for command, kinds in sorted(places.items())]
    rest = [line for name, lines in blocks.items() for line in (name, *(f"  {one}" for one in lines))]
    return "\n".join((*first, "", *rest, ""))


def _text(kinds: Iterable[Kind], place: str, names: dict[Kind, str], blocks: dict[str, list[str]]) -> str:
    return " | ".join(_kind_text(kind, place, names, blocks) for kind in kinds)


def _kind_text(kind: Kind, place: str, names: dict[Kind, str], blocks: dict[str, list[str]]) -> str:
    match kind.name:
        case "value":
            return kind.more
        case "list":
            return f"[{_text(kind.items, f'{place}[]', names, blocks)}]"
        case "map":
            return f"{{*: {_text(kind.items, f'{place}.*', names, blocks)}}}"
        case "object":
            if kind not in names:
                name = next(one for one in _numbered(place) if one not in blocks)
                names[kind], blocks[name] = name, []
                blocks[name] += _lines(kind, name, names, blocks)
            return f"{{{'' if names[kind] == place else names[kind]}}}"
        case name:
            return f"{name}({kind.more})" if kind.more else name


def _numbered(place: str) -> Iterator[str]:
    yield place
    yield from (f"{place}#{number}" for number in range(2, 100))


def _lines(kind: Kind, place: str, names: dict[Kind, str], blocks: dict[str, list[str]]) -> list[str]:
    """Fields of the same kinds on one line."""
    lines: dict[str, list[str]] = {}
    for name, field in kind.fields:
        text = _text(field.kinds, f"{place}.{name}", names, blocks)
        lines.setdefault(text, []).append(f"{name}?" if field.optional else name)
    return [f"{' '.join(fields)}: {text}" for text, fields in lines.items()]


_TOKEN = re.compile(r"\{\*: |\{[^{}*]*\}|\}|\[|\]| \| |[a-z]+\(|\)|[a-z]+")


class Reader:
    """Reads a digest that `written` has written."""

    def __init__(self, text: str) -> None:
        first, _, rest = text.partition("\n\n")
        self._first = dict(line.split(": ", 1) for line in first.splitlines())
        self._blocks: dict[str, list[str]] = {}
        for line in rest.splitlines():
            if line.startswith("  "):
                self._blocks[list(self._blocks)[-1]].append(line.strip())
            else:
                self._blocks[line] = []
        self._known: dict[str, Kind] = {}

    def places(self) -> dict[str, tuple[Kind, ...]]:
        return {command: self._whole(text, command) for command, text in self._first.items()}

    def _whole(self, text: str, place: str) -> tuple[Kind, ...]:
        kinds, end = self._kinds(text, 0, place)
        assert end == len(text), (text, end)
        return kinds

    def _kinds(self, text: str, at: int, place: str) -> tuple[tuple[Kind, ...], int]:
        kind, at = self._kind(text, at, place)
        found = [kind]
        while text.startswith(" | ", at):
            kind, at = self._kind(text, at + 3, place)
            found.append(kind)
        return tuple(found), at

    def _kind(self, text: str, at: int, place: str) -> tuple[Kind, int]:
        if text[at] in '"-0123456789' or text.startswith(("true", "false"), at):
            value, end = json.JSONDecoder().raw_decode(text, at)
            return Kind("value", json.dumps(value)), end
        token = _TOKEN.match(text, at)
        assert token is not None, (text, at)
        word, at = token[0], token.end()
        if word == "[":
            items, at = self._kinds(text, at, f"{place}[]")
            return Kind("list", items=items), at + 1
        if word == "{*: ":
            items, at = self._kinds(text, at, f"{place}.*")
            return Kind("map", items=items), at + 1
        if word.startswith("{"):
            return self._object(word[1:-1] or place), at
        if word.endswith("("):
            more, at = json.JSONDecoder().raw_decode(text, at)
            return Kind(word[:-1], json.dumps(more, sort_keys=True)), at + 1
        return Kind(word), at

    def _object(self, name: str) -> Kind:
        if name not in self._known:
            fields = {}
            for line in self._blocks[name]:
                names, text = line.split(": ", 1)
                for one in names.split():
                    plain = one.removesuffix("?")
                    fields[plain] = Field(self._whole(text, f"{name}.{plain}"), one.endswith("?"))
            self._known[name] = Kind("object", fields=tuple(sorted(fields.items())))
        return self._known[name]


# What a change means


@dataclass(frozen=True)
class Change:
    """One difference. Breaking is what a script that worked with the old form may stumble over."""

    place: str
    what: str
    breaking: bool

    def __str__(self) -> str:
        return f"{'BREAKING' if self.breaking else 'additive'}: {self.place}: {self.what}"


def changes(old: Mapping[str, tuple[Kind, ...]], new: Mapping[str, tuple[Kind, ...]]) -> list[Change]:
    """All differences, command by command and place by place."""
    found = [Change(name, "the command has gone", True) for name in sorted(old.keys() - new.keys())]
    found += [Change(name, "a new command", False) for name in sorted(new.keys() - old.keys())]
    for command in sorted(old.keys() & new.keys()):
        found += _of_kinds(old[command], new[command], command)
    return found


def _of_kinds(old: tuple[Kind, ...], new: tuple[Kind, ...], place: str) -> Iterator[Change]:
    if old == new:
        return
    before, after = ([one for one in kinds if one.name == "object"] for kinds in (old, new))
    for number, (one, other) in enumerate(zip(before, after, strict=False)):
        yield from _of_fields(dict(one.fields), dict(other.fields), place if number == 0 else f"{place}#{number + 1}")
    if len(before) > len(after):
        yield Change(place, "a form of the object has gone", True)
    elif len(after) > len(before):
        yield Change(place, "another form of the object", not before)
    for name, part in (("list", "[]"), ("map", ".*")):
        inside = [[item for one in kinds if one.name == name for item in one.items] for kinds in (old, new)]
        if all(inside):
            yield from _of_kinds(tuple(inside[0]), tuple(inside[1]), f"{place}{part}")
    yield from _of_plain(_plain(old), _plain(new), place)


def _plain(kinds: tuple[Kind, ...]) -> list[Kind]:
    """Without what is in objects, lists and maps; that one of these is possible remains."""
    return [Kind(one.name, one.more) for one in kinds if one.name != "object"]


def _of_plain(old: list[Kind], new: list[Kind], place: str) -> Iterator[Change]:
    had_values = [one for one in old if one.name == "value"]
    for kind in new:
        if kind in old:
            continue
        if any(_includes(one, kind) for one in old):
            yield Change(place, f"only {_said(kind)}", False)
        elif kind.name == "value" and had_values:
            yield Change(place, f"may be {_said(kind)} as well", False)
        else:
            yield Change(place, f"may be {_said(kind)}", True)
    has_values = any(one.name == "value" for one in new)
    for kind in old:
        if kind not in new and not any(_includes(one, kind) or _includes(kind, one) for one in new):
            yield Change(place, f"is never {_said(kind)}", kind.name != "null" and (has_values or kind.name != "value"))


def _includes(one: Kind, other: Kind) -> bool:
    """Whether every value of the other kind is one of this kind."""
    if one.name == "any" or (one.name == "number" and other.name == "integer"):
        return not one.more
    is_text = other.name == "string" or (other.name == "value" and other.more.startswith('"'))
    return one.name == "string" and not one.more and is_text


def _said(kind: Kind) -> str:
    return kind.more if kind.name == "value" else f"{kind.name}{f' {kind.more}' if kind.more else ''}"


def _of_fields(old: Mapping[str, Field], new: Mapping[str, Field], place: str) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        here = f"{place}.{name}"
        if name not in new:
            yield Change(here, "has gone", True)
        elif name not in old:
            yield Change(here, "is new", False)
        else:
            if old[name].optional != new[name].optional:
                now = "may be missing" if new[name].optional else "is always there"
                yield Change(here, now, new[name].optional)
            yield from _of_kinds(old[name].kinds, new[name].kinds, here)
