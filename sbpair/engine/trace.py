"""The last frames of a namespace's connections, as text that a person reads after a test has failed."""

import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from sbpair.amqp.frames import FrameBuffer
from sbpair.amqp.performatives import COMPOSITES, code_of, read_performative
from sbpair.amqp.types import AmqpError, Described

MOST_FRAMES: Final = 200
_MOST_VALUE_CHARACTERS: Final = 60


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
        name, names = COMPOSITES.get(self.code, (f"0x{self.code:x}", ()))
        shown = [(field, value) for field, value in zip(names, self.fields, strict=False) if value is not None]
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
        for channel, found in FrameBuffer(most_bytes=len(data)).feed(data):
            body = bytes(found)
            try:
                code, fields, start = read_performative(body)
            except AmqpError:
                continue
            self._frames.append(Frame(time.time(), self._number, False, channel, code, fields, len(body) - start))


def _role(value: object) -> object:
    return "receiver" if value is True else "sender"


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case Described():
            code = code_of(value.descriptor)
            name = (
                str(value.descriptor) if code is None else COMPOSITES[code][0] if code in COMPOSITES else f"0x{code:x}"
            )
            inner = ", ".join(map(_shown, value.value)) if isinstance(value.value, list) else str(value.value)
            text = f"{name}({inner.rstrip(', -')})".removesuffix("()")
        case bytes():
            text = value.hex()
        case _:
            text = str(value)
    return text if len(text) <= _MOST_VALUE_CHARACTERS else text[: _MOST_VALUE_CHARACTERS - 3] + "..."
