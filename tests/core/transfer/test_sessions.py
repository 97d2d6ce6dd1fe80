"""Sessions of an entity: counted from its messages, and those that only have a state."""

from sbpair.core.message import MessageState, Received
from sbpair.core.serialization import iso_time
from sbpair.core.transfer.peeked import SessionFacts, sessions_of


def one(number: int, session: str | None, state: MessageState, at: float) -> Received:
    return Received(b"", number, "orders", session_id=session, state=state, enqueued_at=at)


def test_messages_are_counted_by_session_and_state_in_every_spelling() -> None:
    received = [
        one(1, "Order-7", MessageState.ACTIVE, 30.0),
        one(2, "ORDER-7", MessageState.ACTIVE, 20.0),
        one(3, "order-7", MessageState.DEFERRED, 40.0),
        one(4, "order-8", MessageState.SCHEDULED, 50.0),
        one(5, "order-8", MessageState.SCHEDULED, 60.0),
        one(6, None, MessageState.ACTIVE, 10.0),
    ]
    found = sessions_of(received, ["order-7", "Order-9"])
    assert list(found.values()) == [
        SessionFacts("Order-7", 2, 1, 0, iso_time(20.0)),
        SessionFacts("order-8", 0, 0, 2, iso_time(50.0)),
        SessionFacts("Order-9", 0, 0, 0, None),
    ]
