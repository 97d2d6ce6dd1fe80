"""What a dry run says of a destination: missing, closed, full, for sessions only, or too small."""

import pytest

from sbpair.core.entities import EntityStatus, QueueFacts, QueueSettings, TopicFacts
from sbpair.core.errors import Category, EntityNotFoundError, UnauthorizedError
from sbpair.core.transfer.verdict import DestinationSeen, Refused, Stays, Wanted, expected, missing

MEGABYTE = 1024**2


def wanted(*sizes: int, session_id: str | None = None) -> Wanted:
    one = Wanted()
    for size in sizes:
        one.add(size, session_id)
    return one


def queue(size_in_bytes: int = 0, **settings: object) -> QueueFacts:
    return QueueFacts("orders", QueueSettings(**settings), size_in_bytes=size_in_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "messages", "outcome"),
    [
        (DestinationSeen("orders", 262_144), wanted(10, 20), []),
        (DestinationSeen("orders", error=EntityNotFoundError("no")), wanted(10), [Stays("entity-not-found")]),
        (DestinationSeen("orders", error=UnauthorizedError("no")), wanted(10), [Stays("unauthorized")]),
        (
            DestinationSeen("orders", 262_144, queue=queue(status=EntityStatus.SEND_DISABLED)),
            wanted(10),
            [Stays("entity-disabled")],
        ),
        (DestinationSeen("orders", 262_144, queue=queue(status=EntityStatus.RECEIVE_DISABLED)), wanted(10), []),
        (DestinationSeen("orders", 262_144, queue=queue(1024 * MEGABYTE)), wanted(10), [Stays("quota-exceeded")]),
        (DestinationSeen("orders", 262_144, queue=queue(1024 * MEGABYTE - 1)), wanted(10), []),
        (DestinationSeen("orders", 262_144, queue=queue(1024 * MEGABYTE, enable_partitioning=True)), wanted(10), []),
        (
            DestinationSeen("orders", 262_144, topic=TopicFacts("orders", size_in_bytes=1024 * MEGABYTE)),
            wanted(10),
            [Stays("quota-exceeded")],
        ),
        (
            DestinationSeen("orders", 262_144, queue=queue(requires_session=True)),
            wanted(10, 20),
            [Refused("ArgumentRefused", Category.ARGUMENT, 2)],
        ),
        (DestinationSeen("orders", 262_144, queue=queue(requires_session=True)), wanted(10, session_id="s"), []),
        (DestinationSeen("orders", 262_144), wanted(10, 262_145), [Refused("MessageTooLarge", Category.TOO_LARGE, 1)]),
        (
            DestinationSeen("orders", 262_144),
            wanted(10, 262_145, 10, 300_000, 262_144, session_id="S"),
            [Refused("MessageTooLarge", Category.TOO_LARGE, 2, behind=2)],
        ),
        (DestinationSeen("orders", 300_000), wanted(262_145, 10, session_id="s"), []),
    ],
)
def test_what_will_not_go_there(seen: DestinationSeen, messages: Wanted, outcome: list[Stays | Refused]) -> None:
    assert list(expected(seen, messages)) == outcome


def test_only_a_destination_that_does_not_exist_is_missing() -> None:
    assert missing(DestinationSeen("orders", error=EntityNotFoundError("no")))
    assert not missing(DestinationSeen("orders", error=UnauthorizedError("no")))
    assert not missing(DestinationSeen("orders", 1000))
