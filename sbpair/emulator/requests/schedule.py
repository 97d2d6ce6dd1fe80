"""schedule-message and cancel-scheduled-message.

Request   messages: [{message-id, message: binary, [session-id], [partition-key]}]; the time is the annotation
          x-opt-scheduled-enqueue-time inside each message. All are accepted or none.
Response  200 sequence-numbers: array of long. They are valid until a message becomes active, which gives it another.
Cancel    sequence-numbers array of long; 404 message-not-found if one is not scheduled (any more), then none is
deleted.
In a transaction both are done at its commit; the numbers are given at once.
"""

from sbpair.amqp.types import Array, Long
from sbpair.emulator.broker.messages import Message, as_mapping
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError

_LONG = 0x81


def schedule_message(call: Call) -> Answering:
    """Accept messages for later."""
    entity = _destination(call)
    messages: list[Message] = []
    for entry in call.items("messages"):
        messages += _parsed(entity, entry)
        yield
    if any(message.head.scheduled_at is None for message in messages):
        raise BrokerError(errors.ARGUMENT_ERROR, "A message to schedule has no scheduled enqueue time.")
    if call.transaction is None:
        yield from entity.accepting(messages, in_one_transfer=False)
        numbers = [message.sequence_number for message in messages]
    else:
        numbers = call.transaction.schedule(entity, messages)
    return Reply.ok(sequence_numbers=Array(_LONG, tuple(Long(number) for number in numbers)))


def cancel_scheduled_message(call: Call) -> Answering:
    """Delete scheduled messages."""
    entity, numbers = _destination(call), call.sequence_numbers()
    yield
    if call.transaction is None:
        entity.cancel_scheduled(numbers)
    else:
        call.transaction.cancel_scheduled(entity, numbers)
    return Reply.ok()


def _destination(call: Call) -> Queue | Topic:
    entity = call.location.entity
    if isinstance(entity, Queue | Topic):
        return entity
    raise BrokerError(errors.NOT_ALLOWED, "Messages are scheduled on a queue or topic, not on a subscription.")


def _parsed(entity: Queue | Topic, entry: object) -> list[Message]:
    payload = as_mapping(entry).get("message")
    if not isinstance(payload, bytes):
        raise BrokerError(errors.ARGUMENT_ERROR, "Each entry of 'messages' must hold the bytes of a message.")
    return entity.intake.read(payload, 0)
