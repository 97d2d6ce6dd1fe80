"""Geo-disaster recovery: the failover leaves messages in the former primary, and an operator who knows only what the
tool prints brings them into the new one by an approved plan, although the first two attempts are killed."""

import asyncio
import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from sbpair.connect import open_topology
from sbpair.core.entities import EntityKind, EntitySettings
from sbpair.core.message import Disposition
from sbpair.core.pairing import Side
from sbpair.settings import load
from tests.cli.conftest import embedded_pair
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities
from tests.waiting import until

EACH = 80
LOCK_SECONDS = 5.0
"""What a killed process holds is locked for so long."""
KILLED_AFTER = (40, 100)
"""Lines in the ledger: the second run completes what the first one had sent only."""
HELD = "evacuated/local-primary"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Entities]:
    runner = Sbpair(tmp_path)
    with (
        (tmp_path / "emulator.out").open("w", encoding="utf-8") as out,
        embedded_pair(runner, "--alias", "contoso", stdout=out),
    ):
        yield Entities(runner)


def make_entities(world: Entities) -> None:
    async def work() -> None:
        pair = load(environ=world.runner.variables(), directory=world.runner.home).pair("local")
        brief = EntitySettings(lock_duration_seconds=LOCK_SECONDS)
        async with open_topology(pair.primary) as topology:
            await topology.create(EntityKind.QUEUE, "orders", brief)
            sessions = EntitySettings(lock_duration_seconds=LOCK_SECONDS, requires_session=True)
            await topology.create(EntityKind.QUEUE, "by-session", sessions)
            await topology.create(EntityKind.TOPIC, "news", EntitySettings())
            await topology.create(EntityKind.SUBSCRIPTION, "news/Subscriptions/all", brief)

    asyncio.run(work())


def alias_of(world: Entities) -> str:
    """The connection string of the applications, as the emulator printed it."""
    lines = (world.runner.home / "emulator.out").read_text(encoding="utf-8").splitlines()
    return next(line.partition("\t")[2] for line in lines if line.startswith("contoso\t"))


def send(text: str, entity: str, ids: list[str], session: str | None = None) -> None:
    with ServiceBusClient.from_connection_string(text) as client:
        sender = client.get_topic_sender(entity) if entity == "news" else client.get_queue_sender(entity)
        with sender:
            sender.send_messages([ServiceBusMessage(one, message_id=one, session_id=session) for one in ids])


def printed(text: str, command: str) -> list[str]:
    """The words of a command that the tool has printed, without its own name."""
    found = re.search(rf"sbpair {command}[^\n]*", text)
    assert found is not None, text
    return shlex.split(found[0])[1:]


def test_what_a_geo_dr_failover_left_behind_comes_home_by_what_the_tool_prints(world: Entities) -> None:
    runner = world.runner
    make_entities(world)
    alias = alias_of(world)
    ids = {name: [f"{name}-{n}" for n in range(EACH)] for name in ("orders", "by-session", "news")}
    for name, named in ids.items():
        send(alias, name, named, "one" if name == "by-session" else None)
    world.settle("orders", ["Broken"] * 3, Disposition.DEAD_LETTER)

    failed_over = runner("emulator", "failover", "contoso")
    assert failed_over.code == 0, failed_over
    send(alias, "orders", ["after"])
    assert world.ids("orders", Side.SECONDARY) == ["after"], "the alias leads to the new primary, with its entities"
    assert len(world.ids("orders")) == EACH - 3, "no message went with it"

    shown = runner(*printed(failed_over.stderr, "evacuate"))
    assert shown.code == 5, shown
    planned = runner(*printed(shown.stderr, "evacuate"), "--plan-out", "plan.json")
    assert planned.code == 0, planned
    line = printed(planned.stderr, "evacuate")
    assert "--plan" in line
    ledger = runner.home / "evacuate-local-primary-local-secondary.jsonl"
    for lines in KILLED_AFTER:
        killed = runner.begin(*line, "--yes", "--rate", "50")
        until(lambda least=lines: ledger.exists() and ledger.read_bytes().count(b"\n") >= least, killed)  # type: ignore[misc]
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    left = sum(len(world.ids(path)) for path in ("orders", "by-session", "news/Subscriptions/all"))
    assert 0 < left < 3 * EACH, "it was killed in its midst"

    done = runner(*line, "--yes", "-o", "json", timeout=300)
    assert (done.code, done.data["source_empty"], done.data["left"]) == (0, True, []), done
    listed = runner(*printed(done.stderr, "entity list"), "-o", "json")
    held = {one["path"] for one in listed.data["entities"]}
    assert held == {f"{HELD}/queues/orders/dead-letters", f"{HELD}/topics/news/all"}

    dead = set(world.ids(f"{HELD}/queues/orders/dead-letters", Side.SECONDARY))
    assert dead == set(ids["orders"][:3])
    arrived = Counter(world.ids("orders", Side.SECONDARY))
    assert set(arrived) == {"after", *ids["orders"][3:]}
    assert set(world.ids(f"{HELD}/topics/news/all", Side.SECONDARY)) == set(ids["news"])
    in_order = list(dict.fromkeys(world.ids("by-session", Side.SECONDARY)))
    assert in_order == ids["by-session"]
    for path in ("orders", "by-session", "news/Subscriptions/all"):
        assert world.ids(path) == world.ids(path, dead_letter=True) == []
