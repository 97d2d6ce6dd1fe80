"""What `sbpair emulator --sample NAME` starts with: worlds in which every command has something to show.

After an outage the messages stand in the backlog queues as the failover of a sender puts them there: each sender of
messages without a session in one queue, each session in its own.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sbpair.core.words import counted

if TYPE_CHECKING:
    from sbpair.emulator import Namespace


class SampleWorld(StrEnum):
    """Worlds to start with."""

    OUTAGE = "outage"
    """A pair a little after an outage of its primary: messages and dead letters wait in ten backlog queues."""
    DEAD_LETTERS = "dead-letters"
    """A queue and a subscription whose consumers failed for several reasons."""
    ENTITIES = "entities"
    """Entities of an application with active, scheduled and dead-lettered messages, and no backlog queues."""


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
_FAILURES = (
    ("MaxDeliveryCountExceeded", _TRIED, 40),
    ("ValidationError", "country is missing (order {number})", 25),
    ("ValidationError", "amount -{number} is negative", 8),
    ("TTLExpiredException", "The message expired and was dead lettered.", 12),
    ("NotJson", "Unexpected token at position {number}", 5),
)
"""Reason, description and number of the dead letters of one entity."""
_ACTIVE = 60
_SCHEDULED = 6


def plant(sample: SampleWorld, primary: "Namespace", secondary: "Namespace", pair: str) -> str:
    """Create entities and messages of a sample; returns what there is now, and the command that shows it.

    Namespaces that have queues already, from a start before this one, stay as they are.
    """
    from sbpair.emulator import seed

    if primary.queues() or secondary.queues():
        return "The namespaces keep what they had; the sample is for new ones."
    if sample is SampleWorld.OUTAGE:
        return f"{_plant_outage(primary, secondary)} Look at them: sbpair status {pair}"
    seed.plant(primary, _with_messages(failures=sample is SampleWorld.DEAD_LETTERS))
    failed = sum(count for _, _, count in _FAILURES)
    if sample is SampleWorld.DEAD_LETTERS:
        return (
            f"Sample: {ORDERS} on {primary.name} has {failed} dead letters, the subscription all of {EVENTS} as many. "
            f"Look at them: sbpair dlq list {ORDERS} --namespace {primary.name}"
        )
    return (
        f"Sample: {ORDERS} on {primary.name} has {_ACTIVE} messages and {_SCHEDULED} scheduled ones, {INVOICES} "
        f"has {CUSTOMERS} sessions, {EVENTS} two subscriptions. Look: sbpair entity list --namespace {primary.name}"
    )


def _with_messages(*, failures: bool) -> dict[str, Any]:
    active = [_described(number) for number in range(_ACTIVE)]
    scheduled = [_described(800 + number) | {"scheduled_in_seconds": 3_600} for number in range(_SCHEDULED)]
    numbers = iter(range(900, 2_000))
    letters = [
        _described(number) | {"dead_letter": {"reason": reason, "description": text.format(number=number)}}
        for reason, text, count in _FAILURES
        for number in (next(numbers) for _ in range(count))
    ]
    large = SEED["topics"][EVENTS]["subscriptions"]["large"]
    subscriptions = {"all": {"messages": letters if failures else active}, "large": large}
    return {
        "queues": {
            ORDERS: {"messages": [*active, *(letters if failures else scheduled)]},
            INVOICES: {
                "requires_session": True,
                "messages": [one | {"session_id": f"customer-{n % CUSTOMERS}"} for n, one in enumerate(active)],
            },
        },
        "topics": {EVENTS: {"subscriptions": subscriptions}},
    }


def _described(number: int) -> dict[str, Any]:
    amount = number * 37 % 2_000
    country = ("DE", "FR", "NL")[number % 3]
    return {
        "body": {"number": number, "amount": amount},
        "message_id": f"order-{number:04}",
        "subject": "created",
        "properties": {"amount": amount, "country": country},
    }


def _plant_outage(primary: "Namespace", secondary: "Namespace") -> str:
    from sbpair.core.pairing import DEFAULT_BACKLOG_QUEUE_COUNT, DOCUMENTED_SETTINGS, expected_backlog_paths
    from sbpair.emulator import seed

    paths = expected_backlog_paths(primary.name, DEFAULT_BACKLOG_QUEUE_COUNT)
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
    from sbpair.core.failover.sending import stable_choice
    from sbpair.core.rewrite import for_backlog

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
    from sbpair.core.rewrite import compose

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
