"""The sender of active/active: each message to both namespaces, the preferred one at once, the other a little later.

A message counts as sent when at least one namespace accepted it; the result says which, and why the other did not. A
side that cannot be reached is left out for a while, so that it does not slow every send down, and is tried again with
a message that is sent anyway. Messages of one session are sent one after another; their places are written on them (see
`core.replication.ordering`), so their order holds even where the sides accept different ones.

With a journal the places of a session go on where earlier senders stopped. Without one they begin again, and order
holds among the messages of this sender only. A journal that does not answer never keeps a message from being sent.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field

from sbpair.concurrency import map_concurrently, with_timeout
from sbpair.core.errors import (
    InterruptedWorkError,
    JournalConflictError,
    JournalError,
    MalformedMessageError,
    SbpairError,
    ServiceError,
    UsageError,
)
from sbpair.core.pairing import Side
from sbpair.core.replication.ordering import Chain, Frontier, Keys, Place, Stamp, keys_of, stamped
from sbpair.core.replication.ownership import Terms
from sbpair.core.retry import Backoff
from sbpair.core.serialization import HIDDEN
from sbpair.ports import Journal, Messaging, RuntimeClock
from sbpair.runtime.links import Links
from sbpair.runtime.replication.store import SENDER, destination_of, key_of
from sbpair.service import session_key

DEFAULT_DELAY_SECONDS = 15.0
"""The copy in the other region appears so much later, so that the preferred region wins ("Azure Service Bus
active/active with guaranteed order")."""
DEFAULT_TIMEOUT_SECONDS = 10.0
SIDE_DOWN = Backoff(first_seconds=1.0, most_seconds=10.0)
_SWAPS = 20


@dataclass(frozen=True, slots=True)
class DualResult:
    """At least one side has the message."""

    message_id: str
    session_id: str
    place: Place = field(metadata=HIDDEN)
    accepted: tuple[Side, ...]
    errors: Mapping[Side, str]
    """Error codes of the sides that did not accept it, `side-down` for one that was left out."""
    uncertain: bool = False
    """A side in `errors` may have it all the same; nothing is processed twice because of that."""
    recorded: bool = field(default=True, metadata=HIDDEN)
    """A sender that starts later knows of it. False without a journal, or when that did not answer."""


@dataclass(frozen=True, slots=True)
class DualSent:
    """One item of `send_all`: its position and either the result or the error."""

    position: int
    result: DualResult | None = None
    error: SbpairError | None = None


class NeitherSideError(ServiceError):
    """Neither namespace accepted the message. `uncertain`: one of them may have it all the same."""

    code = "neither-side"
    exit_name = "unreachable"
    retryable = True
    hint = "See what each side answers with: sbpair ping"


@dataclass(slots=True)
class _Session:
    chain: Chain
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    used_at: float = 0.0
    users: int = 0


@dataclass(slots=True)
class _Link:
    links: Links
    failures: int = 0
    down_until: float = 0.0


class DualSender:
    """Sends to one queue or topic that exists on both sides. Payloads are encoded AMQP messages with session and
    message id.

    Args:
        queue: path of the session queue or topic, the same on both sides.
        preferred: the side whose copy appears at once.
        delay_seconds: how much later the other copy appears.
        journal: keeps the places of sessions across senders; None: order holds within this sender.
        terms: of the consumers; only the retention matters here.
    """

    def __init__(
        self,
        queue: str,
        *,
        primary: Messaging,
        secondary: Messaging,
        clock: RuntimeClock,
        journal: Journal | None = None,
        preferred: Side = Side.PRIMARY,
        delay_seconds: float = DEFAULT_DELAY_SECONDS,
        terms: Terms | None = None,
    ) -> None:
        self._queue = queue
        self._preferred = preferred
        self._delay_seconds = delay_seconds
        self._clock = clock
        self._journal = journal
        # What is older than half of what consumers remember may be waited for in vain: such sessions begin again.
        self._memory_seconds = (terms or Terms()).retention_seconds / 2
        self._links = {Side.PRIMARY: _Link(Links(primary)), Side.SECONDARY: _Link(Links(secondary))}
        self._sessions: dict[str, _Session] = {}
        self._swept_at = clock.monotonic()
        self._closed = False

    async def send(self, payload: bytes, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> DualResult:
        """Send one message; `timeout_seconds` for both sides, which are asked at the same time.

        After an error send the same message again before any other of its session: it keeps its place then.

        Raises:
            NeitherSideError: no side accepted it. UsageError: it has no session id or message id.
            InterruptedWorkError: the sender is closed.
        """
        if self._closed:
            raise InterruptedWorkError("Nothing was sent: the sender is closed.")
        keys = keys_of(payload)
        session = self._session(session_key(keys.session_id))
        session.users += 1
        try:
            async with session.lock:
                return await self._send_in_turn(payload, keys, session, timeout_seconds)
        finally:
            session.users -= 1

    def send_all(
        self,
        payloads: Iterable[bytes] | AsyncIterable[bytes],
        *,
        overlap: int = 32,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> AsyncGenerator[DualSent, None]:
        """Send many with up to `overlap` under way, those of one session one after another; results in their order."""

        async def one(position: int, payload: bytes) -> DualSent:
            try:
                return DualSent(position, await self.send(payload, timeout_seconds=timeout_seconds))
            except SbpairError as error:
                return DualSent(position, error=error)

        return map_concurrently(payloads, one, overlap=overlap, lane=_session_of)

    async def close(self) -> None:
        """No more sends; closes this sender's links."""
        self._closed = True
        await asyncio.gather(*(link.links.close() for link in self._links.values()))

    # One session

    def _session(self, session_id: str) -> _Session:
        now = self._clock.monotonic()
        if now - self._swept_at > self._memory_seconds / 10:
            self._swept_at = now
            for name in [name for name, one in self._sessions.items() if self._too_old(one, now)]:
                del self._sessions[name]
        session = self._sessions.get(session_id)
        if session is None or self._too_old(session, now):
            session = self._sessions[session_id] = _Session(Chain(""), used_at=now)
        return session

    def _too_old(self, session: _Session, now: float) -> bool:
        return not session.users and now - session.used_at > self._memory_seconds

    async def _send_in_turn(self, payload: bytes, keys: Keys, session: _Session, timeout_seconds: float) -> DualResult:
        if not session.chain.stream:
            session.chain = Chain.begin(uuid.uuid4().hex, await self._frontier(keys.session_id))
        session.used_at = self._clock.monotonic()
        stamp = session.chain.stamp(keys.message_id)
        try:
            errors = await self._to_both(payload, keys, stamp, timeout_seconds)
        except BaseException:  # cancelled on the way: it may have been stored
            session.chain.failed(stamp, keys.message_id, in_doubt=True)
            raise
        accepted = tuple(side for side in (self._preferred, self._preferred.partner) if errors[side] is None)
        uncertain = any(error is not None and error.uncertain for error in errors.values())
        if not accepted:
            session.chain.failed(stamp, keys.message_id, in_doubt=uncertain)
            raise _neither(self._queue, errors, uncertain)
        session.chain.accepted(stamp)
        recorded = await self._record(keys.session_id, stamp, session.chain.origin)
        codes = {side: error.code for side, error in errors.items() if error is not None}
        return DualResult(keys.message_id, keys.session_id, stamp.place, accepted, codes, uncertain, recorded)

    async def _to_both(
        self, payload: bytes, keys: Keys, stamp: Stamp, timeout_seconds: float
    ) -> dict[Side, ServiceError | None]:
        """Both copies at the same time. What happened on each side; None: accepted."""
        later = (keys.scheduled_at or self._clock.now().timestamp()) + self._delay_seconds
        copies = {
            self._preferred: stamped(payload, stamp),
            self._preferred.partner: stamped(payload, stamp, scheduled_at=later if self._delay_seconds else None),
        }
        now = self._clock.monotonic()
        up = [side for side in Side if self._links[side].down_until <= now] or list(Side)
        sending = {side: self._to_one(self._links[side], copies[side], timeout_seconds) for side in up}
        outcomes = dict(zip(sending, await asyncio.gather(*sending.values()), strict=True))
        if all(outcomes.values()) and len(up) < len(Side):
            # Nobody has it yet: the side that was left out is asked after all.
            left_out = up[0].partner
            outcomes[left_out] = await self._to_one(self._links[left_out], copies[left_out], timeout_seconds)
        return {side: outcomes.get(side, _SIDE_DOWN) for side in Side}

    async def _to_one(self, link: _Link, payload: bytes, timeout_seconds: float) -> ServiceError | None:
        sending = link.links.to(self._queue).send([payload], timeout_seconds=timeout_seconds)
        try:
            await with_timeout(timeout_seconds, sending, what=f"Send to {self._queue}", entity=self._queue)
        except ServiceError as error:
            if error.retryable or error.uncertain:
                link.failures += 1
                link.down_until = self._clock.monotonic() + SIDE_DOWN.seconds(link.failures)
            return error
        link.failures, link.down_until = 0, 0.0
        return None

    # The journal

    def _key(self, session_id: str) -> str:
        return key_of(destination_of(self._queue), session_key(session_id))

    async def _frontier(self, session_id: str) -> Frontier:
        if self._journal is None:
            return Frontier()
        try:
            entry = await self._journal.read(SENDER, self._key(session_id))
            if entry is None and session_id != session_key(session_id):  # of an earlier build
                entry = await self._journal.read(SENDER, key_of(destination_of(self._queue), session_id))
        except JournalError:
            return Frontier()  # sending goes first; `recorded` of the result says what is known
        return Frontier() if entry is None else Frontier.from_dict(entry.document)

    async def _record(self, session_id: str, stamp: Stamp, follows: tuple[Place, ...]) -> bool:
        if self._journal is None:
            return False
        key = self._key(session_id)
        try:
            for _ in range(_SWAPS):
                entry = await self._journal.read(SENDER, key)
                known = Frontier() if entry is None else Frontier.from_dict(entry.document)
                moved = known.moved(stamp.place, follows).to_dict()
                try:
                    if entry is None:
                        await self._journal.create(SENDER, key, moved, ttl_seconds=self._memory_seconds)
                    else:
                        await self._journal.replace(entry, moved, ttl_seconds=self._memory_seconds)
                except JournalConflictError:
                    continue  # another sender of the session was faster
                return True
        except JournalError:
            return False  # the next message's record covers this one
        return False


class _SideDownError(ServiceError):
    """Left out: it could not be reached shortly before."""

    code = "side-down"
    retryable = True


_SIDE_DOWN = _SideDownError("It could not be reached shortly before and was left out.")


def _neither(queue: str, errors: Mapping[Side, ServiceError | None], uncertain: bool) -> ServiceError:
    told = "; ".join(f"{side}: {error.message}" for side, error in errors.items() if error is not None)
    if all(error is not None and not error.retryable and not error.uncertain for error in errors.values()):
        return next(error for error in errors.values() if error is not None)
    error = NeitherSideError(f"Neither side accepted a message for {queue}. {told}", entity=queue)
    error.uncertain = uncertain
    return error


def _session_of(payload: bytes) -> str | None:
    """The lane of a message. What cannot be read has none: sending it will say so."""
    try:
        return session_key(keys_of(payload).session_id)
    except (MalformedMessageError, UsageError):
        return None
