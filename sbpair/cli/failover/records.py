"""Input of `sbpair send` and `sbpair replicate send`: a raw line is a body; a JSON line is a message, or a browsed one
with its exact bytes. And what both count alike of what became of the lines."""

import base64
import binascii
import json
import os
import sys
import threading
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Generic, TypeVar

import typer

from sbpair.cli.asking import go_ahead, tell_that_it_reads
from sbpair.cli.context import Stop, run_async
from sbpair.cli.options import PAIR, Options, duration_option
from sbpair.core import summary, system_properties
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.durations import parse_duration
from sbpair.core.errors import SbpairError, UsageError, for_pair
from sbpair.core.outcome import Exit, exit_of_failures
from sbpair.core.pairing import Side
from sbpair.core.redact import quoted
from sbpair.core.rewrite import TEXT_FIELDS, compose, describe, for_primary, strip_broker_annotations
from sbpair.core.serialization import column
from sbpair.core.words import counted
from sbpair.render.console import write_record
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from sbpair.core.transfer.verdict import DestinationSeen, Wanted

# Input lines for a command that must keep answering to signals while it waits for them.

CHUNK_BYTES = 65_536
LINES_AHEAD = 100
"""Lines read before somebody wanted them: the bound of memory, and what keeps a fast writer waiting."""


async def read_lines(file: BinaryIO, stop: Stop) -> AsyncIterator[tuple[int, bytes]]:
    """Lines of `file` with their numbers (from 1), without line ends and empty ones, until its end or `stop`.

    A thread does the reading, because a terminal or pipe that says nothing would block the loop; it is a daemon and
    reads the bare descriptor, so that neither the thread nor a lock it holds can keep the process from ending.
    """
    import asyncio

    from sbpair.concurrency import end

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, bytes] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def read() -> None:
        try:
            for number, line in enumerate(_split(file.fileno()), 1):
                room.acquire()
                loop.call_soon_threadsafe(queue.put_nowait, (number, line.rstrip(b"\r\n")))
            loop.call_soon_threadsafe(queue.put_nowait, None)
        except (OSError, ValueError) as error:
            loop.call_soon_threadsafe(queue.put_nowait, error)
        except RuntimeError:
            return  # the loop is closed: nobody wants more lines

    threading.Thread(target=read, name="sbpair-lines", daemon=True).start()

    async def end_at_stop() -> None:
        await stop.wait()
        queue.put_nowait(None)

    # What is awaited is the queue alone, and `stop` speaks through it: a task for each line costs more than the line.
    ending = asyncio.create_task(end_at_stop())
    try:
        while (item := await queue.get()) is not None and not stop.is_set():
            room.release()
            if isinstance(item, BaseException):
                raise item
            if item[1].strip():
                yield item
    finally:
        await end(ending)


def _split(descriptor: int) -> Iterator[bytes]:
    """Lines of a file descriptor, the last one also without a line end."""
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


FIELDS = ("body", "body_base64", "application_properties", "ttl", "scheduled_at", *TEXT_FIELDS)


class InputFormat(StrEnum):
    """How input lines are read."""

    AUTO = "auto"
    """By the first line: JSON Lines if it begins with `{`, otherwise raw lines."""
    JSONL = "jsonl"
    LINES = "lines"


FileOption = Annotated[Path | None, typer.Option("--file", "-f", help="Read from this file instead of stdin.")]
InputOption = Annotated[InputFormat, typer.Option("--input", help="What a line is: a message as JSON, or a body.")]


def open_input(path: Path | None) -> BinaryIO:
    """The file of --file, or stdin.

    Raises:
        UsageError: it cannot be read.
    """
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


MOST_FAILURES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A line of the input that was a message and was not accepted; `error` is the error's code."""

    line: int
    error: str
    message: str


F = TypeVar("F", bound=Failure)


