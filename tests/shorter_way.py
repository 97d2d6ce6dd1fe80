"""The drain's shorter way beside the long one, on random messages and frames: `python -m tests.shorter_way --cases N`.

Most messages are read and restored in one walk (`sbpair.core.rewrite`) and taken off the wire past the SDK
(`amqp.frames.whole_transfer`); every other goes the long way. Whatever a broker or a producer writes, both have to
say and make the same, byte by byte. The seed is printed; with `--seed` the same cases come again. A share runs in the
suite.
"""

import argparse
import asyncio
import logging
import random
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from azure.servicebus._pyamqp.aio._session_async import Session

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.frames import whole_transfer
from sbpair.amqp.performatives import TRANSFER
from sbpair.amqp.sections import Section
from sbpair.amqp.types import AmqpError, Described, Int, Long, Symbol, Timestamp, Uint
from sbpair.azure import frames, wire
from sbpair.azure.receiver import to_received
from sbpair.core.errors import MessageError
from sbpair.core.message import PING_CONTENT_TYPE, Received, TtlMode
from sbpair.core.rewrite import as_usual
from sbpair.core.transfer.verdict import Classifier
from tests.fuzz import damaged
from tests.golden.recorded import DIVERTED, load

NOW = 1_790_000_000.0
QUEUES = ("contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/0/$deadletterqueue")


class Dice(random.Random):
    """`odd`: how often this case has what is rare, beside the usual 1."""

    odd = 1.0

    def rarely(self, chance: float) -> bool:
        return self.random() < chance * self.odd


class Differs(AssertionError):
    """A case in which the two ways do not come to the same; the text has the seed and the number."""


# Messages, piece by piece: mostly as services and clients write them, and then in every other form there is


def text(dice: Dice) -> str:
    size = dice.choice((0, 1, 3, 9, 40, 127, 128, 129, 200, 260))
    return "".join(dice.choice(("a", "7", "-", "é", "語", "🜚")) if dice.random() < 0.3 else "s" for _ in range(size))


def of_text(dice: Dice, value: str) -> bytes:
    """A text in one of its forms: short and long, a symbol, bytes, or no UTF-8 at all."""
    raw = value.encode()
    short = len(raw) < 256
    match dice.randrange(5) if dice.rarely(0.1) else -1:
        case 0:
            return b"\xb1" + struct.pack(">I", len(raw)) + raw
        case 1 if short:
            return b"\xa3" + bytes((len(raw),)) + raw
        case 2 if short:
            return b"\xa0" + bytes((len(raw),)) + raw
        case 3 if short and raw:
            return b"\xa1" + bytes((len(raw),)) + raw[:-1] + b"\xff"
        case _:
            return encode(value)


def any_value(dice: Dice) -> bytes:
    return encode(
        dice.choice(
            (
                None,
                True,
                "text",
                "é" * 130,
                Symbol("symbol"),
                b"\xff\x00",
                bytes(300),
                Int(-1),
                Uint(0),
                Long(2**40),
                2.5,
                Timestamp(1_790_000_000_000),
                Timestamp(-1),
                uuid.UUID(int=9),
                [None, "x", [b"y"]],
                {"k": Long(1), Symbol("s"): None},
                Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
                Described(Symbol("other"), "x"),
            )
        )
    )


def framed(dice: Dice, small: int, items: Sequence[bytes], *, count: int | None = None) -> bytes:
    """A list or map of these items, long where it has to be, now and then where it has not, or with a wrong size."""
    content, number = b"".join(items), max(0, len(items) if count is None else count)
    size = len(content) + (dice.choice((-1, 1)) if dice.rarely(0.01) else 0)
    if len(content) >= 255 or number > 255 or dice.rarely(0.05):
        return bytes((small + 0x10,)) + struct.pack(">II", size + 4, number) + content
    return bytes((small, (size + 1) % 256, number)) + content


def section(dice: Dice, which: Section, value: bytes) -> bytes:
    match dice.randrange(3) if dice.rarely(0.03) else -1:
        case 0:
            return b"\x00\x80" + struct.pack(">Q", which) + value
        case 1:
            names = [name for name, one in sections._BY_SYMBOL.items() if one is which or dice.rarely(0.05)]
            name = dice.choice(names)
            return b"\x00\xa3" + bytes((len(name),)) + name.encode() + value
        case 2:
            return bytes((0, 0x53, which, dice.choice((0x40, 0x45))))
        case _:
            return bytes((0, 0x53, which)) + value


