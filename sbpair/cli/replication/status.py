"""`sbpair replicate status` and `provision`: what the journal says, and the queue on both sides."""

from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import Stop, load_settings, open_sides, run_async, run_until, system_clock
from sbpair.cli.options import Options, command
from sbpair.cli.replication.replicate import (
    FirstArgument,
    JournalOptions,
    LeaseOptions,
    SecondArgument,
    pair_and_source,
)
from sbpair.core.durations import format_duration
from sbpair.core.errors import EntityExistsError, UsageError, unchanged
from sbpair.core.names import subscription_of, subscription_path
from sbpair.core.outcome import Exit, Result
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import SessionEntry, State, Terms, is_stuck
from sbpair.core.replication.settings import Problem, problems, replicated_settings
from sbpair.core.serialization import column, to_plain
from sbpair.core.words import counted
from sbpair.render.result import Check, CommandResult, Metric, Severity, Table, columns_of, table_of
from sbpair.runtime.replication.store import SESSION, destination_of, key_of
from sbpair.service import session_key

if TYPE_CHECKING:
    from sbpair.core.entities import QueueFacts
    from sbpair.ports import Journal, NamespaceAdmin
    from sbpair.service import QueueSettings


# What `sbpair replicate status -o json` and `replicate provision -o json` print.


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShown:
    """A session of the journal; `lease` and `since` are durations in words."""

    destination: str = field(metadata=column("Queue"))
    session: str = field(metadata=column("Session"))
    state: State = field(metadata=column("State"))
    message: str | None = field(metadata=column("Message"))
    """Id of the one being processed."""
    attempts: int | None = field(metadata=column("Attempts", right=True))
    owner: str | None = field(metadata=column("Owner"))
    lease: str | None = field(metadata=column("Lease"))
    """What is left of it."""
    completed: int = field(metadata=column("Completed", right=True))
    failed: int = field(metadata=column("Failed", right=True))
    since: str = field(metadata=column("Since"))
    """How long ago it last changed."""
    stuck: str | None = field(metadata=column("Stuck because"))
    """Why somebody should look at it."""


@dataclass(frozen=True, slots=True)
class JournalStatus:
    journal: str
    by_state: Mapping[State, int]
    completed_messages: int
    failed_messages: int
    stuck: int
    """Sessions that somebody should look at."""
    sessions: tuple[SessionShown, ...]


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


@dataclass(frozen=True, slots=True)
class _Seen:
    entry: SessionEntry
    stuck: str | None

    def shown(self, now: float) -> SessionShown:
        entry, current = self.entry, self.entry.current
        return SessionShown(
            destination=entry.destination,
            session=entry.session_id,
            state=entry.state,
            message=None if current is None else current.message_id,
            attempts=None if current is None else current.attempts,
            owner=entry.owner or None,
            lease=format_duration(max(0.0, entry.lease_until - now)) if entry.owner else None,
            completed=entry.completed_count,
            failed=entry.failed_count,
            since=format_duration(max(0.0, now - entry.updated_at)),
            stuck=self.stuck,
        )


@command(output="cli.replication.status:JournalStatus", checks=True)
def status(
    options: Options,
    *,
    journal: JournalOptions,
    state: Annotated[State | None, typer.Option(help="Only sessions in this state.")] = None,
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
    store, terms = journal.open(), leasing.terms()

    async def work(stop: Stop) -> tuple[str, list[_Seen]]:
        return await run_until(stop, _read(store, terms, destination))

    said, seen = run_async(options, work)
    return _shown(store.name, said, seen, state, stuck, limit)


async def _read(store: "Journal", terms: Terms, destination: str | None) -> tuple[str, list[_Seen]]:
    try:
        said = await store.check()
        now = system_clock().now().timestamp()
        seen: dict[str, _Seen] = {}
        async with aclosing(store.scan(SESSION)) as entries:  # type: ignore[type-var]
            async for raw in entries:
                entry = SessionEntry.from_dict(raw.document)
                if destination is not None and entry.destination != destination_of(destination):
                    continue
                # A journal from before sessions were compared without case may have the entry of then beside it.
                key = key_of(entry.destination, session_key(entry.session_id))
                found = _Seen(entry, is_stuck(entry, now=now, terms=terms))
                if raw.key == key:
                    seen[key] = found
                else:
                    seen.setdefault(key, found)
        return said, list(seen.values())
    finally:
        await store.close()


def _shown(name: str, said: str, seen: list[_Seen], state: State | None, only_stuck: bool, limit: int) -> CommandResult:
    now = system_clock().now().timestamp()
    by_state = Counter(one.entry.state for one in seen)
    stuck = [one for one in seen if one.stuck is not None]
    wanted = [
        one for one in seen if (state is None or one.entry.state is state) and (not only_stuck or one.stuck is not None)
    ]
    wanted.sort(key=lambda one: (one.stuck is None, -one.entry.updated_at))
    sessions = tuple(one.shown(now) for one in wanted[:limit])
    completed = sum(one.entry.completed_count for one in seen)
    failed = sum(one.entry.failed_count for one in seen)
    counts = ", ".join(f"{by_state[one]} {one}" for one in State)
    hidden = len(wanted) - len(sessions)
    return CommandResult(
        JournalStatus(name, {one: by_state[one] for one in State}, completed, failed, len(stuck), sessions),
        (table_of(SessionShown, sessions),),
        notes=(said, *((f"{counted(hidden, 'more session')} not shown; raise --limit.",) if hidden else ())),
        summary=f"{counted(len(seen), 'session')}: {counts}; {len(stuck)} stuck. "
        f"{completed:,} completed, {failed:,} failed.",
        exit=Exit.FINDINGS if stuck else Exit.OK,
        checks=tuple(Check("replication", one.entry.session_id, Severity.WARNING, one.stuck or "") for one in stuck)
        or (Check("replication", name, Severity.OK, "no session is stuck"),),
        metrics=tuple(_metrics(by_state, len(stuck), completed, failed)),
    )


def _metrics(by_state: Counter[State], stuck: int, completed: int, failed: int) -> list[Metric]:
    return [
        *(Metric("sbpair_replicated_sessions", by_state[one], (("state", one.value),)) for one in State),
        Metric("sbpair_replicated_stuck_sessions", stuck),
        Metric("sbpair_replicated_completed_messages", completed),
        Metric("sbpair_replicated_failed_messages", failed),
    ]


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
    pair: str, admins: "dict[str, NamespaceAdmin]", queue: str, store: "Journal | None", *, dry_run: bool
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


async def _check_kind(admin: "NamespaceAdmin", side: str, path: str) -> None:
    if subscription_of(path) is None and await admin.get_topic(path) is not None:
        raise UsageError(
            f"{path} is a topic on the {side}; its subscriptions are consumed. Nothing was changed there.",
            hint=f"Name one: sbpair replicate provision {subscription_path(path, 'NAME')}",
        )


async def _get(admin: "NamespaceAdmin", path: str) -> "QueueFacts | None":
    subscription = subscription_of(path)
    return await admin.get_queue(path) if subscription is None else await admin.get_subscription(*subscription)


async def _create(admin: "NamespaceAdmin", queue: str) -> "QueueSettings | None":
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
