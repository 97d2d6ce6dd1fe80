"""Which messages a command is about: one filter for peek, drain, syphon, archive, replay and restore.

`where` is Service Bus SQL, the language of subscription rules ("Subscription Rule SQL Filter Syntax"): `sys.` names a
property of the message, `user.` or no prefix an application property. A message for which the condition is unknown,
because it lacks a property, does not match. The properties are those of the message as it was sent, whatever its place
in the backlog has made of them.
"""

import fnmatch
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from sbpair.core.errors import UsageError
from sbpair.core.message import Received
from sbpair.core.redact import quoted
from sbpair.core.summary import MessageSummary, describe
from sbpair.service import session_key
from sbpair.sqlfilter.expressions import Expression, MessageView
from sbpair.sqlfilter.parser import parse_filter
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError, tokenize


def _time(seconds: float | None) -> str | None:
    """As text that orders like the time, since the language has no times: 2026-11-21T08:00:00.000Z."""
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_SYSTEM: dict[str, Callable[[MessageSummary, Received], object]] = {
    "MessageId": lambda summary, received: summary.message_id or received.message_id,
    "SessionId": lambda summary, _: summary.session_id,
    "PartitionKey": lambda summary, _: summary.partition_key,
    "CorrelationId": lambda summary, _: summary.correlation_id,
    "ContentType": lambda summary, _: summary.content_type,
    "Label": lambda summary, _: summary.subject,
    "Subject": lambda summary, _: summary.subject,
    "To": lambda summary, _: summary.to,
    "ReplyTo": lambda summary, _: summary.reply_to,
    "TimeToLive": lambda summary, _: summary.ttl_seconds,
    "ScheduledEnqueueTimeUtc": lambda summary, _: _time(summary.scheduled_at),
    "EnqueuedTimeUtc": lambda _, received: _time(received.enqueued_at),
    "SequenceNumber": lambda _, received: _number(received),
    "DeliveryCount": lambda _, received: received.delivery_count,
    "State": lambda _, received: received.state.value,
    "Size": lambda summary, _: summary.size_bytes,
    "BodySize": lambda summary, _: summary.body_size_bytes,
    "Queue": lambda _, received: received.queue,
    "Destination": lambda summary, _: summary.destination,
    "DeadLetterReason": lambda summary, _: summary.dead_letter_reason,
    "DeadLetterErrorDescription": lambda summary, _: summary.dead_letter_description,
}
SYSTEM_PROPERTIES = tuple(_SYSTEM)
"""What `sys.` may be followed by. Times are text (2026-11-21T08:00:00.000Z); sizes bytes; TimeToLive seconds."""
_BY_NAME = {name.lower(): read for name, read in _SYSTEM.items()}

_BEFORE = {
    "message_id": "MessageId",
    "session_id": "SessionId",
    "partition_key": "PartitionKey",
    "correlation_id": "CorrelationId",
    "content_type": "ContentType",
    "subject": "Subject",
    "to": "To",
    "reply_to": "ReplyTo",
    "ttl_seconds": "TimeToLive",
    "scheduled_at": "ScheduledEnqueueTimeUtc",
    "enqueued_at": "EnqueuedTimeUtc",
    "sequence_number": "SequenceNumber",
    "delivery_count": "DeliveryCount",
    "size_bytes": "Size",
    "body_size_bytes": "BodySize",
    "body_bytes": "BodySize",
    "source": "Queue",
    "queue": "Queue",
    "destination": "Destination",
    "path": "Destination",
    "dead_letter_reason": "DeadLetterReason",
    "dead_letter_description": "DeadLetterErrorDescription",
}
"""Names of the languages before 0.1. As application properties they match nothing, which would look like an answer."""
_WORDS_BEFORE = re.compile(r"[\w.]+")


def _number(received: Received) -> int:
    return received.sequence_number if received.origin is None else received.origin.sequence_number


class _View(MessageView):
    """A message as `sbpair.sqlfilter` asks for it."""

    def __init__(self, summary: MessageSummary, received: Received) -> None:
        self._summary, self._received = summary, received
        self._user: dict[str, object] | None = None

    def user(self, name: str) -> object:
        if self._user is None:
            self._user = {key.lower(): value for key, value in self._summary.application_properties.items()}
        return self._user.get(name.lower(), UNKNOWN)

    def system(self, name: str) -> object:
        read = _BY_NAME.get(name.lower())
        if read is None:
            raise FilterEvaluationError(f"There is no property sys.{name}.")
        value = read(self._summary, self._received)
        return UNKNOWN if value is None else value

    def new_id(self) -> uuid.UUID:
        raise FilterEvaluationError("newid() returns another value at each call: it selects nothing.")


class FilterError(UsageError):
    """A condition cannot be evaluated for a message: it compares text with a number, say."""


