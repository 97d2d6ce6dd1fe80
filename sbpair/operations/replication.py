"""Active/active: the queue or subscription that both namespaces need, and what the journal says of its sessions."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from sbpair.concurrency import run_until
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import EntityExistsError, UsageError, unchanged
from sbpair.core.names import check_source_path, subscription_of, subscription_path
from sbpair.core.outcome import Result
from sbpair.core.replication.ownership import SessionState, is_stuck
from sbpair.core.replication.settings import Problem, problems, replicated_settings
from sbpair.core.replication.status import JournalStatus, JournalStatusRequest, SessionShown
from sbpair.core.serialization import column
from sbpair.ports import Journal, NamespaceAdmin, Sides
from sbpair.runtime.replication.store import entries_in
from sbpair.service import QueueSettings

__all__ = [
    "JournalStatus",
    "JournalStatusRequest",
    "ProvisionReplicatedRequest",
    "ReplicatedProvision",
    "journal_status",
    "provision_replicated",
]


async def journal_status(journal: Journal, request: JournalStatusRequest) -> JournalStatus:
    """Say in which state the sessions of a journal are, who has them, and which are stuck. The journal stays open.

    Returns:
        The stuck sessions first, then those that changed last.

    Raises:
        JournalError: it cannot be read.
    """
    about, entries, now = await journal.check(), await entries_in(journal, request.destination), time.time()
    by_state = Counter(one.state for one in entries)
    seen = [(one, is_stuck(one, now=now, terms=request.terms)) for one in entries]
    stuck = tuple((one.session_id, why) for one, why in seen if why is not None)
    wanted = [
        SessionShown.of(one, why, now)
        for one, why in sorted(seen, key=lambda known: (known[1] is None, -known[0].updated_at))
        if request.state in (None, one.state) and (why is not None or not request.only_stuck)
    ]
    return JournalStatus(
        journal.name,
        {one: by_state[one] for one in SessionState},
        sum(one.completed_count for one in entries),
        sum(one.failed_count for one in entries),
        len(stuck),
        tuple(wanted[: request.limit]),
        about,
        max(0, len(wanted) - request.limit),
        stuck,
    )


@dataclass(frozen=True, slots=True)
class ProvisionReplicatedRequest:
    """The queue, or `TOPIC/Subscriptions/NAME`, that both namespaces are to have, with sessions."""

    queue: str
    dry_run: bool = False
    """Only say what is missing."""


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """What became of the queue on one side."""

    item: str = field(metadata=column("Queue"))
    result: Result = field(metadata=column("Result"))
    detail: str = field(metadata=column("Detail"))


@dataclass(frozen=True, slots=True)
class ReplicatedProvision:
    """What was created, and what of the settings does not fit active/active."""

    pair: str
    queue: str
    dry_run: bool
    outcomes: tuple[QueueOutcome, ...]
    problems: tuple[Problem, ...]
    journal: str | None
    """What the journal says of itself; None: none was given."""


async def provision_replicated(
    sides: Sides,
    request: ProvisionReplicatedRequest,
    *,
    journal: Journal | None = None,
    stop: asyncio.Event | None = None,
) -> ReplicatedProvision:
    """Create a replicated queue or subscription, with sessions, where it is missing; of a subscription its topic, too.

    What exists stays as it is. Both sides are read before one of them is changed. A journal is checked, which makes it
    if it is not there, and stays open.

    Raises:
        UsageError: the path is that of a topic, or a namespace is of tier Basic, which has no sessions.
        ServiceError: a side does not answer or refuses; the error's state says what was created until then.
        JournalError: the journal cannot be used.
        InterruptedWorkError: `stop` was set.
    """
    return await run_until(stop or asyncio.Event(), _provisioned(sides, request, journal))


async def _provisioned(
    sides: Sides, request: ProvisionReplicatedRequest, journal: Journal | None
) -> ReplicatedProvision:
    queue, dry_run = check_source_path(request.queue), request.dry_run
    admins = {"primary": sides.primary_admin, "secondary": sides.secondary_admin}
    outcomes: list[QueueOutcome] = []
    found: dict[str, QueueSettings | None] = {}
    known: dict[str, QueueFacts | None] = {}
    with unchanged():
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
    if journal is not None:
        said = "not looked at: it would be made" if dry_run else await journal.check()
    faults = tuple(problems(found["primary"], found["secondary"]))
    return ReplicatedProvision(sides.pair.name, queue, dry_run, tuple(outcomes), faults, said)


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
