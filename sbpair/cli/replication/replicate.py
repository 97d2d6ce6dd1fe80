"""`sbpair replicate send`: every message to both namespaces, in order. `consume`: a command processes each message
once, in order within its session. `status`: what the journal says. `provision`: the queue on both sides.
"""

import logging
import os
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
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
from sbpair.cli.failover.send import DRY_RUN, FileOption, InputOption, ask_for_input, send_dry_run
from sbpair.cli.options import PAIR, Options, OptionSet, command, duration_option
from sbpair.cli.transfer.options import ForOption
from sbpair.core.errors import UsageError
from sbpair.core.failover.measured import SendDryRun
from sbpair.core.names import check_entity_path, check_source_path
from sbpair.core.outcome import Exit, Result
from sbpair.core.pairing import Pair, Side
from sbpair.core.replication.ownership import Granularity, SessionState, Terms
from sbpair.core.replication.status import Consumed, Copies, JournalStatus, SessionShown
from sbpair.core.rewrite import compose
from sbpair.core.serialization import INLINED, to_plain
from sbpair.core.words import counted
from sbpair.journal import COSMOS_KEY, FORMS, open_with_key
from sbpair.operations import JournalStatusRequest, ProvisionReplicatedRequest, journal_status, provision_replicated
from sbpair.operations.lines import Failure, InputFormat, Lines, to_payload
from sbpair.operations.replication import QueueOutcome, ReplicatedProvision
from sbpair.ports import Journal, Sides
from sbpair.render.console import write_record
from sbpair.render.output import Format
from sbpair.render.result import (
    CommandResult,
    Grade,
    MonitoredCheck,
    Table,
    columns,
    columns_of,
    concluded,
    metrics_of,
    table_of,
)
from sbpair.runtime.clock import Quiet

if TYPE_CHECKING:
    from sbpair.core.replication.status import ConsumeReport
    from sbpair.operations import SendRequest
    from sbpair.runtime.replication.sender import DualResult, DualSent


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
        """The journal. Raises UsageError if none was named."""
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
        str, typer.Option(metavar="DURATION", help="How long the journal remembers a message after both copies came.")
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


def pair_and_path(first: str, second: str | None, check: Callable[[str], str]) -> tuple[str | None, str]:
    """`[PAIR] QUEUE` or `[PAIR] TOPIC/Subscriptions/NAME` taken apart."""
    return (None, check(first)) if second is None else (first, check(second))


T = TypeVar("T")


def read_journal(options: Options, store: Journal, verb: Callable[[Journal], Coroutine[Any, Any, T]]) -> T:
    """What a verb reads of a journal, which is closed then."""

    async def work(stop: Stop) -> T:
        try:
            return await run_until(stop, verb(store))
        finally:
            await store.close()

    return run_async(options, work)


@asynccontextmanager
async def open_replicated(pair: Pair, journal: Journal | None) -> AsyncIterator[Sides]:
    """The sides of a pair, with a journal that is closed with them."""
    async with AsyncExitStack() as stack:
        if journal is not None:
            stack.push_async_callback(journal.close)
        yield await stack.enter_async_context(open_sides(pair))


# What `sbpair replicate send` prints: with -o jsonl a line for each message as it is sent, with -o json one object in
# the end.


@dataclass(frozen=True, slots=True)
class ReplicatedLine:
    """An accepted message of the input."""

    line: int
    result: "DualResult" = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class UnreplicatedLine(Failure):
    """A message of the input that no side took."""

    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicatedSummary:
    queue: str
    both: int
    one_side: Mapping[str, int]
    """Messages that only this side accepted."""
    failed: int
    unrecorded: int
    """Accepted, but not in the journal."""
    failures: tuple[UnreplicatedLine, ...]
    """The first of them."""
    stopped_at: str | None
    """A line that is no message; nothing after it was sent."""


SendPrinted = ReplicatedSummary | SendDryRun


