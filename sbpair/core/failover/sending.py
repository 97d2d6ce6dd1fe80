"""What the sender has to know about an encoded message before it sends it."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sbpair.amqp.sections import PropertyField, Section
from sbpair.core import system_properties
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import (
    ArgumentRefusedError,
    Category,
    MessageTooLargeError,
    PairingError,
    ServiceError,
    UsageError,
)
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES
from sbpair.core.rewrite import PARTITION_KEY, SCHEDULED, for_backlog, key_text
from sbpair.service import session_key

# How the time a caller gives one send is shared between the primary and the backlog.
#
# The retired library let the primary attempt use up everything, so that the backlog was never tried. Here a part is set
# aside that the primary attempt can never touch.

DEFAULT_SEND_SECONDS = 60.0
"""The service's recommended time-out ("Partitioned queues and topics")."""
MIN_PARTITIONED_SEND_SECONDS = 60.0
"""A partitioned entity needs more than 15 s to reach its partitions; 60 s are recommended ("Partitioned queues and
topics")."""
RESERVED_SHARE = 0.25
MAX_RESERVED_SECONDS = 15.0
MIN_ATTEMPT_SECONDS = 0.05
"""Less than this is not worth an attempt."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The time of one send, from `started_at` (monotonic seconds) on."""

    started_at: float
    total_seconds: float

    @classmethod
    def of(cls, timeout_seconds: float | None, *, partitioned: bool, now: float) -> "Budget":
        """The caller's time; the default when none is given; at least 60 s for a partitioned entity.

        Raises:
            UsageError: a time-out that is not positive.
        """
        total = DEFAULT_SEND_SECONDS if timeout_seconds is None else timeout_seconds
        if not total > 0:
            raise UsageError(f"A time-out is more than 0 seconds, not {total:g}.")
        return cls(now, max(total, MIN_PARTITIONED_SEND_SECONDS) if partitioned else total)

    @property
    def reserved_seconds(self) -> float:
        """What only the backlog attempt may use."""
        return min(self.total_seconds * RESERVED_SHARE, MAX_RESERVED_SECONDS)

    def left(self, now: float) -> float:
        return max(0.0, self.started_at + self.total_seconds - now)

    def for_primary(self, now: float) -> float:
        """Time an attempt on the primary may take."""
        return max(0.0, self.left(now) - self.reserved_seconds)

    def for_backlog(self, now: float, *, alternatives: int) -> float:
        """Time an attempt on one backlog queue may take: half of the rest while there are other queues to try."""
        left = self.left(now)
        return left / 2 if alternatives > 0 else left

    def allows_pause(self, seconds: float, left_seconds: float) -> bool:
        """Whether after a pause of `seconds` enough of `left_seconds` remains for another attempt."""
        return left_seconds - seconds >= MIN_ATTEMPT_SECONDS


# Order across failback: sessions that keep going to their backlog queue until what was diverted is back on the primary.
#
# Without it, the first message after failback reaches the primary while older messages of its session still wait in a
# backlog queue. With `hold_sessions` a session that has diverted messages stays with its queue: a scan of the queue
# says which sessions still wait there, and a session that no longer does goes to the primary again. A message that is
# diverted while a scan runs is newer than the scan, so that scan cannot free its session. A session that never pauses,
# so that every scan finds something of it on its way, stays with its queue: in order, one detour longer.

SessionKey = tuple[str, str]
"""(entity path in lower case, the session's `service.session_key`)"""


@dataclass(slots=True)
class _Hold:
    queue: str
    in_flight: int
    changed_at: int
    stored: bool = False
    """Something of the session was stored in the queue, or may have been."""