class Lines(Generic[F]):
    """The lines of one run and what became of them; with `streaming` each is printed as soon as that is known."""

    def __init__(self, failed_line: Callable[[int, str, str], F], *, streaming: bool) -> None:
        """`failed_line`: makes the command's own record of a failure."""
        self.streaming = streaming
        self.failed = 0
        self.failures: list[F] = []
        """The first of them."""
        self.bad_line: str | None = None
        """A line that is no message; nothing after it was sent."""
        self._failed_line = failed_line
        self._numbers: deque[int] = deque()
        self._kinds: set[str] = set()
        self._by_code: dict[str, tuple[F, int]] = {}
        """The first failure of each kind, and how many there are of it."""
        self._hints: dict[str, None] = {}

    async def payloads(
        self,
        file: BinaryIO,
        form: InputFormat,
        stop: Stop,
        to_payload: Callable[[bytes, InputFormat], bytes],
    ) -> AsyncIterator[bytes]:
        """Encoded messages of the input; a line that is none stops the run before anything after it is sent."""
        async for number, line in read_lines(file, stop):
            if form is InputFormat.AUTO:
                form = InputFormat.JSONL if line.lstrip().startswith(b"{") else InputFormat.LINES
            try:
                payload = to_payload(line, form)
            except SbpairError as error:
                self.bad_line = f"line {number}: {error.message}"
                return
            self._numbers.append(number)
            yield payload

    def next_number(self) -> int:
        """The number of the line whose outcome comes next: outcomes come in the order of the lines."""
        return self._numbers.popleft()

    def fail(self, line: int, error: SbpairError) -> None:
        """Count a message that was not accepted."""
        self.failed += 1
        self._kinds.add(error.exit_name)
        if error.hint:
            self._hints[for_pair(error.hint, PAIR.get())] = None
        failure = self._failed_line(line, error.code, error.message)
        first, number = self._by_code.get(error.code, (failure, 0))
        self._by_code[error.code] = first, number + 1
        if len(self.failures) < MOST_FAILURES_SHOWN:
            self.failures.append(failure)
        self.stream(failure)

    def stream(self, record: object) -> None:
        """Print the record of one line with -o jsonl."""
        if self.streaming:
            write_record(record)

    def notes(self, *, verbose: bool = False) -> list[str]:
        """What is said of the failures and of a line that is no message: the first failure of each kind with their
        number, or with `verbose` each of `failures`."""
        each = [(one, 1) for one in self.failures] if verbose else list(self._by_code.values())
        notes = []
        for one, number in each:
            more = f" and {counted(number - 1, 'more line')}" if number > 1 else ""
            notes.append(f"line {one.line}{more}: {one.error}: {one.message}")
        if verbose and self.failed > len(each):
            notes.append(f"{counted(self.failed - len(each), 'more line')} failed; -o jsonl lists each.")
        notes += self._hints
        if self.bad_line is not None:
            notes.append(f"Stopped at {self.bad_line}; nothing after it was sent.")
        return notes

    def exit(self, accepted: int, elsewhere: int) -> Exit:
        """`elsewhere`: of the accepted messages those that are not where all should be."""
        if self.failed or self.bad_line is not None:
            if accepted:
                return Exit.PARTIAL
            return Exit.USAGE if self.bad_line is not None else exit_of_failures(self._kinds)
        return Exit.FINDINGS if elsewhere else Exit.OK


def named_values(properties: Sequence[str]) -> dict[str, str]:
    """What --property gives, by name.

    Raises:
        UsageError: a property without a name or a value.
    """
    parted = {text: text.partition("=") for text in properties}
    for text, (name, equals, _) in parted.items():
        if not name or not equals:
            raise UsageError(f"--property is NAME=VALUE, not {quoted(text)}.")
    return {name: value for name, _, value in parted.values()}


