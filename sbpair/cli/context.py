"""What every command needs around its one call: settings, the open pair, signals, logging, the observer that logs.

Every command imports this for its `--help` and completion already: what only a running command needs is imported by the
function that needs it.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sbpair.cli.main import handled_signals, signal_that_came
from sbpair.cli.options import LogFormat, Options
from sbpair.core.access import CALL_SECONDS
from sbpair.core.errors import InterruptedWorkError
from sbpair.core.outcome import Exit

if TYPE_CHECKING:
    import asyncio

    from sbpair.connect import Verb, Where
    from sbpair.core.events import Event
    from sbpair.core.pairing import Pair
    from sbpair.operations import Sides
    from sbpair.ports import Observer
    from sbpair.render.progress import MoveProgress
    from sbpair.render.result import CommandResult
    from sbpair.runtime.clock import LoopClock
    from sbpair.settings import Settings

    Stop = asyncio.Event
else:
    Stop = object
    """The event that ends a run early once it is set. asyncio is imported by what runs, not by every `--help`."""


def load_settings(options: Options, *, to_act: bool = True) -> "Settings":
    """Effective settings of this run, the pair `local` included when the embedded namespaces are running. `to_act`: not
    only to show them."""
    from sbpair.settings import load

    seconds = max(1.0, options.timeout_seconds(CALL_SECONDS))  # with less, nothing at all would be answered
    settings = load(config=options.config, call_seconds=seconds)
    if options.connection_string_file is not None:
        from sbpair.settings import connection_strings

        settings = connection_strings(settings, options.connection_string_file)
    if options.primary or options.secondary:
        settings = settings.between(options.primary, options.secondary)
    if to_act and settings.project_file is not None and not options.quiet:
        from sbpair.cli.log import json_line
        from sbpair.render.console import say
        from sbpair.settings import first_use_notice

        if (text := first_use_notice(settings)) is not None:
            text = f"{text} --config FILE uses another one."
            say(json_line("info", text) if options.log_format is LogFormat.JSON else text)
    return settings


def choose_pairs(settings: "Settings", names: list[str] | None) -> "list[Pair]":
    """The named pairs; with no name every configured pair, or the one that is there."""
    if names:
        return [settings.pair(name) for name in names]
    configured = [name for name in settings.pair_names() if name != "local"]
    if len(configured) > 1 and settings.get("default_pair") is None:
        return [settings.pair(name) for name in configured]
    return [settings.pair(None)]


T = TypeVar("T")
Request = TypeVar("Request")


def open_sides(
    pair: "Pair", *, reopen: "Callable[[], AbstractAsyncContextManager[Sides]] | None" = None
) -> "AbstractAsyncContextManager[Sides]":
    """See `sbpair.connect.open_sides`."""
    from sbpair.connect import open_sides as connect

    return connect(pair, reopen=reopen)


def system_clock() -> "LoopClock":
    """This machine's clock."""
    from sbpair.runtime.clock import LoopClock

    return LoopClock()


def run_async(options: Options, work: Callable[[Stop], Coroutine[Any, Any, T]]) -> T:
    """Run `work(stop)` to its end. SIGINT, SIGTERM and SIGHUP set `stop`, so that work can settle or release what is in
    flight; a second signal leaves at once.

    Raises:
        InterruptedWorkError: a signal came, and `work` did not turn it into a result of its own.
    """
    import asyncio

    configure_logging(options)
    try:
        return asyncio.run(_run_until_signal(work))
    finally:
        for handler in logging.getLogger("sbpair").handlers:
            handler.flush()


def call(
    options: Options, where: "Where", verb: "Verb[Request, T]", request: Request, *, observer: "Observer | None" = None
) -> T:
    """What a verb of `sbpair.operations` returns for a pair, a namespace, or two of them.

    Raises:
        InterruptedWorkError: see `run_async`.
    """
    return run_async(options, work_of(where, verb, request, observer=observer))


def work_of(
    where: "Where", verb: "Verb[Request, T]", request: Request, *, observer: "Observer | None" = None
) -> Callable[[Stop], Coroutine[Any, Any, T]]:
    """The same for `run_async` and `run_and_show`."""

    async def work(stop: Stop) -> T:
        from sbpair.connect import opened

        async with opened(where) as ends:
            return await verb(ends, request, observer=observer, stop=stop)

    return work