class SessionHolds:
    """The held sessions of one pairing."""

    def __init__(self) -> None:
        self._holds: dict[SessionKey, _Hold] = {}
        self._moment = 0

    def __len__(self) -> int:
        return len(self._holds)

    def queue_of(self, session: SessionKey) -> str | None:
        """The backlog queue the session is bound to; None if it is free."""
        hold = self._holds.get(session)
        return hold.queue if hold else None

    def queues(self) -> tuple[str, ...]:
        """The backlog queues that hold a session."""
        return tuple(sorted({hold.queue for hold in self._holds.values()}))

    def begin(self, session: SessionKey, queue: str) -> None:
        """A message of the session is about to be sent to the queue."""
        hold = self._holds.setdefault(session, _Hold(queue, 0, self._tick()))
        hold.in_flight += 1
        hold.changed_at = self._tick()

    def end(self, session: SessionKey, *, stored: bool) -> None:
        """That send ended. `stored`: the message was accepted, or may have been."""
        hold = self._holds[session]
        hold.in_flight -= 1
        hold.stored = hold.stored or stored
        hold.changed_at = self._tick()
        if not hold.in_flight and not hold.stored:
            del self._holds[session]

    def start_scan(self) -> int:
        """The moment to hand to `scanned` when the scan that starts now is complete."""
        return self._tick()

    def scanned(self, queue: str, waiting: Collection[SessionKey], started: int) -> tuple[SessionKey, ...]:
        """A complete scan of the queue found messages of the `waiting` sessions; returns the sessions it frees."""
        freed = tuple(
            session
            for session, hold in self._holds.items()
            if hold.queue == queue and not hold.in_flight and hold.changed_at < started and session not in waiting
        )
        for session in freed:
            del self._holds[session]
        return freed

    def _tick(self) -> int:
        self._moment += 1
        return self._moment


# Which backlog queue takes a diverted message, and which queues nobody uses for a while.
#
# One rotation serves a whole pairing. A queue whose send failed leaves it for every sender at once, comes up for one
# probing message after a pause, and is back when that one is accepted; each failed probe doubles the pause up to a
# bound. Where all queues are out it is the namespace that is away: then no pause is longer than a second, and the first
# queue that is back brings the others up for their probes.
#
# A sender draws one queue at random for its messages without a session (the number is passed in) and keeps it while it
# works: "a random backlog queue for each QueueClient or TopicClient" ("Paired Namespaces: Implementation Details and
# Cost"), so that what one sender diverts stays in order. Messages of one session share a queue, chosen by rendezvous
# hashing of (path, session), so that a queue that leaves or returns moves only its own sessions.

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 120.0
ALL_OUT_PAUSE_SECONDS = 1.0
"""Longest pause while no queue is in rotation: a message waits for every second of it."""


@dataclass(slots=True)
class _Absence:
    """A queue out of rotation: the pause it serves, when that ends, and whether a probe is under way."""

    pause_seconds: float
    until: float
    probing: bool = False


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """One queue as `state()` shows it; `seconds_until_probe` is None for a queue in rotation."""

    queue: str
    in_rotation: bool | None
    """None: not known, as nothing was asked of it yet."""
    seconds_until_probe: float | None = None


