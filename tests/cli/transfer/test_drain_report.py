"""The one list of counters of a drain: what a tally notes is in the report, its JSON, its schema, metrics and table."""

from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import pytest

from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.errors import EntityNotFoundError, ServerBusyError
from sbpair.core.message import Disposition, Received
from sbpair.core.prices import Forecast
from sbpair.core.serialization import output_schema, to_plain
from sbpair.core.transfer.conclusion import Asked, DrainResult, closing
from sbpair.core.transfer.report import (
    Accepted,
    CounterKind,
    DrainReport,
    Left,
    LockedQueue,
    Moment,
    QueueFailure,
    Tally,
    alike,
    fields_of,
    numbers,
    together,
)
from sbpair.core.transfer.state import Item, Settle
from sbpair.core.transfer.verdict import NOT_CONFIGURED
from sbpair.render.drained import drain_result
from tests.core.snapshots import a_pair

NUMBERS = [one.name for one in numbers()]
BY_NAME = [one.name for one in fields_of(CounterKind.BY_NAME)]
ASKED = Asked("orders", "contoso-weu", "sbpair drain orders")


def item(payload: bytes = b"12345") -> Item:
    received = Received(payload, 1, "q")
    return Item(("q", 1, None, -1), received, 0.0, 60.0, payload=payload)


def settle(disposition: Disposition, outcome: str = "", reason: str = "") -> Settle:
    return Settle(item(), item().received, disposition, outcome, reason)


def noted() -> Tally:
    """Everything that a machine tells, each a different number of times."""
    tally = Tally()
    for destination, fault in (("orders", "EntityNotFound"), ("carts", None), ("orders", "EntityNotFound")):
        tally.note(Moment.ACCEPTED, Accepted([replace(item(), fault=fault)], destination))
    settles = [settle(Disposition.COMPLETE, "forwarded")] * 2
    settles += [settle(Disposition.COMPLETE, "already-forwarded")]
    settles += [settle(Disposition.COMPLETE, "ping")] * 4
    settles += [
        settle(Disposition.DEAD_LETTER, "dead-lettered", reason) for reason in ("full", "full", "old", "full", "old")
    ]
    settles += [settle(Disposition.RELEASE)] * 6
    tally.note(Moment.SETTLED, *alike(settles))
    for _ in range(7):
        tally.note(Moment.LOCK_LOST, item())
    return tally


def test_a_destination_is_counted_once_in_whatever_spelling() -> None:
    tally = Tally()
    for destination in ("orders", "Orders", "orders", "carts"):
        tally.note(Moment.ACCEPTED, Accepted([item()], destination))
    assert tally.counted()["per_destination"] == (("carts", 1), ("orders", 3))


def full_report() -> DrainReport:
    return DrainReport(
        **noted().counted(),
        uncompleted=8,
        left=(Left("locked elsewhere", 10),),
        failures=(QueueFailure("q/3", EntityNotFoundError("It is gone.", hint="Create it.")),),
        locked=(LockedQueue("q/4", 1_800_000_000.0),),
        unchecked=("carts",),
        seconds=1.23456,
    )


def test_each_moment_is_counted_where_it_belongs() -> None:
    counted = noted().counted()
    assert (
        counted.items()
        >= {
            "forwarded": 3,
            "forwarded_bytes": 15,
            "completed": 2,
            "already_forwarded": 1,
            "dead_lettered": 5,
            "released": 6,
            "pings": 4,
            "locks_lost": 7,
        }.items()
    )
    assert counted["per_destination"] == (("carts", 1), ("orders", 2))
    assert counted["dead_letter_reasons"] == (("full", 3), ("old", 2))
    assert counted["original_faults"] == (("EntityNotFound", 2),)


def test_a_tally_beyond_a_run_counts_all_runs() -> None:
    service = Tally()
    for _ in range(2):
        run = Tally(service)
        run.note(Moment.ACCEPTED, Accepted([item()], "orders"))
        assert (run.numbers["forwarded"], run.counted()["per_destination"]) == (1, (("orders", 1),))
    assert (service.numbers["forwarded"], service.counted()["per_destination"]) == (2, (("orders", 2),))


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_is_in_json_schema_and_metrics(name: str) -> None:
    report = replace(full_report(), **{name: 4711})
    result = drain_result(a_pair(), DrainResult.of(ASKED, report, None))
    written = to_plain(result.data)
    schema = output_schema(DrainResult)
    jsonschema.validate(written, schema)
    assert written[name] == 4711
    (field,) = (one for one in numbers() if one.name == name)
    assert schema["properties"][name] == {"type": "integer", "description": field.metadata["what"]}
    (metric,) = (one for one in result.metrics if one.name == field.metadata["metric"])
    assert (metric.value, metric.series.help) == (4711, field.metadata["what"])
    if field.metadata["row"]:
        assert {"what": field.metadata["row"], "where": "", "messages": 4711} in result.tables[0].rows


@pytest.mark.parametrize("name", BY_NAME)
def test_numbers_by_name_are_an_object_and_rows(name: str) -> None:
    report = replace(full_report(), **{name: (("a", 1), ("b", 4711))})
    result = drain_result(a_pair(), DrainResult.of(ASKED, report, None))
    assert to_plain(result.data)[name] == {"a": 1, "b": 4711}
    assert ("b", 4711) in [(row["where"], row["messages"]) for row in result.tables[0].rows]


