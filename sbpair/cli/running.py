"""Runs one command line: says what it waits for, shows its result or error, and turns that into an exit code."""

import itertools
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from sbpair.cli.options import COMPLETION_VARIABLE, FinishedCommand, LogFormat, Options
from sbpair.core.durations import format_duration
from sbpair.core.errors import ConfigurationError, InterruptedWorkError, SbpairError, UsageError
from sbpair.core.outcome import Exit
from sbpair.core.redact import printable
from sbpair.core.words import counted
from sbpair.render.console import choose_format, emit, escape_what_stdout_lacks, put, say, say_lines, silent_seconds
from sbpair.render.output import Format

if TYPE_CHECKING:
    from types import ModuleType

    from sbpair.concurrency import Wait
    from sbpair.render.result import CommandResult

# What a command waits for, said once it has been silent for a few seconds.


SILENT_SECONDS = 3.0
"""An answer is missed after this time of waiting, and after this time without a line of anybody."""
AGAIN_SECONDS = 30.0
"""Between two lines about the same."""
LEAST_SECONDS = 0.5
"""A try that failed only now, or a lock met only now, is not what a command waits for."""
_POLL_SECONDS = 0.25
_LEAST_SHARE = 0.1
"""However busy the machine is, a missing answer is reported after ten times `SILENT_SECONDS`."""
_SCHEDULED = Path("/proc/self/schedstat")


