"""Runs one command line: shows its result or error, and turns that into an exit code."""

import itertools
import os
import select
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from sbpair.cli.options import COMPLETION_VARIABLE, Finished, LogFormat, Options
from sbpair.cli.waits import telling_waits
from sbpair.core.errors import ConfigurationError, InterruptedWorkError, SbpairError, UsageError
from sbpair.core.outcome import Exit
from sbpair.core.redact import printable
from sbpair.render.console import choose_format, emit, escape_what_stdout_lacks, put, say, say_lines
from sbpair.render.output import Format

if TYPE_CHECKING:
    from sbpair.render.result import CommandResult

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
        return _finish(finished) if isinstance(finished, Finished) else Exit.OK
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        if _is_bare_help(error):
            say_lines(error.format_message())
            return Exit.USAGE
        hint = _help_of(error)
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


def _finish(finished: Finished) -> int:
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
    except SbpairError as error:
        return _fail(error, finished.command, options)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        failure = SbpairError(f"Cannot write the output: {error.strerror or error}")
        return _fail(failure, finished.command, Options() if options.outfile is None else options)
    _explain_in_a_pipe(result, options)
    return exit_code(result, options)


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
        from sbpair.render.monitoring import nagios_status

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


def _is_bare_help(error: typer.TyperException) -> bool:
    """A group without a command: the error's message is the whole help. Typer does not export its class."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _message_of(error: typer.TyperException) -> str:
    """What is wrong with the command line, without the prefix that the library behind typer puts before it."""
    return error.format_message().replace("Value error, ", "")


def _help_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"See: {context.command_path} --help" if context is not None else "See: sbpair --help"


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
