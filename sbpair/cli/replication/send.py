"""`sbpair replicate send`: every message to both namespaces, in order."""

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import typer

from sbpair.cli.asking import pair_to_write, side_named
from sbpair.cli.context import Stop, load_settings, open_sides, run_and_show, system_clock
from sbpair.cli.failover import records
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.replication import options as shared
from sbpair.core.errors import UsageError
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import Terms
from sbpair.core.rewrite import compose
from sbpair.render.output import Format
from sbpair.render.result import CommandResult, Table, columns
from sbpair.runtime.replication.sender import DualSender, DualSent

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


@command(output="cli.replication.send:SendPrinted", asks=True, dry_run=records.DRY_RUN)
def send(
    options: Options,
    first: shared.FirstArgument,
    second: shared.SecondArgument = None,
    file: records.FileOption = None,
    form: records.InputOption = records.InputFormat.AUTO,
    session_id: Annotated[str | None, typer.Option(help="Session of lines that are bodies.")] = None,
    prefer: Annotated[Side, typer.Option(help="The namespace whose copy is delivered first.")] = Side.PRIMARY,
    delay: Annotated[str, typer.Option(metavar="DURATION", help="How much later the other copy is delivered.")] = "15s",
    *,
    journal: shared.JournalOptions,
    retention: shared.RetentionOption = "14d",
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
    pair_name, queue = shared.pair_and_queue(first, second)
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

    def add(self, sent: DualSent) -> None:
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
