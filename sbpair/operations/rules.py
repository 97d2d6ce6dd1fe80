"""The verbs on the rules of a topic: which take a message, what none takes, and a subscription for that.

Each takes the `Ends` of the namespace (`sbpair.open_ends(access)`) and needs Manage.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import EntityExistsError, EntityNotFoundError, UsageError
from sbpair.core.inspection.entity import Changed, EntityAction
from sbpair.core.message import Received
from sbpair.core.names import by_path, same_name, subscription_path
from sbpair.core.rules import (
    CATCH_ALL_RULE,
    MessageOfRules,
    Takes,
    TestedMessage,
    Unmatched,
    UnmatchedMessage,
    catch_all_of,
    is_catch_all,
    tested,
)
from sbpair.core.summary import describe
from sbpair.core.transfer.restored import Restorable
from sbpair.operations.entity import EntityChange, carry_out, topology_of
from sbpair.operations.restore import read_archives
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import browse
from sbpair.service import EntityStatus

__all__ = [
    "CatchAllRequest",
    "TestRulesRequest",
    "TestedMessage",
    "Unmatched",
    "UnmatchedRequest",
    "create_catch_all",
    "find_unmatched",
    "test_rules",
]


@dataclass(frozen=True, slots=True)
class TestRulesRequest:
    """Which message the rules are asked about."""

    __test__ = False
    topic: str
    payload: bytes
    """An encoded message, as it would be sent."""


@dataclass(frozen=True, slots=True)
class UnmatchedRequest:
    """Which messages are looked through; none: only the filter is found out."""

    topic: str
    archives: tuple[Path, ...] = ()
    """Files or folders that drain, cleanup, purge or peek wrote. Messages for other destinations do not count."""
    source: str | None = None
    """A queue or subscription to browse."""
    max_messages: int = 10_000
    """Of those that are browsed, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchAllRequest(EntityChange):
    """The catch-all subscription `path` to create, or to bring up to date."""


