"""What the synchronous and the asynchronous client share: how they are made, and all that waits for nothing.

One call of the application to a sender, as steps that a synchronous and an asynchronous client carry out alike.
"""

import asyncio
import inspect
import os
import re
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar, cast

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage

from sbpair.azure import make_admin
from sbpair.azure.wire import check_live, is_closed, knows_limits, leaves_link, translate_sdk_error
from sbpair.clients.failover import ClientEntity, Failover, OnEvent, SenderFailover, budget_of, sdk_error
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of, is_address, without_port
from sbpair.core.arguments import check_types
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.core.failover.machine import Route
from sbpair.core.failover.sending import MIN_ATTEMPT_SECONDS, Budget
from sbpair.core.inspection.diagnosis import Verification
from sbpair.core.names import namespace_label
from sbpair.core.pairing import PAIR_OPTIONS, Pair, SendAvailabilityOptions, pair_options, refuse_unknown
from sbpair.ports import Messaging
from sbpair.runtime.failover.pairing import PairingState


@dataclass(frozen=True, slots=True)
class PrimaryAttempt:
    """Let the SDK's sender try, for so long at most. The answer is what it returned, or AGAIN."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Run this on the failover's loop. The answer is its result."""

    work: Coroutine[Any, Any, Any]


AGAIN: Final = object()
"""Answer to an Offer that was not made, because the entity left its primary meanwhile."""
DIVERTED: Final = object()
"""Result of a call whose messages went to the backlog."""

offering: ContextVar[bool] = ContextVar("offering", default=False)
"""The SDK's sender is at work in this context: what it calls on itself is no call of the application."""

SdkMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages = SdkMessage | Iterable[ServiceBusMessage] | Iterable[AmqpAnnotatedMessage] | Iterable[Mapping[str, Any]]
Credential = TokenCredential | AsyncTokenCredential | AzureNamedKeyCredential | AzureSasCredential
Steps = Generator[PrimaryAttempt | Ask, Any, Any]
Payloads = Callable[[], list[bytes]]


def steps(
    part: SenderFailover,
    timeout: float | None,
    payloads: Payloads | None,
    *,
    started: float | None = None,
    ticket: int = 0,
    failed: Exception | None = None,
) -> Steps:
    """Offer the call to the primary and do about its failure what the policy says; gives the SDK's result or DIVERTED.

    `payloads` encodes the messages, which only the backlog needs; None for a call without messages (opening a link).
    `started`, `ticket` and `failed`: the primary was asked already, from then on, and this is what came of it. What is
    raised is what the SDK raised, or would raise.
    """
    line = part.line
    budget = budget_of(timeout, started)
    if line.failover.unverified:
        yield Ask(line.failover.required())
    if line.has_to_join:
        yield Ask(part.ready())
    if failed is not None and (yield from _failed(part, failed, ticket, payloads, budget)):
        return DIVERTED
    while True:
        if line.route is Route.BACKLOG or (line.failover.holding and payloads and (yield Ask(part.holds(payloads())))):
            if payloads is not None and (encoded := payloads()):
                yield from _ask(line, Ask(part.divert(encoded, budget)))
            return DIVERTED
        ticket = line.ticket
        try:
            result = yield PrimaryAttempt(max(budget.for_primary(time.monotonic()), MIN_ATTEMPT_SECONDS))
        except exceptions.ServiceBusError as error:
            if (yield from _failed(part, error, ticket, payloads, budget)):
                return DIVERTED
        else:
            if result is not AGAIN:
                line.note_sent()
                return result


class LateTurnError(exceptions.OperationTimeoutError):
    """A call waited for others on the same sender until no time was left. It offered nothing to the primary, and says
    nothing about it."""

    def __init__(self) -> None:
        super().__init__(message="Nothing was asked of the service: other calls on this sender did not end in time.")


def _failed(part: SenderFailover, error: Exception, ticket: int, payloads: Payloads | None, budget: Budget) -> Steps:
    """Whether the call's messages were diverted after this failure; otherwise the primary is to be asked again."""
    if isinstance(error, ValueError | LateTurnError):  # too large: the message's own fault; nothing was offered
        raise error
    failure = translate_sdk_error(error, f"send to {part.line.entity}", part.line.entity)
    encoded = None if payloads is None else payloads()
    taken = yield from _ask(part.line, Ask(part.take_over(encoded, failure, ticket, budget)), failure, error)
    return taken is not None


