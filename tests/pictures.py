"""`python -m tests.pictures`: draw the README's pictures anew, into tests/approved/pictures.

A picture is what a terminal of 80 columns would show of a pair that is written down here, so that it changes only when
the words or the layout of the command do. It brings no font and fetches none.
"""

import re
from io import StringIO
from pathlib import Path

from rich.console import Console

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


def drawn(shown: CommandResult, command: str) -> str:
    """The picture of what a command shows on a terminal, as SVG."""
    console = Console(
        record=True, file=StringIO(), width=80, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(as_renderable(shown))
    svg = console.export_svg(title=command, unique_id="sbpair")
    without_fonts = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in without_fonts.splitlines()) + "\n"


def pictures() -> dict[str, str]:
    """File name -> picture."""
    return {"status.svg": drawn(status(), "sbpair status orders")}


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
