"""Requests about messages (look, renew, receive deferred ones, settle, schedule, delete), sessions and rules.

One management request and its answer, free of links: what every operation takes and gives.
"""

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from sbpair.amqp.types import Array, Described, Int, Long, Ulong
from sbpair.emulator.broker.addresses import Location
from sbpair.emulator.broker.mailbox import MAIN, Mailbox, page
from sbpair.emulator.broker.messages import Message, MessageStateCode, as_mapping, milliseconds
from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.sessions import Sessions
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.broker.transactions import Transaction
from sbpair.emulator.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from sbpair.emulator.filters import Rule
from sbpair.emulator.namespace import Namespace
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError, EntityError
from sbpair.service import CORRELATION_FIELDS

MAX_REQUEST_NUMBERS = 2000
"""Messages that a management request cancels or receives by their numbers, all or none: our own bound."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` holds AMQP values; `condition` is set for failures."""

    status: int
    body: Mapping[str, object] = field(default_factory=dict)
    description: str = "OK"
    condition: str | None = None

    @classmethod
    def ok(cls, **body: object) -> "Reply":
        """200; names of body entries with `_` for `-`."""
        return cls(200, {name.replace("_", "-"): value for name, value in body.items()})

    @classmethod
    def nothing(cls, condition: str | None = None) -> "Reply":
        """204: nothing there."""
        return cls(204, description="No Content", condition=condition)

    @classmethod
    def failure(cls, status: int, condition: str, description: str) -> "Reply":
        return cls(status, {}, errors.tracked(description), condition)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to one place. The accessors raise BrokerError argument-error for a missing or mistyped entry."""

    namespace: Namespace
    location: Location
    body: Mapping[str, object]
    transaction: Transaction | None = None

    @property
    def mailbox(self) -> Mailbox:
        """The place's mailbox; BrokerError not-allowed on a topic."""
        mailbox = self.location.mailbox
        if mailbox is None:
            raise BrokerError(errors.NOT_ALLOWED, "A topic holds no messages to receive; use one of its subscriptions.")
        return mailbox

    def number(self, name: str, default: int | None = None) -> int:
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._bad(name, "a number")
        return int(value)

    def text(self, name: str) -> str:
        value = self.body.get(name)
        if not isinstance(value, str):
            raise self._bad(name, "a string")
        return str(value)

    def optional_text(self, name: str) -> str | None:
        return None if self.body.get(name) is None else self.text(name)

    def items(self, name: str) -> list[object]:
        """The entries of an array or a list (clients send either)."""
        value = self.body.get(name)
        if isinstance(value, Array):
            return list(value.items)
        if isinstance(value, list):
            return value
        raise self._bad(name, "an array")

    def numbers(self, name: str) -> list[int]:
        found = [value for value in self.items(name) if isinstance(value, int) and not isinstance(value, bool)]
        if not found or len(found) != len(self.items(name)):
            raise self._bad(name, "an array of numbers")
        return [int(value) for value in found]

    def sequence_numbers(self) -> list[int]:
        """The entry `sequence-numbers`: of messages that are changed all at once or not at all."""
        found = self.numbers("sequence-numbers")
        if len(found) > MAX_REQUEST_NUMBERS:
            text = f"A request names {MAX_REQUEST_NUMBERS} sequence numbers at most, not {len(found)}."
            raise BrokerError(errors.ARGUMENT_OUT_OF_RANGE, text)
        return found

    def tokens(self, name: str) -> list[uuid.UUID]:
        found = [value for value in self.items(name) if isinstance(value, uuid.UUID)]
        if not found or len(found) != len(self.items(name)):
            raise self._bad(name, "an array of uuids")
        return found

    @staticmethod
    def _bad(name: str, expected: str) -> BrokerError:
        return BrokerError(errors.ARGUMENT_ERROR, f"The entry '{name}' of the request must be {expected}.")


Answering = Generator[None, None, Reply]
"""An operation in steps, since there may be thousands of messages, tokens or rules in a request or an answer."""


class WithinTransaction(Enum):
    """What becomes of a request in a transaction. The .NET client puts every request of a TransactionScope into one."""

    AT_COMMIT = auto()
    AT_ONCE = auto()
    """It changes nothing that a rollback would have to undo: reads, and locks."""
    REFUSED = auto()
    """Management: the service's documents do not let a transaction mix it with messaging."""


@dataclass(frozen=True, slots=True)
class ManagementOperation:
    """What performs an operation, and the right ("Send" or "Listen") it needs."""

    perform: Callable[[Call], Answering]
    right: str
    within_transaction: WithinTransaction = WithinTransaction.AT_ONCE


_TIMESTAMP = 0x83
_DELETE = 0
_LONG = 0x81


def peek_message(call: Call) -> Answering:
    """peek-message: look without locking.

    Request   from-sequence-number long, message-count int, [session-id string].
    Response  200 messages: [{message: binary}], or 204 when there is nothing from that number on.
    At most 250 messages and no more bytes than a link's message may have, so a page can be short although there is
    more; on partitioned entities a page comes from one partition.
    """
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