class Rotation:
    """The usable backlog queues of one pairing.

    Raises:
        PairingError: no queue at all.
    """

    def __init__(
        self,
        queues: Sequence[str],
        *,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
    ) -> None:
        if not queues:
            raise PairingError("There is no usable backlog queue on the secondary namespace.")
        self._queues = tuple(queues)
        self._first_pause = first_pause_seconds
        self._max_pause = max_pause_seconds
        self._absent: dict[str, _Absence] = {}
        self._seen: set[str] = set()
        """Queues that took a message or a link, or refused one."""

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    def standings(self, now: float) -> tuple[QueueStanding, ...]:
        return tuple(
            QueueStanding(queue, True if queue in self._seen else None)
            if (absence := self._absent.get(queue)) is None
            else QueueStanding(queue, False, max(0.0, absence.until - now))
            for queue in self._queues
        )

    def candidates(self, now: float, among: Collection[str] | None = None) -> tuple[str, ...]:
        """The queues that may be tried now: those in rotation and those due for a probe that nobody makes yet."""
        return tuple(queue for queue in self._queues if (among is None or queue in among) and self._usable(queue, now))

    def choose(
        self,
        *,
        session: tuple[str, str] | None,
        draw: float,
        now: float,
        among: Collection[str] | None = None,
        sticky: str | None = None,
    ) -> str | None:
        """A queue for one message, or None when none may be tried now.

        A queue that is due for its probe is taken as such: say `succeeded`, `failed` or `released` about it.

        Args:
            session: (entity path, session id) of a session message, in any spelling.
            draw: random number in [0, 1), used without a session.
            among: restricts the choice.
            sticky: the queue this sender used last; without a session it stays there while the queue is in rotation.
        """
        if session is None and sticky is not None and sticky not in self._absent:
            return sticky
        candidates = self.candidates(now, among)
        if not candidates:
            return None
        queue = candidates[int(draw * len(candidates))] if session is None else stable_choice(session, candidates)
        if (absence := self._absent.get(queue)) is not None:
            absence.probing = True
        return queue

    def failed(self, queue: str, now: float) -> float | None:
        """A send to the queue failed: it leaves. Returns its pause, or None if it was out already (a late failure)."""
        self._seen.add(queue)
        absence = self._absent.get(queue)
        if absence is not None and not absence.probing:
            return None
        pause = self._first_pause if absence is None else min(absence.pause_seconds * 2, self._max_pause)
        self._absent[queue] = _Absence(pause, now + pause)
        if self._all_out:
            pause = min(pause, ALL_OUT_PAUSE_SECONDS)
            self._absent[queue] = _Absence(pause, now + pause)
        return pause

    def succeeded(self, queue: str) -> bool:
        """The queue accepted a message or a link. True if that brought it back into rotation."""
        self._seen.add(queue)
        if self._all_out:
            for absence in self._absent.values():
                absence.until = float("-inf")
        return self._absent.pop(queue, None) is not None

    @property
    def _all_out(self) -> bool:
        return len(self._absent) == len(self._queues)

    def released(self, queue: str) -> None:
        """The attempt ended without saying anything about the queue: another message may probe it."""
        if (absence := self._absent.get(queue)) is not None:
            absence.probing = False

    def next_chance(self, among: Collection[str] | None = None) -> float | None:
        """The earliest moment a queue that is out comes up for its probe; None if every one of them is being probed."""
        due = [
            absence.until
            for queue, absence in self._absent.items()
            if not absence.probing and (among is None or queue in among)
        ]
        return min(due, default=None)

    def _usable(self, queue: str, now: float) -> bool:
        absence = self._absent.get(queue)
        return absence is None or (not absence.probing and now >= absence.until)


def stable_choice(session: tuple[str, str], queues: Sequence[str]) -> str:
    """The queue of a session among `queues`, however it is spelled: the highest keyed hash wins, the same in every
    process.

    Earlier builds hashed the id as it was spelled. An id without capital letters keeps its queue. Another one may have
    messages in two queues if its sender is upgraded during an outage; as after a queue that left the rotation, a drain
    sends those that it has in hand by the time at which each was put into its queue (`core.transfer.state.Lane`).
    """
    entity, session_id = session
    key = f"{entity.lower()}\0{session_key(session_id)}".encode()
    return max(queues, key=lambda queue: hashlib.blake2b(key + b"\0" + queue.lower().encode(), digest_size=8).digest())


_RESERVED = tuple(name.encode() for name in system_properties.NAMES)


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """The session id and partition key of a message."""

    session_id: str | None
    partition_key: str | None

    @property
    def pin(self) -> str | None:
        """What pins the message to a partition."""
        return self.session_id if self.session_id is not None else self.partition_key

    @property
    def conflict(self) -> bool:
        """The partition key is not the session id, though both are set."""
        return None not in (self.session_id, self.partition_key) and self.session_id != self.partition_key


def keys_of(payload: bytes) -> MessageKeys:
    """Raises MalformedMessageError for bytes that are not a message."""
    message = EncodedMessage(payload)
    session = message.field(Section.PROPERTIES, PropertyField.GROUP_ID)
    key = message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    return MessageKeys(key_text(session), key_text(key))


def is_scheduled(payload: bytes) -> bool:
    """The message carries the annotation that schedules it."""
    return EncodedMessage(payload).entry(Section.MESSAGE_ANNOTATIONS, SCHEDULED) is not None


