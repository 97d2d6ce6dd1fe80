"""Holds real outputs against the schemas of `sbpair schema`, strictly: no field and no value that they do not name."""

import json
from functools import cache
from typing import Any

import jsonschema

from sbpair.cli.help import envelope_schema, outputs
from sbpair.core.serialization import output_schema, to_plain
from sbpair.render.formats import dump_json


def closed(schema: Any) -> Any:
    """The schema with every object of named fields closed: what a test may demand, but no script."""
    if isinstance(schema, dict):
        shut = {key: closed(value) for key, value in schema.items()}
        if "properties" in shut and "$schema" not in shut:
            shut.setdefault("additionalProperties", False)
        return shut
    return [closed(item) for item in schema] if isinstance(schema, list) else schema


def check_document(command: str, text: str) -> Any:
    """What a command printed with -o json, checked and read."""
    document = json.loads(text)
    _validator(command).validate(document)
    return document


def check_any_document(text: str) -> Any:
    """`check_document` for the command that the text names; where the command line could not be read it names none."""
    return check_document(json.loads(text)["command"] or "status", text)


@cache
def _validator(command: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(closed(envelope_schema(command, outputs()[command])))


def check_data(command: str, data: Any) -> None:
    """Check the data of a result as it would be printed."""
    jsonschema.Draft202012Validator(closed(output_schema(outputs()[command].load()))).validate(
        json.loads(dump_json(to_plain(data)))
    )
