"""`sbpair restore`: messages out of files, back to where they were to go."""

import base64
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.asking import YesOption, go_ahead, pair_to_write, side_named
from sbpair.cli.context import EventLog, load_settings, run_and_show, system_clock
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.drain import open_ledger
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, namespace_option
from sbpair.cli.transfer.options import (
    AlthoughInTheQueuesOption,
    ConcurrencyOption,
    Filters,
    GiveUpAfterOption,
    LedgerOption,
    LimitOption,
    NewLedgerOption,
    OnlyEntitiesOption,
    Patience,
    RateOption,
    ReserveOption,
    budget_of,
)
from sbpair.cli.transfer.report import check_new_ledger
from sbpair.cli.transfer.report import only_entities as allowed_entities
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.core.transfer.state import key_of
from sbpair.core.words import counted
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from sbpair.core.pairing import Pair
    from sbpair.core.transfer.filters import MessageFilter
    from sbpair.runtime.transfer.restore import Restorable, Restored
    from sbpair.settings import Settings

MOST_LINE_BYTES = 256 * 1024 * 1024
"""Of a line with a message of 100 MB, the largest there is, in Base64."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What `restore -o json` prints. `sent` and `left`: messages by destination and by reason."""

    pair: str | None
    """None where only a namespace was named."""
    namespace: str
    dry_run: bool
    messages: int
    sent: "dict[str, int]"
    left: "dict[str, int]"
    already_sent: int
    sent_again: int