def run_and_show(
    options: Options,
    work: Callable[[Stop], Coroutine[Any, Any, T]],
    shown: "Callable[[T], CommandResult]",
    *,
    nothing: str = "",
) -> "CommandResult":
    """The result of `run_async` as `shown` has it; after a signal that of what was done until then, with its exit code.

    Raises:
        InterruptedWorkError: the signal came before there was anything to show; with the state `nothing`.
    """
    try:
        return shown(run_async(options, work))
    except Interrupted as interrupted:
        if interrupted.partial is None:
            raise (interrupted.with_state(nothing) if nothing else interrupted) from None
        return replace(shown(cast(T, interrupted.partial)), exit=Exit.from_label(interrupted.exit_name))


async def _run_until_signal(work: Callable[[Stop], Coroutine[Any, Any, T]]) -> T:
    import asyncio

    stop = asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if received:
            os._exit(Exit.INTERRUPTED if number is signal.SIGINT else Exit.TERMINATED)
        received.append(number)
        logging.getLogger("sbpair").warning(
            f"{number.name}: stopping when nothing is in flight; a second signal exits at once."
        )
        stop.set()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handled_signals()}
    for number in before:
        try:
            loop.add_signal_handler(number, on_signal, number)
        except NotImplementedError:  # Windows event loops have no signal handlers
            signal.signal(number, lambda n, _: loop.call_soon_threadsafe(on_signal, signal.Signals(n)))
    if (lost := signal_that_came()) is not None:
        on_signal(lost)
    try:
        result = await work(stop)
    except InterruptedWorkError as error:
        if not received:
            raise
        raise Interrupted(received[0], None, error.message) from None
    finally:
        for number in before:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
    if received:
        raise Interrupted(received[0], result)
    return result


async def run_until(stop: Stop, work: Coroutine[Any, Any, T]) -> T:
    """See `sbpair.concurrency.run_until`."""
    from sbpair.concurrency import run_until as unless_stopped

    return await unless_stopped(stop, work)


_SETTLED = "Stopped; what was in flight is settled or released."


class Interrupted(InterruptedWorkError):
    """A signal ended the work early; `partial` is the result of what was done until then."""

    def __init__(self, number: signal.Signals, partial: object, message: str = _SETTLED) -> None:
        super().__init__(f"{number.name}: {message}")
        self.exit_name = "interrupted" if number is signal.SIGINT else "terminated"
        self.partial = partial


def configure_logging(options: Options) -> None:
    """Send sbpair's own log to stderr; the SDKs' chatter only with --verbose."""
    from sbpair.cli.log import TalkHandler

    logging.getLogger("azure").setLevel(logging.INFO if options.verbose else logging.CRITICAL)
    level = logging.ERROR if options.quiet else logging.DEBUG if options.verbose else logging.INFO
    handler: logging.Handler = TalkHandler(each=options.verbose)
    if options.log_format is LogFormat.JSON:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JsonFormatter())
    root = logging.getLogger("sbpair")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        from sbpair.cli.log import json_line

        event = getattr(record, "event", None)
        more = {} if event is None else {"event": type(event).__name__} | asdict(event)
        return json_line(record.levelname.lower(), record.getMessage(), at=record.created, more=more)


HELD_BACK_AGAIN_SECONDS = 30.0
"""A destination that goes on failing is told of so often; the pauses between its tries begin with one second."""


class EventLog:
    """Writes each event of the runtime worth a line to stderr. `verbose`: every pause, too."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._log = logging.getLogger("sbpair")
        self._verbose = verbose
        self._held_back: dict[tuple[str, str], float] = {}
        """(entity, error code) -> when that was said."""

    def notify(self, event: "Event") -> None:
        from sbpair.render.service import describe

        line = None if self._is_told(event) else describe(event)
        if line is not None:
            self._log.info(line, extra={"event": event})

    def _is_told(self, event: "Event") -> bool:
        """Whether it says no more than what was said a moment ago."""
        from sbpair.core.events import Paused, Resumed

        if isinstance(event, Resumed):
            self._held_back = {key: at for key, at in self._held_back.items() if key[0] != event.entity}
        if not isinstance(event, Paused) or self._verbose:
            return False
        key = event.entity, event.error_code
        told = self._held_back.get(key)
        if told is not None and event.at - told < HELD_BACK_AGAIN_SECONDS:
            return True
        self._held_back[key] = event.at
        return False


def event_log(options: Options) -> EventLog | None:
    """The observer that logs to stderr; None with --quiet."""
    return None if options.quiet else EventLog(verbose=options.verbose)


def move_progress(options: Options, title: str, *, max_messages: int | None = None) -> "MoveProgress":
    """The observer that shows on stderr how messages move, and logs the rest."""
    from sbpair.render.progress import MoveProgress

    log = event_log(options)
    notify = None if log is None else log.notify
    return MoveProgress(title, quiet=options.quiet, color=not options.no_color, log=notify, max_messages=max_messages)
