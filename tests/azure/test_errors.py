"""The table from foreign exceptions to ours."""

import asyncio
import ssl
from typing import Any

import pytest
from azure.core import exceptions as core_exceptions
from azure.identity import CredentialUnavailableError
from azure.servicebus import exceptions as sdk_exceptions

from sbpair.azure.errors import WireError, kind_of_condition, translate, translating
from sbpair.core import errors
from sbpair.core.errors import Category, ServiceError, TokenExpiredError
from sbpair.core.redact import scrub


class Response:
    """The little of an HTTP answer that azure-core looks at."""

    def __init__(self, status: int) -> None:
        self.status_code = status
        self.reason = "because"
        self.headers: dict[str, str] = {}

    def text(self) -> str:
        return ""


def http(status: int, text: str = "") -> core_exceptions.HttpResponseError:
    response: Any = Response(status)
    kinds = {401: core_exceptions.ClientAuthenticationError, 404: core_exceptions.ResourceNotFoundError}
    return kinds.get(status, core_exceptions.HttpResponseError)(message=text, response=response)


@pytest.mark.parametrize(
    ("condition", "category"),
    [
        ("com.microsoft:timeout", Category.TIMEOUT),
        ("amqp:socket-error", Category.CONNECTION),
        ("amqp:connection:forced", Category.CONNECTION),
        ("amqp:link:detach-forced", Category.DETACHED),
        ("amqp:session:window-violation", Category.DETACHED),
        ("amqp:internal-error", Category.INTERNAL),
        ("com.microsoft:server-busy", Category.BUSY),
        ("com.microsoft:entity-disabled", Category.DISABLED),
        ("amqp:resource-limit-exceeded", Category.QUOTA),
        ("amqp:unauthorized-access", Category.UNAUTHORIZED),
        ("amqp:not-found", Category.NOT_FOUND),
        ("amqp:link:message-size-exceeded", Category.TOO_LARGE),
        ("com.microsoft:argument-out-of-range", Category.ARGUMENT),
        ("amqp:unknown-error", Category.UNKNOWN),
        ("com.example:never-heard-of", Category.UNKNOWN),
    ],
)
def test_amqp_conditions_keep_their_meaning_for_failover(condition: str, category: Category) -> None:
    error = translate(WireError(condition, "said so"), "send to q")
    assert error.category is category
    assert error.message == f"Could not send to q: said so ({condition})"


