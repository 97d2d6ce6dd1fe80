"""The verbs on single entities of any namespace: list, show, create, delete, enable and disable.

Each takes the `Ends` of the namespace (`sbpair.open_ends(access)`) and needs Manage.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InterruptedWorkError,
    SbpairError,
    ServiceError,
    UsageError,
)
from sbpair.core.inspection.contents import FoundNamespace
from sbpair.core.inspection.entity import (
    STATUS_MEANS,
    Changed,
    EntityAction,
    ListedEntities,
    ShownEntity,
    has_status,
    listed,
    rule_text,
    settings_text,
    shown,
)
from sbpair.core.inspection.plan import protecting_pattern, user_of
from sbpair.core.inspection.snapshot import describe_counts
from sbpair.core.names import Names, name_matches, same_name
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.core.words import listed as listed_names
from sbpair.operations.log import OperationsLog
from sbpair.ports import Ends, Observer, Topology
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import LoopClock
from sbpair.service import EntityStatus

__all__ = [
    "CreateEntityRequest",
    "CreateRuleRequest",
    "DeleteEntityRequest",
    "DeleteRuleRequest",
    "FoundNamespace",
    "ListEntitiesRequest",
    "SetStatusRequest",
    "ShowEntityRequest",
    "create_entity",
    "create_rule",
    "delete_entity",
    "delete_rule",
    "list_entities",
    "read_namespace",
    "set_status",
    "show_entity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityChange:
    """What every change is asked."""

    path: str
    """Of the entity; of a subscription `topic/Subscriptions/name`."""
    dry_run: bool = False
    log: Path | None = None
    """Operations log, to which a line is appended; None: nothing is recorded."""
    namespace: str = ""
    """What sentences call the namespace; by default its label, and its host where that is another."""

    def place(self, ends: Ends) -> str:
        return f"{self.path} on {self.namespace or shown_name(ends.source_access)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEntityRequest(EntityChange):
    """A queue, topic or subscription to create."""

    kind: EntityKind
    settings: EntitySettings = field(default_factory=EntitySettings)
    """By default the service's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRuleRequest(EntityChange):
    """A rule to add to the subscription `path`."""

    rule: RuleFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteEntityRequest(EntityChange):
    """A queue, topic with its subscriptions, or subscription to delete."""

    with_messages: bool = False
    """Also if it holds messages, which are lost."""
    pairs: tuple[Pair, ...] = ()
    """The configured pairs: what they protect or count on is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRuleRequest(EntityChange):
    """A rule to take from the subscription `path`."""

    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatusRequest(EntityChange):
    """What an entity may do from now on."""

    status: EntityStatus


@dataclass(frozen=True, slots=True)
class ListEntitiesRequest:
    """Which entities are listed."""

    pattern: str = "*"
    """Shell pattern of paths; case does not matter."""
    kind: EntityKind | None = None
    with_messages: bool = False
    """Only what holds messages."""

    def takes(self, facts: EntityFacts) -> bool:
        return (
            name_matches(facts.path, self.pattern)
            and self.kind in (None, facts.kind)
            and bool(facts.counts.total or not self.with_messages)
        )


@dataclass(frozen=True, slots=True)
class ShowEntityRequest:
    path: str
    rule: str | None = None
    """The only rule to show; None: all."""
    namespace: str = ""
    """What sentences call the namespace; by default its label, and its host where that is another."""


async def list_entities(
    ends: Ends, request: ListEntitiesRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> ListedEntities:
    """The queues, topics and subscriptions of a namespace with status and counts, by path. Reads only.

    Raises:
        ServiceError: they could not be read.
    """
    entities = await run_until(stop or asyncio.Event(), topology_of(ends).entities(rules=False))
    found = [facts for facts in entities if request.takes(facts)]
    found.sort(key=lambda facts: facts.path.lower())
    return ListedEntities(shown_name(ends.source_access), tuple(map(listed, found)))


async def read_namespace(
    ends: Ends, request: ListEntitiesRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> FoundNamespace:
    """The queues, topics and subscriptions of a namespace with settings, rules and counts, by path. Reads only.

    Raises:
        ServiceError: they could not be read.
    """
    topology, stop, now = topology_of(ends), stop or asyncio.Event(), LoopClock().now().timestamp()
    facts = await run_until(stop, topology.namespace())
    found = await run_until(stop, topology.entities(rules=True))
    kept = [one for one in found if request.takes(one)]
    return FoundNamespace.of(ends.source_access.label, facts.tier, now, kept)


async def show_entity(
    ends: Ends, request: ShowEntityRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> ShownEntity:
    """Settings, counts and rules of one entity. Reads only.

    Raises:
        EntityNotFoundError: there is no such entity or rule.
        ServiceError: it could not be read.
    """
    facts = await run_until(stop or asyncio.Event(), existing(ends, request.path))
    rules = tuple(rule for rule in facts.rules if request.rule is None or same_name(rule.name, request.rule))
    if request.rule is not None and not rules:
        place = f"{request.path} on {request.namespace or shown_name(ends.source_access)}"
        raise EntityNotFoundError(f"{place} has no rule {request.rule}.", entity=request.path)
    return shown(shown_name(ends.source_access), facts, rules)


async def create_entity(
    ends: Ends, request: CreateEntityRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Changed:
    """Create a queue, topic or subscription; what exists already is left as it is, and refused.

    Raises:
        EntityExistsError: there is one.
        ServiceError: the namespace refused it.
    """
    place, topology = request.place(ends), topology_of(ends)
    found = await run_until(stop or asyncio.Event(), topology.entity(request.path))
    if found is not None:
        raise EntityExistsError(
            f"There is a {found.kind.value} {place} already. Nothing was changed.",
            hint=f"See how it is set up: sbpair entity show {ends.source_access.label}:{request.path}",
            entity=request.path,
        )
    detail = f"{request.kind.value}; {settings_text(request.kind, request.settings)}"
    change = _changed(ends, request, EntityAction.CREATE, detail, place, "created", doing=f"Create {place} ({detail})")
    return await carry_out(
        ends, request, change, lambda: topology.create(request.kind, request.path, request.settings), stop
    )


async def create_rule(
    ends: Ends, request: CreateRuleRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Changed:
    """Add a rule to a subscription.

    Raises:
        EntityExistsError: it has a rule of that name.
        EntityNotFoundError: there is no such subscription.
        ServiceError: the namespace refused it.
    """
    place, rule = request.place(ends), request.rule
    facts = await run_until(stop or asyncio.Event(), existing(ends, request.path))
    names = [known.name for known in facts.rules]
    if rule.name in Names(names):
        raise EntityExistsError(f"{place} has a rule {rule.name} already. Nothing was changed.", entity=request.path)
    detail = f"rule; {rule_text(rule)}" + (f"; {rule.action}" if rule.action else "")
    if "$Default" in names:
        detail += "; in addition to $Default, which matches every message"
    subject = f"Rule {rule.name} of {place}"
    change = _changed(
        ends,
        request,
        EntityAction.CREATE,
        detail,
        subject,
        "created",
        doing=f"Create rule {rule.name} of {place} ({detail})",
        entity=f"{request.path}/Rules/{rule.name}",
    )
    return await carry_out(ends, request, change, lambda: topology_of(ends).create_rule(request.path, rule), stop)


async def set_status(
    ends: Ends, request: SetStatusRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Changed:
    """Enable or disable an entity for senders, receivers or both. Messages in it stay.

    Raises:
        UsageError: its kind cannot have that status.
        EntityNotFoundError: there is no such entity.
        ServiceError: the namespace refused it.
    """
    place, status = request.place(ends), request.status
    facts = await run_until(stop or asyncio.Event(), existing(ends, request.path))
    if not has_status(facts.kind, status):
        raise UsageError(
            f"A {facts.kind.value} cannot be {status.value}. Nothing was changed.",
            hint="Topics take Active, Disabled and SendDisabled; subscriptions Active, Disabled and ReceiveDisabled.",
        )
    before, means = facts.settings.status, f"{status.value}: {STATUS_MEANS[status]}"
    sentence = f"{place} would become {means}. Nothing was changed." if request.dry_run else f"{place} is {means}."
    if before is status:
        sentence = f"{place} is {status.value} already. Nothing was changed."
    change = Changed(
        shown_name(ends.source_access),
        request.path,
        EntityAction.SET_STATUS,
        request.dry_run,
        before is not status,
        f"{before.value} -> {status.value}",
        sentence,
        f"Set {place} to {means}",
    )
    return await carry_out(
        ends, request, change, lambda: topology_of(ends).update(request.path, {"status": status}), stop
    )


async def delete_entity(
    ends: Ends, request: DeleteEntityRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Changed:
    """Delete a queue, a topic with its subscriptions, or a subscription.

    What holds messages is refused without `with_messages`: it is counted and browsed first (Listen), dead letters and
    the subscriptions of a topic too. What the configuration protects, and backlog queues that a configured pair counts
    on, are refused always.

    Raises:
        UsageError: it holds messages, cannot be browsed, or is protected. Nothing was deleted.
        EntityNotFoundError: there is no such entity.
        ServiceError: the namespace refused it.
    """
    place = request.place(ends)
    _refuse_protected(ends, request, place)
    facts, holding, keep, forwarding = await run_until(stop or asyncio.Event(), _examined(ends, request))
    what = f"{facts.kind.value} {place}"
    if holding is not None and not request.with_messages:
        raise UsageError(
            f"The {what} holds {holding}. Nothing was deleted.",
            hint=(f"Keep them first: {keep}; or delete" if keep else "Delete") + " them too with --with-messages.",
        )
    detail = f"{facts.kind.value} with {holding}" if holding is not None else f"{facts.kind.value} without messages"
    if forwarding:
        detail += f"; what forwards to it fails: {listed_names(forwarding)}"
    doing = f"Delete the {what} permanently ({detail})"
    why = detail if request.dry_run else ""
    change = _changed(ends, request, EntityAction.DELETE, detail, f"The {what}", "deleted", doing=doing, why=why)
    return await carry_out(ends, request, change, lambda: topology_of(ends).delete(request.path), stop)


async def delete_rule(
    ends: Ends, request: DeleteRuleRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Changed:
    """Take a rule from a subscription.

    Raises:
        EntityNotFoundError: there is no such rule.
        ServiceError: the namespace refused it.
    """
    place, rule = request.place(ends), request.rule
    facts = await run_until(stop or asyncio.Event(), existing(ends, request.path))
    names = Names(known.name for known in facts.rules)
    if rule not in names:
        raise EntityNotFoundError(f"{place} has no rule {rule}. Nothing was deleted.", entity=request.path)
    left = "its last rule: it will get no messages" if len(names) == 1 else f"{counted(len(names) - 1, 'rule')} left"
    change = _changed(
        ends,
        request,
        EntityAction.DELETE,
        f"rule; {left}",
        f"Rule {rule} of {place}",
        "deleted",
        doing=f"Delete rule {rule} of {place} ({left})",
        entity=f"{request.path}/Rules/{rule}",
        why=left,
    )
    return await carry_out(ends, request, change, lambda: topology_of(ends).delete_rule(request.path, rule), stop)


def topology_of(ends: Ends) -> Topology:
    if ends.topology is None:
        raise ValueError("these ends have no topology: open them with sbpair.open_ends")
    return ends.topology


async def existing(ends: Ends, path: str) -> EntityFacts:
    """The entity of that path.

    Raises:
        EntityNotFoundError: there is none.
    """
    found = await topology_of(ends).entity(path)
    if found is None:
        raise EntityNotFoundError(
            f"There is no entity {path} on {shown_name(ends.source_access)}.",
            hint=f"List them: sbpair entity list --namespace {ends.source_access.label}",
            entity=path,
        )
    return found


def _changed(
    ends: Ends,
    request: EntityChange,
    action: EntityAction,
    detail: str,
    subject: str,
    done: str,
    *,
    doing: str,
    entity: str = "",
    why: str | None = None,
) -> Changed:
    """`why`: what the sentence says in brackets; by default the detail."""
    said = detail if why is None else why
    said = f"{done} ({said})" if said else done
    sentence = f"{subject} would be {said}. Nothing was changed." if request.dry_run else f"{subject} is {said}."
    name = shown_name(ends.source_access)
    return Changed(name, entity or request.path, action, request.dry_run, True, detail, sentence, doing)


async def carry_out(
    ends: Ends, request: EntityChange, change: Changed, work: Callable[[], Awaitable[None]], stop: asyncio.Event | None
) -> Changed:
    """Make the change, unless it is a dry run or nothing is to do, and write it into the operations log. Once begun it
    is finished, whatever `stop` says: half way nobody would know whether it was made.

    Raises:
        InterruptedWorkError: `stop` was set before.
    """
    if request.dry_run or not change.changed:
        return change
    if stop is not None and stop.is_set():
        raise InterruptedWorkError("Stopped before the end. Nothing was changed.")
    action = change.action.value
    what = (f"entity {action}", ends.source_access, action, change.entity, change.detail)
    with OperationsLog(request.log) as log:
        try:
            await work()
        except SbpairError as error:
            log.changed(*what, error.code)
            raise
        try:
            log.changed(*what)
        except SbpairError as error:
            raise error.with_state(change.sentence) from error.__cause__
    return change


def _refuse_protected(ends: Ends, request: DeleteEntityRequest, place: str) -> None:
    """What the configuration guards is not deleted.

    Raises:
        UsageError: it is guarded.
    """
    host = ends.source_access.host
    for pair in request.pairs:
        if host in (pair.primary.host, pair.secondary.host):
            pattern = protecting_pattern(request.path, pair.protected)
            if pattern is not None:
                raise UsageError(
                    f"{place} is protected by the pattern {pattern!r} of pair {pair.name!r}. Nothing was deleted.",
                    hint="Take the pattern out of `protected` in the configuration.",
                )
    if (user := user_of(request.path, host, request.pairs)) is not None:
        raise UsageError(
            f"{place} is a backlog queue that pair {user!r} counts on. Nothing was deleted.",
            hint=f"To delete extra queues: sbpair cleanup {user}",
        )


async def _examined(ends: Ends, request: DeleteEntityRequest) -> tuple[EntityFacts, str | None, str, list[str]]:
    """The entity, what it holds as far as counts and a browse tell (None: nothing), the commands that keep that, and
    what forwards to it."""
    facts = await existing(ends, request.path)
    everything = await topology_of(ends).entities(rules=False)
    path = request.path
    forwarding = [other.path for other in everything if path in _forwards(other) and not same_name(other.path, path)]
    below = [other for other in everything if other.path.lower().startswith(f"{path}/subscriptions/".lower())]
    held = [entity for entity in (facts, *below) if entity.counts.total]
    if held:
        named = [
            describe_counts(entity.counts) if entity is facts else f"{describe_counts(entity.counts)} in {entity.path}"
            for entity in held
        ]
        return facts, listed_names(named), _keeping(ends, held), forwarding
    mailboxes = [entity for entity in (facts, *below) if entity.kind is not EntityKind.TOPIC]
    seen = [] if request.with_messages else await _browsed(ends, mailboxes)
    uncounted = f"messages that the counts do not show, in {listed_names(seen)}" if seen else None
    return facts, uncounted, "sbpair purge ENTITY --archive DIR", forwarding


def _keeping(ends: Ends, held: Sequence[EntityFacts]) -> str:
    """The commands that take what is in an entity, or in several of a topic, into files; none where only messages on
    their way to another entity are there, which nobody receives."""
    name = shlex.quote(f"{ends.source_access.label}:{held[0].path}") if len(held) == 1 else "ENTITY"
    letters = any(entity.counts.dead_letter for entity in held)
    others = any(entity.counts.active or entity.counts.scheduled for entity in held)
    commands = [command for command, there in (("purge", others), ("dlq purge", letters)) if there]
    return ", ".join(f"sbpair {command} {name} --archive DIR" for command in commands)


def _forwards(facts: EntityFacts) -> Names:
    settings = facts.settings
    return Names(path for path in (settings.forward_to, settings.forward_dead_lettered_messages_to) if path)


async def _browsed(ends: Ends, mailboxes: Sequence[EntityFacts]) -> list[str]:
    """The queues and subscriptions in which a browse finds something.

    Raises:
        UsageError: one cannot be browsed, so that nobody knows.
    """
    found = []
    for mailbox in mailboxes:
        try:
            if not (await peeking(ends.source)(mailbox.path)).empty:
                found.append(mailbox.path)
        except ServiceError as error:
            raise UsageError(
                f"{mailbox.path} counts no message, but it could not be browsed: {error.message} Nothing was deleted.",
                hint="Set it to Active, or delete it whatever it holds: --with-messages",
            ) from error
    return found
