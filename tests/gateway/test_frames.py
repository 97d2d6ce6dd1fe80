"""Frame by frame: a client and a primary that are written by hand, and what the gateway passes between them."""

import asyncio
import time
from typing import Any

import pytest

from sbpair.amqp.frames import FrameBuffer
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    REJECTED,
    SOURCE,
    TARGET,
    TRANSFER,
    accepted,
    code_of,
    perform,
    read_performative,
)
from sbpair.amqp.sections import Section, build, read, scan
from sbpair.amqp.types import Described, Int, Uint, Ulong
from sbpair.engine import budgets
from sbpair.engine.auth import LISTEN, SEND, Claims, Rights, make_sas_token
from sbpair.engine.budgets import Memory
from sbpair.engine.errors import error, rejected
from sbpair.gateway.door import _WINDOW_TRANSFERS, DoorConnection
from sbpair.gateway.passed import PassedLink
from sbpair.gateway.primary import PrimaryWire
from sbpair.gateway.upward import REMEMBERED_BYTES, WAITING_BYTES
from tests.fuzz import House
from tests.gateway.test_hostile import AMQP, attach, frame

Frames = list[tuple[int, list[Any], bytes]]
"""Code, fields and payload of each."""
PEEK, SCHEDULE = "com.microsoft:peek-message", "com.microsoft:schedule-message"
LONG_TRANSFER = b"\x00\x80" + TRANSFER.to_bytes(8)
"""The descriptor of a transfer as nobody spells it, though everybody may."""


@pytest.fixture(autouse=True)
def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client says is read at once, however slow the machine is."""
    for name in ("SLICE_SECONDS", "SLICE_BEFORE_TOKEN_SECONDS"):
        monkeypatch.setattr(budgets, name, 3600.0)


class Kept:
    """One end's transport: what was written to it."""

    def __init__(self) -> None:
        self.reads = True
        self.aborted = False
        self._data = b""

    def write(self, data: bytes) -> None:
        self._data += data

    def take(self) -> Frames:
        data, self._data = self._data, b""
        bodies = [bytes(body) for _, body in FrameBuffer().feed(data) if body[:4] != b"AMQP"]
        read = [(*read_performative(body), body) for body in bodies if body]
        return [(code, fields, body[start:]) for code, fields, start, body in read]

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Between:
    """A client's connection with one session, and that of the gateway to the primary."""

    def __init__(self, rights: Rights = frozenset({SEND, LISTEN}), *, window: int = 100) -> None:
        house, self.memory = House(), Memory()
        self.client, self.primary = Kept(), Kept()
        self.connection = DoorConnection(house, house, self.client, memory=self.memory)
        self.wire = PrimaryWire(self.connection, house.tokens, 65536)  # type: ignore[arg-type]
        self.wire._sasl = self.wire._header_due = False
        self.wire._opened.set_result(None)
        self.wire._transport = self.primary
        self.wire.max_frame_bytes = 65536
        self.connection.add_claims(Claims("", rights, 4e9))
        self.connection.receive(AMQP)
        self.says(perform(0x10, ["client", "host"]), perform(BEGIN, [None, Uint(0), Uint(5000), Uint(5000)]))
        self.connection.primary = self.wire
        self.window = window
        self.up = self.connection.door_sessions[0].up

    def link(self, handle: int, address: str, *, receives: bool = False, answered: bool = True) -> PassedLink:
        """A link that the client wants, and the primary has opened where `answered`."""
        self.says(attach(address, handle=handle, receiver=receives))
        session = self.connection.door_sessions[0]
        link = session.links[handle]
        passed = link.handler = PassedLink(link, None)
        first = not session._began
        session.attach_passed(passed)
        passed._attached = True
        if first:
            self.hears(perform(BEGIN, [Uint(1), Uint(0), Uint(self.window), Uint(99)]))
        if answered:
            self.answers(handle, address, receives=receives)
        self.took()
        return passed

    def answers(self, handle: int, address: str, *, receives: bool = False) -> None:
        """The primary opens the link; its handle is ten higher."""
        ends = Described(Ulong(SOURCE), [address]), Described(Ulong(TARGET), [address])
        start = Uint(0) if not receives else None
        name, own = f"link{handle}", Uint(10 + handle)
        self.hears(perform(ATTACH, [name, own, not receives, None, None, *ends, None, None, start]))
        if not receives:
            self.hears(perform(FLOW, [Uint(0), Uint(self.window), Uint(0), Uint(99), own, Uint(0), Uint(9)]))

    def says(self, *bodies: bytes) -> None:
        """The client does."""
        for body in bodies:
            self.connection.receive(frame(body))

    def hears(self, *bodies: bytes) -> None:
        """The gateway, of the primary."""
        for body in bodies:
            self.wire.data_received(frame(body, channel=1))

    def took(self) -> tuple[Frames, Frames]:
        """What the client and the primary have got since."""
        self.connection.write_answers()
        self.wire.give_output()
        return self.client.take(), self.primary.take()

    def gone(self) -> None:
        """Nothing is held for a client that has gone."""
        self.connection.lost()
        self.wire._end()
        assert (self.connection.budget.held_bytes, self.memory.used_bytes, self.connection.remembered_bytes) == (
            0,
            0,
            0,
        )


