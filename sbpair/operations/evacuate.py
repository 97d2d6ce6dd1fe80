"""All entities and messages of a namespace, moved to another one, and the proof that it is empty."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import cast

from sbpair.concurrency import patiently, run_until, side_by_side
from sbpair.core.access import shown_name
from sbpair.core.entities import EntityFacts, EntityKind
from sbpair.core.errors import InterruptedWorkError, ServiceError, UsageError, unchanged
from sbpair.core.events import EntityCreated
from sbpair.core.inspection.contents import (
    DEFAULT_RULE,
    NOT_ASKED_FOR,
    UNFINISHED,
    Action,
    DeadLettersTo,
    EntityStep,
    LeftThere,
    MailboxMove,
    holding_settings,
    is_holding,
)
from sbpair.core.inspection.evacuated import (
    NOTHING_CHANGED,
    BothNamespaces,
    EvacuateResult,
    EvacuationPlan,
    EvacuationScope,
    WrittenPlan,
    is_closed,
)
from sbpair.core.inspection.snapshot import Peeked
from sbpair.core.names import ByName
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.transfer.report import FILTERED_OUT, DrainReport
from sbpair.core.transfer.resend import ALL_MESSAGES, follower
from sbpair.core.transfer.state import Limited
from sbpair.core.transfer.summary import Act
from sbpair.files import is_claimed
from sbpair.operations.entity_run import EntityRun, run_entity
from sbpair.operations.following import POLL_SECONDS, Following
from sbpair.operations.ledgers import LedgerRun, looking_for, open_ledger
from sbpair.operations.log import OperationsLog
from sbpair.operations.move import resender
from sbpair.ports import Ends, Observer, Topology
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.transfer.drain import ToQueue, TransferRequest
from sbpair.runtime.transfer.ledger import Ledger, accepted_in, sent_in
from sbpair.service import EntityStatus

__all__ = ["DeadLettersTo", "EvacuateRequest", "EvacuateResult", "EvacuationPlan", "WrittenPlan", "evacuate"]

MOST_ROUNDS = 3
"""How often what came meanwhile is looked for and moved."""
BROWSES_AT_ONCE = 8
CAME_WHILE_OPEN = "came while it was open for the proof: senders still send to it"


@dataclass(frozen=True, slots=True)
class EvacuateRequest(Limited):
    """What is evacuated, and how. Durations in seconds."""

    ledger: Path
    """The file that records each message. What it already has is not sent again, so the same request goes on after a
    crash."""
    _: KW_ONLY
    without: tuple[str, ...] = ()
    """Patterns of entities that are left out."""
    dead_letters: DeadLettersTo = DeadLettersTo.HOLD
    """Where dead letters go: into queues that hold them, to their queue again, or nowhere."""
    despite_duplicate_detection: bool = False
    """Move although a queue that was there before may drop a MessageId that it got from elsewhere."""
    rate_per_second: float | None = None
    budget_per_second: float | None = None
    """Messages a second that leave enough of each namespace's throttling credits to others."""
    concurrency: int = 8
    """Batches that are sent at a time."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long an entity may fail before its messages are left."""
    log: Path | None = None
    """The operations log, where each entity that is created gets a line. None: nothing is recorded."""
    written: WrittenPlan | None = None
    """A plan out of a file, which says what is evacuated instead of this request. It is refused if something else would
    be done now."""
    plan: EvacuationPlan | None = None
    """What a dry run has found; its entities are created as they are there."""
    follow: bool = False
    """Move what queues hold and get, while senders send to the source, until stopped or `lag_seconds` is reached."""
    lag_seconds: float | None = None
    """Close the source to senders once no message of a queue has waited there longer, move the rest and prove that it
    is empty; `math.inf`: at once. None: it is never closed."""
    status: bool = False
    """Only say how far the target lags behind."""
    dry_run: bool = False


