"""What move, copy, resubmit, purge, edit and evacuate share: one run over one entity, planned by a dry run."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sbpair.concurrency import abandon_after, run_until
from sbpair.core.access import shown_name
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import InterruptedWorkError, MalformedMessageError, ServiceError, UsageError, unchanged
from sbpair.core.message import MessageState
from sbpair.core.names import dead_letter_path, same_name, subscription_of
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.rewrite import as_sent
from sbpair.core.transfer.report import DEAD_LETTERED, DrainReport
from sbpair.core.transfer.resend import Planned, refuse_destination, window_of
from sbpair.core.transfer.state import Limited
from sbpair.core.transfer.summary import Act, MovePlan, MoveResult, guaranteed, with_unreached
from sbpair.core.transfer.verdict import DestinationSeen, Judge
from sbpair.core.words import are, counted
from sbpair.operations.ledgers import LedgerRun, Verify, looking_for, open_ledger
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import pages
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.drain import TransferRequest, entity_facts
from sbpair.runtime.transfer.dry_run import ask_destinations
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.move import move as move_messages
from sbpair.runtime.transfer.moving import MoveJob

LONGEST_LOCK_SECONDS = 300.0
"""That an entity can be set to ("Message transfers, locks, and settlement")."""
FACTS_SECONDS = 10.0
"""Bound of the wait for properties that the work can do without."""


@dataclass(frozen=True, slots=True)
class EntityRequest(Limited):
    """What every run over one entity is asked."""

    source: str
    """Path of a queue or subscription; of a topic only its scheduled messages can be taken."""
    _: KW_ONLY
    patience_seconds: float = PATIENCE_SECONDS
    """How long the source or the destination may fail before messages are left."""
    plan: MovePlan | None = None
    """What a dry run has decided: these messages are dealt with, and none that came since."""
    dry_run: bool = False

    def transfer(self, **more: Any) -> TransferRequest:
        """The transfer of the entity's messages, with what the request says of it; `more` as `TransferRequest` takes
        it."""
        return TransferRequest(**_in_common(self, TransferRequest) | {"queues": (self.source,)} | more)


@dataclass(frozen=True, slots=True)
class RecordedRequest(EntityRequest):
    """What every run is asked that sends messages, and can keep a ledger of them."""

    _: KW_ONLY
    despite_duplicate_detection: bool = False
    """Send although the destination detects duplicates and drops a MessageId that it has got before."""
    ledger: Path | None = None
    """The file that records each message. What it already has is not sent again."""
    new_ledger: bool = False
    """Begin a new ledger; the old file stays beside it as FILE.N."""

    def recorded(self) -> dict[str, Any]:
        """The same as `EntityRun` takes it, and the plan."""
        return _in_common(self, EntityRun)


def _in_common(request: EntityRequest, kind: type) -> dict[str, Any]:
    """What a request has of the fields of another dataclass."""
    known = {one.name for one in fields(kind)}
    return {one.name: getattr(request, one.name) for one in fields(request) if one.name in known}


@dataclass(frozen=True, slots=True)
class EntityRun:
    """What one run does with the messages of one entity.

    Args:
        transfer: which messages of which entity, how fast; its first queue is the entity.
        make_judge: makes the judge of what becomes of a message, given what was learnt about the destination and the
            MessageIds that it was seen to have got within the window of its duplicate detection.
        target: path of the queue or topic where the messages go; None: they are archived or deleted.
        session_states: the states of sessions go along.
        states_alone: they go even where no message does.
        states_to: the subscription that gets them, where messages go to its topic.
        despite_duplicate_detection: send although the destination drops a MessageId that it has got before.
        asked_for: number of messages that are meant; once they are dealt with the result does not mention the others.
        ledger, new_ledger: the file that records each message, or the ledger itself where it serves several runs, and
            whether a new one is begun.
        verify_doubtful: look at the destination first for what a killed run may have sent.
        plan: of an earlier dry run, to do exactly that.
        in_batches: all active messages are deleted, which their service may do without handing them out.
    """

    act: Act
    transfer: TransferRequest
    make_judge: Callable[[DestinationSeen, frozenset[str]], Judge]
    target: str | None = None
    session_states: bool = False
    states_alone: bool = False
    states_to: str | None = None
    despite_duplicate_detection: bool = False
    asked_for: int | None = None
    ledger: Path | Recorder | None = None
    new_ledger: bool = False
    verify_doubtful: bool = True
    plan: MovePlan | None = None
    in_batches: bool = False

    @property
    def path(self) -> str:
        """The entity whose messages they are."""
        return self.transfer.queues[0]


async def run_entity(run: EntityRun, ends: Ends, observer: Observer | None, stop: asyncio.Event | None) -> MoveResult:
    """Plan, unless there is a plan, and do what was planned; nothing of that in a dry run.

    Raises:
        SbpairError: the entity cannot be browsed, the destination takes nothing, or the ledger or archive cannot be
            written.
        UsageError: the destination may drop messages as duplicates, the entity has no dead letters, or the ledger is
            that of other namespaces.
        InterruptedWorkError: `stop` was set before the first message was moved.
    """
    run = replace(run, transfer=replace(run.transfer, verb=run.act.verb))
    started = _Started(run, ends, observer or Quiet(), stop or asyncio.Event())
    return await started.result()


@dataclass(frozen=True, slots=True)
class _Started:
    run: EntityRun
    ends: Ends
    observer: Observer
    stop: asyncio.Event
    clock: LoopClock = field(default_factory=LoopClock)

    async def result(self) -> MoveResult:
        run = self.run
        plan = run.plan
        if plan is None:
            with unchanged(run.transfer.undone):
                plan = await self._plan()
        if run.transfer.dry_run:
            return self._told(plan, plan.report)
        if not (plan.has_work or self._waits or run.states_alone):
            return self._told(plan, replace(plan.report, dry_run=False))
        return self._told(plan, with_unreached(await self._carried_out(plan), plan.report))

    @property
    def _waits(self) -> bool:
        """Whether it goes on for messages that come later."""
        return self.run.transfer.idle_seconds > 0

    async def _plan(self) -> MovePlan:
        facts, topic = await run_until(self.stop, self._facts())
        seen = await run_until(self.stop, self._seen())
        recent = await run_until(self.stop, self._recent(seen))
        because = await run_until(self.stop, self._at_least_once_because())
        judge = Planned(self.run.make_judge(seen, recent), takes_later=self._waits)
        plan = MovePlan(judge, DrainReport(), seen, facts, topic, because, self.run.act.keep)
        async with self._ledger(self._recorded, None) as ledger:
            report = await self._moved(plan, replace(self.run.transfer, dry_run=True), ledger)
        if self.stop.is_set():
            raise InterruptedWorkError("Stopped before the end.")
        judge.settle()
        return replace(plan, report=report)

    async def _facts(self) -> tuple[dict[str, QueueFacts | None], bool]:
        """What the administration says of the entity, if it may be asked, and whether it is a topic.

        Raises:
            UsageError: it is a topic, and its dead letters were asked for.
        """
        path, admin = self.run.path, self.ends.admin
        if admin is None:
            return {}, False
        try:
            known = await abandon_after(FACTS_SECONDS, entity_facts(admin, path), what=f"Properties of {path}")
            topic = None if known is not None or subscription_of(path) is not None else await admin.get_topic(path)
        except ServiceError:
            return {}, False
        if topic is None:
            return {} if known is None else {path: known}, False
        if True in self.run.transfer.kinds:
            raise UsageError(
                f"{path} on {shown_name(self.ends.source_access)} is a topic, which has no dead letters; its "
                "subscriptions have.",
                hint=f"Name one of its subscriptions: {path}/Subscriptions/NAME",
            )
        return {}, True

    async def _seen(self) -> DestinationSeen:
        """What the destination says; nothing where there is none."""
        if self.run.target is None:
            return DestinationSeen("")
        messaging, admin = self.ends.target, self.ends.target_admin
        asked = await ask_destinations([self.run.target], messaging=messaging, admin=admin, stop=asyncio.Event())
        access, despite = self.ends.target_access, self.run.despite_duplicate_detection
        refuse_destination(
            asked[0],
            shown_name(access),
            label=access.label,
            despite_duplicate_detection=despite,
            state=self.run.transfer.undone,
        )
        return asked[0]

    async def _recent(self, seen: DestinationSeen) -> frozenset[str]:
        """MessageIds that lie in a queue which would drop another message with one of them. What a consumer has taken
        from there already cannot be seen.

        Raises:
            ServiceError: it cannot be browsed.
        """
        found: set[str] = set()
        window, clock, ends = window_of(seen), self.clock, self.ends
        if window is None or seen.queue is None:
            return frozenset()
        since = clock.now().timestamp() - window
        for dead_letter in (False, True):
            if dead_letter and ends.target is ends.source and same_name(self.run.path, seen.path):
                continue  # what is about to be sent: its own time says whether it is remembered
            async with closing(ends.target.receiver(seen.path, dead_letter=dead_letter)) as receiver:
                patience = self.run.transfer.patience_seconds
                async for page in pages(receiver, clock=clock, patience_seconds=patience):
                    for message in page:
                        if (message.enqueued_at or 0.0) >= since:
                            with suppress(MalformedMessageError):
                                found.add(as_sent(message.payload).message_id or "")
        return frozenset(found - {""})

    async def _at_least_once_because(self) -> str | None:
        """Why messages cannot be sent and completed in one transaction; None if they can, or nothing is sent."""
        run, ends = self.run, self.ends
        if run.target is None or run.act.keep:
            return None
        if ends.transactions is None:
            return "transactions cannot span namespaces"
        async with closing(ends.transactions.mover(run.path, dead_letter=run.transfer.dead_letter)) as mover:
            refused = await mover.why_not()
        if refused is None:
            return None
        return f"{shown_name(ends.source_access)} has no transactions ({refused.message.rstrip('.')})"

    async def _carried_out(self, plan: MovePlan) -> DrainReport:
        run, ends, recorded = self.run, self.ends, self._recorded
        verify = looking_for(plan.judge, source=ends.source, target=ends.target, clock=self.clock, stop=self.stop)
        async with self._ledger(recorded, self.observer, verify if run.verify_doubtful else None) as ledger:
            report = await self._moved(plan, run.transfer, ledger)
            if not isinstance(run.ledger, Recorder):
                await recorded.ended(ledger, report)
            return report

    @property
    def _recorded(self) -> LedgerRun:
        run, ends = self.run, self.ends
        return LedgerRun(run.act.command, ends.source_access, None if run.target is None else ends.target_access)

    def _ledger(
        self, recorded: LedgerRun, observer: Observer | None, verify: Verify | None = None
    ) -> AbstractAsyncContextManager[Recorder | None]:
        run = self.run
        if isinstance(run.ledger, Recorder):
            return nullcontext(run.ledger)
        queues = [dead_letter_path(run.path) if dead_letter else run.path for dead_letter in run.transfer.kinds]
        going = {} if run.target is None else dict.fromkeys(queues, run.target)
        return open_ledger(run.ledger, recorded, observer, new=run.new_ledger, to=going, verify=verify)

    async def _moved(self, plan: MovePlan, transfer: TransferRequest, ledger: Recorder | None) -> DrainReport:
        run, ends = self.run, self.ends
        if plan.topic:
            ends = replace(ends, admin=None)  # it counts queues
        if run.target is None or run.act.keep or plan.at_least_once_because is not None:
            ends = replace(ends, transactions=None)
        return await move_messages(
            MoveJob(
                transfer,
                ends,
                plan.judge,
                seen=plan.destination,
                facts=plan.facts,
                clock=self.clock,
                observer=Quiet() if transfer.dry_run else self.observer,
                ledger=ledger,
                stop=self.stop,
                copy=run.act.keep,
                session_states=run.session_states,
                states_to=run.states_to,
                topic=plan.topic,
                undeliverable=DEAD_LETTERED if run.act.verb == DEAD_LETTERED else None,
                delete_before=plan.until if run.in_batches else None,
            )
        )

    def _held_by_others(self, plan: MovePlan, report: DrainReport) -> Iterator[str]:
        """Why deferred messages that were asked for are left, and until when."""
        left = sum(one.count for one in report.left if one.reason == MessageState.DEFERRED.value)
        if not left or not self.run.transfer.deferred or report.dry_run or report.ended_by != "empty":
            return
        known = plan.facts.get(self.run.path)
        seconds = LONGEST_LOCK_SECONDS if known is None else known.settings.lock_duration_seconds
        until = self.clock.now() + timedelta(seconds=seconds)
        yield (
            f"{counted(left, 'deferred message')} cannot be received: another receiver has locked them, or a run that "
            f"was killed. A lock that nobody renews ends by {until:%H:%M:%S} UTC."
        )

    def _uncounted(self, plan: MovePlan, report: DrainReport) -> Iterator[str]:
        """How many messages are gone that no answer has counted."""
        if not self.run.in_batches or report.dry_run or report.ended_by != "empty":
            return
        gone = plan.judge.chosen - report.purged - sum(one.count for one in report.left)
        if gone > 0:
            yield (
                f"{counted(gone, 'more message')} {are(gone)} gone: deleted by a request whose "
                "answer was lost, taken by another receiver, or expired."
            )

    def _told(self, plan: MovePlan, report: DrainReport) -> MoveResult:
        run, here, there = self.run, shown_name(self.ends.source_access), shown_name(self.ends.target_access)
        dealt_with = report.forwarded + report.already_forwarded + report.purged + report.dead_lettered
        if run.asked_for is not None and dealt_with >= run.asked_for:
            report = replace(report, left=(), filtered_out=0, ended_by="empty")
        entity = dead_letter_path(run.path) if run.transfer.dead_letter else run.path
        remarks = (*plan.remarks(run.path), *self._held_by_others(plan, report), *self._uncounted(plan, report))
        repaired = plan.repaired
        to_namespace = None if run.target is None else there
        if run.target is None or run.act.keep:
            return MoveResult(here, entity, to_namespace, run.target, report, run.act, plan, remarks=remarks)
        how_often = guaranteed(report, run.target, within=plan.at_least_once_because, keyless=plan.keyless)
        return MoveResult(here, entity, to_namespace, run.target, report, run.act, plan, *how_often, remarks, repaired)
