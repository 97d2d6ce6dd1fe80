"""JSON of unknown origin, read within bounds."""

import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

MOST_JSON_DEPTH = 100


class DocumentError(ValueError):
    """The file cannot be read as the document it should be; the text says why, without naming the file."""


def parse_json(text: str | bytes, *, exact: bool = False) -> Any:
    """Value of a JSON document; with `exact`, numbers with a fraction as Decimal.

    Raises:
        DocumentError: not JSON, NaN or infinity, a number that is too long, half a character, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_float=Decimal if exact else None, parse_constant=_refuse_constant)
        _check_json(value)
    except RecursionError as error:
        raise DocumentError("it is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"not valid JSON: {error}") from error
    return value


def _check_json(value: Any) -> None:
    """Refuse with ValueError what no later reader has to reckon with: depth, 1e999, and lone halves of a surrogate
    pair, which cannot be written anywhere again."""
    level: list[Any] = [value]
    for _ in range(MOST_JSON_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                check_texts(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str):
                check_texts((item,))
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError("a number is too large")
        if not below:
            return
        level = below
    raise ValueError("it is nested too deeply")


def check_texts(texts: Iterable[str]) -> None:
    """Raises ValueError for half a character, which cannot be written anywhere again."""
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError("a text has half a character (a lone surrogate) in it") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
