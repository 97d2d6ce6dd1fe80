"""What each error stands for: its code in JSON, the exit code of a run that ends with it, and what is done about it."""

import inspect

from sbpair.core import errors
from sbpair.core.errors import Category, SbpairError, ServiceError

TABLE: dict[str, tuple[str, str]] = {
    "SbpairError": ("error", "failed"),
    "UsageError": ("usage", "usage"),
    "ConfigurationError": ("configuration", "usage"),
    "InvalidNameError": ("invalid-name", "usage"),
    "StalePlanError": ("stale-plan", "usage"),
    "ServiceError": ("service", "failed"),
    "OperationTimeoutError": ("timeout", "unreachable"),
    "ConnectionLostError": ("connection-lost", "unreachable"),
    "HostNotFoundError": ("host-not-found", "unreachable"),
    "LinkDetachedError": ("link-detached", "unreachable"),
    "ServiceInternalError": ("service-internal", "failed"),
    "ServerBusyError": ("server-busy", "failed"),
    "EntityDisabledError": ("entity-disabled", "failed"),
    "QuotaExceededError": ("quota-exceeded", "failed"),
    "AccessDeniedError": ("access-denied", "denied"),
    "AuthenticationFailedError": ("authentication-failed", "denied"),
    "TokenExpiredError": ("authentication-failed", "denied"),
    "UnauthorizedError": ("unauthorized", "denied"),
    "CredentialError": ("credential", "denied"),
    "EntityNotFoundError": ("entity-not-found", "failed"),
    "EntityExistsError": ("entity-exists", "failed"),
    "ConflictError": ("conflict", "failed"),
    "MessageTooLargeError": ("message-too-large", "failed"),
    "ArgumentRefusedError": ("argument-refused", "failed"),
    "LockLostError": ("lock-lost", "failed"),
    "LocksLostError": ("lock-lost", "failed"),
    "SessionUnavailableError": ("session-unavailable", "failed"),
    "SendIncompleteError": ("send-incomplete", "partial"),
    "UnknownServiceError": ("unknown-service-error", "failed"),
    "JournalError": ("journal", "failed"),
    "JournalUnavailableError": ("journal-unavailable", "unreachable"),
    "JournalConflictError": ("journal-conflict", "failed"),
    "MessageError": ("message", "failed"),
    "MalformedMessageError": ("malformed-message", "failed"),
    "NotABacklogMessageError": ("not-a-backlog-message", "failed"),
    "InvalidDestinationError": ("invalid-destination", "failed"),
    "ReservedPropertyError": ("reserved-property", "usage"),
    "PairingError": ("pairing", "failed"),
    "SameNamespaceError": ("same-namespace", "usage"),
    "IncompatibleSdkError": ("incompatible-sdk", "failed"),
    "InterruptedWorkError": ("interrupted", "interrupted"),
}
"""Code, and name of the exit code."""
HANDLED: dict[str, tuple[Category, bool]] = {
    "ServiceError": (Category.UNKNOWN, False),
    "OperationTimeoutError": (Category.TIMEOUT, True),
    "ConnectionLostError": (Category.CONNECTION, True),
    "HostNotFoundError": (Category.CONNECTION, True),
    "LinkDetachedError": (Category.DETACHED, True),
    "ServiceInternalError": (Category.INTERNAL, True),
    "ServerBusyError": (Category.BUSY, True),
    "EntityDisabledError": (Category.DISABLED, False),
    "QuotaExceededError": (Category.QUOTA, False),
    "AccessDeniedError": (Category.UNAUTHORIZED, False),
    "AuthenticationFailedError": (Category.UNAUTHORIZED, False),
    "TokenExpiredError": (Category.UNAUTHORIZED, False),
    "UnauthorizedError": (Category.UNAUTHORIZED, False),
    "CredentialError": (Category.UNAUTHORIZED, False),
    "EntityNotFoundError": (Category.NOT_FOUND, False),
    "EntityExistsError": (Category.ARGUMENT, False),
    "ConflictError": (Category.INTERNAL, True),
    "MessageTooLargeError": (Category.TOO_LARGE, False),
    "ArgumentRefusedError": (Category.ARGUMENT, False),
    "LockLostError": (Category.ARGUMENT, False),
    "LocksLostError": (Category.ARGUMENT, False),
    "SessionUnavailableError": (Category.ARGUMENT, True),
    "SendIncompleteError": (Category.UNKNOWN, False),
    "UnknownServiceError": (Category.UNKNOWN, False),
}
"""What a failover makes of it, and whether to try again may help."""


def test_each_error_stands_for_what_scripts_and_senders_know_it_as() -> None:
    kinds = {
        name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SbpairError)
    }
    assert {name: (kind.code, kind.exit_name) for name, kind in kinds.items()} == TABLE
    services = {name: kind for name, kind in kinds.items() if issubclass(kind, ServiceError)}
    assert {name: (kind.category, kind.retryable) for name, kind in services.items()} == HANDLED
