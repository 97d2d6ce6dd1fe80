"""`drill`: an outage rehearsed on a real pair, with entities of its own beside the live ones."""

import asyncio
import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from sbpair.concurrency import cancel_on, end, run_until, with_timeout
from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import EntityFacts, EntityKind
from sbpair.core.errors import EntityNotFoundError, SbpairError, ServiceError, UsageError, for_pair, unwritable
from sbpair.core.events import Diverted, Event, FailedBack, Forwarded
from sbpair.core.inspection.audit import Severity
from sbpair.core.inspection.audit.findings import in_one_line
from sbpair.core.inspection.diagnosis import VERSIONS, Diagnosis, Verdict
from sbpair.core.inspection.drilled import (
    DEFAULT_MESSAGES,
    DRILL,
    NOT_REMOVED,
    ORDER,
    Drilled,
    DrilledEntity,
    DrillLine,
    DrillPlan,
    LiveEntities,
    Mark,
    Reaction,
    Shadow,
    compare,
    fingerprint,
    label_of,
    live_differences,
    plan_drill,
    sample,
)
from sbpair.core.message import PING_CONTENT_TYPE, Disposition, Received
from sbpair.core.names import subscription_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.redact import json_text
from sbpair.core.rewrite import is_ping
from sbpair.core.serialization import from_plain, iso_time, spoken_time, to_plain
from sbpair.files import claim, make_private_folder, open_private
from sbpair.operations.audit import AuditRequest, audit
from sbpair.operations.doctor import DoctorRequest, doctor
from sbpair.operations.drain import DrainRequest, drain
from sbpair.operations.log import OperationsLog
from sbpair.ports import Messaging, Observer, Sides, Topology
from sbpair.runtime.browse import Browsed, browse
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import FailoverSender, SentTo, session_of
from sbpair.service import EntityStatus

__all__ = ["DrillRequest", "Drilled", "ShadowOutage", "drill"]

SESSIONS = 4
GRACE_SECONDS = 120.0
"""What failover and failback may take beyond their intervals, and the removal beyond the limit."""
LIMIT_SECONDS = 900.0
SEND_SECONDS = 30.0
LAST_POLL_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
"""An entity that has less than was accepted counts as such after so long."""
BATCH = 200
MOST_EARLIER = 5


