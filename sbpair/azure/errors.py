"""The one table from what the SDKs, azure-core, azure-identity and the operating system raise to our errors.

Classified by AMQP condition, HTTP status with sub-code, and exception class; never by the SDK's private retry flag.
A message says what was tried and what came back, and never contains a key, a signature or a token.
"""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sbpair.concurrency import waiting
from sbpair.core import errors
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.core.redact import scrub
from sbpair.core.serialization import iso_time

_CONDITIONS: dict[str, type[ServiceError]] = {
    "amqp:not-found": errors.EntityNotFoundError,
    "amqp:resource-deleted": errors.EntityNotFoundError,
    "amqp:unauthorized-access": errors.UnauthorizedError,
    "com.microsoft:auth-failed": errors.AuthenticationFailedError,
    "amqp:resource-limit-exceeded": errors.QuotaExceededError,
    "amqp:link:message-size-exceeded": errors.MessageTooLargeError,
    "com.microsoft:server-busy": errors.ServerBusyError,
    "com.microsoft:timeout": errors.OperationTimeoutError,
    "com.microsoft:entity-disabled": errors.EntityDisabledError,
    "com.microsoft:entity-already-exists": errors.EntityExistsError,
    "com.microsoft:message-lock-lost": errors.LockLostError,
    "com.microsoft:session-lock-lost": errors.LockLostError,
    "com.microsoft:session-cannot-be-locked": errors.SessionUnavailableError,
    "com.microsoft:message-not-found": errors.ArgumentRefusedError,
    "com.microsoft:session-not-found": errors.ArgumentRefusedError,
    "com.microsoft:argument-error": errors.ArgumentRefusedError,
    "com.microsoft:argument-out-of-range": errors.ArgumentRefusedError,
    "com.microsoft:operation-cancelled": errors.ServiceInternalError,
    "com.microsoft:partition-not-owned": errors.ServiceInternalError,
    "com.microsoft:store-lock-lost": errors.ServiceInternalError,
    "amqp:not-allowed": errors.ArgumentRefusedError,
    "amqp:not-implemented": errors.ArgumentRefusedError,
    "amqp:invalid-field": errors.ArgumentRefusedError,
    "amqp:decode-error": errors.ArgumentRefusedError,
    "amqp:precondition-failed": errors.ArgumentRefusedError,
    "amqp:link:detach-forced": errors.LinkDetachedError,
    "amqp:link:stolen": errors.LinkDetachedError,
    "amqp:link:transfer-limit-exceeded": errors.LinkDetachedError,
    "amqp:resource-locked": errors.LinkDetachedError,
    "amqp:illegal-state": errors.LinkDetachedError,
    "amqp:internal-error": errors.ServiceInternalError,
    "amqp:socket-error": errors.ConnectionLostError,
    "amqp:frame-size-too-small": errors.ConnectionLostError,
}
_CONDITION_PREFIXES: tuple[tuple[str, type[ServiceError]], ...] = (
    ("amqp:connection:", errors.ConnectionLostError),
    ("amqp:session:", errors.LinkDetachedError),
    ("amqp:link:", errors.LinkDetachedError),
)
_STATUSES: dict[int, type[ServiceError]] = {
    400: errors.ArgumentRefusedError,
    401: errors.AuthenticationFailedError,
    403: errors.UnauthorizedError,
    404: errors.EntityNotFoundError,
    408: errors.OperationTimeoutError,
    409: errors.EntityExistsError,
    410: errors.LockLostError,
    412: errors.ConflictError,
    413: errors.MessageTooLargeError,
    429: errors.ServerBusyError,
    503: errors.ServerBusyError,
}
_SUB_CODES: dict[int, type[ServiceError]] = {
    40000: errors.ArgumentRefusedError,
    40301: errors.ArgumentRefusedError,
    40400: errors.EntityNotFoundError,
    40901: errors.ConflictError,
    50001: errors.ServerBusyError,
    50002: errors.ServerBusyError,
    50004: errors.ServerBusyError,
    50008: errors.ServerBusyError,
    50009: errors.ServerBusyError,
}
_SDK_CLASSES: dict[str, type[ServiceError]] = {
    "OperationTimeoutError": errors.OperationTimeoutError,
    "ServiceBusServerBusyError": errors.ServerBusyError,
    "ServiceBusConnectionError": errors.ConnectionLostError,
    "ServiceBusCommunicationError": errors.ConnectionLostError,
    "ServiceBusAuthenticationError": errors.AuthenticationFailedError,
    "ServiceBusAuthorizationError": errors.UnauthorizedError,
    "MessagingEntityNotFoundError": errors.EntityNotFoundError,
    "MessagingEntityDisabledError": errors.EntityDisabledError,
    "MessagingEntityAlreadyExistsError": errors.EntityExistsError,
    "ServiceBusQuotaExceededError": errors.QuotaExceededError,
    "MessageSizeExceededError": errors.MessageTooLargeError,
    "MessageLockLostError": errors.LockLostError,
    "SessionLockLostError": errors.LockLostError,
    "SessionCannotBeLockedError": errors.SessionUnavailableError,
    "MessageNotFoundError": errors.ArgumentRefusedError,
}
_AZURE_CORE_CLASSES: dict[str, type[ServiceError]] = {
    "CredentialUnavailableError": errors.CredentialError,
    "ResourceNotFoundError": errors.EntityNotFoundError,
    "ResourceExistsError": errors.EntityExistsError,
    "ServiceRequestTimeoutError": errors.OperationTimeoutError,
    "ServiceResponseTimeoutError": errors.OperationTimeoutError,
    "ServiceRequestError": errors.ConnectionLostError,
    "ServiceResponseError": errors.ConnectionLostError,
    "IncompleteReadError": errors.ConnectionLostError,
}
_AIOHTTP_CONTEXT = re.compile(r"(Cannot connect to host \S+) ssl:(?:<[^>]*>|\S+) \[(.*)\]")
"""aiohttp shows the TLS object, which says nothing to anybody; the host and the reason are what is kept."""
_CALL_FAILED = re.compile(r"Connect call failed \('[^']*', \d+(?:, \d+, \d+)?\)")
_CHATTER = re.compile(r"Failed to initiate the connection due to exception: |\[Errno -?\d+\] (?!\d)")
_LOCAL_CALL_FAILED = re.compile(r"Connect call failed \('(?:127\.\d+\.\d+\.\d+|::1)',")
_NOT_RESOLVED = re.compile(
    r"Name or service not known|nodename nor servname provided, or not known|getaddrinfo failed"
    r"|Temporary failure in name resolution|No address associated with hostname"
)
_NO_SUCH_NAME = re.compile(
    rf"\[Errno {socket.EAI_NONAME}\]|Name or service not known|nodename nor servname provided|getaddrinfo failed"
)
"""What resolvers say of a name that does not exist; other failures of theirs may pass."""
_NOT_TRUSTED = re.compile(
    r"(?:SSLCertVerificationError: )?\(?(?:1, ')?\[SSL: CERTIFICATE_VERIFY_FAILED\] certificate verify failed: "
    r"(.*?) ?\(_ssl\.c:\d+\)'?\)?"
)
_TRACKING = re.compile(r"\s*TrackingId:([^,\s]+), ?SystemTracker:[^,]*, ?Timestamp:[0-9T:.Z+-]+")
"""What support asks for is the id; the rest says what the message says."""
_RIGHT = re.compile(
    r"'(Manage|Send|Listen)\b[\w,]*' (?:claim|operation)|\b(Manage|Send|Listen)(?:,\w+)* claims? required"
    r"|specified action: (Manage|Send|Listen)\b"
)
"""The service's ways to say which right it asks for: of an entity or endpoint, for reading, and for changing."""
_EXPIRED = re.compile(r"ExpiredToken|\btoken (?:is|has) expired", re.IGNORECASE)
_EXPIRATION = re.compile(r"Expiration time: '(\d{9,11})'\.?")
"""In seconds since 1970."""
_OBJECT = re.compile(r"<([\w.]+) object at 0x[0-9a-fA-F]+>")
_SUB_CODE = re.compile(r"\bSubCode[=:\s]+(\d{5})", re.IGNORECASE)
_ATOM_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_BUSY_MARK = "Error code: 500"
_MAX_DETAIL_CHARACTERS = 600
_NOT_UNDERSTOOD = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What Python raises where an answer has not the form it should have."""


class WireError(Exception):
    """What a peer said in AMQP terms: a condition symbol or a status code, and a description."""

    def __init__(self, condition: str | None, description: str, *, status: int | None = None) -> None:
        super().__init__(f"{condition or status}: {description}")
        self.condition = condition
        self.description = description
        self.status = status


@contextmanager
def translating(
    tried: str, entity: str | None = None, *, waited_for: bool = True, within_seconds: float | None = None
) -> Iterator[None]:
    """Turn whatever the block raises into a ServiceError that says what was `tried` (`send to orders on contoso`).
    `waited_for`: an answer is expected soon, unlike a message; `within_seconds`: what bounds the block."""
    try:
        if waited_for:
            with waiting(tried, within_seconds):
                yield
        else:
            yield
    except SbpairError:
        raise
    except Exception as error:
        raise translate(error, tried, entity) from error


def translate(error: BaseException, tried: str, entity: str | None = None) -> ServiceError:
    """The ServiceError for any exception; UnknownServiceError when nothing in the table fits."""
    if isinstance(error, ServiceError):
        return error
    kind = _classify(error)
    if kind is errors.ConnectionLostError and _NO_SUCH_NAME.search(str(error)):
        kind = errors.HostNotFoundError
    detail = _detail(error)
    if kind is errors.UnauthorizedError and (right := _RIGHT.search(detail)):
        return errors.UnauthorizedError.lacking(next(filter(None, right.groups())), tried, entity=entity)
    text = f"Could not {tried}: {detail}" if detail else f"Could not {tried}: {type(error).__name__}"
    return kind(text, entity=entity, hint=_hint(error, kind, detail))


def kind_of_condition(condition: str) -> type[ServiceError] | None:
    """Our class for an AMQP error condition; None if it says nothing (`amqp:unknown-error`)."""
    known = _CONDITIONS.get(condition)
    if known is not None:
        return known
    return next((kind for prefix, kind in _CONDITION_PREFIXES if condition.startswith(prefix)), None)


def kind_of_status(status: int) -> type[ServiceError]:
    """Our class for a status code of CBS, $management or HTTP."""
    if status in _STATUSES:
        return _STATUSES[status]
    if status == 504:
        return errors.OperationTimeoutError
    if status >= 500:
        return errors.ServiceInternalError
    return errors.ArgumentRefusedError if 400 <= status < 500 else errors.UnknownServiceError


def _classify(error: BaseException) -> type[ServiceError]:
    kind = _kind_of(error)
    if issubclass(kind, errors.AccessDeniedError) and _EXPIRED.search(str(error)):
        return errors.TokenExpiredError
    return kind


def _kind_of(error: BaseException) -> type[ServiceError]:
    if isinstance(error, WireError):
        return _classify_wire(error)
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and _is_http(error):
        return _classify_http(error, status)
    by_class = _by_class_name(error)
    if by_class is not None:
        return by_class
    if isinstance(error, TimeoutError):
        return errors.OperationTimeoutError
    if isinstance(error, OSError | EOFError) or type(error).__module__.split(".")[0] == "aiohttp":
        return errors.ConnectionLostError
    return errors.UnknownServiceError


def _classify_wire(error: WireError) -> type[ServiceError]:
    if _BUSY_MARK in error.description and "throttled" in error.description.lower():
        return errors.ServerBusyError
    kind = kind_of_condition(error.condition) if error.condition else None
    if kind is not None:
        return kind
    return kind_of_status(error.status) if error.status else errors.UnknownServiceError


def _is_http(error: BaseException) -> bool:
    return any(base.__name__ == "HttpResponseError" for base in type(error).__mro__)


def _classify_http(error: BaseException, status: int) -> type[ServiceError]:
    """Status and sub-code of a management answer, the way the service uses them.

    Data plane: 403 is quota exceeded (except sub-code 40301), 409 with 40901 is another operation in progress,
    401 that names a missing claim, or the operation that was not allowed, is a missing right. ARM: 403 is a missing
    right, 429/40901 a running operation.
    """
    text = str(error)
    found = _SUB_CODE.search(text)
    sub_code = int(found[1]) if found else None
    if sub_code in _SUB_CODES:
        return _SUB_CODES[sub_code]
    lowered = text.lower()
    if status in (409, 429) and ("another" in lowered or "in progress" in lowered):
        return errors.ConflictError
    if status == 401 and ("claim" in lowered or "unauthorized access for '" in lowered):
        return errors.UnauthorizedError
    if status == 403 and any(word in lowered for word in ("quota", "maximum", "limit", "exceeded")):
        return errors.QuotaExceededError
    return kind_of_status(status)


def _by_class_name(error: BaseException) -> type[ServiceError] | None:
    for base in type(error).__mro__:
        root = base.__module__.split(".")
        if root[0] != "azure":
            continue
        table = _SDK_CLASSES if "servicebus" in root else _AZURE_CORE_CLASSES
        if base.__name__ in table:
            return table[base.__name__]
        if base.__name__ == "ClientAuthenticationError":
            return errors.CredentialError
    return None


def _detail(error: BaseException) -> str:
    if isinstance(error, WireError):
        label = error.condition or (f"status {error.status}" if error.status else "")
        text = f"{error.description} ({label})" if error.description and label else error.description or label
    elif isinstance(error, _NOT_UNDERSTOOD):
        text = f"the answer is not what this service answers ({type(error).__name__}: {error})"
    elif isinstance(error, TimeoutError) and not str(error):
        text = "no answer in time"
    else:
        text = str(error)
        detail = _ATOM_DETAIL.search(text)
        text = detail[1] if detail else text.partition("\nCode: ")[0]
    flat = " ".join(_for_people(scrub(text)).split())
    return flat if len(flat) <= _MAX_DETAIL_CHARACTERS else flat[:_MAX_DETAIL_CHARACTERS] + "..."


def _for_people(text: str) -> str:
    """`text` without addresses of objects and the calls of Python's event loop."""
    text = _AIOHTTP_CONTEXT.sub(r"\1: \2", text)
    text = _NOT_TRUSTED.sub(r"the certificate is not trusted: \1", text)
    text = _NOT_RESOLVED.sub("the host name cannot be resolved (DNS)", text)
    text = _CALL_FAILED.sub("connection refused or host unreachable", text)
    text = _TRACKING.sub(r" (TrackingId \1)", text)
    text = _EXPIRATION.sub(_expiration, text)
    return _OBJECT.sub(r"\1", _CHATTER.sub("", text))