def refuse_reserved(payload: bytes, entity: str) -> None:
    """Find out at once, not in the middle of an outage, that a message could not be diverted.

    Raises:
        ReservedPropertyError: the application uses one of the four x-ms-* names.
    """
    if any(name in payload for name in _RESERVED):
        for_backlog(payload, entity)


def check_partitioning(all_keys: Sequence[MessageKeys], entity: str) -> None:
    """The rules of partitioned entities ("Partitioned queues and topics").

    Raises:
        ArgumentRefusedError: a partition key that differs from the session id, or a batch with more than one key.
    """
    for keys in all_keys:
        if keys.conflict:
            raise _conflicting(keys, entity)
    if len({keys.pin for keys in all_keys}) > 1:
        raise ArgumentRefusedError(
            "The messages of one batch to a partitioned entity share their session id or partition key; these do not.",
            hint="Send them in one batch per key.",
            entity=entity,
        )


@dataclass(slots=True)
class EntityRules:
    """What the primary's answers have told about an entity, so that the backlog refuses what the primary would.

    A message that is refused at once can be mended by its sender; one that waits in a backlog through an outage
    and is then refused ends in a dead-letter queue, long after its sender could do anything about it.
    """

    partitioned: bool | None = None
    """None: not known. Every client of the service refuses a partition key that differs from the session id, wherever
    it sends ("Partitioned queues and topics"), so the combination is diverted only where it is known to be taken."""
    needs_session: bool = False
    max_message_bytes: int | None = None
    """What its link said it takes; None: it has had none."""

    def refused(self, payloads: Sequence[bytes], error: ServiceError) -> None:
        """The primary refused these messages as such."""
        if error.category is not Category.ARGUMENT:
            return
        keys = [keys_of(payload) for payload in payloads]
        if any(one.conflict for one in keys):
            self.partitioned = True
        elif len(keys) == 1 and keys[0].session_id is None and "session" in error.message.lower():
            self.needs_session = True

    def check(self, payloads: Sequence[bytes], entity: str) -> None:
        """Raise for messages that the primary would refuse.

        Raises:
            ArgumentRefusedError: a partition key beside another session id; no session id where one is needed.
            MessageTooLargeError: more than the entity takes, whatever a backlog queue takes.
        """
        largest = max(map(len, payloads))
        if self.max_message_bytes is not None and largest > self.max_message_bytes:
            raise MessageTooLargeError(
                f"The message has {largest} bytes; the limit of {entity} is {self.max_message_bytes}. It was not sent.",
                hint="Make the message smaller.",
                entity=entity,
            )
        keys = [keys_of(payload) for payload in payloads]
        if self.partitioned is not False:
            for one in keys:
                if one.conflict:
                    raise _conflicting(one, entity)
        if self.needs_session and any(one.session_id is None for one in keys):
            raise ArgumentRefusedError(
                f"The message has no session id, and {entity} requires one. It was not sent.",
                hint="Set a session id.",
                entity=entity,
            )


def _conflicting(keys: MessageKeys, entity: str) -> ArgumentRefusedError:
    return ArgumentRefusedError(
        f"The partition key {keys.partition_key!r} differs from the session id {keys.session_id!r}.",
        hint="On a partitioned entity both are the same, or only one of them is set.",
        entity=entity,
    )


def first_that_fit(payloads: Iterable[bytes], limit_bytes: int, *, queue: str) -> int:
    """How many of the payloads (in backlog form) fit one transfer of at most `limit_bytes`; at least one.

    Raises:
        MessageTooLargeError: the first one alone does not fit: the x-ms-* properties took it over the limit, or the
            backlog queue takes less than the primary does.
    """
    count, size = 0, BATCH_ENVELOPE_BYTES
    for payload in payloads:
        if not count and len(payload) > limit_bytes:
            raise MessageTooLargeError(
                f"With the properties added for the backlog the message has {len(payload)} bytes; the limit of "
                f"{queue} is {limit_bytes}. It was not sent.",
                hint="Make the message smaller, or raise the limit of the backlog queues (Premium).",
                entity=queue,
            )
        size += len(payload) + BATCHED_MESSAGE_BYTES
        if count and size > limit_bytes:
            break
        count += 1
    return count
