"""What is read of files and of messages by the pure part: a value, or one of the documented errors, and soon."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Described, Long, Symbol, Timestamp, Uint
from sbpair.core.cost.model import Workload, estimate
from sbpair.core.cost.result import price_list
from sbpair.core.cost.usage import COLUMNS, UsageField, add_up, billed_row, is_header, map_columns, read_metrics
from sbpair.core.durations import format_duration, parse_duration
from sbpair.core.errors import MessageError, SbpairError, UsageError
from sbpair.core.inspection import audit
from sbpair.core.inspection.plan import Plan, plan_cleanup, plan_provision
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.message import Received
from sbpair.core.names import MAX_ENTITY_PATH_CHARACTERS, parse_backlog_queue_path
from sbpair.core.prices import Meter, built_in, exact, from_retail, from_yaml, to_cents, total
from sbpair.core.replication.ownership import SessionEntry, Terms, is_stuck
from sbpair.core.rewrite import TtlMode, describe, for_backlog, for_primary, is_ping, strip_broker_annotations
from sbpair.core.serialization import to_plain
from sbpair.core.summary import plain
from sbpair.core.transfer.filters import SYSTEM_PROPERTIES, Where
from tests.core.cost.test_prices import rows
from tests.core.snapshots import NOW, a_pair, a_queue, healthy, path
from tests.core.test_rewrite_properties import values as amqp_values
from tests.hostile import HUGE, SCALARS, bounded, damaged, mutated, tame, values, within

# Snapshots and plans --------------------------------------------------------------------------------------------------

SNAPSHOT = json.loads(json.dumps(healthy(more=(a_queue(path(7), forward_to="x"),)).to_dict()))
PLAN = json.loads(json.dumps(plan_provision(healthy(without=(path(0),)), a_pair(), update=True).to_dict()))


@bounded(150)
@given(mutated(SNAPSHOT))
def test_a_snapshot_with_anything_exchanged_is_audited_and_planned_from_or_refused(document: Any) -> None:
    def use() -> None:
        snapshot = Snapshot.from_dict(document)
        pair = snapshot.pair.to_pair()
        to_plain(audit.run(snapshot, pair, others=[a_pair()]))
        plan_provision(snapshot, pair, update=True, partitioned=True)
        plan_cleanup(snapshot, pair, also_primaries=["contoso"])
        snapshot.digest()

    with within(seconds=5):
        tame(use, SbpairError)


@bounded(120)
@given(mutated(PLAN))
def test_a_plan_with_anything_exchanged_is_read_or_refused(document: Any) -> None:
    plan = tame(lambda: Plan.from_dict(document), UsageError)
    if isinstance(plan, Plan):
        assert all(parse_backlog_queue_path(step.queue) for step in plan.steps)


@bounded(100)
@given(mutated(SessionEntry("q", "s", owner="x", lease_until=NOW, updated_at=NOW).to_dict()))
def test_an_entry_of_a_journal_with_anything_exchanged_is_read_or_refused(document: Any) -> None:
    tame(lambda: is_stuck(SessionEntry.from_dict(document), now=NOW, terms=Terms()), UsageError)


@pytest.mark.parametrize("count", [10_001, 10**12])
def test_more_backlog_queues_than_a_namespace_can_hold_are_refused(count: int) -> None:
    document = {**SNAPSHOT, "pair": {**SNAPSHOT["pair"], "backlog_queue_count": count}}
    with within(seconds=2, megabytes=50), pytest.raises(UsageError, match="backlog queues"):
        audit.run(Snapshot.from_dict(document), Snapshot.from_dict(document).pair.to_pair())


def test_a_queue_of_no_size_is_no_division_by_zero() -> None:
    queue = a_queue(path(0), max_size_in_megabytes=0, size_in_bytes=0)
    audit.run(healthy(more=(queue,)), a_pair())


def test_a_queue_with_a_far_index_does_not_make_a_list_of_all_between() -> None:
    far = "contoso/x-servicebus-transfer/" + "9" * 200
    with within(seconds=2, megabytes=20):
        report = audit.run(healthy(more=(a_queue(far),)), a_pair())
    assert any(finding.subject == far for finding in report.findings)
    assert all(len(finding.message) < 2000 for finding in report.findings)


def test_a_path_longer_than_the_service_allows_is_no_backlog_queue() -> None:
    start = "contoso/x-servicebus-transfer/"
    assert parse_backlog_queue_path(start + "9" * (MAX_ENTITY_PATH_CHARACTERS - len(start))) is not None
    assert parse_backlog_queue_path(start + "9" * 5000) is None


# Durations and the filter language ------------------------------------------------------------------------------------


@bounded(300)
@given(st.text("0123456789.PTpdhms ²٣-+e", max_size=30) | st.sampled_from([v for v in SCALARS if isinstance(v, str)]))
def test_a_duration_is_a_finite_time_or_refused(text: str) -> None:
    seconds = tame(lambda: parse_duration(text), UsageError)
    if not isinstance(seconds, UsageError):
        assert 0 <= seconds < float("inf")
        assert format_duration(seconds)


WORDS = st.sampled_from(
    [
        *(f"sys.{name}" for name in SYSTEM_PROPERTIES),
        *("user.a", "a", "=", "!=", "<", "<=", ">", ">=", "~", "IN", "and", "OR", "AND", "(", "LIKE", "newid()"),
        *(")", "'", '"', "\\", "x", "DE,FR", "*", "[a-", "2026-01-01", "9" * 400, "1e999", "nan", "-", "\x00", "²"),
        *("true", "#", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "[" * 99, "*a" * 200),
    ]
)
MESSAGES = st.sampled_from(
    [
        sections.build(
            properties={PropertyField.MESSAGE_ID: "1", PropertyField.SUBJECT: "a" * 3000},
            application_properties={"a": value},
            data=b"x",
        )
        for value in (None, True, 1.5, float("nan"), Long(5), Timestamp(2**62), "x", b"\xff", [True], {"k": None})
    ]
)


@bounded(200)
@given(st.lists(WORDS, max_size=9).map(" ".join) | st.text(max_size=40), MESSAGES)
def test_a_filter_matches_or_not_or_is_refused(text: str, payload: bytes) -> None:
    received = Received(payload=payload, sequence_number=1, source="q", enqueued_at=NOW)

    def use() -> bool:
        return Where(text).matches(describe(payload), received)

    with within(seconds=3):
        tame(use, UsageError)


# Prices and usage -----------------------------------------------------------------------------------------------------

RETAIL = [{"Items": rows(), "Count": len(rows()), "NextPageLink": None}]
OWN = {
    "version": 1,
    "region": "westeurope",
    "currency": "EUR",
    "date": "2026-11-01",
    "meters": {"standard-base-hour": 0.0127, "standard-operations": {0: 0, 13: 0.75}, "premium-unit-hour": "0.88"},
}


def priced(table: Any) -> None:
    price_list(table)
    workload = Workload(flows=())
    found = estimate(workload, table.with_missing_from(built_in()))
    assert f"{to_cents(found.total):,}"


@bounded(120)
@given(mutated(RETAIL))
def test_an_answer_of_the_price_api_with_anything_exchanged_is_used_or_refused(pages: Any) -> None:
    with within(seconds=3):
        tame(lambda: priced(from_retail(pages if isinstance(pages, list) else [pages])), UsageError)


@bounded(120)
@given(mutated(OWN))
def test_a_price_file_with_anything_exchanged_is_used_or_refused(document: Any) -> None:
    with within(seconds=3):
        tame(lambda: priced(from_yaml(document)), UsageError)


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "1e30", "9" * 5000, "-0.1", "NaN", "sNaN", "Infinity"])
def test_a_price_no_bill_can_hold_is_refused(text: str) -> None:
    with within(seconds=1, megabytes=5), pytest.raises(UsageError, match="a number of 0 or more"):
        exact(text, "price")


HEADER = ["Date", "MeterCategory", "MeterName", "Quantity", "UnitOfMeasure", "Cost", "Currency", "SubscriptionId"]
ROW = ["2026-02-03", "Service Bus", "Standard Messaging Operations", "25", "10K", "0.20", "USD", "S"]
CELLS = st.sampled_from([value for value in SCALARS if isinstance(value, str)]) | st.sampled_from(
    ["1e400000", "1e999999", "9" * 30 + "M", "1/Month", "K", ",", "0,0,0", "1e28", "-1e28", "00/00/0000", "0000-01-01"]
)


@bounded(400)
@given(st.lists(st.sampled_from(ROW) | CELLS, max_size=9), st.lists(st.integers(0, 7), max_size=3), CELLS)
def test_a_row_of_usage_details_with_anything_exchanged_counts_or_is_refused(
    cells: list[str], places: list[int], cell: str
) -> None:
    columns = map_columns(HEADER)
    row = list(ROW)
    for place in places:
        row[place] = cell

    def use(one: list[str]) -> None:
        billed = billed_row(columns, one, "line 1")
        for sum_ in add_up([billed] * 3 if billed else []):
            assert f"{sum_.quantity.normalize():f}"
            assert to_cents(sum_.cost).is_finite()
            assert to_cents(total(sum_.quantity, built_in().bands(Meter.STANDARD_OPERATIONS))).is_finite()

    with within(seconds=2):
        tame(lambda: use(cells), UsageError)
        tame(lambda: use(row), UsageError)


@bounded(150)
@given(st.lists(st.sampled_from([name for names in COLUMNS.values() for name in names]) | st.text(max_size=9)))
def test_a_header_is_understood_or_refused(header: list[str]) -> None:
    columns = tame(lambda: map_columns(header), UsageError)
    assert isinstance(columns, UsageError) != is_header(header) or UsageField.DATE in columns


METRICS = {
    "timespan": "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z",
    "value": [
        {
            "id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso/metrics/x",
            "name": {"value": "IncomingMessages"},
            "timeseries": [
                {
                    "metadatavalues": [{"name": {"value": "entityname"}, "value": "orders"}],
                    "data": [{"timeStamp": "2026-01-01T00:00:00Z", "total": 5.0}, {"total": None}],
                }
            ],
        }
    ],
}


@bounded(150)
@given(mutated(METRICS))
def test_metrics_with_anything_exchanged_are_counted_or_refused(document: Any) -> None:
    def use() -> None:
        traffic = read_metrics([("file", document)])
        _ = traffic.diverted_share
        estimate(Workload(flows=traffic.flows(720, 1024)), built_in())

    with within(seconds=3):
        tame(use, UsageError)


@pytest.mark.parametrize("total_", ["1e999999999", "abc", [], {}, HUGE, -5, True], ids=lambda value: repr(value)[:20])
def test_a_total_that_is_no_count_is_refused_at_once(total_: Any) -> None:
    document = json.loads(json.dumps(METRICS))
    document["value"][0]["timeseries"][0]["data"][0]["total"] = total_
    with within(seconds=1, megabytes=5), pytest.raises(UsageError, match="file: "):
        read_metrics([("file", document)])


@pytest.mark.parametrize(
    "unit", ["9" * 130_000 + "!", "1" + " " * 130_000 + "!", "1 " * 60_000 + "!", "1" + "/" * 130_000 + "!"]
)
def test_a_unit_as_long_as_a_cell_can_be_is_refused_at_once(unit: str) -> None:
    with within(seconds=2), pytest.raises(UsageError, match="the unit"):
        billed_row(map_columns(HEADER), [*ROW[:4], unit, *ROW[5:]], "line 1")


def test_money_of_any_size_is_rounded_to_cents() -> None:
    assert to_cents(Decimal("123456789012345678901234567890.125")) == Decimal("123456789012345678901234567890.13")


# Messages -------------------------------------------------------------------------------------------------------------

ENQUEUED = NOW - 60


def handled(payload: bytes) -> None:
    """Everything that is done with a message on its way."""
    summary = describe(payload)
    assert json.dumps(plain(summary.application_properties), allow_nan=False)
    for step in (
        lambda: for_backlog(payload, "orders"),
        lambda: for_primary(payload, now=NOW, enqueued_at=ENQUEUED, ttl=TtlMode.REMAINING),
        lambda: for_primary(payload, now=NOW, enqueued_at=None, from_dead_letter=True),
        lambda: strip_broker_annotations(payload),
        lambda: is_ping(payload),
    ):
        tame(step, MessageError)


BACKLOG = for_backlog(
    sections.build(
        header={HeaderField.TTL: Uint(60_000), HeaderField.DELIVERY_COUNT: Uint(2)},
        delivery_annotations={Symbol("x-opt-lock-token"): b"t" * 16},
        message_annotations={
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_790_000_000_000),
            Symbol("x-opt-sequence-number"): Long(7),
            Symbol("x-opt-enqueued-time"): Timestamp(1_790_000_000_000),
            Symbol("x-opt-partition-key"): "s",
        },
        properties={
            PropertyField.MESSAGE_ID: "order-1",
            PropertyField.GROUP_ID: "s",
            PropertyField.CREATION_TIME: Timestamp(1_790_000_000_000),
            PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(1_790_000_060_000),
        },
        application_properties={"DeadLetterReason": "why", "x": [Long(1), {"y": b"\x00"}]},
        data=b"hello",
    ),
    "orders",
)


@bounded(400)
@given(damaged(BACKLOG))
def test_a_damaged_message_is_handled_or_refused_and_always_shown(payload: bytes) -> None:
    with within(seconds=3):
        handled(payload)


NAMES = st.sampled_from(
    ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc", "DeadLetterReason", "x"]
)
ANNOTATIONS = st.sampled_from(
    ["x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-partition-key", "x-opt-scheduled-enqueue-time", "x"]
)
ODD = amqp_values | st.sampled_from(
    [
        float("nan"),
        float("inf"),
        Timestamp(2**63 - 1),
        Timestamp(-(2**63)),
        Long(-(2**63)),
        Described(Symbol("com.microsoft:timespan"), "no number"),
        Described(Symbol("com.microsoft:timespan"), None),
        Described(Symbol("com.microsoft:timespan"), Long(-1)),
        "P" + "9" * 400 + "D",
        "9999-12-31T23:59:59-23:59",
    ]
)


@bounded(150)
@given(
    header=st.lists(ODD, max_size=5),
    annotations=st.dictionaries(ANNOTATIONS.map(Symbol), ODD, max_size=4),
    properties=st.lists(ODD, max_size=13),
    application=st.dictionaries(NAMES, ODD, max_size=5),
    value=ODD,
)
def test_a_well_formed_message_with_fields_of_any_type_is_handled_or_refused(
    header: Any, annotations: Any, properties: Any, application: Any, value: Any
) -> None:
    payload = b"".join(
        sections.section_bytes(section, encode(content))
        for section, content in (
            (Section.HEADER, header),
            (Section.MESSAGE_ANNOTATIONS, annotations),
            (Section.PROPERTIES, properties),
            (Section.APPLICATION_PROPERTIES, application),
            (Section.VALUE, value),
        )
    )
    handled(payload)


@bounded(200)
@given(ODD | values([None, True, 1, "x", "\ud800"]))
def test_what_is_shown_of_a_value_is_json(value: Any) -> None:
    json.dumps(plain(value), allow_nan=False)


@pytest.mark.parametrize(
    ("header", "application"),
    [
        ([None, None, "an hour"], {}),
        ([None, None, float("inf")], {}),
        ([], {"x-ms-timetolive": "P" + "9" * 400 + "D"}),
        ([], {"x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), "an hour")}),
        ([], {"x-ms-scheduledenqueuetimeutc": Timestamp(2**63 - 1)}),
        ([], {"x": float("nan")}),
    ],
)
def test_what_one_sender_wrote_does_not_keep_the_others_from_being_seen(header: Any, application: Any) -> None:
    payload = sections.build(header=header, application_properties={"x-ms-path": "orders", **application}, data=b"x")
    assert describe(payload).destination == "orders"
    handled(payload)
