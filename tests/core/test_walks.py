"""What the core's machines answer and show, call after call, and what is answered about a small world: drawn walks,
whose digests are approved.

A change that is meant: `python -m tests.core.examples`. With a name it prints the walks, here and in another checkout
to compare with.
"""

import pytest

from tests.core.examples import digest
from tests.core.test_examples import approved
from tests.core.walks import subjects


@pytest.mark.parametrize("name", subjects())
def test_a_machine_walks_as_was_approved(name: str) -> None:
    assert digest(subjects()[name]) == approved().get(name), (
        f"{name!r} walks otherwise. To compare, in both checkouts: python -m tests.core.examples {name!r}"
    )


def test_every_walk_that_is_approved_is_walked() -> None:
    assert {name for name in approved() if name.startswith(("walk ", "world ", "run "))} == subjects().keys()