def _ask(
    line: ClientEntity, request: Ask, failure: ServiceError | None = None, error: Exception | None = None
) -> Steps:
    """The answer of the failover; its refusal as the SDK's error."""
    try:
        answer = yield request
    except SbpairError as refusal:
        if error is not None and refusal is failure:
            raise error from error.__cause__
        raise sdk_error(refusal, error or line.primarys_error) from refusal
    return answer


def makes_batch(message: Any) -> bool:
    """The SDK makes a batch of these messages, for which it opens the link in a time that nobody bounds."""
    return isinstance(message, Iterable) and not isinstance(message, Mapping)


def is_simple(sender: Any, message: Any) -> bool:
    """The SDK's sender may have the message as it is: it can be read again, and fits what is known of the link."""
    return type(message) is ServiceBusMessage or (knows_limits(sender) > 0 and not isinstance(message, Iterator))


def reusable(message: Any) -> Any:
    """The messages so that they can be encoded again if the primary does not take them: an iterator gives them once."""
    return list(message) if isinstance(message, Iterator) else message


REFRESH_BEFORE_EXPIRY_SECONDS = 300.0
TOKEN_SECONDS = 60.0
_SDK_CLIENT = ServiceBusClient
"""Taken hold of before an application that cannot change its imports puts ours in its place by name."""
_UNDOCUMENTED = (
    "entity_name", "use_tls", "uamqp_transport", "try_timeout", "socket_timeout", "keep_alive", "auth_timeout",
    "auto_reconnect", "encoding", "timeout", "amqp_transport",
)  # fmt: skip
"""Arguments that some release of the SDK takes without a word in its documentation."""
_KEYWORD = re.compile(r":(?:keyword|param)\s+(?:[^:\n]*\s)?(\w+):")
_CONNECTION_OPTIONS = ("transport_type", "http_proxy", "user_agent", "connection_verify", "ssl_context")
_OF_ONE_NAMESPACE = ("custom_endpoint_address", "use_tls")


def check_keywords(given: Mapping[str, Any], callee: Any, where: str, *, more: Iterable[str] = ()) -> None:
    """Refuse what the SDK would ignore.

    Args:
        callee: the SDK's class or method: what its signature or documentation names, it takes. `more`: so are these.

    Raises:
        TypeError: with a suggestion.
    """
    documented = _KEYWORD.findall(inspect.getdoc(callee) or "")
    named = [name for name in inspect.signature(callee).parameters if name not in ("self", "kwargs")]
    refuse_unknown(given, dict.fromkeys([*more, *named, *documented, *_UNDOCUMENTED]), where)


