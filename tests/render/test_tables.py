"""Tables for people: a grid where it can be read, blocks where it cannot, and what is left out before that."""

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Table, columns
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
    result = CommandResult({}, (table,), notes=("A note.",), summary="The end.", command="x")
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
        "Same in all 4 rows: Pair orders; Queue",
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


COLUMNS = (Column("at", "Enqueued"), Column("path", "Destination"), Column("id", "Message id"))


def test_a_narrow_grid_says_the_day_of_all_times_once() -> None:
    times = ("2026-11-23T02:31:43.497Z", "2026-11-23T02:31:44Z", "2026-11-23T12:31:45.001Z")
    rows = [{"at": at, "path": "invoices/incoming", "id": f"order-{number}"} for number, at in enumerate(times)]
    assert shown(Table("", COLUMNS, rows), 50)[:5] == [
        "Same in all 3 rows: Enqueued 2026-11-23 UTC;",
        "Destination invoices/incoming",
        "Enqueued  Message id",
        "\u2500" * 20,
        "02:31:43  order-0",
    ]
    rows[1] |= {"at": "2026-11-22T23:00:00.000Z", "path": "orders"}
    assert [line.split()[:3] for line in shown(Table("", COLUMNS, rows), 48)[2:5]] == [
        ["11-23", "02:31:43", "invoices/incoming"],
        ["11-22", "23:00:00", "orders"],
        ["11-23", "12:31:45", "invoices/incoming"],
    ]


def test_a_column_with_other_words_than_times_keeps_its_times_whole() -> None:
    rows = [{"at": at, "path": "invoices/incoming", "id": "x" * 30} for at in ("2026-11-23T02:31:43.497Z", "never", "")]
    assert "2026-11-23T02:31:43.497Z" in "".join(shown(Table("", COLUMNS, rows), 60))


def test_a_narrow_grid_leaves_spare_columns_out_and_says_so() -> None:
    columns = (Column("what", "What"), Column("rule", "Rule", spare=True), Column("amount", "Amount", right=True))
    rows = [{"what": "base charge", "rule": f"{number} hours at 0.013441 USD", "amount": number} for number in (1, 2)]
    assert shown(Table("", columns, rows), 40)[:4] == [
        "No room here for: Rule; -o tsv has all.",
        "What         Amount",
        "\u2500" * 19,
        "base charge       1",
    ]
    assert "Rule" in shown(Table("", columns, rows), 80)[1]


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


@pytest.mark.parametrize("columns", [30, 80])
def test_words_say_that_a_table_has_no_rows(columns: int) -> None:
    assert shown(Table("", QUEUES.columns, []), columns) == ["A note.", "The end."]


def test_a_text_has_every_column_and_no_width() -> None:
    lines = as_text(CommandResult({}, (FINDING,), summary="The end.", command="x")).splitlines()
    assert any("in the night." in line and "sbpair provision orders" in line for line in lines)


def test_what_a_screen_shows_may_differ_from_the_table_of_line_formats() -> None:
    from sbpair.render.console import render

    result = CommandResult({}, (QUEUES,), screen=(FINDING,), command="x")
    assert "SBP001" in render(result, Format.TABLE)
    assert "x-servicebus-transfer/3\t30" in render(result, Format.TSV)


def test_numbers_of_things_have_commas_for_people_and_names_have_none() -> None:
    columns = (Column("number", "Number", right=True), Column("messages", "Messages", right=True, counts=True))
    table = Table("", columns, [{"number": 12345, "messages": 1234567}])
    assert as_text(CommandResult(None, (table,), command="x")).split()[-2:] == ["12345", "1,234,567"]


def test_a_column_says_only_what_its_key_does_not() -> None:
    assert columns("session_id: Session", ">on_primary", "#messages") == (
        Column("session_id", "Session"),
        Column("on_primary", "On primary", right=True),
        Column("messages", "Messages", right=True, counts=True),
    )
