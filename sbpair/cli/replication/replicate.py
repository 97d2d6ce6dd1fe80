"""`sbpair replicate send`: every message to both namespaces, in order. `consume`: a command processes each message
once, in order within its session. `status`: what the journal says. `provision`: the queue on both sides.
"""

import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import (
    EventLog,
    Stop,
    load_settings,
    open_sides,
    run_and_show,
    run_async,
    run_until,
    system_clock,
)
from sbpair.cli.failover import records
from sbpair.cli.options import Options, OptionSet, command, duration_option
from sbpair.cli.transfer.options import ForOption
from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.names import check_entity_path, check_source_path
from sbpair.core.outcome import Exit, Result, gravest
from sbpair.core.pairing import Pair, Side
from sbpair.core.replication.ownership import Granularity, SessionState, Terms
from sbpair.core.replication.status import JournalStatus, SessionShown
from sbpair.core.rewrite import compose
from sbpair.core.serialization import AS_TIME, INLINED, column, iso_time, rounded, to_plain
from sbpair.core.words import counted, with_hint
from sbpair.journal import COSMOS_KEY, FORMS, open_with_key
from sbpair.operations import JournalStatusRequest, ProvisionReplicatedRequest, journal_status, provision_replicated
from sbpair.operations.replication import QueueOutcome, ReplicatedProvision
from sbpair.ports import Journal
from sbpair.render.output import Format
from sbpair.render.result import Check, CommandResult, Metric, Severity, Table, columns, columns_of, table_of
from sbpair.runtime.clock import Quiet

if TYPE_CHECKING:
    from sbpair.runtime.replication.consumer import ConsumeReport
    from sbpair.runtime.replication.sender import DualSent


FirstArgument = Annotated[
    str,
    typer.Argument(
        metavar="[PAIR] QUEUE",
        help="A pair, and a queue on both its namespaces; or a topic to send to, TOPIC/Subscriptions/NAME to consume.",
        autocompletion=suggestions.pairs_and_entities,
    ),
]
SecondArgument = Annotated[
    str | None, typer.Argument(metavar="", hidden=True, show_default=False, autocompletion=suggestions.entities)
]
RetentionOption = Annotated[
    str, typer.Option(metavar="DURATION", help="How long the journal remembers a message of which only one copy came.")
]


@dataclass(frozen=True, slots=True)
class JournalOptions(OptionSet):
    """Which journal the consumers agree through."""

    journal: Annotated[
        str | None, typer.Option(envvar="SBPAIR_JOURNAL", help="sqlite:FILE, or cosmos:ACCOUNT_URL/DB/CONTAINER.")
    ] = None
    journal_key: Annotated[
        str,
        typer.Option(help="Environment variable with the Cosmos DB key; without it Entra ID is used.", metavar="NAME"),
    ] = COSMOS_KEY

    def open(self) -> Journal:
        """The journal.

        Raises:
            UsageError: none was named. JournalError: the package it needs is not installed.
        """
        if self.journal is None:
            raise UsageError("Name the journal with --journal or SBPAIR_JOURNAL.", hint=f"Write {FORMS}.")
        return open_with_key(self.journal, key_variable=self.journal_key)

    def open_if_named(self) -> Journal | None:
        return None if self.journal is None else self.open()


@dataclass(frozen=True, slots=True)
class LeaseOptions(OptionSet):
    """When a consumer that is gone is given up."""

    lease: Annotated[
        str, typer.Option(metavar="DURATION", help="How long until a crashed consumer's sessions are taken over.")
    ] = "30s"
    margin: Annotated[str, typer.Option(metavar="DURATION", help="How far the clocks of the hosts may differ.")] = "5s"

    def terms(self, **more: Any) -> Terms:
        """What consumers with these options agree on; `more` as `Terms` takes it."""
        lease_seconds, margin_seconds = duration_option(self.lease) or 0.0, duration_option(self.margin) or 0.0
        return Terms(lease_seconds=lease_seconds, margin_seconds=margin_seconds, **more)


@dataclass(frozen=True, slots=True)
class MemoryOptions(OptionSet):
    """How long the journal remembers a message."""

    retention: RetentionOption = "14d"
    remember: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long the journal remembers a message after both copies came."),
    ] = "1d"

    def seconds(self) -> dict[str, Any]:
        """The same in the words of `Terms`."""
        return {
            "retention_seconds": duration_option(self.retention) or 0.0,
            "remember_seconds": duration_option(self.remember) or 0.0,
        }


