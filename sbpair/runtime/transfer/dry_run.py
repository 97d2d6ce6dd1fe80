"""What a drain would do: the queues are browsed and the destinations are asked what the real run will ask them.

Nothing is locked, sent or settled. A link to each destination is opened, as a sender would; with Manage on the primary
its properties tell also whether it is full or takes messages with a session only.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sbpair.concurrency import side_by_side
from sbpair.core.errors import ConnectionLostError, OperationTimeoutError, ServiceError
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.names import is_dead_letter_path
from sbpair.core.rewrite import without_tied_key
from sbpair.core.transfer import custody
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.report import FILTERED_OUT, UNDELIVERABLE, DrainReport, in_order, reasons
from sbpair.core.transfer.state import Finish, Forward, Key, Verdict, key_of
from sbpair.core.transfer.verdict import (
    LARGE_BYTES,
    WAITS_IN_SESSION,
    DestinationSeen,
    Judge,
    Refused,
    Stays,
    Wanted,
    expected,
    missing,
    refused_by,
)
from sbpair.ports import Messaging, NamespaceAdmin, RuntimeClock
from sbpair.runtime.browse import survey
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import NamespaceSink

OVER_THE_LIMIT = "over the number of messages wanted"
NOT_FOUND_REASON = "EntityNotFound"


@dataclass(slots=True)
class DryRun:
    """Browses `sources` and adds up what `classify` says of each message; see `report`."""

    classify: Judge
    also: frozenset[MessageState] = frozenset()
    """States besides active whose messages would go."""
    asked: MessageFilter = EVERYTHING
    most: int | None = None
    dead_letter_missing: bool = False
    """Messages for a destination that does not exist are dead-lettered instead of left."""
    dead_letter_refused: bool = False
    """Messages that their destination refuses as they are are dead-lettered instead of left."""
    sent_before: Collection[Key] = frozenset()
    """What a ledger has."""
    already_forwarded: int = 0
    pings: int = 0
    purged: int = 0
    wanted: dict[tuple[str, bool], Wanted] = field(default_factory=dict)
    """By destination, and whether the messages lie in a dead-letter queue: what cannot be delivered stays there."""
    faults: Counter[str] = field(default_factory=Counter)
    """Why those that would go had been dead-lettered before."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    _spellings: dict[str, str] = field(default_factory=dict)
    """Of destinations, whose case does not matter: the first one that came."""

    async def browse(
        self, sources: Sequence[Source], *, clock: RuntimeClock, stop: asyncio.Event, patience_seconds: float
    ) -> None:
        """Look at every message. A source that cannot be read keeps its error; the others go on."""
        patience, unreachable = patience_seconds, None
        for source in sources:
            if unreachable is not None:
                source.failed = unreachable  # the namespace was waited for once; nobody would answer for this one
            elif not stop.is_set():
                await self._browse_one(source, clock, patience)
                if source.failed is not None and source.failed.retryable:
                    patience = 0.0
                    if isinstance(source.failed, ConnectionLostError | OperationTimeoutError):
                        unreachable = source.failed
            await source.receiver.close()

    async def _browse_one(self, source: Source, clock: RuntimeClock, patience: float) -> None:
        try:
            found = await survey(
                source.receiver,
                {},
                clock=clock,
                patience_seconds=patience,
                unreached_seconds=patience,
                visit=self.add,
                also=self.also,
                wanted=self.asked,
            )
        except ServiceError as error:
            source.failed = error
        else:
            self.left += found.by_state

    def add(self, received: Received) -> None:
        verdict: Verdict = self.classify(received)
        match verdict:
            case _ if key_of(received) in self.sent_before:
                self.already_forwarded += 1
            case Forward() if self.most is not None and self.forwarded >= self.most:
                self.left[OVER_THE_LIMIT] += 1
            case Forward(payload, destination, session_id):
                if verdict.fault is not None:
                    self.faults[verdict.fault] += 1
                spelling = self._spellings.setdefault(destination.lower(), destination)
                kind = spelling, is_dead_letter_path(received.source)
                self.wanted.setdefault(kind, Wanted()).add(_size_bytes(payload, session_id), session_id)
            case Finish(Disposition.DEAD_LETTER):
                self._refuse(verdict.reason, 1, is_dead_letter_path(received.source))
            case Finish(outcome=custody.PURGED) if self.most is not None and self.purged >= self.most:
                self.left[OVER_THE_LIMIT] += 1
            case Finish(outcome=custody.PURGED):
                self.purged += 1
            case Finish():
                self.pings += 1
            case _:
                self.left[verdict.because] += 1

    @property
    def destinations(self) -> set[str]:
        return {path for path, _ in self.wanted}

    @property
    def forwarded(self) -> int:
        return sum(one.messages for one in self.wanted.values())

    def _refuse(self, reason: str, messages: int, dead_letter: bool) -> None:
        if dead_letter:
            self.left[f"{UNDELIVERABLE}{reason}"] += messages
        else:
            self.dead_letters[reason] += messages

    def report(self, seen: Sequence[DestinationSeen], *, seconds: float, stopped: bool) -> DrainReport:
        """What would become of the messages, given what was learnt about their destinations."""
        going = dict.fromkeys(sorted(self.destinations), 0)
        size_bytes = 0
        answers = {one.path: one for one in seen}
        for (path, dead_letter), wanted in self.wanted.items():
            messages, answer = wanted.messages, answers.get(path)
            if answer is not None:
                for trouble in expected(answer, wanted):
                    kept = messages if isinstance(trouble, Stays) else min(trouble.messages, messages)
                    messages -= kept
                    self._keep(answer, trouble, kept, dead_letter)
                    if isinstance(trouble, Refused) and not (self.dead_letter_refused or dead_letter):
                        behind = min(trouble.behind, messages)
                        messages -= behind
                        self.left[WAITS_IN_SESSION] += behind
            going[path] += messages
            size_bytes += wanted.size_bytes * messages // max(1, wanted.messages)
        return DrainReport(
            forwarded=sum(going.values()),
            forwarded_bytes=size_bytes,
            dead_lettered=sum(self.dead_letters.values()),
            pings=self.pings,
            purged=self.purged,
            already_forwarded=self.already_forwarded,
            left=reasons(self.left),
            filtered_out=self.left[FILTERED_OUT],
            per_destination=in_order({path: number for path, number in going.items() if number}, entities=True),
            dead_letter_reasons=in_order(self.dead_letters),
            original_faults=in_order(self.faults),
            unchecked=tuple(sorted(one.path for one in seen if one.error is None and not one.asked)),
            ended_by="stop" if stopped else "empty",
            dry_run=True,
            seconds=seconds,
        )

    def _keep(self, seen: DestinationSeen, trouble: Stays | Refused, messages: int, dead_letter: bool) -> None:
        if isinstance(trouble, Refused) and (self.dead_letter_refused or dead_letter):
            self._refuse(trouble.reason, messages, dead_letter)
        elif isinstance(trouble, Refused):
            self.left[refused_by(seen.path, trouble.category)] += messages
        elif missing(seen) and self.dead_letter_missing:
            self._refuse(NOT_FOUND_REASON, messages, dead_letter)
        else:
            self.left[f"destination unavailable: {seen.path} ({trouble.code})"] += messages


