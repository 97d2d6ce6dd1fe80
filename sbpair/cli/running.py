"""Runs one command line: shows its result or error, and turns that into an exit code."""

import itertools
import os
import sys
import traceback

import typer
from typer.main import get_command

from sbpair.cli.exit import reader_is_gone
from sbpair.cli.options import COMPLETION_VARIABLE, Finished, LogFormat, Options
from sbpair.core.errors import InterruptedWorkError, SbpairError, UsageError
from sbpair.core.outcome import Exit
from sbpair.render.console import choose_format, emit, say
from sbpair.render.encoding import escape_what_stdout_lacks
from sbpair.render.formats import dump_json, envelope, printable
from sbpair.render.result import CommandResult, Format

PROGRAM = "sbpair"


def run(arguments: list[str]) -> int:
    """Run one command line and return the exit code of the contract."""
    _tame_help_under_ci()
    escape_what_stdout_lacks()
    from sbpair.cli.app import app

    if COMPLETION_VARIABLE in os.environ:
        from sbpair.cli.shells import know_the_shells

        know_the_shells()
        app(prog_name=PROGRAM)  # answers the shell and ends the process
    try:
        finished = _invoke(app, arguments)
        return _finish(finished) if isinstance(finished, Finished) else Exit.OK
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        if _is_bare_help(error):
            say(error.format_message())
            return Exit.USAGE
        return _fail(UsageError(_message_of(error), hint=_help_of(error)), "", _options_in(arguments))
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
        traceback.print_exception(error)
    return SbpairError(
        f"sbpair has a defect: {type(error).__name__}: {error}. What was done until then is done.",
        hint="Run it again with --verbose to see where, and report that.",
    )


def _of_a_file(error: OSError) -> SbpairError:
    """A file or the system failed where no command expects it: full disk, a limit, a folder that was taken away."""
    where = f"{error.filename}: " if error.filename else ""
    return SbpairError(
        f"The system refused: {where}{error.strerror or error}. What was done until then is done.",
        hint="Mend that (space, permissions, limits) and run the command again.",
    )


def _finish(finished: Finished) -> int:
    options = finished.options
    if finished.error is not None:
        return _fail(finished.error, finished.command, options)
    if finished.result is None:
        return Exit.OK
    try:
        emit(finished.result, options.output, outfile=options.outfile, color=not options.no_color)
    except SbpairError as error:
        return _fail(error, finished.command, options)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        failure = SbpairError(f"Cannot write the output: {error.strerror or error}")
        return _fail(failure, finished.command, Options() if options.outfile is None else options)
    _explain_in_a_pipe(finished.result, options)
    return exit_code(finished.result, options)


def _explain_in_a_pipe(result: CommandResult, options: Options) -> None:
    """Line formats have no place for what went wrong besides the rows: that is talk, so it goes to stderr."""
    if result.exit is Exit.OK or options.quiet or result.text is not None:
        return
    if choose_format(options.output, to_file=options.outfile is not None) in (Format.TSV, Format.JSONL):
        for line in (*result.notes, result.summary):
            if line:
                _talk(line, options)


def _talk(text: str, options: Options, *, level: str = "info", hint: str = "") -> None:
    """Say something after the work, in the form of the talk during it."""
    if options.log_format is LogFormat.JSON:
        from sbpair.cli.talk import json_line

        say(json_line(level, text, more={"hint": hint} if hint else None))
        return
    say(f"Error: {text}" if level == "error" else text)
    if hint:
        say(hint)


def exit_code(result: CommandResult, options: Options) -> int:
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
        sys.stdout.write(f"SBPAIR UNKNOWN - {printable(error.message)}\n".replace("|", "/"))
        return 3
    if options.output is Format.JSON:
        described = {"code": error.code, "message": error.message, "hint": error.hint}
        sys.stdout.write(dump_json(envelope(command, code, error=described), indent=2) + "\n")
    level = "warning" if isinstance(error, InterruptedWorkError) else "error"
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
