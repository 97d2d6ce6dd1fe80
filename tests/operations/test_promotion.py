"""A forced promotion of an embedded namespace that is behind: every planted loss is found, and nothing else is said."""

import base64
import json
import random
import re
import shlex
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sbpair.connect import open_ends
from sbpair.core.errors import UsageError
from sbpair.core.inspection.contents import Contents
from sbpair.core.inspection.promotion import PromotionClaim
from sbpair.core.message import Disposition
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import compose
from sbpair.core.serialization import iso_time
from sbpair.emulator.geo import ANSWER_SECONDS
from sbpair.operations import (
    CopyRequest,
    Ends,
    ListEntitiesRequest,
    MoveRequest,
    PromotionReport,
    PromotionRequest,
    copy,
    move,
    read_namespace,
    report_promotion,
)
from sbpair.service import EntityStatus
from tests.operations.conftest import World
from tests.waiting import LIMIT_SECONDS

LAG_SECONDS = 3600.0
QUEUES = ("orders", "invoices", "parked", "out")


@pytest.fixture
def here(world: World) -> Iterator[World]:
    for name, paths in (("contoso", ("parked", "out")), ("fabrikam", ("source", "target"))):
        for path in paths:
            world.emulator.namespace(name).create_queue(path)
    yield world


async def send(ends: Ends, path: str, *names: str) -> None:
    sender = ends.source.sender(path)
    await sender.send([compose(body=name, message_id=name) for name in names], timeout_seconds=30)
    await sender.close()


async def consume(ends: Ends, path: str, count: int) -> list[str]:
    receiver = ends.source.receiver(path)
    got = []
    while len(got) < count:
        for message in await receiver.receive(count - len(got), wait_seconds=10.0):
            await receiver.settle(message, Disposition.COMPLETE)
            got.append(message.message_id or "")
    await receiver.close()
    return got


async def peeked(ends: Ends, path: str, file: Path) -> None:
    """As `peek -o jsonl` writes it."""
    receiver = ends.source.receiver(path)
    lines = [
        {
            "queue": path,
            "sequence_number": message.sequence_number,
            "message_id": message.message_id,
            "enqueued_at": iso_time(message.enqueued_at),
            "state": message.state.value,
            "path": path,
            "payload_base64": base64.b64encode(message.payload).decode(),
        }
        for message in await receiver.peek(250)
    ]
    await receiver.close()
    with file.open("a", encoding="utf-8") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in lines)


def fall_behind(world: World, lag_seconds: float | None = LAG_SECONDS) -> None:
    world.emulator.call(lambda running: running.namespace("contoso").replicate_geo(lag_seconds))


def promote(world: World) -> None:
    """By force; returns when connections were cut."""
    cut = threading.Event()

    def forced(running: Any) -> None:
        namespace = running.namespace("contoso")
        namespace.geo_replication.promote(list, forced=True)
        namespace.clock.call_at(namespace.clock.now() + 2 * ANSWER_SECONDS, cut.set)

    world.emulator.call(forced)
    assert cut.wait(LIMIT_SECONDS)


def there(world: World) -> dict[str, list[str]]:
    def ids(running: Any) -> dict[str, list[str]]:
        return {
            path: [str(one.message_id) for one in running.namespace("contoso").get_queue(path).main.log]
            for path in QUEUES
        }

    return world.emulator.call(ids)


def said(report: PromotionReport, *claims: PromotionClaim) -> set[tuple[str, str | None]]:
    return {(one.entity, one.message_id) for one in report.claims if one.claim in claims}


async def test_every_planted_loss_is_found_and_nothing_else_is_said(here: World, tmp_path: Path) -> None:
    for seed in range(4):
        await play(here, tmp_path / str(seed), random.Random(seed), stopped=seed % 2 == 0)


