"""`sbpair replicate status` and `provision`: what the journal says, and the queue on both sides."""

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.context import load_settings, open_sides, run_async, stoppable, system_clock
from sbpair.cli.options import Options, command
from sbpair.cli.replicate_options import (
    COSMOS_KEY,
    FirstArgument,
    JournalKeyOption,
    JournalOption,
    LeaseOption,
    MarginOption,
    SecondArgument,
    journal_at,
    make_terms,
    pair_and_queue,
)
from sbpair.core.durations import format_duration
from sbpair.core.errors import EntityExistsError, UsageError
from sbpair.core.outcome import Exit, Outcome, Result, exit_for
from sbpair.core.ownership import SessionEntry, State, Terms, is_stuck
from sbpair.core.replication import Problem, problems, replicated_settings
from sbpair.render.result import Check, Column, CommandResult, Metric, Severity, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.entities import QueueSettings
    from sbpair.ports import Journal, NamespaceAdmin

KIND = "session"


@dataclass(frozen=True, slots=True)
class _Seen:
    entry: SessionEntry
    stuck: str | None

    def row(self, now: float) -> dict[str, Any]:
        entry, current = self.entry, self.entry.current
        return {
            "session": entry.session_id,
            "state": entry.state.value,
            "message": None if current is None else current.message_id,
            "attempts": None if current is None else current.attempts,
            "owner": entry.owner or None,
            "lease": format_duration(max(0.0, entry.lease_until - now)) if entry.owner else None,
            "completed": entry.completed_count,
            "failed": entry.failed_count,
            "since": format_duration(max(0.0, now - entry.updated_at)),
            "stuck": self.stuck,
        }


@command
def status(
    options: Options,
    journal: JournalOption = None,
    journal_key: JournalKeyOption = COSMOS_KEY,
    state: Annotated[State | None, typer.Option(help="Only sessions in this state.", show_default=False)] = None,
    stuck: Annotated[bool, typer.Option("--stuck", help="Only sessions that somebody should look at.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Sessions shown at most.")] = 100,
    lease: LeaseOption = "30s",
    margin: MarginOption = "5s",
) -> CommandResult:
    """Show the journal of a replicated queue: sessions by state, who has them, and which are stuck. [reads]

    Exit 5 if a session is stuck: it waits for a message that is in neither queue that is read, or its owner is gone
    and nobody goes on.

    \b
    Examples:
      sbpair replicate status --journal sqlite:journal.db
      sbpair replicate status --journal sqlite:journal.db --stuck -o nagios
    """
    book, terms = journal_at(journal, journal_key), make_terms(lease=lease, margin=margin)

    async def work(stop: "asyncio.Event") -> tuple[str, list[_Seen]]:
        return await stoppable(stop, _look(book, terms))

    said, seen = run_async(options, work)
    return _shown(book.name, said, seen, state, stuck, limit)


async def _look(book: "Journal", terms: Terms) -> tuple[str, list[_Seen]]:
    try:
        said = await book.check()
        now = system_clock().now().timestamp()
        seen = []
        async with aclosing(book.scan(KIND)) as entries:  # type: ignore[type-var]
            async for raw in entries:
                entry = SessionEntry.from_dict(raw.document)
                seen.append(_Seen(entry, is_stuck(entry, now=now, terms=terms)))
        return said, seen
    finally:
        await book.close()


def _shown(name: str, said: str, seen: list[_Seen], state: State | None, only_stuck: bool, limit: int) -> CommandResult:
    now = system_clock().now().timestamp()
    by_state = Counter(one.entry.state for one in seen)
    stuck = [one for one in seen if one.stuck is not None]
    wanted = [
        one for one in seen if (state is None or one.entry.state is state) and (not only_stuck or one.stuck is not None)
    ]
    wanted.sort(key=lambda one: (one.stuck is None, -one.entry.updated_at))
    rows = [one.row(now) for one in wanted[:limit]]
    columns = (
        Column("session", "Session"),
        Column("state", "State"),
        Column("message", "Message"),
        Column("attempts", "Attempts", right=True),
        Column("owner", "Owner"),
        Column("lease", "Lease"),
        Column("completed", "Completed", right=True),
        Column("failed", "Failed", right=True),
        Column("since", "Since"),
        Column("stuck", "Stuck because"),
    )
    completed = sum(one.entry.completed_count for one in seen)
    failed = sum(one.entry.failed_count for one in seen)
    counts = ", ".join(f"{by_state[one]} {one}" for one in State)
    hidden = len(wanted) - len(rows)
    return CommandResult(
        "replicate status",
        {
            "journal": name,
            "by_state": {one.value: by_state[one] for one in State},
            "completed_messages": completed,
            "failed_messages": failed,
            "stuck": len(stuck),
            "sessions": rows,
        },
        (Table("", columns, rows),),
        notes=(said, *((f"{hidden} more are not shown; raise --limit.",) if hidden else ())),
        summary=f"{len(seen)} session(s): {counts}; {len(stuck)} stuck. {completed:,} completed, {failed:,} failed.",
        exit=Exit.FINDINGS if stuck else Exit.OK,
        checks=tuple(_checks(name, stuck)),
        metrics=tuple(_metrics(by_state, len(stuck), completed, failed)),
    )


