"""What a move works with, and the drain of what can be received, which all its ways share."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, cast

from sbpair.core.entities import QueueFacts
from sbpair.core.message import MessageState, Received
from sbpair.core.names import same_name
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.state import Key, LockClock
from sbpair.core.transfer.verdict import DestinationSeen, Judge
from sbpair.ports import Ends, MessageMover, MessageReceiver, Observer, RuntimeClock
from sbpair.runtime.transfer.drain import IDLE_SECONDS, DrainJob, TransferRequest, drain, make_sources
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import ArchiveSink, Sink
from sbpair.runtime.transfer.syphon import syphon_until

FOLLOW_WAIT_SECONDS = 60.0
"""How long one receive waits: an entity to which nothing comes costs one in so long."""


@dataclass(frozen=True, slots=True)
class MoveJob:
    """One move: what is to go, between which entities, and who is told of it.

    Args:
        request: its only queue is what the messages come from. `deferred` and `scheduled` ask for those too,
            `with_dead_letter` for the dead letters; a dry run is a browse of all that is asked for.
        judge: `Resender`, `Purger` or `Archiver`, or a `Planned` around it, which leaves what came later.
        seen: what was learnt about the destination, where session states go.
        facts: of the source, by its path; they say whether it hands out messages by session.
        ledger: what it has is completed without being sent again.
        stop: ends the move within about 10 seconds once it is set.
        copy: nothing is completed.
        session_states: take the states of sessions along. Not where only some messages are meant.
        states_to: the subscription that gets them, where messages go to its topic.
        topic: the source is one: what is scheduled is all that can be seen and taken there.
        undeliverable: as for `Settlement`.
        delete_before: all active messages that came before this moment, UTC epoch seconds, are to be deleted, and their
            service may do it without handing them out.
        archive: where all parts put their messages, instead of sending them; left open.
    """

    request: TransferRequest
    ends: Ends
    judge: Judge
    _: KW_ONLY
    seen: DestinationSeen
    facts: Mapping[str, QueueFacts | None]
    clock: RuntimeClock
    observer: Observer
    ledger: Recorder | None
    stop: asyncio.Event
    copy: bool = False
    session_states: bool = True
    states_to: str | None = None
    topic: bool = False
    undeliverable: str | None = None
    archive: ArchiveSink | None = None
    delete_before: float | None = None

    @property
    def path(self) -> str:
        """The entity that the messages come from."""
        return self.request.queues[0]

    @property
    def recorded(self) -> set[Key]:
        """What the ledger has as sent of the entity."""
        keys = self.ledger.forwarded if self.ledger is not None else ()
        return {key for key in keys if same_name(key[0], self.path)}

    @property
    def lock_seconds(self) -> float | None:
        """How long its locks last; None: not known."""
        known = self.facts.get(self.path)
        return known.settings.lock_duration_seconds if known is not None else None

    def less(self, request: TransferRequest, parts: Sequence[DrainReport]) -> TransferRequest | None:
        """What is still asked for after these parts; None: nothing."""
        if self.stop.is_set() or any(part.broken_off is not None for part in parts):
            return None
        if request.max_messages is None:
            return request
        rest = request.max_messages - sum(part.forwarded + part.purged for part in parts)
        return replace(request, max_messages=rest) if rest > 0 else None

    async def followed(
        self,
        recorded: set[Key],
        sources: Sequence[Source] | None = None,
        sink: Sink | None = None,
        *,
        stop: asyncio.Event,
    ) -> None:
        """Move what is there and what comes until `stop` is set, through outages of either side. Without an order it
        needs no browse, so it works where an entity is closed to senders.

        Args:
            recorded: what was sent and can still be there; what this run cannot complete is added.
            sources, sink: as for `DrainJob`.

        Raises:
            SbpairError: the ledger cannot be written.
        """
        job = replace(self._draining(self.request), stop=stop, sources=sources, sink=sink)
        run = await syphon_until(job, poll_seconds=FOLLOW_WAIT_SECONDS, recorded=recorded)
        recorded |= run.uncompleted
        if self.ledger is not None:
            self.ledger.forwarded |= run.uncompleted
        if run.broken is not None:
            raise run.broken

    async def drained(
        self, request: TransferRequest, source: Source | None = None, mover: MessageMover | None = None
    ) -> DrainReport:
        """`drain` of what can be received. `source`: one session instead of the entity. `mover`: what receives, if it
        moves in transactions as well."""
        sources = None if source is None else [source]
        if source is None and mover is not None:
            sources = [Source(self.path, mover, LockClock(self.lock_seconds), wait_seconds=IDLE_SECONDS)]
        if not request.active:
            sources = sources or make_sources(request, self.ends.source, self.facts, wait_seconds=0.0)
            for each in sources:
                each.receiver = cast(MessageReceiver, _DeferredOnly(each.receiver))
        return await drain(
            replace(
                self._draining(request),
                # Counts are of all sessions, and of active messages too.
                admin=self.ends.admin if source is None and request.active else None,
                primary_admin=self.ends.target_admin,
                facts=self.facts if source is None else {},
                sources=sources,
                mover=mover,
                sink=self.archive,
            )
        )

    def _draining(self, request: TransferRequest) -> DrainJob:
        return DrainJob(
            request,
            secondary=self.ends.source,
            primary=self.ends.target,
            clock=self.clock,
            observer=self.observer,
            ledger=self.ledger,
            stop=self.stop,
            facts=self.facts,
            judge=self.judge,
            undeliverable=self.undeliverable,
        )


class _DeferredOnly:
    """A receiver of an entity in which nothing but what is deferred seems to lie."""

    def __init__(self, receiver: MessageReceiver) -> None:
        self._receiver = receiver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._receiver, name)

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        """Nothing: what is deferred is received by its number."""
        return []

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        """The next deferred messages; an empty list is the end."""
        while page := await self._receiver.peek(max_messages, from_sequence_number=from_sequence_number):
            if found := [message for message in page if message.state is MessageState.DEFERRED]:
                return found
            from_sequence_number = max(message.sequence_number for message in page) + 1
        return []