@pytest.mark.parametrize(
    ("foreign", "kind"),
    [
        (http(401), errors.AuthenticationFailedError),
        (http(401, "Manage,EntityRead claims required"), errors.UnauthorizedError),
        (
            http(401, "SubCode=40100. Unauthorized access for 'Manage,EntityRead' operation on endpoint 'sb://x/'."),
            errors.UnauthorizedError,
        ),
        (
            http(401, "SubCode=40100. Unauthorized access. The token does not allow this."),
            errors.AuthenticationFailedError,
        ),
        (http(403, "The maximum number of entities has been exceeded"), errors.QuotaExceededError),
        (http(403, "SubCode=40301. Not so"), errors.ArgumentRefusedError),
        (http(403, "(AuthorizationFailed) no right"), errors.UnauthorizedError),
        (http(404), errors.EntityNotFoundError),
        (http(409, "exists"), errors.EntityExistsError),
        (http(409, "SubCode=40901. Another conflicting operation"), errors.ConflictError),
        (http(429, "SubCode=50004. Throttled"), errors.ServerBusyError),
        (http(429, "SubCode=40901"), errors.ConflictError),
        (http(400, "SubCode=40000"), errors.ArgumentRefusedError),
        (http(500), errors.ServiceInternalError),
        (http(503), errors.ServerBusyError),
        (http(504), errors.OperationTimeoutError),
        (core_exceptions.ResourceNotFoundError("Queue 'x' does not exist"), errors.EntityNotFoundError),
        (core_exceptions.ServiceRequestError("no route"), errors.ConnectionLostError),
        (core_exceptions.ServiceResponseTimeoutError("slow"), errors.OperationTimeoutError),
        (core_exceptions.ClientAuthenticationError("no token"), errors.CredentialError),
        (CredentialUnavailableError("no az"), errors.CredentialError),
        (sdk_exceptions.OperationTimeoutError(), errors.OperationTimeoutError),
        (sdk_exceptions.ServiceBusServerBusyError(), errors.ServerBusyError),
        (sdk_exceptions.MessageSizeExceededError(), errors.MessageTooLargeError),
        (sdk_exceptions.SessionLockLostError(), errors.LockLostError),
        (sdk_exceptions.ServiceBusError("?"), errors.UnknownServiceError),
        (WireError(None, "no such entity", status=404), errors.EntityNotFoundError),
        (WireError(None, "bad signature", status=401), errors.AuthenticationFailedError),
        (WireError(None, "gone", status=410), errors.LockLostError),
        (WireError("amqp:internal-error", "entity is being throttled. Error code: 50009."), errors.ServerBusyError),
        (WireError("amqp:internal-error", "Throttled. Error code: 50008."), errors.ServerBusyError),
        (TimeoutError(), errors.OperationTimeoutError),
        (asyncio.IncompleteReadError(b"", 1), errors.ConnectionLostError),
        (ConnectionRefusedError("no"), errors.ConnectionLostError),
        (ssl.SSLError("no"), errors.ConnectionLostError),
        (ZeroDivisionError("?"), errors.UnknownServiceError),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else value.__name__,
)
def test_foreign_exceptions_become_ours(foreign: Exception, kind: type[ServiceError]) -> None:
    assert type(translate(foreign, "do it", "q")) is kind


@pytest.mark.parametrize(
    ("foreign", "right"),
    [
        (http(401, "Manage,EntityRead claims required for this operation. TrackingId:1_G0, SystemTracker:q"), "Manage"),
        (http(401, "Unauthorized access for 'Manage,EntityRead' operation on endpoint 'sb://x/'."), "Manage"),
        (http(401, "The specified action: Manage claim is missing"), "Manage"),
        (WireError("amqp:unauthorized-access", "Unauthorized access. 'Send' claim(s) are required to do it."), "Send"),
        (WireError("amqp:unauthorized-access", "Unauthorized access. 'Listen' claim(s) are required."), "Listen"),
        (WireError("amqp:unauthorized-access", "Ip has been prevented to connect. 'Listen' is another word."), ""),
    ],
)
def test_a_missing_right_is_named_without_the_words_around_it(foreign: Exception, right: str) -> None:
    error = translate(foreign, "do it", "q")
    assert isinstance(error, errors.UnauthorizedError)
    assert error.lacks == right
    assert not right or error.message == f"Could not do it: the credential has no {right} right there"
    assert error.hint.endswith("sbpair help permissions") or not right


def test_a_nameless_condition_says_nothing() -> None:
    assert kind_of_condition("amqp:unknown-error") is None


def test_the_block_names_what_was_tried_and_keeps_the_cause() -> None:
    cause = OSError("no route to host")
    with pytest.raises(errors.ConnectionLostError) as caught, translating("list the queues of contoso", "q"):
        raise cause
    assert caught.value.message == "Could not list the queues of contoso: no route to host"
    assert caught.value.entity == "q"
    assert caught.value.__cause__ is cause


def test_our_own_errors_pass_the_block_unchanged() -> None:
    own = errors.ConfigurationError("no")
    with pytest.raises(errors.ConfigurationError) as caught, translating("try"):
        raise own
    assert caught.value is own


@pytest.mark.parametrize(
    "text",
    [
        "Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey=S3cret+/=;EntityPath=q",
        "SharedAccessSignature sr=https%3a%2f%2fx&sig=S3cret%2b&se=1&skn=k",
        "https://x/q?sig=S3cret&se=1",
        "Authorization: Bearer S3cret.abc-def_g",
        "token eyJS3cret.eyJTM2NyZXQ.S3cretsignature refused",
    ],
)
def test_secrets_are_scrubbed(text: str) -> None:
    assert "S3cret" not in scrub(text)
    assert "S3cret" not in translate(ValueError(text), "try").message


def test_endless_texts_are_cut() -> None:
    assert len(translate(ValueError("x" * 10_000), "try").message) < 700


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (
            "Cannot connect to host 127.0.0.1:45003 ssl:<ssl.SSLContext object at 0x7f19ca4a2e70> "
            "[Connect call failed ('127.0.0.1', 45003)]",
            "Cannot connect to host 127.0.0.1:45003: connection refused or host unreachable",
        ),
        (
            "Cannot connect to host contoso.example:443 ssl:default [Name or service not known]",
            "Cannot connect to host contoso.example:443: the host name cannot be resolved (DNS)",
        ),
        (
            "Cannot connect to host ns:443 ssl:True [SSLCertVerificationError: (1, '[SSL: X] failed (_ssl.c:992)')]",
            "Cannot connect to host ns:443: SSLCertVerificationError: (1, '[SSL: X] failed (_ssl.c:992)')",
        ),
        (
            "Failed to initiate the connection due to exception: [Errno -2] Name or service not known",
            "the host name cannot be resolved (DNS)",
        ),
        (
            "Cannot connect to host ns:443 ssl:True [SSLCertVerificationError: (1, '[SSL: CERTIFICATE_VERIFY_FAILED] "
            "certificate verify failed: unable to get local issuer certificate (_ssl.c:1006)')]",
            "Cannot connect to host ns:443: the certificate is not trusted: unable to get local issuer certificate",
        ),
        (
            "InvalidSignature: The token has an invalid signature. TrackingId:3d_G0, SystemTracker:ns:$x, "
            "Timestamp:2026-11-21T06:56:50",
            "InvalidSignature: The token has an invalid signature. (TrackingId 3d_G0)",
        ),
        ("Unclosed <aiohttp.client.ClientSession object at 0x7f00>", "Unclosed aiohttp.client.ClientSession"),
    ],
)
def test_messages_are_for_people(raw: str, shown: str) -> None:
    assert translate(OSError(raw), "list the queues").message == f"Could not list the queues: {shown}"


