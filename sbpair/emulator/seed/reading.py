"""What every part of a seed is read with: mappings, known names, and complaints that tell place and line."""

import difflib
from collections.abc import Mapping
from typing import Any

from sbpair.lines import line_of


class SeedError(ValueError):
    """The seed names something that does not exist or has the wrong form; the text says where."""

    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text if line is None else f"line {line}: {text}")


def mapping_of(value: object, where: str, line: int | None = None) -> Mapping[str, Any]:
    """The value, which must be a mapping by names; nothing is an empty one.

    Raises:
        SeedError: it is none.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SeedError(f"{where}: a mapping of names to properties is expected", line)
    seen: set[str] = set()
    for name in value:
        if isinstance(name, str) and name.lower() in seen:
            raise SeedError(f"{where}: there are two of the name {name[:40]!r}", line_of(value, name))
        seen.add(str(name).lower())
        if not isinstance(name, str):
            read = " (YAML reads on, off, yes and no so)" if isinstance(name, bool) else ""
            raise SeedError(f"{where}: a name is a text; put what is read as {str(name)[:40]!r} in quotes{read}", line)
    return value


def only(fields: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse names that mean nothing here.

    Raises:
        SeedError: with the nearest name that does.
    """
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise SeedError(f"{where}: unknown key {name[:40]!r}{meant}", line_of(fields, name))
