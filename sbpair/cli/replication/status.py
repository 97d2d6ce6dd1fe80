"""`sbpair replicate status` and `provision`: what the journal says, and the queue on both sides."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import Stop, load_settings, open_sides, run_async, run_until
from sbpair.cli.options import Options, command
from sbpair.cli.replication.replicate import (
    FirstArgument,
    JournalOptions,
    LeaseOptions,
    SecondArgument,
    pair_and_source,
)
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import EntityExistsError, UsageError, unchanged
from sbpair.core.names import subscription_of, subscription_path
from sbpair.core.outcome import Exit, Result
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import SessionState
from sbpair.core.replication.settings import Problem, problems, replicated_settings
from sbpair.core.replication.status import JournalStatus, SessionShown
from sbpair.core.serialization import column, to_plain
from sbpair.core.words import counted
from sbpair.operations import JournalStatusRequest, journal_status
from sbpair.ports import Journal, NamespaceAdmin
from sbpair.render.result import Check, CommandResult, Metric, Severity, Table, columns_of, table_of
from sbpair.service import QueueSettings

# What `sbpair replicate provision -o json` prints.


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    item: str = field(metadata=column("Queue"))
    result: Result = field(metadata=column("Result"))
    detail: str = field(metadata=column("Detail"))


@dataclass(frozen=True, slots=True)
class ReplicateProvisioned:
    pair: str
    queue: str
    dry_run: bool
    outcomes: tuple[QueueOutcome, ...]
    problems: tuple[Problem, ...]
    journal: str | None


@command(output="core.replication.status:JournalStatus", checks=True)
def status(
    options: Options,
    *,
    journal: JournalOptions,
    state: Annotated[SessionState | None, typer.Option(help="Only sessions in this state.")] = None,
    stuck: Annotated[bool, typer.Option(help="Only stuck sessions.")] = False,
    destination: Annotated[
        str | None, typer.Option(help="Only sessions of this queue or TOPIC/Subscriptions/NAME.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many sessions.")] = 100,
    leasing: LeaseOptions,
) -> CommandResult:
    """Show the sessions in the journal of replicated queues: their state, who has them, which are stuck.

    A session is stuck if it waits for a message that is on neither namespace, or if its consumer is gone and no other
    one continues. Exit code 5 if any is stuck.

    \b
    Examples:
      sbpair replicate status --journal sqlite:journal.db
      sbpair replicate status --journal sqlite:journal.db --stuck -o nagios
    """
    request = JournalStatusRequest(destination, state, stuck, limit, leasing.terms())
    store = journal.open()

    async def work(stop: Stop) -> JournalStatus:
        try:
            return await run_until(stop, journal_status(store, request))
        finally:
            await store.close()

    return _shown(run_async(options, work))


def _shown(status: JournalStatus) -> CommandResult:
    counts = ", ".join(f"{count} {state}" for state, count in status.by_state.items())
    hidden = f"{counted(status.not_shown, 'more session')} not shown; raise --limit."
    return CommandResult(
        status,
        (table_of(SessionShown, status.sessions),),
        notes=(status.about, *((hidden,) if status.not_shown else ())),
        summary=f"{counted(sum(status.by_state.values()), 'session')}: {counts}; {status.stuck} stuck. "
        f"{status.completed_messages:,} completed, {status.failed_messages:,} failed.",
        exit=Exit.FINDINGS if status.stuck else Exit.OK,
        checks=tuple(Check("replication", one, Severity.WARNING, why) for one, why in status.stuck_because)
        or (Check("replication", status.journal, Severity.OK, "no session is stuck"),),
        metrics=(
            *(Metric("sbpair_replicated_sessions", n, (("state", one.value),)) for one, n in status.by_state.items()),
            Metric("sbpair_replicated_stuck_sessions", status.stuck),
            Metric("sbpair_replicated_completed_messages", status.completed_messages),
            Metric("sbpair_replicated_failed_messages", status.failed_messages),
        ),
    )


@command(
    output="cli.replication.status:ReplicateProvisioned",
    asks=True,
    dry_run="Only show missing queues; exit 5 if there are any.",
)
def provision(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    *,
    journal: JournalOptions,
) -> CommandResult:
    """Create a replicated queue or subscription, with sessions, on both namespaces.

    A subscription is TOPIC/Subscriptions/NAME; its topic is created as well. What exists is left as it is; exit code 5
    if its settings do not fit. Needs Manage on both namespaces.

    \b
    Examples:
      sbpair replicate provision orders-pair orders --journal sqlite:journal.db
      sbpair replicate provision orders-pair events/Subscriptions/billing
      sbpair replicate provision local orders --dry-run
    """
    pair_name, queue = pair_and_source(first, second)
    pair, dry_run = pair_to_write(options, load_settings(options), pair_name, f"Provision {queue} on"), options.dry_run
    if not dry_run:
        where = f"{side_named(pair, Side.PRIMARY)} and {side_named(pair)}"
        go_ahead(options, f"Create {queue} on {where} where it is missing", state="Nothing was changed.")
    store = journal.open_if_named()

    async def work(stop: Stop) -> ReplicateProvisioned:
        async with open_sides(pair) as sides:
            admins = {"primary": sides.primary_admin, "secondary": sides.secondary_admin}
            return await run_until(stop, _provision(pair.name, admins, queue, store, dry_run=dry_run))

    return _provisioned(run_async(options, work))


async def _provision(
    pair: str, admins: dict[str, NamespaceAdmin], queue: str, store: Journal | None, *, dry_run: bool
) -> ReplicateProvisioned:
    outcomes: list[QueueOutcome] = []
    found: dict[str, QueueSettings | None] = {}
    known: dict[str, QueueFacts | None] = {}
    with unchanged():  # both sides are asked before one of them is changed
        for side, admin in admins.items():
            await _check_kind(admin, side, queue)
            known[side] = await _get(admin, queue)
    for side, admin in admins.items():
        facts = known[side]
        if facts is not None:
            outcomes.append(QueueOutcome(f"{side}: {queue}", Result.UNCHANGED, "exists"))
            found[side] = facts.settings
        elif dry_run:
            outcomes.append(QueueOutcome(f"{side}: {queue}", Result.SKIPPED, "would be created, with sessions"))
            found[side] = replicated_settings(None)
        else:
            created = [one.item for one in outcomes if one.result is Result.DONE]
            with unchanged(f"Created: {', '.join(created)}." if created else "Nothing was changed."):
                found[side] = await _create(admin, queue)
            outcomes.append(QueueOutcome(f"{side}: {queue}", Result.DONE, "created, with sessions"))
    said = None
    if store is not None:
        try:
            said = "not looked at: it would be made" if dry_run else await store.check()
        finally:
            await store.close()
    faults = tuple(problems(found["primary"], found["secondary"]))
    return ReplicateProvisioned(pair, queue, dry_run, tuple(outcomes), faults, said)


async def _check_kind(admin: NamespaceAdmin, side: str, path: str) -> None:
    if subscription_of(path) is None and await admin.get_topic(path) is not None:
        raise UsageError(
            f"{path} is a topic on the {side}; its subscriptions are consumed. Nothing was changed there.",
            hint=f"Name one: sbpair replicate provision {subscription_path(path, 'NAME')}",
        )


async def _get(admin: NamespaceAdmin, path: str) -> QueueFacts | None:
    subscription = subscription_of(path)
    return await admin.get_queue(path) if subscription is None else await admin.get_subscription(*subscription)


async def _create(admin: NamespaceAdmin, queue: str) -> QueueSettings | None:
    settings = replicated_settings((await admin.namespace()).tier)
    if settings is None:
        raise UsageError("Tier Basic has no sessions; a replicated queue needs Standard or Premium on both sides.")
    subscription = subscription_of(queue)
    try:
        if subscription is None:
            return (await admin.create_queue(queue, settings)).settings
        if await admin.get_topic(subscription[0]) is None:
            with suppress(EntityExistsError):  # somebody was faster
                await admin.create_topic(subscription[0])
        return (await admin.create_subscription(*subscription, settings)).settings
    except EntityExistsError:
        facts = await _get(admin, queue)  # somebody was faster
        return None if facts is None else facts.settings


def _provisioned(done: ReplicateProvisioned) -> CommandResult:
    rows = to_plain(done.outcomes)
    rows += [{"item": f"{one.side}: {done.queue}", "result": "problem", "detail": one.message} for one in done.problems]
    missing = done.dry_run and any(one.result is Result.SKIPPED for one in done.outcomes)
    return CommandResult(
        done,
        (Table("", columns_of(QueueOutcome), rows),),
        notes=(f"Journal: {done.journal}",) if done.journal else (),
        summary=f"{done.queue} on both sides of {done.pair}: {counted(len(done.problems), 'problem')}."
        + (" Nothing was changed." if done.dry_run else ""),
        exit=Exit.FINDINGS if done.problems or missing else Exit.OK,
    )
