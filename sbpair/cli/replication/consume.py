"""`sbpair replicate consume`: a command processes each message once, in order within its session."""

import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import EventLog, Stop, load_settings, open_sides, run_and_show, system_clock
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.replication.options import FirstArgument, JournalOptions, SecondArgument, TermsOptions, pair_and_source
from sbpair.cli.transfer.options import ForOption
from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.outcome import Exit, gravest
from sbpair.core.pairing import Pair, Side
from sbpair.core.serialization import AS_TIME, INLINED, column, iso_time, rounded
from sbpair.core.words import counted, with_hint
from sbpair.render.result import CommandResult, table_of
from sbpair.runtime.clock import Quiet

if TYPE_CHECKING:
    from sbpair.ports import Journal
    from sbpair.runtime.replication.consumer import ConsumeReport, ConsumeRequest


# What `sbpair replicate consume -o json` prints.


@dataclass(frozen=True, slots=True)
class Copies:
    """How many copies from this side had this result."""

    side: str = field(metadata=column("Side"))
    result: str = field(metadata=column("Result"))
    copies: int = field(metadata=column("Copies", counts=True))


@dataclass(frozen=True, slots=True)
class NotRead:
    """A side that did not answer in the end."""

    side: str
    error: ServiceError = field(metadata=INLINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeResult:
    pair: str
    queue: str
    counts: tuple[Copies, ...]
    completed: int
    failed: int
    dead_lettered: int
    second_copies_out: int | None
    """Messages finished here whose second copy is still to come, or was not met where nobody can see; None: not
    counted."""
    scheduled: int | None
    """Other messages that lie scheduled in the queues or topics; None: not known."""
    next_scheduled_at: float | None = field(metadata=AS_TIME)
    """When the first scheduled message comes."""
    not_read: tuple[NotRead, ...]
    seconds: float = field(metadata=rounded(3))
    ended_by: str


@command(output="cli.replication.consume:ConsumeResult", asks=True)
def consume(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    exec_: Annotated[
        str,
        typer.Option(
            "--exec", metavar="COMMAND", help="Command to run for each message: body on stdin, SBPAIR_... variables."
        ),
    ] = "",
    exec_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Pass this environment variable to COMMAND; repeatable.")
    ] = None,
    handler_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="Kill a command after this time; the attempt counts as failed.")
    ] = "5m",
    *,
    journal: JournalOptions,
    agreed: TermsOptions,
    side: Annotated[list[Side] | None, typer.Option(help="Receive from this namespace only.")] = None,
    sessions: Annotated[int, typer.Option(min=1, max=1000, help="Sessions open at once on each namespace.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Concurrent commands.")] = 16,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many messages.")] = None,
    for_: ForOption = None,
    until_idle: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Stop when no message has arrived for this time and none is scheduled within 5m.",
        ),
    ] = None,
) -> CommandResult:
    """Run a command for each message of a replicated queue or subscription: once, and in order within its session.

    If the command exits with 0 the message is done; 75 means try later; anything else is a failed attempt. Run as many
    consumers as you like, in both regions, with the same journal, lease and margin. Needs Listen on both namespaces.

    The command's environment is PATH, HOME, the locale and the like, the message, and what --exec-env names: no
    credential of this program.

    Exit code: 0 every message that came was processed, 3 some were dead-lettered or second copies are still to come; if
    in the end a namespace refuses or does not answer: 4 or 6.

    What is scheduled to a topic is seen with Listen on the topic. Without it --until-idle waits up to 30s for second
    copies that were not met, and should be longer than the delay with which messages are sent.

    \b
    Examples:
      sbpair replicate consume orders-pair orders --journal sqlite:journal.db --exec ./book-parcel
      sbpair replicate consume local orders --journal sqlite:j.db --exec 'sh -c "cat >> out"' --until-idle 30s
      sbpair replicate consume orders-pair events/Subscriptions/billing --journal sqlite:journal.db --exec ./bill
    """
    pair_name, source = pair_and_source(first, second)
    from sbpair.runtime.replication.consumer import ConsumeRequest

    words = shlex.split(exec_)
    if not words:
        raise UsageError("Say what processes a message with --exec COMMAND.")
    request = ConsumeRequest(
        source,
        terms=agreed.terms(),
        sides=tuple(dict.fromkeys(side)) if side else tuple(Side),
        sessions=sessions,
        concurrency=concurrency,
        max_messages=limit,
        for_seconds=duration_option(for_),
        until_idle_seconds=duration_option(until_idle),
        name=f"{os.uname().nodename}-{os.getpid()}" if hasattr(os, "uname") else f"pid-{os.getpid()}",
    )
    pair = pair_to_write(options, load_settings(options), pair_name, f"Consume {source} of")
    sides = " and ".join(side_named(pair, one) for one in request.sides)
    doing = f"Consume {source} on {sides}: each message goes to {words[0]}, then it is completed"
    told = go_ahead(options, doing, state="Nothing was received.")
    store = journal.open()
    seconds = duration_option(handler_timeout) or 0.0
    environ = inherited(os.environ, exec_env or ())
    hide_environment()

    async def work(stop: Stop) -> "ConsumeReport":
        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        return await _consume(options, pair, request, store, words, seconds, environ, stop)

    return run_and_show(options, work, lambda report: _consumed(pair, source, report))


