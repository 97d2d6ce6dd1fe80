"""What the namespace refuses, in the two languages its clients speak: HTTP (administration) and AMQP (messages)."""

import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from sbpair.amqp.performatives import ERROR, REJECTED
from sbpair.amqp.types import Described, Symbol, Ulong


class EmulatorError(Exception):
    """The emulator was asked for something it has not got, or cannot start; the text says what."""


class StoreError(EmulatorError):
    """The file cannot be used: damaged, not ours, from a newer version, or in use by another process."""


class EntityError(Exception):
    """An administrative request was refused.

    `http_status` and `sub_code` are what the service documents for its resource provider; `code` is the word ARM puts
    into `error.code`, `message` the sentence for a human. Nothing was changed.
    """

    def __init__(self, http_status: int, sub_code: int | None, message: str, code: str) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.sub_code = sub_code
        self.message = message
        self.code = code


def bad_request(message: str) -> EntityError:
    """An argument outside what the service takes: HTTP 400, sub-code 40000."""
    return EntityError(400, 40000, message, "BadRequest")


def conflict(message: str) -> EntityError:
    """The entity exists already: HTTP 409 without the sub-codes 40900/40901 that would mean "try again"."""
    return EntityError(409, None, message, "MessagingGatewayConflict")


def not_found(message: str) -> EntityError:
    """There is no such entity: HTTP 404, sub-code 40400."""
    return EntityError(404, 40400, message, "MessagingGatewayNotFound")


def quota_exceeded(message: str) -> EntityError:
    """The namespace holds as many entities as it may: HTTP 403."""
    return EntityError(403, None, message, "QuotaExceeded")


def throttled(message: str) -> EntityError:
    """Too many requests: HTTP 429, sub-code 50004."""
    return EntityError(429, 50004, message, "TooManyRequests")


class BrokerError(Exception):
    """A messaging operation was refused; `condition` is the AMQP error symbol the client gets to see."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


def tracked(description: str) -> str:
    """A refusal's text with the id by which the service's support finds it in its logs; every refusal has its own."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time()))
    return f"{description} TrackingId:{uuid4()}_B0, SystemTracker:sbpair, Timestamp:{at}".lstrip()


STORE_FULL = "The namespace cannot write to its disk at present."
UNKNOWN_OUTCOME = f"{STORE_FULL} What was asked for may still happen, as soon as it can."

NOT_FOUND = "amqp:not-found"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
DECODE_ERROR = "amqp:decode-error"
INVALID_FIELD = "amqp:invalid-field"
INTERNAL_ERROR = "amqp:internal-error"
UNAUTHORIZED = "amqp:unauthorized-access"
RESOURCE_DELETED = "amqp:resource-deleted"
QUOTA = "amqp:resource-limit-exceeded"
SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
DISABLED = "com.microsoft:entity-disabled"
SERVER_BUSY = "com.microsoft:server-busy"
TIMEOUT = "com.microsoft:timeout"
ARGUMENT_ERROR = "com.microsoft:argument-error"
ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
ENTITY_EXISTS = "com.microsoft:entity-already-exists"
DEAD_LETTER = "com.microsoft:dead-letter"
STATUSES = {
    NOT_FOUND: 404,
    MESSAGE_NOT_FOUND: 404,
    MESSAGE_LOCK_LOST: 410,
    SESSION_LOCK_LOST: 410,
    SESSION_CANNOT_BE_LOCKED: 409,
    ENTITY_EXISTS: 409,
    UNAUTHORIZED: 401,
    QUOTA: 403,
    DISABLED: 403,
    SERVER_BUSY: 503,
    TIMEOUT: 408,
    INTERNAL_ERROR: 500,
    NOT_IMPLEMENTED: 501,
}
"""What an answer of `$management` has for a condition; 400 for any other."""


def error(condition: str, description: str | None = None, info: Mapping[str, Any] | None = None) -> Described:
    """An AMQP error (§2.8.14). The description ends with a tracking id, as in the service. It always has three fields
    with an info map: the Python SDK's sender takes that for granted, and waits for ever where one is missing."""
    infos = {Symbol(key): value for key, value in (info or {}).items()}
    return Described(Ulong(ERROR), [Symbol(condition), tracked(description or ""), infos])


def rejected(
    condition: str | None = None, description: str | None = None, info: Mapping[str, Any] | None = None
) -> Described:
    """The message is refused. Without a condition: the bare outcome, which confirms a dead-lettering."""
    if condition is None:
        return Described(Ulong(REJECTED), [])
    return Described(Ulong(REJECTED), [error(condition, description, info)])


def unknown_outcome() -> Described:
    """Nobody knows yet what becomes of it: the store cannot write at present, and goes on trying."""
    return rejected(TIMEOUT, UNKNOWN_OUTCOME)