async def ask_destinations(
    paths: Sequence[str], *, messaging: Messaging, admin: NamespaceAdmin | None, stop: asyncio.Event
) -> list[DestinationSeen]:
    """What each destination says to a sender, and, where `admin` of its namespace may ask, its properties."""
    sink = NamespaceSink(messaging)

    async def ask(path: str) -> list[DestinationSeen]:
        return [] if stop.is_set() else [await _ask(path, sink, admin)]

    try:
        # Side by side: where nobody answers, many destinations take as long as one.
        return [seen for found in await side_by_side(ask, paths) for seen in found]
    finally:
        await sink.close()


def _size_bytes(payload: bytes, session_id: str | None) -> int:
    """What a link is asked to take at least: a drain leaves out the partition key that it adds, rather than fail."""
    is_large = session_id is not None and len(payload) > LARGE_BYTES
    return len(without_tied_key(payload) if is_large else payload)


async def _ask(path: str, sink: NamespaceSink, admin: NamespaceAdmin | None) -> DestinationSeen:
    try:
        limit = await sink.limit_bytes(path)
    except ServiceError as error:
        return DestinationSeen(path, error=error)
    if admin is None:
        return DestinationSeen(path, limit)
    try:
        queue = await admin.get_queue(path)
        topic = await admin.get_topic(path) if queue is None else None
    except ServiceError:
        return DestinationSeen(path, limit)  # the link answered; what only Manage shows is reported as unchecked
    return DestinationSeen(path, limit, queue=queue, topic=topic, asked=True)
