"""The frames' contents (AMQP 1.0 §2.7, §5.3) and delivery states (§3.4), for both sides of the wire."""

from typing import Any, Final

from sbpair.amqp.decoding import decode, skip
from sbpair.amqp.encoding import encode
from sbpair.amqp.types import AmqpDecodeError, Described, Uint, Ulong

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

ERROR: Final = 0x1D
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34

SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_OUTCOME: Final = 0x44

COMPOSITES: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    code: (name, tuple(fields.split()))
    for code, name, fields in (
        (
            OPEN,
            "open",
            "container-id hostname max-frame-size channel-max idle-time-out outgoing-locales incoming-locales "
            "offered-capabilities desired-capabilities properties",
        ),
        (
            BEGIN,
            "begin",
            "remote-channel next-outgoing-id incoming-window outgoing-window handle-max offered-capabilities "
            "desired-capabilities properties",
        ),
        (
            ATTACH,
            "attach",
            "name handle role snd-settle-mode rcv-settle-mode source target unsettled incomplete-unsettled "
            "initial-delivery-count max-message-size offered-capabilities desired-capabilities properties",
        ),
        (
            FLOW,
            "flow",
            "next-incoming-id incoming-window next-outgoing-id outgoing-window handle delivery-count link-credit "
            "available drain echo properties",
        ),
        (
            TRANSFER,
            "transfer",
            "handle delivery-id delivery-tag message-format settled more rcv-settle-mode state resume aborted "
            "batchable",
        ),
        (DISPOSITION, "disposition", "role first last settled state batchable"),
        (DETACH, "detach", "handle closed error"),
        (END, "end", "error"),
        (CLOSE, "close", "error"),
        (SASL_MECHANISMS, "sasl-mechanisms", "sasl-server-mechanisms"),
        (SASL_INIT, "sasl-init", "mechanism"),
        (SASL_OUTCOME, "sasl-outcome", "code"),
        (ERROR, "error", ""),
        (RECEIVED, "received", ""),
        (ACCEPTED, "accepted", ""),
        (REJECTED, "rejected", ""),
        (RELEASED, "released", ""),
        (MODIFIED, "modified", ""),
        (SOURCE, "source", ""),
        (TARGET, "target", ""),
        (COORDINATOR, "coordinator", ""),
        (DECLARE, "declare", ""),
        (DISCHARGE, "discharge", ""),
        (DECLARED, "declared", ""),
        (TRANSACTIONAL_STATE, "transactional-state", ""),
    )
}
"""Name of each composite, and, of performatives, the fields in their order (AMQP 1.0 §2.7, §5.3). What a client says of
itself in a sasl-init behind its mechanism may be a secret, and has no name here."""

_MAX_UINT: Final = 2**32 - 1
"""No field that is read as a number is wider."""

_NAMES: Final = {f"amqp:{name}:list": code for code, (name, _) in COMPOSITES.items()}

_ACCEPTED: Final = Described(Ulong(ACCEPTED), [])
_RELEASED: Final = Described(Ulong(RELEASED), [])
ACCEPTED_BYTES: Final = encode(_ACCEPTED)
_DISPOSITION_BYTES: Final = bytes((0x00, 0x53, DISPOSITION))


def accepted() -> Described:
    """The message was taken (a sender's), or is done with (a receiver's)."""
    return _ACCEPTED


def released() -> Described:
    """The message goes back as if it had never been delivered."""
    return _RELEASED


def modified(*, undeliverable: bool = False) -> Described:
    """The delivery has failed; `undeliverable`: the message is not to come here again, which defers it."""
    return Described(Ulong(MODIFIED), [True, True] if undeliverable else [True])


def declared(transaction_id: bytes) -> Described:
    """A transaction has begun (§4.5.6)."""
    return Described(Ulong(DECLARED), [transaction_id])


def in_transaction(transaction_id: bytes, outcome: Described | None = None) -> Described:
    """A message, or an outcome, that counts once its transaction is committed (§4.5.8)."""
    return Described(Ulong(TRANSACTIONAL_STATE), [transaction_id] if outcome is None else [transaction_id, outcome])


