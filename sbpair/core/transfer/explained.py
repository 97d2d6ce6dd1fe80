"""Why a message lies where it lies: what its bytes, its entity and its neighbours tell, and what cannot be known."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sbpair.amqp.sections import Section
from sbpair.core.durations import format_duration
from sbpair.core.encoded import EncodedMessage
from sbpair.core.entities import EntityFacts, EntitySettings
from sbpair.core.errors import MalformedMessageError
from sbpair.core.message import MessageState, Received
from sbpair.core.names import is_dead_letter_path, same_name, subscription_of
from sbpair.core.redact import quoted
from sbpair.core.rules import MessageOfRules, condition_of
from sbpair.core.serialization import column, spoken_time
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.transfer.peeked import meaning_of
from sbpair.core.transfer.triage import origin_of
from sbpair.core.words import counted
from sbpair.service import EntityStatus
from sbpair.sqlfilter.values import FilterEvaluationError, FilterSyntaxError

_ENQUEUED_AS = "x-opt-enqueue-sequence-number"
_DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
_FAILED_QUEUES = ("NServiceBus.FailedQ", "MT-Fault-InputAddress", "rbs2-source-queue")


@dataclass(frozen=True, slots=True)
class Near:
    """Another message of the same MessageId or session."""

    number: int
    dead_letter: bool
    state: MessageState


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What was found out about a message.

    Args:
        entity: path of its queue or subscription.
        facts: its settings and rules; None: they may not be read.
        before: of its session, what lies before it; None: it has no session.
        same_id: others with its MessageId in the queue and its dead letters.
        now: UTC epoch seconds.
        whole: all of the queue and its dead letters was looked through for them.
    """

    namespace: str
    entity: str
    received: Received
    facts: EntityFacts | None
    before: Sequence[Near] | None
    same_id: Sequence[Near]
    now: float
    whole: bool = True

    @property
    def settings(self) -> EntitySettings:
        """Of its entity; the service's defaults where they may not be read."""
        return EntitySettings() if self.facts is None else self.facts.settings


@dataclass(frozen=True, slots=True)
class MessageFact:
    """One thing about the message. `known`: False where it cannot be found out; the text says why."""

    about: str = field(metadata=column("About"))
    text: str = field(metadata=column("What is known"))
    known: bool = True


@dataclass(frozen=True, slots=True)
class ExplainedMessage:
    """A message explained, as `explain -o json` prints it."""

    namespace: str
    entity: str
    sequence_number: int
    dead_letter: bool
    cause: str
    """Why it lies there, as a word of the list in the help."""
    because: str
    """The same in plain words."""
    statements: tuple[MessageFact, ...]
    command: str
    """What to do next."""


def explain(known: MessageContext) -> ExplainedMessage:
    """Everything that is known of the message, the cause first."""
    summary = describe(known.received.payload)
    dead = is_dead_letter_path(known.received.source)
    cause, because, command = (_dead if dead else _alive)(known, summary)
    return ExplainedMessage(
        known.namespace,
        known.entity,
        known.received.sequence_number,
        dead,
        cause,
        because,
        tuple(_statements(known, summary, dead)),
        command.format(place=shlex.quote(f"{known.namespace}:{known.entity}"), number=known.received.sequence_number),
    )


_RESUBMIT = "sbpair dlq resubmit {place} --where 'sys.SequenceNumber = {number}'"
_EDIT = "sbpair edit {place} {number} --dlq"
_SHOW = "sbpair message show {place} {number}"
_SERVICE_REASONS = {
    "TTLExpiredException": ("expired", "its time to live ended before a consumer completed it", _RESUBMIT),
    "HeaderSizeExceeded": (
        "header-too-large",
        "its properties are larger than the 64 KB that the service keeps",
        _EDIT,
    ),
    "Session id is null.": ("no-session-id", "it has no session id, which its entity requires", _EDIT),
    "MaxTransferHopCountExceeded": (
        "too-many-hops",
        "it was forwarded from entity to entity more than four times: the entities may forward in a circle",
        "sbpair entity show {place}",
    ),
    "FilterEvaluationException": ("rule-failed", "a rule of the subscription could not be evaluated for it", _EDIT),
}
_OWN_REASONS = {
    "EntityNotFound": "destination-missing",
    "MessageTooLarge": "too-large-for-destination",
    "ArgumentRefused": "refused-by-destination",
    "NotABacklogMessage": "no-destination",
    "InvalidDestination": "invalid-destination",
    "Destination queue not indicated in message when fetched from backlog.": "no-destination",
    "The message cannot be delivered to the destination.": "refused-by-destination",
    "Invalid type in property.": "wrong-property-type",
}