def _expiration(found: re.Match[str]) -> str:
    until, now = iso_time(float(found[1])), iso_time(time.time())
    return f"It was valid until {until}, and this machine's clock says {now}: a clock may be wrong."


_IS_IT_RUNNING = (
    "Is the embedded namespace running? Start it in another terminal with `sbpair emulator`, or see which side answers "
    "with: sbpair ping"
)
_HINTS: tuple[tuple[type[ServiceError], re.Pattern[str], str], ...] = (
    (
        errors.ConnectionLostError,
        re.compile("certificate is not trusted|certificate verify failed", re.IGNORECASE),
        "Name the authority with `ca_file` in the configuration: the embedded namespaces print theirs when they start, "
        "a proxy that looks into TLS has its own.",
    ),
    (
        errors.ConnectionLostError,
        re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])\S*: connection refused"),
        _IS_IT_RUNNING,
    ),
    (
        errors.ConnectionLostError,
        re.compile(re.escape("cannot be resolved (DNS)")),
        "Check how `namespace` is spelled, and from inside a virtual network its private DNS zone; nothing was sent.",
    ),
    (
        errors.AccessDeniedError,
        re.compile("LocalAuthDisabled"),
        "The namespace accepts no keys (disableLocalAuth), so another key does not help: use an identity, for instance "
        "`auth: azure-cli` in the configuration or --auth azure-cli, that has the roles of: sbpair help permissions",
    ),
    (
        errors.AccessDeniedError,
        re.compile("expired|not yet valid|lifetime", re.IGNORECASE),
        "A token that is expired when it is new means that a clock is wrong: compare this machine's with the "
        "service's with: sbpair doctor",
    ),
    (
        errors.AccessDeniedError,
        re.compile(r"Ip has been prevented|IP filter|firewall|network rule", re.IGNORECASE),
        "The namespace's firewall does not let this address in: add it to the namespace's network rules, or run from "
        "inside the allowed network.",
    ),
)
"""What the words of an answer tell beyond its kind."""


def _hint(error: BaseException, kind: type[ServiceError], detail: str) -> str | None:
    if issubclass(kind, errors.ConnectionLostError) and _LOCAL_CALL_FAILED.search(str(error)):
        return _IS_IT_RUNNING  # AMQP names the address nowhere else
    return next((hint for wanted, words, hint in _HINTS if issubclass(kind, wanted) and words.search(detail)), None)
