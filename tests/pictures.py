"""`python -m tests.pictures`: draw the README's pictures anew, into tests/approved/pictures.

A picture is what a terminal of 80 columns would show of a pair that is written down here, so that it changes only when
the words or the layout of the command do. It brings no font and fetches none. The page of an analysis is photographed
in Chromium, and left as it is where that is not installed.
"""

import asyncio
import base64
import math
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from sbpair.cli.inspection.status import result
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.entities import EntityKind, Tier
from sbpair.core.errors import OperationTimeoutError
from sbpair.core.inspection.entity import Listed, ListedEntities, ScrapedNamespace
from sbpair.core.inspection.status import REACHABLE, PairStatus, SideStatus, StatusReport
from sbpair.core.prices import Forecast, built_in
from sbpair.operations.watching import Watched, WatchedSource
from sbpair.pipeline.analysis.analyze import Analysis, forecast
from sbpair.pipeline.analysis.partials import Question
from sbpair.pipeline.analysis.results import AnalysisRows, DestinationRow, Minute, Outage, QueueRow, SizeRange, Total
from sbpair.render.html import to_html
from sbpair.render.reports import analysis_result
from sbpair.render.result import CommandResult
from sbpair.render.tables import as_renderable
from sbpair.render.top import TopApp
from tests.render.chromium import browser, executable

FOLDER = Path(__file__).parent / "approved" / "pictures"
NOW = 1_763_800_000.0
WAITING = (1_204, 1_187, 1_251, 1_176, 1_222, 0, 1_198, 1_240, 1_209, 1_193)
"""Messages by queue; nobody drew the sixth one, and a message of the last one is dead."""


def status() -> CommandResult:
    """A pair after an outage of an afternoon."""
    primary = SideStatus("primary", "contoso-weu", REACHABLE, Tier.PREMIUM, 21.0)
    secondary = SideStatus("secondary", "contoso-neu", REACHABLE, Tier.STANDARD, 34.0)
    queues = tuple(
        QueueContents(
            f"contoso-weu/x-servicebus-transfer/{index}",
            active=waiting,
            deferred=0,
            scheduled=0,
            dead_letter=int(index == len(WAITING) - 1),
            size_in_bytes=waiting * 2_048,
            oldest_enqueued_at=NOW - 15_000 + index * 60 if waiting else None,
        )
        for index, waiting in enumerate(WAITING)
    )
    now = PairStatus("orders", NOW, primary, secondary, Backlog("orders", NOW, queues), environment="production")
    return result(StatusReport(now, now))


DEMO = """\
[  1.5s] Provisioned 10 backlog queues on local-secondary, documented settings.
[  1.7s] Paired. Sending 1,000 messages to a queue, a queue with sessions and a topic.
[  1.9s] The primary goes dark: 358 messages were accepted until now.
FAILED OVER events: connection-lost. Sends go to the backlog.
FAILED OVER orders: connection-lost. Sends go to the backlog.
FAILED OVER invoices/incoming: connection-lost. Sends go to the backlog.
[  3.7s] The primary comes back; 385 messages wait in the backlog.
FAILED BACK events after 1s: 128 messages went to the backlog.
FAILED BACK orders after 1s: 128 messages went to the backlog.
FAILED BACK invoices/incoming after 1.1s: 129 messages went to the backlog.
[  4.1s] All accepted: 532 by the primary, 468 by the backlog.
[  4.1s] A session that was diverted stays diverted until the drain, so that its order holds.
[  4.2s] The backlog holds 468 messages: 128 for events, 212 for invoices/incoming, 128 for orders.
[  5.7s] Sent 468 messages back to the primary in 1.5 s; the backlog is confirmed empty.
[ 12.1s] orders: 334 of 334 arrived, each once, byte for byte.
[ 12.1s] events/Subscriptions/all: 333 of 333 arrived, each once, byte for byte.
[ 12.1s] events/Subscriptions/audit: 167 of 167 arrived, each once, byte for byte.
[ 12.1s] invoices/incoming: 333 of 333 arrived, each once, byte for byte.
[ 12.3s] Audit: no findings in 10 backlog queues.
PROVED: every message arrived exactly once, byte for byte, sessions in order.
"""
"""What a demo said; a test of the demo knows each sentence again, whatever the numbers."""


