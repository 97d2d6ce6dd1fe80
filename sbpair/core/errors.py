"""Every error sbpair raises, and what an operator can do about it.

    SbpairError
    ├── UsageError                     wrong options or arguments
    │   ├── ConfigurationError         the configuration file or environment
    │   ├── InvalidNameError           a namespace or entity name the service would refuse
    │   └── StalePlanError             the world changed since the plan was written
    ├── ServiceError                   something a namespace said, or failed to say
    │   ├── OperationTimeoutError      no answer in time                       retry, starts failover
    │   ├── ConnectionLostError        DNS, TCP, TLS, AMQP connection          retry, starts failover
    │   ├── LinkDetachedError          the service detached the link           retry, starts failover
    │   ├── ServiceInternalError       amqp:internal-error and its kin         retry, starts failover
    │   ├── ServerBusyError            throttled: wait 10 seconds              retry
    │   ├── EntityDisabledError        disabled (for sending)                  starts failover
    │   ├── QuotaExceededError         the entity or namespace is full         starts failover
    │   ├── AccessDeniedError
    │   │   ├── AuthenticationFailedError   the credential is not accepted
    │   │   ├── UnauthorizedError           accepted, but lacks the right
    │   │   └── CredentialError             no credential could be had
    │   ├── EntityNotFoundError
    │   ├── EntityExistsError
    │   ├── ConflictError              another operation is in progress        retry
    │   ├── MessageTooLargeError
    │   ├── ArgumentRefusedError       the service refuses the request as such
    │   ├── LockLostError              message or session lock                 (the message comes again)
    │   ├── SessionUnavailableError    held by another receiver, or none waiting
    │   ├── SendIncompleteError        part of a batch was accepted, the rest was not
    │   └── UnknownServiceError        anything not in the table; the original text is kept
    ├── JournalError                   the journal of active/active
    │   ├── JournalUnavailableError    no answer, or no room               retry; processing stops
    │   └── JournalConflictError       somebody else wrote in between      (read again and decide again)
    ├── MessageError
    │   ├── MalformedMessageError      bytes that are not an AMQP message
    │   ├── NotABacklogMessageError    no x-ms-path
    │   ├── InvalidDestinationError    an x-ms-path that names neither a queue nor a topic
    │   └── ReservedPropertyError      the application already uses an x-ms-* name
    ├── PairingError                   paired twice, no usable backlog queue
    │   └── SameNamespaceError         primary equals secondary
    ├── IncompatibleSdkError           the installed SDK moved what the lossless passage stands on
    └── InterruptedWorkError           stopped by a signal or by close

`category` is what the failover policy table is keyed by; `retryable` says whether the same call can succeed later with
nothing changed. Sources: "Asynchronous Messaging Patterns and High Availability" (which errors start the failover
timer), the Service Bus exception documentation.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Self

from sbpair.core.redact import scrub
from sbpair.core.words import did_you_mean


class Category(StrEnum):
    """What an error means for failover: the key of the policy table in `core.failover`."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    DETACHED = "detached"
    INTERNAL = "internal"
    BUSY = "busy"
    DISABLED = "disabled"
    QUOTA = "quota"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    ARGUMENT = "argument"
    UNKNOWN = "unknown"


_OF_A_PAIR = re.compile(r"\bsbpair (?:ping|doctor|provision)(?=$| --dry-run$)")
"""A command without its pair at the end of a hint."""


def for_pair(hint: str, pair: str | None) -> str:
    """A hint whose command, at its end, names the pair: errors are made where nobody knows of pairs."""
    return _OF_A_PAIR.sub(lambda command: f"{command[0]} {pair}", hint) if pair else hint


_TWO_FULL_STOPS = re.compile(r"(?<!\.)\.\.(?=\s|$)")
"""Where a sentence ends with a reason that is a sentence itself."""


class SbpairError(Exception):
    """Base of all errors. `message` says what was tried and what happened, `hint` the next step.

    Whatever an error repeats of its input, no key, signature or token is in its texts. `code` is stable and appears in
    JSON output; `exit_name` is the name in the exit code table.
    """

    code = "error"
    exit_name = "failed"
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = _TWO_FULL_STOPS.sub(".", scrub(message))
        super().__init__(self.message)
        if hint is not None:
            self.hint = scrub(hint)

    def with_state(self, state: str) -> Self:
        """This error, saying too what became of the work: `Nothing was changed.` One such sentence is enough."""
        said, new = self.message.lower(), state.rstrip(".").lower()
        if new not in said and not all("nothing was " in text for text in (said, new)):
            self.message = f"{self.message.rstrip('.')}. {state}"
            self.args = (self.message,)
        return self


