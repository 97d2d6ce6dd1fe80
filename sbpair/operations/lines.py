"""Messages as lines: a raw line is a body; a JSON line is a message, or a browsed one with its exact bytes. And what
became of the lines of one run.
"""

import base64
import binascii
import json
import os
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from sbpair.core import system_properties
from sbpair.core.documents import DocumentError, parse_json
from sbpair.core.durations import parse_duration
from sbpair.core.errors import SbpairError, UsageError, for_pair
from sbpair.core.outcome import Exit, exit_of_failures
from sbpair.core.redact import quoted
from sbpair.core.rewrite import TEXT_FIELDS, compose, describe, for_primary, strip_broker_annotations
from sbpair.core.words import counted

if TYPE_CHECKING:
    import asyncio

CHUNK_BYTES = 65_536
LINES_AHEAD = 100
"""Lines read before somebody wanted them: the bound of memory, and what keeps a fast writer waiting."""


async def read_lines(file: BinaryIO, stop: "asyncio.Event") -> AsyncIterator[tuple[int, bytes]]:
    """Lines of `file` with their numbers (from 1), without line ends and empty ones, until its end or `stop`.

    A thread does the reading, because a terminal or pipe that says nothing would block the loop; it is a daemon and
    reads the bare descriptor, so that neither the thread nor a lock it holds can keep the process from ending.
    """
    import asyncio  # by what runs, not by every --help

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


MOST_FAILURES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A line of the input that was a message and was not accepted; `error` is the error's code."""

    line: int
    error: str
    message: str


F = TypeVar("F", bound=Failure)


class Lines(Generic[F]):
    """The lines of one run and what became of them.

    Args:
        failed_line: makes a record of a failure, of the number of its line, the error's code and message.
        stream: gets the record of each line as soon as it is known.
        pair: whose name hints have.
    """

    def __init__(
        self,
        failed_line: Callable[[int, str, str], F],
        stream: Callable[[object], None] | None = None,
        pair: str | None = None,
    ) -> None:
        self.stream = stream or (lambda record: None)
        self._pair = pair
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
        stop: "asyncio.Event",
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
            self._hints[for_pair(error.hint, self._pair)] = None
        failure = self._failed_line(line, error.code, error.message)
        first, number = self._by_code.get(error.code, (failure, 0))
        self._by_code[error.code] = first, number + 1
        if len(self.failures) < MOST_FAILURES_SHOWN:
            self.failures.append(failure)
        self.stream(failure)

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
    """The fields of a JSON line. Raises UsageError: not JSON, or no object."""
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
            scheduled_at=scheduled_time(record.get("scheduled_at")),
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
    """The application properties of a JSON line. Raises UsageError: they are no object."""
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


def scheduled_time(value: Any) -> float | None:
    """UTC epoch seconds of an ISO 8601 time; None of None. Raises UsageError: it is none."""
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
