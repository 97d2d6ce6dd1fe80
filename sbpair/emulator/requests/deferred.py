"""receive-by-sequence-number: get deferred messages.

Request   sequence-numbers array of long, receiver-settle-mode uint (0: delete them, 1: lock them), [session-id].
Response  200 messages: [{lock-token: uuid, message: binary}], in the order asked for; 404 message-not-found unless all
          are there, deferred and not locked.
"""

from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError

_DELETE = 0


def receive_by_sequence_number(call: Call) -> Answering:
    """Perform the request."""
    settled = call.number("receiver-settle-mode", 1) == _DELETE
    if settled and call.transaction is not None:
        raise BrokerError(errors.NOT_ALLOWED, "A message cannot be received and deleted in a transaction.")
    numbers = call.sequence_numbers()
    if call.namespace.laws.deferred_one_partition and len({partition_of(number) for number in numbers}) > 1:
        raise BrokerError(
            errors.NOT_ALLOWED,
            "ReceiveBatch of sequence numbers from different partitions is not supported for an entity with "
            "partitioning enabled.",
        )
    found = call.mailbox.receive_deferred(numbers, settled=settled, session_id=call.optional_text("session-id"))
    entries: list[dict[str, object]] = []
    for message, lock in found:
        if lock is None:
            entries.append({"message": message.render_delivery()})
        else:
            payload = message.render_delivery(lock_token=lock.token, locked_until=lock.until)
            entries.append({"lock-token": lock.token, "message": payload})
        yield
    return Reply.ok(messages=entries)
