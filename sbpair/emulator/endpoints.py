"""Attaching a link to an entity: which one, may the client, and who serves the link from then on.

Refused, in this order: an address that leads nowhere (`amqp:not-found`), a missing right
(`amqp:unauthorized-access`), a use the entity does not have (`amqp:not-allowed`), a disabled entity
(`com.microsoft:entity-disabled`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbpair.amqp.types import Ulong
from sbpair.emulator.broker.addresses import Location, locate
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.mailbox import MAIN
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.broker.transactions import TransactionGroup, Transactions
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.receivers import PEEK_MODE_PROPERTY, BrowsingLink, Receiver, requested_session
from sbpair.emulator.senders import Coordinator, Sender
from sbpair.engine import errors
from sbpair.engine.auth import LISTEN, SEND, rights_for
from sbpair.engine.errors import BrokerError
from sbpair.engine.link import Link, LinkHandler
from sbpair.service import EntityStatus

if TYPE_CHECKING:
    from sbpair.emulator.requests.node import RequestNodes


class Endpoints:
    """The entities of one namespace, as the engine's attach service."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._nodes: RequestNodes | None = None

    def attach(self, link: Link) -> LinkHandler:
        """Serve a new link: opens it, refuses it, or (next available session) holds the answer back."""
        if link.is_coordinator and not self._namespace.laws.tier_has_transactions:
            link.reject(errors.NOT_ALLOWED, f"The {self._namespace.tier.value} tier has no transactions.")
            return LinkHandler()
        if link.is_coordinator:
            if not any(one is not link and not one.is_cbs for one in link.session.links.values()):
                link.session.transaction_group = TransactionGroup()
            coordinator = Coordinator(self._namespace, link)
            coordinator.start()
            return coordinator
        try:
            location = _locate(self._namespace, link)
            _check_rights(link, location)
            _check_entity_type(link, location)
            group = link.session.transaction_group
            if group is not None and not (link.client_sends or location.management):
                group.check_receiver(location.entity.top_path)
            handler = self._serve(link, location)
            if group is not None and group.via is None:
                entity = location.entity
                group.via = entity.topic if isinstance(entity, Subscription) else entity
            return handler
        except BrokerError as error:
            link.reject(error.condition, error.description)
            return LinkHandler()  # what a client sends before it has read that is not answered

    def _serve(self, link: Link, location: Location) -> LinkHandler:
        """The handler of a link to that place. BrokerError if the place is not for such a link."""
        if location.management:
            _check_requests(location)
            location.entity.touch()
            return self._request_nodes().attach(link, location)
        attach = _attach_sender if link.client_sends else _attach_receiver
        return attach(link, location, self._namespace.transactions)

    def _request_nodes(self) -> "RequestNodes":
        """Made for the first client that has a request: a start waits for none of it."""
        if self._nodes is None:
            from sbpair.emulator.requests.node import RequestNodes

            self._nodes = RequestNodes(self._namespace)
        return self._nodes


def _locate(namespace: Namespace, link: Link) -> Location:
    location = locate(namespace, link.address)
    if location is None:
        raise BrokerError(
            errors.NOT_FOUND, f"The messaging entity 'sb://{namespace.host}/{link.address}' could not be found."
        )
    return location


def _check_rights(link: Link, location: Location) -> None:
    rights = rights_for(link.connection, link.address, link.connection.namespace.clock.client_now())
    own = {SEND} if link.client_sends else {LISTEN}
    needed = {SEND, LISTEN} if location.management else own
    if not rights & needed:
        claims = " or ".join(f"'{claim}'" for claim in sorted(needed))
        raise BrokerError(
            errors.UNAUTHORIZED, f"Unauthorized access. {claims} claim(s) are required to perform this operation."
        )