def cause_of(received: Received, summary: MessageSummary) -> str:
    """The cause of a dead letter: one of few words, whatever reasons applications give."""
    return _dead(MessageContext("", received.source, received, None, None, (), 0.0), summary)[0]


def _dead(known: MessageContext, summary: MessageSummary) -> tuple[str, str, str]:
    reason, said = summary.dead_letter_reason, summary.dead_letter_description
    if reason is None:
        return (
            "unknown-reason",
            "it was dead-lettered without a reason: a consumer gave none, or a rule forwards dead letters here",
            _SHOW + " --dlq",
        )
    if reason == "MaxDeliveryCountExceeded":
        count, allowed = known.received.delivery_count, known.facts and known.facts.settings.max_delivery_count
        most = f", the most that {known.entity} allows" if allowed and count >= allowed else ""
        times = counted(count, "time") if count else f"as often as {known.entity} allowed"
        text = (
            f"it was delivered {times}{most}, and no consumer completed it: each one failed, or held its lock too long"
        )
        return "too-many-deliveries", text, _RESUBMIT
    if reason in _SERVICE_REASONS:
        return _SERVICE_REASONS[reason]
    if reason in _OWN_REASONS:
        meaning = meaning_of(reason, said) or reason
        return _OWN_REASONS[reason], meaning.partition(":" if "library" in meaning else ". ")[0].rstrip("."), _EDIT
    if "auto-forward" in reason.lower() or ("forward" in (said or "").lower() and "transfer" in reason.lower()):
        return "not-forwarded", f"it could not be forwarded: {said or reason}", "sbpair entity show {place}"
    origin = origin_of(summary)
    if origin.exception is not None:
        where = f" at {origin.frame}" if origin.frame else ""
        return "consumer-exception", f"a consumer failed with {origin.exception}{where}, and dead-lettered it", _EDIT
    text = f"a consumer dead-lettered it for the reason {quoted(reason)}" + (f": {said}" if said else "")
    return "consumer-rejected", text, _EDIT


def _alive(known: MessageContext, summary: MessageSummary) -> tuple[str, str, str]:
    received, settings = known.received, known.settings
    if received.state is MessageState.SCHEDULED:
        at = "" if summary.scheduled_at is None else f" at {spoken_time(summary.scheduled_at)}"
        return (
            "scheduled",
            f"it is scheduled, and becomes active{at}",
            "sbpair message reschedule {place} {number} TIME",
        )
    if received.state is MessageState.DEFERRED:
        text = "a consumer deferred it: it is received by its sequence number only, and stays until somebody does"
        return "deferred", text, "sbpair undefer {place} --where 'sys.SequenceNumber = {number}'"
    if settings.status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
        text = f"its entity is {settings.status}: consumers cannot receive from it"
        return "entity-disabled", text, "sbpair entity set-status {place} Active"
    if settings.forward_to:
        text = f"its entity forwards to {settings.forward_to}, and this message is not forwarded yet"
        return "waits-for-forwarding", text, "sbpair entity show {place}"
    if (ends := _ends(known, summary)) is not None and ends <= known.now:
        over = f"its time to live ended {_span(known.now - ends)} ago"
        text = f"{over}: no receiver gets it, and the service removes it later"
        return "expired-not-removed", text, "sbpair message complete {place} {number} --archive DIR"
    if settings.requires_session and summary.session_id is None:
        return "no-session-id", "it has no session id, which its entity requires", _EDIT.removesuffix(" --dlq")
    if (until := received.locked_until) is not None and until > known.now:
        return "locked", f"a receiver holds it until {spoken_time(until)}, unless it renews the lock", _SHOW
    deferred = [near for near in known.before or () if near.state is MessageState.DEFERRED]
    active = [near for near in known.before or () if near.state is MessageState.ACTIVE]
    if deferred and not active:
        text = f"its session has deferred messages before it, the first with the number {deferred[0].number}"
        return "behind-deferred", text, "sbpair undefer {place}"
    if active:
        stand = "stands" if len(active) == 1 else "stand"
        text = f"{counted(len(active), 'message')} of its session {stand} before it, first {active[0].number}"
        return "behind-in-session", text, "sbpair explain {place} " + str(active[0].number)
    if received.delivery_count:
        text = f"it was delivered {counted(received.delivery_count, 'time')} and given back: a consumer fails at it"
        return "fails-at-consumers", text, "sbpair message dead-letter {place} {number}"
    if summary.destination is not None:
        text = f"a paired client could not send it to {summary.destination}, and it waits for a drain"
        return "diverted", text, "sbpair drain"
    if summary.dead_letter_reason is not None:
        return "resubmitted", "it was a dead letter before, was sent again, and waits for a consumer", _SHOW
    return "waits", "it is active and waits for a consumer", "sbpair entity show {place}"


