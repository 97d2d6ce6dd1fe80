"""Whatever a client sends, the connection answers or closes; it never raises and never hangs."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair.amqp.encoding import encode
from sbpair.amqp.performatives import ATTACH, BEGIN, CLOSE, OPEN, SOURCE, TARGET, TRANSFER, perform
from sbpair.amqp.types import Described, Int, Symbol, Ubyte, Uint, Ulong
from sbpair.engine.connection import Connection

NO_HEALTH_CHECKS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(0, 2**32 - 1).map(Uint),
        st.integers(0, 255).map(Ubyte),
        st.integers(-5, 5).map(Int),
        st.integers(0, 2**64 - 1).map(Ulong),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.sampled_from(["$cbs", "q"]),
        st.just(Symbol("x")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from("abc").map(Symbol), inner, max_size=3),
        st.builds(lambda code, fields: Described(Ulong(code), fields), st.sampled_from([SOURCE, TARGET, 0x24]), inner),
    ),
    max_leaves=8,
)
bodies = st.builds(
    lambda code, fields, payload: encode(Described(Ulong(code), fields)) + payload,
    st.integers(OPEN, CLOSE),
    st.lists(values, max_size=14),
    st.binary(max_size=20),
)


class Sink:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


def frame(body: bytes, channel: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4) + b"\x02\x00" + channel.to_bytes(2) + body


def link(handle: int, address: str, *, sends: bool) -> bytes:
    source, target = Described(Ulong(SOURCE), [address]), Described(Ulong(TARGET), [address])
    return frame(perform(ATTACH, [f"l{handle}", Uint(handle), not sends, Ubyte(0), Ubyte(0), source, target]))


START = (
    b"AMQP\x00\x01\x00\x00"
    + frame(perform(OPEN, ["c", "h"]))
    + frame(perform(BEGIN, [None, Uint(0), Uint(100), Uint(100)]))
    + link(0, "q", sends=True)
    + link(1, "q", sends=False)
    + link(2, "$cbs", sends=True)
    + link(3, "$cbs", sends=False)
)


def run(namespace: Any, service: Any, pieces: list[bytes]) -> Sink:
    async def feed() -> Sink:
        sink = Sink()
        connection = Connection(namespace, service, sink)
        for piece in pieces:
            connection.receive(piece)
        for _ in range(50):  # what needs more than a slice of time goes on in later turns
            await asyncio.sleep(0)
        connection.lost()
        return sink

    return asyncio.run(feed())


@NO_HEALTH_CHECKS
@given(st.lists(st.tuples(bodies, st.integers(0, 1)), min_size=1, max_size=8))
def test_frames_with_any_fields(namespace: Any, service: Any, frames: list[tuple[bytes, int]]) -> None:
    sink = run(namespace, service, [START, *(frame(body, channel) for body, channel in frames)])
    assert sink.data.startswith(b"AMQP\x00\x01\x00\x00")


@NO_HEALTH_CHECKS
@given(st.binary(max_size=200))
def test_any_bytes_from_the_start(namespace: Any, service: Any, data: bytes) -> None:
    run(namespace, service, [data])


@NO_HEALTH_CHECKS
@given(st.data())
def test_a_good_start_with_octets_changed(namespace: Any, service: Any, data: st.DataObject) -> None:
    request = frame(perform(TRANSFER, [Uint(2), Uint(0), b"t", Uint(0), False]) + b"\x00\x53\x77\xa1\x01x")
    mutated = bytearray(START + request)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)))
    run(namespace, service, [bytes(mutated[:cut]), bytes(mutated[cut:])])