async def play(world: World, folder: Path, chance: random.Random, *, stopped: bool) -> None:
    """Random numbers of messages that were replicated, lost, moved on, brought back, and consumed."""
    folder.mkdir()
    number = {name: chance.randint(1, 4) for name in ("old", "tail", "taken", "out", "in", "inside")}
    one, two = world.pair.primary, world.pair.secondary
    names = {name: [f"{folder.name}-{name}-{index}" for index in range(count)] for name, count in number.items()}
    ledger, archive = folder / "in.jsonl", folder / "peeked.jsonl"
    async with (
        open_ends(one) as ends,
        open_ends(two) as other,
        open_ends(one, two) as away,
        open_ends(two, one) as home,
    ):
        await send(ends, "orders", *names["old"], *names["taken"])
        await send(ends, "out", *names["out"])
        await send(ends, "invoices", *names["inside"])
        fall_behind(world)
        await send(ends, "orders", *names["tail"])
        await send(other, "source", *names["in"])
        await move(home, MoveRequest("source", "parked", ledger=ledger))
        await move(away, MoveRequest("out", "target", ledger=folder / "out.jsonl"))
        await move(ends, MoveRequest("invoices", "parked", ledger=folder / "inside.jsonl"))
        await peeked(ends, "orders", archive)
    before = there(world)
    assert sorted(before["parked"][-number["in"] - number["inside"] :]) == sorted(names["in"] + names["inside"])
    promote(world)
    fall_behind(world, None)
    after = there(world)
    lost = {("orders", name) for name in names["tail"]} | {("parked", name) for name in names["in"]}
    back = {("out", name) for name in names["out"]} | {("invoices", name) for name in names["inside"]}
    assert {(path, name) for path, found in after.items() for name in found if (path, name) in back} == back
    files = (ledger, folder / "out.jsonl", folder / "inside.jsonl")
    async with open_ends(one) as ends:
        consumed = [] if stopped else await consume(ends, "orders", chance.randint(1, 2))
        report = await report_promotion(ends, PromotionRequest(ledgers=files, archives=(archive,), undisturbed=stopped))
        await consume(ends, "orders", len(there(world)["orders"]))
        for path in ("out", "invoices"):
            await consume(ends, path, len(there(world)[path]))
    assert report.exit is Exit.FINDINGS
    assert said(report, PromotionClaim.OPENED_AGAIN) == back
    assert (
        said(report, PromotionClaim.TWICE, PromotionClaim.NOT_COMPLETED, PromotionClaim.FEWER, PromotionClaim.CHANGED)
        == set()
    )
    if stopped:
        # Of what only a ledger names, nobody knows whether it had a time to live of its own.
        assert said(report, PromotionClaim.LOST) == {place for place in lost if place[0] == "orders"}
        assert said(report, PromotionClaim.UNACCOUNTED) == {place for place in lost if place[0] == "parked"}
    else:
        assert said(report, PromotionClaim.LOST) == set()
        assert said(report, PromotionClaim.UNACCOUNTED) == lost | {("orders", name) for name in consumed}
    for claim in report.claims:
        only_copy = claim.entity == "invoices"
        assert ("it may be the only copy" in claim.evidence) == only_copy
        words = {"out": "message complete contoso:out", "invoices": "message show contoso:invoices"}
        assert words.get(claim.entity, "restore" if claim.entity == "orders" else "ask its sender") in claim.command


async def test_what_a_copy_leaves_is_not_opened_again_and_a_second_one_is_there_twice(
    here: World, tmp_path: Path
) -> None:
    one, two = here.pair.primary, here.pair.secondary
    async with (
        open_ends(one) as ends,
        open_ends(one, two) as away,
        open_ends(two, one) as home,
        open_ends(two) as other,
    ):
        await send(ends, "orders", "a")
        await copy(away, CopyRequest("orders", "target", ledger=tmp_path / "copied.jsonl"))
        await send(other, "source", "b", "c")
        await move(home, MoveRequest("source", "invoices", ledger=tmp_path / "in.jsonl"))
        fall_behind(here)
        promote(here)
    async with open_ends(one) as ends:
        files = (tmp_path / "copied.jsonl", tmp_path / "in.jsonl")
        clean = await report_promotion(ends, PromotionRequest(ledgers=files))
        assert (clean.claims, clean.exit, clean.known) == ((), Exit.OK, 2)
        await send(ends, "invoices", "b")
        await send(ends, "invoices", "not named")
        await send(ends, "invoices", "not named")
        report = await report_promotion(ends, PromotionRequest(ledgers=files))
    (claim,) = report.claims
    assert (claim.claim, claim.entity, claim.message_id, claim.sequence_number) == (
        PromotionClaim.TWICE,
        "invoices",
        "b",
        3,
    )
    assert claim.command == "sbpair message complete contoso:invoices 3 --archive again"


async def test_what_went_to_a_topic_is_missed_where_no_subscription_has_it(here: World, tmp_path: Path) -> None:
    one, two, file = here.pair.primary, here.pair.secondary, tmp_path / "in.jsonl"
    namespace = here.emulator.namespace("contoso")
    namespace.create_topic("news")
    namespace.create_subscription("news", "all")
    async with open_ends(two) as other, open_ends(two, one) as home, open_ends(one) as ends:
        await send(other, "source", "a", "b")
        await move(home, MoveRequest("source", "news", ledger=file))
        clean = await report_promotion(ends, PromotionRequest(ledgers=(file,)))
        assert (clean.claims, clean.known) == ((), 2)
        assert await consume(ends, "news/Subscriptions/all", 1) == ["a"]
        report = await report_promotion(ends, PromotionRequest(ledgers=(file,), undisturbed=True))
    (claim,) = report.claims
    assert (claim.claim, claim.entity, claim.message_id) == (PromotionClaim.UNACCOUNTED, "news", "a")
    assert claim.evidence.endswith("no subscription may have taken it")