class UsageError(SbpairError):
    code = "usage"
    exit_name = "usage"


class ConfigurationError(UsageError):
    code = "configuration"
    hint = "Check it with: sbpair config check"
    problems: tuple[str, ...] = ()
    """Where there are several, each by itself; the message has them all."""


class InvalidNameError(UsageError):
    code = "invalid-name"


class StalePlanError(UsageError):
    code = "stale-plan"
    hint = "Write a new plan with --plan-out, look at it, and apply that one."


class ServiceError(SbpairError):
    """An answer, or the lack of one, from a namespace. `retryable`: the same call may succeed later; `passes`: it may
    although errors of its category do not pass by themselves.

    `uncertain`: the request may have been carried out although it is reported as failed (the answer was lost).
    """

    code = "service"
    category = Category.UNKNOWN
    retryable = False
    uncertain = False
    passes = False

    def __init__(self, message: str, *, hint: str | None = None, entity: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.entity = entity


class OperationTimeoutError(ServiceError):
    code = "timeout"
    category = Category.TIMEOUT
    exit_name = "unreachable"
    retryable = True
    uncertain = True
    hint = "See which side answers with: sbpair ping"


class ConnectionLostError(ServiceError):
    code = "connection-lost"
    category = Category.CONNECTION
    exit_name = "unreachable"
    retryable = True
    uncertain = True
    hint = "Check the host name, DNS, firewall and ports 5671/443, or see which side answers with: sbpair ping"


class HostNotFoundError(ConnectionLostError):
    """There is no such name: the namespace was deleted or is misspelt, or this machine's DNS knows nothing of it."""

    code = "host-not-found"
    uncertain = False


class LinkDetachedError(ServiceError):
    code = "link-detached"
    category = Category.DETACHED
    exit_name = "unreachable"
    retryable = True


class ServiceInternalError(ServiceError):
    code = "service-internal"
    category = Category.INTERNAL
    retryable = True


class ServerBusyError(ServiceError):
    """Throttled. The documents ask for at least 10 seconds before the next try ("Asynchronous Messaging Patterns and
    High Availability")."""

    code = "server-busy"
    category = Category.BUSY
    retryable = True
    hint = "The namespace is throttling; try again later."
    _SLOWER = "The namespace is throttling; lower --rate or --concurrency, or try again later."

    def hint_for(self, options: Collection[str]) -> str:
        """The hint for a command with these options, by name."""
        return self._SLOWER if {"rate", "concurrency"} <= set(options) else self.hint


class EntityDisabledError(ServiceError):
    code = "entity-disabled"
    category = Category.DISABLED
    hint = (
        "Somebody disabled the entity. If it may work again, change that, and try again: "
        "sbpair entity set-status NAMESPACE:ENTITY Active"
    )


class QuotaExceededError(ServiceError):
    code = "quota-exceeded"
    category = Category.QUOTA
    hint = "Receive or delete messages there, or raise the entity's maximum size."


class AccessDeniedError(ServiceError):
    code = "access-denied"
    category = Category.UNAUTHORIZED
    exit_name = "denied"


class AuthenticationFailedError(AccessDeniedError):
    code = "authentication-failed"
    hint = (
        "Check that the key is one of this namespace's and not of one entity's (EntityPath=...), or the identity; "
        "see which credential is used with: sbpair doctor"
    )


class TokenExpiredError(AuthenticationFailedError):
    """A token that was made a moment ago counts as expired: a clock is wrong, and may soon be right again."""

    passes = True


class UnauthorizedError(AccessDeniedError):
    code = "unauthorized"
    hint = (
        "The credential is known but lacks the right (Manage, Send or Listen) on this entity; "
        "what each command needs: sbpair help permissions"
    )
    lacks = ""
    """The right that is missing: Manage, Send or Listen; empty where the service does not say."""

    @classmethod
    def lacking(cls, right: str, tried: str, *, entity: str | None = None) -> "UnauthorizedError":
        """The error of who may not do what was `tried` for want of this right."""
        error = cls(f"Could not {tried}: the credential has no {right} right there", entity=entity, hint=cls._NEEDS)
        error.lacks = right
        return error

    _NEEDS = "What each command needs: sbpair help permissions"


class CredentialError(AccessDeniedError):
    code = "credential"
    hint = "Choose a credential with `auth:` in the configuration or SBPAIR_AUTH; try it with: sbpair doctor"


class EntityNotFoundError(ServiceError):
    code = "entity-not-found"
    category = Category.NOT_FOUND
    hint = "Check its name, and that it is in this namespace."

    def __init__(self, message: str, *, hint: str | None = None, entity: str | None = None) -> None:
        if hint is None and entity is not None and "/x-servicebus-transfer/" in entity.lower():
            hint = "Missing backlog queues are created with: sbpair provision"
        super().__init__(message, hint=hint, entity=entity)

    def looking_like(self, known: Iterable[str]) -> Self:
        """This error, asking for one of the names that are known where the entity looks like a misspelt one."""
        self.hint = did_you_mean(self.entity or "", (one for one in known if one != self.entity), self.hint)
        return self


class EntityExistsError(ServiceError):
    code = "entity-exists"
    category = Category.ARGUMENT


class ConflictError(ServiceError):
    """Another management operation is in progress on the entity (409, sub-code 40901)."""

    code = "conflict"
    category = Category.INTERNAL
    retryable = True


class MessageTooLargeError(ServiceError):
    code = "message-too-large"
    category = Category.TOO_LARGE
    hint = (
        "Limits: 256 KB a message in Standard, up to 100 MB in Premium (set on the entity). Send less, or a reference."
    )


class ArgumentRefusedError(ServiceError):
    code = "argument-refused"
    category = Category.ARGUMENT


class LockLostError(ServiceError):
    """The lock ran out or its connection is gone; the message will be delivered again."""

    code = "lock-lost"
    category = Category.ARGUMENT


class LocksLostError(LockLostError):
    """As LockLostError, for several messages that were to be moved together.

    `lost`: positions (from 0) of those whose locks are gone; the others are as they were.
    """

    def __init__(self, message: str, *, lost: tuple[int, ...], entity: str | None = None) -> None:
        super().__init__(message, entity=entity)
        self.lost = lost


class SessionUnavailableError(ServiceError):
    code = "session-unavailable"
    category = Category.ARGUMENT
    retryable = True


class SendIncompleteError(ServiceError):
    """Some messages of one send were accepted, the rest was not; the cause says why.

    `accepted`: positions (from 0) of the accepted messages; sending the others again does not repeat these.
    """

    code = "send-incomplete"
    exit_name = "partial"

    def __init__(self, message: str, *, accepted: tuple[int, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.accepted = accepted


class UnknownServiceError(ServiceError):
    code = "unknown-service-error"


class JournalError(SbpairError):
    """The journal refused permanently: wrong address, credential, settings, or an entry that cannot be read."""

    code = "journal"
    hint = "Look at it with: sbpair replicate status --journal ..."


class JournalUnavailableError(JournalError):
    """No answer from the journal, or it is throttling. A write may have been carried out all the same."""

    code = "journal-unavailable"
    exit_name = "unreachable"
    hint = "Nothing is processed without the journal, and nothing is lost; it goes on when the journal is back."


class JournalConflictError(JournalError):
    """A compare-and-swap lost: the entry is not at the version it was read at, or exists already."""

    code = "journal-conflict"


class MessageError(SbpairError):
    """Something about a message itself. `reason` and `description` are its dead-letter texts."""

    code = "message"
    reason = "InvalidMessage"

    def __init__(self, message: str, *, hint: str | None = None, reason: str | None = None) -> None:
        super().__init__(message, hint=hint)
        if reason is not None:
            self.reason = reason

    @property
    def description(self) -> str:
        return self.message


class MalformedMessageError(MessageError):
    code = "malformed-message"
    reason = "MalformedMessage"


class NotABacklogMessageError(MessageError):
    code = "not-a-backlog-message"
    reason = "NotABacklogMessage"


class InvalidDestinationError(MessageError):
    code = "invalid-destination"
    reason = "InvalidDestination"


class ReservedPropertyError(MessageError):
    code = "reserved-property"
    exit_name = "usage"


class PairingError(SbpairError):
    code = "pairing"


class SameNamespaceError(PairingError):
    code = "same-namespace"
    exit_name = "usage"
    hint = "A pair needs two namespaces, ideally in two regions."


class IncompatibleSdkError(SbpairError):
    code = "incompatible-sdk"
    hint = "Install a release that fits: pip install 'azure-servicebus>=7.14,<8'"


class InterruptedWorkError(SbpairError):
    code = "interrupted"
    exit_name = "interrupted"


@contextmanager
def unchanged(state: str = "Nothing was changed.") -> Iterator[None]:
    """Adds this state to the errors of what comes before the first change."""
    try:
        yield
    except (ServiceError, UsageError, InterruptedWorkError) as error:
        raise error.with_state(state) from error.__cause__


def unwritable(path: "os.PathLike[str]", error: OSError) -> SbpairError:
    """The error for a file that cannot be written."""
    return SbpairError(
        f"Cannot write {path}: {error.strerror or error}.",
        hint="Name a file in a folder that exists or can be made, may be written and has room.",
    )
