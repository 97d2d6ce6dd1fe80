"""update-disposition: settle by lock token, without the link the message came on.

Request   disposition-status "completed", "abandoned", "defered" (sic; "deferred" is taken as well) or "suspended"
          (dead-letter), lock-tokens array of uuid, [deadletter-reason], [deadletter-description],
          [properties-to-modify map], [session-id].
Response  200, or 410 message-lock-lost at the first token whose lock has ended (those before it are settled).
"""

import uuid
from functools import partial

from sbpair.emulator.broker.mailbox import MAIN
from sbpair.emulator.broker.messages import as_mapping
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError


def update_disposition(call: Call) -> Answering:
    """Perform the request."""
    status = call.text("disposition-status")
    if status not in ("completed", "abandoned", "defered", "deferred", "suspended"):
        raise BrokerError(errors.ARGUMENT_ERROR, f"The disposition status '{status}' is not known.")
    tokens = call.tokens("lock-tokens")
    apart = call.namespace.laws.settle_one_partition and call.mailbox.entity.is_partitioned
    if apart and len({call.mailbox.locks.partition_of(token) for token in tokens} - {None}) > 1:
        raise BrokerError(
            errors.NOT_ALLOWED,
            "Batching lock tokens for different partitions is not supported for an entity with partitioning enabled.",
        )
    for token in tokens:
        if call.transaction is None:
            _settle(call, status, token)
        else:
            if status == "suspended" and call.mailbox.place != MAIN:
                raise BrokerError(errors.NOT_ALLOWED, "A dead-lettered message cannot be dead-lettered again.")
            call.transaction.settle(call.mailbox, token, partial(_settle, call, status, token))
        yield
    return Reply.ok()


def _settle(call: Call, status: str, token: uuid.UUID) -> None:
    mailbox = call.mailbox
    properties = {str(key): value for key, value in as_mapping(call.body.get("properties-to-modify")).items()}
    if status == "completed":
        mailbox.complete(token)
    elif status == "abandoned":
        mailbox.abandon(token, properties)
    elif status == "suspended":
        reason, text = call.optional_text("deadletter-reason"), call.optional_text("deadletter-description")
        mailbox.dead_letter(token, reason, text, properties)
    else:
        mailbox.defer(token, properties)
