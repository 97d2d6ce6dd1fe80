"""`sbpair send`: the failover sender for scripts."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import named_in, pair_to_write, side_named
from sbpair.cli.context import EventLog, Stop, load_settings, run_and_show, system_clock
from sbpair.cli.failover import records
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, namespace_option
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.durations import format_duration
from sbpair.core.errors import EntityNotFoundError, UsageError
from sbpair.core.events import Event, MessageSent
from sbpair.core.failover.measured import SentMessages, SentPlace
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.serialization import INLINED
from sbpair.render.output import Format
from sbpair.render.result import CommandResult, table_of


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

# What `sbpair send` prints: with -o jsonl a line for each message as it is sent, with -o json one object in the end.


@dataclass(frozen=True, slots=True)
class SentLine:
    """An accepted message of the input. `queue`: the backlog queue it was diverted to."""

    line: int
    where: str
    queue: str | None
    uncertain: bool


@dataclass(frozen=True, slots=True)
class FailedLine(records.Failure):
    """A message of the input that nobody took."""

    where: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class SendResult:
    sent: SentMessages = field(metadata=INLINED)
    failures: tuple[FailedLine, ...]
    """The first of them."""
    stopped_at: str | None
    """A line that is no message; nothing after it was sent."""


SendPrinted = SendResult | records.SendDryRun


@command(output="cli.failover.send:SendPrinted", asks=True, dry_run=records.DRY_RUN)
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
    file: records.FileOption = None,
    form: records.InputOption = records.InputFormat.AUTO,
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
    message_id: Annotated[str | None, typer.Option(help="MessageId of the only line.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Session of lines that name none.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="Application property, a text, of lines that do not have it; repeatable.",
        ),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time to live of lines that name none, e.g. 1h.")
    ] = None,
    scheduled: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When lines that name no time appear in the queue, e.g. 2026-12-01T08:00Z."),
    ] = None,
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
    values = records.values_of(
        message_id=message_id, session_id=session_id, properties=property_ or (), ttl=ttl, scheduled=scheduled
    )
    to_message = _payloads(values)
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
        place: tuple[Side | None, NamespaceAccess] = (None, to)
    else:
        if auth is not None:
            raise UsageError("--auth is for --namespace; a pair says itself how it is reached. Nothing was sent.")
        chosen = pair_to_write(options, settings, pair_name, f"Send to {entity} of")
        to = with_options(chosen, failover_interval, ping_interval, policy)
        after = format_duration(to.options.failover_interval_seconds)
        backlog = f"to the backlog on {shown_name(to.secondary)} once that has failed for {after}"
        doing = f"Send to {entity} on {side_named(to, Side.PRIMARY)}, {backlog}"
        place = (Side.PRIMARY, to.primary)
    source, told = records.ask_for_input(options, file, doing)
    lines = _SentLines(
        not options.dry_run and options.output is Format.JSONL, known=to.entities if isinstance(to, Pair) else ()
    )
    if options.dry_run:
        return records.dry_run(options, [place], entity, lines, source, form, to_message)

    async def work(stop: Stop) -> SentMessages:
        from sbpair.connect import opened
        from sbpair.operations.send import TIMEOUT_SECONDS

        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        request = operations.SendRequest(
            entity,
            lines.payloads(source, form, stop, to_message),
            concurrency,
            options.timeout_seconds(TIMEOUT_SECONDS),
            duration_option(retry_for) or 0.0,
            partitioned,
            hold_sessions,
        )
        async with opened(to) as ends:
            return await operations.send(ends, request, observer=lines, stop=stop)

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


def _payloads(values: Mapping[str, Any]) -> Callable[[bytes, records.InputFormat], bytes]:
    """Makes the message of a line; a MessageId among `values` is for one line alone."""
    used = False

    def payload(line: bytes, form: records.InputFormat) -> bytes:
        nonlocal used
        if used and "message_id" in values:
            raise UsageError("--message-id is for one line alone; as JSON each line has its own message_id")
        used = True
        return records.to_payload(line, form, now=system_clock().now().timestamp(), values=values)

    return payload


class _SentLines(records.Lines[FailedLine]):
    """The lines of the input and what became of each; an observer of the send."""

    def __init__(self, streaming: bool, *, known: Sequence[str]) -> None:
        super().__init__(FailedLine, streaming=streaming)
        self._known = known
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
            SendResult(sent, tuple(self.failures), self.bad_line),
            (table_of(SentPlace, sent.places),),
            notes=(*self.notes(verbose=verbose), *sent.notes()),
            summary=sent.summary(namespace),
            closing=True,
            exit=self.exit(sent.accepted, sent.diverted),
            streamed=self.streaming,
        )