def message(number: int, payload: bytes = b"x", *, handle: int = 0, settled: bool = False, more: bool = False) -> bytes:
    return perform(TRANSFER, [Uint(handle), Uint(number), b"t%d" % number, Uint(0), settled, more]) + payload


def transfers(frames: Frames) -> list[tuple[int, bytes]]:
    """Delivery-ids and payloads."""
    return [(fields[1], payload) for code, fields, payload in frames if code == TRANSFER]


def outcomes(frames: Frames) -> list[tuple[int, int | None]]:
    return [(fields[1], code_of(fields[4].descriptor)) for code, fields, _ in frames if code == DISPOSITION]


async def test_a_heartbeat_of_the_primary_is_nothing_but_that_on_whatever_channel() -> None:
    """AMQP 1.0, 2.4.5: an empty frame."""
    between = Between()
    between.link(0, "orders")
    for channel in (0, 1, 7):
        between.wire.data_received(frame(b"", channel=channel))
    assert between.connection.primary is between.wire
    between.says(message(5))
    between.hears(perform(DISPOSITION, [True, Uint(0), None, True, accepted()]))
    client, primary = between.took()
    assert (transfers(primary), len(outcomes(client))) == ([(0, b"x")], 1)
    between.gone()


async def test_what_the_primarys_window_does_not_take_waits_for_it_in_order() -> None:
    between = Between(window=2)
    between.link(0, "orders")
    between.says(*(message(number, bytes([number]) * 10) for number in range(5)))
    assert transfers(between.took()[1]) == [(0, b"\0" * 10), (1, b"\1" * 10)]
    held = between.connection.budget.held_bytes
    assert between.up.waiting_bytes == 30

    def opens(seen: int, window: int) -> list[tuple[int, bytes]]:
        between.hears(perform(FLOW, [Uint(seen), Uint(window), Uint(0), Uint(99)]))
        return transfers(between.took()[1])

    assert opens(1, 1) == []  # the second is on its way still, and takes the place
    assert opens(1, 2) == [(2, b"\2" * 10)]
    assert opens(3, 5) == [(3, b"\3" * 10), (4, b"\4" * 10)]
    assert (between.up.waiting_bytes, held - between.connection.budget.held_bytes) == (0, 30)
    between.says(message(5))
    assert transfers(between.took()[1]) == [(5, b"x")]
    between.gone()