@dataclass(frozen=True, slots=True)
class Where:
    """A condition in Service Bus SQL. It compiles in each process that uses it, of which its text is all that it gets.

    Raises:
        UsageError: it is not Service Bus SQL, names a property of the message that there is none of, or is written in
            the language before 0.1.
    """

    text: str

    def __post_init__(self) -> None:
        text = self.text
        try:
            _refuse_names_of_before(text)
            condition = _compiled(text)
        except FilterSyntaxError as error:
            raise UsageError(f"--where is Service Bus SQL: {error}", hint=_hint(text)) from error
        try:
            condition(_View(describe(b""), _NOTHING))  # both sides of AND and OR are looked at, so every name is
        except FilterEvaluationError as error:
            raise UsageError(
                f"The filter {quoted(text)} cannot be used: {error}",
                hint=f"Properties of a message: {', '.join(f'sys.{name}' for name in SYSTEM_PROPERTIES)}.",
            ) from error

    @property
    def properties(self) -> frozenset[str]:
        """Names of the application properties that it asks for."""
        names = _Names()
        with suppress(FilterEvaluationError):
            _compiled(self.text)(names)
        return frozenset(names.asked)

    def matches(self, summary: MessageSummary, received: Received) -> bool:
        """Raises FilterError: the condition cannot be evaluated for this message, say text plus a number."""
        try:
            return _compiled(self.text)(_View(summary, received)) is True
        except FilterEvaluationError as error:
            raise FilterError(
                f"The filter {quoted(self.text)} cannot be evaluated for message {_number(received)}: {error}"
            ) from error


class _Names(_View):
    """Remembers which application properties are asked for."""

    def __init__(self) -> None:
        super().__init__(describe(b""), _NOTHING)
        self.asked: set[str] = set()

    def user(self, name: str) -> object:
        self.asked.add(name)
        return UNKNOWN


@lru_cache(maxsize=64)
def _compiled(text: str) -> Expression:
    return parse_filter(text, {})


_NOTHING = Received(payload=b"", sequence_number=0, source="")


def _refuse_names_of_before(text: str) -> None:
    tokens = tokenize(text)
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        scoped = (before is not None and before.text == ".") or (after is not None and after.text == ".")
        if token.kind == "word" and not scoped and token.text.lower() in _BEFORE:
            raise UsageError(
                f"{token.text} in the filter {quoted(text)} is of the language before 0.1: --where is Service Bus SQL.",
                hint=f"Write sys.{_BEFORE[token.text.lower()]}, or user.{token.text} for an application property; "
                "text in single quotes: sys.Subject = 'invoice'.",
            )


def _hint(text: str) -> str:
    known = [_BEFORE[word.lower()] for word in _WORDS_BEFORE.findall(text) if word.lower() in _BEFORE]
    properties = [word.partition(".")[2] for word in _WORDS_BEFORE.findall(text) if word.startswith("properties.")]
    names = [f"sys.{name}" for name in known] + [f"user.{name}" for name in properties]
    named = f"Write {', '.join(dict.fromkeys(names))}. " if names else ""
    return f"{named}For example: sys.Subject = 'invoice' AND sys.Size > 1000, country IN ('DE', 'FR'), name LIKE 'a%'."


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages: all that is given has to hold.

    Args:
        destination: shell pattern of the path they were to go to; case does not matter.
        session_id: the original session; case does not matter, as at the service.
        since, until: when they were put into their queue, UTC epoch seconds, both included.
    """

    destination: str | None = None
    session_id: str | None = None
    since: float | None = None
    until: float | None = None
    where: Where | None = None

    @property
    def is_set(self) -> bool:
        return self != EVERYTHING

    def text(self) -> str:
        """All that is given, as one line that is the same for the same filter; empty without any."""
        given = {
            "destination": self.destination,
            "session_id": self.session_id,
            "since": _time(self.since),
            "until": _time(self.until),
            "where": None if self.where is None else self.where.text,
        }
        return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)

    def wants(self, received: Received, summary: MessageSummary) -> bool:
        """Raises FilterError as `Where.matches`."""
        at = received.enqueued_at
        if self.since is not None and (at is None or at < self.since):
            return False
        if self.until is not None and (at is None or at > self.until):
            return False
        going_to = (summary.destination or "").lower()
        if self.destination is not None and not fnmatch.fnmatchcase(going_to, self.destination.lower()):
            return False
        if self.session_id is not None and not _is_session(summary.session_id, self.session_id):
            return False
        return self.where is None or self.where.matches(summary, received)


def _is_session(session_id: str | None, wanted: str) -> bool:
    return session_id is not None and session_key(session_id) == session_key(wanted)


EVERYTHING = MessageFilter()
