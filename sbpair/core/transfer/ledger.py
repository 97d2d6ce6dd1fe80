"""What stands in a ledger: lines about messages, about batches on their way and about runs, each chained to all before.

It is the only format: drain, syphon and restore write a file, the tasks of a replay and of `archive --take` one file
each in a folder. Ledgers of replays before that named the dead-letter queue in a field of its own; they are read too.

*The meaning.* What any line has as sent, in whatever ledger and by whatever command, is not sent again between the
namespaces that the line names.

*The chain.* The last field of some lines, `chain`, is the first half of the SHA-256, in hexadecimal, of the `chain` of
the last line before that has one (EMPTY_MARK, if none has), all lines in between, and this line as far as `, "chain"`.
The last line of each write has it, so only a write that was cut off leaves lines at the end that nothing covers; the
next run's first mark covers them. Release 1.0.0 gave it to every line, and behind lines without it began with the first
half of the SHA-256 of all of the file before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sbpair.core.message import value_class
from sbpair.core.names import DEAD_LETTER_SUFFIX
from sbpair.core.redact import json_text
from sbpair.core.transfer.state import Key

if TYPE_CHECKING:
    from hashlib import _Hash

STATE_MOVED = "session-state"
"""Outcome of a line that tells of the state of a session, not of a message: sequence number 0, the session's id."""
SENT_OUTCOMES = frozenset({"forwarded", "already-forwarded"})
SENDING, NOT_SENT = "sending", "not-sent"
"""Outcomes of lines about a batch, whose messages they name together: it may be on its way; it was refused."""
BATCH_OUTCOMES = frozenset({SENDING, NOT_SENT})
RUN_BEGAN, RUN_ENDED = "run-began", "run-ended"
"""Outcomes of lines about a run: who began it, and what it left."""
NO_MESSAGE_OUTCOMES = BATCH_OUTCOMES | {RUN_BEGAN, RUN_ENDED}
_MOST_NAMED = 500
"""Messages in one line about a batch, which keeps it under the length of the longest line."""

BEGINNING = b'{"queue": '
"""Of every line, cut off or not; a file that does not begin with it is no ledger, and is not cut."""
_KINDS: tuple[Any, ...] = (str, int, str | None, int, str)
"""Types of queue, sequence number, message id, time and outcome in a line."""


@value_class
class LedgerEntry:
    """One line. `time` is UTC, ISO 8601.

    `outcome`: forwarded; already-forwarded (by an earlier run); dead-lettered; refused (by its destination, and still
    in its archive); taken (out of its queue into an archive); duplicate (of another archived message, so not sent);
    purged (deleted on request); ping; session-state (of a session, set at the destination).
    """

    queue: str
    sequence_number: int
    message_id: str | None
    enqueued_at_ms: int
    destination: str
    session_id: str | None
    outcome: str
    time: str
    attempts: int = 1
    """How often it was sent; above 1 an earlier attempt may have arrived too."""
    reason: str = ""
    digest: str | None = None
    """Of the archived message's content, in base64, where an archive keeps one."""

    def line(self, way: Mapping[str, Any] = {}) -> bytes:
        """As JSON, with its end."""
        line = {
            "queue": self.queue,
            "sequence_number": self.sequence_number,
            "message_id": self.message_id,
            "enqueued_at_ms": self.enqueued_at_ms,
            "destination": self.destination,
            "session_id": self.session_id,
            "outcome": self.outcome,
            "time": self.time,
            "attempts": self.attempts,
            "reason": self.reason,
        }
        if self.digest is not None:
            line["digest"] = self.digest
        line.update(way)
        return json_text(line).encode() + b"\n"

    @property
    def key(self) -> Key:
        return self.queue, self.sequence_number, self.message_id, self.enqueued_at_ms


@dataclass(frozen=True, slots=True)
class Way:
    """Hosts between which messages move. They stand in every line: the same queue names and numbers mean other messages
    on other namespaces, and what a ledger has is completed without being sent."""

    from_namespace: str
    to_namespace: str | None
    """None: into an archive."""


def between(way: Way | None) -> dict[str, Any]:
    """What each line says of the way of its message."""
    return {} if way is None else asdict(way)


def batch_lines(entries: Sequence[LedgerEntry], outcome: str, way: Mapping[str, Any]) -> list[bytes]:
    """Lines that name the messages of a batch together."""
    of_queues: dict[str, list[LedgerEntry]] = {}
    for one in entries:
        of_queues.setdefault(one.queue, []).append(one)
    lines = []
    for queue, named in of_queues.items():
        for begin in range(0, len(named), _MOST_NAMED):
            some = named[begin : begin + _MOST_NAMED]
            first = some[0]
            about = LedgerEntry(queue, first.sequence_number, None, 0, first.destination, None, outcome, first.time)
            keys = [(one.sequence_number, one.message_id, one.enqueued_at_ms) for one in some]
            lines.append(about.line({**way, "messages": keys}))
    return lines


