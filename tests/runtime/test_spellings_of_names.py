"""Names are the same in every spelling, wherever the runtime compares what was asked for with what a service, a message
or a file has."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import QueueSettings
from sbpair.core.errors import PairingError, UsageError
from sbpair.core.message import Received
from sbpair.core.rewrite import for_backlog
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.core.transfer.state import Forward
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.runtime.failover.backlog import _by_session, waiting_session
from sbpair.runtime.links import Links
from sbpair.runtime.replication.store import _host_name, destination_of
from sbpair.runtime.transfer.drain import TransferRequest, listed_facts, locked_queues
from sbpair.runtime.transfer.dry_run import DryRun
from sbpair.runtime.transfer.ledger import Ledger, known_in
from sbpair.runtime.transfer.moving import Ends, MoveJob
from sbpair.runtime.transfer.reading import Source
from tests.fakes import FakeClock, FakeNamespace, virtual_time
from tests.runtime.failover.pairs import a_pair, a_world, message, open_pairing

SPELLINGS = (str.lower, str.upper, str.title)
spellings = pytest.mark.parametrize("there", SPELLINGS, ids=("lower", "upper", "title"))


@spellings
def test_what_is_listed_is_told_by_the_names_that_were_asked_for(there: Any) -> None:
    @virtual_time
    async def story() -> None:
        namespace = FakeNamespace("secondary", FakeClock())
        for path in ("a/Orders", "a/News", "b/Later", "a/others"):
            namespace.add_queue(there(path))
        for asked in (["a/orders"], ["a/ORDERS", "A/news"], ["a/Orders", "B/later", "a/gone"]):
            found = await listed_facts(namespace.admin(), asked)
            assert {*found} == {*asked} - {"a/gone"}
            assert [one.path for one in found.values()] == [there(path) for path in found]

    story()


@spellings
def test_a_queue_that_waits_for_a_lock_is_told_by_the_name_that_it_was_given(there: Any) -> None:
    @virtual_time
    async def story() -> None:
        clock = FakeClock()
        sources = [Source(f"given {path}", SimpleNamespace(source=path)) for path in ("Q/One", "q/two")]  # type: ignore[arg-type]
        locks = {there("q/two"): 5.0, there("q/one"): 7.0}
        machine: Any = SimpleNamespace(queues=SimpleNamespace(foreign_locks=lambda now: locks))
        found = locked_queues(sources, machine, clock)
        now = clock.now().timestamp()
        assert {(one.queue, one.until) for one in found} == {("given Q/One", now + 7.0), ("given q/two", now + 5.0)}

    story()


def a_move(path: str, ledger: Any) -> MoveJob:
    namespace = FakeNamespace("contoso", FakeClock())
    access = NamespaceAccess("contoso", namespace.host)
    ends = Ends(namespace.messaging(), namespace.messaging(), source_access=access, target_access=access)
    return MoveJob(
        TransferRequest((path,)),
        ends,
        lambda received: Forward(b"", "to"),
        seen=DestinationSeen("to"),
        facts={},
        clock=namespace.clock,
        observer=SimpleNamespace(),  # type: ignore[arg-type]
        ledger=ledger,
        stop=SimpleNamespace(),  # type: ignore[arg-type]
    )


@spellings
def test_what_a_ledger_has_of_an_entity_is_found_under_any_spelling(there: Any) -> None:
    keys = {(there("Orders"), 1, None, 0), ("orders", 2, None, 0), ("others", 3, None, 0)}
    found = a_move(there("oRders"), SimpleNamespace(forwarded=keys)).recorded
    assert {key[1] for key in found} == {1, 2}
    assert a_move("orders", None).recorded == set()


@spellings
async def test_a_ledger_that_sent_elsewhere_is_refused_whatever_the_spelling(there: Any, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    entry = LedgerEntry(
        queue=there("Backlog/0"),
        sequence_number=1,
        message_id=None,
        enqueued_at_ms=0,
        destination=there("Orders"),
        session_id=None,
        outcome="forwarded",
        time="2026-11-28T00:00:00+00:00",
    )
    await ledger.record([entry])
    await ledger.close()
    for queue in ("backlog/0", "BACKLOG/0"):
        sent, _ = known_in([tmp_path / "ledger.jsonl"], None, {queue: "orders"})
        assert {key[0] for key in sent} == {queue}
        with pytest.raises(UsageError, match="this run sends to"):
            known_in([tmp_path / "ledger.jsonl"], None, {queue: "elsewhere"})


@spellings
def test_a_dry_run_asks_for_each_destination_once(there: Any) -> None:
    run = DryRun(lambda received: Forward(b"x", received.message_id or ""))
    for number, destination in enumerate((there("Orders"), "orders", "news", there("News"))):
        run.add(Received(b"x", number, "q", message_id=destination))
    assert run.destinations == {there("orders") if there is not str.lower else "orders", "news"}
    assert sum(wanted.messages for wanted in run.wanted.values()) == 4


@spellings
def test_a_session_in_the_backlog_is_the_one_of_the_entity_in_any_spelling(there: Any) -> None:
    payload = message("1", session=there("Session"))
    expected = ("orders", "session")
    assert waiting_session(for_backlog(payload, there("Orders"))) == expected
    assert [*_by_session(there("Orders"), [payload, message("2", session="sEssion"), message("3")])] == [expected, None]


@spellings
def test_a_link_serves_all_spellings_of_its_entity(there: Any) -> None:
    links = Links(FakeNamespace("contoso", FakeClock()).messaging())
    assert links.to("orders") is links.to(there("Orders"))
    assert links.to("others") is not links.to("orders")


@spellings
def test_a_journal_knows_destinations_and_namespaces_in_any_spelling(there: Any) -> None:
    assert destination_of(f"/{there('News/Subscriptions/All')}/") == "news/subscriptions/all"
    for host in ("Contoso.Example.com", "Contoso.Example.com:5671"):
        assert _host_name(there(host)) == "contoso.example.com"


@spellings
def test_backlog_queues_that_are_there_are_not_made_again(there: Any) -> None:
    @virtual_time
    async def story() -> None:
        world, pair = a_world(), a_pair(queues=3)
        for path in pair.backlog_paths():
            world.secondary.add_queue(there(path), QueueSettings())
        async with await open_pairing(world, pair):
            asked = {path for operation, path in world.secondary.calls if operation == "admin"}
            assert not asked & {*pair.backlog_paths()}, "the list has them"

    story()


@spellings
def test_a_namespace_is_no_partner_of_itself_in_any_spelling(there: Any) -> None:
    @virtual_time
    async def story() -> None:
        world = a_world()
        world.primary.host, world.secondary.host = "contoso.example.com", there("Contoso.Example.com")
        with pytest.raises(PairingError, match="same namespace"):
            await open_pairing(world, a_pair())

    story()


@spellings
def test_an_entity_is_verified_once(there: Any) -> None:
    @virtual_time
    async def story() -> None:
        world = a_world()
        async with await open_pairing(world, a_pair()) as pairing:
            before = sum(count for (_, path), count in world.primary.calls.items() if path.lower() == "orders")
            await pairing.verify(["orders", there("Orders")])
            asked = sum(count for (_, path), count in world.primary.calls.items() if path.lower() == "orders") - before
            assert asked == 1

    story()
