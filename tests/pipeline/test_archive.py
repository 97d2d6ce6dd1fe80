"""Archiving: what lies in the queues is in the archive once, and is completed there only afterwards."""

import asyncio
import base64
import json

import pytest

from sbpair.core.errors import EntityNotFoundError, UsageError
from sbpair.core.pairing import Side
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.emulator.entities import QueueDescription
from sbpair.pipeline.files import compact
from sbpair.pipeline.follow import import_drained
from sbpair.pipeline.manifest import LocalStore
from sbpair.pipeline.rows import content_digest
from sbpair.pipeline.settling import CHANGED, Completing
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.pipeline.stage import Stage, backlog, messages, rows_in

pytestmark = pytest.mark.spark


def ids_in(session: StartedSpark, *archives: str) -> list[str]:
    return sorted(row["message_id"] for row in rows_in(session, *archives))


def expected(count: int, prefix: str = "m") -> list[str]:
    return sorted(f"{prefix}-{number}" for number in range(count))


def test_running_again_adds_only_what_is_new(session: StartedSpark, plain: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(250))
    first = stage.archive(plain)
    assert (first.rows, first.files, first.per_queue) == (250, 3, {backlog(0): 250})
    again = stage.archive(session)
    assert (again.rows, again.files, again.spans) == (0, 0, ())
    stage.divert(messages(40, prefix="new"))
    # A queue beyond the configured ones, of an application that ran with more.
    stage.emulator.namespace("shop-neu").create_queue(backlog(17), QueueDescription())
    stage.divert(messages(10, prefix="other"), queue=17)
    assert stage.archive(session, dry_run=True).rows == 0
    assert stage.archive(plain).rows == 50
    assert ids_in(session, stage.archive_path) == sorted([*expected(250), *expected(40, "new"), *expected(10, "other")])
    assert stage.in_backlog() == 290


def test_files_lie_in_folders_of_pair_queue_and_date_with_every_byte(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(3))
    stage.archive(session)
    (file,) = LocalStore(stage.folder / "archive").manifest().files
    assert file.path.startswith("data/pair=shop/queue=shop-weu%2Fx-servicebus-transfer%2F0/date=20")
    rows = rows_in(session, stage.archive_path)
    stored = stage.browse("secondary", backlog(0))
    assert [bytes(row["payload"]) for row in rows] == [one.payload for one in stored]
    assert [row["enqueued_at"].timestamp() for row in rows] == [one.enqueued_at for one in stored]


def test_a_queue_made_again_is_archived_again(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(20))
    stage.archive(session)
    stage.emulator.namespace("shop-neu").delete_queue(backlog(0))
    stage.emulator.namespace("shop-neu").create_queue(backlog(0), QueueDescription())
    stage.divert(messages(5, prefix="second-life"))
    assert stage.archive(session).rows == 5
    assert ids_in(session, stage.archive_path) == sorted([*expected(20), *expected(5, "second-life")])


def test_what_two_archives_hold_is_read_once(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(20))
    stage.archive(session)
    stage.divert(messages(5, prefix="more"))
    other = str(stage.folder / "other")
    stage.archive(session, into=other)
    assert ids_in(session, stage.archive_path, other) == sorted([*expected(20), *expected(5, "more")])


def test_taking_empties_the_queues_into_the_archive(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(250, sessions=3))
    stage.divert(messages(7, prefix="dead"), queue=1)
    stage.dead_letter_all(1, "Broken")
    report = stage.archive(session, take=True, dead_letters=(False, True), round_messages=100)
    assert (report.rows, report.settled, report.left) == (257, 257, {})
    assert stage.in_backlog() == 0
    assert stage.browse("secondary", backlog(1), dead_letter=True) == []
    assert ids_in(session, stage.archive_path) == sorted([*expected(250), *expected(7, "dead")])


def test_taking_goes_on_where_a_crash_left_archived_messages_in_their_queue(
    session: StartedSpark, stage: Stage
) -> None:
    stage.divert(messages(30))
    stage.archive(session)  # as a crash between the commit and the completions leaves it
    stage.divert(messages(5, prefix="new"))
    report = stage.archive(session, take=True)
    assert (report.rows, report.settled) == (5, 35)
    assert stage.in_backlog() == 0
    assert len(ids_in(session, stage.archive_path)) == 35


def test_only_what_the_archive_has_is_completed(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(30))
    report = stage.archive(session, take=True, last=20)
    assert (report.rows, report.settled) == (20, 20)
    assert [one.message_id for one in stage.browse("secondary", backlog(0))] == [f"m-{n}" for n in range(20, 30)]


def test_a_message_that_is_not_the_archived_one_stays(stage: Stage) -> None:
    stage.divert(messages(3))
    archived = [(backlog(0), False, number, content_digest(b"\x00Sw\x40")) for number in (1, 2, 3)]
    (settled,) = Completing(stage.pair, patience_seconds=2.0).of(archived)
    assert (settled.completed, settled.left) == (0, {CHANGED: 3})
    assert stage.in_backlog() == 3


def test_only_what_a_filter_wants_is_archived_and_taken(session: StartedSpark, stage: Stage) -> None:
    """What is covered is covered for this filter only, so the archive takes no other."""
    stage.divert(messages(120, sessions=3))
    wanted = MessageFilter(session_id="s-1")
    ids = sorted(f"m-{number}" for number in range(1, 120, 3))
    assert stage.archive(session, wanted=wanted).rows == 40
    assert ids_in(session, stage.archive_path) == ids
    for other in (EVERYTHING, MessageFilter(session_id="s-2")):
        with pytest.raises(UsageError, match="holds only messages with 'session_id s-1'"):
            stage.archive(session, wanted=other)
    report = stage.archive(session, wanted=wanted, take=True, ledger=stage.folder / "taken")
    assert (report.rows, report.settled, report.left) == (0, 40, {})
    assert stage.in_backlog() == 80
    assert sorted(one.message_id or "" for one in stage.browse("secondary", backlog(0))) == sorted(
        set(expected(120)) - set(ids)
    )
    (ledger,) = (stage.folder / "taken").glob("*.jsonl")
    lines = list(outcomes_in(ledger))
    assert (len(lines), {outcome for _, outcome in lines}) == (40, {"taken"})


