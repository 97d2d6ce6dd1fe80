"""An evacuation: what is asked, what both namespaces hold, what was planned, and what was done."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sbpair.core.entities import EntityFacts
from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.inspection.contents import (
    NOT_ASKED_FOR,
    PLAN_VERSION,
    SET_ACTIVE,
    Action,
    DeadLettersTo,
    EntityStep,
    LeftThere,
    MailboxMove,
    as_planned,
    changed_since,
    held_for,
    plan_entities,
    plan_moves,
)
from sbpair.core.inspection.snapshot import Peeked
from sbpair.core.names import DEAD_LETTER_SUFFIX, ByName, by_path, name_matches
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, column, published, rounded
from sbpair.core.words import counted, listed
from sbpair.service import EntityStatus, Tier

NOTHING_CHANGED = "Nothing was changed."


@dataclass(frozen=True, slots=True)
class EvacuationScope:
    """What is evacuated from the namespace `source` to `target`, both by their configured names."""

    source: str
    target: str
    source_shown: str
    target_shown: str
    """Both as sentences name them: with the host where the name does not tell it."""
    without: tuple[str, ...] = ()
    """Patterns of entities that are left out."""
    dead_letters: DeadLettersTo = DeadLettersTo.HOLD
    despite_duplicate_detection: bool = False
    """Queues that were there before may drop a message whose MessageId they got from elsewhere."""
    follows: bool = False
    """Messages come while they are moved."""

    def includes(self, path: str) -> bool:
        """Whether no pattern leaves this entity out."""
        return not any(name_matches(path, pattern) for pattern in self.without)


@dataclass(frozen=True, slots=True)
class BothNamespaces:
    """Both namespaces at one moment, and what a browse of the first one shows, by path."""

    source: tuple[EntityFacts, ...]
    target: tuple[EntityFacts, ...]
    target_tier: Tier | None
    browsed: ByName[Peeked]
    unread: Mapping[str, str]
    """Entities that could not be browsed, and why."""

    @property
    def source_empty(self) -> bool:
        """Whether every entity of the first one was counted and browsed, and nothing was found."""
        counts = all(facts.counts.total == 0 for facts in self.source)
        return counts and not self.unread and all(peeked.empty for peeked in self.browsed.values())

    def moves(
        self, scope: EvacuationScope, steps: Sequence[EntityStep]
    ) -> tuple[tuple[MailboxMove, ...], tuple[LeftThere, ...]]:
        """What is to be moved from where to where at this moment, and what is not. What only a browse has shown is
        moved, too."""
        found = [_as_browsed(facts, self.browsed.get(facts.path)) for facts in self.source]
        moves, left = plan_moves(found, by_path(steps), scope.source, scope.dead_letters)
        named = {there.entity for there in left}
        unread = tuple(
            LeftThere(path, 0, why if scope.includes(path) else NOT_ASKED_FOR)
            for path, why in self.unread.items()
            if path not in named
        )
        return moves, (*left, *unread)


def _as_browsed(facts: EntityFacts, seen: Peeked | None) -> EntityFacts:
    """The entity with at least one message where a browse saw some and the counts did not."""
    if seen is None:
        return facts
    counts = facts.counts
    active = counts.active or int(seen.active and not counts.scheduled)
    dead_letter = max(counts.dead_letter, int(seen.dead_letter))
    return replace(facts, counts=replace(counts, active=active, dead_letter=dead_letter))


@dataclass(frozen=True, slots=True)
class EvacuationPlan:
    """What a dry run has found: a second call creates these entities and moves what they hold."""

    scope: EvacuationScope
    seen: BothNamespaces
    steps: tuple[EntityStep, ...]
    moves: tuple[MailboxMove, ...]
    left: tuple[LeftThere, ...]

    @classmethod
    def of(cls, scope: EvacuationScope, seen: BothNamespaces) -> "EvacuationPlan":
        steps = plan_entities(
            [facts for facts in seen.source if scope.includes(facts.path)],
            seen.target,
            seen.target_tier,
            despite_duplicate_detection=scope.despite_duplicate_detection,
            follows=scope.follows,
        )
        return cls(scope, seen, steps, *seen.moves(scope, steps))

    def refuse_conflicts(self) -> None:
        """Stop before the first change where an entity cannot take the messages of its name.

        Raises:
            UsageError: names each of them, with the reason.
        """
        scope, conflicts = self.scope, [step for step in self.steps if step.action is Action.CONFLICT]
        if conflicts:
            reasons = " ".join(f"{step.path}: {'; '.join(step.notes)}." for step in conflicts)
            raise UsageError(
                f"{counted(len(conflicts), 'entity', 'entities')} of {scope.source_shown} cannot go to "
                f"{scope.target_shown}. {reasons} {NOTHING_CHANGED}",
                hint=f"Change or delete what is on {scope.target_shown}, or leave one out: --except "
                f"{shlex.quote(conflicts[0].path)}",
            )

    def refuse_stale(self, written: "WrittenPlan") -> None:
        """Refuse a plan file whose steps are not those that would be done now.

        Raises:
            StalePlanError: names the entities that have changed.
        """
        if changed := changed_since(written.entities, self.steps):
            raise StalePlanError(
                f"{written.name} is stale: something else would be done now about {listed(changed)}. {NOTHING_CHANGED}"
            )

    def to_file(self, source_host: str, target_host: str) -> dict[str, Any]:
        """The plan as a file keeps it. It says nothing of messages, which come and go."""
        return {
            "format_version": PLAN_VERSION,
            "from": source_host,
            "to": target_host,
            "except": list(self.scope.without),
            "dead_letters": self.scope.dead_letters.value,
            "despite_duplicate_detection": self.scope.despite_duplicate_detection,
            "entities": as_planned(self.steps),
        }

    @property
    def creates(self) -> int:
        """Entities that are created, or finished after an earlier run."""
        return sum(step.action in (Action.CREATE, Action.FINISH) for step in self.steps)

    @property
    def messages(self) -> int:
        """How many messages the service counts that are to be moved."""
        return sum(move.counted for move in self.moves)


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A plan out of a file: what it was made for, and its entities, which are compared with what would be done now."""

    name: str
    """Of the file, for errors."""
    without: tuple[str, ...]
    dead_letters: DeadLettersTo
    despite_duplicate_detection: bool
    entities: tuple[Mapping[str, Any], ...]

    @classmethod
    def parse(cls, name: str, plans: Sequence[Any], source_host: str, target_host: str) -> "WrittenPlan":
        """The only one of these plans.

        Raises:
            UsageError: it is none, one of another release, or one for other namespaces.
        """
        try:
            (plan,) = plans
            version, hosts = plan["format_version"], (plan["from"].lower(), plan["to"].lower())
            written = cls(
                name,
                tuple(map(str, plan["except"])),
                DeadLettersTo(plan["dead_letters"]),
                plan["despite_duplicate_detection"] is True,
                tuple(dict(entity) for entity in plan["entities"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{name} is not a plan that evacuate wrote. {NOTHING_CHANGED}") from error
        if version != PLAN_VERSION:
            raise UsageError(
                f"{name} is a plan of another release of sbpair. {NOTHING_CHANGED}", hint=StalePlanError.hint
            )
        if hosts != (source_host.lower(), target_host.lower()):
            raise UsageError(f"{name} is a plan from {hosts[0]} to {hosts[1]}. {NOTHING_CHANGED}")
        return written


# What was done, and the sentences about it.


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the second namespace lags behind in one queue or subscription."""

    entity: str = field(metadata=column("Entity"))
    messages: int = field(metadata=column("Waiting", counts=True))
    """Active and deferred ones that the first namespace counts."""
    age_seconds: float | None = field(metadata={**column("Age (s)"), **rounded(1)})
    """How long the oldest active message has waited there; 0: none does. None: it cannot be browsed."""
    there_now: int | None = field(metadata=column("There now", counts=True))
    """What the second one counts; None: it has no such entity."""
    status: EntityStatus = field(metadata=column("Status"))
    """Of the entity that is left."""
    followed: bool = field(metadata=column("Followed"))
    """False: its messages go when the first namespace is closed."""


@dataclass(frozen=True, slots=True)
class LineRow:
    """All of an entity, or of its dead letters, in one line for a script; a screen shows some of its columns."""

    entity: str = field(metadata=column("Entity"))
    kind: str | None = field(default=None, metadata=column("Kind"))
    action: str | None = field(default=None, metadata=column("There"))
    to: str | None = field(default=None, metadata=column("To"))
    counted: int | None = field(default=None, metadata=column("Counted", counts=True))
    moved: int | None = field(default=None, metadata=column("Moved", counts=True))
    accepted: int | None = field(default=None, metadata=column("Accepted", counts=True))
    there_now: int | None = field(default=None, metadata=column("There now", counts=True))
    left: int | None = field(default=None, metadata=column("Left", counts=True))
    note: str = field(default="", metadata=column("Note"))


@dataclass(frozen=True, slots=True)
class EvacuateResult:
    """What was created and moved, or would be in a dry run, as `evacuate -o json` prints it."""

    plan: EvacuationPlan = field(metadata=HIDDEN)
    dry_run: bool = False
    moves: tuple[MailboxMove, ...] = ()
    left: tuple[LeftThere, ...] = ()
    """Messages that are, or would be, still there, and why."""
    held: tuple[str, ...] = ()
    """Queues on the second namespace that hold messages for somebody to look into, of earlier runs too."""
    source_empty: bool = False
    """Every queue, topic and subscription was counted and browsed after the last message, and nothing was found."""
    ledger: Path | None = None
    stopped: bool = field(default=False, metadata=HIDDEN)
    """The run was ended before it was through."""
    closed: bool = False
    """The entities of the first namespace that were to be left take nothing from senders any more."""
    lag: tuple[Lag, ...] = ()
    """How far the second namespace lags behind, where that was asked for or a run that follows was ended."""
    only_lag: bool = field(default=False, metadata=HIDDEN)

    @published
    def from_namespace(self) -> str:
        return self.plan.scope.source

    @published
    def to_namespace(self) -> str:
        return self.plan.scope.target

    @published
    def entities(self) -> tuple[EntityStep, ...]:
        return self.plan.steps

    @classmethod
    def planned(cls, plan: EvacuationPlan, lag: tuple[Lag, ...] | None = None) -> "EvacuateResult":
        """The result of a dry run; with `lag`, nothing else was asked for."""
        moves = tuple(move for move in plan.moves if move.counted)
        return cls(
            plan,
            dry_run=True,
            moves=moves,
            left=plan.left,
            held=tuple(sorted({move.to for move in moves if move.held})),
            source_empty=lag is None and plan.seen.source_empty,
            closed=is_closed(one.status for one in lag or () if one.followed),
            lag=lag or (),
            only_lag=lag is not None,
        )

    def with_followed(self, before: Mapping[str, int], accepted: Mapping[str, int]) -> "EvacuateResult":
        """With all that the target has accepted, by queue in lower case; `before`: in earlier runs."""
        there = ByName((one.entity, one.there_now) for one in self.lag)
        known = ByName((move.mailbox, move) for move in self.moves)
        moves = []
        for planned in self.plan.moves:
            mailbox = planned.mailbox.lower()
            total = accepted.get(mailbox, 0)
            if mailbox not in known and not total:
                continue
            move = known.pop(mailbox, None) or replace(planned, there_now=there.get(planned.to))
            moves.append(replace(move, moved=total - before.get(mailbox, 0), accepted=total))
        return replace(self, moves=(*moves, *known.values()))

    @property
    def only_left_out(self) -> bool:
        """Whether nothing is left but what was not asked for."""
        return bool(self.left) and all(there.reason == NOT_ASKED_FOR for there in self.left)

    @property
    def conflicts(self) -> tuple[EntityStep, ...]:
        """Entities that cannot take the messages of their name: while there are any, nothing is moved."""
        return tuple(step for step in self.entities if step.action is Action.CONFLICT)

    @property
    def exit(self) -> Exit:
        """Findings of a dry run that would do anything; partial if messages are left that were asked for."""
        if self.only_lag:
            return Exit.OK
        if self.dry_run:
            nothing = self.source_empty and all(step.action is Action.KEEP for step in self.entities)
            return Exit.OK if nothing else Exit.FINDINGS
        return Exit.OK if self.source_empty or self.only_left_out else Exit.PARTIAL

    def notes(self) -> Iterator[str]:
        """What is in the way, why messages are left, and what a person has to see to."""
        target = self.plan.scope.target_shown
        if self.only_lag:
            return
        if self.dry_run and self.conflicts:
            names = listed(step.path for step in self.conflicts)
            yield f"Blocked by {names}. Change that, or leave them out with --except. Nothing moves until then."
        for there in self.left:
            if not there.messages:
                yield f"{there.entity}: {there.reason}."
                continue
            would = "would stay" if self.dry_run else "stay" if there.messages != 1 else "stays"
            yield f"{counted(there.messages, 'message')} of {there.entity} {would}: {there.reason}."
        closed = sorted({there.entity for there in self.left if there.reason.endswith(SET_ACTIVE)})
        if closed:
            path = closed[0].removesuffix(f"/{DEAD_LETTER_SUFFIX}")
            activate = shlex.join(["sbpair", "entity", "set-status", f"{self.from_namespace}:{path}", "Active"])
            yield f"So that such messages are moved as well: {activate}"
        if self.held:
            yield (
                f"{'Would be held' if self.dry_run else 'Held'} on {target}, for somebody to look into: "
                f"{listed(self.held)}. List them: sbpair entity list 'evacuated/*' --namespace {self.to_namespace}"
            )
        scope = self.plan.scope
        ours = ((path, held_for(path, scope.source)) for path in self.held)
        for path, to in [(path, to) for path, to in ours if to is not None][:1]:
            places = [f"{self.to_namespace}:{one}" for one in (path, to)]
            command = shlex.join(["sbpair", "move", *places, "--delete-empty"])
            yield f"To deliver messages held for a subscription to it alone: {command}"
        if any(step.action is Action.CREATE for step in self.entities):
            yield (
                f"Not copied to {target}: shared access rules of the namespace and of its entities, role "
                "assignments, network rules. Applications need credentials for it."
            )
        if self.stopped and self.plan.scope.follows and not self.closed:
            yield (
                f"The way back is open: once {target} holds none of these messages, stop its consumers and start those "
                f"of {self.plan.scope.source_shown}. What was moved is not sent back."
            )
        for move in self.moves:
            if move.there_now is not None and move.there_now < move.accepted:
                yield (
                    f"{move.to} counts {move.there_now:,} of {move.accepted:,} messages that it accepted: consumers "
                    "have taken the others, or it has sent them on."
                )

    def closing(self, go_on: str) -> str:
        """The last sentence. `go_on`: the command that goes on with what is left."""
        source, target = self.plan.scope.source_shown, self.plan.scope.target_shown
        made = counted(self.plan.creates, "entity", "entities")
        waiting = counted(sum(one.messages for one in self.lag), "message")
        if self.only_lag:
            ages = [one.age_seconds for one in self.lag if one.followed and one.age_seconds is not None]
            oldest = f", in queues for up to {max(ages):,.1f} s" if any(ages) else ""
            state = "is closed to senders" if self.closed else "accepts messages"
            return f"{source} {state}. {waiting} there, not on {target}{oldest}. {NOTHING_CHANGED}"
        if self.dry_run:
            messages = counted(sum(move.counted for move in self.moves), "message")
            if self.conflicts:
                blocked = counted(len(self.conflicts), "entity", "entities")
                return f"{messages} of {source} cannot be moved: {target} has {blocked} in the way. {NOTHING_CHANGED}"
            return f"Would create {made} on {target} and move {messages} there. {NOTHING_CHANGED} Do it: {go_on}"
        number = sum(move.moved for move in self.moves)
        total = sum(move.accepted for move in self.moves)
        earlier = f" ({total:,} with earlier runs)" if total > number else ""
        if any(step.action is Action.FINISH for step in self.plan.steps):
            made += " (with earlier runs)"
        what = f"Created {made} on {target}; it accepted {counted(number, 'message')}{earlier}."
        if self.source_empty:
            closed = " It is closed to senders, and was counted once more since." if self.closed else ""
            return f"{what} {source} is empty: every queue, topic and subscription was counted and browsed.{closed}"
        if self.stopped and self.plan.scope.follows:
            state = "is closed to senders" if self.closed else "still accepts messages"
            return f"{what} Stopped following. {source} {state}; {waiting} wait there. Go on with: {go_on}"
        if self.stopped:
            return f"{what} Interrupted; what was in flight is settled or released. Go on with: {go_on}"
        if self.only_left_out:
            return f"{what} Only the excluded entities still hold messages on {source}."
        return f"{what} {source} is not empty. Go on with: {go_on}"

    @property
    def step_rows(self) -> Iterator[LineRow]:
        """Entities for a screen, a row for each note."""
        for step in self.entities:
            for note in step.notes or ("",):
                yield LineRow(step.path, action=step.action.value, note=note)

    @property
    def line_rows(self) -> Iterator[LineRow]:
        """All of it for a script: a line for each entity, and one for its dead letters where there are any."""
        lines = {step.path: LineRow(step.path, step.kind.value, step.action.value) for step in self.entities}
        notes = {step.path: list(step.notes) for step in self.entities}
        for move in self.moves:
            line = lines.get(move.mailbox) or LineRow(move.mailbox, "dead letters")
            lines[move.mailbox] = replace(line, **{name: getattr(move, name) for name in _OF_MOVES})
        for there in self.left:
            line = lines.get(there.entity) or LineRow(there.entity)
            # Of what could not be browsed nobody knows how many are left.
            lines[there.entity] = replace(line, left=(line.left or 0) + there.messages or None)
            notes.setdefault(there.entity, []).append(there.reason)
        for path, line in sorted(lines.items()):
            yield replace(line, note="; ".join(notes.get(path, ())))


_OF_MOVES = ("to", "counted", "moved", "accepted", "there_now")


def is_closed(queues: Iterable[EntityStatus]) -> bool:
    """Whether a cut-over has closed all queues with these statuses to senders. It leaves those as they are that are
    disabled."""
    found = set(queues)
    return EntityStatus.SEND_DISABLED in found and EntityStatus.ACTIVE not in found
