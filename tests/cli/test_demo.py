"""`sbpair demo`: the proof can fail, the command proves, and a signal leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.amqp import sections, types
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import Section
from sbpair.cli.demo_story import SESSION_QUEUE, demo_messages, expected_places
from sbpair.core.inspection.drilled import compare, fingerprint
from sbpair.core.message import Received
from sbpair.core.summary import describe
from tests.pictures import DEMO
from tests.waiting import LIMIT_SECONDS

MESSAGES = list(demo_messages(120, now=1_790_000_000.0, schedule_seconds=5.0))
SBPAIR = [sys.executable, "-m", "sbpair"]


def arrived(place: str) -> list[Received]:
    sent = [message for message in MESSAGES if message.entity == place]
    return [
        Received(message.payload, number, place, message.message_id, message.session_id)
        for number, message in enumerate(sent, 1)
    ]


def test_what_was_sent_is_what_arrived() -> None:
    expected = expected_places(MESSAGES)
    assert compare(SESSION_QUEUE, expected[SESSION_QUEUE], arrived(SESSION_QUEUE)).holds


def test_a_lost_message_is_missing() -> None:
    proof = compare(SESSION_QUEUE, expected_places(MESSAGES)[SESSION_QUEUE], arrived(SESSION_QUEUE)[1:])
    assert not proof.holds
    assert proof.missing == ("demo-00001",)


def test_a_second_copy_is_doubled() -> None:
    twice = arrived(SESSION_QUEUE)
    proof = compare(SESSION_QUEUE, expected_places(MESSAGES)[SESSION_QUEUE], [*twice, twice[0]])
    assert not proof.holds
    assert proof.doubled == ("demo-00001",)


def test_a_changed_byte_is_altered() -> None:
    changed = arrived(SESSION_QUEUE)
    payload = bytearray(changed[0].payload)
    payload[payload.index(b"order 1")] ^= 1
    changed[0] = replace(changed[0], payload=bytes(payload))
    proof = compare(SESSION_QUEUE, expected_places(MESSAGES)[SESSION_QUEUE], changed)
    assert proof.altered == ("demo-00001",)


def test_sessions_out_of_order_are_seen() -> None:
    backwards = list(reversed(arrived(SESSION_QUEUE)))
    proof = compare(SESSION_QUEUE, expected_places(MESSAGES)[SESSION_QUEUE], backwards)
    assert proof.out_of_order
    assert not proof.holds


def test_broker_annotations_do_not_count_but_the_applications_do() -> None:
    original = next(message.payload for message in MESSAGES if b"x-opt-demo" in message.payload)
    annotations = sections.read(original, sections.scan(original), Section.MESSAGE_ANNOTATIONS)
    delivered = {**annotations, types.Symbol("x-opt-sequence-number"): types.Long(7)}
    assert fingerprint(with_annotations(original, delivered)) == fingerprint(original)
    assert fingerprint(with_annotations(original, {})) != fingerprint(original)


def with_annotations(payload: bytes, annotations: dict[types.Symbol, object]) -> bytes:
    section = sections.section_bytes(Section.MESSAGE_ANNOTATIONS, encode(annotations))
    return sections.edit(payload, {Section.MESSAGE_ANNOTATIONS: section})


def test_the_messages_are_awkward_and_all_different() -> None:
    marks = {fingerprint(message.payload) for message in MESSAGES}
    assert len(marks) == len(MESSAGES)
    assert all(describe(message.payload).message_id == message.message_id for message in MESSAGES)


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    return kept | {"HOME": str(home)}


def test_the_command_proves_it(tmp_path: Path) -> None:
    command = [*SBPAIR, "demo", "--messages", "100", "-o", "json"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert data["proved"] is True
    # An acceptance that is heard of too late is not counted, and the message comes back all the same.
    assert 0 < data["accepted_by"]["backlog"] <= data["forwarded"] == sum(data["backlog"].values())
    assert sentences(DEMO) <= sentences(done.stderr), "the README's picture says something else: tests/pictures.py"
    assert not list(tmp_path.rglob("*emulator*"))


def test_plain_clients_prove_it_through_a_gateway(tmp_path: Path) -> None:
    command = [*SBPAIR, "demo", "--gateway", "--messages", "100", "-o", "json"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert data["proved"] is True
    # An acceptance that is heard of too late is not counted, and the message comes back all the same.
    assert 0 < data["accepted_by"]["backlog"] <= data["forwarded"] == sum(data["backlog"].values())
    assert "A gateway listens on" in done.stderr


def sentences(said: str) -> set[str]:
    """Without numbers, causes and the queues that an outage meets, which differ from run to run."""
    plain = re.sub(r"[\d.,]+|(?<=: )[a-z-]+(?=\. Sends)|\b(?:events|orders|invoices/incoming)\b", "#", said)
    return {re.sub(r"[ #]+(?:for[ #]+)*", "#", line) for line in plain.splitlines()}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_leaves_nothing_behind(tmp_path: Path, number: int, code: int) -> None:
    process = subprocess.Popen(
        [*SBPAIR, "demo"], env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "Paired" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert not list(tmp_path.rglob("*emulator*"))