async def test_a_client_is_not_read_while_much_waits_for_the_primarys_window() -> None:
    between = Between(window=0)
    between.link(0, "orders")
    part, number = b"x" * 60_000, 0
    while between.up.waiting_bytes + len(part) <= WAITING_BYTES:
        between.says(message(number, part))
        number += 1
        assert between.client.reads
    between.says(message(number, part))
    assert not between.client.reads
    between.client.resume_reading()  # as the engine does once it has read all that came
    between.says(message(number + 1, b"y"))
    assert not between.client.reads
    between.hears(perform(FLOW, [Uint(0), Uint(100), Uint(0), Uint(99)]))
    assert between.client.reads
    assert len(transfers(between.took()[1])) == number + 2
    between.gone()


def unusual(body: bytes) -> bytes:
    assert body[:3] == b"\x00\x53\x14"
    return LONG_TRANSFER + body[3:]


@pytest.mark.parametrize("spelled", [bytes, unusual])
@pytest.mark.parametrize("settled", [False, True])
async def test_a_transfer_passes_as_it_is_however_it_is_spelled(spelled: Any, settled: bool) -> None:
    """One that is spelled in an unusual way is read as a whole, and goes on as the gateway's own."""
    between = Between()
    between.link(0, "orders")
    between.link(1, "invoices")
    between.says(spelled(message(7, b"a", handle=1, settled=settled)))
    between.says(spelled(message(8, b"b" * 20, settled=settled, more=True)))
    rest = perform(TRANSFER, [Uint(0), None, None, None, settled, False])
    between.says(spelled(rest + b"c"))
    client, primary = between.took()
    sent = [fields for code, fields, _ in primary if code == TRANSFER]
    assert [(one[0], one[1], one[2], one[4]) for one in sent if one[1] is not None] == [
        (1, 0, b"t7", settled),
        (0, 1, b"t8", settled),
    ]
    assert b"".join(payload for _, payload in transfers(primary)) == b"a" + b"b" * 20 + b"c"
    assert between.connection.remembered_bytes == (0 if settled else 22)
    assert client == []
    between.hears(perform(DISPOSITION, [True, Uint(0), Uint(1), True, accepted()]))
    assert outcomes(between.took()[0]) == ([] if settled else [(7, accepted_code())])
    assert between.connection.remembered_bytes == 0
    between.says(message(9))
    assert transfers(between.took()[1]) == [(2, b"x")]
    between.gone()


def accepted_code() -> int | None:
    return code_of(accepted().descriptor)


async def test_what_is_remembered_of_a_connection_has_a_bound() -> None:
    """Two messages of which each alone would be kept: the second is not, and the first is."""
    between = Between()
    between.link(0, "orders")
    part = b"x" * 60_000
    count = REMEMBERED_BYTES // 2 // len(part) + 1

    def send(number: int) -> None:
        between.says(message(number, part, more=True))
        for at in range(1, count):
            between.says(perform(TRANSFER, [Uint(0), None, None, None, False, at + 1 < count]) + part)
            between.took()

    send(0)
    assert between.connection.remembered_bytes == count * len(part)
    send(1)
    first, second = between.up.outstanding.values()
    assert (first.parts is None, second.parts is None) == (False, True)
    assert between.connection.remembered_bytes == count * len(part)
    between.hears(perform(DISPOSITION, [True, Uint(0), Uint(1), True, accepted()]))
    assert between.connection.remembered_bytes == 0
    between.gone()


async def test_a_link_that_the_gateway_ends_is_detached_once_on_each_side() -> None:
    """As where a token has expired: the primary's answer to the detach is not the client's."""
    between = Between()
    passed = between.link(0, "orders")
    passed.link.force_off("amqp:unauthorized-access", "The token has expired.")
    client, primary = between.took()
    assert [code for code, _, _ in (*client, *primary)] == [DETACH, DETACH]
    between.hears(perform(DETACH, [Uint(10), True]))
    assert between.took() == ([], [])
    between.gone()


