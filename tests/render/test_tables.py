"""Tables for people: a grid where it can be read, blocks where it cannot, and what is left out before that."""

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from sbpair.render.result import Column, CommandResult, Format, Table
from sbpair.render.tables import as_renderable, as_text

QUEUES = Table(
    "",
    (
        Column("pair", "Pair"),
        Column("queue", "Queue"),
        Column("messages", "Messages", right=True),
        Column("messages", "", drawn=True),
        Column("detail", "Detail"),
    ),
    [
        {"pair": "orders", "queue": f"contoso-weu/x-servicebus-transfer/{index}", "messages": index * 10}
        for index in range(4)
    ],
)
FINDING = Table(
    "Found",
    (
        Column("code", "Code"),
        Column("subject", "Subject"),
        Column("finding", "Finding"),
        Column("remedy", "What to do"),
    ),
    [
        {
            "code": "SBP001",
            "subject": "contoso-weu/x-servicebus-transfer/3",
            "finding": "It is not there, and nobody knows who has taken it away in the night.",
            "remedy": "sbpair provision orders\nthen look again",
        }
    ],
    style_key="code",
)


def shown(table: Table, width: int) -> list[str]:
    file = StringIO()
    result = CommandResult("x", {}, (table,), notes=("A note.",), summary="The end.")
    Console(file=file, width=width, color_system=None, highlight=False).print(as_renderable(result))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_wide_console_gets_every_column_and_the_bars() -> None:
    lines = shown(QUEUES, 120)
    assert lines[1].split() == ["Pair", "Queue", "Messages", "Detail"]
    assert "contoso-weu/x-servicebus-transfer/3" in lines[6]
    assert lines[6].count("\u2588") == 24
    assert lines[-2:] == ["A note.", "The end."]


def test_a_narrow_grid_says_once_what_all_rows_share() -> None:
    assert shown(QUEUES, 40) == [
        "In every row: Pair: orders; Queue:",
        "contoso-weu/x-servicebus-transfer/...",
        "Queue  Messages",
        "\u2500" * 15,
        "0             0",
        "1            10",
        "2            20",
        "3            30",
        "",
        "A note.",
        "The end.",
    ]


def test_what_no_grid_can_show_is_a_block_a_row() -> None:
    assert shown(FINDING, 40) == [
        "Found",
        "Code: SBP001",
        "Subject: contoso-weu/x-servicebus-transf",
        "         er/3",
        "Finding: It is not there, and nobody",
        "         knows who has taken it away in",
        "         the night.",
        "What to do: sbpair provision orders",
        "            then look again",
        "",
        "A note.",
        "The end.",
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("table", [QUEUES, FINDING, Table("", QUEUES.columns, [])])
def test_no_line_is_wider_than_the_console_and_no_word_is_lost(table: Table, width: int) -> None:
    lines = shown(table, width)
    assert max(map(cell_len, lines)) <= width
    squeezed = "".join("".join(lines).split())
    for row in table.rows:
        assert str(row.get("finding", "")).replace(" ", "") in squeezed


def test_a_table_without_rows_is_its_headings_or_nothing() -> None:
    empty = Table("", QUEUES.columns, [])
    assert shown(empty, 80)[1].split() == ["Pair", "Queue", "Messages", "Detail"]
    assert shown(empty, 30) == ["A note.", "The end."]


def test_a_text_has_every_column_and_no_width() -> None:
    lines = as_text(CommandResult("x", {}, (FINDING,), summary="The end.")).splitlines()
    assert any("in the night." in line and "sbpair provision orders" in line for line in lines)


def test_what_a_screen_shows_may_differ_from_the_table_of_line_formats() -> None:
    from sbpair.render.console import render

    result = CommandResult("x", {}, (QUEUES,), screen=(FINDING,))
    assert "SBP001" in render(result, Format.TABLE)
    assert "x-servicebus-transfer/3\t30" in render(result, Format.TSV)
