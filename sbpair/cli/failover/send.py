"""`sbpair send`: the failover sender for scripts."""

import logging
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from sbpair.cli import suggestions
from sbpair.cli.asking import YesOption, go_ahead, pair_to_write, side_named, tell_that_it_reads
from sbpair.cli.context import EventLog, Interrupted, load_settings, run_async, system_clock, unchanged
from sbpair.cli.failover.records import InputFormat, read_lines, to_payload
from sbpair.cli.options import Options, command, duration_option
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit, exit_of_failures
from sbpair.core.pairing import Pair, Side
from sbpair.render.console import write_record
from sbpair.render.result import Column, CommandResult, Format, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.runtime.failover.pairing import PairedNamespaces
    from sbpair.runtime.failover.sender import Sent

MOST_FAILURES_SHOWN = 20
AFTER_SIGNAL_SECONDS = 3.0
"""What sends under way get to end after a signal; then they count as failed, and may have been stored or not."""


class PolicyName(StrEnum):
    """Which errors start a failover."""

    DOCUMENTED = "documented"
    SDK = "sdk"


# What `sbpair send` prints: with -o jsonl a line for each message as it is sent, with -o json one object in the end.


@dataclass(frozen=True, slots=True)
class SentLine:
    """An accepted message of the input. `queue`: the backlog queue it was diverted to."""

    line: int
    where: str
    queue: str | None
    uncertain: bool


@dataclass(frozen=True, slots=True)
class FailedLine:
    """A message of the input that nobody took; `error` is the error's code."""

    line: int
    error: str
    message: str
    where: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class SendResult:
    entity: str
    accepted: int
    diverted: int
    """Of the accepted ones, those in a backlog queue."""
    uncertain: int
    """Of the accepted ones, those that may be stored twice."""
    failed: int
    failures: tuple[FailedLine, ...]
    """The first of them."""
    stopped_at: str | None
    """A line that is no message; nothing after it was sent."""


