"""Prose on a narrow terminal: paragraphs flow, indents hang, examples stay."""

from sbpair.render.prose import laid_out, wrapped

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


def test_a_long_line_is_broken_between_words_and_keeps_each_command_whole() -> None:
    command = "sbpair peek orders --dlq --group-by reason,destination --where \"a = 'x; y'\""
    told = f"3 dead letters remain in one queue. Run: {command}; then: sbpair drain orders --dlq. It goes on."
    assert laid_out(told, 40) == [
        "3 dead letters remain in one queue. Run:",
        f"  {command}",
        "  sbpair drain orders --dlq",
        "It goes on.",
    ]
    assert laid_out(told, 40, fold_commands=True) == [
        "3 dead letters remain in one queue. Run:",
        "  sbpair peek orders --dlq --group-by \\",
        "    reason,destination --where \\",
        "    \"a = 'x; y'\"",
        "  sbpair drain orders --dlq",
        "It goes on.",
    ]
    assert laid_out(told, 200) == [told]
    assert laid_out("Take them with `sbpair archive --take`, all of them.", 36) == [
        "Take them with",
        "`sbpair archive --take`, all of",
        "them.",
    ]


PAGE = """\
# A page

- An item of a list that goes on
  in a second line.
- Another one.
Then text.

```sh
sbpair drain orders --ledger drain.jsonl --rate 500

sbpair status
```

| Option | Meaning | Default |
| --- | --- | --- |
| `--rate` | messages a second | none |
| `--for` | | 15m |
"""


def test_a_page_keeps_code_hangs_items_and_makes_a_wide_table_a_paragraph_a_row() -> None:
    assert wrapped(PAGE, 26).splitlines() == [
        "# A page",
        "",
        "- An item of a list that",
        "  goes on in a second",
        "  line.",
        "- Another one.",
        "Then text.",
        "",
        "```sh",
        "sbpair drain orders --ledger drain.jsonl --rate 500",
        "",
        "sbpair status",
        "```",
        "",
        "`--rate`",
        "    Meaning: messages a",
        "      second",
        "    Default: none",
        "",
        "`--for`",
        "    Default: 15m",
    ]