async def test_rules(
    ends: Ends, request: TestRulesRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> TestedMessage:
    """Ask every rule of a topic about a message: which take it, what their actions change, and why others do not.

    Reads only. What the service sets when it takes a message, such as its number, is not known.

    Raises:
        EntityNotFoundError: there is no such topic.
        ServiceError: its rules could not be read.
    """
    subscriptions = await run_until(stop or asyncio.Event(), _subscriptions(ends, request.topic))
    rules = tested(subscriptions, MessageOfRules(request.payload))
    taken_by = tuple(dict.fromkeys(rule.subscription for rule in rules if rule.takes is Takes.YES))
    return TestedMessage(shown_name(ends.source_access), request.topic, taken_by, rules)


test_rules.__test__ = False  # type: ignore[attr-defined]  # it is a verb


async def find_unmatched(
    ends: Ends, request: UnmatchedRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Unmatched:
    """What no subscription of a topic takes: as a filter, and among messages of archives or of an entity.

    Reads only; with a `source` it needs Listen. Catch-all subscriptions do not count.

    Raises:
        UsageError: an archive cannot be read.
        EntityNotFoundError: there is no such topic.
        ServiceError: its rules could not be read, or the source not browsed.
    """
    return await run_until(stop or asyncio.Event(), _unmatched(ends, request))


async def _unmatched(ends: Ends, request: UnmatchedRequest) -> Unmatched:
    found = await _subscriptions(ends, request.topic)
    catch_all = catch_all_of(found)
    messages: list[tuple[Received, bytes]] = []
    for one in read_archives(request.archives):
        if isinstance(one, Restorable) and same_name(one.forward.destination, request.topic):
            messages.append((one.received, one.forward.payload))
    whole = True
    if request.source is not None:
        report = await browse(ends.source, [request.source], max_messages=request.max_messages)
        if report.failed:
            raise report.failed[0].error
        whole = not report.left_off
        messages += [(message.received, message.received.payload) for message in report.messages]
    asked = bool(request.archives) or request.source is not None
    applications = [facts for facts in found if not is_catch_all(facts)]
    return Unmatched(
        namespace=shown_name(ends.source_access),
        topic=request.topic,
        filter=None if catch_all.rule is None else catch_all.rule.sql,
        problem=catch_all.problem,
        notes=catch_all.notes,
        catch_all=next((facts.path for facts in found if is_catch_all(facts)), None),
        looked_at=len(messages) if asked else None,
        messages=tuple(_not_taken(applications, messages)),
        whole=whole,
        nothing_left=catch_all.nothing_left,
    )


def _not_taken(
    subscriptions: list[EntityFacts], messages: Iterable[tuple[Received, bytes]]
) -> Iterable[UnmatchedMessage]:
    for received, payload in messages:
        summary = describe(payload)
        said = {rule.takes for rule in tested(subscriptions, MessageOfRules(payload, summary))}
        if Takes.YES not in said:
            number = received.sequence_number if received.origin is None else received.origin.sequence_number
            yield UnmatchedMessage(received.queue, number, summary.message_id, summary.subject, Takes.FAILS in said)


async def _subscriptions(ends: Ends, topic: str) -> list[EntityFacts]:
    topology = topology_of(ends)
    found = await topology.entity(topic)
    if found is None or found.kind is not EntityKind.TOPIC:
        kind = "nothing of that name" if found is None else f"a {found.kind.value}"
        raise EntityNotFoundError(f"{topic} on {shown_name(ends.source_access)} is no topic: {kind}.", entity=topic)
    return await topology.subscriptions(topic, rules=True)


async def create_catch_all(
    ends: Ends, request: CatchAllRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Changed:
    """Create a subscription that takes what no other subscription of its topic takes, or bring it up to date.

    It begins disabled, since a new subscription has a rule that takes everything, and becomes active with its own rule
    alone. A run that was killed before is taken up. While the rule is replaced, both are there: nothing is missed.

    Raises:
        UsageError: the filter cannot be made; the text says why and what can be done.
        EntityExistsError: the subscription is there and is no catch-all.
        EntityNotFoundError: there is no such topic.
        ServiceError: the namespace refused it.
    """
    topic, _, name = request.path.partition("/Subscriptions/")
    found = await run_until(stop or asyncio.Event(), _subscriptions(ends, topic))
    path = subscription_path(topic, name)
    present = by_path(found).get(path)
    if present is not None and not is_catch_all(present) and present.settings.user_metadata != _NOTE:
        raise EntityExistsError(
            f"{request.place(ends)} is there, and is no catch-all. Nothing was changed.",
            hint="Give the catch-all another name.",
            entity=path,
        )
    wanted = catch_all_of([facts for facts in found if facts is not present])
    if wanted.rule is None:
        raise UsageError(f"{wanted.problem} Nothing was changed.")
    rule = wanted.rule
    change = _change(ends, request, present, rule, wanted.notes)
    if wanted.nothing_left and present is None:
        sentence = " ".join((f"The rules of {topic} take every message. Nothing was changed.", *wanted.notes))
        change = replace(change, changed=False, sentence=sentence)
    return await carry_out(ends, request, change, lambda: _bring_about(ends, path, present, rule), stop)


_NOTE = "sbpair: takes what no other subscription takes"
"""By which a subscription is known that a killed run left."""


def _replaced(present: EntityFacts | None, rule: RuleFacts) -> list[str]:
    """Names of its rules that go: those of an older catch-all, and the one that it was made with."""
    names = [known.name for known in ([] if present is None else present.rules) if known.name != rule.name]
    return [name for name in names if name == "$Default" or name.startswith(CATCH_ALL_RULE)]


def _change(
    ends: Ends, request: CatchAllRequest, present: EntityFacts | None, rule: RuleFacts, notes: Sequence[str]
) -> Changed:
    changed = (
        present is None
        or rule.name not in [known.name for known in present.rules]
        or bool(_replaced(present, rule))
        or not present.settings.status.may_send
    )
    detail = f"catch-all; {rule.sql}"
    place = request.place(ends)
    state = "would take" if request.dry_run and changed else "takes"
    sentence = f"{place} {state} what no other subscription takes ({rule.sql})."
    if request.dry_run or not changed:
        sentence += " Nothing was changed."
    sentence = " ".join((sentence, *notes))
    doing = f"{'Create' if present is None else 'Bring up to date'} the catch-all {place} ({rule.sql})"
    name = shown_name(ends.source_access)
    return Changed(name, request.path, EntityAction.CREATE, request.dry_run, changed, detail, sentence, doing)


async def _bring_about(ends: Ends, path: str, present: EntityFacts | None, rule: RuleFacts) -> None:
    topology = topology_of(ends)
    if present is None:
        settings = replace(EntitySettings(), status=EntityStatus.DISABLED, user_metadata=_NOTE)
        await topology.create(EntityKind.SUBSCRIPTION, path, settings)
        present = await topology.entity(path)
    if present is None or rule.name not in [known.name for known in present.rules]:
        await topology.create_rule(path, rule)
    for name in _replaced(present, rule):
        await topology.delete_rule(path, name)
    if present is None or not present.settings.status.may_send:
        await topology.update(path, {"status": EntityStatus.ACTIVE})
