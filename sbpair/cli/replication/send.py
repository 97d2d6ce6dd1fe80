"""`sbpair replicate send`: every message to both namespaces, in order."""

import logging
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from sbpair.cli.asking import YesOption, go_ahead, pair_to_write, side_named, tell_that_it_reads
from sbpair.cli.context import Interrupted, load_settings, open_sides, run_async, system_clock
from sbpair.cli.failover.records import InputFormat, read_lines, to_payload
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.replication.options import (
    FirstArgument,
    JournalKeyOption,
    JournalOption,
    RetentionOption,
    SecondArgument,
    journal_at,
    make_terms,
    pair_and_queue,
)
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.outcome import Exit, exit_of_failures
from sbpair.core.pairing import Side
from sbpair.core.rewrite import compose
from sbpair.journal import COSMOS_KEY
from sbpair.render.console import write_record
from sbpair.render.result import Column, CommandResult, Format, Table
from sbpair.runtime.replication.sender import DualSender, DualSent

if TYPE_CHECKING:
    import asyncio


MOST_FAILURES_SHOWN = 20


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
class FailedLine:
    """A message of the input that no side took; `error` is the error's code."""

    line: int
    error: str
    message: str
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


@command(output="cli.replication.send:SendResult")
def send(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read from this file instead of stdin.", show_default=False)
    ] = None,
    form: Annotated[
        InputFormat, typer.Option("--input", help="What a line is: a message as JSON, or a body.")
    ] = InputFormat.AUTO,
    session_id: Annotated[
        str | None, typer.Option("--session-id", help="Session of lines that are bodies.", show_default=False)
    ] = None,
    prefer: Annotated[Side, typer.Option(help="The namespace whose copy is delivered first.")] = Side.PRIMARY,
    delay: Annotated[str, typer.Option(metavar="DURATION", help="How much later the other copy is delivered.")] = "15s",
    journal: JournalOption = None,
    journal_key: JournalKeyOption = COSMOS_KEY,
    retention: RetentionOption = "14d",
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Concurrent sends.")] = 32,
    yes: YesOption = False,
) -> CommandResult:
    """Send lines from stdin or a file to both namespaces, in order within each session.

    A line is a body, which goes to --session-id, or a JSON message with its session_id. With a journal the order also
    holds from one run to the next. Exit code: 0 both namespaces took all, 5 some have one copy only, 3 some failed. If
    all failed: 4 access denied, 6 no answer, 1 other.

    \b
    Examples:
      sbpair replicate send orders-pair orders -f events.jsonl --journal sqlite:journal.db
      echo arrived | sbpair replicate send local orders --session-id parcel-7
    """
    pair_name, queue = pair_and_queue(first, second)
    pair = pair_to_write(options, load_settings(options), pair_name, f"Send to {queue} on both sides of")
    doing = f"Send to {queue} on {side_named(pair, Side.PRIMARY)} and {side_named(pair)}"
    if file is None:
        tell_that_it_reads(options)
    else:
        go_ahead(options, f"{doing}: the lines of {file}", yes=yes, state="Nothing was sent.")
    store = None if journal is None else journal_at(journal, journal_key)
    terms = make_terms(retention=retention)
    delay_seconds = duration_option(delay) or 0.0

    async def work(stop: "asyncio.Event") -> "_Sent":
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
            payloads = _payloads(file, form, session_id, stop, tally)
            seconds = options.timeout_seconds(10.0)
            async for sent in sender.send_all(payloads, overlap=concurrency, timeout_seconds=seconds):
                tally.add(sent)
        return tally

    try:
        return run_async(options, work).result(queue)
    except Interrupted as interrupted:
        if isinstance(interrupted.partial, _Sent):
            return replace(interrupted.partial.result(queue), exit=Exit.from_label(interrupted.exit_name))
        raise


async def _payloads(
    path: Path | None, form: InputFormat, session: str | None, stop: "asyncio.Event", tally: "_Sent"
) -> AsyncIterator[bytes]:
    """Encoded messages of the input; a line that is none stops the run before anything after it is sent."""
    try:
        file = sys.stdin.buffer if path is None else path.open("rb")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error}") from error
    with file:
        async for number, line in read_lines(file, stop):
            if form is InputFormat.AUTO:
                form = InputFormat.JSONL if line.lstrip().startswith(b"{") else InputFormat.LINES
            try:
                payload = _payload(line, form, session)
            except SbpairError as error:
                tally.bad_line = f"line {number}: {error.message}"
                return
            tally.line_numbers.append(number)
            yield payload


def _payload(line: bytes, form: InputFormat, session: str | None) -> bytes:
    if form is InputFormat.LINES:
        if session is None:
            raise UsageError("a line that is a body needs a session: name one with --session-id")
        return compose(body=line, message_id=str(uuid4()), session_id=session)
    return to_payload(line, form, now=system_clock().now().timestamp())


@dataclass
class _Sent:
    """Counts what became of the messages; streams one line each with -o jsonl."""

    streaming: bool
    journal: bool
    bad_line: str | None = None
    line_numbers: deque[int] = field(default_factory=deque)
    both: int = 0
    one_side: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    unrecorded: int = 0
    failures: list[FailedLine] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def add(self, sent: DualSent) -> None:
        line = self.line_numbers.popleft()
        if sent.result is not None:
            result = sent.result
            if len(result.accepted) == len(Side):
                self.both += 1
            else:
                self.one_side[result.accepted[0].value] += 1
            self.unrecorded += not result.recorded
            accepted, errors = tuple(result.accepted), dict(result.errors)
            self._stream(SentLine(line, result.message_id, result.session_id, accepted, errors, result.uncertain))
        elif sent.error is not None:
            self.failed += 1
            self.kinds.add(sent.error.exit_name)
            failure = FailedLine(line, sent.error.code, sent.error.message)
            if len(self.failures) < MOST_FAILURES_SHOWN:
                self.failures.append(failure)
            self._stream(failure)

    def _stream(self, record: SentLine | FailedLine) -> None:
        if self.streaming:
            write_record(record)

    def result(self, queue: str) -> CommandResult:
        single = sum(self.one_side.values())
        rows: list[dict[str, Any]] = [{"where": "both sides", "messages": self.both}]
        rows += [{"where": f"{side} only", "messages": count} for side, count in sorted(self.one_side.items())]
        if self.failed:
            rows.append({"where": "failed", "messages": self.failed})
        notes = [f"line {one.line}: {one.error}: {one.message}" for one in self.failures]
        if self.bad_line is not None:
            notes.append(f"Stopped at {self.bad_line}; nothing after it was sent.")
        if not self.journal:
            notes.append("Without --journal the order holds among the messages of this run only.")
        elif self.unrecorded:
            notes.append(f"{self.unrecorded} could not be recorded: order against the next run is not sure.")
        data = SendResult(
            queue,
            self.both,
            dict(self.one_side),
            self.failed,
            self.unrecorded,
            tuple(self.failures),
            self.bad_line,
        )
        columns = (Column("where", "Where"), Column("messages", "Messages", right=True))
        return CommandResult(
            "replicate send",
            data,
            (Table("", columns, rows),),
            notes=tuple(notes),
            summary=f"{self.both + single} accepted ({single} by one side only), {self.failed} failed.",
            exit=self._exit(self.both + single, single),
            streamed=self.streaming,
        )

    def _exit(self, accepted: int, single: int) -> Exit:
        if self.failed or self.bad_line is not None:
            if accepted:
                return Exit.PARTIAL
            return Exit.USAGE if self.bad_line is not None else exit_of_failures(self.kinds)
        return Exit.FINDINGS if single else Exit.OK