def values_of(
    *, message_id: str | None, session_id: str | None, properties: Sequence[str], ttl: str | None, scheduled: str | None
) -> Mapping[str, Any]:
    """The fields of a message that options give; what is not given is not in it.

    Raises:
        UsageError: a property without a name or a value, a duration or time that is none.
    """
    duration_option(ttl)
    try:
        _moment(scheduled)
    except UsageError as error:
        raise UsageError(f"--scheduled: {error.message.removeprefix('scheduled_at ')}") from error
    given = {
        "message_id": message_id,
        "session_id": session_id,
        "application_properties": named_values(properties) or None,
        "ttl": ttl,
        "scheduled_at": scheduled,
    }
    return {name: value for name, value in given.items() if value is not None}


def to_payload(line: bytes, form: InputFormat, *, now: float, values: Mapping[str, Any] | None = None) -> bytes:
    """The encoded message of one input line. A message without an id gets one, so that a copy can be recognised.

    `now` is UTC epoch seconds, for messages that come out of a backlog. `values`: fields that the line does not give.

    Raises:
        UsageError: not JSON, an unknown field, a value of the wrong type, `values` for a line with exact bytes.
    """
    values = values or {}
    if form is InputFormat.LINES:
        if values:
            return _composed({**values, "body_base64": base64.b64encode(line).decode()})
        return compose(body=line, message_id=str(uuid.uuid4()))
    record = record_of(line)
    if "payload_base64" in record:
        if values:
            raise UsageError(f"a line with exact bytes cannot be combined with the option {', '.join(values)}")
        return _exact(_bytes(record, "payload_base64"), now)
    properties = {**values.get("application_properties", {}), **properties_of(record)}
    return _composed({**values, **record, **({"application_properties": properties} if properties else {})})


def record_of(line: bytes) -> dict[str, Any]:
    """The fields of a JSON line.

    Raises:
        UsageError: not JSON, or no object.
    """
    from sbpair.settings import DocumentError, parse_json

    try:
        record = parse_json(line)
    except DocumentError as error:
        raise UsageError(f"not JSON: {error}" if "JSON" not in str(error) else str(error)) from error
    if not isinstance(record, dict):
        raise UsageError("a JSON line is an object with the fields of one message")
    return record


def _exact(payload: bytes, now: float) -> bytes:
    """A browsed message as its application sent it: without broker annotations, and out of its backlog form."""
    if system_properties.PATH in describe(payload).application_properties:
        return for_primary(payload, now=now, enqueued_at=None, from_dead_letter=True).payload
    return strip_broker_annotations(payload)


def _composed(record: Mapping[str, Any]) -> bytes:
    for name in record:
        if name not in FIELDS:
            raise UsageError(f"unknown field {quoted(name)}; known: {', '.join(FIELDS)}, payload_base64")
    texts = {name: _text(record, name) for name in TEXT_FIELDS}
    message_id = texts.pop("message_id") or str(uuid.uuid4())
    try:
        return compose(
            body=_body(record),
            message_id=message_id,
            application_properties=properties_of(record),
            ttl_seconds=_ttl(record.get("ttl")),
            scheduled_at=_moment(record.get("scheduled_at")),
            **texts,
        )
    except SbpairError:
        raise
    except ValueError as error:
        raise UsageError(f"cannot be encoded: {error}") from error


def _body(record: Mapping[str, Any]) -> bytes | str:
    if "body_base64" in record:
        return _bytes(record, "body_base64")
    body = record.get("body", "")
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def _text(record: Mapping[str, Any], name: str) -> str | None:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is not a text")
    return value


def properties_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = record.get("application_properties") or {}
    if not isinstance(properties, dict):
        raise UsageError("application_properties is not an object")
    return properties


