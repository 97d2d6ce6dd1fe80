"""Draining over real sockets: the adapters against embedded namespaces, every AMQP type, an outage half-way."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
)
from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.concurrency import waits
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.entities import QueueSettings
from sbpair.core.message import Disposition, Received
from sbpair.core.pairing import DOCUMENTED_SETTINGS, expected_backlog_paths
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.report import DrainReport, Left
from sbpair.emulator import Emulator, NamespaceConfig
from sbpair.emulator.entities import QueueDescription
from sbpair.ports import MessageReceiver
from sbpair.runtime.browse import NOT_VISIBLE
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.syphon import syphon
from tests.fakes import RecordingObserver
from tests.waiting import LIMIT_SECONDS

EVERY_TYPE = {
    "null": None,
    "true": True,
    "string": "größer",
    "symbol": Symbol("sym"),
    "binary": b"\x00\xff",
    "ubyte": Ubyte(255),
    "ushort": Ushort(65535),
    "uint": Uint(2**32 - 1),
    "ulong": Ulong(2**64 - 1),
    "byte": Byte(-128),
    "short": Short(-32768),
    "int": Int(-5),
    "long": Long(-(2**62)),
    "float": Float.from_bits(0x7FC00001),
    "double": 1.0e300,
    "char": Char("\u20ac"),
    "timestamp": Timestamp(1_790_000_000_123),
    "uuid": uuid.UUID(int=2**127 + 5),
    "decimal32": Decimal32(b"\x01\x02\x03\x04"),
    "decimal64": Decimal64(bytes(range(8))),
    "decimal128": Decimal128(bytes(range(16))),
    "timespan": Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
    "uri": Described(Symbol("com.microsoft:uri"), "http://example.org"),
    "described number": Described(Ulong(0x24), []),
}
BODIES = (
    {"data": b"plain"},
    {"data": [b"one", b"", b"three"]},
    {"data": bytes(5000)},
    {"value": None},
    {"value": 0.0},
    {"value": False},
    {"value": ""},
    {"value": {}},
    {"value": Described(Symbol("x:y"), [Int(1)])},
    {"value": Array(0x71, (Int(1), Int(2)))},
    {"sequences": [[Int(1), "two"], [None]]},
)


LAX_BATCHES = {
    "partitioned-batch-key": "lax",
    "partitioned-batch-keyless": "lax",
    "partitioned-batch-message-id": "lax",
}


@dataclass
class Stage:
    emulator: Emulator
    primary: AzureMessaging
    secondary: AzureMessaging
    admin: DataPlaneAdmin
    queues: tuple[str, ...]
    observer: RecordingObserver = field(default_factory=RecordingObserver)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def divert(self, payloads: list[bytes], destination: str = "orders", queue: int = 0) -> None:
        sender = self.secondary.sender(self.queues[queue])
        backlog = [for_backlog(payload, destination) for payload in payloads]
        for start in range(0, len(backlog), 100):
            await sender.send(backlog[start : start + 100], timeout_seconds=30)
        await sender.close()

    async def drain(self, *, ledger: Ledger | None = None, **options: object) -> DrainReport:
        request = TransferRequest(self.queues, **options)  # type: ignore[arg-type]
        return await drain(
            DrainJob(
                request,
                secondary=self.secondary,
                primary=self.primary,
                admin=self.admin,
                clock=LoopClock(),
                observer=self.observer,
                ledger=ledger,
                stop=self.stop,
            )
        )

    async def at_home(self, path: str = "orders") -> list[Received]:
        return await browse(self.primary.receiver(path))

    async def in_backlog(self, *, dead_letter: bool = False) -> list[Received]:
        found = [await browse(self.secondary.receiver(path, dead_letter=dead_letter)) for path in self.queues]
        return [one for queue in found for one in queue]


async def browse(receiver: MessageReceiver) -> list[Received]:
    found: list[Received] = []
    number = 1
    while page := await receiver.peek(250, from_sequence_number=number):
        found += page
        number = page[-1].sequence_number + 1
    await receiver.close()
    return found


def access(emulator: Emulator, name: str) -> NamespaceAccess:
    text = emulator.connection_string(name)
    return NamespaceAccess(
        label=name,
        host=host_of(text),
        auth=AuthMethod.CONNECTION_STRING,
        connection_string=Secret(text),
        ca_file=str(emulator.ca_path),
    )


@asynccontextmanager
async def stage(queues: int = 4, laws: Mapping[str, str] | None = None) -> AsyncIterator[Stage]:
    names = [NamespaceConfig(name, laws=laws or {}) for name in ("primary", "secondary")]
    async with Emulator(names, seed=1) as emulator:
        emulator.namespace("primary").create_queue("orders")
        admin = DataPlaneAdmin(access(emulator, "secondary"))
        paths = expected_backlog_paths("primary", queues)
        for path in paths:
            await admin.create_queue(path, DOCUMENTED_SETTINGS)
        primary = AzureMessaging(access(emulator, "primary"))
        secondary = AzureMessaging(access(emulator, "secondary"))
        try:
            yield Stage(emulator, primary, secondary, admin, paths)
        finally:
            await primary.close()
            await secondary.close()
            await admin.close()


def body_of(payload: bytes) -> bytes:
    return b"".join(payload[span.start : span.end] for span in sections.body_sections(payload, sections.scan(payload)))


def raw(payload: bytes, section: Section) -> bytes:
    return b"".join(payload[span.start : span.end] for span in sections.scan(payload) if span.section == section)


async def test_every_type_and_body_arrives_as_the_bytes_that_were_sent() -> None:
    async with stage() as on:
        sent = {}
        for number, body in enumerate(BODIES):
            sent[f"m{number}"] = sections.build(
                header={HeaderField.DURABLE: True, HeaderField.PRIORITY: Ubyte(5), HeaderField.TTL: Uint(3_600_000)},
                message_annotations={Symbol("x-app"): Decimal64(bytes(8))},
                properties={
                    PropertyField.MESSAGE_ID: f"m{number}",
                    PropertyField.USER_ID: b"\x01",
                    PropertyField.CORRELATION_ID: uuid.UUID(int=number),
                    PropertyField.CONTENT_ENCODING: Symbol("gzip"),
                    PropertyField.GROUP_ID: "s",
                    PropertyField.GROUP_SEQUENCE: Uint(number),
                },
                application_properties=EVERY_TYPE,
                footer={Symbol("f"): Char("z")},
                **body,
            )
        await on.divert(list(sent.values()))
        report = await on.drain()
        assert (report.forwarded, report.completed, report.confirmed_empty, report.left) == (11, 11, True, ())
        arrived = await on.at_home()
        assert [one.message_id for one in arrived] == list(sent)
        for one in arrived:
            original = sent[str(one.message_id)]
            assert body_of(one.payload) == body_of(original)
            for section in (Section.APPLICATION_PROPERTIES, Section.FOOTER):
                assert raw(one.payload, section) == raw(original, section)
            assert one.session_id == "s"
            assert describe(one.payload).ttl_seconds == 3600
            annotations = sections.read(one.payload, sections.scan(one.payload), Section.MESSAGE_ANNOTATIONS)
            assert annotations["x-app"] == Decimal64(bytes(8))


async def test_two_thousand_messages_with_sessions_survive_an_outage_half_way() -> None:
    async with stage() as on:
        for queue in range(4):
            mine = [
                compose(body=f"{number}", message_id=f"{number:04}", session_id=f"s{queue}-{number % 3}")
                for number in range(queue * 500, queue * 500 + 500)
            ]
            await on.divert(mine, queue=queue)
        draining = asyncio.create_task(on.drain(concurrency=2, rate_per_second=2500))
        orders = on.emulator.namespace("primary").get_queue("orders")
        async with asyncio.timeout(LIMIT_SECONDS):
            while orders.counts().active < 600:
                await asyncio.sleep(0.01)
        on.emulator.faults("primary").add("dark")
        await asyncio.sleep(2)
        assert not draining.done()
        on.emulator.faults("primary").clear()
        report = await draining
        arrived = await on.at_home()
        ids = [str(one.message_id) for one in arrived]
        assert set(ids) == {f"{number:04}" for number in range(2000)}
        # Twice at most what was on its way when the connection went.
        assert len(ids) - 2000 <= 2 * 1000
        assert report.confirmed_empty
        assert report.forwarded == report.completed == 2000
        assert report.locks_lost == 0
        first_seen = dict.fromkeys(ids)
        by_session: dict[str, list[str]] = {}
        session_of = {str(one.message_id): str(one.session_id) for one in arrived}
        for one in first_seen:
            by_session.setdefault(session_of[one], []).append(one)
        assert len(by_session) == 12
        assert all(numbers == sorted(numbers) for numbers in by_session.values())
        assert await on.in_backlog() == []


async def test_duplicate_detection_at_home_takes_out_what_an_outage_doubled() -> None:
    async with stage(queues=1) as on:
        on.emulator.namespace("primary").delete_queue("orders")
        description = type(on.emulator.namespace("secondary").get_queue(on.queues[0]).description)
        on.emulator.namespace("primary").create_queue("orders", description(requires_duplicate_detection=True))
        await on.divert([compose(body=b"x", message_id=f"{number}") for number in range(300)])
        on.emulator.faults("primary").add("drop:operation=send,every=2,count=3")
        report = await on.drain()
        ids = [one.message_id for one in await on.at_home()]
        assert sorted(ids) == sorted({f"{number}" for number in range(300)})
        assert report.confirmed_empty


async def test_the_connection_to_the_backlog_breaks_again_and_again() -> None:
    async with stage(queues=2) as on:
        await on.admin.update_queue(on.queues[0], with_locks(5.0))
        await on.admin.update_queue(on.queues[1], with_locks(5.0))
        for queue in range(2):
            await on.divert([compose(body=b"x", message_id=f"{queue}-{n}") for n in range(400)], queue=queue)
        on.emulator.faults("secondary").add("drop:operation=settle,every=90,count=2")
        report = await on.drain()
        ids = [one.message_id for one in await on.at_home()]
        assert set(ids) == {f"{queue}-{n}" for queue in range(2) for n in range(400)}
        assert len(ids) == 800
        assert (report.confirmed_empty, report.forwarded) == (True, 800)


async def test_links_that_break_while_settling_lose_and_double_nothing(tmp_path) -> None:
    async with stage(queues=1) as on:
        await on.admin.update_queue(on.queues[0], with_locks(5.0))
        await on.divert([compose(body=b"x", message_id=f"{n}") for n in range(200)])
        on.emulator.faults("secondary").add("detach:operation=settle,nth=50")
        ledger = Ledger(tmp_path / "ledger.jsonl")
        report = await on.drain(ledger=ledger)
        await ledger.close()
        assert sorted(str(one.message_id) for one in await on.at_home()) == sorted(f"{n}" for n in range(200))
        assert report.confirmed_empty
        again = Ledger(tmp_path / "ledger.jsonl", resume=True)
        await again.close()
        assert len(again.forwarded) == 200


async def test_topics_sessions_and_partitions_as_destinations() -> None:
    async with stage(queues=2) as on:
        primary = on.emulator.namespace("primary")
        description = type(primary.get_queue("orders").description)
        primary.create_topic("events")
        primary.create_subscription("events", "all")
        primary.create_queue("carts", description(requires_session=True))
        primary.create_queue("wide", description(enable_partitioning=True, requires_session=True))
        await on.divert([compose(body=b"x", message_id=f"e{n}") for n in range(50)], "events")
        for destination in ("carts", "wide"):
            mine = [compose(body=b"x", message_id=f"{destination}{n}", session_id=f"s{n % 5}") for n in range(50)]
            await on.divert(mine, destination, queue=1)
        report = await on.drain()
        assert dict(report.per_destination) == {"events": 50, "carts": 50, "wide": 50}
        assert report.confirmed_empty
        assert len(await browse(on.primary.receiver("events/Subscriptions/all"))) == 50
        for destination in ("carts", "wide"):
            receiver = on.primary.receiver(destination, session_id="s2")
            got = await receiver.receive(50, wait_seconds=2)
            assert [one.message_id for one in got] == [f"{destination}{n}" for n in range(2, 50, 5)]
            await receiver.close()


def make_partitioned(on: Stage) -> None:
    """The first backlog queue anew, in sixteen partitions."""
    secondary = on.emulator.namespace("secondary")
    secondary.delete_queue(on.queues[0])
    secondary.create_queue(on.queues[0], QueueDescription(enable_partitioning=True, lock_duration_seconds=60.0))


async def test_what_lies_in_a_partition_that_is_away_is_left_and_comes_with_the_next_drain() -> None:
    async with stage(queues=1) as on:
        make_partitioned(on)
        for n in range(160):  # a batch without keys goes to one partition
            await on.divert([compose(body=b"x", message_id=f"{n}")])
        fault = on.emulator.faults("secondary").add("partition-down:partition=5")
        report = await on.drain()
        assert (report.forwarded, report.confirmed_empty) == (150, False)
        assert report.left == (Left(NOT_VISIBLE, 10),)
        on.emulator.faults("secondary").remove(fault)
        report = await on.drain()
        assert (report.forwarded, report.confirmed_empty) == (10, True)
        assert len({one.message_id for one in await on.at_home()}) == len(await on.at_home()) == 160


@pytest.mark.parametrize("duplicates", [False, True], ids=["", "duplicates"])
@pytest.mark.parametrize("laws", [{}, LAX_BATCHES], ids=["strict", "lax"])
async def test_a_drain_learns_from_refused_batches_what_a_partitioned_destination_takes(duplicates, laws) -> None:
    """Sessions, keys and neither in one backlog; where the namespace refuses no mixed batch, the same arrives."""
    async with stage(laws=laws) as on:
        description = QueueDescription(enable_partitioning=True, requires_duplicate_detection=duplicates)
        on.emulator.namespace("primary").create_queue("parts", description)
        keyed = {Symbol("x-opt-partition-key"): "k"}
        sent = [compose(body="x", message_id=f"{number:03}", session_id=f"s{number % 4}") for number in range(40)]
        sent += [compose(body="x", message_id=f"{number:03}") for number in range(40, 80)]
        sent += [
            sections.build(message_annotations=keyed, properties={PropertyField.MESSAGE_ID: f"{number:03}"}, data=b"x")
            for number in range(80, 120)
        ]
        await on.divert(sent, destination="parts")
        report = await on.drain()
        assert (report.forwarded, report.dead_lettered, report.left) == (120, 0, ())
        counts = on.emulator.namespace("primary").get_queue("parts").counts()
        assert (counts.active, counts.dead_letter) == (120, 0)
        assert await on.in_backlog() == await on.in_backlog(dead_letter=True) == []


async def test_a_partitioned_backlog_is_emptied() -> None:
    async with stage(queues=1) as on:
        make_partitioned(on)
        await on.divert([compose(body=b"x", message_id=f"{n}") for n in range(500)])
        report = await on.drain()
        assert len(await on.at_home()) == 500
        assert report.confirmed_empty


async def test_dead_letters_leave_and_come_back() -> None:
    async with stage(queues=1) as on:
        await on.divert([compose(body=b"1", message_id="1")], "not-yet-there")
        report = await on.drain()
        assert report.dead_letter_reasons == (("EntityNotFound", 1),)
        [dead] = await on.in_backlog(dead_letter=True)
        assert describe(dead.payload).dead_letter_reason == "EntityNotFound"
        report = await on.drain(dead_letter=True)
        assert report.left == (Left("undeliverable: EntityNotFound", 1),)
        on.emulator.namespace("primary").create_queue("not-yet-there")
        report = await on.drain(dead_letter=True)
        assert (report.forwarded, report.confirmed_empty) == (1, True)
        assert report.original_faults == (("EntityNotFound", 1),)
        [home] = await on.at_home("not-yet-there")
        assert describe(home.payload).application_properties == {}


async def test_deferred_and_foreign_locks_are_named() -> None:
    async with stage(queues=1) as on:
        await on.divert([compose(body=b"1", message_id=f"{n}") for n in range(3)])
        other = on.secondary.receiver(on.queues[0])
        held = await other.receive(2, wait_seconds=20)
        await other.settle(held[0], Disposition.DEFER)
        report = await on.drain(lock_wait_seconds=0.0)
        assert (report.forwarded, report.left) == (1, (Left("deferred", 1), Left("locked elsewhere", 1)))
        await other.close()


async def test_what_is_waited_for_is_known_until_it_comes() -> None:
    async with stage(queues=1) as on:
        await on.divert([compose(body=b"1", message_id=f"{n}") for n in range(3)])
        other = on.secondary.receiver(on.queues[0])
        held = await other.receive(2, wait_seconds=20)
        draining = asyncio.create_task(on.drain(idle_seconds=60.0))
        locked = await _told("Waiting for ")
        latest = datetime.now(UTC) + timedelta(seconds=DOCUMENTED_SETTINGS.lock_duration_seconds or 0.0)
        said = re.fullmatch(rf"Waiting for {len(held)} messages of {on.queues[0]}, .* until (\S+) UTC .*", locked)
        assert said, locked
        until = datetime.combine(latest, datetime.strptime(said[1], "%H:%M:%S").time(), UTC)
        assert (latest - until).seconds < 100, "the seconds of a day: midnight may lie between"
        for one in held:
            await other.settle(one, Disposition.RELEASE)
        assert re.fullmatch(r"Nothing is left; it ends at \S+ UTC if nothing comes before", await _told("Nothing"))
        on.stop.set()
        assert (await draining).forwarded == 3
        assert not [one for one in waits() if one.sentence]
        await other.close()


async def _told(beginning: str) -> str:
    """What a run says of its wait, once it begins so."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not (told := [one.sentence for one in waits() if one.sentence.startswith(beginning)]):
            await asyncio.sleep(0.01)
    return told[0]