@command(output="cli.replication.replicate:SendPrinted", asks=True, dry_run=DRY_RUN)
def send(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    file: FileOption = None,
    form: InputOption = InputFormat.AUTO,
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
    pair_name, queue = pair_and_path(first, second, check_entity_path)
    pair = pair_to_write(options, load_settings(options), pair_name, f"Send to {queue} on both sides of")
    doing = f"Send to {queue} on {side_named(pair, Side.PRIMARY)} and {side_named(pair)}"
    source, told = ask_for_input(options, file, doing)
    to_message = partial(_payload, session=session_id)
    if options.dry_run:
        lines = _Sent(streaming=False, journal=False)

        def request(stop: Stop) -> "SendRequest":
            from sbpair.operations import SendRequest

            return SendRequest(queue, lines.payloads(source, form, stop, to_message))

        return send_dry_run(options, pair, request, lines, tuple(Side))
    store = journal.open_if_named()
    terms = Terms(retention_seconds=duration_option(retention) or 0.0)
    delay_seconds = duration_option(delay) or 0.0

    async def work(stop: Stop) -> "_Sent":
        from sbpair.runtime.replication.sender import DualSender

        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        tally = _Sent(streaming=options.output is Format.JSONL, journal=store is not None)
        async with open_replicated(pair, store) as sides:
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
            payloads = tally.payloads(source, form, stop, to_message)
            seconds = options.timeout_seconds(10.0)
            try:
                async for sent in sender.send_all(payloads, overlap=concurrency, timeout_seconds=seconds):
                    tally.add(sent)
            finally:
                await sender.close()
        return tally

    return run_and_show(options, work, lambda tally: tally.result(queue, verbose=options.verbose))


def _payload(line: bytes, form: InputFormat, *, session: str | None) -> bytes:
    if form is InputFormat.LINES:
        if session is None:
            raise UsageError("a line that is a body needs a session: name one with --session-id")
        return compose(body=line, message_id=str(uuid4()), session_id=session)
    return to_payload(line, form, now=system_clock().now().timestamp())


class _Sent(Lines[UnreplicatedLine]):
    """Counts what became of the messages; streams one line each with -o jsonl."""

    def __init__(self, *, streaming: bool, journal: bool) -> None:
        super().__init__(UnreplicatedLine, write_record if streaming else None, PAIR.get())
        self._streaming = streaming
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
            self.stream(ReplicatedLine(line, result))
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
        data = ReplicatedSummary(
            queue, self._both, dict(self._one_side), self.failed, self._unrecorded, tuple(self.failures), self.bad_line
        )
        return CommandResult(
            data,
            (Table("", columns("where", "#messages"), rows),),
            notes=tuple(notes),
            summary=f"{self._both + single:,} accepted ({single:,} by one side only), {self.failed:,} failed.",
            closing=True,
            exit=self.exit(self._both + single, single),
            streamed=self._streaming,
        )


# `sbpair replicate consume`: a command processes each message once, in order within its session.


@command(output="core.replication.status:Consumed", asks=True)
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
            metavar="DURATION", help="Stop when no message has arrived for this time and none is scheduled within 5m."
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
    pair_name, source = pair_and_path(first, second, check_source_path)
    from sbpair.runtime.replication.consumer import ConsumeRequest
    from sbpair.runtime.replication.consumer import consume as consume_queue
    from sbpair.runtime.replication.handlers import CommandHandler, hide_environment, inherited

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
        async with open_replicated(pair, store) as sides:
            logging.getLogger("sbpair").info(f"Journal: {await store.check()}")
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

    return run_and_show(options, work, lambda report: _consumed(Consumed(pair.name, source, report)))


def _consumed(done: Consumed) -> CommandResult:
    return concluded(done, table_of(Copies, done.report.counts), exit=done.report.exit)


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
    return _shown(read_journal(options, journal.open(), lambda store: journal_status(store, request)))


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
        checks=tuple(MonitoredCheck("replication", one, Grade.WARNING, why) for one, why in status.stuck_because)
        or (MonitoredCheck("replication", status.journal, Grade.OK, "no session is stuck"),),
        metrics=tuple(metrics_of(status)),
    )


@command(
    output="operations.replication:ReplicatedProvision",
    asks=True,
    dry_run="Only show missing queues; exit 5 if there are any.",
)
def provision(
    options: Options, first: FirstArgument, second: SecondArgument = None, *, journal: JournalOptions
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
    pair_name, queue = pair_and_path(first, second, check_source_path)
    pair, dry_run = pair_to_write(options, load_settings(options), pair_name, f"Provision {queue} on"), options.dry_run
    if not dry_run:
        where = f"{side_named(pair, Side.PRIMARY)} and {side_named(pair)}"
        go_ahead(options, f"Create {queue} on {where} where it is missing", state="Nothing was changed.")
    store = journal.open_if_named()

    async def work(stop: Stop) -> ReplicatedProvision:
        async with open_replicated(pair, store) as sides:
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