def renew_lock(call: Call) -> Answering:
    """renew-lock: start the time of message locks again.

    Request   lock-tokens array of uuid.
    Response  200 expirations: array of timestamp, in the order of the tokens; 410 message-lock-lost if one has ended
              (the others are renewed all the same up to that one).
    """
    ends = []
    for token in call.tokens("lock-tokens"):
        ends.append(milliseconds(call.mailbox.renew(token)))
        yield
    return Reply.ok(expirations=Array(_TIMESTAMP, tuple(ends)))


def receive_by_sequence_number(call: Call) -> Answering:
    """receive-by-sequence-number: get deferred messages.

    Request   sequence-numbers array of long, receiver-settle-mode uint (0: delete them, 1: lock them), [session-id].
    Response  200 messages: [{lock-token: uuid, message: binary}], in the order asked for; 404 message-not-found unless
              all are there, deferred and not locked.
    """
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


def update_disposition(call: Call) -> Answering:
    """update-disposition: settle by lock token, without the link the message came on.

    Request   disposition-status "completed", "abandoned", "defered" (sic; "deferred" is taken as well) or "suspended"
              (dead-letter), lock-tokens array of uuid, [deadletter-reason], [deadletter-description],
              [properties-to-modify map], [session-id].
    Response  200, or 410 message-lock-lost at the first token whose lock has ended (those before it are settled).
    """
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


def schedule_message(call: Call) -> Answering:
    """schedule-message: accept messages for later.

    Request   messages: [{message-id, message: binary, [session-id], [partition-key]}]; the time is the annotation
              x-opt-scheduled-enqueue-time inside each message. All are accepted or none.
    Response  200 sequence-numbers: array of long. They are valid until a message becomes active, which gives it
              another.
    In a transaction it is done at its commit; the numbers are given at once.
    """
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
    """cancel-scheduled-message: delete scheduled messages, in a transaction at its commit.

    Request   sequence-numbers array of long.
    Response  200; 404 message-not-found if one is not scheduled (any more), then none is deleted.
    """
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


def delete_messages(call: Call) -> Answering:
    """batch-delete-messages: delete waiting messages without receiving them.

    Request   message-count int (at most 500, Premium 4,000), enqueued-time-utc timestamp: only messages enqueued before
              it; [session-id].
    Response  200 message-count: int, how many were deleted; 204 when none was.
    Locked, deferred and scheduled messages stay. Not available on partitioned entities.
    """
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
        if message.state is MessageStateCode.ACTIVE and not message.locked:
            chosen.append(message)
    deleted = 0
    for message in chosen:
        if not message.locked and mailbox.log.get(message.sequence_number) is message:
            mailbox.remove(message)
            deleted += 1
        yield
    return Reply.ok(message_count=Int(deleted)) if deleted else Reply.nothing()


_STRING = 0xB1
_END_OF_TIME_MILLISECONDS = 253_402_300_799_000


def renew_session_lock(call: Call) -> Answering:
    """renew-session-lock: start a session lock's time again.

    Request   session-id.
    Response  200 expiration: timestamp; 410 session-lock-lost when nobody holds the session.
    """
    yield
    return Reply.ok(expiration=milliseconds(_sessions(call).renew(call.text("session-id"))))


def get_session_state(call: Call) -> Answering:
    """get-session-state: session-id -> 200 session-state: binary or null."""
    yield
    return Reply.ok(session_state=_sessions(call).require_held(call.text("session-id")).state)


def set_session_state(call: Call) -> Answering:
    """set-session-state: keep bytes with a session.

    Request   session-id, session-state binary, or null or an empty one (clear it).
    Response  200; 410 when nobody holds the session.
    """
    yield
    state = call.body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise BrokerError(errors.ARGUMENT_ERROR, "The session state must be bytes or null.")
    if state is not None and len(state) > call.namespace.laws.max_session_state_bytes:
        raise BrokerError(errors.SIZE_EXCEEDED, f"The session state of {len(state)} bytes is too large.")
    sessions, session_id = _sessions(call), call.text("session-id")

    holder = sessions.require_held(session_id).holder

    def check() -> None:
        if sessions.require_held(session_id).holder is not holder:
            raise BrokerError(errors.SESSION_LOCK_LOST, f"The lock of the session '{session_id}' has expired.")

    def keep() -> None:
        call.namespace.journal.put_session(call.location.entity, sessions.set_state(session_id, state or None))

    if call.transaction is None:
        keep()
    else:
        call.transaction.change(check, keep)
    return Reply.ok()


