"""Ping and peek on two embedded namespaces: outages, denials, paging, filters, bodies, and the way back into send."""

import json
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from sbpair.core.rewrite import compose
from tests.cli.process import Ran, Sbpair
from tests.cli.transfer.entities import Entities
from tests.waiting import LIMIT_SECONDS

QUEUE = "local-primary/x-servicebus-transfer/{}"
PUT = """\
import asyncio, json, sys
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main(orders):
    async with open_sides(load().pair("local")) as sides:
        for order in orders:
            queue, destination = order.pop("queue"), order.pop("destination")
            sender = sides.secondary.sender(queue)
            for number in range(order.pop("count", 1)):
                message_id = f"{order['subject']}-{number}"
                payload = compose(message_id=message_id, **order | {"body": bytes.fromhex(order["body"])})
                await sender.send([for_backlog(payload, destination)], timeout_seconds=30)
            await sender.close()

asyncio.run(main(json.loads(sys.argv[1])))
"""
ORDERS = [
    {"queue": QUEUE.format(0), "destination": "orders", "subject": "plain", "body": "Grüße \x1b[31m".encode().hex()},
    {"queue": QUEUE.format(0), "destination": "orders", "subject": "many", "body": b"x".hex(), "count": 230},
    {"queue": QUEUE.format(3), "destination": "invoices/in", "subject": "bytes", "body": "00ff", "session_id": "s1"},
]


@pytest.fixture(scope="module")
def backlog(local: Sbpair) -> Iterator[Sbpair]:
    """`local` with 232 messages in two of its backlog queues."""
    assert local("provision", "local").code == 0
    local.python(PUT, json.dumps(ORDERS))
    yield local


def subjects(ran: Ran) -> list[str]:
    return [row["subject"] for row in ran.records]


def test_peek_shows_the_oldest_of_all_queues_and_says_that_there_is_more(backlog: Sbpair) -> None:
    ran = backlog("peek", "local", "-o", "json")
    assert ran.code == 0
    messages = ran.data["messages"]
    assert len(messages) == 50
    assert messages[0]["subject"] == "plain"
    assert ran.data["left_off"] is True
    assert "50 messages shown of 50 browsed; there may be more, see --limit." in ran.stderr
    assert [one["enqueued_at"] for one in messages] == sorted(one["enqueued_at"] for one in messages)


def test_peek_pages_through_a_queue_to_its_end(backlog: Sbpair) -> None:
    ran = backlog("peek", "local", "-n", "1000", "-o", "json")
    numbers = [(one["queue"], one["sequence_number"]) for one in ran.data["messages"]]
    assert len(numbers) == len(set(numbers)) == 232
    assert ran.data["left_off"] is False


def test_peek_changes_nothing(backlog: Sbpair) -> None:
    first = backlog("peek", "local", "-n", "1000", "-o", "jsonl")
    second = backlog("peek", "local", "-n", "1000", "-o", "jsonl")
    assert first.stdout == second.stdout
    assert {json.loads(line)["delivery_count"] for line in first.stdout.splitlines()} == {0}


def test_peek_begins_at_a_sequence_number(backlog: Sbpair) -> None:
    ran = backlog("peek", "local", "--queue", "0", "--from-sequence", "230", "-o", "json")
    assert [one["sequence_number"] for one in ran.data["messages"]] == [230, 231]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (("--destination", "INVOICES/*"), ["bytes"]),
        (("--session-id", "s1"), ["bytes"]),
        (("--session-id", "s2"), []),
        (("--since", "1h", "--queue", "3"), ["bytes"]),
        (("--until", "1h"), []),
        (("--since", "2020-01-01", "--until", "2020-01-02T00:00:00+02:00"), []),
        (("--queue", "1", "--queue", "3"), ["bytes"]),
        (("--queue", "3", "--queue", QUEUE.format(3)), ["bytes"]),
        (("--dlq",), []),
    ],
)
def test_peek_filters(backlog: Sbpair, filters: tuple[str, ...], expected: list[str]) -> None:
    ran = backlog("peek", "local", *filters)
    assert ran.code == 0
    assert subjects(ran) == expected


def test_peek_shows_bodies_as_text_or_hex_and_never_drives_the_terminal(backlog: Sbpair) -> None:
    bodies = {row["subject"]: row["body"] for row in backlog("peek", "local", "--body", "-n", "300").records}
    assert bodies["plain"] == "Grüße \\x1b[31m"
    assert bodies["bytes"] == "00ff"