@dataclass(frozen=True, slots=True)
class TermsOptions(OptionSet):
    """All that consumers of a destination have to agree on."""

    leasing: LeaseOptions = LeaseOptions()
    attempts: Annotated[int, typer.Option(min=1, help="Dead-letter a message after this many failed attempts.")] = 5
    gap_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Skip a missing predecessor after this time. Default: wait for it."),
    ] = None
    granularity: Annotated[Granularity, typer.Option(help="Claim whole sessions, or single messages.")] = (
        Granularity.SESSION
    )
    memory: MemoryOptions = MemoryOptions()

    def terms(self) -> Terms:
        return self.leasing.terms(
            max_attempts=self.attempts,
            gap_seconds=duration_option(self.gap_timeout),
            granularity=self.granularity,
            **self.memory.seconds(),
        )


def pair_and_source(first: str, second: str | None) -> tuple[str | None, str]:
    """`[PAIR] QUEUE` or `[PAIR] TOPIC/Subscriptions/NAME` taken apart."""
    return (None, check_source_path(first)) if second is None else (first, check_source_path(second))


# What `sbpair replicate send` prints: with -o jsonl a line for each message as it is sent, with -o json one object in
# the end.


@dataclass(frozen=True, slots=True)
class SentLine:
    """An accepted message of the input; `errors`: the error's code by side that did not take it."""

    line: int
    message_id: str
    session_id: str
    accepted: tuple[Side, ...]
    errors: Mapping[Side, str]
    uncertain: bool


@dataclass(frozen=True, slots=True)
class FailedLine(records.Failure):
    """A message of the input that no side took."""

    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SendResult:
    queue: str
    both: int
    one_side: Mapping[str, int]
    """Messages that only this side accepted."""
    failed: int
    unrecorded: int
    """Accepted, but not in the journal."""
    failures: tuple[FailedLine, ...]
    """The first of them."""
    stopped_at: str | None
    """A line that is no message; nothing after it was sent."""


SendPrinted = SendResult | records.SendDryRun


@command(output="cli.replication.replicate:SendPrinted", asks=True, dry_run=records.DRY_RUN)
def send(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    file: records.FileOption = None,
    form: records.InputOption = records.InputFormat.AUTO,
    session_id: Annotated[str | None, typer.Option(help="Session of lines that are bodies.")] = None,
    prefer: Annotated[Side, typer.Option(help="The namespace whose copy is delivered first.")] = Side.PRIMARY,
    delay: Annotated[str, typer.Option(metavar="DURATION", help="How much later the other copy is delivered.")] = "15s",
    *,
    journal: JournalOptions,
    retention: RetentionOption = "14d",
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Concurrent sends.")] = 32,
) -> CommandResult:
    """Send lines from stdin or a file to both namespaces, in order within each session.

    A line is a body, which goes to --session-id, or a JSON message with its session_id. With a journal the order also
    holds from one run to the next. Exit code: 0 both namespaces took all, 5 some have one copy only, 3 some failed. If
    all failed: 4 access denied, 6 no answer, 1 other.

    \b
    Examples:
      sbpair replicate send orders-pair orders -f events.jsonl --journal sqlite:journal.db
      echo arrived | sbpair replicate send local orders --session-id parcel-7
      sbpair replicate send local orders -f events.jsonl --dry-run
    """
    pair_name, queue = (None, first) if second is None else (first, second)
    queue = check_entity_path(queue)
    pair = pair_to_write(options, load_settings(options), pair_name, f"Send to {queue} on both sides of")
    doing = f"Send to {queue} on {side_named(pair, Side.PRIMARY)} and {side_named(pair)}"
    source, told = records.ask_for_input(options, file, doing)
    to_message = partial(_payload, session=session_id)
    if options.dry_run:
        lines = _Sent(streaming=False, journal=False)
        both = [(Side.PRIMARY, pair.primary), (Side.SECONDARY, pair.secondary)]
        return records.dry_run(options, both, queue, lines, source, form, to_message)
    store = journal.open_if_named()
    terms = Terms(retention_seconds=duration_option(retention) or 0.0)
    delay_seconds = duration_option(delay) or 0.0

    async def work(stop: Stop) -> "_Sent":
        from sbpair.runtime.replication.sender import DualSender

        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        tally = _Sent(streaming=options.output is Format.JSONL, journal=store is not None)
        async with AsyncExitStack() as stack:
            sides = await stack.enter_async_context(open_sides(pair))
            if store is not None:
                stack.push_async_callback(store.close)
            sender = DualSender(
                queue,
                primary=sides.primary,
                secondary=sides.secondary,
                clock=system_clock(),
                journal=store,
                preferred=prefer,
                delay_seconds=delay_seconds,
                terms=terms,
            )
            stack.push_async_callback(sender.close)
            payloads = tally.payloads(source, form, stop, to_message)
            seconds = options.timeout_seconds(10.0)
            async for sent in sender.send_all(payloads, overlap=concurrency, timeout_seconds=seconds):
                tally.add(sent)
        return tally

    return run_and_show(options, work, lambda tally: tally.result(queue, verbose=options.verbose))


