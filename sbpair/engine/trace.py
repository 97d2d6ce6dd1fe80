"""The last frames of a namespace's connections, as text that a person reads after a test has failed."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sbpair.amqp.types import AmqpError, Described
from sbpair.engine import performatives
from sbpair.engine.frames import FramingError, read_header
from sbpair.engine.performatives import code_of, read_performative

MOST_FRAMES: Final = 200
_MOST_VALUE_CHARACTERS: Final = 60
_HEADER_BYTES: Final = 8

_FIELDS: Final[dict[int, tuple[str, str]]] = {
    performatives.OPEN: ("open", "container-id hostname max-frame-size channel-max idle-time-out"),
    performatives.BEGIN: ("begin", "remote-channel next-outgoing-id incoming-window outgoing-window handle-max"),
    performatives.ATTACH: (
        "attach",
        "name handle role snd-settle-mode rcv-settle-mode source target unsettled incomplete-unsettled "
        "initial-delivery-count max-message-size offered-capabilities desired-capabilities properties",
    ),
    performatives.FLOW: (
        "flow",
        "next-incoming-id incoming-window next-outgoing-id outgoing-window handle delivery-count link-credit available "
        "drain echo properties",
    ),
    performatives.TRANSFER: (
        "transfer",
        "handle delivery-id delivery-tag message-format settled more rcv-settle-mode state resume aborted batchable",
    ),
    performatives.DISPOSITION: ("disposition", "role first last settled state batchable"),
    performatives.DETACH: ("detach", "handle closed error"),
    performatives.END: ("end", "error"),
    performatives.CLOSE: ("close", "error"),
    performatives.SASL_MECHANISMS: ("sasl-mechanisms", "sasl-server-mechanisms"),
    performatives.SASL_INIT: ("sasl-init", "mechanism"),
    performatives.SASL_OUTCOME: ("sasl-outcome", "code"),
}
"""Name and fields of each performative, in their order (AMQP 1.0, 2.7 and 5.3). What a client says of itself in a
sasl-init behind its mechanism may be a secret and is left out."""
_COMPOSITES: Final = {
    performatives.ERROR: "error",
    performatives.RECEIVED: "received",
    performatives.ACCEPTED: "accepted",
    performatives.REJECTED: "rejected",
    performatives.RELEASED: "released",
    performatives.MODIFIED: "modified",
    performatives.SOURCE: "source",
    performatives.TARGET: "target",
    performatives.COORDINATOR: "coordinator",
    performatives.DECLARED: "declared",
    performatives.TRANSACTIONAL_STATE: "transactional-state",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `at` is epoch seconds; `connection` counts from 1; `payload_bytes` is the message's part of it."""

    at: float
    connection: int
    came: bool
    channel: int
    code: int
    fields: list[Any]
    payload_bytes: int

    def __str__(self) -> str:
        name, names = _FIELDS.get(self.code, (f"0x{self.code:x}", ""))
        shown = [(field, value) for field, value in zip(names.split(), self.fields, strict=False) if value is not None]
        said = " ".join(f"{field}={_shown(_role(value) if field == 'role' else value)}" for field, value in shown)
        payload = f"  + {self.payload_bytes} bytes" if self.payload_bytes else ""
        clock = time.strftime("%H:%M:%S", time.localtime(self.at)) + f".{int(self.at * 1000) % 1000:03d}"
        arrow = "client ->" if self.came else "client <-"
        return f"{clock} {self.connection}.{self.channel} {arrow} {name} {said}{payload}".rstrip()


class Trace:
    """The last frames of all connections of a namespace, oldest first."""

    def __init__(self, most_frames: int = MOST_FRAMES) -> None:
        self.frames: deque[Frame] = deque(maxlen=most_frames)
        self._numbers = itertools.count(1)

    def of_connection(self) -> "ConnectionTrace":
        """For a connection that has just been made."""
        return ConnectionTrace(self, next(self._numbers))


class ConnectionTrace:
    """Writes down the frames of one connection."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._frames = trace.frames
        self._number = number

    def came(self, channel: int, code: int, fields: list[Any], payload_bytes: int) -> None:
        """A frame from the client."""
        self._frames.append(Frame(time.time(), self._number, True, channel, code, fields, payload_bytes))

    def went(self, data: bytes) -> None:
        """Whole frames to the client, and perhaps protocol headers between them."""
        for channel, body in _bodies(data):
            try:
                code, fields, start = read_performative(body)
            except AmqpError:
                continue
            self._frames.append(Frame(time.time(), self._number, False, channel, code, fields, len(body) - start))


def _bodies(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while len(data) - offset >= _HEADER_BYTES:
        if data.startswith(b"AMQP", offset):
            offset += _HEADER_BYTES
            continue
        try:
            size, start, _, channel = read_header(data, offset, len(data))
        except FramingError:
            return
        if size > start:
            yield channel, data[offset + start : offset + size]
        offset += size


def _role(value: object) -> object:
    return "receiver" if value is True else "sender"


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case Described():
            code = code_of(value.descriptor)
            name = str(value.descriptor) if code is None else _COMPOSITES.get(code, f"0x{code:x}")
            inner = ", ".join(map(_shown, value.value)) if isinstance(value.value, list) else str(value.value)
            text = f"{name}({inner.rstrip(', -')})".removesuffix("()")
        case bytes():
            text = value.hex()
        case _:
            text = str(value)
    return text if len(text) <= _MOST_VALUE_CHARACTERS else text[: _MOST_VALUE_CHARACTERS - 3] + "..."