def _checks(name: str, stuck: list[_Seen]) -> list[Check]:
    if not stuck:
        return [Check("replication", name, Severity.OK, "no session is stuck")]
    return [Check("replication", one.entry.session_id, Severity.WARNING, one.stuck or "") for one in stuck]


def _metrics(by_state: Counter[State], stuck: int, completed: int, failed: int) -> list[Metric]:
    states = [
        Metric(
            "sbpair_replicated_sessions", "Sessions in the journal by state.", by_state[one], (("state", one.value),)
        )
        for one in State
    ]
    return [
        *states,
        Metric("sbpair_replicated_stuck_sessions", "Sessions that somebody should look at.", stuck),
        Metric("sbpair_replicated_completed_messages", "Messages completed.", completed, counter=True),
        Metric("sbpair_replicated_failed_messages", "Messages that failed for good.", failed, counter=True),
    ]


@command
def provision(
    options: Options,
    first: FirstArgument,
    second: SecondArgument = None,
    journal: JournalOption = None,
    journal_key: JournalKeyOption = COSMOS_KEY,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show what is missing only; exit 5 if anything is.")
    ] = False,
) -> CommandResult:
    """Create a replicated queue on both namespaces, sessions on, and check what exists and the journal. [writes]

    Existing queues are left as they are; what is wrong with them is told, with exit 5. Needs Manage on both sides.

    \b
    Examples:
      sbpair replicate provision orders-pair orders --journal sqlite:journal.db
      sbpair replicate provision local orders --dry-run
    """
    pair_name, queue = pair_and_queue(first, second)
    pair = load_settings(options).pair(pair_name)
    book = None if journal is None else journal_at(journal, journal_key)

    async def work(stop: "asyncio.Event") -> _Provisioned:
        async with open_sides(pair) as sides:
            admins = {"primary": sides.primary_admin, "secondary": sides.secondary_admin}
            return await stoppable(stop, _provision(admins, queue, book, dry_run=dry_run))

    return _provisioned(pair.name, queue, run_async(options, work), dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Provisioned:
    outcomes: list[Outcome]
    problems: list[Problem]
    journal: str


async def _provision(
    admins: "dict[str, NamespaceAdmin]", queue: str, book: "Journal | None", *, dry_run: bool
) -> _Provisioned:
    outcomes: list[Outcome] = []
    found: dict[str, QueueSettings | None] = {}
    for side, admin in admins.items():
        facts = await admin.get_queue(queue)
        if facts is not None:
            outcomes.append(Outcome(f"{side}: {queue}", Result.UNCHANGED, "exists"))
            found[side] = facts.settings
        elif dry_run:
            outcomes.append(Outcome(f"{side}: {queue}", Result.SKIPPED, "would be created, with sessions"))
            found[side] = replicated_settings(None)
        else:
            found[side] = await _create(admin, queue)
            outcomes.append(Outcome(f"{side}: {queue}", Result.DONE, "created, with sessions"))
    said = ""
    if book is not None:
        try:
            said = "not looked at: it would be made" if dry_run else await book.check()
        finally:
            await book.close()
    return _Provisioned(outcomes, list(problems(found["primary"], found["secondary"])), said)


async def _create(admin: "NamespaceAdmin", queue: str) -> "QueueSettings | None":
    settings = replicated_settings((await admin.namespace()).tier)
    if settings is None:
        raise UsageError("Tier Basic has no sessions; a replicated queue needs Standard or Premium on both sides.")
    try:
        return (await admin.create_queue(queue, settings)).settings
    except EntityExistsError:
        facts = await admin.get_queue(queue)  # somebody was faster
        return None if facts is None else facts.settings


def _provisioned(pair: str, queue: str, done: _Provisioned, *, dry_run: bool) -> CommandResult:
    rows = [{"item": one.item, "result": one.result.value, "detail": one.detail} for one in done.outcomes]
    rows += [{"item": f"{one.side}: {queue}", "result": "problem", "detail": one.message} for one in done.problems]
    columns = (Column("item", "Queue"), Column("result", "Result"), Column("detail", "Detail"))
    missing = dry_run and any(one.result is Result.SKIPPED for one in done.outcomes)
    failed = Exit.OK if dry_run else exit_for(done.outcomes)
    return CommandResult(
        "replicate provision",
        {
            "pair": pair,
            "queue": queue,
            "dry_run": dry_run,
            "outcomes": rows[: len(done.outcomes)],
            "problems": [{"side": one.side, "message": one.message, "serious": one.serious} for one in done.problems],
            "journal": done.journal or None,
        },
        (Table("", columns, rows),),
        notes=(f"Journal: {done.journal}",) if done.journal else (),
        summary=f"{queue} on both sides of {pair}: {len(done.problems)} problem(s)."
        + (" Nothing was changed." if dry_run else ""),
        exit=failed or (Exit.FINDINGS if done.problems or missing else Exit.OK),
    )