def test_peek_groups_and_counts(backlog: Sbpair) -> None:
    ran = backlog("peek", "local", "--group-by", "destination,session")
    assert [(row["destination"], row["session"], row["messages"]) for row in ran.records] == [
        ("orders", "", "231"),
        ("invoices/in", "s1", "1"),
    ]
    unknown = backlog("peek", "local", "--group-by", "colour")
    assert unknown.code == 2
    assert "content-type" in unknown.stderr


def test_peek_shows_dead_letters_beside_the_others(backlog: Sbpair) -> None:
    made = Entities(backlog)
    queue = made.queue("beside")
    made.send(queue, compose(body=b"", message_id="dead"))
    made.settle(queue, ["Reason"])
    made.send(queue, compose(body=b"", message_id="active"))
    of = ("peek", "local", "--entity", queue, "--side", "primary", "-o", "json")
    shown = [
        [(one["message_id"], one["reason"]) for one in backlog(*of, *kinds).data["messages"]]
        for kinds in ([], ["--dlq"], ["--with-dlq"])
    ]
    assert shown == [[("active", None)], [("dead", "Reason")], [("dead", "Reason"), ("active", None)]]


def test_what_peek_prints_can_be_sent_home(backlog: Sbpair) -> None:
    """The round trip of one pipe: browse, and send the very messages to a queue of the primary."""
    backlog.make_queue("round-trip")
    browsed = backlog("peek", "local", "--queue", "3", "-o", "jsonl")
    sent = backlog("send", "local", "round-trip", stdin=browsed.stdout)
    assert sent.code == 0, sent
    browsed = backlog("peek", "local", "--entity", "round-trip", "--side", "primary", "--body", "-o", "json")
    arrived = browsed.data["messages"]
    assert [(one["subject"], one["session_id"], one["body"]) for one in arrived] == [("bytes", "s1", "00ff")]
    assert "x-ms-path" not in arrived[0]["application_properties"]


def test_a_queue_that_is_missing_makes_the_rest_partial(backlog: Sbpair) -> None:
    ran = backlog("peek", "local", "--queue", "3", "--queue", "77")
    assert (ran.code, subjects(ran)) == (3, ["bytes"])
    assert QUEUE.format(77) in ran.stderr
    alone = backlog("peek", "local", "--queue", "77", "-o", "json")
    assert (alone.code, alone.error["code"]) == (1, "entity-not-found")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--since", "soonish"),
        ("--side", "primary"),
        ("--entity", "a", "--queue", "1"),
        ("--entity", "a b"),
        ("--queue", "orders"),
        ("-n", "0"),
        ("--dlq", "--with-dlq"),
    ],
)
def test_wrong_options_of_peek_are_usage_errors(backlog: Sbpair, arguments: tuple[str, ...]) -> None:
    ran = backlog("peek", "local", *arguments)
    assert (ran.code, ran.stdout) == (2, "")


def test_ping_measures_every_backlog_queue_and_says_which_credential_it_used(backlog: Sbpair) -> None:
    ran = backlog("ping", "local", "--count", "3", "--interval", "10ms", "-o", "json")
    assert ran.code == 0
    rows = ran.data["entities"]
    assert [row["entity"] for row in rows] == [QUEUE.format(index) for index in range(10)]
    for row in rows:
        assert (row["side"], row["by"], row["right"]) == ("secondary", "browse", "Listen")
        assert row["credential"] == "connection-string (RootManageSharedAccessKey)"
        assert (row["sent"], row["accepted"]) == (3, 3)
        assert 0 < row["min_ms"] <= row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_ping_says_if_it_could_not_ask_the_primary(backlog: Sbpair) -> None:
    backlog.make_queue("asked")
    said = "was not asked, as the pair names no entity of it. Whether it answers: sbpair doctor local"
    for words, missing in ((), True), (("asked",), False), (("--side", "secondary"), False):
        ran = backlog("ping", "local", *words, "-c", "1")
        assert (ran.code, f"local-primary {said}" in ran.stderr) == (0, missing), ran


def test_ping_leaves_nothing_behind(backlog: Sbpair) -> None:
    path = QUEUE.format(5)
    assert backlog("ping", "local", path, "--side", "secondary", "-c", "2", "--interval", "0").code == 0
    assert backlog("peek", "local", "--queue", "5").records == []