def _statements(known: MessageContext, summary: MessageSummary, dead: bool) -> Iterator[MessageFact]:
    received = known.received
    since = "" if received.enqueued_at is None else f" since {spoken_time(received.enqueued_at)}"
    kind = "a dead letter" if dead else str(received.state)
    yield MessageFact("place", f"{kind} of {known.entity} on {known.namespace}{since}, {summary.size_bytes:,} bytes")
    if summary.unreadable is not None:
        yield MessageFact("content", f"a part of it cannot be read: {summary.unreadable}", known=False)
    yield from _came_from(known, summary, dead)
    yield from _rules(known, summary)
    yield _time_to_live(known, summary, dead)
    if not dead:
        yield from _delivery(known, summary)
    elif summary.dead_letter_reason is not None:
        text = ": ".join(filter(None, (summary.dead_letter_reason, summary.dead_letter_description)))
        yield MessageFact("reason", text)
    most = "" if known.facts is None else f" of {known.settings.max_delivery_count:,}"
    yield MessageFact("deliveries", f"{received.delivery_count:,}{most}{' when it was dead-lettered' if dead else ''}")
    yield _same_id(known, summary)
    if not known.whole:
        yield MessageFact("neighbours", "more messages lie there than were looked through", known=False)


def _came_from(known: MessageContext, summary: MessageSummary, dead: bool) -> Iterator[MessageFact]:
    properties = summary.application_properties
    annotations = _annotations(known.received.payload)
    if summary.destination is not None:
        yield MessageFact("origin", f"diverted: a paired client meant it for {summary.destination} (x-ms-path)")
    source = annotations.get(_DEAD_LETTER_SOURCE)
    if source and not same_name(str(source), known.entity):
        yield MessageFact("origin", f"it was a dead letter of {source}, whose dead letters are forwarded")
    number = annotations.get(_ENQUEUED_AS)
    if isinstance(number, int) and number != known.received.sequence_number:
        text = f"it was enqueued with the number {number}: it was forwarded, dead-lettered, or scheduled before"
        yield MessageFact("origin", text)
    for name in _FAILED_QUEUES:
        if name in properties:
            yield MessageFact("origin", f"an application framework moved it here from {properties[name]} ({name})")
    if not dead and summary.dead_letter_reason is not None:
        yield MessageFact("origin", f"resubmitted: it was dead-lettered as {quoted(summary.dead_letter_reason)} before")
    if trace := properties.get("traceparent") or properties.get("Diagnostic-Id"):
        yield MessageFact("origin", f"its sender's trace is {trace}")
    topic = subscription_of(known.entity)
    if topic is not None:
        yield MessageFact("origin", f"sent to the topic {topic[0]}, or forwarded to it")
    yield MessageFact("sender", "who sent it is not recorded by the service", known=False)


def _annotations(payload: bytes) -> dict[str, Any]:
    try:
        return {str(name): value for name, value in EncodedMessage(payload).entries(Section.MESSAGE_ANNOTATIONS)}
    except MalformedMessageError:
        return {}


