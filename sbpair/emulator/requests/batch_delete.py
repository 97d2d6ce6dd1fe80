"""batch-delete-messages: delete waiting messages without receiving them.

Request   message-count int (at most 500, Premium 4,000), enqueued-time-utc timestamp: only messages enqueued before
          it; [session-id].
Response  200 message-count: int, how many were deleted; 204 when none was.
Locked, deferred and scheduled messages stay. Not available on partitioned entities.
"""

from sbpair.amqp.types import Int
from sbpair.emulator.broker.messages import Message, State
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError


def delete_messages(call: Call) -> Answering:
    """Perform the request."""
    mailbox, laws = call.mailbox, call.namespace.laws
    if laws.batch_delete_partitioned and mailbox.entity.is_partitioned:
        raise BrokerError(errors.NOT_ALLOWED, "Messages of a partitioned entity cannot be deleted in batches.")
    count = call.number("message-count")
    most = laws.max_batch_delete_messages
    if not 1 <= count <= most:
        raise BrokerError(errors.ARGUMENT_OUT_OF_RANGE, f"The message count must lie between 1 and {most}.")
    before = call.number("enqueued-time-utc", 2**62) / 1000
    log, session_id = mailbox.log, call.optional_text("session-id")
    if mailbox.sessions is not None and session_id is not None:
        log = mailbox.sessions.require_held(session_id).log
    chosen: list[Message] = []
    for message in log:
        if len(chosen) >= count or message.enqueued_at >= before:
            break
        if message.state is State.ACTIVE and not message.locked:
            chosen.append(message)
    deleted = 0
    for message in chosen:
        if not message.locked and mailbox.log.get(message.sequence_number) is message:
            mailbox.remove(message)
            deleted += 1
        yield
    return Reply.ok(message_count=Int(deleted)) if deleted else Reply.nothing()