async def _consume(
    options: Options,
    pair: Pair,
    request: "ConsumeRequest",
    store: "Journal",
    words: list[str],
    handler_seconds: float,
    environ: Mapping[str, str],
    stop: Stop,
) -> "ConsumeReport":
    from sbpair.runtime.replication.consumer import consume as consume_queue
    from sbpair.runtime.replication.handlers import CommandHandler

    handler = CommandHandler(words, timeout_seconds=handler_seconds, environ=environ)
    async with AsyncExitStack() as stack:
        sides = await stack.enter_async_context(open_sides(pair))
        stack.push_async_callback(store.close)
        said = await store.check()
        observer = Quiet() if options.quiet else EventLog()
        logging.getLogger("sbpair").info(f"Journal: {said}")
        return await consume_queue(
            request,
            primary=sides.primary,
            secondary=sides.secondary,
            journal=store,
            handler=handler,
            clock=system_clock(),
            observer=observer,
            stop=stop,
        )


INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR"),
    *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP", "TMP"),
)
"""Of Unix; of Windows."""


def inherited(environ: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """What the command gets of this process' environment: what says who and where it is, and the variables that were
    named. Connection strings and tokens of the others stay here: the command works on what strangers have sent.

    Raises:
        UsageError: a variable was named that is not set.
    """
    for name in named:
        if name not in environ:
            raise UsageError(f"--exec-env {name}: there is no such variable in the environment.")
    wanted = {*INHERITED, *named}
    return {name: value for name, value in environ.items() if name in wanted or name.startswith("LC_")}


def hide_environment() -> None:
    """On Linux, keep other processes of this user, the command among them, from reading this process' environment and
    memory by way of /proc (prctl(2), PR_SET_DUMPABLE). One with CAP_SYS_PTRACE, such as root's, still may."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


_PR_SET_DUMPABLE = 4


def _consumed(pair: Pair, queue: str, report: "ConsumeReport") -> CommandResult:
    data = ConsumeResult(
        pair=pair.name,
        queue=queue,
        counts=tuple(Copies(side, result, copies) for side, result, copies in report.counts),
        completed=report.total("completed"),
        failed=report.total("failed"),
        dead_lettered=report.dead_lettered,
        second_copies_out=report.second_copies_out,
        scheduled=report.scheduled,
        next_scheduled_at=report.next_scheduled_at,
        not_read=tuple(NotRead(side, error) for side, error in report.unread),
        seconds=report.seconds,
        ended_by=report.ended_by,
    )
    unread = (f"Not read: {one.side}: {with_hint(one.error.message, one.error.hint)}" for one in data.not_read)
    return CommandResult(
        data,
        (table_of(Copies, data.counts),),
        notes=(*unread, *_out(queue, report)),
        summary=_summary(pair.name, queue, report),
        closing=True,
        exit=_exit_of(report),
    )


def _summary(pair: str, queue: str, report: "ConsumeReport") -> str:
    said = f"{report.total('completed'):,} completed, {report.total('failed'):,} failed, "
    said += f"{report.total('duplicate'):,} settled without processing, because they were finished."
    if report.dead_lettered:
        copies = "1 copy was" if report.dead_lettered == 1 else f"{report.dead_lettered:,} copies were"
        looks = {
            "primary": f"sbpair peek {pair} --entity {queue} --side primary --dlq",
            "secondary": f"sbpair peek {pair} --entity {queue} --side secondary --dlq",
        }
        said += f" {copies} dead-lettered; see why: {' and '.join(looks[side] for side in report.dead_lettered_on)}"
    return said


def _out(queue: str, report: "ConsumeReport") -> tuple[str, ...]:
    """What is still to come, and what settles it."""
    out, told = report.second_copies_out, []
    if out and report.scheduled is None:
        what = "The second copy of 1 message was" if out == 1 else f"The second copies of {out:,} messages were"
        told.append(
            f"{what} not met: scheduled for later, or accepted by one side only; not every queue or topic could be "
            "browsed. The same command settles what comes."
        )
    elif out:
        what = "The second copy of 1 message is" if out == 1 else f"The second copies of {out:,} messages are"
        told.append(f"{what} still to come. The same command settles what comes.")
    if report.scheduled:
        told.append(f"{counted(report.scheduled, 'other message' if out else 'message')} of {queue} will come later.")
    if told and report.next_scheduled_at is not None:
        told.append(f"The first scheduled message comes at {iso_time(report.next_scheduled_at)}.")
    return tuple(told)


def _exit_of(report: "ConsumeReport") -> Exit:
    """Where idleness or the time ended it, what was not read comes before what was dead-lettered: unreachable, denied,
    partial; failed if nothing was read at all. A second copy that is still to come is left: partial."""
    unread = gravest(error.exit_name for _, error in report.unread if report.ended_by in ("idle", "time"))
    if unread in (Exit.UNREACHABLE, Exit.DENIED):
        return unread
    if unread and not report.counts:
        return Exit.FAILED
    return Exit.PARTIAL if unread or report.dead_lettered or report.second_copies_out else Exit.OK
