"""What the JSON Schemas of the commands are made of."""

from collections.abc import Mapping
from typing import Any

from sbpair.core.serialization import json_schema

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
MONEY: Schema = {"type": "string", "pattern": r"^-?\d+(\.\d+)?(E-?\d+)?$", "description": "A decimal number as text."}
TIME: Schema = {"type": "string", "format": "date-time"}
ANYTHING: Schema = {}


def obj(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """An object with these fields; further ones may come."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def listing(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    """An object whose keys are data."""
    return {"type": "object", "additionalProperties": values}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def derived(kind: Any) -> Schema:
    """The schema of a dataclass in its plain form, with objects left open."""
    opened: Schema = _opened(json_schema(kind))
    return opened


def _opened(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _opened(value) for key, value in schema.items() if key != "additionalProperties"}
    return [_opened(item) for item in schema] if isinstance(schema, list) else schema


FORECAST = obj(
    management_calls=WHOLE,
    message_operations=WHOLE,
    operations=WHOLE,
    throttling_credits=WHOLE,
    money_at_most=MONEY,
    currency=TEXT,
)
BILLED = obj(
    month=TEXT,
    subscription=TEXT,
    meter=TEXT,
    quantity=MONEY,
    cost=MONEY,
    currency=TEXT,
    at_these_prices=maybe(MONEY),
)
"""A line of what was billed."""
