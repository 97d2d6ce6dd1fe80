"""The book itself: every law has a source, the code that keeps it, and a test that is marked with its name."""

import ast
from functools import cache
from pathlib import Path

import pytest

from sbpair.emulator.laws import BOOK, Evidence, Form, Laws, law_named
from sbpair.engine.errors import EmulatorError
from sbpair.service import Tier

TESTS = Path(__file__).parents[2]
PRODUCT = Path(__file__).parents[3] / "sbpair" / "emulator"


def names_of(call):
    """The laws that `pytest.mark.law("...", "...")`, or a case `law("...", ...)`, names."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "law":
        arguments = call.args
    elif isinstance(function, ast.Name) and function.id == "law":
        arguments = call.args[:1]
    else:
        return []
    return [one.value for one in arguments if isinstance(one, ast.Constant)]


@cache
def proven():
    """Names of laws that tests are marked with."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    calls = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {name for call in calls for name in names_of(call)}


def code_of(where):
    """The text of a function or class, given as `file.py Class.function`."""
    file, _, path = where.partition(" ")
    text = (PRODUCT / file).read_text(encoding="utf-8")
    node = ast.parse(text)
    for name in path.split("."):
        node = next(one for one in node.body if getattr(one, "name", None) == name)
    return ast.get_source_segment(text, node)


def test_the_book_is_not_thin():
    assert len({law.name for law in BOOK}) == len(BOOK) >= 50


@pytest.mark.parametrize("law", BOOK, ids=lambda law: law.name)
def test_a_law_has_a_test(law):
    assert law.name in proven(), f"no test is marked with pytest.mark.law({law.name!r})"


def test_tests_are_marked_with_laws_that_there_are():
    assert proven() - {law.name for law in BOOK} == set()


@pytest.mark.parametrize("law", BOOK, ids=lambda law: law.name)
def test_a_law_says_where_it_is_known_from_and_what_keeps_it(law):
    assert law.sentence.endswith(".")
    assert law.source.text
    assert law.asked_in or law.differs, "neither kept nor said to be different"
    bends = len(law.values) > 1
    if law.asked_in:
        code = code_of(law.asked_in)
        assert not bends or f"laws.{law.attribute}" in code, f"{law.asked_in} does not ask it"
    assert (law.source.evidence is not Evidence.UNKNOWN) or law.differs


def test_a_law_is_bent_by_name():
    assert Laws().partitioned_batch_key is True
    laws = Laws(Tier.PREMIUM, {"partitioned_batch_key": "lax"})
    assert laws.partitioned_batch_key is False
    assert laws.bent == {"partitioned-batch-key": Form.LAX}
    assert laws.max_batch_delete_messages == 4000
    assert law_named("partitioned-batch-key") is Laws.partitioned_batch_key


@pytest.mark.parametrize(
    ("bent", "text"),
    [
        ({"no-such-law": "lax"}, "no law 'no-such-law'"),
        ({"partitioned-batch-key": "other"}, "has no form 'other'; it has strict, lax"),
        ({"partition-in-sequence-number": "lax"}, "no form 'lax'; it has strict"),
    ],
)
def test_what_cannot_be_bent_is_refused(bent, text):
    with pytest.raises(EmulatorError, match=text):
        Laws(Tier.STANDARD, bent)


def test_a_tier_that_changes_keeps_what_is_bent(make_bench):
    namespace = make_bench(laws={"max-entities": "lax"}).namespace
    namespace.tier = Tier.PREMIUM
    assert namespace.laws.max_entities > 10_000
    assert namespace.laws.max_batch_bytes == 1024 * 1024