def demo() -> Text:
    """The transcript; what goes wrong, comes back and is proved in the colours of those states."""
    text = Text(DEMO.rstrip())
    text.highlight_regex(r"(?m)^\[ *[0-9.]+s\]", "bright_black")
    text.highlight_regex(r"FAILED OVER|goes dark", "bold red")
    text.highlight_regex(r"FAILED BACK|comes back|confirmed empty", "green")
    text.highlight_regex(r"(?m)^PROVED.*$", "bold green")
    return text


def top() -> str:
    """Entities of a namespace that applications use, and of one that cannot be read now, as `sbpair top` lists them."""

    def entity(path: str, active: int, dead: int, scheduled: int, kind: EntityKind = EntityKind.QUEUE) -> Listed:
        return Listed(kind, path, "Active", active, dead, scheduled, 0, 0, 0)

    async def unread(before: ScrapedNamespace | None) -> ScrapedNamespace:
        raise OperationTimeoutError("No answer from contoso-neu in 10 s.")

    def source(
        name: str, *reads: tuple[Listed, ...], ages: Mapping[str, float]
    ) -> WatchedSource[NamespaceAccess, ScrapedNamespace]:
        access = NamespaceAccess(name, f"{name}.servicebus.windows.net", AuthMethod.AZURE_CLI)
        found = [
            ScrapedNamespace(ListedEntities(name, read), 0, NOW + 10 * at, ages, {}, {}, Forecast())
            for at, read in enumerate(reads)
        ]
        return WatchedSource("The namespace", access, unread, 10.0, found[-1], found[0], NOW)

    async def drawn_app() -> str:
        stop = asyncio.Event()
        audit = "events/Subscriptions/audit"
        subscription = entity(audit, 12_880, 0, 0, EntityKind.SUBSCRIPTION)
        weu = source(
            "contoso-weu",
            (
                entity("orders", 1_210, 3, 40),
                replace(subscription, active=12_010),
                entity("invoices/incoming", 0, 41, 0),
            ),
            (entity("orders", 1_204, 3, 40), subscription, entity("invoices/incoming", 0, 58, 0)),
            ages={"orders": 4.0, audit: 5_400.0},
        )
        neu = source("contoso-neu", (entity("contoso-weu/x-servicebus-transfer/0", 31, 0, 0),), ages={})
        neu.trouble = "No answer in 10 s."
        app = TopApp(Watched(), stop, 10.0, now=lambda: NOW + 45)
        async with app.run_test(size=(80, 14)) as pilot:
            app._watched.namespaces += [weu, neu]  # nothing reads them: the picture is of what was read
            await pilot.press("e")
            await pilot.pause()
            return app.export_screenshot(title="sbpair top")

    return without_fonts(asyncio.run(drawn_app()))


def drawn(shown: RenderableType, command: str, *, columns: int = 80) -> str:
    """The picture of what a command shows on a terminal, as SVG."""
    console = Console(
        record=True, file=StringIO(), width=columns, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(shown)
    svg = console.export_svg(title=command, unique_id="sbpair")
    return without_fonts(svg)


def without_fonts(svg: str) -> str:
    alone = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in alone.splitlines()) + "\n"


# The page of an analysis

PHOTOGRAPH = "analysis.png"
_WIDTH, _HEIGHT = 1000, 900
_SHARES = {"orders": 23, "invoices/incoming": 9, "events": 5}
"""Destination -> messages a minute, roughly."""
_KILOBYTES = 2