class ShadowOutage(Protocol):
    """What keeps the primary from taking the messages of the shadows."""

    @property
    def name(self) -> str: ...

    async def begin(self, paths: Sequence[str]) -> None: ...

    async def end(self, paths: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """What is rehearsed. The failover is governed by the options of the pair."""

    entities: tuple[str, ...] = ()
    """Live queues or topics of the primary; none: those of the pair."""
    messages: int = DEFAULT_MESSAGES
    """For each: a quarter before the outage, half of them in it, a quarter after it."""
    limit_seconds: float = LIMIT_SECONDS
    """The drill ends so long after its failover and ping interval, and removes what it has created."""
    outage: ShadowOutage | None = None
    """None: the shadows are set to SendDisabled."""
    expects: Reaction = Reaction.DIVERTED
    examine: bool = True
    """Look for rights and settings that would fail in earnest, as `doctor` and `audit` do."""
    run: str = ""
    """Name of the run; by default one that nobody else has."""
    history: Path | None = None
    """Folder with a file for each pair, to which a line for each entity is added."""
    state: Path | None = None
    """File that one drill at a time holds, with the runs of this machine that have not cleaned up yet."""
    log: Path | None = None
    """Operations log; None: nothing is recorded."""
    dry_run: bool = False


async def drill(
    sides: Sides, request: DrillRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Drilled:
    """Rehearse an outage on the pair's namespaces, without a message to a live entity or to the pair's backlog queues.

    Beside each entity a shadow is created, with its settings, and backlog queues that no other drain, syphon or sender
    knows. The failover sender sends; the shadow takes no more; messages are diverted; it takes them again; the sender
    fails back; a drain returns the backlog; all messages are received and compared with what was sent. Whatever
    happens, everything that was created is removed. What a killed drill has left is removed first, if its mark proves
    whose it is and its run has ended. Needs Manage on both namespaces.

    Args:
        request: what to do. With `dry_run` the result says what would be created.
        observer: gets the events of failover and drain.
        stop: ends the drill; what it has created is removed.

    Raises:
        UsageError: no entity is named, or these sides have no topologies.
        EntityNotFoundError: an entity does not exist. Nothing was created.
        SbpairError: another drill of these namespaces may still be running.
        ServiceError: a namespace refused something; the error says what is removed.
        InterruptedWorkError: `stop` was set before anything was created.
    """
    if sides.topologies is None or sides.reopen is None:
        raise UsageError("A drill lists and creates entities: open the sides with sbpair.open_sides.")
    if not (entities := request.entities or sides.pair.entities):
        raise UsageError(
            f"Pair {sides.pair.name!r} names no entities on its primary.",
            hint="Name them on the command line, or under `entities:` in the configuration.",
        )
    run = request.run or f"{time.strftime('%Y%m%d-%H%M', time.gmtime())}-{secrets.token_hex(3)}"
    request = replace(request, run=run, entities=entities)
    with _claimed(request.state) as dead, OperationsLog(request.log) as log:
        drilling = _Drill(sides, request, dead, log, observer or Quiet(), stop or asyncio.Event())
        done = await drilling.carry_out()
    return done if request.history is None or request.dry_run else _with_history(request.history, done)


async def receive_all(
    messaging: Messaging, place: str, expected: Mapping[str | None, int], patience_seconds: float
) -> list[Received]:
    """Everything there is, completed, by session (None: without sessions). One more look follows the expected number,
    so that a surplus message is not missed; an empty place is believed after `patience_seconds`."""

    async def of_session(session: str | None, number: int) -> list[Received]:
        receiver = messaging.receiver(place, session_id=session)
        found: list[Received] = []
        try:
            while True:
                wait_seconds = LAST_POLL_SECONDS if len(found) >= number else patience_seconds
                batch = await receiver.receive(BATCH, wait_seconds=wait_seconds)
                if not batch:
                    return found
                await asyncio.gather(*(receiver.settle(one, Disposition.COMPLETE) for one in batch))
                found += batch
        finally:
            await receiver.close()

    each = await asyncio.gather(*(of_session(session, number) for session, number in expected.items()))
    return [one for found in each for one in found]


@contextmanager
def _claimed(path: Path | None) -> Iterator[frozenset[str]]:
    """The runs of this machine that have ended without cleaning up: who holds the file knows that none goes on.

    Raises:
        SbpairError: another drill of this machine has it, or it cannot be written.
    """
    if path is None:
        yield frozenset()
        return
    try:
        make_private_folder(path.parent)
        file = open_private(path, "a+b")
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was created.") from error
    with file:
        if not claim(file):
            raise SbpairError("Another drill of this pair runs on this machine. Nothing was created.")
        file.seek(0)
        yield frozenset(file.read().decode("ascii", "replace").split())


@dataclass(slots=True)
class _Drill:
    sides: Sides
    request: DrillRequest
    dead: frozenset[str]
    """Runs that have ended for certain."""
    log: OperationsLog
    observer: Observer
    stop: asyncio.Event
    not_removed: list[Diagnosis] = field(default_factory=list)

    async def carry_out(self) -> Drilled:
        request, at = self.request, LoopClock().now().timestamp()
        both = await run_until(self.stop, self._both())
        remains = self._remains(both, at)
        plan = await run_until(self.stop, self._plan(both, at))
        live = _live(both)
        done = Drilled(self.sides.pair.name, at, request.dry_run, plan.shadows, len(live), plan=plan)
        if request.dry_run:
            findings = await run_until(self.stop, self._problems())
            left = tuple(facts.path for _, facts in remains)
            return replace(done, findings=findings, forecast=plan.forecast, cleaned=left)
        self._remember("ab", f"{request.run}\n")
        cleaned = [facts.path for side, facts in remains if await self._remove(side, facts.path)]
        done = replace(done, cleaned=tuple(cleaned))
        rows: tuple[DrilledEntity, ...] | None = None
        failure: SbpairError | None = None
        problems = await cancel_on(self.stop, self._problems())
        try:
            if problems is not None:
                rows = await cancel_on(self.stop, self._create_and_rehearse(plan))
        except SbpairError as error:
            failure = error
        finally:
            for shadow in reversed(plan.shadows):
                if shadow.kind is not EntityKind.SUBSCRIPTION:
                    await self._remove(shadow.side, shadow.path)
        if not self.not_removed:
            self._remember("wb", "")
        if failure is not None:
            state = " ".join(f"Not removed: {row.subject}: {row.detail}." for row in self.not_removed)
            raise failure.with_state(state or "What the drill had created is removed.") from failure.__cause__
        if rows is None:
            return replace(done, findings=tuple(self.not_removed), stopped=True)
        differences = live_differences(live, _live(await self._both()))
        overtaken = (
            Diagnosis(
                ORDER,
                one.entity,
                Verdict.WARNING,
                f"{one.overtaken:,} messages of sessions were overtaken after the failback",
                "Set `hold_sessions: true` for the pair.",
            )
            for one in rows
            if one.overtaken
        )
        findings = (*self.not_removed, *overtaken, *(problems or ()), *differences)
        return replace(done, entities=rows, findings=findings)

    def _remember(self, mode: str, text: str) -> None:
        if (path := self.request.state) is not None:
            with open_private(path, mode) as file:
                file.write(text.encode())

    @property
    def _limit_seconds(self) -> float:
        options = self.sides.pair.options
        return self.request.limit_seconds + options.failover_interval_seconds + options.ping_interval_seconds

    async def _create_and_rehearse(self, plan: DrillPlan) -> tuple[DrilledEntity, ...]:
        async def work() -> tuple[DrilledEntity, ...]:
            for shadow in plan.shadows:
                await self._topologies[shadow.side].create(shadow.kind, shadow.path, shadow.settings)
                self._logged(shadow.side, "create", shadow.path, f"{shadow.kind.value} like {shadow.like}")
            return await _Rehearsal(self.sides, self.request, plan, self.observer, self.stop).play()

        return await with_timeout(self._limit_seconds, work(), what="The drill")

    # What is there.

    async def _both(self) -> dict[tuple[Side, str], EntityFacts]:
        listed = await asyncio.gather(*(topology.entities(rules=False) for topology in self._topologies.values()))
        return {(side, one.path.lower()): one for side, found in zip(Side, listed, strict=True) for one in found}

    @property
    def _topologies(self) -> Mapping[Side, Topology]:
        return dict(zip(Side, self.sides.topologies or (), strict=True))

    def _remains(self, both: LiveEntities, now: float) -> list[tuple[Side, EntityFacts]]:
        """Queues and topics of drills that were killed.

        Raises:
            SbpairError: one may still be running.
        """
        found = []
        for (side, _), facts in both.items():
            known = Mark.of(facts)
            if known is None or facts.kind is EntityKind.SUBSCRIPTION:
                continue
            if known.run not in self.dead and known.until > now:
                raise SbpairError(
                    f"{facts.path} on the {side.value} belongs to the drill {known.run}, which was not begun with the "
                    f"state of this machine and may be running until {spoken_time(known.until)}. Nothing was created.",
                    hint="Wait for it, or if it was killed, for that time: then the next drill removes what it left.",
                )
            found.append((side, facts))
        return found

    async def _plan(self, both: LiveEntities, now: float) -> DrillPlan:
        wanted = []
        for path in self.request.entities:
            facts = both.get((Side.PRIMARY, path.lower()))
            if facts is None or facts.kind is EntityKind.SUBSCRIPTION:
                raise EntityNotFoundError(
                    f"There is no queue or topic {path} on the primary. Nothing was created.", entity=path
                )
            wanted.append(facts)
        tiers = {side: (await topology.namespace()).tier for side, topology in self._topologies.items()}
        until = now + self._limit_seconds + GRACE_SECONDS
        backlog = self.sides.pair.backlog_paths()
        return plan_drill(self.request.run, until, both, wanted, backlog, tiers, self.request.messages)

    async def _problems(self) -> tuple[Diagnosis, ...]:
        """What would fail in earnest, each once."""
        if not self.request.examine:
            return ()
        pair = replace(self.sides.pair, entities=self.request.entities)
        sides = replace(self.sides, pair=pair)
        rows = [
            row
            for for_application in (True, False)
            for row in (await doctor(sides, DoctorRequest(for_application=for_application))).checks
            if row.check != VERSIONS and row.result in (Verdict.WARNING, Verdict.ERROR)
        ]
        for finding in (await audit(sides, AuditRequest())).report.at_least(Severity.WARNING):
            verdict = Verdict.WARNING if finding.severity is Severity.WARNING else Verdict.ERROR
            remedy = for_pair(in_one_line(finding.remedy), pair.name)
            rows.append(Diagnosis(finding.code, finding.subject, verdict, finding.message, remedy))
        return tuple({(row.subject, row.detail): row for row in rows}.values())

    # What it removes.

    async def _remove(self, side: Side, path: str) -> bool:
        """Delete an entity of a drill, unless it holds a message of somebody else; whether it was there and is gone."""
        topology = self._topologies[side]
        why, advice = "", ""
        try:
            facts = await topology.entity(path)
            if facts is None:
                return False
            if Mark.of(facts) is None:
                why = "its metadata does not say that it is a drill's"
            else:
                if facts.settings.status is not EntityStatus.ACTIVE:  # one that is disabled cannot be browsed
                    await topology.update(path, {"status": EntityStatus.ACTIVE})
                if (foreign := await self._foreign(side, facts)) is not None:
                    why = f"it holds a message that is not the drill's ({foreign})"
                    advice = f"Look at it, then: sbpair entity delete {self._access(side).label}:{path} --with-messages"
                else:
                    await topology.delete(path)
        except EntityNotFoundError:
            return False
        except ServiceError as error:
            why = error.message
        if why:
            self.not_removed.append(Diagnosis(NOT_REMOVED, f"{side.value} {path}", Verdict.ERROR, why, advice))
            return False
        self._logged(side, "delete", path, "of a drill")
        return True

    async def _foreign(self, side: Side, facts: EntityFacts) -> str | None:
        """The MessageId of a message that neither a drill nor, as a ping, a failover sender has sent."""

        def foreign(message: Browsed) -> bool:
            summary = message.summary
            return DRILL not in summary.application_properties and summary.content_type != PING_CONTENT_TYPE

        messaging = self.sides.primary if side is Side.PRIMARY else self.sides.secondary
        path = facts.path if facts.kind is EntityKind.QUEUE else subscription_path(facts.path, "drill")
        found = await browse(messaging, [path], kinds=(False, True), max_messages=1, wanted=foreign)
        for failed in found.failed:
            if not isinstance(failed.error, EntityNotFoundError):  # a topic whose subscription was not created yet
                raise failed.error
        return found.messages[0].summary.message_id or "no MessageId" if found.messages else None

    def _logged(self, side: Side, action: str, path: str, detail: str) -> None:
        self.log.changed("drill", self._access(side), action, path, detail)

    def _access(self, side: Side) -> NamespaceAccess:
        return self.sides.pair.primary if side is Side.PRIMARY else self.sides.pair.secondary


def _live(both: LiveEntities) -> LiveEntities:
    return {key: facts for key, facts in both.items() if Mark.of(facts) is None}


# The rehearsal.


@dataclass(slots=True)
class _Watch:
    """Notes when what happened, in monotonic seconds, by shadow."""

    observer: Observer
    diverted: dict[str, float] = field(default_factory=dict)
    failed_back: dict[str, float] = field(default_factory=dict)
    forwarded: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case Diverted():
                self.diverted.setdefault(event.entity, now)
            case FailedBack():
                self.failed_back.setdefault(event.entity, now)
                self.changed.set()
            case Forwarded():
                self.forwarded[event.entity] += [now] * event.messages
        self.observer.notify(event)

    async def all_back(self, paths: set[str]) -> None:
        while paths - self.failed_back.keys():
            self.changed.clear()
            await self.changed.wait()


@dataclass(slots=True)
class _Sent:
    """What was sent to one shadow."""

    entity: str
    shadow: Shadow
    mailbox: Shadow
    payloads: Mapping[str, bytes]
    """By MessageId, in the order of sending."""
    sender: FailoverSender
    accepted: dict[str, bytes] = field(default_factory=dict)
    diverted: int = 0
    failed: int = 0
    trouble: str = ""

    def part(self, begin: float, end: float) -> Sequence[str]:
        """MessageIds."""
        number = len(self.payloads)
        return list(self.payloads)[round(begin * number) : round(end * number)]

    async def send(self, part: Sequence[str], retry_seconds: float) -> None:
        payloads = [self.payloads[name] for name in part]
        async for sent in self.sender.send_all(payloads, timeout_seconds=SEND_SECONDS, retry_seconds=retry_seconds):
            if sent.result is not None:
                self.accepted[part[sent.position]] = payloads[sent.position]
                self.diverted += sent.result.where is SentTo.BACKLOG
                continue
            self.failed += 1
            self.trouble = self.trouble or (sent.error.message if sent.error else "")


BEFORE, AFTER = 0.25, 0.75
"""Shares of the messages that are sent before the outage begins, and before it has ended."""


@dataclass(slots=True)
class _Rehearsal:
    sides: Sides
    request: DrillRequest
    plan: DrillPlan
    observer: Observer
    stop: asyncio.Event
    began: float = 0.0
    ended: float = 0.0

    async def play(self) -> tuple[DrilledEntity, ...]:
        pair, watch = self._pair(), _Watch(self.observer)
        assert self.sides.topologies is not None  # noqa: S101 - `drill` has asked
        outage = self.request.outage or _Disabled(self.sides.topologies[0])
        async with (
            self._again(pair) as sides,
            await PairedNamespaces.open(pair, PairingContext.over(sides, watch)) as pairing,
        ):
            runs = [self._run(entity, *both, pairing) for entity, both in self.plan.entities.items()]
            await self._send_through(outage, runs, watch)
        drained = time.monotonic()
        async with self._again(pair) as sides:
            result = await drain(sides, DrainRequest(), observer=watch, stop=self.stop)
        left = "" if result.confirmed_empty else result.closing
        arrived = await asyncio.gather(*map(self._arrived, runs))
        return tuple(
            self._judged(run, found, outage.name, watch, drained, left)
            for run, found in zip(runs, arrived, strict=True)
        )

    def _pair(self) -> Pair:
        """The pair as it is, but for the backlog queues, whose paths follow from the primary's name."""
        pair, number = self.sides.pair, len(self.plan.queues)
        options = replace(pair.options, backlog_queue_count=number, enable_syphon=False, create_missing=False)
        return replace(pair, primary=replace(pair.primary, label=label_of(self.plan.run)), options=options)

    @asynccontextmanager
    async def _again(self, pair: Pair) -> AsyncIterator[Sides]:
        """Connections of their own: a pairing closes those that it has used."""
        assert self.sides.reopen is not None  # noqa: S101 - `drill` has asked
        async with self.sides.reopen() as sides:
            yield replace(sides, pair=pair)

    def _run(self, entity: str, shadow: Shadow, mailbox: Shadow, pairing: PairedNamespaces) -> _Sent:
        label, settings = label_of(self.plan.run), shadow.settings
        payloads = {
            (name := f"{label}-{number:06d}"): sample(
                number,
                name,
                f"{label}-{number % SESSIONS}" if mailbox.settings.requires_session else None,
                more={DRILL: self.plan.run},
                expires=settings.default_message_time_to_live_seconds is not None,
            )
            for number in range(self.plan.messages)
        }
        sender = pairing.sender(shadow.path, partitioned=settings.enable_partitioning or None)
        return _Sent(entity, shadow, mailbox, payloads, sender)

    async def _send_through(self, outage: ShadowOutage, runs: Sequence[_Sent], watch: _Watch) -> None:
        options, paths = self.sides.pair.options, [run.shadow.path for run in runs]
        patience = options.failover_interval_seconds + GRACE_SECONDS
        # Where nothing is to be diverted, nobody waits for it in vain.
        short = options.failover_interval_seconds + options.ping_interval_seconds
        await asyncio.gather(*(run.send(run.part(0, BEFORE), patience) for run in runs))
        await outage.begin(paths)
        self.began = time.monotonic()
        during = [asyncio.create_task(run.send(run.part(BEFORE, AFTER), patience + GRACE_SECONDS)) for run in runs]
        try:
            try:
                await asyncio.wait(during, timeout=patience if self.request.expects is Reaction.DIVERTED else short)
            finally:
                await outage.end(paths)  # also when stopped: what is in an outage cannot be looked into and removed
            self.ended = time.monotonic()
            await asyncio.gather(*during)
        finally:
            await end(*during)
        seconds = options.ping_interval_seconds + GRACE_SECONDS
        returning = watch.all_back({run.shadow.path for run in runs if run.diverted})
        await with_timeout(seconds, returning, what="The failback of the senders")
        await asyncio.gather(*(run.send(run.part(AFTER, 1), patience) for run in runs))

    async def _arrived(self, run: _Sent) -> list[Received]:
        """What came, without what the sender has sent besides: pings, and messages whose failure was uncertain."""
        expected: dict[str | None, int] = {None: len(run.accepted)}
        if run.mailbox.settings.requires_session:
            every = dict.fromkeys(map(session_of, run.payloads.values()), 0)
            expected = {**every, **Counter(map(session_of, run.accepted.values()))}
        found = await receive_all(self.sides.primary, run.mailbox.path, expected, PATIENCE_SECONDS)
        refused = run.payloads.keys() - run.accepted.keys()
        return [one for one in found if not is_ping(one.payload) and one.message_id not in refused]

    def _judged(
        self, run: _Sent, found: Sequence[Received], outage: str, watch: _Watch, drained: float, left: str
    ) -> DrilledEntity:
        path, expected = run.shadow.path, {key: fingerprint(payload) for key, payload in run.accepted.items()}
        proof, overtaken = compare(path, expected, found), 0
        if proof.out_of_order and not self.sides.pair.options.hold_sessions:
            # Without held sessions those that were sent after the failback overtake the backlog, as documented.
            later = set(run.part(AFTER, 1))
            before = [one for one in found if one.message_id not in later]
            still = compare(path, expected, before).out_of_order
            overtaken = len(proof.out_of_order) - len(still)
            proof = replace(proof, out_of_order=still)
        times = watch.forwarded.get(path, [])
        diverted, back = watch.diverted.get(path), watch.failed_back.get(path)
        return DrilledEntity(
            outage,
            run.entity,
            len(run.payloads),
            run.diverted,
            run.failed,
            None if diverted is None else diverted - self.began,
            None if back is None else max(0.0, back - self.ended),
            times[0] - drained if times else None,
            len(times) / max(times[-1] - drained, 0.001) if times else None,
            overtaken,
            self.request.expects,
            proof,
            run.trouble or ("" if proof.holds else left),
        )


@dataclass(frozen=True, slots=True)
class _Disabled:
    """The outage by management: senders of the shadows get errors, everything else goes on."""

    topology: Topology
    name: str = "send-disabled"

    async def begin(self, paths: Sequence[str], status: EntityStatus = EntityStatus.SEND_DISABLED) -> None:
        for path in paths:
            await self.topology.update(path, {"status": status})

    async def end(self, paths: Sequence[str]) -> None:
        await self.begin(paths, EntityStatus.ACTIVE)


def _with_history(folder: Path, done: Drilled) -> Drilled:
    """The result with what the history has of the pair's earlier drills; its own lines are added.

    Raises:
        SbpairError: it cannot be written. UsageError: a line of it is none.
    """
    path = folder / f"{quote(done.pair, safe=' ')}.drills.jsonl"
    names, at = {one.entity for one in done.entities}, iso_time(done.at)
    try:
        make_private_folder(folder)
        with open_private(path, "a+b") as file:
            file.seek(0)
            earlier = [from_plain(DrillLine, json.loads(line), str(path)) for line in file.read().splitlines()]
            for one in done.entities:
                plain = {**to_plain(one), "at": at}
                line = {each.name: plain[each.name] for each in fields(DrillLine)}
                file.write(json_text(line).encode() + b"\n")
    except OSError as error:
        raise unwritable(path, error) from error
    except ValueError as error:
        raise UsageError(f"{path} is no history of drills: {error}. The drill itself has ended.") from error
    same = tuple(line for line in earlier if line.entity in names)
    return replace(done, earlier=same[-MOST_EARLIER * max(1, len(names)) :])
