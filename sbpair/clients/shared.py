"""What the synchronous and the asynchronous client share: how they are made, and all that waits for nothing."""

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from azure.servicebus import exceptions

from sbpair.azure.wire import check_live, knows_limits, leaves_link
from sbpair.clients.calls import Payloads, Steps, offering, steps
from sbpair.clients.failover import Failover, OnEvent, SenderFailover
from sbpair.clients.setup import check_keywords, make_failover, split_keywords
from sbpair.core.failover.machine import Route
from sbpair.core.inspection.diagnosis import Verification
from sbpair.core.pairing import PAIR_OPTIONS, Pair, SendAvailabilityOptions
from sbpair.runtime.failover.pairing import PairingState

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
        credential: Any,
        *,
        secondary: str | None = None,
        secondary_credential: Any = None,
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

    def get_queue_sender(self, queue_name: str, **options: Any) -> S:
        """As the SDK's."""
        check_keywords(options, super().get_queue_sender, "get_queue_sender()")  # type: ignore[misc]
        return self._with_failover(super().get_queue_sender(queue_name, **options))  # type: ignore[misc]

    def get_topic_sender(self, topic_name: str, **options: Any) -> S:
        """As the SDK's."""
        check_keywords(options, super().get_topic_sender, "get_topic_sender()")  # type: ignore[misc]
        return self._with_failover(super().get_topic_sender(topic_name, **options))  # type: ignore[misc]

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
        except (AttributeError, OSError) as error:
            # What is left of a broken link fails in closing it, which the SDK does not translate.
            self._forget_link()
            raise exceptions.ServiceBusConnectionError(message=f"The link was lost: {error}", error=error) from error
        except BaseException as error:
            if not leaves_link(error):
                self._forget_link()
            raise
        finally:
            offering.reset(token)

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