def transaction_of(state: Described | None) -> tuple[object, Described | None] | None:
    """Transaction id and outcome of a transactional state; None for a state outside any transaction."""
    if state is None or code_of(state.descriptor) != TRANSACTIONAL_STATE:
        return None
    fields = Fields(composite_fields(state))
    outcome = fields.get(1)
    if outcome is not None and not isinstance(outcome, Described):
        raise AmqpDecodeError("the outcome of a transactional state must be a described list")
    return fields.get(0), outcome


def code_of(descriptor: object) -> int | None:
    """The number of a known descriptor, given as number or as name."""
    if isinstance(descriptor, str):
        return _NAMES.get(descriptor)
    return descriptor if isinstance(descriptor, int) and not isinstance(descriptor, bool) else None


def outcome_code(state: Described | None) -> int | None:
    """ACCEPTED, REJECTED, RELEASED, MODIFIED or RECEIVED of a delivery state; None when there is none or another."""
    return None if state is None else code_of(state.descriptor)


def composite_fields(value: object) -> list[Any]:
    """The fields of a composite (described list); an empty list for anything else."""
    return value.value if isinstance(value, Described) and isinstance(value.value, list) else []


def perform(code: int, fields: list[Any]) -> bytes:
    """The bytes of a performative, with nulls to the end of its list as the service writes them.

    AMQP lets a writer leave out nulls at the end, but azure-servicebus 7.10 to 7.14 index the whole list and fail.
    """
    return encode(Described(Ulong(code), whole(code, fields)))


def whole(code: int, fields: list[Any]) -> list[Any]:
    """The fields of a performative with a null for each that is left out."""
    return fields + [None] * (len(COMPOSITES[code][1]) - len(fields)) if code in COMPOSITES else fields


def read_performative(body: bytes, most_bytes: int = _MAX_UINT) -> tuple[int, list[Any], int]:
    """Code, fields and where the payload begins; AmqpDecodeError when it is no performative, or a larger one than that.

    A disposition may fill its frame in any case: it carries the properties that an application sets.
    """
    # 64 KB of empty lists are 64,000 objects and take 100 ms; no client has use for attaches of that kind.
    if skip(body, 0) > most_bytes and not body.startswith(_DISPOSITION_BYTES):
        raise AmqpDecodeError(f"a performative has {most_bytes} bytes at most here")
    value, end = decode(body)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise AmqpDecodeError("a frame must begin with a described list")
    code = code_of(value.descriptor)
    if code is None:
        raise AmqpDecodeError(f"unknown performative {value.descriptor!r}")
    return code, value.value, end


class Fields:
    """Typed access to the fields of a composite; a missing field is null, a field of another type an error."""

    __slots__ = ("_values",)

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def get(self, index: int) -> Any:
        return self._values[index] if index < len(self._values) else None

    def number(self, index: int) -> int | None:
        value = self.get(index)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_UINT):
            return value
        raise AmqpDecodeError(f"field {index} must be a number, not {value!r}")

    def required_number(self, index: int) -> int:
        value = self.number(index)
        if value is None:
            raise AmqpDecodeError(f"field {index} must not be null")
        return value

    def flag(self, index: int) -> bool:
        value = self.get(index)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise AmqpDecodeError(f"field {index} must be a boolean, not {value!r}")

    def text(self, index: int) -> str | None:
        value = self.get(index)
        if value is None or isinstance(value, str):
            return value
        raise AmqpDecodeError(f"field {index} must be a string, not {value!r}")

    def binary(self, index: int) -> bytes | None:
        value = self.get(index)
        if value is None or isinstance(value, bytes):
            return value
        raise AmqpDecodeError(f"field {index} must be binary, not {value!r}")

    def mapping(self, index: int) -> dict[Any, Any]:
        value = self.get(index)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise AmqpDecodeError(f"field {index} must be a map, not {value!r}")


def uint_or_none(value: int | None) -> Uint | None:
    return None if value is None else Uint(value)