def get_message_sessions(call: Call) -> Answering:
    """get-message-sessions: ids of sessions, sorted, a page of them.

    Request   last-updated-time timestamp, skip int, top int. The end of time (253402300800000) asks for all sessions
              with messages or state, an earlier time for those whose state was set after it.
    Response  200 sessions-ids (sic): array of string, skip: int; 204 when there is none.
    """
    yield
    skip, top = max(call.number("skip", 0), 0), max(call.number("top", 100), 0)
    changed_after = call.number("last-updated-time", _END_OF_TIME_MILLISECONDS)
    every = changed_after >= _END_OF_TIME_MILLISECONDS
    listed = _sessions(call).listed(None if every else changed_after / 1000)[skip : skip + top]
    if not listed:
        return Reply.nothing("com.microsoft:session-not-found")
    return Reply(200, {"sessions-ids": Array(_STRING, tuple(listed)), "skip": Int(skip + len(listed))})


def _sessions(call: Call) -> Sessions:
    sessions = call.mailbox.sessions
    if sessions is None:
        raise BrokerError(errors.NOT_ALLOWED, f"The entity '{call.mailbox.path}' does not have sessions.")
    return sessions


# The rules of a subscription (the JavaScript rule manager).
#
# add-rule rule-name, rule-description {sql-filter {expression} | correlation-filter {…} | true-filter | false-filter,
# [sql-rule-action {expression}]} -> 200; 409 entity-already-exists. remove rule-name -> 200; 404. enumerate skip int,
# top int -> 200 rules: [{rule-description: described list (filter, action, name, created)}]; 204 when there is none
# from `skip` on.


_RULE, _EMPTY_ACTION, _SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
_SQL_FILTER, _TRUE_FILTER, _FALSE_FILTER, _CORRELATION_FILTER = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009
_SQL_COMPATIBILITY = Int(20)
_CONDITIONS = {400: errors.ARGUMENT_ERROR, 404: errors.NOT_FOUND, 409: errors.ENTITY_EXISTS}


def add_rule(call: Call) -> Answering:
    yield
    owner = _subscription(call)
    description = _description(as_mapping(call.body.get("rule-description")))
    try:
        call.namespace.create_rule(owner.topic.path, owner.name, call.text("rule-name"), description)
    except EntityError as error:
        raise _translated(error) from error
    return Reply.ok()


def remove_rule(call: Call) -> Answering:
    yield
    owner = _subscription(call)
    try:
        call.namespace.delete_rule(owner.topic.path, owner.name, call.text("rule-name"))
    except EntityError as error:
        raise _translated(error) from error
    return Reply.ok()


def enumerate_rules(call: Call) -> Answering:
    """A page of rules, by name."""
    owner = _subscription(call)
    skip, top = max(call.number("skip", 0), 0), max(call.number("top", 100), 0)
    listed = call.namespace.rules(owner.topic.path, owner.name)[skip : skip + top]
    if not listed:
        return Reply.nothing()
    shown = []
    for rule in listed:
        shown.append({"rule-description": _described(rule)})
        yield
    return Reply.ok(rules=shown)


def _subscription(call: Call) -> Subscription:
    entity = call.location.entity
    if isinstance(entity, Subscription):
        return entity
    raise BrokerError(errors.NOT_ALLOWED, f"'{entity.path}' is no subscription and has no rules.")


def _translated(error: EntityError) -> BrokerError:
    return BrokerError(_CONDITIONS.get(error.http_status, errors.NOT_ALLOWED), error.message)


def _description(given: Mapping[object, object]) -> RuleDescription:
    action = as_mapping(given.get("sql-rule-action")).get("expression")
    return RuleDescription(
        filter=_filter(given), action=SqlAction(expression=str(action)) if isinstance(action, str) and action else None
    )


def _filter(given: Mapping[object, object]) -> RuleFilter:
    if "sql-filter" in given:
        return SqlFilter(expression=str(as_mapping(given["sql-filter"]).get("expression", "")))
    if "correlation-filter" in given:
        return _correlation(as_mapping(given["correlation-filter"]))
    return FalseFilter() if "false-filter" in given else TrueFilter()


def _correlation(given: Mapping[object, object]) -> CorrelationFilter:
    texts = {name: given.get(name.replace("_", "-")) for name in CORRELATION_FIELDS}
    properties = {str(key): value for key, value in as_mapping(given.get("properties")).items()}
    return CorrelationFilter(
        **{name: str(value) for name, value in texts.items() if value is not None}, properties=properties
    )


def _described(rule: Rule) -> Described:
    action = rule.action
    encoded_action = (
        _list(_EMPTY_ACTION) if action is None else _list(_SQL_ACTION, action.expression, _SQL_COMPATIBILITY)
    )
    created = milliseconds(rule.created_at)
    return _list(_RULE, _described_filter(rule.filter), encoded_action, rule.name, created)


def _described_filter(condition: RuleFilter) -> Described:
    if isinstance(condition, TrueFilter):
        return _list(_TRUE_FILTER)
    if isinstance(condition, FalseFilter):
        return _list(_FALSE_FILTER)
    if isinstance(condition, SqlFilter):
        return _list(_SQL_FILTER, condition.expression, _SQL_COMPATIBILITY)
    values = [getattr(condition, name) for name in CORRELATION_FIELDS]
    return _list(_CORRELATION_FILTER, *values, dict(condition.properties))


def _list(code: int, *values: object) -> Described:
    return Described(Ulong(code), list(values))
