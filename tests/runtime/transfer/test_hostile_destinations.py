"""Backlog messages whose destination would act on what it is sent, instead of storing it."""

import asyncio
import json

import pytest

from sbpair.amqp import sections
from sbpair.amqp.types import Int, Timestamp
from sbpair.core.errors import ArgumentRefusedError
from sbpair.core.events import Forwarded
from sbpair.core.message import Received
from sbpair.core.names import is_destination
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.core.transfer.state import Forward
from sbpair.core.transfer.verdict import NOT_CONFIGURED, Classifier
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.syphon import syphon
from tests.runtime.transfer.test_drain_emulator import Stage, stage

FAR_FUTURE = Timestamp(4_000_000_000_000)
NOT_DESTINATIONS = (
    "orders/$management",
    "ORDERS/$Management",
    "/orders/$management/",
    "orders\\$management",
    "$management",
    "$cbs",
    "orders/$deadletterqueue",
    "orders/$deadletterqueue/$management",
    "events/Subscriptions/all",
    "events/subscriptions/all/$management",
    "orders/%24management",
    "orders?x=$management",
    "orders#x",
    "orders/../$management",
    "orders/..",
    "./orders",
    "orders//x",
    "amqps://elsewhere.example/orders",
    "orders\nforged",
    "orders\x00",
    "orders\u200b",
    "\uff04management",
    "o" * 261,
)


def management_request(path: str, operation: str, body: object) -> bytes:
    """A management request in the clothes of a diverted message."""
    return sections.build(
        properties=["attack", None, None, None, "nobody"],
        application_properties={"x-ms-path": path, "operation": operation, "com.microsoft:server-timeout": Int(30000)},
        value=body,
    )


def delete_everything(path: str) -> bytes:
    body = {"message-count": Int(4000), "enqueued-time-utc": FAR_FUTURE}
    return management_request(path, "com.microsoft:batch-delete-messages", body)


async def put(on: Stage, payload: bytes, queue: int = 0) -> None:
    """As anybody may who can send to a backlog queue."""
    sender = on.secondary.sender(on.queues[queue])
    await sender.send([payload], timeout_seconds=30)
    await sender.close()


async def five_orders(on: Stage) -> None:
    sender = on.primary.sender("orders")
    await sender.send([compose(body=b"", message_id=f"m{number}") for number in range(5)], timeout_seconds=30)
    await sender.close()


@pytest.mark.parametrize("path", NOT_DESTINATIONS)
def test_these_are_no_destinations(path: str) -> None:
    assert not is_destination(path)


@pytest.mark.parametrize(
    "path", ["orders", "invoices/incoming", "Mixed/Case.Path-1_2", "contoso/x-servicebus-transfer/0"]
)
def test_these_are(path: str) -> None:
    assert is_destination(path)


@pytest.mark.parametrize("path", ["orders/$management", "ORDERS/$Management", "orders\\$management"])
async def test_a_drain_carries_out_no_request_that_a_message_contains(path: str, tmp_path) -> None:
    async with stage(queues=1) as on:
        await five_orders(on)
        await put(on, delete_everything(path))
        ledger = Ledger(tmp_path / "ledger.jsonl")
        report = await on.drain(ledger=ledger)
        await ledger.close()
        assert len(await on.at_home()) == 5
        assert (report.forwarded, report.dead_letter_reasons) == (0, (("InvalidDestination", 1),))
        (dead,) = await on.in_backlog(dead_letter=True)
        assert describe(dead.payload).dead_letter_reason == "InvalidDestination"
        assert "$" in (describe(dead.payload).dead_letter_description or "")
        (line,) = [
            json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines() if "outcome" in line
        ]
        assert line["outcome"] == "dead-lettered"


async def test_the_rules_of_a_subscription_stay() -> None:
    async with stage(queues=1) as on:
        primary = on.emulator.namespace("primary")
        primary.create_topic("events")
        primary.create_subscription("events", "all")
        request = management_request(
            "events/Subscriptions/all/$management", "com.microsoft:remove-rule", {"rule-name": "$Default"}
        )
        await put(on, request)
        report = await on.drain()
        assert report.dead_letter_reasons == (("InvalidDestination", 1),)
        sender = on.primary.sender("events")
        await sender.send([compose(body=b"", message_id="m")], timeout_seconds=30)
        await sender.close()
        assert len(await on.at_home("events/Subscriptions/all")) == 1


async def test_every_path_that_is_none_is_dead_lettered_and_none_opened() -> None:
    async with stage(queues=1) as on:
        await five_orders(on)
        for path in NOT_DESTINATIONS:
            await put(on, delete_everything(path))
        report = await on.drain()
        assert report.dead_letter_reasons == (("InvalidDestination", len(NOT_DESTINATIONS)),)
        assert len(await on.at_home()) == 5


async def test_dead_letters_with_such_a_destination_stay_where_they_are() -> None:
    async with stage(queues=1) as on:
        await five_orders(on)
        await put(on, delete_everything("orders/$management"))
        await on.drain()
        report = await on.drain(dead_letter=True)
        assert [(left.reason, left.count) for left in report.left] == [("undeliverable: InvalidDestination", 1)]
        assert len(await on.at_home()) == 5