async def test_a_lock_that_is_renewed_stops_its_own_session_and_no_other_however_much_waits_behind_it() -> None:
    async with stage(queues=1) as on:
        waiting = [compose(body=b"1", message_id=f"{n:03}", session_id="locked") for n in range(90)]
        beside = [compose(body=b"1", message_id=f"{n:03}", session_id="beside") for n in range(90, 95)]
        await on.divert(waiting + beside)
        other = on.secondary.receiver(on.queues[0])
        [held] = await other.receive(1, wait_seconds=20)
        running = asyncio.create_task(on.drain(in_flight_messages=20))
        async with asyncio.timeout(LIMIT_SECONDS):
            while on.emulator.namespace("primary").get_queue("orders").counts().active < 5:
                await other.renew_lock(held)
                await asyncio.sleep(0.1)
        assert [describe(one.payload).session_id for one in await on.at_home()] == ["beside"] * 5
        await other.settle(held, Disposition.RELEASE)
        await other.close()
        async with asyncio.timeout(LIMIT_SECONDS):
            report = await running
        assert (report.forwarded, report.confirmed_empty, report.left) == (95, True, ())
        assert [describe(one.payload).message_id for one in await on.at_home()][5:] == [f"{n:03}" for n in range(90)]


async def test_deferred_messages_are_fetched_when_that_is_wanted() -> None:
    async with stage(queues=2) as on:
        await on.divert([compose(body=b"%d" % n, message_id=f"{n}") for n in range(300)], queue=1)
        other = on.secondary.receiver(on.queues[1])
        held: list[Received] = []
        while len(held) < 250:
            held += await other.receive(250 - len(held), wait_seconds=20)
        await asyncio.gather(*(other.settle(one, Disposition.DEFER) for one in held))
        await other.close()
        rehearsal = await on.drain(deferred=True, dry_run=True)
        assert (rehearsal.forwarded, rehearsal.left) == (300, ())
        report = await on.drain(deferred=True)
        assert (report.forwarded, report.left, report.confirmed_empty) == (300, (), True)
        home = await on.at_home()
        assert sorted(int(one.message_id or "") for one in home) == list(range(300))
        bodies = {bytes(sections.read(one.payload, sections.scan(one.payload), Section.DATA)) for one in home}
        assert bodies == {b"%d" % n for n in range(300)}