def _rules(known: MessageContext, summary: MessageSummary) -> Iterator[MessageFact]:
    if subscription_of(known.entity) is None:
        return
    if known.facts is None:
        yield MessageFact("rule", "which rule took it: the rules can be read with Manage only", known=False)
        return
    view = MessageOfRules(known.received.payload, summary)
    took = []
    for rule in known.facts.rules:
        with suppress(FilterEvaluationError, FilterSyntaxError):
            took += [rule] if condition_of(rule)(view) is True else []
    text = f"taken by the rule {', '.join(rule.name for rule in took)}"
    if acting := [rule.name for rule in took if rule.action]:
        text += f"; an action of {', '.join(acting)} may have changed it"
    never = "no rule matches it now: the rules were changed, or an action changed the message"
    yield MessageFact("rule", text if took else never)


def _ends(known: MessageContext, summary: MessageSummary) -> float | None:
    """When its time to live ends, as far as that is known."""
    both = (summary.ttl_seconds, known.settings.default_message_time_to_live_seconds)
    lives = [seconds for seconds in both if seconds is not None]
    begins = known.received.enqueued_at
    return None if begins is None or not lives else begins + min(lives)


def _time_to_live(known: MessageContext, summary: MessageSummary, dead: bool) -> MessageFact:
    if dead:
        return MessageFact("time to live", "dead letters do not expire; it starts again when it is sent again")
    ends = _ends(known, summary)
    if ends is None:
        untold = "it has none; that of its entity can be read with Manage only"
        known_now = known.facts is not None
        return MessageFact("time to live", "it does not expire" if known_now else untold, known_now)
    then = "removed without a trace"
    if known.facts is None:
        then = "dead-lettered or removed, which can be read with Manage only"
    elif known.settings.dead_lettering_on_message_expiration:
        then = "dead-lettered"
    if ends <= known.now:
        return MessageFact(
            "time to live", f"it ended {_span(known.now - ends)} ago, at {spoken_time(ends)}: it will be {then}"
        )
    return MessageFact(
        "time to live", f"it ends in {_span(ends - known.now)}, at {spoken_time(ends)}: then it is {then}"
    )


def _delivery(known: MessageContext, summary: MessageSummary) -> Iterator[MessageFact]:
    """Its lock, what stands before it, and who can take it."""
    until = known.received.locked_until
    if until is not None and until > known.now:
        text = f"held by a receiver until {spoken_time(until)}; the service does not say by whom"
        yield MessageFact("lock", text)
    elif known.received.state is not MessageState.ACTIVE:
        yield MessageFact("lock", "not locked: it is not delivered")
    else:
        yield MessageFact("lock", "whether a receiver holds it now: a browse does not show locks", known=False)
    if known.before is not None:
        states = [near.state for near in known.before]
        parts = ", ".join(f"{states.count(state):,} {state}" for state in MessageState if state in states)
        session = f"its session {quoted(summary.session_id or '')}"
        yield MessageFact("session", f"before it in {session}: {parts}" if parts else f"it is the first of {session}")
    if known.facts is None:
        yield MessageFact("receivers", "its entity's settings can be read with Manage only", known=False)
    else:
        who = "the receiver that holds its session" if known.settings.requires_session else "any receiver with Listen"
        yield MessageFact("receivers", f"{who} can take it; the entity is {known.settings.status}")
    yield MessageFact("receivers", "whether one is connected now: the service does not report it", known=False)


def _same_id(known: MessageContext, summary: MessageSummary) -> MessageFact:
    if not (summary.message_id or known.received.message_id):
        return MessageFact("duplicates", "it has no MessageId to find others by", known=False)
    if not known.same_id:
        return MessageFact("duplicates", "no other message with its MessageId is in the queue or its dead letters")
    places = [f"{near.number}{' (dead letter)' if near.dead_letter else ''}" for near in known.same_id[:5]]
    return MessageFact("duplicates", f"{counted(len(known.same_id), 'other')} of its MessageId: {', '.join(places)}")


def _span(seconds: float) -> str:
    return format_duration(round(seconds))