@command(output="cli.failover.send:SendResult")
def send(
    options: Options,
    first: Annotated[
        str,
        typer.Argument(
            metavar="[PAIR] ENTITY",
            help="A pair, and a queue or topic on its primary.",
            autocompletion=suggestions.pairs_and_entities,
        ),
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="", hidden=True, show_default=False, autocompletion=suggestions.entities),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read from this file instead of stdin.", show_default=False)
    ] = None,
    form: Annotated[
        InputFormat, typer.Option("--input", help="What a line is: a message as JSON, or a body.")
    ] = InputFormat.AUTO,
    failover_interval: Annotated[
        str | None,
        typer.Option(help="How long sends may fail before failing over; 0: at the first failure.", show_default=False),
    ] = None,
    ping_interval: Annotated[
        str | None, typer.Option(help="Pause between pings of an unavailable entity.", show_default=False)
    ] = None,
    policy: Annotated[
        PolicyName | None, typer.Option(help="Which errors start a failover.", show_default=False)
    ] = None,
    retry_for: Annotated[
        str, typer.Option(help="Retry a message for this long before it counts as failed.", metavar="DURATION")
    ] = "3m",
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Concurrent sends.")] = 10,
    partitioned: Annotated[
        bool, typer.Option("--partitioned", help="The entity is partitioned: check the partition keys.")
    ] = False,
    hold_sessions: Annotated[
        bool, typer.Option("--hold-sessions", help="Keep order within a session across failover and failback.")
    ] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Send lines from stdin or a file to a queue or topic; to the backlog while the primary is down.

    A line is a body, or a JSON message: body, message_id, session_id, application_properties, ttl, ..., or a line of
    `sbpair peek -o jsonl`. Needs Send on both namespaces; `sbpair provision` creates the backlog queues. Exit code: 0
    the primary took all, 5 some went to the backlog, 3 some failed. If all failed: 4 access denied, 6 no answer,
    1 other.

    \b
    Examples:
      echo hello | sbpair send orders-pair orders
      sbpair peek local -o jsonl | sbpair send local orders
    """
    pair_name, entity = (None, first) if second is None else (first, second)
    check_entity_path(entity)
    chosen = pair_to_write(options, load_settings(options), pair_name, f"Send to {entity} of")
    pair = _with_options(chosen, failover_interval, ping_interval, policy)
    retry_seconds = duration_option(retry_for) or 0.0
    source = _open(file)
    backlog = f"to the backlog on {pair.secondary.label} while that is down"
    doing = f"Send to {entity} on {side_named(pair, Side.PRIMARY)}, {backlog}"
    if file is None:
        tell_that_it_reads(options)
    else:
        go_ahead(options, f"{doing}: the lines of {file}", yes=yes, state="Nothing was sent.")

    async def work(stop: "asyncio.Event") -> "_Tally":
        from sbpair.connect import open_pairing

        logging.getLogger("sbpair").info(f"{doing}.")

        tally = _Tally(options.output is Format.JSONL)
        async with AsyncExitStack() as stack:
            with unchanged("Nothing was sent."):
                opened = open_pairing(pair, observer=EventLog(), hold_sessions=hold_sessions or None)
                pairing = await stack.enter_async_context(opened)
            _close_when_stopped(stack, pairing, stop)
            sender = pairing.sender(entity, partitioned=partitioned or None)
            results = sender.send_all(
                _payloads(source, form, stop, tally),
                overlap=concurrency,
                timeout_seconds=options.timeout_seconds(60.0),
                retry_seconds=retry_seconds,
                stop=stop,
            )
            async for sent in results:
                tally.add(sent)
        return tally

    try:
        return run_async(options, work).result(entity)
    except Interrupted as interrupted:
        if isinstance(interrupted.partial, _Tally):
            return replace(interrupted.partial.result(entity), exit=Exit.from_label(interrupted.exit_name))
        raise


def _close_when_stopped(stack: AsyncExitStack, pairing: "PairedNamespaces", stop: "asyncio.Event") -> None:
    """After a signal what is under way gets a moment: a namespace that says nothing would hold it for minutes."""
    import asyncio

    from sbpair.concurrency import end

    async def close() -> None:
        await stop.wait()
        await pairing.close(wait_seconds=AFTER_SIGNAL_SECONDS)

    closing = asyncio.create_task(close(), name="close after a signal")

    async def finish() -> None:
        if not stop.is_set():
            await end(closing)
        else:
            await closing

    stack.push_async_callback(finish)


def _with_options(pair: Pair, failover: str | None, ping: str | None, policy: PolicyName | None) -> Pair:
    changes: dict[str, Any] = {}
    if (seconds := duration_option(failover)) is not None:
        changes["failover_interval_seconds"] = seconds
    if (seconds := duration_option(ping)) is not None:
        changes["ping_interval_seconds"] = seconds
    if policy is not None:
        changes["policy"] = policy.value
    return replace(pair, options=replace(pair.options, **changes))


async def _payloads(
    source: BinaryIO, form: InputFormat, stop: "asyncio.Event", tally: "_Tally"
) -> AsyncIterator[bytes]:
    """Encoded messages of the input; a line that is none stops the run before anything after it is sent."""
    async for number, line in read_lines(source, stop):
        if form is InputFormat.AUTO:
            form = InputFormat.JSONL if line.lstrip().startswith(b"{") else InputFormat.LINES
        try:
            payload = to_payload(line, form, now=system_clock().now().timestamp())
        except SbpairError as error:
            tally.bad_line = f"line {number}: {error.message}"
            return
        tally.line_numbers.append(number)
        yield payload


def _open(path: Path | None) -> BinaryIO:
    if path is None:
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}") from error


class _Tally:
    """Counts what became of the messages; streams one line each with -o jsonl."""

    def __init__(self, streaming: bool) -> None:
        self.bad_line: str | None = None
        self.line_numbers: deque[int] = deque()
        self._streaming = streaming
        self._where: Counter[tuple[str, str]] = Counter()
        self._failed = 0
        self._failures: list[FailedLine] = []
        self._kinds: set[str] = set()
        self._hints: dict[str, None] = {}
        self._uncertain = 0

    def add(self, sent: "Sent") -> None:
        line = self.line_numbers.popleft()
        if sent.result is not None:
            result = sent.result
            self._where[(result.where.value, result.queue or "")] += 1
            self._uncertain += result.uncertain
            self._stream(SentLine(line, result.where.value, result.queue, result.uncertain))
        elif sent.error is not None:
            self._failed += 1
            self._kinds.add(sent.error.exit_name)
            if sent.error.hint:
                self._hints[sent.error.hint] = None
            failure = FailedLine(line, sent.error.code, sent.error.message)
            if len(self._failures) < MOST_FAILURES_SHOWN:
                self._failures.append(failure)
            self._stream(failure)

    def _stream(self, record: SentLine | FailedLine) -> None:
        if self._streaming:
            write_record(record)

    def result(self, entity: str) -> CommandResult:
        accepted = sum(self._where.values())
        diverted = sum(count for (where, _), count in self._where.items() if where == "backlog")
        rows: list[dict[str, Any]] = [
            {"where": where, "queue": queue, "messages": count} for (where, queue), count in sorted(self._where.items())
        ]
        if self._failed:
            rows.append({"where": "failed", "queue": "", "messages": self._failed})
        notes = [f"line {one.line}: {one.error}: {one.message}" for one in self._failures]
        notes += self._hints
        if self.bad_line is not None:
            notes.append(f"Stopped at {self.bad_line}; nothing after it was sent.")
        if self._uncertain:
            notes.append(f"{self._uncertain} may be stored twice, with the same MessageId: an answer was lost.")
        columns = (
            Column("where", "Where"),
            Column("queue", "Backlog queue"),
            Column("messages", "Messages", right=True),
        )
        data = SendResult(
            entity, accepted, diverted, self._uncertain, self._failed, tuple(self._failures), self.bad_line
        )
        return CommandResult(
            "send",
            data,
            (Table("", columns, rows, style_key="where"),),
            notes=tuple(notes),
            summary=f"{accepted} accepted ({diverted} diverted), {self._failed} failed.",
            exit=self._exit(accepted, diverted),
            streamed=self._streaming,
        )

    def _exit(self, accepted: int, diverted: int) -> Exit:
        if self._failed or self.bad_line is not None:
            if accepted:
                return Exit.PARTIAL
            return Exit.USAGE if self.bad_line is not None else exit_of_failures(self._kinds)
        return Exit.FINDINGS if diverted else Exit.OK