def _check_entity_type(link: Link, location: Location) -> None:
    """Refuse a link whose client takes the entity for one of another kind.

    Source: azure-service-bus-java, ClientValidationTests, against the service: a queue client on a topic or a
    subscription, a topic client on a queue, a subscription client on a queue.
    """
    named = link.properties.get("com.microsoft:entity-type")
    kind = _ENTITY_TYPES.get(named) if isinstance(named, int) and not isinstance(named, bool) else None
    if not location.entity.namespace.laws.entity_type or kind is None or location.management:
        return
    if not isinstance(location.entity, kind):
        raise BrokerError(
            errors.NOT_ALLOWED, f"The messaging entity '{link.address}' is not of the type {kind.__name__}."
        )


_ENTITY_TYPES: Mapping[int, type] = {0: Queue, 1: Topic, 2: Subscription}
"""As Microsoft's clients number them in `com.microsoft:entity-type`; the others are of other services."""


def _check_requests(location: Location) -> None:
    """Requests, a browse among them, are sent: an entity that takes nothing takes no request either.

    Seen at the service: .NET's peek of a SendDisabled queue ends with "currently disabled for Send operations". A
    Disabled entity is both SendDisabled and ReceiveDisabled ("Suspend and reactivate messaging entities").
    """
    entity = location.entity
    blocked = entity.description.status is EntityStatus.DISABLED
    _check_status(entity, may=not blocked and (location.place != MAIN or entity.description.status.may_send))


def _attach_sender(link: Link, location: Location, transactions: Transactions) -> LinkHandler:
    entity = location.entity
    if not isinstance(entity, Queue | Topic) or location.place != MAIN:
        raise BrokerError(errors.NOT_ALLOWED, f"Messages cannot be sent to '{link.address}'.")
    _check_status(entity, may=entity.status.may_send)
    sender = Sender(entity, link, transactions)
    intake = entity.intake
    properties = None
    if intake.max_batch_bytes != intake.max_message_bytes:
        properties = {"com.microsoft:max-message-batch-size": Ulong(intake.max_batch_bytes)}
    link.open(properties=properties, max_message_size=intake.max_message_bytes)
    return sender


def _attach_receiver(link: Link, location: Location, transactions: Transactions) -> LinkHandler:
    entity, mailbox = location.entity, location.mailbox
    if not isinstance(entity, MessageEntity) or mailbox is None:
        raise BrokerError(errors.NOT_ALLOWED, f"Messages cannot be received from the topic '{entity.path}'.")
    _check_status(entity, may=entity.status.may_receive)
    if mailbox.place == MAIN and entity.description.forward_to:
        raise BrokerError(
            errors.NOT_ALLOWED,
            f"Cannot create a message receiver on '{entity.path}': auto-forwarding is enabled on it.",
        )
    if link.has_selector:
        raise BrokerError(errors.NOT_IMPLEMENTED, "Message selectors are not emulated; use a rule of a subscription.")
    if link.is_copying or link.properties.get(PEEK_MODE_PROPERTY) is True:
        browser = BrowsingLink(entity, mailbox, link)
        browser.start()
        return browser
    requested = requested_session(link.filters, entity.namespace.laws.max_id_characters)
    if mailbox.sessions is None and requested is not None:
        raise BrokerError(
            errors.NOT_ALLOWED,
            "A sessionful message receiver cannot be created on an entity that does not require sessions.",
        )
    if mailbox.sessions is not None and requested is None:
        raise BrokerError(
            errors.NOT_ALLOWED,
            "It is not possible for an entity that requires sessions to create a non-sessionful message receiver.",
        )
    throttling = entity.namespace.throttling
    if throttling is not None:
        present = sum(isinstance(one, Receiver) for one in entity.links)
        throttling.check_receivers(present, link.address)
    entity.touch()
    if requested is not None and not requested.is_exclusive and not entity.namespace.laws.non_exclusive_sessions:
        raise BrokerError(errors.NOT_IMPLEMENTED, "Sessions that are not exclusive take a Premium namespace.")
    receiver = Receiver(entity, mailbox, link, transactions, requested)
    receiver.start()
    return receiver


def _check_status(entity: Queue | Topic | Subscription | MessageEntity, *, may: bool) -> None:
    if not may:
        status: EntityStatus = entity.description.status
        raise BrokerError(errors.DISABLED, f"Messaging entity '{entity.path}' is currently disabled ({status.value}).")
