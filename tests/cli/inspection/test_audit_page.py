"""The audit as a page, from a saved fleet: a healthy pair, one with a backlog, one whose secondary does not answer."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.entities import Counts
from sbpair.core.inspection.snapshot import Peeked, Snapshot, Unread
from tests.cli.process import Ran, Sbpair
from tests.core.snapshots import NOW, a_pair, a_queue, healthy, path
from tests.render.chromium import browser, executable


def named(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, pair=replace(snapshot.pair, name=name))


def fleet() -> list[Snapshot]:
    stranded = [
        a_queue(path(index), counts=Counts(active=1000 * index, dead_letter=index), size_in_bytes=900_000,
                peeked=Peeked(True, bool(index), NOW - 9000.0 * (index + 1)))
        for index in (0, 1, 2)
    ]  # fmt: skip
    waiting = healthy(a_pair(4), without=(path(3),), more=(*stranded, a_queue(path(7))))
    silent = healthy()
    why = "Could not list the queues of fabrikam: <b>no answer</b> within 30 s."
    unread = tuple(Unread(what, "timeout", why, "unreachable") for what in ("namespace", "queues", "topics"))
    silent = replace(silent, secondary=replace(silent.secondary, facts=None, queues=None, topics=None, unread=unread))
    return [named(healthy(), "well"), named(waiting, "billing"), named(silent, "silent")]


def page(sbpair: Sbpair) -> Ran:
    document = {"snapshots": [snapshot.to_dict() for snapshot in fleet()]}
    (sbpair.home / "fleet.json").write_text(json.dumps(document), encoding="utf-8")
    return sbpair("audit", "--snapshot", "fleet.json", "-o", "html", "--outfile", "audit.html")


def test_the_fleet_is_on_one_page_and_its_words_stay_words(sbpair: Sbpair) -> None:
    ran = page(sbpair)
    assert (ran.code, ran.stdout) == (6, "")
    text = (sbpair.home / "audit.html").read_text(encoding="utf-8")
    for words in ("well", "billing", "silent", "3,000", "3 dead", "not read", "unreachable", "oldest 7h30m"):
        assert words in text, words
    assert "&lt;b&gt;no answer&lt;/b&gt;" in text
    assert "<b>" not in text


def test_a_large_fleet_begins_with_the_worst_and_tells_equal_findings_once(sbpair: Sbpair) -> None:
    many = [named(one, f"{one.pair.name}-{index}") for index in range(40) for one in fleet()]
    document = {"snapshots": [snapshot.to_dict() for snapshot in many]}
    (sbpair.home / "fleet.json").write_text(json.dumps(document), encoding="utf-8")
    assert sbpair("audit", "--snapshot", "fleet.json", "-o", "html", "--outfile", "audit.html").code == 6
    text = (sbpair.home / "audit.html").read_text(encoding="utf-8")
    (lead,) = re.findall(r'<p class="lead[^>]*>(.*?)</p>', text)
    assert re.match(r"40 pairs could not be read in full: silent-0, [^.]* more\. Error: ", lead)
    verdicts = re.findall(r'data-label="Verdict"[^>]*><span[^>]*>(\w+)', text)
    assert verdicts == ["unreachable"] * 40 + ["error"] * 40 + ["ok"] * 40
    codes = re.findall(r'<span class="code">(\w+)</span>', text)
    assert len(codes) == len(set(codes))
    assert "<strong>billing-39: contoso/" in text.replace("<wbr>", "")


def test_the_last_line_tells_what_waits_before_anything_else(sbpair: Sbpair) -> None:
    page(sbpair)
    ran = sbpair("audit", "billing", "--snapshot", "fleet.json", "-o", "nagios")
    waits = "3,000 messages and 3 dead letters wait in 2 queues, the oldest for 7h30m."
    assert ran.stdout.startswith(f"SBPAIR CRITICAL - {waits} 1 error, 6 warnings"), ran
    assert waits not in sbpair("audit", "well", "--snapshot", "fleet.json", "-o", "nagios").stdout


def test_one_silent_namespace_is_one_row_of_what_was_skipped(sbpair: Sbpair) -> None:
    page(sbpair)
    ran = sbpair("audit", "silent", "--snapshot", "fleet.json", "-o", "markdown")
    rows = [line for line in ran.stdout.partition("### Not checked")[2].splitlines() if line.startswith("| silent")]
    whole = [row for row in rows if row.count("SBP") > 5]
    assert len(whole) == 1
    assert "does not answer" in whole[0]
    assert len(rows) <= 4


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed")
async def test_a_browser_has_nothing_to_complain_of(sbpair: Sbpair) -> None:
    page(sbpair)
    async with browser(str(executable())) as tab:
        for name in ("audit",):
            for width in (390, 840, 1280):
                visit = await tab.visit(Path(sbpair.home / f"{name}.html"), width=width, scheme="dark")
                assert visit.complaints == []
                assert len([url for url in visit.requests if not url.startswith("data:")]) == 1
                assert visit.content_width <= width
