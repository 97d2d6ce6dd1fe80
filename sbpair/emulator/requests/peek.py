"""peek-message: look without locking.

Request   from-sequence-number long, message-count int, [session-id string].
Response  200 messages: [{message: binary}], or 204 when there is nothing from that number on.
At most 250 messages and no more bytes than a link's message may have, so a page can be short although there is more;
on partitioned entities a page comes from one partition.
"""

from sbpair.emulator.broker.mailbox import page
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors


def peek_message(call: Call) -> Answering:
    """Perform the request."""
    since = call.number("from-sequence-number", 0)
    count = max(0, min(call.number("message-count", 1), call.namespace.laws.max_peek_messages))
    found = _page(call, since, count)
    if not found:
        return Reply.nothing(errors.MESSAGE_NOT_FOUND)
    if call.namespace.throttling is not None and len(found) > 1:
        call.namespace.throttling.spend(len(found) - 1)  # the request has paid for the first
    shown = []
    for message in found:
        shown.append({"message": message.render()})
        yield
    return Reply.ok(messages=shown)


def _page(call: Call, since: int, count: int) -> list[Message]:
    max_bytes = call.namespace.laws.max_message_bytes
    entity = call.location.entity
    if isinstance(entity, Topic):
        # A topic's own node shows what is scheduled in it.
        return page(entity.scheduled.log, since, count, max_bytes)
    return call.mailbox.peek(since, count, max_bytes, call.optional_text("session-id"))