def _payload(line: bytes, form: records.InputFormat, *, session: str | None) -> bytes:
    if form is records.InputFormat.LINES:
        if session is None:
            raise UsageError("a line that is a body needs a session: name one with --session-id")
        return compose(body=line, message_id=str(uuid4()), session_id=session)
    return records.to_payload(line, form, now=system_clock().now().timestamp())


class _Sent(records.Lines[FailedLine]):
    """Counts what became of the messages; streams one line each with -o jsonl."""

    def __init__(self, *, streaming: bool, journal: bool) -> None:
        super().__init__(FailedLine, streaming=streaming)
        self._journal = journal
        self._both = 0
        self._one_side: Counter[str] = Counter()
        self._unrecorded = 0

    def add(self, sent: "DualSent") -> None:
        line = self.next_number()
        if sent.result is not None:
            result = sent.result
            if len(result.accepted) == len(Side):
                self._both += 1
            else:
                self._one_side[result.accepted[0].value] += 1
            self._unrecorded += not result.recorded
            accepted, errors = tuple(result.accepted), dict(result.errors)
            self.stream(SentLine(line, result.message_id, result.session_id, accepted, errors, result.uncertain))
        elif sent.error is not None:
            self.fail(line, sent.error)

    def result(self, queue: str, *, verbose: bool) -> CommandResult:
        single = sum(self._one_side.values())
        rows: list[dict[str, Any]] = [{"where": "both sides", "messages": self._both}]
        rows += [{"where": f"{side} only", "messages": count} for side, count in sorted(self._one_side.items())]
        if self.failed:
            rows.append({"where": "failed", "messages": self.failed})
        notes = self.notes(verbose=verbose)
        if not self._journal:
            notes.append("Without --journal the order holds among the messages of this run only.")
        elif self._unrecorded:
            notes.append(f"{self._unrecorded} could not be recorded: order against the next run is not sure.")
        data = SendResult(
            queue,
            self._both,
            dict(self._one_side),
            self.failed,
            self._unrecorded,
            tuple(self.failures),
            self.bad_line,
        )
        return CommandResult(
            data,
            (Table("", columns("where", "#messages"), rows),),
            notes=tuple(notes),
            summary=f"{self._both + single:,} accepted ({single:,} by one side only), {self.failed:,} failed.",
            closing=True,
            exit=self.exit(self._both + single, single),
            streamed=self.streaming,
        )


# `sbpair replicate consume`: a command processes each message once, in order within its session.

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


@command(output="cli.replication.replicate:ConsumeResult", asks=True)
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
    from sbpair.runtime.replication.consumer import consume as consume_queue
    from sbpair.runtime.replication.handlers import CommandHandler

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
    environ = inherited(os.environ, exec_env or ())
    handler = CommandHandler(words, timeout_seconds=duration_option(handler_timeout) or 0.0, environ=environ)
    hide_environment()

    async def work(stop: Stop) -> "ConsumeReport":
        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        async with AsyncExitStack() as stack:
            sides = await stack.enter_async_context(open_sides(pair))
            stack.push_async_callback(store.close)
            said = await store.check()
            logging.getLogger("sbpair").info(f"Journal: {said}")
            return await consume_queue(
                request,
                primary=sides.primary,
                secondary=sides.secondary,
                journal=store,
                handler=handler,
                clock=system_clock(),
                observer=Quiet() if options.quiet else EventLog(),
                stop=stop,
            )

    return run_and_show(options, work, lambda report: _consumed(pair, source, report))


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


# `sbpair replicate status` and `provision`: what the journal says, and the queue on both sides.


