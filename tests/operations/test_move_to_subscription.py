"""Messages handed to exactly one subscription: what its topic's rules give to it alone goes, and all else stays."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.connect import open_ends
from sbpair.core.entities import EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import EntityNotFoundError, UsageError
from sbpair.core.events import Event, Forwarded
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import as_sent, compose
from sbpair.operations import Ends, MoveRequest, move
from tests.operations.conftest import World

HELD = "evacuated/fabrikam/topics/news/german"
GERMAN = "news/Subscriptions/german"
ACTION = RuleFacts("de", "country = 'DE'", action="SET seen = 1")


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    """One namespace twice, with a topic whose subscriptions share nothing."""
    async with open_ends(world.pair.primary) as opened:
        topology = opened.topology
        assert topology is not None
        await topology.create(EntityKind.TOPIC, "news", EntitySettings())
        await subscription(opened, "german", RuleFacts("de", "country = 'DE'"))
        await subscription(opened, "french", RuleFacts("fr", "country = 'FR'"))
        await topology.create(EntityKind.QUEUE, HELD, EntitySettings())
        yield opened


async def subscription(ends: Ends, name: str, *rules: RuleFacts, **settings: object) -> None:
    topology, path = ends.topology, f"news/Subscriptions/{name}"
    assert topology is not None
    await topology.create(EntityKind.SUBSCRIPTION, path, EntitySettings(**settings))  # type: ignore[arg-type]
    for rule in rules:
        await topology.create_rule(path, rule)
    if rules:
        await topology.delete_rule(path, "$Default")


async def held(
    ends: Ends, number: int, country: str = "DE", path: str = HELD, session: str | None = None
) -> list[bytes]:
    properties = {"country": country}
    payloads = [
        compose(body=f"{country}{n}", message_id=f"{country}{n}", session_id=session, application_properties=properties)
        for n in range(number)
    ]
    sender = ends.source.sender(path)
    await sender.send(payloads, timeout_seconds=30)
    await sender.close()
    return payloads


async def lying(ends: Ends, path: str) -> list[bytes]:
    receiver = ends.source.receiver(path)
    page = await receiver.peek(250)
    await receiver.close()
    return [as_sent(one.payload).payload for one in page]


async def test_what_only_it_gets_goes_there_unchanged_and_the_queue_goes_once_it_is_empty(
    ends: Ends, tmp_path: Path
) -> None:
    payloads = await held(ends, 5)
    request = MoveRequest(HELD, GERMAN, delete_empty=True, log=tmp_path / "log" / "operations.jsonl")
    planned = await move(ends, replace(request, dry_run=True))
    assert (planned.exit, planned.to, planned.planned_messages) == (Exit.FINDINGS, GERMAN, 5)
    done = await move(ends, replace(request, plan=planned.plan))
    assert (done.exit, done.report.forwarded, done.guarantee) == (Exit.OK, 5, "exactly-once")
    assert await lying(ends, GERMAN) == payloads
    assert await lying(ends, "news/Subscriptions/french") == []
    assert "what is moved goes to news/Subscriptions/german alone, not to its 1 other subscription." in done.remarks[-2]
    assert "They were the same afterwards." in done.remarks[-2]
    assert done.remarks[-1].startswith(f"The queue {HELD}")
    assert ends.topology is not None
    assert await ends.topology.entity(HELD) is None


async def test_what_another_would_get_stays_with_its_rule_and_a_way_that_remains(ends: Ends) -> None:
    payloads = await held(ends, 2)
    await held(ends, 1, "IT")
    await subscription(ends, "all")
    done = await move(ends, MoveRequest(HELD, GERMAN, delete_empty=True))
    assert done.exit is Exit.PARTIAL
    assert {one.reason: one.count for one in done.report.left} == {"all would get a copy, by its rule $Default": 3}
    assert "can be received from evacuated/fabrikam/topics/news/german by the consumers" in done.remarks[-1]
    assert await lying(ends, "news/Subscriptions/all") == await lying(ends, GERMAN) == []
    assert (await lying(ends, HELD))[:2] == payloads, "it is not deleted"
    assert ends.topology is not None
    await ends.topology.delete("news/Subscriptions/all")
    again = await move(ends, MoveRequest(HELD, GERMAN))
    assert {one.reason for one in again.report.left} == {"no rule of the subscription matches it"}
    assert await lying(ends, GERMAN) == payloads


async def test_a_rule_that_changes_messages_or_cannot_be_evaluated_keeps_them(ends: Ends) -> None:
    await held(ends, 1)
    assert ends.topology is not None
    await ends.topology.create_rule(GERMAN, replace(ACTION, name="also"))
    done = await move(ends, MoveRequest(HELD, GERMAN))
    assert [one.reason for one in done.report.left] == ["rule also of the subscription would change it"]
    await ends.topology.delete_rule(GERMAN, "also")
    await subscription(ends, "late", RuleFacts("n", "sys.SequenceNumber > 5"))
    done = await move(ends, MoveRequest(HELD, GERMAN))
    assert [one.reason for one in done.report.left] == ["late would get a copy, by its rule n"]


async def test_sessions_keep_their_order_and_state(ends: Ends) -> None:
    path = f"{HELD}-by-session"
    assert ends.topology is not None
    await ends.topology.create(EntityKind.QUEUE, path, EntitySettings(requires_session=True))
    await subscription(ends, "ordered", RuleFacts("it", "country = 'IT'"), requires_session=True)
    payloads = await held(ends, 20, "IT", path, "one")
    holder = ends.source.receiver(path, session_id="one")
    await holder.set_session_state(b"seen 7")
    await holder.close()
    done = await move(ends, MoveRequest(path, "news/Subscriptions/ordered", delete_empty=True))
    assert (done.exit, done.report.forwarded, done.report.session_states) == (Exit.OK, 20, 1)
    assert await lying(ends, "news/Subscriptions/ordered") == payloads
    there = ends.source.receiver("news/Subscriptions/ordered", session_id="one")
    assert await there.session_state() == b"seen 7"
    await there.close()


async def test_rules_that_change_are_noticed(ends: Ends) -> None:
    await held(ends, 3)
    assert ends.topology is not None
    planned = await move(ends, MoveRequest(HELD, GERMAN, dry_run=True))
    await subscription(ends, "all")
    with pytest.raises(UsageError, match="The rules of news have changed since this was planned"):
        await move(ends, MoveRequest(HELD, GERMAN, plan=planned.plan))
    await ends.topology.delete("news/Subscriptions/all")
    made: list[asyncio.Task[None]] = []

    class MakesOne:
        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded) and not made:
                made.append(asyncio.create_task(subscription(ends, "all")))

    done = await move(ends, MoveRequest(HELD, GERMAN, rate_per_second=1.0), observer=MakesOne())
    await asyncio.gather(*made)
    assert "They have changed meanwhile" in done.remarks[-1]


async def test_what_cannot_be_is_refused(ends: Ends) -> None:
    with pytest.raises(EntityNotFoundError, match="There is no subscription news/Subscriptions/none"):
        await move(ends, MoveRequest(HELD, "news/Subscriptions/none"))
    with pytest.raises(UsageError, match="is no queue where an evacuation holds messages"):
        await move(ends, MoveRequest("orders", GERMAN, delete_empty=True))
