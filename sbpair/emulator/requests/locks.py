"""renew-lock: start the time of message locks again.

Request   lock-tokens array of uuid.
Response  200 expirations: array of timestamp, in the order of the tokens; 410 message-lock-lost if one has ended
          (the others are renewed all the same up to that one).
"""

from sbpair.amqp.types import Array
from sbpair.emulator.broker.messages import milliseconds
from sbpair.emulator.requests.call import Answering, Call, Reply

_TIMESTAMP = 0x83


def renew_lock(call: Call) -> Answering:
    """Perform the request."""
    ends = []
    for token in call.tokens("lock-tokens"):
        ends.append(milliseconds(call.mailbox.renew(token)))
        yield
    return Reply.ok(expirations=Array(_TIMESTAMP, tuple(ends)))
