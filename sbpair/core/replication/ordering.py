"""The place of a message in its session, written on it by our sender; and what holds for messages that say none.

A queue's own order cannot say what comes before a message. It may have been accepted by one namespace only, or by both
at different times, so in the second region n+1 may lie in the queue while n is on its way, still scheduled, or was
never accepted there. Our sender therefore writes four application properties, the same on both copies:

    x-sbpair-stream     string   one sender's run of messages in one session; no two runs have the same
    x-sbpair-number     long     1, 2, 3 ... within the stream; a number never stands for two accepted messages
    x-sbpair-after      string   what has to be finished first, as `stream:number` separated by blanks; may be empty
    x-sbpair-after-ids  string   the message ids of those, a JSON list; a predecessor that the brokers dropped as a
                                 duplicate is known by its id to be finished although its number never comes

Why a named predecessor and not simply number - 1: a send that fails may or may not have been stored. The caller was
told that it failed, nobody is owed its order, and waiting for it would stop the session for ever. So only *accepted*
messages are named as predecessors; what is named does exist on at least one side, and waiting for it is right.

Rules of the numbers (class `Chain`):

    what became of a send          the next message
    accepted by a side             takes the next number and follows this one
    refused for certain by both    takes the same number: it is free again
    in doubt (answers lost)        takes the next number and follows the last accepted one; only the same message
                                   (same MessageId) sent again keeps the number, so that a copy that was stored after
                                   all is recognised

Several senders of one session have a stream each; between them there is no order, as there is none between processes
that send at the same time. A sender that starts again reads in the journal what the streams before it ended with (its
`Frontier`) and has its first message follow all of them.

What is guaranteed, per session (proved in tests/core/replication/test_ownership_model.py):

    with stamps      Messages of one sender, and of senders that follow each other with a journal, run in the order in
                     which they were accepted, whichever side accepted them, in whatever order the sides show them.
    without stamps   Any other producer: same SessionId and MessageId on both sides, second copy scheduled or not. On
                     each side messages begin in the order of the side's sequence numbers: none begins while one before
                     it in that queue is unfinished. So the order is that of sending if each side was given all messages
                     in that order, early or late. What one side was never given may run after its successors: nothing
                     on the other side tells of it.
    either way       A MessageId runs once in a session, however often it was sent, for as long as the journal
                     remembers it.

The two kinds may meet in one session: a message without a stamp waits for all before it in its queue, one with a stamp
for those it names.
"""

import json
from dataclasses import dataclass, field

from sbpair.amqp.sections import PropertyField, Section
from sbpair.amqp.types import Long, Symbol, Timestamp
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError, UsageError
from sbpair.core.serialization import Document

STREAM = "x-sbpair-stream"
NUMBER = "x-sbpair-number"
AFTER = "x-sbpair-after"
AFTER_IDS = "x-sbpair-after-ids"
NO_ORDER = "OrderUnknown"
"""Dead-letter reason of a message whose place makes no sense."""
_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_MOST_DIGITS = 19


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A message's place in its session: number `number` of stream `stream`."""

    stream: str
    number: int
    message_id: str = field(default="", compare=False)
    """Of the message that has this place; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.stream}:{self.number}"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the sender wrote on both copies of a message."""

    place: Place
    after: tuple[Place, ...] = ()
    """Messages that have to be finished before this one begins."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Ids that a replicated message has to have, and the time it asks to be scheduled for (UTC epoch seconds)."""

    session_id: str
    message_id: str
    scheduled_at: float | None = None


def keys_of(payload: bytes) -> Keys:
    """Ids of a message that is to be sent.

    Raises:
        UsageError: it has no session id or no message id. MalformedMessageError: it is no message.
    """
    message = EncodedMessage(payload)
    session_id = message.field(Section.PROPERTIES, PropertyField.GROUP_ID)
    message_id = message.field(Section.PROPERTIES, PropertyField.MESSAGE_ID)
    if not session_id:
        raise UsageError(
            "A replicated message needs a session id: it names what is kept in order.",
            hint="Use the key of what the message is about, such as a tracking or customer number.",
        )
    if not message_id:
        raise UsageError("A replicated message needs a message id: by it its two copies are known to be one.")
    scheduled = message.entry(Section.MESSAGE_ANNOTATIONS, str(_SCHEDULED))
    return Keys(str(session_id), str(message_id), None if scheduled is None else int(scheduled) / 1000)