def test_a_token_that_is_expired_at_once_tells_of_the_clock_in_times_that_can_be_read() -> None:
    answer = WireError(None, "ExpiredToken: The token is expired. Expiration time: '1795454161'.", status=401)
    error = translate(answer, "read q")
    assert isinstance(error, TokenExpiredError)
    assert (error.exit_name, error.passes) == ("denied", True)
    assert "It was valid until 2026-11-23T17:16:01.000Z, and this machine's clock says 2" in error.message
    assert "1795454161" not in error.message


@pytest.mark.parametrize(
    ("error", "hinted"),
    [
        (WireError("amqp:unauthorized-access", "ExpiredToken: The token is expired."), "clock"),
        (WireError("amqp:unauthorized-access", "Ip has been prevented to connect to the endpoint."), "firewall"),
        (OSError("[Errno -2] Name or service not known"), "spelled"),
        (WireError("amqp:socket-error", "[Errno 111] Connect call failed ('127.0.0.1', 5671)"), "`sbpair emulator`"),
        (WireError("amqp:socket-error", "[Errno 111] Connect call failed ('192.0.2.1', 5671)"), "firewall"),
        (
            OSError("Cannot connect to host 127.0.0.1:5671 ssl:True [Connect call failed ('127.0.0.1', 5671)]"),
            "embedded",
        ),
        (OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed (_ssl.c:1)"), "ca_file"),
    ],
)
def test_what_the_words_of_an_answer_tell_beyond_its_kind(error: Exception, hinted: str) -> None:
    assert hinted in (translate(error, "send to orders").hint or "")