def header(dice: Dice) -> bytes:
    if dice.random() < 0.2:
        return b""
    count: Any = dice.choice((None, Uint(0), Uint(3), Uint(2**32 - 1)))
    ttl: Any = None
    if dice.rarely(0.1):
        ttl = dice.choice((Uint(0), Uint(60_000), Uint(2**32 - 1), "60"))
    if dice.rarely(0.1):
        count = dice.choice((Int(-1), "4", b"\x01", [None]))
    fields = [encode(one) for one in (dice.choice((None, True)), None, ttl, dice.choice((None, False)), count)]
    return section(dice, Section.HEADER, framed(dice, 0xC0, fields[: dice.choice((5, 5, 5, 5, 3, 0))]))


def delivery_annotations(dice: Dice) -> bytes:
    if dice.random() < 0.1:
        return b""
    token = [b"\xa3\x10x-opt-lock-token", b"\x98" + dice.randbytes(16)]
    more = [encode(Symbol("other")), any_value(dice)] if dice.rarely(0.05) else []
    return section(dice, Section.DELIVERY_ANNOTATIONS, framed(dice, 0xC1, dice.choice((token + more, more + token))))


def annotations(dice: Dice) -> bytes:
    number = dice.choice((b"\x55\x00", b"\x55\x7f", b"\x81" + struct.pack(">q", dice.getrandbits(56))))
    if dice.rarely(0.05):
        number = dice.choice((b"\x55\xff", b"\x81" + b"\xff" * 8, b"\x80" + bytes(7) + b"\x09", b"\x40"))
    when = b"\x83" + struct.pack(">q", int(NOW * 1000) - dice.choice((0, 1, 5_000, 10**12, 4 * 10**12)))
    entries = [
        [b"\xa3\x15x-opt-sequence-number", number],
        [b"\xa3\x13x-opt-enqueued-time", when],
        [b"\xa3\x12x-opt-locked-until", b"\x83" + struct.pack(">q", int(NOW * 1000) + 30_000)],
    ]
    others = [
        [b"\xa3\x13x-opt-partition-key", of_text(dice, text(dice))],
        [b"\xa3\x1cx-opt-scheduled-enqueue-time", b"\x83" + struct.pack(">q", int(NOW * 1000) + 9_000)],
        [b"\xa3\x13x-opt-message-state", dice.choice((b"\x54\x01", b"\x54\x02", b"\x40", b"\xa1\x01x"))],
        [b"\xa3\x1dx-opt-enqueue-sequence-number", b"\x55\x05"],
        [b"\xa3\x04mine", any_value(dice)],
    ]
    if dice.rarely(0.1):
        entries.append(dice.choice((*entries, *others)))
    if dice.random() < 0.2:
        dice.shuffle(entries)
    if dice.random() < 0.1:
        del entries[dice.randrange(len(entries))]
    items = [piece for entry in entries for piece in entry]
    count = len(items) + dice.choice((-2, -2, -1, 1, 2)) if dice.rarely(0.04) else None
    return section(dice, Section.MESSAGE_ANNOTATIONS, framed(dice, 0xC1, items, count=count))


def properties(dice: Dice) -> bytes:
    if dice.random() < 0.1:
        return b""
    if dice.rarely(0.05):
        return section(dice, Section.PROPERTIES, dice.choice((b"\x45", b"\x40", b"\xc0\x01\x00", b"\xc0\x00")))
    fields = [b"\x40"] * 13
    if dice.random() < 0.9:
        fields[0] = any_value(dice) if dice.rarely(0.1) else of_text(dice, f"m{dice.randrange(9)}")
    for index in (1, 2, 3, 4, 5, 7, 11, 12):
        if dice.random() < 0.1:
            fields[index] = any_value(dice) if dice.rarely(0.2) else of_text(dice, text(dice))
    if dice.random() < 0.3:
        fields[6] = encode(Symbol(dice.choice(("text/plain", PING_CONTENT_TYPE))))
    for index in (8, 9):
        if dice.random() < 0.2:
            fields[index] = encode(Timestamp(int(NOW * 1000) + dice.choice((-60_000, 0, 60_000))))
    if dice.random() < 0.15:
        fields[10] = of_text(dice, text(dice))
    fields = fields[: dice.choice((1, 1, 7, 10, 10, 11, 13))] + [b"\x40"] * (
        dice.randrange(4) if dice.rarely(0.1) else 0
    )
    count = len(fields) + dice.choice((-1, 1, 200)) if dice.rarely(0.02) else None
    return section(dice, Section.PROPERTIES, framed(dice, 0xC0, fields, count=count))