async def test_nothing_goes_on_a_link_that_the_primary_has_not_attached() -> None:
    between = Between()
    between.link(0, "orders", answered=False)
    between.says(message(0, b"too early"))
    assert between.took() == ([], [])
    between.answers(0, "orders")
    between.says(message(1))
    assert transfers(between.took()[1]) == [(0, b"x")]
    between.gone()


def request(operation: str) -> bytes:
    return build(properties=["1", None, None, None, "me"], application_properties={"operation": operation})


@pytest.mark.parametrize("address", ["orders/$management", "Orders/$Management"])
@pytest.mark.parametrize(("right", "may", "may_not"), [(SEND, SCHEDULE, PEEK), (LISTEN, PEEK, SCHEDULE)])
async def test_a_request_needs_its_right_and_is_kept_for_no_backlog(
    address: str, right: str, may: str, may_not: str
) -> None:
    """`$management` in any case. What was asked and not answered is the client's to ask again."""
    between = Between(frozenset({right}))
    passed = between.link(0, address)
    answers = between.link(1, address.swapcase(), receives=True)
    between.says(message(0, request(may_not)), message(1, request(may)))
    client, primary = between.took()
    assert outcomes(client) == [(0, REJECTED)]
    assert transfers(primary) == [(0, request(may))]
    assert between.connection.remembered_bytes == 0
    (one,) = between.up.outstanding.values()
    assert (one.passed, one.parts) == (passed, None)
    assert between.connection.asked == {"orders/$management": 1}
    between.hears(perform(TRANSFER, [Uint(11), Uint(0), b"a", Uint(0), True, False]) + b"answer")
    assert transfers(between.took()[0]) == [(1, b"answer")]
    assert between.connection.asked == {"orders/$management": 0}
    assert answers.is_request
    between.gone()


async def test_requests_of_a_client_with_both_rights_are_not_remembered() -> None:
    between = Between()
    between.link(0, "orders/$management")
    between.says(message(0, request(SCHEDULE)))
    assert transfers(between.took()[1]) == [(0, request(SCHEDULE))]
    assert [one.parts for one in between.up.outstanding.values()] == [None]
    assert between.connection.remembered_bytes == 0
    between.gone()


@pytest.mark.parametrize(("status", "told"), [(202, 202), (400, 401), (401, 401), (404, 404), (500, 503)])
async def test_the_client_hears_what_the_primary_says_of_its_token(status: int, told: int) -> None:
    """That it is wrong, or that there is no such entity; anything else means that the primary is away."""
    between, judging = Between(), list[asyncio.Future[None]]()
    house: Any = between.connection.house
    house.passes_tokens, house.spawn = True, lambda work: judging.append(asyncio.ensure_future(work))
    between.wire._tokens_ready.set_result(None)
    credit = perform(FLOW, [Uint(0), Uint(99), Uint(0), Uint(99), Uint(1), Uint(0), Uint(9)])
    between.says(attach("$cbs"), attach("$cbs", handle=1, receiver=True), credit)
    name = "sb://localhost/orders"
    about = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": name}
    token = make_sas_token(name, "app", "k" * 40, time.time() + 60)
    between.says(message(0, build(properties=["1"], application_properties=about, value=token)))
    for _ in range(3):
        await asyncio.sleep(0)
    ((_, asked),) = transfers(between.took()[1])
    number = read(asked, scan(asked), Section.PROPERTIES)[0]
    said = build(properties=[None] * 5 + [number], application_properties={"status-code": Int(status)})
    between.wire.data_received(frame(perform(TRANSFER, [Uint(1), Uint(0), b"a", Uint(0), True, False]), said))
    await judging[0]
    ((_, answer),) = transfers(between.took()[0])
    assert read(answer, scan(answer), Section.APPLICATION_PROPERTIES)["status-code"] == told
    between.gone()