async def test_counts_and_settings_of_a_snapshot(here: World, tmp_path: Path) -> None:
    """Counts tell that there are fewer, not why; of a Geo-DR failover the messages are on the old namespace."""
    async with open_ends(here.pair.primary) as ends, open_ends(here.pair.secondary) as new:
        await send(ends, "orders", "a", "b", "c")
        found = await read_namespace(ends, ListEntitiesRequest())
        snapshot = Contents.from_dict(json.loads(json.dumps(Contents.of(found).to_dict())))
        assert (await report_promotion(ends, PromotionRequest(snapshot))).exit is Exit.OK
        await consume(ends, "orders", 2)
        description = here.emulator.namespace("contoso").get_queue("parked").description
        closed = type(description)(status=EntityStatus.DISABLED)
        here.emulator.call(lambda running: running.namespace("contoso").update_queue("parked", closed))
        report = await report_promotion(ends, PromotionRequest(snapshot))
        on_new = await report_promotion(new, PromotionRequest(snapshot))
    fewer, changed = (
        next(one for one in report.claims if one.claim is claim)
        for claim in (PromotionClaim.FEWER, PromotionClaim.CHANGED)
    )
    assert len(report.claims) == 2
    assert fewer.evidence == "3 in the snapshot, 1 now; consumed, expired or lost is unknown"
    assert (changed.entity, changed.evidence) == ("parked", "status: Active in the snapshot, Disabled now")
    assert list(report.unread) == ["parked", "parked/$deadletterqueue"]
    assert "sbpair move contoso:orders fabrikam:orders --dry-run" in {one.command for one in on_new.claims}
    assert any("does not move messages" in note for note in on_new.notes)


@pytest.mark.parametrize(
    ("settings", "since", "claim"),
    [
        ({}, None, PromotionClaim.LOST),
        ({"default_message_time_to_live_seconds": 1}, None, PromotionClaim.UNACCOUNTED),
        (
            {"default_message_time_to_live_seconds": 1, "dead_lettering_on_message_expiration": True},
            None,
            PromotionClaim.LOST,
        ),
        ({}, 2**40, None),
    ],
)
async def test_lost_is_said_only_where_it_cannot_have_expired(
    here: World, tmp_path: Path, settings: dict[str, Any], since: float | None, claim: PromotionClaim | None
) -> None:
    kind = type(here.emulator.namespace("contoso").get_queue("orders").description)
    here.emulator.call(lambda running: running.namespace("contoso").update_queue("orders", kind(**settings)))
    at = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    payload = base64.b64encode(compose(body="x", message_id="a")).decode()
    line = {"queue": "orders", "sequence_number": 1, "message_id": "a", "enqueued_at": at, "state": "active"}
    file = tmp_path / "peeked.jsonl"
    file.write_text(json.dumps({**line, "path": "orders", "payload_base64": payload}) + "\n", encoding="utf-8")
    async with open_ends(here.pair.primary) as ends:
        request = PromotionRequest(archives=(file,), undisturbed=True, since=since)
        report = await report_promotion(ends, request)
    assert [one.claim for one in report.claims] == ([] if claim is None else [claim])


async def test_a_run_without_an_end_may_never_have_completed(here: World, tmp_path: Path) -> None:
    whole, cut_off = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    async with open_ends(here.pair.primary, here.pair.secondary) as away, open_ends(here.pair.primary) as ends:
        await send(ends, "out", "a")
        fall_behind(here)
        await move(away, MoveRequest("out", "target", ledger=whole))
        promote(here)
    *lines, end = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    assert '"run-ended"' in end
    cut_off.write_text("".join(lines), encoding="utf-8")
    async with open_ends(here.pair.primary) as ends:
        for file, claim in ((whole, PromotionClaim.OPENED_AGAIN), (cut_off, PromotionClaim.NOT_COMPLETED)):
            report = await report_promotion(ends, PromotionRequest(ledgers=(file,)))
            assert said(report, claim) == {("out", "a")}
            assert len(report.claims) == 1
        with pytest.raises(UsageError, match="no ledger"):
            await report_promotion(ends, PromotionRequest(ledgers=(tmp_path / "none.jsonl",)))
        for wrong in (b'"time": 5', b'"time": "x"', b'"destination": null'):
            name = wrong.split(b":")[0]
            text = re.sub(name + rb': "[^"]*"', wrong, whole.read_bytes().replace(b"contoso@", b"x@"))
            cut_off.write_bytes(text.replace(b"fabrikam@", b"contoso@"))
            with pytest.raises(UsageError, match="Cannot read the ledger"):
                await report_promotion(ends, PromotionRequest(ledgers=(cut_off,)))


async def test_names_out_of_a_snapshot_stand_quoted_in_commands(here: World) -> None:
    async with open_ends(here.pair.primary) as ends:
        found = await read_namespace(ends, ListEntitiesRequest())
        foreign = replace(found.entities[0], path="it's; {rm}")
        snapshot = Contents.of(replace(found, entities=(foreign, *found.entities)))
        report = await report_promotion(ends, PromotionRequest(snapshot))
    (claim,) = report.claims
    assert shlex.split(claim.command) == ["sbpair", "entity", "show", "contoso:it's; {rm}"]
