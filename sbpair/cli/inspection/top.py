"""`sbpair top`: namespaces and pairs at a glance, kept fresh."""

import asyncio
import logging
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from sbpair import operations
from sbpair.cli.context import load_settings, run_async
from sbpair.cli.inspection.exporter import (
    IntervalOption,
    NamespacesArgument,
    PairsOption,
    ToWatch,
    chosen_namespaces,
    chosen_pairs,
    seconds_between,
)
from sbpair.cli.main import handled_signals
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.render.console import can_redraw, colors_wanted
from sbpair.render.result import CommandResult


@command(output="cli.inspection.exporter:WatchEnded", besides="It draws on a terminal.")
def top(
    options: Options,
    namespaces: NamespacesArgument = None,
    pairs: PairsOption = None,
    interval: IntervalOption = "10s",
    auth: NamespaceAuthOption = None,
) -> CommandResult:
    """Watch pairs, queues, subscriptions and dead letters on a terminal, down to a message; ? lists the keys.

    Rates, ages and causes come from what `sbpair exporter` reads, with as few calls; a namespace of thousands of
    entities is read less often than --interval. Each row has the command that acts on it, to copy. What cannot be read
    keeps its last figures, marked with !. Reads only; bodies are hidden until b is pressed. Needs Manage on the
    namespaces, and Listen to browse. Install it: pip install 'sbpair[top]'

    \b
    Examples:
      sbpair top
      sbpair top contoso-weu --interval 30s
    """
    settings = load_settings(options)
    seconds = seconds_between(interval)
    chosen = chosen_pairs(settings, pairs, namespaces)
    places = chosen_namespaces(settings, namespaces, (), auth) + chosen_namespaces(settings, None, chosen, None)
    _check_terminal()
    watch = ToWatch(
        list({access.host: access for access in places}.values()),
        chosen,
        operations.ScrapeRequest(),
        seconds,
        options.timeout_seconds(operations.StatusRequest().timeout_seconds),
    )
    if not colors_wanted(options.no_color):
        os.environ["NO_COLOR"] = "1"
    for name in ("LINES", "COLUMNS"):  # a size that this terminal once had: Textual would not look further
        os.environ.pop(name, None)

    async def work(stop: asyncio.Event) -> None:
        from sbpair.cli.inspection.top_view import TopApp

        logging.getLogger("sbpair").handlers[:] = [logging.NullHandler()]  # the screen is taken, and says it itself
        _end_in_time()
        async with watch.opened() as watched:
            await TopApp(watched, stop, seconds).run_async()

    run_async(options, work)
    return CommandResult(watch.ended, text="")


def _check_terminal() -> None:
    from importlib.util import find_spec

    if not (can_redraw(sys.stdout) and can_redraw(sys.stderr) and sys.stdin.isatty()):
        raise UsageError(
            "`sbpair top` draws on a terminal that can move its cursor, and this is none (TERM is "
            f"{os.environ.get('TERM', 'not set')}).",
            hint="Lines instead: sbpair status --watch",
        )
    if find_spec("textual") is None:
        raise UsageError("`sbpair top` needs the package textual.", hint="pip install 'sbpair[top]'")


LEAVE_SECONDS = 2.0
"""From a signal, or from the terminal's end, to that of the process."""
_RESTORE_SCREEN = b"\x1b[<u\x1b[?1000;1003;1004;1006;1015;2004;2048l\x1b[?7;25h\x1b[?1049l"


def _end_in_time() -> None:
    """From now on the process ends `LEAVE_SECONDS` after a signal or after its terminal has gone, whatever it waits
    for. Textual waits without limit for a terminal that takes no output, and the event loop hears of no signal then.
    """
    if not hasattr(select, "poll"):
        return
    import termios

    terminal, came = sys.stdin.fileno(), list[int]()
    before = termios.tcgetattr(terminal)
    woken, waker = os.pipe()

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        os.write(waker, b".")

    def watch() -> None:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(terminal, 0)  # which is enough to hear of its end
        while not any(event & ~select.POLLNVAL for _, event in poll.poll()):
            poll.unregister(terminal)  # a system that cannot poll terminals
        time.sleep(LEAVE_SECONDS)
        with suppress(OSError, termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)
            restoring = threading.Thread(target=os.write, args=(terminal, _RESTORE_SCREEN), daemon=True)
            restoring.start()
            restoring.join(0.1)
        os._exit(Exit.INTERRUPTED if signal.SIGINT in came else Exit.TERMINATED)

    for number in handled_signals():
        # Beside the handler of the loop, which goes on to be called. Unlike that it interrupts a wait for a lock.
        signal.signal(number, on_signal)
    threading.Thread(target=watch, name="sbpair-end", daemon=True).start()
