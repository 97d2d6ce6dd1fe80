"""The reports of analysis and trend in a real browser: on a desktop and a phone, light and dark."""

from pathlib import Path

import pytest

from sbpair.cli.pipeline.session import write_report
from sbpair.core.inspection.trend import FindingSeen, Growth, Reading, Trend
from sbpair.core.prices import built_in
from sbpair.pipeline.analysis.analyze import analyse, to_analysis
from sbpair.pipeline.analysis.units import LocalEngine, units_in
from sbpair.render.reports import analysis_result, trend_result
from sbpair.render.result import CommandResult
from tests.cli.schema_checks import check_data
from tests.pipeline.analysis.test_analyze import QUESTION, message, write
from tests.render.chromium import browser, executable

HOSTILE = "<script>alert('x')</script>\x1b[31m"


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> CommandResult:
    folder = tmp_path_factory.mktemp("archive")
    names = ("orders/" + "long" * 20, HOSTILE, HOSTILE)
    rows = [
        message(number, 300 - number, destination=names[number % 3], session_id=HOSTILE) for number in range(1, 100)
    ]
    dead = [message(200, 5, dead_letter=True, dead_letter_reason=HOSTILE, destination=None, message_id="m1")]
    again = [message(number, 10, message_id=HOSTILE, ttl_ms=1000) for number in (300, 301)]
    files = [write(folder / f"{index}.parquet", part) for index, part in enumerate((rows, dead, again))]
    made = analyse(LocalEngine(units_in(files), cores=2), QUESTION, rows=102)
    return analysis_result(to_analysis(made, ["backlog/"], QUESTION, built_in()))


def test_the_analysis_says_what_to_know(analysed: CommandResult, tmp_path: Path) -> None:
    result = analysed
    check_data("pipeline analyze", result.data)
    assert result.summary.startswith("102 messages (99.6 KB) for 4 destinations; at 0.01 a second a drain takes 2h50m")
    assert result.data.duplicate_ids == 1
    assert "1 message names no destination" in " ".join(result.notes)
    assert "2 messages have expired" in " ".join(result.notes)
    assert "66 messages name a destination that cannot be a queue or topic" in " ".join(result.notes)
    assert [row.reason for row in result.data.rows.dead_letters] == [HOSTILE]
    write_report(result, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text and "\x1b" not in text
    assert "&lt;script&gt;alert" in text


def trended() -> CommandResult:
    at = 1_793_491_200.0
    queue = Growth(
        pair="shop",
        queue=HOSTILE,
        readings=9,
        first_at=at,
        last_at=at + 9,
        active_first=1,
        active=9,
        dead_letter=0,
        size_bytes=9,
        messages_per_hour=1.5,
        bytes_per_hour=10,
        seconds_until_full=3600.0,
    )
    finding = FindingSeen(
        pair="shop",
        code="SBP001",
        open=True,
        latest=1,
        most=2,
        seen_in=3,
        audits=9,
        first_seen=at,
        last_seen=at + 9,
        changes=5,
    )
    readings = tuple(Reading("shop", at + 3600 * hour, hour * hour, 0, 0, 0) for hour in range(9))
    return trend_result(Trend(readings, (queue,), (finding,)))


def test_the_trend_has_the_fields_of_its_schema() -> None:
    check_data("pipeline trend", trended().data)


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed")
async def test_browsers_have_nothing_to_complain_about(analysed: CommandResult, tmp_path: Path) -> None:
    chromium = executable()
    assert chromium is not None
    pages = {"analysis": analysed, "trend": trended()}
    async with browser(chromium) as tab:
        for name, result in pages.items():
            file = tmp_path / f"{name}.html"
            write_report(result, file)
            for width, scheme in ((390, "light"), (1280, "dark")):
                visit = await tab.visit(file, width=width, scheme=scheme)
                (tmp_path / f"{name}-{width}.png").write_bytes(visit.screenshot)
                assert (visit.complaints, visit.requests) == ([], [file.as_uri()])
                assert visit.content_width <= width, name