def analysis() -> CommandResult:
    """The backlog of an outage of four hours, three destinations."""
    began = datetime.fromtimestamp(NOW, UTC) - timedelta(seconds=15_000)
    minutes = [
        Minute(
            pair="orders",
            destination=name,
            minute=began + timedelta(minutes=at),
            messages=round(share * (1.2 + 0.5 * math.sin(at / 37) + 0.15 * math.sin(1.3 * at))),
        )
        for name, share in _SHARES.items()
        for at in range(240)
    ]
    of = {name: sum(one.messages for one in minutes if one.destination == name) for name in _SHARES}
    size = 1024 * _KILOBYTES
    destinations = [
        DestinationRow(
            pair="orders",
            destination=name,
            messages=messages,
            bytes=messages * size,
            units=messages,
            dead_letters=int(name == "orders"),
            pings=0,
            sessions=412 if name == "invoices/incoming" else 0,
            oldest_at=began,
            newest_at=began + timedelta(minutes=239),
            age_p50_seconds=7_200,
            age_p95_seconds=14_400,
            age_max_seconds=15_000,
            size_p50=size,
            size_p95=3 * size,
            size_p99=4 * size,
            size_max=9 * size,
            near_limit=0,
            expired=140 if name == "events" else 0,
            expiring=52 if name == "events" else 0,
            exists=True,
        )
        for name, messages in of.items()
    ]
    outages = [
        Outage(
            pair="orders",
            destination=name,
            began_at=began,
            ended_at=began + timedelta(minutes=239),
            seconds=239 * 60,
            messages=messages,
            bytes=messages * size,
            busiest_minute=max(one.messages for one in minutes if one.destination == name),
            going_on=False,
        )
        for name, messages in of.items()
    ]
    all_messages = sum(of.values())
    queues = [
        QueueRow(
            pair="orders",
            queue=f"contoso-weu/x-servicebus-transfer/{index}",
            dead_letter=False,
            messages=all_messages // 10 + index * 37 % 90,
            bytes=all_messages // 10 * size,
            units=all_messages // 10,
            oldest_at=began,
            newest_at=began + timedelta(minutes=239),
        )
        for index in range(10)
    ]
    total = Total(pair="orders", messages=all_messages, bytes=all_messages * size, units=all_messages, dead_letters=1)
    shares = ((0, 1, 4), (1, 2, 6), (2, 4, 8), (4, 8, 2))
    sizes = [
        SizeRange(
            pair="orders",
            from_bytes=1024 * low,
            to_bytes=1024 * high,
            messages=all_messages * share // 20,
            bytes=all_messages * share // 20 * 1024 * high,
        )
        for low, high, share in shares
    ]
    question = Question(as_of=NOW)
    rows = AnalysisRows(
        destinations=tuple(destinations),
        hours=(),
        minutes=tuple(minutes),
        queues=tuple(queues),
        outages=tuple(outages),
        time_to_live=(),
        dead_letters=(),
        sessions=(),
        duplicates=(),
        size_histogram=tuple(sizes),
        totals=(total,),
    )
    found = Analysis(
        archives=("archive",),
        as_of=NOW,
        sessions_in_trouble=0,
        duplicate_ids=0,
        messages_per_second=question.messages_per_second,
        rows=rows,
        forecast=(forecast(total, question, built_in()),),
    )
    return analysis_result(found)


async def photographed(result: CommandResult, chromium: str) -> bytes:
    """The upper part of a result's page as PNG."""
    assert result.page is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(to_html(result.page), encoding="utf-8")
        async with browser(chromium) as tab:
            await tab.visit(file, width=_WIDTH, scheme="light")
            clip = {"x": 0, "y": 0, "width": _WIDTH, "height": _HEIGHT, "scale": 1}
            return base64.b64decode((await tab.call("Page.captureScreenshot", clip=clip))["data"])


def pictures() -> dict[str, str]:
    """File name -> drawing."""
    return {
        "demo.svg": drawn(demo(), "sbpair demo", columns=100),
        "top.svg": top(),
        "status.svg": drawn(as_renderable(status()), "sbpair status orders"),
    }


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
    chromium = executable()
    if chromium is None:
        print(f"{PHOTOGRAPH} stays as it is: Chromium is not installed.", file=sys.stderr)
        return
    (FOLDER / PHOTOGRAPH).write_bytes(asyncio.run(photographed(analysis(), chromium)))


if __name__ == "__main__":
    main()