def test_ping_without_messages_asks_the_control_plane(backlog: Sbpair) -> None:
    ran = backlog("ping", "local", "--control-plane", "-c", "1", "-o", "json")
    assert ran.code == 0
    assert {(row["by"], row["right"]) for row in ran.data["entities"]} == {("look-up", "Manage")}


def test_a_missing_entity_is_a_failure_of_its_own(backlog: Sbpair) -> None:
    ran = backlog("ping", "local", "nowhere", "-c", "1", "-o", "json")
    assert ran.code == 1
    assert ran.data["entities"][0]["error_code"] == "entity-not-found"
    assert (ran.data["entities"][0]["side"], ran.data["entities"][0]["by"]) == ("primary", "link")


def test_ping_sends_a_message_only_when_asked_to(backlog: Sbpair) -> None:
    backlog.make_queue("pinged")
    opened = backlog("ping", "local", "pinged", "-c", "2", "--interval", "0", "-o", "json")
    assert opened.code == 0, opened
    (row,) = opened.data["entities"]
    assert (row["by"], row["right"], row["accepted"]) == ("link", "Send", 2)
    assert "Send ping messages" not in opened.stderr
    sent = backlog("ping", "local", "pinged", "-c", "1", "--message", "--yes", "-o", "json")
    assert sent.data["entities"][0]["by"] == "message"
    both = backlog("ping", "local", "pinged", "--message", "--control-plane")
    assert (both.code, "sends no message" in both.stderr) == (2, True)


def test_ping_of_a_denied_entity_ends_with_4(backlog: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "unauthorized:entity=" + QUEUE.format(7))
    ran = backlog("ping", "local", QUEUE.format(7), QUEUE.format(8), "-c", "1", "--interval", "0")
    assert ran.code == 4, ran
    assert [row["result"] for row in ran.records] == ["denied", "ok"]


def test_ping_of_a_dark_namespace_ends_with_6_and_nagios_is_critical(
    backlog: Sbpair, fault: Callable[[str, str], None]
) -> None:
    fault("local-secondary", "dark")
    ran = backlog("ping", "local", QUEUE.format(0), "-c", "1", "--timeout", "5s")
    assert ran.code == 6, ran
    nagios = backlog("ping", "local", QUEUE.format(0), "-c", "1", "--timeout", "5s", "-o", "nagios")
    assert nagios.code == 2
    assert nagios.stdout.startswith("SBPAIR CRITICAL - 0 of 1 answer. | 'sbpair_ping_up.")
    peeked = backlog("peek", "local", "--queue", "0", "--timeout", "5s", "-o", "json")
    assert (peeked.code, peeked.error["code"]) == (6, "connection-lost")


def test_until_ok_waits_for_the_end_of_an_outage(backlog: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "dark:for=4s")
    ran = backlog(
        "ping", "local", QUEUE.format(0), "--until-ok", "--timeout", "60s", "--interval", "500ms", "-o", "json"
    )
    assert ran.code == 0, ran
    (row,) = ran.data["entities"]
    assert row["accepted"] == 1
    assert row["sent"] > 1
    assert QUEUE.format(0) in ran.stderr


def test_until_ok_gives_up_when_the_time_is_over(backlog: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "dark")
    ran = backlog("ping", "local", QUEUE.format(0), "--until-ok", "--timeout", "2s", "--interval", "200ms")
    assert ran.code == 6


def test_prometheus_has_quantiles_and_the_time_of_success(backlog: Sbpair) -> None:
    ran = backlog("ping", "local", QUEUE.format(0), "-c", "2", "--interval", "0", "-o", "prometheus")
    assert ran.code == 0
    labels = f'pair="local",side="secondary",entity="{QUEUE.format(0)}"'
    assert f"sbpair_ping_up{{{labels}}} 1\n" in ran.stdout
    assert f'sbpair_ping_latency_seconds{{{labels},quantile="0.99"}} ' in ran.stdout
    assert 'sbpair_last_success_timestamp_seconds{command="ping"} ' in ran.stdout


def test_a_signal_ends_ping_with_130_or_143(backlog: Sbpair) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = backlog.begin("ping", "local", QUEUE.format(0), "-c", "1000", "--interval", "1s", "-v")
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == code, stderr
        assert "in flight" in stderr