@contextmanager
def telling_waits() -> Iterator[None]:
    """Log, while the block runs, what an answer is outstanding for whenever nothing was said for `SILENT_SECONDS`.

    A thread, because some commands run a loop of asyncio and some do not.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(ended,), name="sbpair-waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(ended: threading.Event) -> None:
    notices = Notices()
    while not ended.wait(_POLL_SECONDS):
        text = notices.due(waits_in(sys.modules), time.monotonic(), silent_seconds(), scheduled())
        if text:
            import logging

            logging.getLogger("sbpair").info(text)


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """What the main thread has had of the processors since it began, in seconds."""

    ran: float
    delayed: float
    """It was ready to run, and others ran."""


def scheduled() -> ProcessorTime:
    """Of the main thread, where the system tells (Linux kernel, "Scheduler Statistics"); of the whole process, without
    its delays, elsewhere."""
    try:
        ran, delayed, _ = _SCHEDULED.read_text(encoding="ascii").split()
        return ProcessorTime(int(ran) / 1e9, int(delayed) / 1e9)
    except (OSError, ValueError):
        return ProcessorTime(time.process_time(), 0.0)


class Notices:
    """Decides when a wait is worth a line, from what is seen a few times a second.

    An answer is not missed while this process could not have noticed it: it was stopped, it was computing, or it was
    ready and other programs had the processors. And where it gets a part of the processor time that it could use, a
    peer on the same machine gets as little: time passes for both in that proportion.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._scheduled = ProcessorTime(0.0, 0.0)
        self._ran = self._delayed = 0.0
        self._idle_seconds = 0.0
        self._first_seen: dict[tuple[str, float], float] = {}
        """Wait -> idle seconds when it was first seen."""
        self._said: dict[tuple[str, str, bool], float] = {}
        """Subject of a line -> when it was last said."""
        self._error = ""

    def due(self, waits: "list[Wait]", now: float, silent: float, had: ProcessorTime) -> str:
        """The line to say now, or an empty text.

        Args:
            waits: what is waited for, the longest wait first.
            now: monotonic seconds.
            silent: seconds since the last line of anybody.
            had: the processor time of this process so far.
        """
        self._pass(now, had)
        before = self._first_seen
        self._first_seen = {key: before.get(key, self._idle_seconds) for key in map(_key, waits)}
        missed = [one for one in waits if self._is_missed(one, now)]
        if silent < SILENT_SECONDS or not missed:
            return ""
        first = missed[0]
        subject = (first.tried, _kind(first.error), bool(first.sentence))
        if now - self._said.get(subject, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return ""
        text = in_words(missed, now, known=self._error)
        self._said = {key: at for key, at in self._said.items() if now - at < AGAIN_SECONDS} | {subject: now}
        self._error = first.error
        return text

    def _pass(self, now: float, had: ProcessorTime) -> None:
        if self._at is not None:
            ran, delayed = had.ran - self._scheduled.ran, had.delayed - self._scheduled.delayed
            # Half of it is forgotten in three seconds.
            self._ran, self._delayed = 0.95 * self._ran + ran, 0.95 * self._delayed + delayed
            idle = min(now - self._at, 2 * _POLL_SECONDS) - ran - delayed
            self._idle_seconds += max(0.0, idle) * self._share
        else:
            self._ran, self._delayed = had.ran, had.delayed
        self._at, self._scheduled = now, had

    @property
    def _share(self) -> float:
        """What the process had of the processor time that it could have used lately."""
        wanted = self._ran + self._delayed
        return max(_LEAST_SHARE, self._ran / wanted) if wanted else 1.0

    def _is_missed(self, wait: "Wait", now: float) -> bool:
        if wait.error or wait.sentence:
            return now - wait.since >= LEAST_SECONDS
        return self._idle_seconds - self._first_seen[_key(wait)] >= SILENT_SECONDS - _POLL_SECONDS


def _key(wait: "Wait") -> tuple[str, float]:
    return wait.tried, wait.since


def waits_in(modules: "Mapping[str, ModuleType]") -> "list[Wait]":
    """What is waited for. Nobody who has not imported the module waits; importing it here would cost every command its
    start, and the thread that works may be in the middle of doing so."""
    waits: Callable[[], list[Wait]] | None = getattr(modules.get("sbpair.concurrency"), "waits", None)
    return [] if waits is None else waits()


def in_words(waits: "list[Wait]", now: float, *, known: str = "") -> str:
    """One line for what is waited for, the longest wait first; an error that is `known` is not told again, whatever
    numbers and tracking ids the service has put into it this time."""
    first, seconds = waits[0], format_duration(round(now - waits[0].since))
    if sentence := first.sentence:
        return f"{sentence}."
    if not first.error:
        text = f"Waiting {seconds} for an answer: {first.tried}"
    elif _kind(first.error) == _kind(known):
        text = f"Still failing{f' to {first.tried}' if first.tried else ''} after {seconds}; trying again"
    else:
        text = f"{first.error.rstrip('. ')}; trying again after {seconds}"
    if first.until is not None and (left := round(first.until - now)) > 0:
        text += f", {first.afterwards} in {format_duration(left)} at the latest"
    others = len({one.error or one.tried for one in waits} - {first.error or first.tried})
    waiting = counted(others, "other call is", "other calls are")
    return f"{text}; {waiting} waiting." if others else f"{text}."


_VARYING = re.compile(r"\(TrackingId [^)]*\)|\d+")


def _kind(error: str) -> str:
    return _VARYING.sub("", error)


# One command line.


PROGRAM = "sbpair"


def run(arguments: list[str]) -> int:
    """Run one command line and return the exit code of the contract."""
    _tame_help_under_ci()
    escape_what_stdout_lacks()
    from sbpair.cli.app import app

    if COMPLETION_VARIABLE in os.environ:
        from sbpair.cli.typer_private import know_the_shells

        know_the_shells()
        app(prog_name=PROGRAM)  # answers the shell and ends the process
    try:
        with telling_waits():
            finished = _invoke(app, arguments)
        return _finish(finished) if isinstance(finished, FinishedCommand) else Exit.OK
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        # A group without a command: the error's message is the whole help. Typer does not export its class.
        if type(error).__name__ == "NoArgsIsHelpError":
            say_lines(error.format_message())
            return Exit.USAGE
        hint = _help_of(error, arguments)
        if arguments[:1] == ["version"]:
            hint = "Print the version: sbpair --version"
        return _fail(UsageError(_message_of(error), hint=hint), "", _options_in(arguments))
    except typer.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_is_gone(sys.stdout):
            raise
        return _fail(_of_a_file(error), "", _options_in(arguments))
    except Exception as error:  # noqa: BLE001 - the last line of defence: a user gets a sentence, not a traceback
        return _fail(_unexpected(error, arguments), "", _options_in(arguments))


def _invoke(app: typer.Typer, arguments: list[str]) -> object:
    """What the command returns. Typer's own way to call it turns Ctrl-C into silence and any broken pipe, also that of
    a connection, into the end of the process."""
    group = get_command(app)
    with group.make_context(PROGRAM, list(arguments)) as context:
        return group.invoke(context)


def _unexpected(error: Exception, arguments: list[str]) -> SbpairError:
    """A defect of ours: said plainly; where it happened only for those who ask."""
    if any(flag in ("-v", "--verbose") for flag in arguments):
        say_lines("".join(traceback.format_exception(error)))
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - one of the JVM asks it for its text, and the JVM is gone
        said = "it cannot be read any more"
    return SbpairError(
        f"Internal error: {type(error).__name__}: {said}. Completed work was not rolled back.",
        hint="Run it again with --verbose to see where, and report that.",
    )


def _of_a_file(error: OSError) -> SbpairError:
    """A file or the system failed where no command expects it: full disk, a limit, a folder that was taken away."""
    where = f"{error.filename}: " if error.filename else ""
    return SbpairError(
        f"Operating-system error: {where}{error.strerror or error}. Completed work was not rolled back.",
        hint="Fix this (space, permissions, limits) and retry.",
    )


def _finish(finished: FinishedCommand) -> int:
    options = finished.options
    if finished.error is not None:
        return _fail(finished.error, finished.command, options)
    result = finished.result
    if result is None:
        return Exit.OK
    if options.verbose:
        result = replace(result, notes=(*result.notes, *result.details), details=())
    try:
        emit(result, options.output, outfile=options.outfile, color=not options.no_color)
    except BrokenPipeError:
        raise
    except SbpairError as error:
        return _fail(error.with_state(_done(result)), finished.command, options)
    except OSError as error:
        hint = "Make room, or write it elsewhere: --outfile FILE"
        failure = SbpairError(f"Cannot write the output: {error.strerror or error}.", hint=hint)
        shown = Options() if options.outfile is None else options
        return _fail(failure.with_state(_done(result)), finished.command, shown)
    _explain_in_a_pipe(result, options)
    return exit_code(result, options)


def _done(result: "CommandResult") -> str:
    """What there is to say where the result itself cannot be written."""
    return f"Apart from that the command has ended with exit code {result.exit:d}. {result.summary}".rstrip()


_SHOWS_SUMMARY = (Format.TABLE, Format.MARKDOWN, Format.HTML)


def _explain_in_a_pipe(result: "CommandResult", options: Options) -> None:
    """Formats for programs have no place for what was done in words and what to do next: that goes to stderr."""
    if options.quiet or result.text is not None:
        return
    chosen = choose_format(options.output, to_file=options.outfile is not None)
    failed = result.exit is not Exit.OK and chosen in (Format.TSV, Format.JSONL)
    if failed or (result.closing and chosen not in _SHOWS_SUMMARY):
        for line in (*result.notes, result.summary):
            if line:
                _talk(line, options)


def _talk(text: str, options: Options, *, level: str = "info", hint: str = "") -> None:
    """Say something after the work, in the form of the log during it."""
    if options.log_format is LogFormat.JSON:
        from sbpair.cli.log import json_line

        say(json_line(level, text, more={"hint": hint} if hint else None))
        return
    say(f"Error: {text}" if level == "error" else text)
    if hint:
        say(hint)


def exit_code(result: "CommandResult", options: Options) -> int:
    """Exit code of a result that was shown: the table's, Nagios' own, or 0 for findings with --exit-zero."""
    if options.output is Format.NAGIOS and result.checks is not None:
        from sbpair.render.formats import nagios_status

        return nagios_status(result)
    if options.exit_zero and result.exit is Exit.FINDINGS:
        return Exit.OK
    return result.exit


def _fail(error: SbpairError, command: str, options: Options) -> int:
    code = Exit.from_label(error.exit_name)
    if options.output is Format.NAGIOS:
        put(f"SBPAIR UNKNOWN - {printable(error.message)}\n".replace("|", "/"))
        return 3
    if options.output is Format.JSON:
        from sbpair.render.formats import dump_json, envelope

        put(dump_json(envelope(command, code, error=error), indent=2) + "\n")
    level = "warning" if isinstance(error, InterruptedWorkError) else "error"
    if isinstance(error, ConfigurationError) and error.problems and options.log_format is not LogFormat.JSON:
        say(f"Error: {len(error.problems)} problems in the configuration:")
        for line in (*(f"  {problem}" for problem in error.problems), error.hint):
            say(line)
        return code
    _talk(error.message, options, level=level, hint=error.hint)
    return code


def _message_of(error: typer.TyperException) -> str:
    """What is wrong with the command line, without the prefix that the library behind typer puts before it.

    Other commands have an option `--pair`: where it is an argument, the next of its options is no help.
    """
    option = getattr(error, "option_name", "")
    context: Any = getattr(error, "ctx", None)
    for parameter in context.command.params if option and context else ():
        if parameter.param_type_name == "argument" and parameter.name.rstrip("s") == option.strip("-s"):
            said = parameter.metavar or option.lstrip("-").upper()
            return f"No such option: {option}. {said} is an argument: {context.command_path} {said}"
    return error.format_message().replace("Value error, ", "")


def _help_of(error: typer.TyperException, arguments: list[str]) -> str:
    """Where the right form is explained: of an option without its value the error knows no command."""
    from sbpair.cli.app import COMMANDS

    if (context := getattr(error, "ctx", None)) is not None:
        return f"See: {context.command_path} --help"
    return f"See: {' '.join([PROGRAM, *(one for one in arguments[:1] if one in COMMANDS)])} --help"


def _options_in(arguments: list[str]) -> Options:
    """The output format of a command line that could not be parsed, so that scripts get their error as JSON too."""
    for flag, value in itertools.pairwise([*arguments, ""]):
        name, _, attached = flag.partition("=")
        wanted = attached or value
        if name in ("-o", "--output") and wanted in (Format.JSON, Format.NAGIOS):
            return Options(output=Format(wanted))
    return Options()


def _tame_help_under_ci() -> None:
    """Typer forces colour escapes into pipes when a CI variable is set; a pipe gets plain text here."""
    if not sys.stdout.isatty():
        os.environ.setdefault("_TYPER_FORCE_DISABLE_TERMINAL", "1")


def reader_is_gone(stream: Any) -> bool:
    """Whether `stream` is a pipe that nobody reads from any more. A broken pipe may be another one's: a socket's."""
    if not hasattr(select, "poll"):
        return True
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False