async def test_a_drain_that_fetches_deferred_messages_slowly_stops_when_it_is_told_to() -> None:
    async with stage(queues=1) as on:
        await on.divert([compose(body=b"x", message_id=f"{n}") for n in range(200)])
        other = on.secondary.receiver(on.queues[0])
        held: list[Received] = []
        while len(held) < 200:
            held += await other.receive(200 - len(held), wait_seconds=20)
        await asyncio.gather(*(other.settle(one, Disposition.DEFER) for one in held))
        await other.close()
        running = asyncio.create_task(on.drain(deferred=True, rate_per_second=10.0))
        async with asyncio.timeout(LIMIT_SECONDS):
            while not on.emulator.namespace("primary").get_queue("orders").counts().active:
                await asyncio.sleep(0.1)
            on.stop.set()
            report = await running
        assert report.ended_by == "stop"
        assert report.forwarded < 100, "what was in hand, and no more"


async def test_deferred_messages_that_somebody_holds_or_a_filter_leaves_are_named() -> None:
    async with stage(queues=1) as on:
        await on.divert([compose(body=b"x", message_id=f"{n}") for n in range(3)])
        other = on.secondary.receiver(on.queues[0])
        held = await other.receive(3, wait_seconds=20)
        for one in held:
            await other.settle(one, Disposition.DEFER)
        await other.receive_deferred([held[0].sequence_number])
        report = await on.drain(deferred=True, wanted=MessageFilter(where=Where("sys.MessageId <> '2'")))
        assert report.forwarded == 1
        assert (report.left, report.filtered_out) == ((Left("deferred", 1),), 1)
        await other.close()


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("sys.MessageId = '0'", (Left("deferred", 1),)),
        ("sys.MessageId = '3'", ()),
        ("'0' + sys.MessageId * 2 = 1", None),
    ],
)
async def test_a_filtered_drain_leaves_those_deferred_messages_that_it_is_about(
    condition: str, left: tuple[Left, ...] | None
) -> None:
    """All others are what the filter leaves aside, as the active ones are. Without `left`: it cannot be evaluated."""
    async with stage(queues=1) as on:
        await on.divert([compose(body=b"x", message_id=f"{n}") for n in range(3)])
        other = on.secondary.receiver(on.queues[0])
        held = await other.receive(3, wait_seconds=20)
        await asyncio.gather(*(other.settle(one, Disposition.DEFER) for one in held))
        await other.close()
        for dry_run in (True, False):
            report = await on.drain(wanted=MessageFilter(where=Where(condition)), dry_run=dry_run)
            assert report.left == ((Left("deferred", 3),) if left is None else left)
            assert not report.confirmed_empty


async def test_the_syphon_stops_within_its_bound() -> None:
    async with stage(queues=2) as on:
        await on.divert([compose(body=b"x", message_id=f"{n}") for n in range(200)])
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
        async with asyncio.timeout(LIMIT_SECONDS):
            while on.emulator.namespace("primary").get_queue("orders").counts().active < 200:
                await asyncio.sleep(0.02)
        await on.divert([compose(body=b"x", message_id="later")], queue=1)
        async with asyncio.timeout(LIMIT_SECONDS):
            while on.emulator.namespace("primary").get_queue("orders").counts().active < 201:
                await asyncio.sleep(0.02)
        on.stop.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            report = await running
        assert (report.forwarded, report.completed) == (201, 201)


def with_locks(seconds: float) -> QueueSettings:

    return replace(DOCUMENTED_SETTINGS, lock_duration_seconds=seconds)
