"""Prose on a narrow terminal: paragraphs flow, indents hang, examples stay."""

from sbpair.render.tables import wrapped

TEXT = """\
A paragraph that somebody has broken after
so many words, because that looked good.

    an: example  # that is longer than the line, and stays as it is

name
    what it is, which takes more than a line
   3  partial      some of the items failed
"""


def test_what_fits_stays_as_it_is() -> None:
    assert wrapped(TEXT, 80) == TEXT


def test_what_does_not_fit_is_broken_between_words() -> None:
    assert wrapped(TEXT, 36).splitlines() == [
        "A paragraph that somebody has broken",
        "after so many words, because that",
        "looked good.",
        "",
        "    an: example  # that is longer than the line, and stays as it is",
        "",
        "name",
        "    what it is, which takes more",
        "    than a line",
        "   3  partial      some of the items",
        "   failed",
    ]
    assert wrapped(TEXT, 40).splitlines()[-2:] == ["   3  partial      some of the items", "                   failed"]
