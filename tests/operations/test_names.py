"""The names that `sbpair.operations` exports are the verbs, whichever module was imported first."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from sbpair import operations


@pytest.mark.parametrize("name", operations.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(operations, name) is not None
    assert name in dir(operations)


@pytest.mark.parametrize("first", ["", "import sbpair.operations.restore; "])
def test_a_verb_is_the_function_and_not_the_module_of_its_name(first: str) -> None:
    code = f"{first}from sbpair.operations import restore, RestoreRequest; "
    code += "from sbpair.operations import restore as again; "
    code += "import sys; sys.exit(0 if callable(restore) and restore is again else f'{restore} {again}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = operations.nonsense


@pytest.mark.parametrize(
    ("request_type", "given"),
    [
        (operations.DrainRequest, {}),
        (operations.SyphonRequest, {}),
        (operations.MoveRequest, {"source": "a", "to": "b"}),
        (operations.CopyRequest, {"source": "a", "to": "b"}),
        (operations.ResubmitRequest, {"source": "a"}),
        (operations.RestoreRequest, {"files": ()}),
        (operations.EvacuateRequest, {"ledger": Path("ledger.jsonl")}),
        (operations.SendRequest, {"entity": "a", "messages": None}),
    ],
)
@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("concurrency", 0),
        ("processes", 0),
        ("in_flight_messages", 0),
        ("in_flight_bytes", 0),
        ("rate_per_second", 0),
        ("rate_per_second", -1),
        ("budget_per_second", 0.0),
        ("budget_per_second", math.nan),
    ],
)
def test_a_limit_that_lets_nothing_through_is_refused_when_the_request_is_made(
    request_type: Any, given: dict[str, Any], limit: str, value: float
) -> None:
    if limit in get_type_hints(request_type):
        with pytest.raises(operations.UsageError, match=f"{limit} is (at least 1|above 0), not {value}"):
            request_type(**given, **{limit: value})


def test_a_condition_that_is_none_is_refused_when_it_is_made() -> None:
    with pytest.raises(operations.UsageError, match="is Service Bus SQL"):
        operations.Where("amount large 7")
