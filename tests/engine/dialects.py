"""How three client libraries say the same on the wire.

Every test of the engine that speaks frames runs once for each: the fixture `dialect` (tests/emulator/conftest.py) gives
them in turn, and needs no mark that could be forgotten.

All three are correct AMQP 1.0. They differ where the standard leaves a choice, and a server that only knows one of
them fails with the others: a window that does not fit a signed number, lists with or without nulls at their end, credit
given before the attach is answered, settle modes left out, a slash before an entity's name, properties of a link, a
token node with a reply address in its name.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from sbpair.amqp.performatives import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, OPEN, TRANSFER
from sbpair.amqp.types import Symbol, Ubyte, Uint

FIELD_COUNTS = {OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3, END: 1, CLOSE: 1}
"""Fields of the performatives (AMQP 1.0 §2.7), counted from the standard and not from the code under test."""


@dataclass(frozen=True)
class Dialect:
    """What a client library writes. `window` is its incoming-window in `begin` and in every `flow`."""

    name: str
    window: int
    nulls_to_the_end: bool
    reads_whole_lists: bool
    credit_before_attach_is_answered: bool
    cbs_address: str
    send_modes: tuple[Ubyte | None, Ubyte | None]
    receive_modes: tuple[Ubyte | None, Ubyte | None]
    mechanism: str = "ANONYMOUS"
    slash_before_entities: bool = False
    link_properties: Mapping[Symbol, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def address(self, path: str) -> str:
        """How this library names an entity; `$cbs`, `$management` of an entity and whole addresses are left alone."""
        plain = path and not path.startswith(("$", "/")) and ":" not in path and not path.endswith("$management")
        return f"/{path}" if self.slash_before_entities and plain else path

    def written(self, code: int, fields: list[object]) -> list[object]:
        """The list of a performative as this library sends it."""
        if self.nulls_to_the_end:
            return fields + [None] * (FIELD_COUNTS.get(code, 0) - len(fields))
        length = len(fields)
        while length and fields[length - 1] is None:
            length -= 1
        return fields[:length]

    def check_read(self, code: int, fields: list[object]) -> None:
        """Fail where this library's reader would: azure-servicebus before 7.15 indexes every field."""
        if self.reads_whole_lists and code in FIELD_COUNTS:
            assert len(fields) == FIELD_COUNTS[code], f"performative 0x{code:02x} has {len(fields)} fields"


# Microsoft.Azure.Amqp 2.6.9 under Azure.Messaging.ServiceBus 7.19.0; `$cbs/<32 digits>` as the retired 2.x library.
DOTNET = Dialect(
    name="dotnet",
    window=0xFFFFFFFF,
    nulls_to_the_end=True,
    reads_whole_lists=False,
    credit_before_attach_is_answered=True,
    cbs_address="$cbs/9bc5113e1faa4f8484fd1979b4140986",
    send_modes=(None, None),
    receive_modes=(None, Ubyte(1)),
    mechanism="MSSBCBS",
    slash_before_entities=True,
    link_properties={Symbol("com.microsoft:timeout"): Uint(59_861)},
)
# pyamqp in azure-servicebus 7.10 to 7.14.
AZURE_SERVICEBUS = Dialect(
    name="azure-servicebus",
    window=65536,
    nulls_to_the_end=True,
    reads_whole_lists=True,
    credit_before_attach_is_answered=False,
    cbs_address="$cbs",
    send_modes=(Ubyte(0), Ubyte(0)),
    receive_modes=(Ubyte(0), Ubyte(1)),
)
PROTON = Dialect(
    name="proton",
    window=0x7FFFFFFF,
    nulls_to_the_end=False,
    reads_whole_lists=False,
    credit_before_attach_is_answered=False,
    cbs_address="$cbs",
    send_modes=(Ubyte(2), Ubyte(0)),
    receive_modes=(Ubyte(2), Ubyte(0)),
)
DIALECTS = (DOTNET, AZURE_SERVICEBUS, PROTON)


def settled_by_sender(dialect: Dialect) -> Dialect:
    """The same library receiving in receive-and-delete mode."""
    return dataclasses.replace(dialect, receive_modes=(Ubyte(1), Ubyte(0)))
