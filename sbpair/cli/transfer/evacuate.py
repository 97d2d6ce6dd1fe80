"""`sbpair evacuate`: all entities and messages of a namespace, moved to another one, and the proof that it is empty."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli import suggestions
from sbpair.cli.asking import YesOption, go_ahead
from sbpair.cli.context import Interrupted, load_settings, run_async, stoppable, unchanged
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.inspection.saved import read_saved
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityRef
from sbpair.cli.transfer.options import DESPITE, ConcurrencyOption, RateOption, ReserveOption, budget_of
from sbpair.cli.transfer.recovering import Recovery
from sbpair.cli.transfer.resending import resender, sending_request
from sbpair.core.access import AuthMethod, NamespaceAccess, shown_name
from sbpair.core.entities import EntityFacts, EntityKind, Tier
from sbpair.core.errors import ServiceError, StalePlanError, UsageError
from sbpair.core.inspection.evacuation import (
    DEFAULT_RULE,
    NOT_ASKED_FOR,
    PLAN_VERSION,
    SET_ACTIVE,
    UNFINISHED,
    Action,
    EntityStep,
    Kept,
    LeftThere,
    MailboxMove,
    as_planned,
    changed_since,
    holding_settings,
    is_holding,
    plan_entities,
    plan_moves,
)
from sbpair.core.inspection.snapshot import Peeked
from sbpair.core.names import DEAD_LETTER_SUFFIX, dead_letter_path
from sbpair.core.outcome import Exit
from sbpair.core.redact import json_text
from sbpair.core.serialization import HIDDEN
from sbpair.core.transfer.report import FILTERED_OUT
from sbpair.core.words import counted, listed
from sbpair.operations.log import OperationsLog, change_line
from sbpair.render.console import check_writable, say, write_file
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.ports import Topology
    from sbpair.settings import Settings

MOST_ROUNDS = 3
"""How often the source is looked at again for what came meanwhile."""
BROWSES_AT_ONCE = 8
NOT_TOUCHED = "Nothing was changed."


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes, or became, of an entity on the second namespace."""

    action: Action
    kind: EntityKind
    path: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """The messages of a queue or subscription, or its dead letters."""

    entity: str
    dead_letter: bool
    to: str
    counted: int
    """How many the service counted when this run began."""
    moved: int
    """In this run."""
    accepted: int
    """In all runs of this ledger."""
    there_now: int | None
    """What `to` counts at the end, from wherever; fewer than were accepted if consumers take them. None: not looked."""


@dataclass(frozen=True, slots=True)
class Evacuation:
    """What `evacuate -o json` prints."""

    from_namespace: str
    to_namespace: str
    dry_run: bool
    entities: tuple[Step, ...]
    moves: tuple[Moved, ...]
    left: tuple[LeftThere, ...]
    """Messages that are, or would be, still there, and why."""
    held: tuple[str, ...]
    """Queues on the second namespace that hold messages for somebody to look into, of earlier runs too."""
    source_empty: bool
    """Every queue, topic and subscription was counted and browsed after the last message, and nothing was found."""
    ledger: Path | None
    from_shown: str = field(default="", metadata=HIDDEN)
    to_shown: str = field(default="", metadata=HIDDEN)
    """Both namespaces as sentences name them: with the host where the name does not tell it."""


STEP_COLUMNS = (Column("path", "Entity"), Column("action", "There"), Column("note", "Note"))
MOVE_COLUMNS = (
    Column("entity", "From"),
    Column("to", "To"),
    Column("counted", "Counted", right=True, counts=True),
    Column("moved", "Moved", right=True, counts=True),
    Column("there_now", "There now", right=True, counts=True),
)
LINE_COLUMNS = (
    Column("entity", "Entity"),
    Column("kind", "Kind"),
    Column("action", "There"),
    Column("to", "To"),
    Column("counted", "Counted", right=True, counts=True),
    Column("moved", "Moved", right=True, counts=True),
    Column("accepted", "Accepted", right=True, counts=True),
    Column("there_now", "There now", right=True, counts=True),
    Column("left", "Left", right=True, counts=True),
    Column("note", "Note"),
)
LEFT_COLUMNS = (
    Column("entity", "Left in"),
    Column("messages", "Messages", right=True, counts=True),
    Column("reason", "Why"),
)