def split_keywords(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the pairing, and arguments of the SDK's client.

    Raises:
        TypeError: neither; with a suggestion.
    """
    ours = ("secondary", "secondary_credential", "pair", "options", "on_event", *PAIR_OPTIONS)
    check_keywords(keywords, _SDK_CLIENT, "ServiceBusClient", more=ours)
    options = {name: value for name, value in keywords.items() if name in PAIR_OPTIONS}
    return options, {name: value for name, value in keywords.items() if name not in options}


def make_failover(
    host: str,
    credential: Any,
    sdk_options: Mapping[str, Any],
    *,
    secondary: str | None,
    secondary_credential: Any,
    pair: str | Pair | None,
    options: SendAvailabilityOptions | None,
    changes: Mapping[str, Any],
    on_event: OnEvent | None,
) -> Failover:
    """The failover of a client for `host`, which is the primary.

    Raises:
        TypeError: not exactly one of `secondary` and `pair`, or one of them, `options` or `on_event` of another type.
        UsageError: an option outside its limits.
        ValueError: the pair is another namespace's, or nothing says how to sign in at the secondary.
        SbpairError: the pair, the options or the secondary's name are wrong.
    """
    if (secondary is None) is (pair is None):
        raise TypeError("Name the secondary namespace: give either secondary=... or pair=....")
    check_types(options=options, on_event=on_event, **({"secondary": secondary} if pair is None else {"pair": pair}))
    own = borrowed(credential)
    made: list[Any] = [own]
    if pair is not None:
        chosen = _configured(pair, host)
        chosen = replace(chosen, options=pair_options(options or chosen.options, **changes))

        def make_secondary() -> Messaging:
            return _messaging(chosen.secondary, None, {})
    else:
        access, theirs = _secondary(secondary or "", credential, secondary_credential)
        access = replace(access, ca_file=sdk_options.get("connection_verify"))
        made.append(theirs)
        primary = NamespaceAccess(_label(_address(host, sdk_options)), host)
        chosen = Pair(primary.label, primary, access, pair_options(options, **changes))
        shared = {name: sdk_options[name] for name in _CONNECTION_OPTIONS if sdk_options.get(name) is not None}

        def make_secondary() -> Messaging:
            return _messaging(access, theirs, shared)

    names = _CONNECTION_OPTIONS + _OF_ONE_NAMESPACE
    for_primary = {name: sdk_options[name] for name in names if sdk_options.get(name) is not None}
    return Failover(
        chosen,
        primary=lambda: _messaging(NamespaceAccess(chosen.primary.label, host), own, for_primary),
        secondary=make_secondary,
        make_admin=lambda: make_admin(chosen.secondary),
        credential=credential,
        on_event=on_event,
        credentials=[one for one in made if isinstance(one, BorrowedCredential)],
    )


def _address(host: str, sdk_options: Mapping[str, Any]) -> str:
    """Where the client connects to: the SDK keeps a port beside the host only in a custom endpoint."""
    endpoint = str(sdk_options.get("custom_endpoint_address") or "")
    return endpoint.partition("://")[2].partition("/")[0] or host


def _label(address: str) -> str:
    """The namespace's name, which the paths of its backlog queues contain.

    Raises:
        ValueError: the address is not a name, and no embedded namespace of this user.
    """
    from sbpair.settings.state import name_of_embedded

    bare = without_port(address)
    if not is_address(bare):
        return namespace_label(address)
    if (name := name_of_embedded(address, os.environ)) is None:
        raise ValueError(
            f"The name of the namespace at {address} is not known, and the backlog queues are called by it: give "
            "pair= instead of secondary=, with the name as the label of its primary."
        )
    return name


def _configured(pair: str | Pair, host: str) -> Pair:
    if isinstance(pair, str):
        from sbpair.settings import load_noticed

        pair = load_noticed().pair(pair)
    if pair.primary.host != host.lower():
        raise ValueError(
            f"The primary of the pair {pair.name!r} is {pair.primary.host}, and this client is for {host}: what it "
            "cannot send would wait where no drain looks for it."
        )
    return pair


def _secondary(secondary: str, credential: Any, own: Any) -> tuple[NamespaceAccess, Any]:
    """How the secondary is reached, and the credential for it (None with a connection string)."""
    if "endpoint=" in secondary.lower():
        host = host_of(secondary)
        access = NamespaceAccess(_label(host), host, AuthMethod.CONNECTION_STRING, connection_string=Secret(secondary))
        return access, None
    host = secondary.partition("://")[2] or secondary
    host = host.rstrip("/")
    if own is None and not _signs_in_anywhere(credential):
        raise ValueError(
            "The credential of the primary is a key, which the secondary does not know: give secondary= as a "
            "connection string, or secondary_credential=."
        )
    return NamespaceAccess(_label(host), host), borrowed(credential if own is None else own)


def _signs_in_anywhere(credential: Any) -> bool:
    """A credential of Entra ID, not a key or a signature."""
    return hasattr(credential, "get_token") and not hasattr(credential, "token_type")


def _messaging(access: NamespaceAccess, credential: Any, options: Mapping[str, Any]) -> Messaging:
    from sbpair.azure.messaging import AzureMessaging

    more = dict(options)
    if (authority := more.pop("connection_verify", None)) is not None:
        access = replace(access, ca_file=authority)
    return AzureMessaging(access, credential=credential, client_options=more, client_class=_SDK_CLIENT)


# A credential of the application, lent to the loop that diverts.


class BorrowedCredential:
    """Asks the application's own credential for tokens, wherever that lives.

    An asynchronous credential is bound to the application's event loop, and is asked there; a synchronous one in a
    thread. Tokens are kept until five minutes before they expire, so that a ping between two event loops has one.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._tokens: dict[tuple[str, ...], Any] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        """The application's event loop, as it was last seen."""
        if (token_type := getattr(inner, "token_type", None)) is not None:
            self.token_type = token_type

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token, as `azure.core.credentials_async.AsyncTokenCredential` gives it."""
        if hasattr(self, "token_type"):  # signatures, computed here and now
            found = self._inner.get_token(*scopes, **options)
            return await found if inspect.isawaitable(found) else found
        known = self._tokens.get(scopes)
        if known is None or known.expires_on - REFRESH_BEFORE_EXPIRY_SECONDS <= time.time():
            known = self._tokens[scopes] = await self._ask(scopes, options)
        return known

    async def _ask(self, scopes: tuple[str, ...], options: dict[str, Any]) -> Any:
        async with asyncio.timeout(TOKEN_SECONDS):
            if not inspect.iscoroutinefunction(self._inner.get_token):
                return await asyncio.to_thread(self._inner.get_token, *scopes, **options)
            loop = self.loop
            if loop is None or loop.is_closed():
                raise RuntimeError("the event loop of the credential has ended, and no new one was seen yet")
            asked = asyncio.run_coroutine_threadsafe(self._inner.get_token(*scopes, **options), loop)
            return await asyncio.wrap_future(asked)

    async def close(self) -> None:
        """The credential is the application's to close."""


def borrowed(credential: Any) -> Any:
    """The credential as the other loop may use it; keys and signatures as they are."""
    if isinstance(credential, AzureNamedKeyCredential | AzureSasCredential):
        return credential
    return BorrowedCredential(credential)


S = TypeVar("S", bound="SenderWithFailover")

WAIT_SLICE_SECONDS = 0.5
"""How often a call that waits for another one on the same sender checks whether the entity has left its primary."""

NOT_CANCELLABLE = 0
"""Sequence number of a message that was scheduled while the primary was away: the service gives none until the message
is back on the primary, and counts from 1."""


class _ClientSignature:
    """What `help()` and editors show: the SDK's arguments, ours, and the options of a pairing."""

    def __get__(self, client: object, owner: type) -> inspect.Signature:
        sdk = next((base for base in owner.__mro__ if base.__module__.startswith("azure.")), None)
        if sdk is None:
            raise AttributeError("only the clients that stand before one of the SDK's have a signature")
        ours = inspect.signature(ClientWithFailover.__init__).parameters.values()
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in PAIR_OPTIONS.items()
        ]
        named: dict[str, inspect.Parameter] = {}
        for one in [*inspect.signature(sdk).parameters.values(), *ours, *options]:
            if one.name != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD:
                named.setdefault(one.name, one)
        return inspect.Signature(sorted(named.values(), key=lambda one: one.kind))