def test_small_files_are_joined(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(900))
    stage.archive(session, compact=False)
    store = LocalStore(stage.folder / "archive")
    assert len(store.manifest().files) == 9
    assert compact(store, session, "joined") == 9
    (file,) = store.manifest().files
    assert (file.rows, file.first, file.last) == (900, 1, 900)
    assert ids_in(session, stage.archive_path) == expected(900)


def test_a_file_system_behind_hadoop_works_the_same(session: StartedSpark, stage: Stage) -> None:
    uri = f"file://{stage.folder}/hadoop"
    stage.divert(messages(150))
    assert stage.archive(session, into=uri).rows == 150
    assert stage.archive(session, into=uri).rows == 0
    stage.divert(messages(10, prefix="new"), queue=1)
    report = stage.archive(session, into=uri, take=True)
    assert (report.rows, report.settled, report.total_rows) == (10, 160, 160)
    assert ids_in(session, uri) == sorted([*expected(150), *expected(10, "new")])


def test_what_a_drain_archived_is_taken_in_once(session: StartedSpark, stage: Stage) -> None:
    from sbpair.connect import open_sides
    from sbpair.runtime.clock import LoopClock, Quiet
    from sbpair.runtime.transfer.drain import DrainJob, ToArchive, TransferRequest, drain

    stage.divert(messages(30, sessions=2))
    stored = {one.message_id: one.payload for one in stage.browse("secondary", backlog(0))}

    async def archive_by_drain() -> None:
        async with open_sides(stage.pair.resolve()) as sides:
            await drain(
                DrainJob(
                    TransferRequest((backlog(0),), to=ToArchive(stage.folder / "drained")),
                    secondary=sides.secondary,
                    primary=sides.primary,
                    admin=None,
                    clock=LoopClock(),
                    observer=Quiet(),
                    ledger=None,
                    stop=asyncio.Event(),
                )
            )

    asyncio.run(archive_by_drain())
    (file,) = (stage.folder / "drained").glob("*.jsonl")
    store = LocalStore(stage.folder / "archive")
    assert import_drained(store, "shop", file).rows == 30
    assert import_drained(store, "shop", file).files == 0
    rows = rows_in(session, stage.archive_path)
    assert {(row["message_id"], row["session_id"], row["destination"]) for row in rows} == {
        (f"m-{number}", f"s-{number % 2}", "orders") for number in range(30)
    }
    assert set(stored) == {row["message_id"] for row in rows}


def test_lines_that_are_none_of_a_drains_archive_are_named(stage: Stage) -> None:
    file = stage.folder / "wrong.jsonl"
    line = {"queue": "q", "sequence_number": 1, "message_id": None, "enqueued_at": 1.0}
    whole = json.dumps(line | {"payload_base64": base64.b64encode(b"x").decode()})
    file.write_text(f"{whole}\n{json.dumps(line)}\n")
    added = import_drained(LocalStore(stage.folder / "archive"), "shop", file)
    assert (added.per_queue, added.lines) == ({"q": 1}, (2,))
    assert [path.read_text() for path in added.unsent] == [json.dumps(line) + "\n"]
    with pytest.raises(UsageError, match="Line 1"):
        import_drained(LocalStore(stage.folder / "archive"), "shop", added.unsent[0])


def test_entities_of_both_sides_lie_in_an_archive_for_each_side(session: StartedSpark, stage: Stage) -> None:
    """As an audit of active/active wants them. Their numbers have nothing to do with each other."""
    primary = stage.emulator.namespace("shop-weu")
    primary.create_topic("events")
    primary.create_subscription("events", "billing")
    stage.emulator.namespace("shop-neu").create_queue("orders", QueueDescription())
    stage.send("primary", "orders", messages(30, sessions=3))
    stage.send("primary", "events", messages(5, prefix="event"))
    stage.send("secondary", "orders", messages(29, sessions=3))
    here = {"entities": ("orders", "events/Subscriptions/billing"), "side": Side.PRIMARY}
    of_primary, of_secondary = str(stage.folder / "primary"), str(stage.folder / "secondary")
    report = stage.archive(session, into=of_primary, **here)
    assert report.per_queue == {"orders": 30, "events/Subscriptions/billing": 5}
    assert stage.archive(session, into=of_primary, **here).rows == 0
    assert stage.archive(session, into=of_secondary, entities=("orders",)).rows == 29
    assert ids_in(session, of_primary) == sorted([*expected(30), *expected(5, "event")])
    assert ids_in(session, of_secondary) == expected(29)
    behind_hadoop = f"file://{stage.folder}/hadoop"
    assert stage.archive(session, into=behind_hadoop, entities=("orders",), side=Side.PRIMARY).rows == 30
    with pytest.raises(UsageError, match="holds messages of the primary; this run asks for those of the secondary"):
        stage.archive(session, into=of_primary, entities=("orders",))
    with pytest.raises(EntityNotFoundError):
        stage.archive(session, into=of_primary, entities=("elsewhere",), side=Side.PRIMARY)
    for refused in (
        lambda: stage.replay(session, archives=(of_primary,)),
        lambda: stage.reconcile(session, [of_primary], []),
    ):
        with pytest.raises(UsageError, match="holds messages of the primary's own queues"):
            refused()
    assert len(stage.at_home()) == 30