async def evacuate(
    ends: Ends, request: EvacuateRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> EvacuateResult:
    """Create what is missing on the target, move all messages there, and prove that the source is empty.

    What exists on the target is never changed, only compared. Messages of a queue go to the queue of that name; those
    of a subscription, and dead letters, are held in queues of their own. Each message keeps its bytes and is completed
    after the target has it: none is lost, and after a crash one may be there twice, with the same MessageId. Needs
    Manage on both.

    With `follow` consumers go over while messages keep coming: what queues get is moved on, sessions in order and kept
    once they are held; outages of either side are waited for. With `lag_seconds` queues and topics are closed to
    senders (SendDisabled) at that lag. A closed entity cannot be browsed, so they are opened once more for the proof,
    closed again, and counted: what came in between is moved as well.

    Args:
        ends: both open namespaces, with their topologies (`sbpair.open_ends` opens them).
        request: what to do. With `dry_run` both namespaces are compared and the source is browsed; the result says what
            would be done, and its `plan` makes a second call do that.

    Returns:
        What was created and moved, what is left and why, and whether the source is empty.

    Raises:
        UsageError: both ends are one namespace, or an entity of the target cannot take the messages of its name.
            Nothing was changed.
        StalePlanError: something else would be done now than the plan file says. Nothing was changed.
        ServiceError: a namespace does not say what is there, or does not create what is missing.
        SbpairError: the operations log or the ledger cannot be written.
        InterruptedWorkError: `stop` was set before the first message was moved.
    """
    if ends.topology is None or ends.target_topology is None:
        raise UsageError("An evacuation needs the topologies of both namespaces: open the ends with sbpair.open_ends.")
    if ends.source_access.host == ends.target_access.host:
        raise UsageError(f"FROM and TO are both {shown_name(ends.source_access)}. {NOTHING_CHANGED}")
    asked = request.written or request
    scope = EvacuationScope(
        ends.source_access.label,
        ends.target_access.label,
        shown_name(ends.source_access),
        shown_name(ends.target_access),
        asked.without,
        asked.dead_letters,
        asked.despite_duplicate_detection,
        request.follow or request.lag_seconds is not None,
    )
    run = _Evacuation(
        ends, ends.topology, ends.target_topology, scope, request, observer or Quiet(), stop or asyncio.Event()
    )
    plan = request.plan
    if plan is None:
        with unchanged(NOTHING_CHANGED):
            plan = EvacuationPlan.of(scope, await run.both_namespaces())
    if request.written is not None:
        plan.refuse_stale(request.written)
    if request.status:
        lags = await run_until(run.stop, run.following(plan).lags())
        return EvacuateResult.planned(replace(plan, moves=()), lags)
    if request.dry_run:
        return EvacuateResult.planned(plan)
    plan.refuse_conflicts()
    await run.create(plan.steps)
    result = await (run.follow(plan) if scope.follows else run.move_all(plan))
    if not result.stopped and all(there.reason == NOT_ASKED_FOR for there in result.left):
        await run.finish(plan.steps)
    return result


@dataclass(frozen=True, slots=True)
class _Evacuation:
    ends: Ends
    here: Topology
    there: Topology
    scope: EvacuationScope
    request: EvacuateRequest
    observer: Observer
    stop: asyncio.Event
    clock: LoopClock = field(default_factory=LoopClock)
    ledger: Ledger | None = None
    """Open for all parts of a run that follows."""

    async def both_namespaces(self) -> BothNamespaces:
        """Both of them now.

        Raises:
            ServiceError: a namespace does not say what is there.
        """
        return await run_until(self.stop, self._both_namespaces())

    async def _both_namespaces(self) -> BothNamespaces:
        facts = await self.there.namespace()
        target = await self.there.entities(rules=True)
        source = await self.here.entities(rules=True)
        browsed: ByName[Peeked] = ByName()
        unread: dict[str, str] = {}

        async def browse(entity: EntityFacts) -> None:
            peek = peeking(self.ends.source, dead_letters=entity.kind is not EntityKind.TOPIC)
            try:
                browsed[entity.path] = await peek(entity.path)
            except ServiceError as error:
                unread[entity.path] = error.message

        if not self.request.status:
            await side_by_side(browse, source, at_once=BROWSES_AT_ONCE)
        return BothNamespaces(tuple(source), tuple(target), facts.tier, browsed, unread)

    # Entities.

    async def create(self, steps: Sequence[EntityStep]) -> None:
        """Create what is missing, in its order; each is in the operations log."""
        access = self.ends.target_access
        missing = [step for step in steps if step.action in (Action.CREATE, Action.FINISH)]
        if not missing:
            return
        with OperationsLog(self.request.log) as log:
            for step in missing:
                await run_until(self.stop, self._create(step))
                if step.action is Action.CREATE:
                    log.changed("evacuate", access, "create", step.path, step.kind.value)
                    at = self.clock.now().timestamp()
                    self.observer.notify(EntityCreated(at, step.path, step.kind.value, shown_name(access)))

    async def _create(self, step: EntityStep) -> None:
        """Create an entity, marked until all is moved. A subscription gets its rules, and loses the one it is born
        with."""
        if step.action is Action.CREATE:
            await self.there.create(step.kind, step.path, replace(step.settings, user_metadata=UNFINISHED))
        if step.kind is not EntityKind.SUBSCRIPTION:
            return
        created = await self.there.entity(step.path)
        present = ByName((rule.name, rule) for rule in (created.rules if created is not None else ()))
        wanted = ByName((rule.name, rule) for rule in step.rules)
        for name, rule in wanted.items():
            if present.get(name) == rule:
                continue
            if name in present:
                await self.there.delete_rule(step.path, rule.name)
            await self.there.create_rule(step.path, rule)
        if DEFAULT_RULE in present and DEFAULT_RULE not in wanted:
            await self.there.delete_rule(step.path, DEFAULT_RULE)

    async def finish(self, steps: Sequence[EntityStep]) -> None:
        """All is moved: what was created gets its own metadata instead of the mark."""
        for step in steps:
            if step.action in (Action.CREATE, Action.FINISH):
                metadata = {"user_metadata": step.settings.user_metadata}
                await run_until(self.stop, self.there.update(step.path, metadata))

    # Following.

    def following(self, plan: EvacuationPlan) -> Following:
        """The plan's queues, followed."""
        request = self.request
        return Following(
            self.ends,
            self.here,
            self.there,
            plan,
            request.concurrency,
            request.patience_seconds,
            self.observer,
            self.stop,
            self.clock,
            self.ledger,
        )

    async def follow(self, plan: EvacuationPlan) -> EvacuateResult:
        """Move what comes until stopped; or until the lag is small, and then close the source and move the rest."""
        path, ends = self.request.ledger, self.ends
        if self.request.lag_seconds == math.inf and path.exists() and is_claimed(path):
            # Another process follows: it is to see that the source is closed, and to do the rest.
            await self.following(plan).set_senders(EntityStatus.SEND_DISABLED, self.request.log)
            while is_claimed(path):
                await run_until(self.stop, self.clock.sleep(POLL_SECONDS))
        recorded = LedgerRun("evacuate", ends.source_access, ends.target_access)
        going = {move.mailbox: move.to for move in plan.moves}
        verify = looking_for(follower, source=ends.source, target=ends.target, clock=self.clock, stop=self.stop)
        async with open_ledger(path, recorded, self.observer, to=going, verify=verify) as opened:
            ledger = cast(Ledger, opened)
            before = ledger.accepted.copy()
            with unchanged(f"Moved messages are recorded in {path}; the same command continues."):
                result = await replace(self, ledger=ledger).follow_and_close(plan)
            await recorded.ended(ledger, DrainReport(ended_by="stop" if result.stopped else "empty"))
            return result.with_followed(before, ledger.accepted)

    async def follow_and_close(self, plan: EvacuationPlan) -> EvacuateResult:
        """`follow` with an open ledger."""
        seconds, log, rounds = self.request.lag_seconds, self.request.log, 0
        result: EvacuateResult | None = None
        if seconds is not None:  # an earlier run may have ended while they were closed
            await self.following(plan).set_senders(EntityStatus.ACTIVE, log)
        while True:
            following = self.following(plan)
            if result is None:
                async with following.running():
                    await (following.until_closed() if seconds is None else following.until_lag(seconds))
            if not self.stop.is_set():
                await following.set_senders(EntityStatus.SEND_DISABLED, log)
                async with following.running():  # all links end when an entity is closed
                    await following.until_quiet()
            if self.stop.is_set():
                lags, path = await following.lags_at_once(), self.request.ledger
                closed = is_closed(one.status for one in lags if one.followed)
                return EvacuateResult(plan, ledger=path, stopped=True, closed=closed, lag=lags)
            if result is not None:
                came = await following.counted()
                if not came or not (result.source_empty or result.only_left_out) or rounds == MOST_ROUNDS:
                    break
            await following.set_senders(EntityStatus.ACTIVE, log)
            seen = await patiently(self.both_namespaces, patience_seconds=self.request.patience_seconds)
            plan, rounds = EvacuationPlan.of(self.scope, seen), rounds + 1
            await self.create(plan.steps)
            result = await self.move_all(plan)
            if result.stopped:
                return result
        known = {there.entity for there in result.left}
        late = [LeftThere(path, number, CAME_WHILE_OPEN) for path, number in came.items() if path not in known]
        empty = result.source_empty and not late
        return replace(result, closed=True, source_empty=empty, left=(*result.left, *late))

    # Messages.

    async def move_all(self, plan: EvacuationPlan) -> EvacuateResult:
        """Move what is there, look for what came meanwhile, and go on as long as more is found."""
        seen, steps = plan.seen, plan.steps
        began: dict[str, MailboxMove] = {}
        moved: Counter[str] = Counter()
        stays: dict[str, Counter[str]] = {}
        state = f"Moved messages are recorded in {self.request.ledger}; the same command continues."
        for _ in range(MOST_ROUNDS):
            progress = 0
            stays = {}
            for move in seen.moves(self.scope, steps)[0]:
                if not move.counted or self.stop.is_set():
                    continue
                began.setdefault(move.mailbox, move)
                number, stays[move.mailbox] = await self._move(move, seen)
                moved[move.mailbox] += number
                progress += number
            if self.stop.is_set():
                break
            with unchanged(state):
                seen = await patiently(self.both_namespaces, patience_seconds=self.request.patience_seconds)
            if seen.source_empty or not progress:
                break
        stopped = self.stop.is_set()
        left = _reasons(stays) if stopped else self._still_there(seen, steps, stays)
        accepted = self.ledger.accepted if self.ledger is not None else accepted_in(sent_in(self.request.ledger))
        there = ByName((facts.path, facts.counts.total) for facts in (() if stopped else seen.target))
        held = {move.to for move in began.values() if move.held and moved[move.mailbox]}
        held |= {
            facts.path for facts in seen.target if is_holding(facts.path, self.scope.source) and facts.counts.total
        }
        return EvacuateResult(
            plan,
            moves=tuple(
                replace(move, moved=moved[mailbox], accepted=accepted[mailbox.lower()], there_now=there.get(move.to))
                for mailbox, move in began.items()
            ),
            left=tuple(left),
            held=tuple(sorted(held)),
            source_empty=not stopped and seen.source_empty,
            ledger=self.request.ledger,
            stopped=stopped,
        )

    def _still_there(
        self, seen: BothNamespaces, steps: Sequence[EntityStep], stays: Mapping[str, Counter[str]]
    ) -> Iterator[LeftThere]:
        """What the last look shows, with the reasons that the moves gave."""
        moves, left = seen.moves(self.scope, steps)
        yield from left
        for move in moves:
            if not move.counted:
                continue
            why = stays.get(move.mailbox, Counter())
            for reason, number in why.items():
                yield LeftThere(move.mailbox, number, reason)
            if not why:
                yield LeftThere(move.mailbox, move.counted, "came after this run had looked")

    async def _move(self, move: MailboxMove, seen: BothNamespaces) -> tuple[int, Counter[str]]:
        """Move the messages of one queue or subscription: how many went, and why others stay. What hinders one entity
        does not hinder the next."""
        request, active = self.request, not move.dead_letter
        transfer = TransferRequest(
            (move.entity,),
            dead_letter=move.dead_letter,
            deferred=active,
            scheduled=active,
            to=ToQueue(move.to),
            leave_missing=True,
            patience_seconds=request.patience_seconds,
            rate_per_second=request.rate_per_second,
            budget_per_second=request.budget_per_second,
            concurrency=request.concurrency,
        )
        # Whether a queue may drop what it has got before was settled when the entities were compared.
        run = EntityRun(
            Act("moved", command="evacuate"),
            transfer,
            resender(self.ends, move.entity, move.to, ALL_MESSAGES),
            move.to,
            session_states=True,
            states_alone=True,
            despite_duplicate_detection=True,
            ledger=self.ledger or request.ledger,
        )
        try:
            if move.held:
                await run_until(self.stop, self._make_holding_queue(move, seen))
            report = (await run_entity(run, self.ends, self.observer, self.stop)).report
        except InterruptedWorkError:
            return 0, Counter()
        except (ServiceError, UsageError) as error:
            return 0, Counter({error.message: move.counted})
        why = Counter({left.reason: left.count for left in report.left})
        for failure in report.failures:
            why[f"not read: {failure.error.message}"] += 1
        return report.forwarded + report.already_forwarded, why

    async def _make_holding_queue(self, move: MailboxMove, seen: BothNamespaces) -> None:
        """The queue that is there for messages without another place; the one of an earlier run is used on."""
        if await self.there.entity(move.to) is None:
            settings = holding_settings(seen.target_tier, by_session=move.by_session)
            await self.there.create(EntityKind.QUEUE, move.to, settings)


def _reasons(stays: Mapping[str, Counter[str]]) -> Iterator[LeftThere]:
    for mailbox, why in stays.items():
        for reason, number in why.items():
            if reason != FILTERED_OUT:
                yield LeftThere(mailbox, number, reason)