@command(output="core.replication.status:JournalStatus", checks=True)
def status(
    options: Options,
    *,
    journal: JournalOptions,
    state: Annotated[SessionState | None, typer.Option(help="Only sessions in this state.")] = None,
    stuck: Annotated[bool, typer.Option(help="Only stuck sessions.")] = False,
    destination: Annotated[
        str | None, typer.Option(help="Only sessions of this queue or TOPIC/Subscriptions/NAME.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many sessions.")] = 100,
    leasing: LeaseOptions,
) -> CommandResult:
    """Show the sessions in the journal of replicated queues: their state, who has them, which are stuck.

    A session is stuck if it waits for a message that is on neither namespace, or if its consumer is gone and no other
    one continues. Exit code 5 if any is stuck.

    \b
    Examples:
      sbpair replicate status --journal sqlite:journal.db
      sbpair replicate status --journal sqlite:journal.db --stuck -o nagios
    """
    request = JournalStatusRequest(destination, state, stuck, limit, leasing.terms())
    store = journal.open()

    async def work(stop: Stop) -> JournalStatus:
        try:
            return await run_until(stop, journal_status(store, request))
        finally:
            await store.close()

    return _shown(run_async(options, work))


def _shown(status: JournalStatus) -> CommandResult:
    counts = ", ".join(f"{count} {state}" for state, count in status.by_state.items())
    hidden = f"{counted(status.not_shown, 'more session')} not shown; raise --limit."
    return CommandResult(
        status,
        (table_of(SessionShown, status.sessions),),
        notes=(status.about, *((hidden,) if status.not_shown else ())),
        summary=f"{counted(sum(status.by_state.values()), 'session')}: {counts}; {status.stuck} stuck. "
        f"{status.completed_messages:,} completed, {status.failed_messages:,} failed.",
        exit=Exit.FINDINGS if status.stuck else Exit.OK,
        checks=tuple(Check("replication", one, Severity.WARNING, why) for one, why in status.stuck_because)
        or (Check("replication", status.journal, Severity.OK, "no session is stuck"),),
        metrics=(
            *(Metric("sbpair_replicated_sessions", n, (("state", one.value),)) for one, n in status.by_state.items()),
            Metric("sbpair_replicated_stuck_sessions", status.stuck),
            Metric("sbpair_replicated_completed_messages", status.completed_messages),
            Metric("sbpair_replicated_failed_messages", status.failed_messages),
        ),
    )


@command(
    output="operations.replication:ReplicatedProvision",
    asks=True,
    dry_run="Only show missing queues; exit 5 if there are any.",
)
def provision(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    *,
    journal: JournalOptions,
) -> CommandResult:
    """Create a replicated queue or subscription, with sessions, on both namespaces.

    A subscription is TOPIC/Subscriptions/NAME; its topic is created as well. What exists is left as it is; exit code 5
    if its settings do not fit. Needs Manage on both namespaces.

    \b
    Examples:
      sbpair replicate provision orders-pair orders --journal sqlite:journal.db
      sbpair replicate provision orders-pair events/Subscriptions/billing
      sbpair replicate provision local orders --dry-run
    """
    pair_name, queue = pair_and_source(first, second)
    pair, dry_run = pair_to_write(options, load_settings(options), pair_name, f"Provision {queue} on"), options.dry_run
    if not dry_run:
        where = f"{side_named(pair, Side.PRIMARY)} and {side_named(pair)}"
        go_ahead(options, f"Create {queue} on {where} where it is missing", state="Nothing was changed.")
    store = journal.open_if_named()

    async def work(stop: Stop) -> ReplicatedProvision:
        async with AsyncExitStack() as stack:
            sides = await stack.enter_async_context(open_sides(pair))
            if store is not None:
                stack.push_async_callback(store.close)
            request = ProvisionReplicatedRequest(queue, dry_run)
            return await provision_replicated(sides, request, journal=store, stop=stop)

    return _provisioned(run_async(options, work))


def _provisioned(done: ReplicatedProvision) -> CommandResult:
    rows = to_plain(done.outcomes)
    rows += [{"item": f"{one.side}: {done.queue}", "result": "problem", "detail": one.message} for one in done.problems]
    missing = done.dry_run and any(one.result is Result.SKIPPED for one in done.outcomes)
    return CommandResult(
        done,
        (Table("", columns_of(QueueOutcome), rows),),
        notes=(f"Journal: {done.journal}",) if done.journal else (),
        summary=f"{done.queue} on both sides of {done.pair}: {counted(len(done.problems), 'problem')}."
        + (" Nothing was changed." if done.dry_run else ""),
        exit=Exit.FINDINGS if done.problems or missing else Exit.OK,
    )
