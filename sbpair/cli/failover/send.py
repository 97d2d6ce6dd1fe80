"""`sbpair send`: the failover sender for scripts."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, named_in, pair_to_write, side_named, tell_that_it_reads
from sbpair.cli.context import EventLog, Stop, load_settings, run_and_show, run_async, system_clock
from sbpair.cli.options import PAIR, Options, OptionSet, command, duration_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, namespace_option
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.durations import format_duration
from sbpair.core.errors import EntityNotFoundError, UsageError
from sbpair.core.events import Event, MessageSent
from sbpair.core.failover.measured import SendDryRun, SendDryRunRow, SentMessages, SentPlace
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.redact import quoted
from sbpair.core.serialization import INLINED
from sbpair.operations.lines import Failure, InputFormat, Lines, scheduled_time, to_payload
from sbpair.render.console import write_record
from sbpair.render.output import Format
from sbpair.render.result import CommandResult, concluded, table_of

if TYPE_CHECKING:
    from sbpair.connect import Where


class PolicyName(StrEnum):
    """Which errors start a failover."""

    DOCUMENTED = "documented"
    SDK = "sdk"


FailoverIntervalOption = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long sends may fail before failing over; 0: at the first failure."),
]
PingIntervalOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Pause between pings of an unavailable entity.")
]

FileOption = Annotated[Path | None, typer.Option("--file", "-f", help="Read from this file instead of stdin.")]
InputOption = Annotated[InputFormat, typer.Option("--input", help="What a line is: a message as JSON, or a body.")]


def open_input(path: Path | None) -> BinaryIO:
    """The file of --file, or stdin. Raises UsageError: it cannot be read."""
    if path is None:
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}") from error


def ask_for_input(options: Options, file: Path | None, doing: str) -> tuple[BinaryIO, bool]:
    """Where the lines come from, and whether somebody was asked. Those of a file are asked about; who types them has
    said enough.

    Raises:
        UsageError: the file cannot be read, or the answer was no.
    """
    source = open_input(file)
    if file is None:
        tell_that_it_reads(options)
        return source, False
    if options.dry_run:
        return source, False
    return source, go_ahead(options, f"{doing}: the lines of {file}", state="Nothing was sent.")


def named_values(properties: Sequence[str]) -> dict[str, str]:
    """What --property gives, by name. Raises UsageError: a property without a name or a value."""
    parted = {text: text.partition("=") for text in properties}
    for text, (name, equals, _) in parted.items():
        if not name or not equals:
            raise UsageError(f"--property is NAME=VALUE, not {quoted(text)}.")
    return {name: value for name, _, value in parted.values()}


@dataclass(frozen=True, slots=True)
class MessageOptions(OptionSet):
    """What a message has whose line does not say it."""

    message_id: Annotated[str | None, typer.Option(help="MessageId of the only line.")] = None
    session_id: Annotated[str | None, typer.Option(help="Session of lines that name none.")] = None
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="Application property, a text, of lines that do not have it; repeatable.",
        ),
    ] = None
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time to live of lines that name none, e.g. 1h.")
    ] = None
    scheduled: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When lines that name no time appear in the queue, e.g. 2026-12-01T08:00Z."),
    ] = None

    def messages(self) -> Callable[[bytes, InputFormat], bytes]:
        """Makes the message of a line; --message-id is for one line alone.

        Raises:
            UsageError: a property without a name or a value, a duration or time that is none.
        """
        duration_option(self.ttl)
        try:
            scheduled_time(self.scheduled)
        except UsageError as error:
            raise UsageError(f"--scheduled: {error.message.removeprefix('scheduled_at ')}") from error
        given = {
            "message_id": self.message_id,
            "session_id": self.session_id,
            "application_properties": named_values(self.property_ or ()) or None,
            "ttl": self.ttl,
            "scheduled_at": self.scheduled,
        }
        values, used = {name: value for name, value in given.items() if value is not None}, False

        def message(line: bytes, form: InputFormat) -> bytes:
            nonlocal used
            if used and self.message_id is not None:
                raise UsageError("--message-id is for one line alone; as JSON each line has its own message_id")
            used = True
            return to_payload(line, form, now=system_clock().now().timestamp(), values=values)

        return message


# What `sbpair send` prints: with -o jsonl a line for each message as it is sent, with -o json one object in the end.


@dataclass(frozen=True, slots=True)
class SentLine:
    """An accepted message of the input. `queue`: the backlog queue it was diverted to."""

    line: int
    where: str
    queue: str | None
    uncertain: bool


@dataclass(frozen=True, slots=True)
class FailedLine(Failure):
    """A message of the input that nobody took."""

    where: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class SentSummary:
    sent: SentMessages = field(metadata=INLINED)
    failures: tuple[FailedLine, ...]
    """The first of them."""
    stopped_at: str | None
    """A line that is no message; nothing after it was sent."""


DRY_RUN = "Only read the lines and ask the destinations; exit 5 if anything would be sent."
SendPrinted = SentSummary | SendDryRun


@command(output="cli.failover.send:SendPrinted", asks=True, dry_run=DRY_RUN)
def send(
    options: Options,
    first: Annotated[
        str,
        typer.Argument(
            metavar="[PAIR] ENTITY",
            help="A pair, and a queue or topic on its primary; with --namespace the entity alone.",
            autocompletion=suggestions.pairs_and_entities,
        ),
    ],
    second: Annotated[str | None, typer.Argument(metavar="", hidden=True, autocompletion=suggestions.entities)] = None,
    file: FileOption = None,
    form: InputOption = InputFormat.AUTO,
    failover_interval: FailoverIntervalOption = None,
    ping_interval: PingIntervalOption = None,
    policy: Annotated[PolicyName | None, typer.Option(help="Which errors start a failover.")] = None,
    retry_for: Annotated[
        str, typer.Option(help="Retry a message for this long before it counts as failed.", metavar="DURATION")
    ] = "3m",
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Concurrent sends.")] = 10,
    partitioned: Annotated[bool, typer.Option(help="The entity is partitioned: check the partition keys.")] = False,
    hold_sessions: Annotated[
        bool, typer.Option(help="Keep order within a session across failover and failback.")
    ] = False,
    *,
    message: MessageOptions,
    namespace: Annotated[
        str | None, namespace_option("Send to this namespace, by name or host, instead of a pair: nothing is diverted.")
    ] = None,
    auth: NamespaceAuthOption = None,
) -> CommandResult:
    """Send lines from stdin or a file to a queue or topic; to the backlog while the primary is down.

    A line is a body, or a JSON message: body, message_id, session_id, application_properties, ttl, ..., or a line of
    `sbpair peek -o jsonl`. Needs Send on both namespaces; `sbpair provision` creates the backlog queues. Exit code: 0
    the primary accepted all, 5 some went to the backlog, 3 some failed. If all failed: 4 access denied, 6 no answer,
    1 other.

    \b
    Examples:
      echo hello | sbpair send orders-pair orders
      echo hello | sbpair send orders-pair orders --session-id customer-7 --property country=DE --ttl 1h
      echo hello | sbpair send orders --namespace contoso-weu
      sbpair send orders-pair orders -f events.jsonl --dry-run
      sbpair peek local -o jsonl | sbpair send local orders
    """
    pair_name, entity = (None, first) if second is None else (first, second)
    entity = check_entity_path(entity)
    to_message = message.messages()
    settings = load_settings(options)
    to: Pair | NamespaceAccess
    if namespace is not None:
        of_a_pair = (pair_name, failover_interval, ping_interval, policy, partitioned or None, hold_sessions or None)
        if any(one is not None for one in of_a_pair):
            raise UsageError(
                "--namespace sends to one namespace: no PAIR, --failover-interval, --ping-interval, --policy, "
                "--partitioned or --hold-sessions. Nothing was sent."
            )
        to = settings.named_namespace(namespace, auth)
        doing = f"Send to {entity} on {named_in(settings, to)}"
    else:
        if auth is not None:
            raise UsageError("--auth is for --namespace; a pair says itself how it is reached. Nothing was sent.")
        chosen = pair_to_write(options, settings, pair_name, f"Send to {entity} of")
        to = with_options(chosen, failover_interval, ping_interval, policy)
        after = format_duration(to.options.failover_interval_seconds)
        backlog = f"to the backlog on {shown_name(to.secondary)} once that has failed for {after}"
        doing = f"Send to {entity} on {side_named(to, Side.PRIMARY)}, {backlog}"
    source, told = ask_for_input(options, file, doing)
    lines = _SentLines(
        not options.dry_run and options.output is Format.JSONL, known=to.entities if isinstance(to, Pair) else ()
    )

    def request(stop: Stop) -> operations.SendRequest:
        from sbpair.operations.send import TIMEOUT_SECONDS

        return operations.SendRequest(
            entity,
            lines.payloads(source, form, stop, to_message),
            concurrency,
            options.timeout_seconds(TIMEOUT_SECONDS),
            duration_option(retry_for) or 0.0,
            partitioned,
            hold_sessions,
        )

    if options.dry_run:
        return send_dry_run(options, to, request, lines)

    async def work(stop: Stop) -> SentMessages:
        from sbpair.connect import opened

        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        async with opened(to) as ends:
            return await operations.send(ends, request(stop), observer=lines, stop=stop)

    alone = "" if isinstance(to, Pair) else shown_name(to)
    return run_and_show(options, work, lambda sent: lines.result(sent, verbose=options.verbose, namespace=alone))


def with_options(pair: Pair, failover: str | None, ping: str | None, policy: PolicyName | None = None) -> Pair:
    """The pair with what the options change of it."""
    changes = {
        "failover_interval_seconds": duration_option(failover),
        "ping_interval_seconds": duration_option(ping),
        "policy": None if policy is None else policy.value,
    }
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(pair, options=replace(pair.options, **given))


def send_dry_run(
    options: Options,
    where: "Where",
    request: "Callable[[Stop], operations.SendRequest]",
    lines: "Lines[Any]",
    sides: Sequence[Side] = (Side.PRIMARY,),
) -> CommandResult:
    """What `sbpair.operations.plan_send` finds for the messages of these lines."""

    async def work(stop: Stop) -> SendDryRun:
        from sbpair.connect import opened

        async with opened(where) as ends:
            found = await operations.plan_send(ends, request(stop), sides=sides, stop=stop)
        return replace(found, stopped_at=lines.bad_line)

    found = run_async(options, work)
    return concluded(found, table_of(SendDryRunRow, found.rows))


class _SentLines(Lines[FailedLine]):
    """The lines of the input and what became of each; an observer of the send."""

    def __init__(self, streaming: bool, *, known: Sequence[str]) -> None:
        super().__init__(FailedLine, write_record if streaming else None, PAIR.get())
        self._streaming, self._known = streaming, known
        self._log = EventLog()

    def notify(self, event: Event) -> None:
        if not isinstance(event, MessageSent):
            self._log.notify(event)
            return
        line = self.next_number()
        if event.error is None:
            self.stream(SentLine(line, event.where, event.queue, event.uncertain))
            return
        if isinstance(event.error, EntityNotFoundError):
            event.error.looking_like(self._known)
        self.fail(line, event.error)

    def result(self, sent: SentMessages, *, verbose: bool, namespace: str) -> CommandResult:
        """`namespace`: the only one that was sent to."""
        return CommandResult(
            SentSummary(sent, tuple(self.failures), self.bad_line),
            (table_of(SentPlace, sent.places),),
            notes=(*self.notes(verbose=verbose), *sent.notes()),
            summary=sent.summary(namespace),
            closing=True,
            exit=self.exit(sent.accepted, sent.diverted),
            streamed=self._streaming,
        )