def test_metrics_have_names_of_their_own() -> None:
    names = [one.metadata["metric"] for one in numbers()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("sbpair_") for name in names)


def test_the_rest_of_a_report_as_json() -> None:
    written = to_plain(DrainResult("orders", full_report(), ASKED, used=Forecast(1, 2)))
    assert written["left"] == {"locked elsewhere": 10}
    assert written["failures"] == [
        {"queue": "q/3", "code": "entity-not-found", "message": "It is gone.", "hint": "Create it."}
    ]
    assert written["locked"] == [{"queue": "q/4", "until": 1_800_000_000.0}]
    assert (written["seconds"], written["confirmed_empty"], written["used"]["operations"]) == (1.235, False, 3)
    assert "forecast" not in written and "backlog" not in written


def test_empty_is_said_by_the_backlog_not_by_the_run() -> None:
    run = DrainReport(confirmed_empty=True)
    waiting = Backlog("orders", 0.0, (QueueContents("q/0", active=1, deferred=0, scheduled=0, dead_letter=0),))
    empty = Backlog("orders", 0.0, (QueueContents("q/0", active=0, deferred=0, scheduled=0, dead_letter=0),))
    told = [
        to_plain(DrainResult("orders", run, ASKED, backlog=seen))["confirmed_empty"] for seen in (None, waiting, empty)
    ]
    assert told == [False, False, True]


@pytest.mark.parametrize(
    ("more", "ended_by", "goes_on"),
    [
        ((), "empty", "sbpair drain orders --rate 5"),
        ((), "time", "sbpair drain orders --only-entities --rate 5"),
        ((Left("locked elsewhere", 1),), "empty", "sbpair drain orders --only-entities --rate 5"),
    ],
)
def test_a_drain_that_would_leave_the_same_again_is_not_advised(
    more: tuple[Left, ...], ended_by: str, goes_on: str
) -> None:
    asked = replace(ASKED, go_on="sbpair drain orders --only-entities --rate 5")
    left = (Left(f"{NOT_CONFIGURED}payroll", 1), *more)
    run = DrainReport(forwarded=2, left=left, ended_by=ended_by)
    waiting = Backlog("orders", 0.0, (QueueContents("q/0", active=1, deferred=0, scheduled=0, dead_letter=0),))
    said = closing(run, waiting, asked)
    assert goes_on in said
    assert ("--only-entities" in said) is ("--only-entities" in goes_on)


@pytest.mark.parametrize(
    ("ledger", "then"),
    [
        (Path("sent.jsonl"), "the same command completes them without sending them again"),
        (None, "the next run sends them again, with the same MessageId"),
    ],
)
def test_what_was_sent_and_is_not_completed_is_told_beside_what_waits(ledger: Path | None, then: str) -> None:
    run = DrainReport(forwarded=5, uncompleted=3)
    waiting = Backlog("orders", 0.0, (QueueContents("q/0", active=3, deferred=0, scheduled=0, dead_letter=0),))
    said = closing(run, waiting, replace(ASKED, ledger=ledger))
    assert said.startswith(
        f"5 messages are back on contoso-weu; 3 of them are not completed yet and still in the backlog: {then}. "
    )


def test_queues_that_were_not_read_for_one_reason_are_one_row() -> None:
    gone = [QueueFailure(f"q/{number}", EntityNotFoundError(f"q/{number} is gone.")) for number in range(3)]
    busy = QueueFailure("q/9", ServerBusyError("Busy."))
    drained = DrainResult.of(ASKED, DrainReport(failures=(*gone, busy)))
    (table,) = drain_result(a_pair(), drained).tables
    rows = [row["where"] for row in table.rows if row["what"] == "not read"]
    assert rows == ["q/0 and 2 more: q/0 is gone.", "q/9: Busy."]


def test_several_runs_add_up_field_by_field() -> None:
    both = together([full_report(), full_report()], seconds=2.0)
    for one in fields(DrainReport):
        kind, before, after = one.metadata.get("kind"), getattr(full_report(), one.name), getattr(both, one.name)
        if kind is CounterKind.COUNT:
            assert after == 2 * before, one.name
        elif kind is CounterKind.BY_NAME:
            assert after == tuple((name, 2 * number) for name, number in before), one.name


def test_what_was_not_read_is_no_metric() -> None:
    known = QueueContents("q/0", active=3, deferred=0, scheduled=0, dead_letter=1)
    unread = QueueContents("q/1", active=3, error_code="timeout")
    told = [
        {one.name: one.value for one in result.metrics if one.name.startswith("sbpair_left")}
        for seen in (
            Backlog("orders", 0.0, (known,)),
            Backlog("orders", 0.0, (known, unread)),
            Backlog("orders", 0.0, (known,), whole=False, not_asked=("q/1",)),
        )
        for result in [drain_result(a_pair(), DrainResult.of(ASKED, DrainReport(), seen))]
    ]
    assert told == [{"sbpair_left_messages": 4, "sbpair_left_dead_letter_messages": 1}, {}, {}]
