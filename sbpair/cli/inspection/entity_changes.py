"""`sbpair entity delete` and `sbpair entity set-status`, and what every change of an entity shares."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import YesOption, go_ahead, go_ahead_by_name
from sbpair.cli.context import load_settings, run_async, stoppable
from sbpair.cli.inspection.entity_shown import EntityArgument, existing, find_entity, with_topology
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityRef, NamespaceOptions, refuse_unnamed
from sbpair.core.entities import EntityFacts, EntityKind, EntityStatus
from sbpair.core.errors import EntityNotFoundError, SbpairError, ServiceError, UsageError
from sbpair.core.inspection.plan import protecting_pattern, user_of
from sbpair.core.inspection.snapshot import describe_counts
from sbpair.core.outcome import Exit
from sbpair.core.words import counted
from sbpair.core.words import listed as listed_names
from sbpair.operations.log import OperationsLog, change_line
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.pairing import Pair
    from sbpair.ports import Topology
    from sbpair.settings import Settings

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
COLUMNS = (Column("action", "Action"), Column("entity", "Entity"), Column("detail", "Detail"))


class Action(StrEnum):
    CREATE = "create"
    DELETE = "delete"
    SET_STATUS = "set-status"


@dataclass(frozen=True, slots=True)
class Changed:
    """What `entity create`, `delete` and `set-status` print with -o json."""

    namespace: str
    entity: str
    action: Action
    dry_run: bool
    changed: bool
    """Something was changed, or would be."""
    detail: str


class Status(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


_STATUS_MEANS = {
    Status.ACTIVE: "takes and gives messages",
    Status.DISABLED: "takes and gives no messages",
    Status.SEND_DISABLED: "takes no messages and answers no browse, but gives those it has",
    Status.RECEIVE_DISABLED: "takes messages, but gives none",
}


@command(output="cli.inspection.entity_changes:Changed")
def set_status(
    options: Options,
    entity: EntityArgument,
    status: Annotated[Status, typer.Argument(help="What it may do from now on.", case_sensitive=False)],
    *,
    on: NamespaceOptions,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> CommandResult:
    """Enable or disable a queue, topic or subscription for senders, receivers or both. Messages in it stay.

    Needs Manage.

    \b
    Examples:
      sbpair entity set-status orders SendDisabled --dry-run
      sbpair entity set-status contoso-weu:news/Subscriptions/audit ReceiveDisabled --yes
    """
    settings = load_settings(options)
    place, rule = find_entity(settings, on, entity)
    if rule is not None:
        raise UsageError(f"{entity!r} is a rule, which has no status. Nothing was changed.")
    if not dry_run:
        refuse_unnamed(options, place, yes=yes)
    facts = with_topology(options, place.access, lambda topology: existing(topology, place))
    if facts.kind is not EntityKind.QUEUE and _refused_by(facts.kind, status):
        raise UsageError(
            f"A {facts.kind.value} cannot be {status.value}. Nothing was changed.",
            hint="Topics take Active, Disabled and SendDisabled; subscriptions Active, Disabled and ReceiveDisabled.",
        )
    now = facts.settings.status.value
    change = Changed(
        place.access.label, place.path, Action.SET_STATUS, dry_run, now != status.value, f"{now} -> {status.value}"
    )
    if now == status.value:
        return told(change, f"{place} is {status.value} already. Nothing was changed.")
    if dry_run:
        return told(change, f"{place} would become {status.value}: it {_STATUS_MEANS[status]}. Nothing was changed.")
    doing = f"Set {place} to {status.value}: it {_STATUS_MEANS[status]}"
    go_ahead(options, doing, yes=yes, state="Nothing was changed.")
    change_it(
        options, place, change, lambda topology: topology.update(place.path, {"status": EntityStatus(status.value)})
    )
    return told(change, f"{place} is {status.value}: it {_STATUS_MEANS[status]}.")


def _refused_by(kind: EntityKind, status: Status) -> bool:
    return status is (Status.RECEIVE_DISABLED if kind is EntityKind.TOPIC else Status.SEND_DISABLED)


@command(output="cli.inspection.entity_changes:Changed")
def delete(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    with_messages: Annotated[
        bool, typer.Option("--with-messages", help="Also if it holds messages, which are lost.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> CommandResult:
    """Delete a queue, a topic with its subscriptions, a subscription or a rule. Asks for its name.

    What holds messages is refused without --with-messages: it is counted and browsed first, dead letters and the
    subscriptions of a topic too. What the configuration protects, and backlog queues that a configured pair counts on,
    are refused always. Needs Manage, and Listen to browse.

    \b
    Examples:
      sbpair entity delete orders-old --dry-run
      sbpair entity delete contoso-weu:news/Subscriptions/audit/Rules/all --yes
    """
    settings = load_settings(options)
    place, rule = find_entity(settings, on, entity)
    if not dry_run:
        refuse_unnamed(options, place, yes=yes)
    if rule is not None:
        return _delete_rule(options, place, rule, dry_run=dry_run, yes=yes)
    _refuse_protected(settings, place)
    facts, holding, forwarding = with_topology(
        options, place.access, lambda topology: _looked_at(topology, place, with_messages)
    )
    what = f"{facts.kind.value} {place}"
    if holding is not None and not with_messages:
        raise UsageError(
            f"The {what} holds {holding}. Nothing was deleted.",
            hint="Keep them with `sbpair purge ENTITY --archive DIR` or `sbpair move`, or delete them too with "
            f"--with-messages. See: sbpair entity show {place.access.label}:{place.path}",
        )
    detail = f"{facts.kind.value} with {holding}" if holding is not None else f"{facts.kind.value} without messages"
    if forwarding:
        detail += f"; what forwards to it fails: {listed_names(forwarding)}"
    change = Changed(place.access.label, place.path, Action.DELETE, dry_run, True, detail)
    if dry_run:
        return told(change, f"The {what} would be deleted ({detail}). Nothing was changed.")
    go_ahead_by_name(
        options, f"Delete the {what} for good ({detail})", place.path, yes=yes, state="Nothing was deleted."
    )
    change_it(options, place, change, lambda topology: topology.delete(place.path))
    return told(change, f"The {what} is deleted.")


async def _looked_at(
    topology: "Topology", place: EntityRef, with_messages: bool
) -> tuple[EntityFacts, str | None, list[str]]:
    """The entity, what it holds as far as counts and a browse tell (None: nothing), and what forwards to it."""
    facts = await existing(topology, place)
    everything = await topology.entities(rules=False)
    wanted = place.path.lower()
    forwarding = [
        one.path
        for one in everything
        if wanted in map(str.lower, filter(None, _forwards(one))) and one.path.lower() != wanted
    ]
    below = [one for one in everything if one.path.lower().startswith(f"{wanted}/subscriptions/")]
    held = [one for one in (facts, *below) if one.counts.total]
    if held:
        named = [
            describe_counts(one.counts) if one is facts else f"{describe_counts(one.counts)} in {one.path}"
            for one in held
        ]
        return facts, listed_names(named), forwarding
    mailboxes = [one for one in (facts, *below) if one.kind is not EntityKind.TOPIC]
    seen = [] if with_messages else await _browsed(place, mailboxes)
    return facts, (f"messages that the counts do not show, in {listed_names(seen)}" if seen else None), forwarding


def _forwards(one: EntityFacts) -> tuple[str | None, str | None]:
    return one.settings.forward_to, one.settings.forward_dead_lettered_messages_to


async def _browsed(place: EntityRef, mailboxes: list[EntityFacts]) -> list[str]:
    """The queues and subscriptions in which a browse finds something.

    Raises:
        UsageError: one cannot be browsed, so that nobody knows.
    """
    from sbpair.connect import open_namespace
    from sbpair.runtime.browse import peeking

    found = []
    async with open_namespace(place.access) as (messaging, _):
        for one in mailboxes:
            try:
                if not (await peeking(messaging)(one.path)).empty:
                    found.append(one.path)
            except ServiceError as error:
                raise UsageError(
                    f"{one.path} counts no message, but it could not be browsed: {error.message} Nothing was deleted.",
                    hint="Set it to Active, or delete it whatever it holds: --with-messages",
                ) from error
    return found


def _refuse_protected(settings: "Settings", place: EntityRef) -> None:
    """What the configuration guards is not deleted, whoever asks.

    Raises:
        UsageError: it is guarded.
    """
    pairs = list(_pairs_on(settings))
    host = place.access.host.lower()
    for pair in pairs:
        if host in (pair.primary.host.lower(), pair.secondary.host.lower()):
            pattern = protecting_pattern(place.path, pair.protected)
            if pattern is not None:
                raise UsageError(
                    f"{place} is protected by the pattern {pattern!r} of pair {pair.name!r}. Nothing was deleted.",
                    hint="Take the pattern out of `protected` in the configuration.",
                )
    if (user := user_of(place.path, host, pairs)) is not None:
        raise UsageError(
            f"{place} is a backlog queue that pair {user!r} counts on. Nothing was deleted.",
            hint=f"What is extra, and can go: sbpair cleanup {user}",
        )


def _pairs_on(settings: "Settings") -> "list[Pair]":
    """Every pair that is configured completely; of the others nothing is known that could guard an entity."""
    found = []
    for name in settings.pair_names():
        try:
            found.append(settings.pair(name))
        except UsageError:
            continue
    return found


def _delete_rule(options: Options, place: EntityRef, rule: str, *, dry_run: bool, yes: bool) -> CommandResult:
    facts = with_topology(options, place.access, lambda topology: existing(topology, place))
    known = {one.name.lower(): one for one in facts.rules}
    if rule.lower() not in known:
        raise EntityNotFoundError(f"{place} has no rule {rule}. Nothing was changed.", entity=place.path)
    detail = "its last rule: it gets no more messages" if len(known) == 1 else f"{counted(len(known) - 1, 'rule')} left"
    change = Changed(place.access.label, f"{place.path}/Rules/{rule}", Action.DELETE, dry_run, True, f"rule; {detail}")
    if dry_run:
        return told(change, f"Rule {rule} of {place} would be deleted ({detail}). Nothing was changed.")
    question = f"Delete rule {rule} of {place} ({detail})"
    go_ahead_by_name(options, question, rule, yes=yes, state="Nothing was deleted.")
    change_it(options, place, change, lambda topology: topology.delete_rule(place.path, rule))
    return told(change, f"Rule {rule} of {place} is deleted ({detail}).")


# What every change shares.


def change_it(
    options: Options, place: EntityRef, change: Changed, work: "Callable[[Topology], Awaitable[None]]"
) -> None:
    """Carry a change out, and write it into the operations log."""

    async def connected(stop: "asyncio.Event") -> None:
        from sbpair.connect import open_topology

        async def logged() -> None:
            action = change.action.value
            line = change_line(f"entity {action}", place.access, action, change.entity, change.detail)
            try:
                await work(topology)
            except SbpairError as error:
                log.write({**line, "result": "failed", "error_code": error.code})
                raise
            log.write({**line, "result": "done", "error_code": None})

        with OperationsLog(operations_log()) as log:
            async with open_topology(place.access) as topology:
                await stoppable(stop, logged())

    run_async(options, connected)


def told(change: Changed, sentence: str) -> CommandResult:
    """A change, or what it would be."""
    row = {"action": change.action.value, "entity": change.entity, "detail": change.detail}
    return CommandResult(
        f"entity {change.action.value}",
        change,
        (Table("", COLUMNS, [row]),),
        summary=sentence,
        exit=Exit.FINDINGS if change.dry_run and change.changed else Exit.OK,
        closing=True,
    )
