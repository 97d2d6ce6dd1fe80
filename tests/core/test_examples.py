"""What results say of themselves - exit codes, sentences, rows, figures - and what the functions of the core answer.

Of each there are examples and calls of all kinds, and the digest of the answers is approved. A change that is meant:
`python -m tests.core.examples`. With a name it prints the answers, here and in another checkout to compare with.
"""

from types import ModuleType

import pytest

from tests.core.examples import APPROVED, current, digest, modules


def approved() -> dict[str, str]:
    lines = APPROVED.read_text("utf-8").splitlines()
    return {name: known for name, _, known in (line.rpartition(" ") for line in lines)}


@pytest.mark.parametrize("module", [*modules()], ids=lambda module: module.__name__)
def test_the_core_answers_as_was_approved(module: ModuleType) -> None:
    place, found = module.__name__.removeprefix("sbpair.core."), current(module)
    known = {name: one for name, one in approved().items() if name.partition(" ")[0] == place}
    assert found.keys() == known.keys()
    for name, answered in found.items():
        if digest(answered) != known[name]:
            print(*("\n  ".join([label(), *lines]) for label, lines in answered), sep="\n")
            pytest.fail(
                f"{name!r} answers otherwise. To compare, in both checkouts: python -m tests.core.examples {name!r}"
            )