@command(output="cli.transfer.evacuate:Evacuation")
def evacuate(
    options: Options,
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="Namespace to empty.", autocompletion=suggestions.configured_namespaces),
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="Namespace that takes its place.", autocompletion=suggestions.configured_namespaces
        ),
    ],
    *,
    auth: Annotated[
        AuthMethod | None,
        typer.Option("--auth", help="Credential for namespaces that are not configured.", show_default="configured"),
    ] = None,
    dead_letters: Annotated[
        Kept,
        typer.Option(
            "--dead-letters", help="Dead letters: into queues that hold them, to their queue again, or leave them."
        ),
    ] = Kept.HOLD,
    without: Annotated[
        list[str] | None,
        typer.Option("--except", metavar="PATTERN", help="Leave these entities out; repeatable.", show_default=False),
    ] = None,
    despite_duplicate_detection: Annotated[
        bool, typer.Option(DESPITE, help="Send although a queue there may drop a MessageId that it got from elsewhere.")
    ] = False,
    rate: RateOption = None,
    reserve: ReserveOption = None,
    concurrency: ConcurrencyOption = 8,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            help="Record each message in this file; what it has is not sent again.",
            show_default="evacuate-FROM-TO.jsonl",
        ),
    ] = None,
    plan_out: Annotated[
        Path | None,
        typer.Option("--plan-out", help="Save the plan for the entities to this file; change nothing."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Do what this plan says; refused if an entity has changed since it was made."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, count, and say what would be done.")] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Move everything from one namespace to another: entities and rules, then all messages; prove that FROM is empty.

    For the former primary after a Geo-DR failover, which keeps its messages, and for a move to another tier or region.
    What is missing on TO is created, adapted to its tier; what exists there is never changed, only compared. Messages
    of a queue go to the queue of that name. Those of a subscription, and dead letters, are held in queues of their own
    (evacuated/FROM/...), since a topic would give every subscription a copy, and a queue's consumers would take dead
    letters for new ones. Sessions keep their order and state, scheduled messages their time; those of a topic go to the
    topic. Each message keeps its bytes and is completed after TO has it: none is lost, and after a crash one may be
    there twice, with the same MessageId. Needs Manage on both.

    \b
    Runbook:
      1. Stop the senders of FROM. Leave its entities Active:
         a disabled one, or SendDisabled, shows nothing:
           sbpair entity set-status contoso-weu:orders Active
      2. See what would happen; nothing is changed:
           sbpair evacuate contoso-weu contoso-neu --dry-run
         Or have the plan approved first:
           sbpair evacuate contoso-weu contoso-neu --plan-out plan.json
           sbpair evacuate contoso-weu contoso-neu --plan plan.json
      3. Move. The same line goes on after a crash:
           sbpair evacuate contoso-weu contoso-neu
      4. Look into what is held, and send it on:
           sbpair entity list 'evacuated/*' --namespace contoso-neu
           sbpair move contoso-neu:evacuated/contoso-weu/queues/orders/dead-letters contoso-neu:orders
      5. Give applications credentials for TO: access rules,
         role assignments and network rules are not copied.
      6. Keep the ledger; delete FROM when nothing uses it.

    \b
    Examples:
      sbpair evacuate contoso-weu contoso-neu --dry-run
      sbpair evacuate contoso-weu contoso-neu --except 'test-*' --rate 500
      sbpair evacuate contoso-std contoso-premium --dead-letters resubmit --yes
    """
    settings = load_settings(options)
    ends = _ends(settings, source, to, auth)
    wish = _Wish(ends, tuple(without or ()), dead_letters, despite_duplicate_detection, rate, reserve, concurrency)
    written = None
    if plan is not None:
        if plan_out is not None or without or despite_duplicate_detection or dead_letters is not Kept.HOLD:
            raise UsageError(
                f"--plan does what a plan says: no --plan-out, --except, --dead-letters or {DESPITE}. {NOT_TOUCHED}"
            )
        written = _read_plan(plan, ends)
        wish = replace(wish, **written.wish)
    if plan_out is not None:
        check_writable(plan_out)
    look = _look(options, wish)
    meant = [one for one in look.source if wish.wants(one.path)]
    steps = plan_entities(meant, look.target, look.target_tier, despite_duplicate_detection=wish.despite)
    moves, left = wish.moves(look, steps)
    file = ledger or Path(f"evacuate-{ends.source.label}-{ends.target.label}.jsonl")
    go_on = _go_on(source, to, auth, wish, ledger, plan or plan_out)
    if written is not None and (changed := changed_since(written.entities, steps)):
        raise StalePlanError(
            f"{plan} is stale: something else would be done now about {listed(changed)}. {NOT_TOUCHED}"
        )
    if plan_out is not None:
        _write_plan(plan_out, wish, steps)
    if dry_run or plan_out is not None:
        shown = [Moved(m.entity, m.dead_letter, m.to, m.counted, 0, 0, None) for m in moves if m.counted]
        planned = Evacuation(
            ends.source.label,
            ends.target.label,
            True,
            _told(steps),
            tuple(shown),
            left,
            tuple(sorted({move.to for move in moves if move.held and move.counted})),
            look.empty,
            None,
            shown_name(ends.source),
            shown_name(ends.target),
        )
        result = _result(planned, go_on)
        if plan_out is None:
            return result
        return replace(result, notes=(*result.notes, f"Plan written to {plan_out}."), exit=Exit.OK)
    _refuse_conflicts(steps, ends)
    _ask(options, settings, wish, steps, moves, yes=yes)
    _create(options, ends, steps, look)
    done = _move_all(options, wish, look, steps, file)
    if done.ended is None and all(one.reason == NOT_ASKED_FOR for one in done.left):
        _finish(options, ends, steps)
    evacuation = Evacuation(
        ends.source.label,
        ends.target.label,
        False,
        _told(steps),
        done.moves,
        done.left,
        done.held,
        done.empty,
        file,
        shown_name(ends.source),
        shown_name(ends.target),
    )
    return _result(evacuation, go_on, done.ended)


@dataclass(frozen=True, slots=True)
class _Ends:
    source: NamespaceAccess
    target: NamespaceAccess


def _ends(settings: "Settings", source: str, to: str, auth: AuthMethod | None) -> _Ends:
    ends = _Ends(settings.named_namespace(source, auth), settings.named_namespace(to, auth))
    if ends.source.host.lower() == ends.target.host.lower():
        raise UsageError(f"FROM and TO are both {ends.source.label}. {NOT_TOUCHED}")
    return ends


@dataclass(frozen=True, slots=True)
class _Look:
    """Both namespaces at one moment, and what a browse of the first one shows, by path."""

    source: tuple[EntityFacts, ...]
    target: tuple[EntityFacts, ...]
    target_tier: Tier | None
    browsed: Mapping[str, Peeked]
    unread: Mapping[str, str]
    """Entities that could not be browsed, and why."""

    @property
    def empty(self) -> bool:
        counts = all(one.counts.total == 0 for one in self.source)
        return counts and not self.unread and all(one.empty for one in self.browsed.values())


@dataclass(frozen=True, slots=True)
class _Wish:
    """What was asked for."""

    ends: _Ends
    without: tuple[str, ...]
    dead_letters: Kept
    despite: bool
    """Of duplicate detection on queues that were there before."""
    rate: float | None
    reserve: int | None
    concurrency: int

    def wants(self, path: str) -> bool:
        return not any(fnmatchcase(path.lower(), pattern.lower()) for pattern in self.without)

    def moves(self, look: _Look, steps: Sequence[EntityStep]) -> tuple[tuple[MailboxMove, ...], tuple[LeftThere, ...]]:
        """What is to be moved from where to where at this moment, and what is not. What is only seen by a browse is
        moved, too."""
        meant = {step.path.lower(): step for step in steps}
        found = [_as_browsed(one, look.browsed.get(one.path.lower())) for one in look.source]
        moves, left = plan_moves(found, meant, self.ends.source.label, self.dead_letters)
        told = {one.entity for one in left}
        unread = tuple(
            LeftThere(path, why if self.wants(path) else NOT_ASKED_FOR, 0)
            for path, why in look.unread.items()
            if path not in told
        )
        return moves, (*left, *unread)


def _as_browsed(one: EntityFacts, seen: Peeked | None) -> EntityFacts:
    """The entity with at least one message where a browse saw some and the counts did not."""
    if seen is None:
        return one
    counts = one.counts
    nothing = counts.active + counts.scheduled == 0
    active = 1 if seen.active and nothing else counts.active
    return replace(
        one,
        counts=replace(counts, active=active, dead_letter=max(counts.dead_letter, int(seen.dead_letter))),
    )


def _look(options: Options, wish: _Wish, state: str = NOT_TOUCHED) -> _Look:
    """One snapshot of both namespaces. `state`: what an error says of what was changed before it.

    Raises:
        ServiceError: a namespace does not tell what is there.
    """

    async def work(stop: "asyncio.Event") -> _Look:
        with unchanged(state):
            return await stoppable(stop, _looked(wish))

    return run_async(options, work)


async def _looked(wish: _Wish) -> _Look:
    from sbpair.concurrency import side_by_side
    from sbpair.connect import open_namespace, open_topology
    from sbpair.runtime.browse import peeking

    async with open_topology(wish.ends.source) as here, open_topology(wish.ends.target) as there:
        facts = await there.namespace()
        target = await there.entities(rules=True)
        source = await here.entities(rules=True)
    browsed: dict[str, Peeked] = {}
    unread: dict[str, str] = {}
    async with open_namespace(wish.ends.source) as (messaging, _):

        async def browse(one: EntityFacts) -> None:
            peek = peeking(messaging, dead_letters=one.kind is not EntityKind.TOPIC)
            try:
                browsed[one.path.lower()] = await peek(one.path)
            except ServiceError as error:
                unread[one.path] = error.message

        await side_by_side(browse, source, at_once=BROWSES_AT_ONCE)
    return _Look(tuple(source), tuple(target), facts.tier, browsed, unread)


def _refuse_conflicts(steps: Sequence[EntityStep], ends: _Ends) -> None:
    """Stop before the first change where an entity cannot take the messages of its name.

    Raises:
        UsageError: names each of them, with the reason.
    """
    conflicts = [step for step in steps if step.action is Action.CONFLICT]
    if conflicts:
        told = " ".join(f"{step.path}: {'; '.join(step.notes)}." for step in conflicts)
        raise UsageError(
            f"{counted(len(conflicts), 'entity', 'entities')} of {ends.source.label} cannot go to {ends.target.label}. "
            f"{told} {NOT_TOUCHED}",
            hint=f"Change or delete what is on {ends.target.label}, or leave one out: --except "
            f"{shlex.quote(conflicts[0].path)}",
        )


def _ask(
    options: Options,
    settings: "Settings",
    wish: _Wish,
    steps: Sequence[EntityStep],
    moves: Sequence[MailboxMove],
    *,
    yes: bool,
) -> None:
    def named(access: NamespaceAccess) -> str:
        environment = settings.environment_of(access)
        return f"{shown_name(access)} [{environment}]" if environment else shown_name(access)

    new = sum(step.action is not Action.KEEP for step in steps)
    messages = sum(move.counted for move in moves)
    source = shown_name(wish.ends.source)
    nothing = f"{source} holds nothing that was counted. Browse all of it, and move what is found or comes"
    doing = (
        f"{nothing} to {named(wish.ends.target)}"
        if not new and not messages
        else (
            f"Create {counted(new, 'entity', 'entities')} on {named(wish.ends.target)} and move "
            f"{counted(messages, 'message')} there from {named(wish.ends.source)}"
        )
    )
    go_ahead(options, doing, yes=yes, state=NOT_TOUCHED)


# A plan in a file. What it says of the entities is compared with what would be done now, and done if both agree;
# of messages it says nothing, since they come and go.


@dataclass(frozen=True, slots=True)
class _Written:
    """A plan out of a file."""

    wish: Mapping[str, Any]
    """What it was made for, by the names of `_Wish`."""
    entities: Sequence[Mapping[str, Any]]


def _write_plan(path: Path, wish: _Wish, steps: Sequence[EntityStep]) -> None:
    plan = {
        "format_version": PLAN_VERSION,
        "from": wish.ends.source.host,
        "to": wish.ends.target.host,
        "except": list(wish.without),
        "dead_letters": wish.dead_letters.value,
        "despite_duplicate_detection": wish.despite,
        "entities": as_planned(steps),
    }
    write_file(path, json_text({"plans": [plan]}, indent=2) + "\n", private=True)


def _read_plan(path: Path, ends: _Ends) -> _Written:
    """The plan of a file.

    Raises:
        UsageError: it is none, or one for other namespaces.
    """
    found = read_saved(path, "plan")
    try:
        (plan,) = found
        version, hosts = plan["format_version"], (plan["from"].lower(), plan["to"].lower())
        wish = {
            "without": tuple(map(str, plan["except"])),
            "dead_letters": Kept(plan["dead_letters"]),
            "despite": plan["despite_duplicate_detection"] is True,
        }
        entities = [dict(one) for one in plan["entities"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a plan that evacuate wrote. {NOT_TOUCHED}") from error
    if version != PLAN_VERSION:
        raise UsageError(f"{path} is a plan of another release of sbpair. {NOT_TOUCHED}", hint=StalePlanError.hint)
    if hosts != (ends.source.host.lower(), ends.target.host.lower()):
        raise UsageError(f"{path} is a plan from {hosts[0]} to {hosts[1]}. {NOT_TOUCHED}")
    return _Written(wish, entities)


# Entities.


def _create(options: Options, ends: _Ends, steps: Sequence[EntityStep], look: _Look) -> None:
    """Create what is missing, in its order; each is in the operations log."""

    async def work(stop: "asyncio.Event") -> None:
        from sbpair.connect import open_topology

        with OperationsLog(operations_log()) as log:
            async with open_topology(ends.target) as topology:
                for step in steps:
                    if step.action in (Action.CREATE, Action.FINISH):
                        await stoppable(stop, _create_one(topology, step))
                    if step.action is Action.CREATE:
                        line = change_line("evacuate", ends.target, "create", step.path, step.kind.value)
                        log.write({**line, "result": "done", "error_code": None})
                        if not options.quiet:
                            say(f"Created {step.kind.value} {step.path} on {shown_name(ends.target)}.")

    if any(step.action in (Action.CREATE, Action.FINISH) for step in steps):
        run_async(options, work)


async def _create_one(topology: "Topology", step: EntityStep) -> None:
    """Create an entity, marked until all is moved. A subscription gets its rules, and loses the one it is born with."""
    if step.action is Action.CREATE:
        await topology.create(step.kind, step.path, replace(step.settings, user_metadata=UNFINISHED))
    if step.kind is not EntityKind.SUBSCRIPTION:
        return
    there = await topology.entity(step.path)
    present = {rule.name.lower(): rule for rule in there.rules} if there is not None else {}
    wanted = {rule.name.lower(): rule for rule in step.rules}
    for name, rule in wanted.items():
        if present.get(name) == rule:
            continue
        if name in present:
            await topology.delete_rule(step.path, rule.name)
        await topology.create_rule(step.path, rule)
    if DEFAULT_RULE.lower() in present and DEFAULT_RULE.lower() not in wanted:
        await topology.delete_rule(step.path, DEFAULT_RULE)


def _finish(options: Options, ends: _Ends, steps: Sequence[EntityStep]) -> None:
    """All is moved: what was created gets its own metadata instead of the mark."""
    marked = [step for step in steps if step.action in (Action.CREATE, Action.FINISH)]

    async def work(stop: "asyncio.Event") -> None:
        from sbpair.connect import open_topology

        async with open_topology(ends.target) as topology:
            for step in marked:
                await stoppable(stop, topology.update(step.path, {"user_metadata": step.settings.user_metadata}))

    if marked:
        run_async(options, work)


# Messages.


@dataclass(frozen=True, slots=True)
class _Done:
    moves: tuple[Moved, ...]
    left: tuple[LeftThere, ...]
    held: tuple[str, ...]
    empty: bool
    ended: Exit | None


def _move_all(options: Options, wish: _Wish, first: _Look, steps: Sequence[EntityStep], ledger: Path) -> _Done:
    """Move what is there, look again, and go on as long as more comes to light."""
    look, ended = first, None
    began: dict[tuple[str, bool], MailboxMove] = {}
    moved: Counter[tuple[str, bool]] = Counter()
    stays: dict[str, Counter[str]] = {}
    for _ in range(MOST_ROUNDS):
        moves = [move for move in wish.moves(look, steps)[0] if move.counted]
        progress = 0
        stays = {}
        for move in moves:
            began.setdefault((move.entity, move.dead_letter), move)
            number, why, ended = _move_one(options, wish, move, look, ledger)
            moved[move.entity, move.dead_letter] += number
            progress += number
            stays[_mailbox(move)] = why
            if ended is not None:
                break
        if ended is not None:
            break
        look = _look(options, wish, f"What was moved until then stands in {ledger}; the same command goes on.")
        if look.empty or not progress:
            break
    if ended is not None:
        left = tuple(LeftThere(where, reason, number) for where, reason, number in _reasons(stays))
    else:
        left = tuple(_still_there(wish, look, steps, stays))
    accepted = _accepted(ledger)
    there = {one.path.lower(): one.counts.total for one in look.target}
    told = [
        Moved(
            move.entity,
            move.dead_letter,
            move.to,
            move.counted,
            moved[key],
            accepted[_mailbox(move).lower()],
            None if ended is not None else there.get(move.to.lower()),
        )
        for key, move in began.items()
    ]
    held = {move.to for move in began.values() if move.held and moved[move.entity, move.dead_letter]}
    held |= {one.path for one in look.target if is_holding(one.path, wish.ends.source.label) and one.counts.total}
    return _Done(tuple(told), left, tuple(sorted(held)), ended is None and look.empty, ended)


def _mailbox(move: MailboxMove) -> str:
    return dead_letter_path(move.entity) if move.dead_letter else move.entity


def _reasons(stays: Mapping[str, Counter[str]]) -> Iterator[tuple[str, str, int]]:
    for where, why in stays.items():
        for reason, number in why.items():
            if reason != FILTERED_OUT:
                yield where, reason, number


def _still_there(
    wish: _Wish, look: _Look, steps: Sequence[EntityStep], stays: Mapping[str, Counter[str]]
) -> Iterator[LeftThere]:
    """What the last look shows, with the reasons that the moves gave."""
    moves, left = wish.moves(look, steps)
    yield from left
    for move in moves:
        if not move.counted:
            continue
        why = stays.get(_mailbox(move), Counter())
        for reason, number in why.items():
            yield LeftThere(_mailbox(move), reason, number)
        if not why:
            yield LeftThere(_mailbox(move), "came after this run had looked", move.counted)


def _accepted(ledger: Path) -> Counter[str]:
    """How many messages of each queue or subscription the ledger has as sent, by path in lower case."""
    from sbpair.runtime.transfer.ledger import sent_in

    return Counter(key[0].lower() for key in sent_in(ledger))


def _move_one(
    options: Options, wish: _Wish, move: MailboxMove, look: _Look, ledger: Path
) -> tuple[int, Counter[str], Exit | None]:
    """Move the messages of one queue or subscription: how many went, why others stay, and how a signal ended it. What
    hinders one entity does not hinder the next."""
    from sbpair.core.transfer.resend import Selection

    source = EntityRef(wish.ends.source, move.entity, None, True)
    target = EntityRef(wish.ends.target, move.to, None, True)
    active = not move.dead_letter
    request = replace(
        sending_request(options, move.entity, move.to, dead_letter=move.dead_letter, deferred=active, scheduled=active),
        rate_per_second=wish.rate,
        budget_per_second=budget_of(wish.reserve),
        concurrency=wish.concurrency,
    )
    make_judge = resender(Selection(), same_entity=False)

    try:
        if move.held:
            _make_holding_queue(options, wish.ends, move, look.target_tier)
        # Whether a queue may drop what it has got before was settled when the entities were compared.
        recovery = Recovery(
            options, source, target, request, make_judge, session_states=True, despite_duplicate_detection=True
        )
        recovery.plan()
        done, ended = recovery.carry_out(ledger)
    except Interrupted as interrupted:
        return 0, Counter(), Exit.from_label(interrupted.exit_name)
    except (ServiceError, UsageError) as error:
        return 0, Counter({error.message: move.counted}), None
    report = done.report
    why = Counter({one.reason: one.count for one in report.left})
    for failure in report.failures:
        why[f"not read: {failure.error.message}"] += 1
    return report.forwarded + report.already_forwarded, why, ended


def _make_holding_queue(options: Options, ends: _Ends, move: MailboxMove, tier: Tier | None) -> None:
    """The queue that is there for messages without another place; the one of an earlier run is used on."""

    async def work(stop: "asyncio.Event") -> None:
        from sbpair.connect import open_topology

        async def make() -> None:
            if await topology.entity(move.to) is None:
                settings = holding_settings(tier, by_session=move.by_session)
                await topology.create(EntityKind.QUEUE, move.to, settings)

        async with open_topology(ends.target) as topology:
            await stoppable(stop, make())

    run_async(options, work)


# What is said.


def _told(steps: Sequence[EntityStep]) -> tuple[Step, ...]:
    return tuple(Step(step.action, step.kind, step.path, step.notes) for step in steps)


def _go_on(source: str, to: str, auth: AuthMethod | None, wish: _Wish, ledger: Path | None, plan: Path | None) -> str:
    words = ["sbpair", "evacuate", source, to, *(["--auth", auth.value] if auth else [])]
    if plan is not None:
        words += ["--plan", str(plan)]
    else:
        words += [] if wish.dead_letters is Kept.HOLD else ["--dead-letters", wish.dead_letters.value]
        words += [word for pattern in wish.without for word in ("--except", pattern)]
        words += [DESPITE] if wish.despite else []
    words += [] if wish.rate is None else ["--rate", f"{wish.rate:g}"]
    words += [] if wish.reserve is None else ["--reserve", str(wish.reserve)]
    words += [] if ledger is None else ["--ledger", str(ledger)]
    return shlex.join(words)


def _result(done: Evacuation, go_on: str, ended: Exit | None = None) -> CommandResult:
    steps = [
        {"path": step.path, "action": step.action.value, "note": note}
        for step in done.entities
        for note in (step.notes or ("",))
    ]
    moves = [
        {
            "entity": _path_of(move),
            "to": move.to,
            "counted": move.counted,
            "moved": move.moved,
            "accepted": move.accepted,
            "there_now": move.there_now,
        }
        for move in done.moves
    ]
    left = [{"entity": one.entity, "messages": one.messages, "reason": one.reason} for one in done.left]
    return CommandResult(
        "evacuate",
        done,
        (Table("", LINE_COLUMNS, list(_lines(done, moves))),),
        screen=(
            Table("Entities", STEP_COLUMNS, steps),
            Table("Messages", MOVE_COLUMNS, moves),
            *([Table("Left", LEFT_COLUMNS, left)] if left else []),
        ),
        notes=tuple(_notes(done)),
        summary=_summary(done, go_on, ended),
        exit=ended or _exit(done),
        closing=True,
    )


def _path_of(move: Moved) -> str:
    return dead_letter_path(move.entity) if move.dead_letter else move.entity


def _lines(done: Evacuation, moves: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """All of it for a script: a line for each entity, and one for its dead letters where there are any."""
    lines: dict[str, dict[str, Any]] = {
        step.path: {"entity": step.path, "kind": step.kind.value, "action": step.action.value} for step in done.entities
    }
    notes = {step.path: list(step.notes) for step in done.entities}
    for move in moves:
        line = lines.setdefault(move["entity"], {"entity": move["entity"], "kind": "dead letters"})
        lines[move["entity"]] = line | dict(move)
    for one in done.left:
        line = lines.setdefault(one.entity, {"entity": one.entity})
        # Of what could not be browsed nobody knows how many are left.
        line["left"] = line.get("left", 0) + one.messages or None
        notes.setdefault(one.entity, []).append(one.reason)
    for path, line in sorted(lines.items()):
        yield {**dict.fromkeys(column.key for column in LINE_COLUMNS), **line, "note": "; ".join(notes.get(path, ()))}


def _exit(done: Evacuation) -> Exit:
    if done.dry_run:
        nothing = done.source_empty and all(step.action is Action.KEEP for step in done.entities)
        return Exit.OK if nothing else Exit.FINDINGS
    return Exit.OK if done.source_empty or _only_left_out(done) else Exit.PARTIAL


def _only_left_out(done: Evacuation) -> bool:
    return bool(done.left) and all(one.reason == NOT_ASKED_FOR for one in done.left)


def _notes(done: Evacuation) -> Iterator[str]:
    conflicts = [step for step in done.entities if step.action is Action.CONFLICT]
    if done.dry_run and conflicts:
        names = listed(step.path for step in conflicts)
        yield f"In the way: {names}. Nothing is moved before that is changed, or left out with --except."
    for one in done.left:
        if not one.messages:
            yield f"{one.entity}: {one.reason}."
            continue
        would = "would stay" if done.dry_run else "stay" if one.messages != 1 else "stays"
        yield f"{counted(one.messages, 'message')} of {one.entity} {would}: {one.reason}."
    closed = sorted({one.entity for one in done.left if one.reason.endswith(SET_ACTIVE)})
    if closed:
        path = closed[0].removesuffix(f"/{DEAD_LETTER_SUFFIX}")
        activate = shlex.join(["sbpair", "entity", "set-status", f"{done.from_namespace}:{path}", "Active"])
        yield f"So that such messages are moved as well: {activate}"
    if done.held:
        yield (
            f"{'Would be held' if done.dry_run else 'Held'} on {done.to_shown}, for somebody to look into: "
            f"{listed(done.held)}. List them: sbpair entity list 'evacuated/*' --namespace {done.to_namespace}"
        )
    if any(step.action is Action.CREATE for step in done.entities):
        yield (
            f"Not copied to {done.to_shown}: shared access rules of the namespace and of its entities, role "
            "assignments, network rules. Applications need credentials for it."
        )
    for move in done.moves:
        if move.there_now is not None and move.there_now < move.accepted:
            yield (
                f"{move.to} counts {move.there_now:,} of {move.accepted:,} messages that it accepted: consumers have "
                "taken the others, or it has sent them on."
            )


def _summary(done: Evacuation, go_on: str, ended: Exit | None) -> str:
    new = sum(step.action in (Action.CREATE, Action.FINISH) for step in done.entities)
    made = counted(new, "entity", "entities")
    if done.dry_run:
        messages = counted(sum(move.counted for move in done.moves), "message")
        return f"Would create {made} on {done.to_shown} and move {messages} there. {NOT_TOUCHED} Do it: {go_on}"
    number = sum(move.moved for move in done.moves)
    total = sum(move.accepted for move in done.moves)
    earlier = f" ({total:,} with earlier runs)" if total > number else ""
    what = f"Created {made} on {done.to_shown}; it accepted {counted(number, 'message')}{earlier}."
    if done.source_empty:
        return f"{what} {done.from_shown} is empty: every queue, topic and subscription was counted and browsed."
    if ended is not None:
        return f"{what} Interrupted; what was in flight is settled or released. Go on with: {go_on}"
    if _only_left_out(done):
        return f"{what} What is left on {done.from_shown} is what was left out."
    return f"{what} {done.from_shown} is not empty. Go on with: {go_on}"