class ClientWithFailover(Generic[S]):
    """Stands before one of the SDK's clients: its senders divert."""

    _sender_class: ClassVar[type["SenderWithFailover"]]
    __signature__ = _ClientSignature()
    fully_qualified_namespace: str

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Credential,
        *,
        secondary: str | None = None,
        secondary_credential: Credential | None = None,
        pair: str | Pair | None = None,
        options: SendAvailabilityOptions | None = None,
        on_event: OnEvent | None = None,
        **keywords: Any,
    ) -> None:
        changes, sdk_options = split_keywords(keywords)
        super().__init__(fully_qualified_namespace, credential, **sdk_options)  # type: ignore[call-arg]
        self._failover: Failover = make_failover(
            self.fully_qualified_namespace,
            credential,
            sdk_options,
            secondary=secondary,
            secondary_credential=secondary_credential,
            pair=pair,
            options=options,
            changes=changes,
            on_event=on_event,
        )
        weakref.finalize(self, self._failover.close, wait=False).atexit = False

    if TYPE_CHECKING:  # the SDK's says that it makes a client of the SDK's

        @classmethod
        def from_connection_string(cls, conn_str: str, **options: Any) -> Self: ...

    def get_queue_sender(self, queue_name: str, *, client_identifier: str | None = None, **options: Any) -> S:
        """As the SDK's."""
        check_keywords(options, super().get_queue_sender, "get_queue_sender()")  # type: ignore[misc]
        return self._with_failover(super().get_queue_sender(queue_name, client_identifier=client_identifier, **options))  # type: ignore[misc]

    def get_topic_sender(self, topic_name: str, *, client_identifier: str | None = None, **options: Any) -> S:
        """As the SDK's."""
        check_keywords(options, super().get_topic_sender, "get_topic_sender()")  # type: ignore[misc]
        return self._with_failover(super().get_topic_sender(topic_name, client_identifier=client_identifier, **options))  # type: ignore[misc]

    def state(self) -> PairingState:
        """What the client knows of its entities, backlog queues and namespaces."""
        return self._failover.state()

    def force_failover(self, entity: str) -> None:
        """Divert the entity's messages, healthy or not, until `fail_back`."""
        self._failover.force(entity)

    def fail_back(self, entity: str) -> None:
        """Send the entity's messages to the primary again, whatever the pings say."""
        self._failover.fail_back(entity)

    def is_ready(self) -> bool:
        """For a readiness probe: the last verification, in the background or by hand, found that messages could be
        diverted. Asks nothing; False until the first one has ended, which this begins. With `verify="off"` only
        `client.verify()` makes it True."""
        return self._failover.is_ready()

    @property
    def verification(self) -> Verification | None:
        """What the last `verify` of this client found, in the background or by hand; None: there was none."""
        return self._failover.verification

    def _with_failover(self, sender: Any) -> S:
        self._failover.closed = False
        if self._failover.cannot_divert():
            return cast("S", sender)
        self._failover.begin_verifying()
        return cast("S", self._sender_class._from_sdk(sender, self._failover))