async def test_the_syphon_carries_out_nothing_either() -> None:
    async with stage(queues=1) as on:
        await five_orders(on)
        await put(on, delete_everything("orders/$management"))
        running = asyncio.create_task(
            syphon(
                DrainJob(
                    TransferRequest(on.queues),
                    secondary=on.secondary,
                    primary=on.primary,
                    admin=on.admin,
                    clock=LoopClock(),
                    observer=on.observer,
                    stop=on.stop,
                )
            )
        )
        async with asyncio.timeout(30):
            while not await on.in_backlog(dead_letter=True):
                await asyncio.sleep(0.05)
        on.stop.set()
        report = await running
        assert report.dead_letter_reasons == (("InvalidDestination", 1),)
        assert len(await on.at_home()) == 5


async def test_a_path_of_sixty_kilobytes_is_dead_lettered_at_the_first_attempt() -> None:
    async with stage(queues=1) as on:
        await put(on, delete_everything("o" * 60_000))
        report = await on.drain()
        assert report.dead_letter_reasons == (("InvalidDestination", 1),)
        (dead,) = await on.in_backlog(dead_letter=True)
        assert len(describe(dead.payload).dead_letter_description or "") < 300


@pytest.mark.parametrize("path", ["orders/$management", "$cbs", "events/Subscriptions/all"])
async def test_no_sender_opens_such_a_path_whoever_asks_for_it(path: str) -> None:
    async with stage(queues=1) as on:
        await five_orders(on)
        sender = on.primary.sender(path)
        with pytest.raises(ArgumentRefusedError, match="not the path of a queue or topic"):
            await sender.send([delete_everything("orders")], timeout_seconds=30)
        await sender.close()
        assert len(await on.at_home()) == 5


async def test_only_the_configured_entities_get_messages_if_asked_so() -> None:
    async with stage(queues=2) as on:
        on.emulator.namespace("primary").create_queue("payroll")
        await on.divert([compose(body=b"", message_id=f"o{number}") for number in range(3)], "Orders")
        await on.divert([compose(body=b"", message_id=f"p{number}", session_id="s") for number in range(2)], "payroll")
        await on.divert([compose(body=b"", message_id="q")], "PAYROLL", queue=1)
        planned = await on.drain(only=("orders",), dry_run=True)
        report = await on.drain(only=("orders",))
        for one in (planned, report):
            assert one.forwarded == 3
            assert {(left.reason.lower(), left.count) for left in one.left} == {(f"{NOT_CONFIGURED}payroll", 3)}
        assert (len(await on.at_home()), len(await on.at_home("payroll"))) == (3, 0)
        assert not report.confirmed_empty
        assert (await on.drain(only=("orders", "payroll"))).forwarded == 3
        assert len(await on.at_home("payroll")) == 3


async def test_a_thousand_strange_destinations_are_a_hundred_reasons() -> None:
    async with stage(queues=1) as on:
        sender = on.secondary.sender(on.queues[0])
        for start in range(0, 1000, 100):
            batch = [for_backlog(compose(body=b"", message_id=f"{n}"), f"x{n}") for n in range(start, start + 100)]
            await sender.send(batch, timeout_seconds=30)
        await sender.close()
        report = await on.drain(only=("orders",), dry_run=True)
        assert (len(report.left), sum(left.count for left in report.left)) == (101, 1000)


async def test_spellings_of_one_destination_are_one_link_and_one_number() -> None:
    async with stage(queues=1) as on:
        for path in ("orders", "ORDERS", "Orders", "oRdErS"):
            await on.divert([compose(body=b"", message_id=path)], path)
        planned = await on.drain(dry_run=True)
        report = await on.drain()
        for one in (planned, report):
            (place,) = one.per_destination
            assert (place[0].lower(), place[1]) == ("orders", 4)
        entities = {event.entity for event in on.observer.events if isinstance(event, Forwarded)}
        assert len(entities) == 1


async def test_reasons_that_strangers_gave_dead_letters_are_cut_and_few() -> None:
    classify, faults = Classifier(now=lambda: 1e9), []
    for number in range(300):
        payload = sections.build(
            properties=["m"],
            application_properties={"x-ms-path": "orders", "DeadLetterReason": f"{number}-" + "r" * 5000},
            data=b"",
        )
        verdict = classify(Received(payload, number, "q/0/$deadletterqueue"))
        assert isinstance(verdict, Forward)
        assert verdict.fault is not None
        faults.append(verdict.fault)
    assert len(set(faults)) == 101
    assert max(map(len, faults)) == 260


def test_a_destination_longer_than_any_path_is_cut_and_is_none_afterwards() -> None:
    shown = describe(for_backlog(compose(body=b"", message_id="m"), "o" * 60_000)).destination or ""
    assert len(shown) == 260
    assert not is_destination(shown)
    longest = "o" * 260
    assert describe(for_backlog(compose(body=b"", message_id="m"), longest)).destination == longest
