"""A case of a law: what is refused where the law is strict, and accepted where it is lax."""

import pytest

from tests.emulator.broker.conftest import Bench


def law(name, act, refusal, **bench):
    """A law's name; what a client does (it gets a `Bench`); words of the refusal; what the bench is made with."""
    return pytest.param(name, act, refusal, bench, marks=pytest.mark.law(name), id=name)


@pytest.fixture
def make_bench():
    return Bench
