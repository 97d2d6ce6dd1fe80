"""`sbpair exporter`: the figures of namespaces and pairs where Prometheus scrapes them. `sbpair top`: the same at a
glance, kept fresh on a terminal.
"""

import asyncio
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import load_settings, run_async
from sbpair.cli.main import handled_signals
from sbpair.cli.options import Options, address_option, command, duration_option, pause_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.render.console import can_redraw, colors_wanted
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.operations.watching import WatchRequest
    from sbpair.settings import Settings

DEFAULT_LISTEN = "127.0.0.1:9464"
NamespacesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAMESPACE]...",
        help="Name or host of a namespace; by default those of the pairs.",
        autocompletion=suggestions.configured_namespaces,
    ),
]
PairsOption = Annotated[
    list[str] | None,
    typer.Option("--pair", help="Pair to show; all without --pair and NAMESPACE.", autocompletion=suggestions.pairs),
]
IntervalOption = Annotated[str, typer.Option(metavar="DURATION", help="Between two reads of a source.")]
_log = logging.getLogger("sbpair")


@command(output="operations.watching:WatchEnded")
def exporter(
    options: Options,
    namespaces: NamespacesArgument = None,
    pairs: PairsOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 selects a free port.")
    ] = DEFAULT_LISTEN,
    interval: IntervalOption = "1m",
    audit_interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Between two audits of a pair; 0 leaves audits out.")
    ] = "1h",
    most_entities: Annotated[
        int, typer.Option(min=1, help="The most entities of a namespace that have samples; of more, the first by path.")
    ] = 5_000,
    browse: Annotated[
        bool, typer.Option("--browse/--no-browse", help="Browse for ages, sessions and the causes of dead letters.")
    ] = True,
    auth: NamespaceAuthOption = None,
) -> CommandResult:
    """Serve figures of namespaces and pairs for Prometheus until stopped.

    /metrics has the messages, dead letters by cause, size, sessions and oldest message of every queue and subscription,
    and of each pair the backlog, the reachability of both sides and the findings of the audit: what the rules of
    `sbpair export alerts` and the dashboard read. /healthz names what cannot be read. Reads only. Needs Manage on the
    namespaces, and Listen to browse. Figures are read in the background, --interval apart, with one management call for
    100 entities and for each topic, and one browse for each entity at most; a dead letter is read once. What cannot be
    read has no samples until it can.

    \b
    Examples:
      sbpair exporter
      sbpair exporter contoso-weu contoso-neu --pair orders --listen 0.0.0.0:9464
    """
    settings = load_settings(options)
    host, port = address_option(listen, DEFAULT_LISTEN)
    chosen = _pairs(settings, pairs, namespaces)
    places = _namespaces(settings, namespaces, chosen if not namespaces else (), auth)
    seconds = duration_option(audit_interval) or 0.0
    request = _request(
        options, places, chosen, interval, audit_seconds=seconds, most_entities=most_entities, browse=browse
    )

    async def work(stop: asyncio.Event) -> None:
        from sbpair.connect import opened
        from sbpair.operations.watching import watching
        from sbpair.render.monitored import Exported, metrics_port

        async with watching(request, opened) as watched, metrics_port(Exported(watched), host, port):
            what = f"{counted(len(places), 'namespace')} and {counted(len(chosen), 'pair')}"
            _log.info(f"Reading {what} every {interval}. Ctrl-C ends it.")
            await watched.refresh(stop)

    run_async(options, work)
    return CommandResult(request.ended, text="")


@command(output="operations.watching:WatchEnded", besides="It draws on a terminal.")
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
    chosen = _pairs(settings, pairs, namespaces)
    request = _request(options, _namespaces(settings, namespaces, chosen, auth), chosen, interval)
    _check_terminal()
    if not colors_wanted(options.no_color):
        os.environ["NO_COLOR"] = "1"
    for name in ("LINES", "COLUMNS"):  # a size that this terminal once had: Textual would not look further
        os.environ.pop(name, None)

    async def work(stop: asyncio.Event) -> None:
        from sbpair.connect import opened
        from sbpair.operations.watching import watching
        from sbpair.render.top import TopApp

        _log.handlers[:] = [logging.NullHandler()]  # the screen is taken, and says it itself
        _end_in_time()
        async with watching(request, opened) as watched:
            await TopApp(watched, stop, request.interval_seconds).run_async()

    run_async(options, work)
    return CommandResult(request.ended, text="")


def _pairs(settings: "Settings", names: list[str] | None, namespaces: list[str] | None) -> list[Pair]:
    """Those that are named; without any name all that are configured, or the one that the environment tells."""
    if names or namespaces:
        return [settings.pair(name) for name in names or ()]
    return [settings.pair(name) for name in settings.pair_names() or (None,)]


def _namespaces(
    settings: "Settings", names: list[str] | None, pairs: Sequence[Pair], auth: AuthMethod | None
) -> list[NamespaceAccess]:
    """Those that are named, and those of the pairs."""
    named = [settings.named_namespace(name, auth) for name in names or ()]
    of_pairs = [access for pair in pairs for access in (pair.primary, pair.secondary)]
    return list({access.host: access for access in (*named, *of_pairs)}.values())


def _request(
    options: Options,
    namespaces: Sequence[NamespaceAccess],
    pairs: Sequence[Pair],
    interval: str,
    *,
    audit_seconds: float = 0.0,
    **scrape: Any,
) -> "WatchRequest":
    """`scrape`: see `ScrapeRequest`."""
    from sbpair.operations.watching import WatchRequest

    seconds = pause_option(interval, "--interval")
    status = operations.StatusRequest(0, options.timeout_seconds(operations.StatusRequest().timeout_seconds))
    return WatchRequest(namespaces, pairs, seconds, status, operations.ScrapeRequest(**scrape), audit_seconds)


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
