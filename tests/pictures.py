"""`python -m tests.pictures`: draw the README's pictures anew, into tests/approved/pictures.

A picture is what a terminal of 80 columns would show of a pair that is written down here, so that it changes only when
the words or the layout of the command do. It brings no font and fetches none.
"""

import re
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from sbpair.cli.inspection.status_shown import result
from sbpair.core.entities import Tier
from sbpair.core.inspection.backlog import Backlog, QueueContents
from sbpair.core.inspection.status import REACHABLE, PairStatus, SideStatus
from sbpair.render.result import CommandResult
from sbpair.render.tables import as_renderable

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
    return result(now, now)


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


def drawn(shown: RenderableType, command: str, *, columns: int = 80) -> str:
    """The picture of what a command shows on a terminal, as SVG."""
    console = Console(
        record=True, file=StringIO(), width=columns, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(shown)
    svg = console.export_svg(title=command, unique_id="sbpair")
    without_fonts = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in without_fonts.splitlines()) + "\n"


def pictures() -> dict[str, str]:
    """File name -> picture."""
    return {
        "demo.svg": drawn(demo(), "sbpair demo", columns=100),
        "status.svg": drawn(as_renderable(status()), "sbpair status orders"),
    }


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
