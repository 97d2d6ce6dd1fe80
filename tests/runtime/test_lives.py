"""What the runtime asks of namespaces, tells and leaves behind in drawn lives, whose digests are approved.

A change that is meant: `python -m tests.runtime.lives`. With a name it prints the lives, here and in another checkout
to compare with.
"""

import sys

import pytest

from tests.runtime.lives import approved, digest, subjects

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="approved with the order in which asyncio of Python 3.11 goes on"
)


@pytest.mark.parametrize("name", subjects())
def test_a_life_is_as_was_approved(name: str) -> None:
    assert digest(subjects()[name]()) == approved().get(name), (
        f"{name!r} lives otherwise. To compare, in both checkouts: python -m tests.runtime.lives {name!r}"
    )


def test_every_life_that_is_approved_is_lived() -> None:
    assert approved().keys() == subjects().keys()
