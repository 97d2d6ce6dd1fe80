"""The names that `sbpair.operations` exports are the verbs, whichever module was imported first."""

import subprocess
import sys

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