@command(output="cli.transfer.restore:RestoreResult")
def restore(
    options: Options,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...", help="Files that drain, cleanup or `peek -o jsonl` wrote, or folders of them."
        ),
    ],
    pair: Annotated[
        str | None, typer.Option("--pair", help="Pair whose primary they go to.", show_default="the only pair")
    ] = None,
    namespace: Annotated[
        str | None,
        namespace_option("Send to this namespace, by name or host, instead of a pair's primary."),
    ] = None,
    auth: NamespaceAuthOption = None,
    *,
    filters: Filters,
    only_entities: OnlyEntitiesOption = False,
    limit: LimitOption = None,
    rate: RateOption = None,
    reserve: ReserveOption = None,
    concurrency: ConcurrencyOption = 8,
    give_up_after: GiveUpAfterOption = None,
    ledger: LedgerOption = None,
    new_ledger: NewLedgerOption = False,
    although_in_the_queues: AlthoughInTheQueuesOption = False,
    although_gone: Annotated[
        bool,
        typer.Option("--although-gone", help="Also send messages that were only browsed and have left their queues."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be sent where; exit 5 if anything would.")
    ] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Send archived messages to their destinations on the primary, each session in order.

    Reads what `drain`, `cleanup`, `purge` and `dlq purge` write with --archive, and `peek -o jsonl`. With --ledger the
    same command continues after an interruption. Messages that were only browsed are refused: those still in their
    queues, since a drain would send them again, and those that have left them, since a drain may have sent them. Needs
    Send on the primary, and Listen on the secondary for what was only browsed; with --namespace both on that.

    \b
    Examples:
      sbpair restore archive/ --pair orders --dry-run
      sbpair restore archive/ --pair orders --ledger restored.jsonl --rate 200
      sbpair restore purged/ --namespace contoso-weu
    """
    check_new_ledger(ledger, new=new_ledger)
    way = _way(options, load_settings(options), pair, namespace, auth, dry_run=dry_run)
    messages = _chosen(_read(files), filters.wanted(), limit)
    count, patience = len(messages), Patience.of(options, give_up_after)
    elsewhere: dict[str, int] = {}
    if only_entities and way.pair is None:
        raise UsageError("--only-entities are those that a pair has configured: it goes with --pair. Nothing was sent.")
    if only_entities and way.pair is not None:
        messages, elsewhere = _within(allowed_entities(way.pair), messages)
    doing = f"Restore {counted(len(messages), 'message')} to {way.named}"
    if ledger is None:
        doing += "; without --ledger the same command would send them again"
    told = dry_run or go_ahead(options, doing, yes=yes, state="Nothing was sent.")

    async def work(stop: "asyncio.Event") -> "Restored":
        from sbpair.connect import open_namespace
        from sbpair.core.access import namespace_name
        from sbpair.render.progress import MoveProgress
        from sbpair.runtime.transfer.ledger import Way, sent_in
        from sbpair.runtime.transfer.restore import Restored
        from sbpair.runtime.transfer.restore import restore as send_back

        if not told:
            logging.getLogger("sbpair").info(f"{doing}.")
        async with open_namespace(way.came_from) as (source, _), open_namespace(way.to) as (target, _):
            done = frozenset() if ledger is None or new_ledger else sent_in(ledger)
            todo = [one for one in messages if key_of(one.received) not in done]
            if not although_in_the_queues:
                await _refuse_doubles(source, todo, way, although_gone=although_gone)
            if dry_run:
                would = Counter(one.forward.destination for one in todo)
                return Restored(dict(would), elsewhere, already_sent=len(messages) - len(todo))
            of_ledger = Way(namespace_name(way.came_from), namespace_name(way.to))
            opened_ledger = open_ledger(ledger, of_ledger, new=new_ledger)
            log = None if options.quiet else EventLog(verbose=options.verbose).notify
            try:
                with MoveProgress("restore", quiet=options.quiet, color=not options.no_color, log=log) as progress:
                    report = await send_back(
                        messages,
                        primary=target,
                        ledger=opened_ledger,
                        clock=system_clock(),
                        observer=progress,
                        stop=stop,
                        rate_per_second=rate,
                        budget_per_second=budget_of(reserve),
                        concurrency=concurrency,
                        patience_seconds=patience.seconds,
                        unreached_seconds=patience.unreached_seconds,
                    )
            finally:
                if opened_ledger is not None:
                    await opened_ledger.close()
            report.left |= elsewhere
            return report

    def shown(report: "Restored") -> CommandResult:
        return _result(way, count, report, dry_run)

    return run_and_show(options, work, shown, nothing="Nothing was sent.")


@dataclass(frozen=True, slots=True)
class _Way:
    """Where messages that were only browsed may lie still, and where all go. `pair`: None where only a namespace was
    named."""

    came_from: NamespaceAccess
    to: NamespaceAccess
    named: str
    """Where they go, for a question."""
    pair: "Pair | None"


def _way(
    options: Options,
    settings: "Settings",
    pair: str | None,
    namespace: str | None,
    auth: AuthMethod | None,
    *,
    dry_run: bool,
) -> _Way:
    if namespace is None:
        if auth is not None:
            raise UsageError("--auth is for --namespace; a pair says itself how it is reached. Nothing was sent.")
        doing = "Restore to the primary of"
        chosen = settings.pair(pair) if dry_run else pair_to_write(options, settings, pair, doing, named_by="--pair")
        return _Way(chosen.secondary, chosen.primary, side_named(chosen, Side.PRIMARY), chosen)
    if pair is not None:
        raise UsageError("--pair and --namespace name two places. Give one of them. Nothing was sent.")
    access = settings.named_namespace(namespace, auth)
    environment = settings.environment_of(access)
    return _Way(access, access, access.label + (f" [{environment}]" if environment else ""), None)


async def _refuse_doubles(source: Any, messages: "Sequence[Restorable]", way: _Way, *, although_gone: bool) -> None:
    from sbpair.runtime.transfer.restore import not_known, still_queued

    try:
        waiting = await still_queued(source, messages, clock=system_clock())
    except ServiceError as error:
        raise not_known(error) from error
    if waiting and way.pair is None:
        raise UsageError(
            f"{waiting:,} of {len(messages):,} messages still lie in their queues: they would be there twice. Nothing "
            "was sent.",
            hint="`sbpair copy` copies messages. --although-in-the-queues sends these nevertheless.",
        )
    if waiting and way.pair is not None:
        raise UsageError(
            f"{waiting:,} of {len(messages):,} messages still wait in the backlog queues; a drain would send them a "
            "second time. Nothing was sent.",
            hint=f"Send them back with `sbpair drain {way.pair.name}`; --although-in-the-queues sends the copies too.",
        )
    if (gone := sum(one.browsed for one in messages)) and not although_gone:
        raise UsageError(
            f"{gone:,} of {counted(len(messages), 'message')} were only browsed and have left their queues since: a "
            "drain or syphon may have sent them back already. Nothing was sent.",
            hint="Name its ledger (--ledger drain.jsonl): what it has is left out. --although-gone sends them "
            "nevertheless.",
        )


def _read(given: Sequence[Path]) -> "Iterator[Restorable]":
    for path in given:
        if not path.exists():
            raise UsageError(f"There is no {path}.")
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found:
            raise UsageError(f"{path} holds no *.jsonl file.", hint="`sbpair pipeline replay` reads Parquet archives.")
        for file in found:
            yield from _messages(file)


def _messages(file: Path) -> "Iterator[Restorable]":
    """The whole lines; one that a crash cut off was never settled, so its message is still in the queue."""
    try:
        with file.open("rb") as opened:
            for number, line in enumerate(iter(lambda: opened.readline(MOST_LINE_BYTES), b""), 1):
                try:
                    message = _message(json.loads(line))
                except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError, UsageError) as error:
                    if not line.endswith(b"\n") and not opened.read(1):
                        return
                    why = f": {error.message}" if isinstance(error, UsageError) else ""
                    raise UsageError(
                        f"Line {number} of {file} is not a message that drain, cleanup or peek wrote{why}. "
                        "Nothing was sent."
                    ) from error
                yield message
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror or error}.") from error


def _message(read: "Mapping[str, Any]") -> "Restorable":
    from time import time

    from sbpair.core import system_properties
    from sbpair.core.errors import MessageError
    from sbpair.core.message import Origin, Received
    from sbpair.core.names import is_dead_letter_path, is_destination
    from sbpair.core.rewrite import as_sent, describe, for_primary
    from sbpair.core.transfer.state import Forward
    from sbpair.runtime.transfer.restore import Restorable

    payload = base64.b64decode(read["payload_base64"], validate=True)
    enqueued = read["enqueued_at"]
    seconds = datetime.fromisoformat(enqueued).timestamp() if isinstance(enqueued, str) else enqueued
    message_id, queue, number = read["message_id"], read["queue"], read["sequence_number"]
    if not isinstance(queue, str) or not isinstance(number, int) or not isinstance(message_id, str | None):
        raise TypeError("queue, sequence_number or message_id")
    origin = Origin(queue, number, message_id, -1 if seconds is None else round(seconds * 1000))
    received = Received(payload, number, queue, message_id, enqueued_at=seconds, origin=origin)
    summary = describe(payload)
    try:
        if system_properties.PATH in summary.application_properties:
            restored = for_primary(payload, now=time(), enqueued_at=None, from_dead_letter=True)
            forward = Forward(restored.payload, restored.destination, restored.session_id, restored.partition_key)
            return Restorable(received, forward, browsed="state" in read)
        destination = read.get("destination", read.get("path"))
        if not isinstance(destination, str) or not is_destination(destination.strip("/")):
            raise UsageError("it names no queue or topic to go to")
        sent = as_sent(payload, from_dead_letter=is_dead_letter_path(queue))
        forward = Forward(sent.payload, destination.strip("/"), sent.session_id, sent.partition_key)
        return Restorable(received, forward, browsed="state" in read)
    except MessageError as error:
        raise UsageError(error.description) from error


def _spelled(message: "Restorable", spellings: dict[str, str]) -> "Restorable":
    """With the first spelling of its destination."""
    path = message.forward.destination
    return replace(message, forward=replace(message.forward, destination=spellings.setdefault(path.lower(), path)))


def _chosen(messages: "Iterator[Restorable]", wanted: "MessageFilter", limit: int | None) -> "list[Restorable]":
    """Those that are wanted, each once, in the order in which they were put into the backlog. A destination, whose case
    does not matter, has the spelling that came first."""
    spellings: dict[str, str] = {}
    by_key = {
        key_of(one.received): _spelled(one, spellings)
        for one in messages
        if not wanted.is_set or _is_wanted(one, wanted)
    }
    ordered = [by_key[key] for key in sorted(by_key, key=lambda key: (key[3], key[0], key[1]))]
    return ordered if limit is None else ordered[:limit]


def _is_wanted(message: "Restorable", wanted: "MessageFilter") -> bool:
    from sbpair.core.summary import describe

    summary = describe(message.received.payload)
    return wanted.wants(message.received, replace(summary, destination=message.forward.destination))


def _within(allowed: "Sequence[str]", messages: "list[Restorable]") -> "tuple[list[Restorable], dict[str, int]]":
    """The messages for these destinations, and how many others there are by the reason that names theirs."""
    from collections import Counter

    from sbpair.core.transfer.verdict import NOT_CONFIGURED

    names = {path.lower() for path in allowed}
    inside = [one for one in messages if one.forward.destination.lower() in names]
    outside = [one.forward.destination for one in messages if one.forward.destination.lower() not in names]
    others = Counter(NOT_CONFIGURED + path for path in outside)
    return inside, dict(others)


def _result(way: _Way, count: int, report: "Restored", dry_run: bool) -> CommandResult:
    rows: list[dict[str, Any]] = [
        {"what": "sent", "where": place, "messages": number} for place, number in sorted(report.sent.items())
    ]
    if report.already_sent:
        rows.append({"what": "sent before", "where": "", "messages": report.already_sent})
    rows += [{"what": "left", "where": why, "messages": number} for why, number in sorted(report.left.items())]
    columns = (
        Column("what", "What"),
        Column("where", "Where or why"),
        Column("messages", "Messages", right=True, counts=True),
    )
    sent = sum(report.sent.values())
    plural = "s" if count != 1 else ""
    again = f"{report.sent_again:,} were sent again after an unclear answer, with the same MessageId."
    from sbpair.core.transfer.conclusion import left_out

    pair = None if way.pair is None else way.pair.name
    data = RestoreResult(
        pair, way.to.label, dry_run, count, report.sent, report.left, report.already_sent, report.sent_again
    )
    where = way.to.label if way.pair is None else "the primary"
    return CommandResult(
        "restore",
        data,
        (Table("", columns, rows),),
        notes=(again,) if report.sent_again else (),
        summary=f"{sent:,} of {count:,} message{plural} {'would be ' if dry_run else ''}sent to {where}"
        f"{left_out(report.already_sent)}.",
        closing=True,
        exit=(Exit.FINDINGS if sent else Exit.OK) if dry_run else _exit(report),
    )


def _exit(report: "Restored") -> Exit:
    if not report.left:
        return Exit.OK
    error = report.first_error
    if error is not None and not report.sent and error.exit_name in ("denied", "unreachable"):
        return Exit.from_label(error.exit_name)  # that is why all is left
    return Exit.PARTIAL
