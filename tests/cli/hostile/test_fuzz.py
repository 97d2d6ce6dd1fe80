"""Files that are handed to commands: whatever is in them, users get a result or a sentence, and scripts get JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import sections
from sbpair.amqp.types import Long, Symbol, Timestamp
from sbpair.azure.receiver import to_received
from sbpair.cli.inspection.saved import digest_of, read_plans
from sbpair.core.errors import SbpairError
from sbpair.core.inspection.plan import Plan, PlanRow, plan_rows
from sbpair.core.rewrite import describe
from sbpair.core.serialization import to_plain
from sbpair.core.transfer.peeked import GroupKey, grouped, peeked
from sbpair.operations.lines import InputFormat, to_payload
from sbpair.render.formats import dump_json, to_markdown, to_tsv
from sbpair.render.result import CommandResult, table_of
from tests.cli.inside import run_inside
from tests.cli.process import Ran
from tests.core.snapshots import NOW
from tests.core.test_fuzz import BACKLOG, CELLS, HEADER, METRICS, ODD, OWN, PLAN, RETAIL, ROW, SNAPSHOT
from tests.hostile import SCALARS, SECRET, bounded, damaged, json_bytes, mutated, tame, values, within

FORMATS = ("table", "tsv", "jsonl", "json", "yaml", "markdown", "github", "junit", "nagios", "prometheus", "html")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  orders: {primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}}\n",
        encoding="utf-8",
    )
    return folder


def assert_tame(ran: Ran, output: str = "") -> None:
    """Neither a defect nor a traceback, nothing that drives a terminal, no secret, and JSON where JSON was asked."""
    assert "defect" not in ran.stderr, ran.stderr
    assert "refused:" not in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.code in (0, 1, 2, 3, 4, 5, 6), ran
    assert SECRET not in ran.stderr
    assert len(ran.stderr) < 10_000
    assert not [sign for sign in "\x1b\x07\x9b\u202e\ud800" if sign in ran.stdout + ran.stderr]
    if output == "json":
        json.loads(ran.stdout, parse_constant=lambda name: pytest.fail(f"{name} in the output"))


def written(home: Path, name: str, data: bytes) -> str:
    path = home / name
    path.write_bytes(data)
    return str(path)


@bounded(60)
@given(mutated({"snapshots": [SNAPSHOT]}).map(json_bytes) | damaged(json_bytes({"snapshots": [SNAPSHOT]})))
def test_audit_of_a_file(home: Path, data: bytes) -> None:
    path = written(home, "snapshot.json", data)
    output = FORMATS[len(data) % len(FORMATS)]
    with within(seconds=10):
        history = ("--history", str(home / "history")) if len(data) % 2 else ()
        assert_tame(run_inside(home, "audit", "--snapshot", path, "-o", output, "--exit-zero", *history), output)


@bounded(25)
@given(mutated({"snapshots": [SNAPSHOT]}).map(json_bytes))
def test_cost_of_a_snapshot(home: Path, data: bytes) -> None:
    path = written(home, "snapshot.json", data)
    output = FORMATS[len(data) % len(FORMATS)]
    with within(seconds=10):
        assert_tame(run_inside(home, "cost", "--snapshot", path, "-o", output), output)


def sealed(document: object) -> bytes:
    """With the digest that a plan file has of itself, so that what it holds is looked at."""
    return json_bytes(document | {"sha256": digest_of(document)} if isinstance(document, dict) else document)


@bounded(60)
@given(mutated({"plans": [PLAN]}).map(sealed) | damaged(sealed({"plans": [PLAN]})))
def test_plans_of_a_file(home: Path, data: bytes) -> None:
    path = Path(written(home, "plan.json", data))

    def show() -> None:
        table = table_of(PlanRow, plan_rows(map(Plan.from_dict, read_plans(path))))
        result = CommandResult(table.rows, (table,), command="provision")
        to_tsv(result)
        to_markdown(result)
        dump_json(table.rows).encode()

    tame(show, SbpairError)


@bounded(25)
@given(mutated(RETAIL).map(json_bytes) | mutated(OWN).map(json_bytes) | damaged(json_bytes(RETAIL)))
def test_prices_of_a_file(home: Path, data: bytes) -> None:
    path = written(home, "prices.json", data)
    output = FORMATS[len(data) % len(FORMATS)]
    with within(seconds=10):
        assert_tame(run_inside(home, "cost", "--messages-per-day", "1000", "--prices", path, "-o", output), output)
        assert_tame(run_inside(home, "cost", "--explain-prices", "--prices", path, "-o", output), output)


def details(cells: list[list[str]]) -> bytes:
    lines = [HEADER, *cells]
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines).encode("utf-8", "surrogatepass")


ROWS = st.lists(st.lists(st.sampled_from(ROW) | CELLS, max_size=9) | st.just(ROW), min_size=1, max_size=3)


@bounded(40)
@given(ROWS.map(details) | damaged(details([ROW, ROW])))
def test_usage_details_of_a_file(home: Path, data: bytes) -> None:
    path = written(home, "usage.csv", data)
    output = FORMATS[len(data) % len(FORMATS)]
    with within(seconds=10):
        assert_tame(run_inside(home, "cost", "--usage", path, "-o", output), output)


@bounded(30)
@given(mutated(METRICS).map(json_bytes) | damaged(json_bytes(METRICS)))
def test_metrics_of_a_file(home: Path, data: bytes) -> None:
    path = written(home, "metrics.json", data)
    output = FORMATS[len(data) % len(FORMATS)]
    with within(seconds=10):
        assert_tame(run_inside(home, "cost", "--usage", path, "-o", output), output)


TEXTS = tuple(value for value in SCALARS if isinstance(value, str) and value)
OPTIONS = (
    *("--messages-per-day", "--size-kb", "--copies", "--outage", "--diverted", "--redelivered", "--queues", "--hosts"),
    *("--syphon", "--tier", "--processes", "--audits-per-day", "--month", "--region", "--currency", "--egress-per-gb"),
)
NUMBERS = ("nan", "inf", "-inf", "1e300", "1e-300", "9" * 30, "0000-01", "9999-12", "1e5%", "5,²", "0s", "1ms", "٣")


@bounded(40)
@given(st.dictionaries(st.sampled_from(OPTIONS), st.sampled_from((*NUMBERS, *TEXTS)), min_size=1, max_size=3))
def test_options_of_cost(home: Path, options: dict[str, str]) -> None:
    words = [word for option, value in options.items() for word in (f"{option}={value}",)]
    for more in ((), ("--compare",)):
        with within(seconds=10):
            assert_tame(run_inside(home, "cost", *words, *more, "-o", "json"), "json")


# Lines of `send` ------------------------------------------------------------------------------------------------------

LINE = {
    "body": {"n": 1},
    "message_id": "order-1",
    "session_id": "customer-7",
    "subject": "invoice",
    "application_properties": {"country": "DE", "n": 5, "list": [1, 2.5, None]},
    "ttl": "1h",
    "scheduled_at": "2026-12-01T08:00:00Z",
}
EXACT = {"payload_base64": "AFNwwAYFQEBAQEAAU3WgAXg=", "queue": "q", "sequence_number": 1}


@bounded(200)
@given(
    mutated(LINE).map(json_bytes)
    | mutated(EXACT).map(json_bytes)
    | damaged(json_bytes(LINE))
    | values().map(json_bytes)
    | st.binary(max_size=40)
)
def test_a_line_becomes_a_message_or_is_refused(data: bytes) -> None:
    for form in (InputFormat.JSONL, InputFormat.LINES):
        payload = tame(lambda form=form: to_payload(data, form, now=NOW), SbpairError)
        if isinstance(payload, bytes):
            assert describe(payload).unreadable is None or b"payload_base64" in data


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"body": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"body": "\\ud800"}',
        b'{"application_properties": {"n": 99999999999999999999999}}',
        b'{"application_properties": {"n": NaN}}',
        b'{"ttl": "' + b"9" * 400 + b'd"}',
        b'{"scheduled_at": []}',
        b'{"body": ' + b"9" * 5000 + b"}",
    ],
    ids=range(8),
)
def test_a_line_that_is_no_message_is_refused_with_a_reason(line: bytes) -> None:
    told = tame(lambda: to_payload(line, InputFormat.JSONL, now=NOW), SbpairError)
    assert isinstance(told, SbpairError)


# Rows of `peek` -------------------------------------------------------------------------------------------------------


def shown(payload: bytes) -> None:
    received = to_received(payload, "q")
    assert 0 <= received.sequence_number < 2**63
    message = peeked("q", received, describe(payload), with_body=True)
    printed = dump_json(to_plain(message))
    json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} in the output"))
    printed.encode()
    grouped([message], tuple(GroupKey))


@bounded(300)
@given(damaged(BACKLOG))
def test_a_damaged_message_is_a_row(payload: bytes) -> None:
    shown(payload)


@bounded(60)
@given(
    header=st.lists(ODD, max_size=5),
    annotations=st.dictionaries(
        st.sampled_from(
            ["x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-message-state"]
        ).map(Symbol),
        ODD,
        max_size=4,
    ),
    properties=st.lists(ODD, max_size=13),
    value=ODD,
)
def test_a_message_with_fields_of_any_type_is_a_row(header: Any, annotations: Any, properties: Any, value: Any) -> None:
    shown(sections.build(header=header, message_annotations=annotations or None, properties=properties, value=value))


@pytest.mark.parametrize("at", [Timestamp(2**63 - 1), Timestamp(-(2**63)), Long(5), "x", float("inf"), float("nan")])
def test_a_time_no_calendar_has_is_a_row_too(at: Any) -> None:
    shown(
        sections.build(
            message_annotations={Symbol("x-opt-enqueued-time"): at, Symbol("x-opt-sequence-number"): at},
            application_properties={"x-ms-scheduledenqueuetimeutc": at},
            data=b"x",
        )
    )