class SenderWithFailover:
    """Stands before one of the SDK's senders."""

    _part: SenderFailover
    _opened_under: int
    """The ticket of the entity's last attempt: another one means that the primary was away since."""

    @classmethod
    def _from_sdk(cls, sender: Any, failover: Failover) -> Self:
        """The SDK's own object from now on answers as this class: it stays the one that its client closes."""
        sender.__class__ = cls
        made = cast("Self", sender)
        made._part = SenderFailover(failover.line(sender.entity_name))
        made._opened_under = made._part.line.ticket
        return made

    def _forget_link(self) -> None:
        """Connect again at the next call."""
        raise NotImplementedError

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Around the SDK's part of a call. A link that may be broken, or that is older than the last outage, is not
        used again: the SDK would find that out by a failed send, which the failover policy hears of."""
        if (ticket := self._part.line.ticket) != self._opened_under:
            self._opened_under = ticket
            self._forget_link()
        token = offering.set(True)
        try:
            yield
            self._part.line.failover.entities.seen = True
        except BaseException as error:
            if not leaves_link(error):
                self._forget_link()
            broken = isinstance(error, AttributeError | OSError)
            if broken or isinstance(error, exceptions.ServiceBusError):
                check_live(self)  # a call that `close` broke off says nothing about the primary
            if broken:
                # What is left of a broken link fails in closing it, which the SDK does not translate.
                lost = f"The link was lost: {error}"
                raise exceptions.ServiceBusConnectionError(message=lost, error=error) from error
            raise
        finally:
            offering.reset(token)
            if is_closed(self):  # the SDK's retries open a closed sender's link again
                self._forget_link()

    def _steps(self, timeout: float | None, payloads: Payloads, **before: Any) -> Steps:
        if self._part.line.route is Route.BACKLOG:
            check_live(self)
        self._part.max_message_bytes = knows_limits(self)
        return steps(self._part, timeout, payloads, **before)


def refuse_diverted(sequence_numbers: int | list[int]) -> None:
    """Raise for a message that was scheduled while the primary was away."""
    numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
    if NOT_CANCELLABLE in numbers:
        raise exceptions.MessageNotFoundError(
            message="A message that was scheduled while the primary was away has no sequence number yet and cannot be "
            "cancelled. Nothing was cancelled."
        )


def is_wrong(timeout: float | None) -> bool:
    """The SDK says what is wrong with it."""
    return timeout is not None and timeout <= 0
