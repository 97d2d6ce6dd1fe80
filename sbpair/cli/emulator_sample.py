"""What `sbpair emulator --sample` starts with: a pair a little after an outage of its primary.

The messages stand in the backlog queues as the failover of a sender puts them there: each sender of messages without a
session in one queue, each session in its own.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sbpair.core.failover.sending import stable_choice
from sbpair.core.pairing import DEFAULT_BACKLOG_QUEUE_COUNT, DOCUMENTED_SETTINGS, expected_backlog_paths
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.words import counted

if TYPE_CHECKING:
    from sbpair.emulator import Namespace

ORDERS, INVOICES, EVENTS = "orders", "invoices/incoming", "events"
CUSTOMERS = 12
SEED: dict[str, Any] = {
    "queues": {ORDERS: {}, INVOICES: {"requires_session": True}},
    "topics": {EVENTS: {"subscriptions": {"all": {}, "large": {"rules": {"amount": {"sql": "amount > 1000"}}}}}},
}
"""The application's entities on the primary."""
DIVERTED = {ORDERS: 200, INVOICES: 180, EVENTS: 120}
BACKLOG_DEAD, ORDERS_DEAD = 3, 5
"""Of the diverted messages: dead letters of a backlog queue, and others that are dead letters of `orders`."""
_TRIED = "Message could not be consumed after 10 delivery attempts."


def plant(primary: "Namespace", secondary: "Namespace") -> str:
    """Create the pair's entities and messages; returns what there is now. Namespaces that have backlog queues already,
    from a start before this one, stay as they are."""
    from sbpair.emulator import seed

    paths = expected_backlog_paths(primary.name, DEFAULT_BACKLOG_QUEUE_COUNT)
    if any(secondary.get_queue(path) is not None for path in paths):
        return "The namespaces keep what they had; the sample is for new ones."
    settings = {key: value for key, value in asdict(DOCUMENTED_SETTINGS).items() if key != "status"}
    seed.plant(primary, SEED)
    seed.plant(secondary, {"queues": {ORDERS: {}} | dict.fromkeys(paths, settings)})
    for place, payload in _diverted(paths):
        _queue(secondary, place).send(payload)
    _dead_letter_last(secondary, paths[0], BACKLOG_DEAD)
    for number in range(ORDERS_DEAD):
        _queue(primary, ORDERS).send(_message(ORDERS, 900 + number))
    _dead_letter_last(primary, ORDERS, ORDERS_DEAD)
    return (
        f"Sample: {counted(sum(DIVERTED.values()) - BACKLOG_DEAD, 'message')} and {BACKLOG_DEAD} dead letters wait in "
        f"the backlog queues on {secondary.name}, and {ORDERS} on {primary.name} has {ORDERS_DEAD} dead letters."
    )


def _diverted(paths: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Backlog queue and message, in the order of sending."""
    drawn = {ORDERS: paths[0], EVENTS: paths[7]}
    for number in range(max(DIVERTED.values())):
        for entity, count in DIVERTED.items():
            if number < count:
                session = _session(number) if entity == INVOICES else None
                place = drawn[entity] if session is None else stable_choice((entity, session), paths)
                yield place, for_backlog(_message(entity, number), entity)


def _session(number: int) -> str:
    return f"customer-{number % CUSTOMERS}"


def _message(entity: str, number: int) -> bytes:
    amount = number * 37 % 2_000
    return compose(
        body=json.dumps({"number": number, "amount": amount}),
        message_id=f"{entity.partition('/')[0].removesuffix('s')}-{number:04}",
        session_id=_session(number) if entity == INVOICES else None,
        subject="created",
        content_type="application/json",
        application_properties={"amount": amount},
    )


def _queue(namespace: "Namespace", path: str) -> Any:
    queue = namespace.get_queue(path)
    if queue is None:
        raise ValueError(f"the sample's queue {path} is not there")
    return queue


def _dead_letter_last(namespace: "Namespace", path: str, count: int) -> None:
    """Dead-letter the last messages of a queue."""
    queue = _queue(namespace, path)
    for message in list(queue.main.log)[-count:]:
        queue.to_dead_letters(queue.main, message, "MaxDeliveryCountExceeded", _TRIED)
