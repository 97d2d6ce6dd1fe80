"""JSON and YAML files of unknown origin, read within bounds: size, depth, and what YAML aliases expand to.

Snapshots, plans and price tables are passed around between people; reading one must neither exhaust memory nor end in
anything but a sentence.
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 256 * 1024 * 1024
"""A snapshot of a full namespace (10,000 queues) is about 10 MB."""
MOST_YAML_BYTES = 1024 * 1024
MOST_YAML_NODES = 100_000
MOST_YAML_DEPTH = 50


class DocumentError(ValueError):
    """The file cannot be read as the document it should be; the text says why, without naming the file."""


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Text of a file in UTF-8, with or without a byte order mark.

    Raises:
        DocumentError: not there, not readable, too large, not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise DocumentError(error.strerror or str(error)) from error
    if len(data) > most_bytes:
        raise DocumentError(f"it is larger than {most_bytes // (1024 * 1024)} MB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"byte {error.start} is not UTF-8") from error


def parse_json(text: str, *, exact: bool = False) -> Any:
    """Value of a JSON document; with `exact`, numbers with a fraction as Decimal.

    Raises:
        DocumentError: not JSON, NaN or infinity, or nested too deeply.
    """
    try:
        return json.loads(text, parse_float=Decimal if exact else None, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise DocumentError("it is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"not valid JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def compose_yaml(text: str) -> yaml.Node | None:
    """Nodes of a YAML document whose aliases expand to a bounded size.

    Raises:
        DocumentError: too large, or nested or aliased beyond the bounds. yaml.YAMLError: not YAML.
    """
    if len(text) > MOST_YAML_BYTES:
        raise DocumentError(f"it is larger than {MOST_YAML_BYTES // (1024 * 1024)} MB")
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise DocumentError("it is nested too deeply") from error
    if node is not None and _expanded(node, {}, 0) > MOST_YAML_NODES:
        raise DocumentError("its aliases expand to too much")
    return node


def parse_yaml(text: str) -> Any:
    """Value of a YAML document, made of plain types only.

    Raises:
        DocumentError: see `compose_yaml`, and what is not YAML.
    """
    try:
        node = compose_yaml(text)
        return None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.YAMLError as error:
        raise DocumentError(f"not valid YAML: {' '.join(str(error).split())}") from error


def _expanded(node: yaml.Node, known: dict[int, int | None], depth: int) -> int:
    """Nodes below and including this one, as if every alias were written out."""
    if depth > MOST_YAML_DEPTH:
        raise DocumentError("it is nested too deeply")
    if id(node) in known:
        size = known[id(node)]
        if size is None:
            raise DocumentError("an alias refers to what contains it")
        return size
    known[id(node)] = None
    children = (
        [child for pair in node.value for child in pair]
        if isinstance(node, yaml.MappingNode)
        else node.value
        if isinstance(node, yaml.SequenceNode)
        else []
    )
    total = 1 + sum(_expanded(child, known, depth + 1) for child in children)
    known[id(node)] = total
    return total