def key_of(dice: Dice, name: str) -> bytes:
    raw = name.encode()
    match dice.randrange(5) if dice.rarely(0.1) else -1:
        case 0 | 1:
            return b"\xa3" + bytes((len(raw),)) + raw
        case 2:
            return b"\xb1" + struct.pack(">I", len(raw)) + raw
        case 3:
            return b"\xa0" + bytes((len(raw),)) + raw
        case 4:
            return any_value(dice)
        case _:
            return b"\xa1" + bytes((len(raw),)) + raw


def application_properties(dice: Dice) -> bytes:
    if dice.random() < 0.03:
        return b""
    path = "orders"
    if dice.rarely(0.2):
        path = dice.choice(("", "/", "a/b", "topic/Subscriptions/s", "/orders/", "ö", "x" * 261, "$cbs"))
    entries: list[list[bytes]] = []

    def add(name: str, value: Callable[[], bytes], chance: float) -> None:
        for _ in range(2):
            if dice.random() < chance:
                entries.append([key_of(dice, name), any_value(dice) if dice.rarely(0.05) else value()])
                chance = 0.03 * dice.odd

    add("x-ms-path", lambda: of_text(dice, path), 0.97)
    add("x-ms-sessionid", lambda: of_text(dice, text(dice)), 0.5)
    ttl = Described(Symbol("com.microsoft:timespan"), Long(dice.choice((0, 1, 10**9, 10**15, 2**63 - 1, -5))))
    add("x-ms-timetolive", lambda: encode(ttl), 0.05)
    add("x-ms-scheduledenqueuetimeutc", lambda: encode(Timestamp(int(NOW * 1000) + 5_000)), 0.05)
    for name in ("x-ms-", "x-ms-other", "DeadLetterReason", "DeadLetterErrorDescription", "n", "ключ", "x" * 120):
        add(name, lambda: of_text(dice, text(dice)) if dice.random() < 0.5 else any_value(dice), 0.1)
    dice.shuffle(entries)
    items = [piece for entry in entries for piece in entry]
    count = len(items) + dice.choice((-2, -1, 1, 2, 100)) if dice.rarely(0.03) else None
    return section(dice, Section.APPLICATION_PROPERTIES, framed(dice, 0xC1, items, count=count))


def body(dice: Dice) -> bytes:
    data = dice.randbytes(dice.choice((0, 1, 30, 255, 256, 300)))
    one = sections.build(data=data)
    long = b"\x00\x53\x75\xb0" + struct.pack(">I", len(data)) + data
    usual = (one,) * 8 + (long, b"")
    rare = (one + one, b"\x00\x53\x77" + any_value(dice), b"\x00\x53\x76\xc0\x02\x01\x40", b"\x00\x53\x75\x40", b"\x00")
    return dice.choice(rare if dice.rarely(0.1) else usual)


def rest(dice: Dice) -> bytes:
    if not dice.rarely(0.05):
        return b""
    late = b"\x00\x53\x71" + framed(dice, 0xC1, [b"\xa3\x01a", any_value(dice)])
    footer = b"\x00\x53\x78" + framed(dice, 0xC1, [b"\xa3\x01a", any_value(dice)])
    return dice.choice((late, footer, b"\x00\x53\x79\x40", b"\x00", dice.randbytes(5)))


PIECES = (header, delivery_annotations, annotations, properties, application_properties, body, rest)


def stamped(payload: bytes, dice: Dice) -> bytes:
    """A recorded message with a lock and a broker's annotations on it."""
    spans = sections.scan(payload)
    kept = {span.section: payload[span.start : span.end] for span in spans}
    kept[Section.DELIVERY_ANNOTATIONS] = delivery_annotations(dice)
    if Section.MESSAGE_ANNOTATIONS not in kept:
        kept[Section.MESSAGE_ANNOTATIONS] = annotations(dice)
    return b"".join(kept[one] for one in Section if one in kept)


RECORDED = [golden.forms[DIVERTED] for golden in load()]


def message(dice: Dice) -> bytes:
    if dice.random() < 0.2:
        payload = stamped(dice.choice(RECORDED), dice)
    else:
        pieces = [piece(dice) for piece in PIECES]
        if dice.rarely(0.04):
            at = dice.randrange(len(pieces))
            piece = pieces[at] if dice.random() < 0.5 else pieces.pop(at)
            pieces.insert(dice.randrange(len(pieces) + 1), piece)  # twice, or out of its place
        payload = b"".join(pieces)
    match dice.randrange(2) if dice.rarely(0.15) else -1:
        case 0:
            return damaged(dice, payload)
        case 1:
            return payload[: dice.randrange(len(payload) + 1)]
        case _:
            return payload


