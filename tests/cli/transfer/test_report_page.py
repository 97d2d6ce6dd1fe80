"""A drain as a page: before, after, destinations, dead letters, the ledger's digest, and what is left to do."""

import asyncio
import hashlib
import re
import resource
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.transfer.conclusion import Asked, DrainResult
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.core.transfer.ledger_report import IncidentReport
from sbpair.core.transfer.report import DrainReport, Left
from sbpair.operations.ledgers import ReportRequest, report
from sbpair.render.drained import drain_result, page_of
from sbpair.render.formats import page_to_markdown
from sbpair.render.html import to_html
from sbpair.render.page import Bars, Cards, ChartLine, EqualFindings, Findings, LineChart, Page, Text, Tone
from sbpair.render.result import Table
from tests.cli.process import Sbpair
from tests.core.snapshots import a_pair
from tests.waiting import LIMIT_SECONDS

ASKED = Asked("orders", "contoso-weu", "sbpair drain orders")
QUEUE = QueueContents("contoso-weu/x-servicebus-transfer/0", active=0, deferred=0, scheduled=0, dead_letter=0)
EMPTY = Backlog("orders", 1000.0, (QUEUE,))
DIVERT = """
import asyncio
from sbpair import compose, for_backlog, open_sides
from sbpair.settings import load
async def main():
    pair = load().pair("local")
    async with open_sides(pair) as sides:
        payloads = [for_backlog(compose(body="x", message_id=str(n)), "orders") for n in range(3)]
        payloads.append(for_backlog(compose(body="x", message_id="lost"), "no-such-queue"))
        await sides.secondary.sender(pair.backlog_paths()[1]).send(payloads, timeout_seconds=30)
asyncio.run(main())
"""


def page(
    report: DrainReport,
    backlog: Backlog | None,
    before: Mapping[str, int] | None = None,
    incident: IncidentReport | None = None,
) -> Page:
    drained = DrainResult.of(ASKED, report, backlog, None, before)
    return page_of(a_pair(), drained, drain_result(a_pair(), drained), 0.0, incident)


def tables(made: Page) -> dict[str, list[dict[str, object]]]:
    return {one.title: [dict(row) for row in one.rows] for one in made.sections if isinstance(one, Table)}


def test_a_drain_that_went_well_says_so_first_and_shows_before_and_after() -> None:
    report = DrainReport(
        forwarded=3, completed=3, per_destination=(("carts", 1), ("orders", 2)), confirmed_empty=True, seconds=2.5
    )
    made = page(report, EMPTY, {QUEUE.queue: 3})
    assert made.tone is Tone.GOOD
    assert made.lead.startswith("3 messages are back on")
    assert ("Began", "1970-01-01 00:00:00 UTC") in made.facts
    (row,) = tables(made)["Backlog queues"]
    assert (row["before"], row["active"]) == (3, 0)
    (went,) = (one for one in made.sections if isinstance(one, Bars))
    assert [(bar.label, bar.value) for bar in went.bars] == [("orders", 2), ("carts", 1)]
    assert "Dead-lettered in this run" not in tables(made)


def test_what_is_left_why_and_what_is_not_known_are_told() -> None:
    left = replace(QUEUE, active=None, deferred=None, dead_letter=2, error_code="timeout", exit_name="unreachable")
    report = DrainReport(
        forwarded=1,
        dead_lettered=2,
        dead_letter_reasons=(("TooLarge", 2),),
        left=(Left("timeout", 4),),
        per_destination=(("orders", 1),),
    )
    made = page(report, replace(EMPTY, queues=(left,)))
    assert made.tone is not Tone.GOOD
    found = tables(made)
    assert found["Dead-lettered in this run"] == [{"why": "TooLarge", "messages": 2}]
    assert found["Left in the backlog"] == [{"why": "timeout", "messages": 4}]
    (row,) = found["Backlog queues"]
    assert (row["before"], row["active"], row["dead_letter"]) == ("not counted", "unknown", 2)
    assert made.lead.index("dead letters remain") < made.lead.index("is back on"), "the worst first"
    assert "could not be counted before the run" in to_html(made)


def test_a_dry_run_says_what_would_be_and_what_is_left_first() -> None:
    report = DrainReport(
        forwarded=4,
        dead_lettered=1,
        dead_letter_reasons=(("InvalidDestination", 1),),
        left=(Left("a", 2), Left("b", 30)),
        per_destination=(("orders", 4),),
        dry_run=True,
    )
    waiting = replace(QUEUE, active=37)
    made = page(report, replace(EMPTY, queues=(waiting, replace(QUEUE, queue="empty"))), {QUEUE.queue: 37, "empty": 0})
    assert made.lead.startswith("4 messages would go back")
    (cards,) = (one for one in made.sections if isinstance(one, Cards))
    assert [(card.label, card.value) for card in cards.cards] == [
        ("To move", "37"), ("Would be sent", "4"), ("Would be dead-lettered", "1"), ("Would be left", "32"),
    ]  # fmt: skip
    found = tables(made)
    assert [row["why"] for row in found["Would be left in the backlog"]] == ["b", "a"], "the most first"
    assert "Backlog queues (1 other with no message)" in found
    assert not re.search(r"Moved|went|, after|Also counted", to_html(made)), "nothing has happened"


