"""One management request and its answer, free of links: what every operation takes and gives."""

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from sbpair.amqp.types import Array
from sbpair.emulator.broker.addresses import Location
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.transactions import Transaction
from sbpair.emulator.namespace import Namespace
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError

MAX_REQUEST_NUMBERS = 2000
"""Messages that a management request cancels or receives by their numbers, all or none: our own bound."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` holds AMQP values; `condition` is set for failures."""

    status: int
    body: Mapping[str, object] = field(default_factory=dict)
    description: str = "OK"
    condition: str | None = None

    @classmethod
    def ok(cls, **body: object) -> "Reply":
        """200; names of body entries with `_` for `-`."""
        return cls(200, {name.replace("_", "-"): value for name, value in body.items()})

    @classmethod
    def nothing(cls, condition: str | None = None) -> "Reply":
        """204: nothing there."""
        return cls(204, description="No Content", condition=condition)

    @classmethod
    def failure(cls, status: int, condition: str, description: str) -> "Reply":
        return cls(status, {}, errors.tracked(description), condition)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to one place. The accessors raise BrokerError argument-error for a missing or mistyped entry."""

    namespace: Namespace
    location: Location
    body: Mapping[str, object]
    transaction: Transaction | None = None

    @property
    def mailbox(self) -> Mailbox:
        """The place's mailbox; BrokerError not-allowed on a topic."""
        mailbox = self.location.mailbox
        if mailbox is None:
            raise BrokerError(errors.NOT_ALLOWED, "A topic holds no messages to receive; use one of its subscriptions.")
        return mailbox

    def number(self, name: str, default: int | None = None) -> int:
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._bad(name, "a number")
        return int(value)

    def text(self, name: str) -> str:
        value = self.body.get(name)
        if not isinstance(value, str):
            raise self._bad(name, "a string")
        return str(value)

    def optional_text(self, name: str) -> str | None:
        return None if self.body.get(name) is None else self.text(name)

    def items(self, name: str) -> list[object]:
        """The entries of an array or a list (clients send either)."""
        value = self.body.get(name)
        if isinstance(value, Array):
            return list(value.items)
        if isinstance(value, list):
            return value
        raise self._bad(name, "an array")

    def numbers(self, name: str) -> list[int]:
        found = [value for value in self.items(name) if isinstance(value, int) and not isinstance(value, bool)]
        if not found or len(found) != len(self.items(name)):
            raise self._bad(name, "an array of numbers")
        return [int(value) for value in found]

    def sequence_numbers(self) -> list[int]:
        """The entry `sequence-numbers`: of messages that are changed all at once or not at all."""
        found = self.numbers("sequence-numbers")
        if len(found) > MAX_REQUEST_NUMBERS:
            text = f"A request names {MAX_REQUEST_NUMBERS} sequence numbers at most, not {len(found)}."
            raise BrokerError(errors.ARGUMENT_OUT_OF_RANGE, text)
        return found

    def tokens(self, name: str) -> list[uuid.UUID]:
        found = [value for value in self.items(name) if isinstance(value, uuid.UUID)]
        if not found or len(found) != len(self.items(name)):
            raise self._bad(name, "an array of uuids")
        return found

    @staticmethod
    def _bad(name: str, expected: str) -> BrokerError:
        return BrokerError(errors.ARGUMENT_ERROR, f"The entry '{name}' of the request must be {expected}.")


Answering = Generator[None, None, Reply]
"""An operation in steps, since there may be thousands of messages, tokens or rules in a request or an answer."""


class WithinTransaction(Enum):
    """What becomes of a request in a transaction. The .NET client puts every request of a TransactionScope into one."""

    AT_COMMIT = auto()
    AT_ONCE = auto()
    """It changes nothing that a rollback would have to undo: reads, and locks."""
    REFUSED = auto()
    """Management: the service's documents do not let a transaction mix it with messaging."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What performs an operation, and the right ("Send" or "Listen") it needs."""

    perform: Callable[[Call], Answering]
    right: str
    within_transaction: WithinTransaction = WithinTransaction.AT_ONCE