async def test_the_primarys_end_of_the_session_is_answered_and_its_links_end() -> None:
    between = Between()
    between.link(0, "orders")
    between.hears(perform(END, []))
    client, primary = between.took()
    assert ([code for code, _, _ in client], [code for code, _, _ in primary]) == ([DETACH], [END])
    between.gone()


def codes(frames: Frames) -> list[int]:
    return [code for code, _, _ in frames]


async def test_a_detach_passes_once_each_way_whoever_begins() -> None:
    between = Between()
    for handle in (0, 1, 2):
        between.link(handle, "orders", receives=handle == 1)
    between.link(3, "orders", answered=False)
    between.says(perform(DETACH, [Uint(0), True]))
    assert list(map(codes, between.took())) == [[], [DETACH]]
    between.hears(perform(DETACH, [Uint(10), True]))
    assert list(map(codes, between.took())) == [[DETACH], []]
    between.hears(perform(DETACH, [Uint(11), True]))
    assert list(map(codes, between.took())) == [[DETACH], [DETACH]]
    between.says(perform(DETACH, [Uint(1), True]))
    assert between.took() == ([], [])
    between.says(perform(DETACH, [Uint(3), True]))  # the primary has not answered its attach
    assert list(map(codes, between.took())) == [[ATTACH, DETACH], [DETACH]]
    between.says(message(0, handle=2))
    assert transfers(between.took()[1]) == [(0, b"x")]
    between.gone()


async def test_a_link_that_the_primary_refuses_is_answered_and_then_detached_with_its_reason() -> None:
    """AMQP 1.0, 2.6.3: the answer to the attach comes first, without a terminus."""
    between, work = Between(), list[asyncio.Future[None]]()
    house: Any = between.connection.house
    house.spawn = lambda one: work.append(asyncio.ensure_future(one))
    between.link(0, "orders", answered=False)
    reason = error("amqp:not-found", "no such queue")
    source = Described(Ulong(SOURCE), ["orders"])
    between.hears(perform(ATTACH, ["link0", Uint(10), True, None, None, source, None]))
    between.hears(perform(DETACH, [Uint(10), True, reason]))
    await work[0]
    client, primary = between.took()
    assert (codes(client), codes(primary)) == ([ATTACH, DETACH], [DETACH])
    assert (client[0][1][6], client[1][1][2]) == (None, reason)
    between.gone()


async def test_a_refusal_of_the_primary_is_the_clients_as_it_came() -> None:
    between = Between()
    between.link(0, "orders")
    between.says(message(4))
    refusal = rejected("amqp:not-allowed", "no")
    between.hears(perform(DISPOSITION, [True, Uint(0), None, True, refusal]))
    ((_, fields, _),) = between.took()[0]
    assert (fields[1], fields[4]) == (4, refusal)
    between.gone()


async def test_a_transfer_longer_than_the_primary_takes_goes_as_several() -> None:
    between = Between()
    between.link(0, "orders")
    between.wire.max_frame_bytes = 512
    payload = bytes(range(250)) * 5
    between.says(message(0, payload), message(1))
    primary = between.took()[1]
    mores = [bool(fields[5]) for _, fields, _ in primary]
    assert mores == [True] * (len(mores) - 2) + [False, False]
    assert len(mores) > 3
    assert b"".join(part for _, _, part in primary) == payload + b"x"
    assert between.up.numbers(0)[2] == len(mores)
    between.gone()


async def test_the_primary_gets_a_new_window_in_time_and_not_for_each_message() -> None:
    between = Between()
    between.link(0, "orders", receives=True)
    for number in range(_WINDOW_TRANSFERS):
        assert FLOW not in codes(between.took()[1])
        between.hears(perform(TRANSFER, [Uint(10), Uint(number), b"t", Uint(0), True, False]) + b"x")
    ((code, fields, _),) = between.took()[1]
    assert (code, fields[0]) == (FLOW, _WINDOW_TRANSFERS)
    between.gone()