def stamped(payload: bytes, stamp: Stamp, *, scheduled_at: float | None = None) -> bytes:
    """The message with its place written on it, and a time to appear (UTC epoch seconds) if one is given."""
    message = EncodedMessage(payload)
    properties = {
        STREAM: stamp.place.stream,
        NUMBER: Long(stamp.place.number),
        AFTER: " ".join(str(place) for place in stamp.after),
        AFTER_IDS: json.dumps([place.message_id for place in stamp.after], ensure_ascii=False),
    }
    message.edit_map(Section.APPLICATION_PROPERTIES, (), properties)
    if scheduled_at is not None:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {_SCHEDULED: Timestamp(round(scheduled_at * 1000))})
    return message.result()


def stamp_of(payload: bytes) -> Stamp | None:
    """The place written on a received message; None if its producer wrote none.

    Raises:
        MalformedMessageError: there is one that makes no sense; its `reason` is the dead-letter reason.
    """
    message = EncodedMessage(payload)
    said = {name: message.entry(Section.APPLICATION_PROPERTIES, name) for name in (STREAM, NUMBER, AFTER, AFTER_IDS)}
    if all(value is None for value in said.values()):
        return None
    stream, number, after = said[STREAM], said[NUMBER], said[AFTER]
    if not isinstance(stream, str) or not stream or not isinstance(number, int) or number < 1:
        raise MalformedMessageError(
            f"The message's place in its session makes no sense: it needs {STREAM} and a {NUMBER} of 1 or more.",
            reason=NO_ORDER,
        )
    if after is not None and not isinstance(after, str):
        raise MalformedMessageError(f"{AFTER} is not a text.", reason=NO_ORDER)
    words = (after or "").split()
    ids = _ids(said[AFTER_IDS], len(words))
    follows = tuple(_place(word, message_id) for word, message_id in zip(words, ids, strict=True))
    return Stamp(Place(str(stream), int(number)), follows)


def _ids(text: object, count: int) -> list[str]:
    if text is None:
        return [""] * count
    try:
        ids = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list) or len(ids) != count or not all(isinstance(one, str) for one in ids):
        raise MalformedMessageError(f"{AFTER_IDS} is no list of {count} texts.", reason=NO_ORDER)
    return ids


def _place(word: str, message_id: str) -> Place:
    stream, _, number = word.rpartition(":")
    if not stream or not number.isascii() or not number.isdigit() or len(number) > _MOST_DIGITS:
        raise MalformedMessageError(f"{AFTER} names {word!r}, which is no stream:number.", reason=NO_ORDER)
    return Place(stream, int(number), message_id)


@dataclass(frozen=True, slots=True)
class Frontier(Document):
    """The last accepted message of every stream of a session that no other stream follows. Kept in the journal."""

    places: tuple[Place, ...] = ()

    def moved(self, accepted: Place, follows: tuple[Place, ...]) -> "Frontier":
        """The frontier once `accepted`, which follows those places (and its own stream), is accepted too."""
        passed = {place.stream: place.number for place in follows}
        kept = [
            place
            for place in self.places
            if place.stream != accepted.stream and place.number > passed.get(place.stream, 0)
        ]
        return Frontier((*sorted(kept), accepted))


@dataclass(slots=True)
class Chain:
    """Gives the messages of one session their places, one after another; see the module's rules.

    Only one message is under way at a time: `stamp`, then exactly one of `accepted` and `failed`.
    """

    stream: str
    follows: tuple[Place, ...] = ()
    """What the next message has to wait for: the last accepted one, at first the frontier found in the journal."""
    origin: tuple[Place, ...] = field(default=())
    _used: int = 0
    _doubtful: tuple[str, Stamp] | None = None

    @classmethod
    def begin(cls, stream: str, frontier: Frontier) -> "Chain":
        return cls(stream, frontier.places, frontier.places)

    def stamp(self, message_id: str) -> Stamp:
        """The place of the next message."""
        if self._doubtful is not None and self._doubtful[0] == message_id:
            return self._doubtful[1]
        return Stamp(Place(self.stream, self._used + 1, message_id), self.follows)

    def accepted(self, stamp: Stamp) -> None:
        """At least one side has it."""
        self._used = max(self._used, stamp.place.number)
        self._doubtful = None
        self.follows = (stamp.place,)

    def failed(self, stamp: Stamp, message_id: str, *, in_doubt: bool) -> None:
        """No side said that it has it."""
        if in_doubt:
            self._used = max(self._used, stamp.place.number)
            self._doubtful = (message_id, stamp)