# What both ways come to


def told(received: Received) -> Received:
    """What it says, without what only a message under lock has."""
    return replace(received, locked_until=None, receipt=None, decoded=None, head=None)


def lock_of(payload: bytes) -> Any:
    """When its lock ends, as the codec reads it; nothing where that cannot be read."""
    try:
        found = sections.read(payload, sections.scan(payload), Section.MESSAGE_ANNOTATIONS)
    except AmqpError:
        return ...
    if not isinstance(found, dict):
        return ...
    until = found.get("x-opt-locked-until")
    return int(until) / 1000 if isinstance(until, Timestamp) else ...


def compare_message(dice: Dice) -> str:
    """One message both ways; which one the shorter took it."""
    payload = message(dice)
    source = dice.choice(QUEUES)
    received, browsed = to_received(payload, source, receipt=object()), to_received(payload, source)
    if not told(received) == browsed == frames.read_received(payload, source):
        raise Differs(f"{payload!r} is {received} under lock and {browsed} in a browse")
    if received.head is not None and (until := lock_of(payload)) is not ... and until != received.locked_until:
        raise Differs(f"{payload!r} is locked until {until}, not {received.locked_until}")
    options = {"ttl": dice.choice(tuple(TtlMode)), "only": dice.choice((None, None, ("orders",)))}
    whole = replace(received, head=None, decoded=None)
    short, long = (Classifier(now=lambda: NOW, **options)(one) for one in (received, whole))
    if short != long:
        raise Differs(f"{payload!r} from {source} with {options} becomes {short} in place of {long}")
    if received.head is None:
        return "read the long way"
    return f"read the shorter way, {'restored so, too' if restored_so(received) else 'restored the long way'}"


def restored_so(received: Received) -> bool:
    """Whether the shorter way has an answer of its own for what it has read."""
    assert received.head is not None
    try:
        return as_usual(received.payload, received.head, from_dead_letter=received.source == QUEUES[1]) is not None
    except MessageError:
        return True


# Frames


@dataclass
class Peer:
    """Both ends of a link: what the wire took in, and what its session counted."""

    receiver: wire.ReceiverWire
    session: Any
    link: Any
    flows: int = 0

    def counts(self) -> tuple[Any, ...]:
        session, link = self.session, self.link
        windows = session.next_incoming_id, session.remote_outgoing_window, session.incoming_window, self.flows
        return *windows, link.delivery_count, link.current_link_credit

    def arrived(self) -> list[tuple[bytes, int, bytes]]:
        return [(one.payload, one.delivery_id, one.tag) for one in self.receiver.arrived]


HANDLE, CHANNEL = 7, 0


def peer(window: int) -> Peer:
    make: Any = Session
    session = make(None, CHANNEL, network_trace=False, network_trace_params={})
    session.next_incoming_id, session.incoming_window, session.target_incoming_window = 0, window, window
    session.remote_outgoing_window = 1000
    receiver = wire.ReceiverWire(None)
    receiver._hook_next_link(session)
    link = session.create_receiver_link("q", on_transfer=None, link_credit=100)
    session._input_handles[HANDLE] = link
    made = Peer(receiver, session, link)

    async def flow(*_: Any, **__: Any) -> None:
        made.flows += 1

    async def over(*_: Any, **__: Any) -> None:
        """A session that the peer has broken."""

    async def incoming(channel: int, frame: Any) -> None:
        code, fields = frame
        if code == TRANSFER and channel == CHANNEL:
            await session._incoming_transfer(fields)

    session._outgoing_flow, session._set_state, session.end = flow, over, over
    receiver._connection = SimpleNamespace(_incoming_endpoints={CHANNEL: session}, _process_incoming_frame=incoming)
    return made


def number(dice: Dice, value: int) -> bytes:
    forms = [b"\x70" + struct.pack(">I", value)]
    if value < 256:
        forms.append(b"\x52" + bytes((value,)))
    if value == 0:
        forms.append(b"\x43")
    return dice.choice(forms)


def flag(dice: Dice, value: bool) -> bytes:
    if dice.rarely(0.02):
        return b"\x56" + bytes((value,))
    return b"\x41" if value else dice.choice((b"\x42", b"\x40"))