def _ttl(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_duration(value)
    raise UsageError("ttl is a duration such as '1h'")


def _moment(value: Any) -> float | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise UsageError("scheduled_at is an ISO 8601 time such as 2026-12-01T08:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _bytes(record: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(record[name], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise UsageError(f"{name} is not Base64") from None


# `--dry-run` of both: the input is read, the destinations are asked.

DRY_RUN = "Only read the lines and ask the destinations; exit 5 if anything would be sent."


@dataclass(frozen=True, slots=True)
class Place:
    """One destination: messages that it would take, those it would not by the reason, and whether its properties could
    be asked for, which tell whether it is full or takes messages with a session only. `side`: of a pair."""

    side: Side | None
    namespace: str
    entity: str
    would_take: int
    would_refuse: Mapping[str, int]
    asked: bool


@dataclass(frozen=True, slots=True)
class SendDryRun:
    """What a dry run found. `stopped_at`: a line that is no message; the real run sends nothing after it."""

    entity: str
    dry_run: bool
    messages: int
    size_bytes: int
    places: tuple[Place, ...]
    stopped_at: str | None


def dry_run(
    options: Options,
    destinations: Sequence[tuple[Side | None, NamespaceAccess]],
    entity: str,
    lines: "Lines[Any]",
    source: BinaryIO,
    form: InputFormat,
    to_payload: Callable[[bytes, InputFormat], bytes],
) -> CommandResult:
    """Say what the real run would meet on these namespaces."""

    async def work(stop: Stop) -> SendDryRun:
        from sbpair.connect import open_namespace
        from sbpair.core.transfer.verdict import Wanted
        from sbpair.runtime.transfer.dry_run import ask_destinations
        from sbpair.runtime.transfer.sinks import NamespaceSink

        wanted = Wanted()
        async for payload in lines.payloads(source, form, stop, to_payload):
            wanted.add(len(payload), summary.describe(payload).session_id)
        places = []
        for side, access in destinations:
            async with open_namespace(access) as (messaging, admin):
                sink = NamespaceSink(messaging)
                try:
                    seen = await ask_destinations([entity], sink=sink, admin=admin, stop=stop)
                finally:
                    await sink.close()
                places += [_place(side, shown_name(access), one, wanted) for one in seen]
        return SendDryRun(entity, True, wanted.messages, wanted.size_bytes, tuple(places), lines.bad_line)

    return _result(run_async(options, work))


def _place(side: Side | None, label: str, seen: "DestinationSeen", wanted: "Wanted") -> Place:
    from sbpair.core.transfer.verdict import Stays, expected

    left, refused = wanted.messages, Counter[str]()
    for trouble in expected(seen, wanted):
        if isinstance(trouble, Stays):
            reason, number = trouble.code, left
        else:
            reason, number = trouble.reason, min(trouble.messages, left)
        refused[reason] += number
        left -= number
    return Place(side, label, seen.path, left, dict(+refused), seen.asked or seen.error is not None)


@dataclass(frozen=True, slots=True)
class _Row:
    what: str = field(metadata=column("What"))
    where: str = field(metadata=column("Where"))
    messages: int = field(metadata=column("Messages", counts=True))


def _result(found: SendDryRun) -> CommandResult:
    rows = []
    for place in found.places:
        where = f"{place.entity} on {place.namespace}"
        rows.append(_Row("would be sent", where, place.would_take))
        for reason, number in place.would_refuse.items():
            rows.append(_Row("would not be taken", f"{where}: {reason}", number))
    blind = [place.namespace for place in found.places if not place.asked]
    notes = [
        f"Not checked without Manage on {namespace}: whether {found.entity} is full or requires a session id."
        for namespace in blind
    ]
    if found.stopped_at is not None:
        notes.append(f"It would stop at {found.stopped_at}; nothing after it would be sent.")
    places = " and ".join(place.namespace for place in found.places)
    exit = Exit.FINDINGS if found.messages else Exit.OK
    return CommandResult(
        found,
        (table_of(_Row, rows),),
        notes=tuple(notes),
        summary=f"{counted(found.messages, 'message')} would be sent to {found.entity} on {places}. Nothing was sent.",
        exit=Exit.USAGE if found.stopped_at is not None else exit,
        closing=True,
    )