def test_many_destinations_are_told_once_each_and_few_of_them_drawn() -> None:
    went = tuple((f"queue-{index:03}", 300 - index) for index in range(300))
    report = DrainReport(forwarded=sum(one[1] for one in went), per_destination=went, confirmed_empty=True)
    made = page(report, EMPTY, {QUEUE.queue: 1})
    (bars,) = (one for one in made.sections if isinstance(one, Bars))
    assert bars.note == f"280 others with {sum(one[1] for one in went[20:]):,} together."
    assert len(tables(made)["All destinations"]) == 300
    assert "Also counted" not in tables(made)
    document = to_html(made)
    assert document.index("queue-029<") < document.index("<summary>270 more</summary>") < document.rindex("queue-030<")


@pytest.mark.parametrize("lines", [0, 1, 50_000])
def test_the_ledger_is_told_by_its_digest(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "ledger.jsonl"
    one = LedgerEntry(QUEUE.queue, 1, "m1", 0, "orders", None, "forwarded", "2026-11-24T08:00:00+00:00").line()
    path.write_bytes(one * lines)
    told = asyncio.run(report(ReportRequest((path,))))
    (file,) = told.ledgers
    assert (file.lines, file.sha256) == (lines, hashlib.sha256(path.read_bytes()).hexdigest())
    made = page(DrainReport(), EMPTY, incident=told)
    assert ("SHA-256 of the ledger", file.sha256) in made.facts


def test_the_command_writes_it(local: Sbpair) -> None:
    assert local("provision", "local", "--queues", "2").code == 0
    local.make_queue("orders")
    local.python(DIVERT)
    ran = local("drain", "local", "--yes", "--ledger", "l.jsonl", "--report", "incident.html", "-o", "json")
    assert (ran.code, ran.data["forwarded"]) == (3, 3), ran
    text = (local.home / "incident.html").read_text(encoding="utf-8")
    digest = hashlib.sha256((local.home / "l.jsonl").read_bytes()).hexdigest()
    for told in ("Drain of local", "3 messages are back on local-primary", "orders", "no-such-queue", digest):
        assert told in text.replace("<wbr>", ""), told
    copied = re.findall(r'<code class="command">(.*?)</code>', text)
    assert "sbpair drain local --ledger l.jsonl" in copied
    assert all(one.count("sbpair ") == 1 for one in copied), "what is copied is one command"
    again = local("drain", "local", "--yes", "--ledger", "l.jsonl", "--report", "again.md", "-o", "html")
    assert again.code == 3, again
    assert "<html" in again.stdout
    markdown = (local.home / "again.md").read_text(encoding="utf-8")
    assert markdown.startswith("# Drain of local\n")
    digest = hashlib.sha256((local.home / "l.jsonl").read_bytes()).hexdigest()
    for told in ("## Left in the backlog", "no-such-queue", f"SHA-256 of the ledger: {digest}"):
        assert told in markdown, told


@pytest.mark.parametrize(
    ("name", "code", "said"), [("incident.pdf", 2, "ends in none of"), ("folder.md/x/y.md", 1, "Nothing was done")]
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_moves(
    local: Sbpair, name: str, code: int, said: str
) -> None:
    (local.home / "folder.md").write_text("a file")
    ran = local("drain", "local", "--yes", "--report", name)
    assert (ran.code, said in ran.stderr) == (code, True), ran


def test_markdown_tells_what_the_page_tells_and_strangers_make_no_markup() -> None:
    hostile = "a|b](http://x) <img src=x>\n# head\x1b[2J"
    report = DrainReport(forwarded=2, per_destination=((hostile, 2),), left=(Left(hostile, 1),))
    text = page_to_markdown(page(report, EMPTY))
    assert text.count("a\\|b]\\(http://x) \\<img src=x> # head\\x1b[2J") >= 2
    assert text.count("\n# ") == 0
    assert "\x1b" not in text


def test_every_kind_of_section_has_a_markdown() -> None:
    made = Page(
        "A page",
        (
            LineChart(
                "Over time", (ChartLine("active", ((0, 1), (1, 2))),), "hour", "messages", note="of the last hours"
            ),
            Text("As it was", ("one\n  two",), literal=True),
            Findings("Findings", (EqualFindings("error", "SBP001", "Too few", "x", (("q", "3"),), ("Do this.",)),)),
        ),
        lead="All is said.",
    )
    text = page_to_markdown(made)
    for told in ("**All is said.**", "| active | 1 | 2 |", "of the last hours", "    one\n      two", "1. Do this."):
        assert told in text, text


def test_a_drain_whose_report_has_no_room_says_what_it_has_done(provisioned: Sbpair) -> None:
    provisioned.python(DIVERT)
    command = provisioned.command(["drain", "local", "--yes", "--report", "full.html"])
    done = subprocess.run(
        command,
        cwd=provisioned.home,
        env=provisioned.variables(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000)),
    )
    assert done.returncode == 1, done
    assert "Cannot write full.html: File too large. Apart from the report it is done. 3 messages" in done.stderr, done