def transfer(dice: Dice, delivery_id: int, *, more: bool) -> bytes:
    """A frame's body: mostly one that a broker writes."""
    at, tag, batch = number(dice, delivery_id), b"\xa0\x10" + dice.randbytes(16), number(dice, frames.BATCH_FORMAT)
    if dice.rarely(0.05):
        at = dice.choice((b"\x40", b"\x53\x05", b"\x71\xff\xff\xff\xff"))
    if dice.rarely(0.1):
        tag = dice.choice((b"\xa0\x00", b"\xb0\x00\x00\x00\x01t", b"\x40", b"\xa1\x01t"))
    fields = [
        number(dice, 3 if dice.rarely(0.03) else HANDLE),
        at,
        tag,
        dice.choice((b"\x40", batch)) if dice.rarely(0.1) else number(dice, 0),
        flag(dice, dice.rarely(0.1)),
        flag(dice, more),
        b"\x40",
        b"\x00\x53\x24\x45" if dice.rarely(0.05) else b"\x40",
        flag(dice, dice.rarely(0.05)),
        flag(dice, dice.rarely(0.05)),
        flag(dice, dice.random() < 0.5),
    ]
    fields = fields[: dice.choice((5, 7, 8, 9, 10)) if dice.rarely(0.05) else dice.choice((6, 11))]
    content, count = b"".join(fields), len(fields) + (dice.choice((-1, 1)) if dice.rarely(0.01) else 0)
    size = len(content) + 1 + (dice.choice((-1, 1)) if dice.rarely(0.02) else 0)
    performative = b"\x00\x53\x14\xc0" + bytes((size, count)) + content
    if dice.rarely(0.05):
        performative = b"\x00\x53\x14\xd0" + struct.pack(">II", len(content) + 4, count) + content
    found = performative + dice.randbytes(dice.choice((0, 1, 20, 300)))
    return damaged(dice, found) if dice.rarely(0.05) else found


async def taken_in(one: Peer, channel: int, body: bytes, *, shorter: bool) -> str:
    """What becomes of one frame; the name of the error that ends the connection, if there is one."""
    try:
        if not (shorter and one.receiver._took(channel, memoryview(body))):
            await one.receiver._process(channel, memoryview(body))
    except Exception as error:  # noqa: BLE001 - compared with the other's
        return type(error).__name__
    return ""


async def compare_frames(dice: Dice) -> str:
    """Frames of one link through two connections; how many of them the shorter way took."""
    window = dice.choice((1, 2, 3, 100))
    short, long = peer(window), peer(window)
    tried = 0
    for delivery_id in range(dice.randrange(1, 9)):
        at = delivery_id if not dice.rarely(0.1) else dice.choice((0, 255, 256, 2**31, 2**32 - 1))
        body = transfer(dice, at, more=dice.rarely(0.15))
        tried += whole_transfer(memoryview(body)) is not None
        channel = 1 if dice.rarely(0.03) else CHANNEL
        ends = [await taken_in(one, channel, body, shorter=one is short) for one in (short, long)]
        if ends[0] != ends[1] or short.counts() != long.counts() or short.arrived() != long.arrived():
            says = [(end, one.counts(), one.arrived()) for end, one in zip(ends, (short, long), strict=True)]
            raise Differs(f"after {body!r} on channel {channel} the shorter way has {says[0]}, the long one {says[1]}")
        if ends[0]:
            return "frames until the connection ended"
    return f"frames, {'some' if tried else 'none'} whole"


async def run(cases: int, seed: int) -> Counter[str]:
    """How often what was compared; one case in five is of frames.

    Raises:
        Differs: the two ways do not come to the same.
    """
    counts: Counter[str] = Counter()
    for case in range(cases):
        dice = Dice(f"{seed}:{case}")
        dice.odd = dice.choice((0.1, 0.5, 2.0))
        try:
            counts[await compare_frames(dice) if case % 5 == 4 else compare_message(dice)] += 1
        except Exception as error:
            raise Differs(f"seed {seed}, case {case}: {type(error).__name__}: {error}") from error
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.getLogger("azure.servicebus").setLevel(logging.CRITICAL)  # of sessions that a case has broken
    begun = time.process_time()
    counts = asyncio.run(run(options.cases, options.seed))
    seconds = time.process_time() - begun
    print(f"seed {options.seed}: {options.cases:,} cases in {seconds:.0f} s of CPU, no difference: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