def run_line(run: str, outcome: str, time: str, way: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    """A line about a run. `about`: who began it, or what it left."""
    return LedgerEntry("", 0, run, 0, "", None, outcome, time).line({**way, **about})


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What one line of a ledger says."""

    key: Key
    outcome: str
    way: Mapping[str, Any]
    """Between which namespaces, if the line says so."""
    fields: Mapping[str, Any]
    """All of it."""
    messages: Sequence[Key] = field(default=())
    """What a line about a batch names."""

    @property
    def destination(self) -> Any:
        return self.fields.get("destination")

    def spelled(self, queues: Mapping[str, str]) -> "LedgerLine":
        """The same line with its queue as this run spells it: the service does not tell `Orders` from `orders`.

        Args:
            queues: the run's own paths, by their lower case.
        """
        queue = queues.get(self.key[0].lower(), self.key[0])
        if queue == self.key[0]:
            return self
        return replace(self, key=(queue, *self.key[1:]), messages=[(queue, *key[1:]) for key in self.messages])

    @classmethod
    def parse(cls, line: bytes) -> "LedgerLine | None":
        """None: it is not a line of a ledger."""
        try:
            read = json.loads(line)
            queue = read["queue"] + (f"/{DEAD_LETTER_SUFFIX}" if read.get("dead_letter") is True else "")
            key = (queue, read["sequence_number"], read["message_id"], read["enqueued_at_ms"])
            outcome = read["outcome"]
            named = read["messages"] if outcome in BATCH_OUTCOMES else ()
            messages = [(queue, sequence_number, message_id, at) for sequence_number, message_id, at in named]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        for one in (key, *messages):
            if not all(isinstance(value, kinds) for value, kinds in zip((*one, outcome), _KINDS, strict=True)):
                return None
        way = {name: read[name] for name in ("from_namespace", "to_namespace") if name in read}
        return cls(key, outcome, way, read, messages)


class InDoubt:
    """Messages that may be on their way, as the lines of a ledger tell one after the other."""

    def __init__(self) -> None:
        self._sending: dict[Key, list[str]] = {}
        """Destinations of the sends without an answer."""

    def note(self, line: LedgerLine) -> int:
        """How many sends of the message that this line tells of may have arrived besides."""
        if line.outcome == SENDING:
            for key in line.messages:
                self._sending.setdefault(key, []).append(str(line.destination or ""))
        elif line.outcome == NOT_SENT:
            for key in line.messages:
                if tries := self._sending.pop(key, [])[:-1]:
                    self._sending[key] = tries
        else:
            unanswered = len(self._sending.pop(line.key, ()))
            return max(0, unanswered - 1) if line.outcome in SENT_OUTCOMES else unanswered
        return 0

    def destinations(self) -> dict[Key, str]:
        """What is in doubt now, with where it went."""
        return {key: tries[-1] for key, tries in self._sending.items()}


# The chain.

LINES_OF_A_MARK = 16
"""At most; so a change is found to within as many lines. A mark for each line took 3 % of a drain's CPU time."""
_MARK_DIGITS = 32
_BEFORE_MARK, _AFTER_MARK = b', "chain": "', b'"}\n'
_MARK_BYTES = len(_BEFORE_MARK) + _MARK_DIGITS + len(_AFTER_MARK)
CHAINED_BYTES = _MARK_BYTES - len(b"}\n")
"""What a mark adds to a line."""


def mark_of(covered: "_Hash") -> bytes:
    """The value that stands for all that was hashed."""
    return covered.hexdigest()[:_MARK_DIGITS].encode()


EMPTY_MARK = mark_of(sha256())
"""What the first mark of a ledger follows."""


def chained(lines: Sequence[bytes], since: "_Hash") -> tuple[bytes, "_Hash"]:
    """The lines together, the last of every LINES_OF_A_MARK and of all with the field `chain`, and what `since` is for
    those to come. `since`: the last mark with what stands behind it."""
    done: list[bytes] = []
    since = since.copy()
    for begin in range(0, len(lines), LINES_OF_A_MARK):
        body = b"".join(lines[begin : begin + LINES_OF_A_MARK])[: -len(b"}\n")]
        since.update(body)
        mark = mark_of(since)
        done += (body, _BEFORE_MARK, mark, _AFTER_MARK)
        since = sha256(mark)
    return b"".join(done), since


def chain_of(line: bytes) -> tuple[bytes, bytes] | None:
    """A line as far as its chain, and the value of that; None: it has none."""
    begin = len(line) - _MARK_BYTES
    body, mark = line[:begin], line[begin + len(_BEFORE_MARK) : -len(_AFTER_MARK)]
    if line[begin : begin + len(_BEFORE_MARK)] != _BEFORE_MARK or not line.endswith(_AFTER_MARK):
        return None
    return body, mark


def follow(line: bytes, since: "_Hash") -> "_Hash":
    """What `since` is behind one more line."""
    if (found := chain_of(line)) is not None:
        return sha256(found[1])
    since.update(line)
    return since
