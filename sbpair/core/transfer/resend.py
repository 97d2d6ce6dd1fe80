"""Dead letters and other messages of any entity: which may be sent where, judged before the first one is touched.

What a destination will not take, or would take and drop, stays where it lies, with the reason: a message in hand is
worth more than one that a service accepted and threw away.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches

from sbpair.core.durations import format_duration
from sbpair.core.editing import Repair
from sbpair.core.entities import EntityFacts, RuleFacts
from sbpair.core.errors import EntityNotFoundError, MalformedMessageError, SbpairError, UsageError
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.names import is_dead_letter_path, same_name, subscription_of
from sbpair.core.redact import quoted
from sbpair.core.rewrite import as_sent
from sbpair.core.rules import MessageOfRules, Takes, tested
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.transfer.custody import PURGED
from sbpair.core.transfer.filters import EVERYTHING, SYSTEM_PROPERTIES, MessageFilter
from sbpair.core.transfer.report import FILTERED_OUT
from sbpair.core.transfer.state import Finish, Forward, Key, Leave, Verdict, key_of
from sbpair.core.transfer.verdict import MOST_NAMES, DeadLetterCauses, DestinationSeen, Judge, fault_of
from sbpair.core.words import counted
from sbpair.service import EntityStatus

CAME_LATER = "came after this run had looked"
"""A consumer that dead-letters what is sent to it again would otherwise keep the run going for ever."""
LATER_STEP = "its turn has not come"
NOT_PLANNED = "the plan does not have it"
NEEDS_SESSION = "the destination requires a session id"
NO_TIME_TO_LIVE = "its time to live is zero: it would expire at once"
SAME_ID = "another message of this run has the same MessageId: the duplicate detection would drop it"
UNREADABLE = "it is not an AMQP message"
TOO_LARGE = "it is too large for the destination"
DUPLICATE = "the duplicate detection would drop it"
SHORT_SECONDS = 600.0
"""A message that lives no longer, once it is sent, is worth a word: its consumers have to be there."""
DUE_SECONDS = 60.0
COPY = "would get a copy"
DUE = "scheduled for the next minute: it might become active here and there; run this again then"
HELD = "another receiver holds its session"
OTHER_STATE = "its session has another state at the destination, or got one meanwhile"
STATE_STAYS = "the state of a session, which the destination does not keep"
NOT_REACHED = "not reached before the run ended"
NOT_SCHEDULED = "no longer scheduled when its turn came: it became active or was cancelled"
IN_DOUBT = "the commit was not answered: it was moved, or is still scheduled here"
PRESENT = f"{DUPLICATE}: the destination got a message with the same MessageId not long ago"


def refuse_destination(
    seen: DestinationSeen,
    namespace: str,
    *,
    label: str | None = None,
    despite_duplicate_detection: bool = False,
    state: str = "Nothing was moved.",
) -> None:
    """Stop before the first message where the destination takes none, hands all of them on, or may drop some unseen.

    Args:
        namespace: as it is told.
        label: the same as it is typed.
        state: how things stand then.

    Raises:
        SbpairError: it does not exist, cannot be opened, is disabled or full, or forwards to another entity.
        UsageError: it detects duplicates, and nobody said that it may drop what it has got before.
    """
    typed = f"{label or namespace}:{seen.path}"
    if seen.error is not None:
        if isinstance(seen.error, EntityNotFoundError):
            created = shlex.join(["sbpair", "entity", "create", typed])
            seen.error.hint = f"{seen.error.hint} If it is to be there, create it: {created}"
        raise seen.error.with_state(state)
    found = seen.queue.settings.status if seen.queue else seen.topic.status if seen.topic else None
    if found in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
        raise SbpairError(
            f"{seen.path} on {namespace} is disabled for senders. {state}",
            hint=f"If it may work again: sbpair entity set-status {shlex.quote(typed)} Active",
        )
    if seen.queue is not None and (target := seen.queue.settings.forward_to):
        raise UsageError(
            f"{seen.path} on {namespace} forwards what it gets to {target}. {state}",
            hint="Name the entity where the messages are to lie.",
        )
    if (window := window_of(seen)) is not None and not despite_duplicate_detection:
        raise UsageError(
            f"{seen.path} on {namespace} detects duplicates: it drops a message whose MessageId it got "
            f"within {format_duration(window)}, and the ones that its consumers received are not visible. {state}",
            hint="Name another entity, or add --despite-duplicate-detection if such a message may be dropped.",
        )


def window_of(seen: DestinationSeen) -> float | None:
    """Seconds for which the destination remembers MessageIds; None: it does not, or nobody could ask."""
    queue, topic = seen.queue, seen.topic
    if queue is not None and queue.settings.requires_duplicate_detection:
        return queue.settings.duplicate_detection_history_time_window_seconds
    if topic is not None and topic.requires_duplicate_detection:
        return topic.duplicate_detection_history_time_window_seconds
    return None


def stays(reason: str) -> bool:
    """Whether a message left for this reason would be left by the same command again."""
    return reason.startswith(DUPLICATE) or reason in (
        FILTERED_OUT,
        NEEDS_SESSION,
        NO_TIME_TO_LIVE,
        OTHER_STATE,
        SAME_ID,
        STATE_STAYS,
        TOO_LARGE,
        UNREADABLE,
    )


class Seen:
    """Which reasons and application properties the messages have that a selection was asked about."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.properties: set[str] = set()

    def add(self, summary: MessageSummary) -> None:
        """Take in one message; no more names than are worth a suggestion."""
        reason = fault_of(summary)
        if len(self.reasons) < MOST_NAMES or reason in self.reasons:
            self.reasons[reason] += 1
        if len(self.properties) < MOST_NAMES:
            self.properties.update(summary.application_properties)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of an entity are dealt with: those that match the filter, were dead-lettered for one of these
    reasons, whose case does not matter, and are in one of these states; no reasons, no states: all."""

    filter: MessageFilter = EVERYTHING
    reasons: Collection[str] = ()
    states: Collection[MessageState] = ()
    seen: Seen = field(default_factory=Seen, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reasons", frozenset(reason.lower() for reason in self.reasons))

    @property
    def is_set(self) -> bool:
        """Whether any message is left out."""
        return self.filter.is_set or bool(self.reasons or self.states)

    def selects(self, received: Received, summary: MessageSummary) -> bool:
        """Raises UsageError as `MessageFilter.wants`."""
        if self.states and received.state not in self.states:
            return False
        if self.reasons or self.filter.where is not None:
            self.seen.add(summary)
        if self.reasons and fault_of(summary).lower() not in self.reasons:
            return False
        return self.filter.wants(received, summary)

    @property
    def advice(self) -> tuple[str, ...]:
        """After nothing was selected: which of the names that were asked for no message has, and which look alike."""
        found = []
        there = {reason.lower(): reason for reason in self.seen.reasons}
        for reason in sorted(set(self.reasons) - there.keys()) if there else ():
            known = ", ".join(f"{name} ({count:,})" for name, count in self.seen.reasons.most_common(5))
            found.append(f"No message there has the reason {quoted(reason)}.{_near(reason, there)} There are: {known}.")
        names = {name.lower(): name for name in sorted(self.seen.properties)}
        where = self.filter.where
        for name in sorted(where.properties) if where is not None and (names or there) else ():
            if name.lower() not in names:
                near = _near(name, names) or _near(name, {one.lower(): f"sys.{one}" for one in SYSTEM_PROPERTIES})
                found.append(f"No message there has the application property {quoted(name)}.{near}")
        return tuple(found)


def _near(name: str, known: Mapping[str, str]) -> str:
    alike = get_close_matches(name.lower(), known, n=1)
    return f" Did you mean {quoted(known[alike[0]])}?" if alike else ""


ALL_MESSAGES = Selection()


@dataclass(eq=False)
class Resender:
    """Sends messages as their application sent them to one destination, as far as it will keep them."""

    seen: DestinationSeen
    """What was learnt about the destination."""
    selection: Selection
    _: KW_ONLY
    same_entity: bool
    """The messages were sent to it before, so that its duplicate detection may know them."""
    now: Callable[[], float]
    """The present moment in UTC epoch seconds."""
    recent: Collection[str] = frozenset()
    """MessageIds that it was seen to have got within the window of its duplicate detection."""
    keep: bool = False
    """The messages stay where they are as well (a copy)."""
    _faults: DeadLetterCauses = field(default_factory=DeadLetterCauses, init=False)
    _first_with_id: dict[str, Key] = field(default_factory=dict, init=False)
    _short_lived: dict[Key, float] = field(default_factory=dict, init=False)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What those who send these messages may not expect."""
        if not self._short_lived:
            return ()
        first, within = format_duration(min(self._short_lived.values())), format_duration(SHORT_SECONDS)
        messages = len(self._short_lived)
        return (
            f"{counted(messages, 'message')} {'expires' if messages == 1 else 'expire'} within {within} of being sent, "
            f"the first after {first}: a time to live starts again, and the consumers have to be there.",
        )

    def __call__(self, received: Received) -> Verdict:
        return self.judge(received, received.payload)

    def selects(self, received: Received) -> bool:
        """Whether the selection takes it."""
        return self.selection.selects(received, describe(received.payload))

    def judge(self, received: Received, payload: bytes) -> Verdict:
        """What is to become of a message that is sent as `payload`."""
        summary = describe(received.payload)
        if not self.selection.selects(received, summary):
            return Leave(FILTERED_OUT)
        dead = is_dead_letter_path(received.queue)
        try:
            sent = as_sent(payload, from_dead_letter=dead)
        except MalformedMessageError:
            return Leave(UNREADABLE)
        queue, limit = self.seen.queue, self.seen.limit_bytes
        if limit is not None and len(sent.payload) > limit:
            return Leave(TOO_LARGE)
        if queue is not None and queue.settings.requires_session and sent.session_id is None:
            return Leave(NEEDS_SESSION)
        if sent.ttl_ms == 0:
            return Leave(NO_TIME_TO_LIVE)
        if (
            received.state is MessageState.SCHEDULED
            and not self.keep
            and (sent.scheduled_at or 0.0) < self.now() + DUE_SECONDS
        ):
            return Leave(DUE)
        if why := self._as_duplicate(received, sent.message_id):
            return Leave(why)
        fault = self._faults.name(summary) if dead else None
        if (
            received.state is not MessageState.SCHEDULED
            and (seconds := self._lives_seconds(sent.ttl_ms)) < SHORT_SECONDS
        ):
            self._short_lived[key_of(received)] = seconds
        return Forward(sent.payload, self.seen.path, sent.session_id, sent.partition_key, fault)

    def _lives_seconds(self, ttl_ms: int | None) -> float:
        """How long a message will live there: its own time to live, or the destination's if that is shorter."""
        queue = self.seen.queue
        of_queue = None if queue is None else queue.settings.default_message_time_to_live_seconds
        own = None if ttl_ms is None else ttl_ms / 1000
        return min((one for one in (own, of_queue) if one is not None), default=math.inf)

    def _as_duplicate(self, received: Received, message_id: str | None) -> str | None:
        window = window_of(self.seen)
        if window is None or not message_id:
            return None
        if message_id in self.recent:
            return PRESENT
        if self._first_with_id.setdefault(message_id, key_of(received)) != key_of(received):
            return SAME_ID
        if self.same_entity and received.enqueued_at is not None and self.now() < received.enqueued_at + window:
            until = datetime.fromtimestamp(received.enqueued_at + window, UTC)
            return f"{DUPLICATE} until {until:%Y-%m-%d %H:%M} UTC"
        return None


class OnlyFor:
    """Sends to a topic what its rules give to one of its subscriptions and to no other, unchanged; all else stays.

    Args:
        resender: says whether the topic takes a message.
        path: of the subscription.
        subscriptions: all of the topic's, with their rules.
    """

    def __init__(self, resender: Judge, path: str, subscriptions: Sequence[EntityFacts]) -> None:
        self._resender = resender
        # One that is disabled may be active by the time a message comes.
        found = [replace(one, settings=replace(one.settings, status=EntityStatus.ACTIVE)) for one in subscriptions]
        self._mine = [one for one in found if same_name(one.path, path)]
        self._others = [one for one in found if not same_name(one.path, path)]
        self._changing = {rule.name for one in self._mine for rule in one.rules if rule.action is not None}
        self.rules = rules_of(subscriptions)

    @property
    def remarks(self) -> tuple[str, ...]:
        return self._resender.remarks if isinstance(self._resender, Resender) else ()

    def __call__(self, received: Received) -> Verdict:
        verdict = self._resender(received)
        if not isinstance(verdict, Forward):
            return verdict
        if received.state is MessageState.SCHEDULED:
            return Leave("scheduled: which subscriptions get it is decided when it is due")
        if verdict.session_id is None and any(one.settings.requires_session for one in self._mine):
            return Leave(NEEDS_SESSION)
        view = MessageOfRules(verdict.payload)
        for one in tested(self._others, view):
            if one.takes is not Takes.NO:
                return Leave(f"{one.subscription} {COPY}, by its rule {one.rule}")
        takes = [one for one in tested(self._mine, view) if one.takes is not Takes.NO]
        if not takes:
            return Leave("no rule of the subscription matches it")
        for one in takes:
            if one.takes is Takes.FAILS or one.rule in self._changing:
                return Leave(f"rule {one.rule} of the subscription would change it")
        return verdict


def rules_of(subscriptions: Iterable[EntityFacts]) -> dict[str, tuple[tuple[RuleFacts, ...], bool, str | None]]:
    """All that decides which subscriptions get what, to be compared with the same at another time."""
    return {
        one.path.lower(): (one.rules, one.settings.requires_session, one.settings.forward_to) for one in subscriptions
    }


def follower(received: Received) -> Verdict:
    """Sends a message as its application sent it to the queue of the same name on another namespace."""
    if is_dead_letter_path(received.queue) or subscription_of(received.queue) is not None:
        return Leave(LATER_STEP)
    try:
        sent = as_sent(received.payload)
    except MalformedMessageError:
        return Leave(UNREADABLE)
    if sent.ttl_ms == 0:
        return Leave(NO_TIME_TO_LIVE)
    return Forward(sent.payload, received.queue, sent.session_id, sent.partition_key)


class Settler:
    """Settles one message as it is told; all others stay."""

    def __init__(self, key: Key, verdict: Finish) -> None:
        self._key = key
        self._verdict = verdict

    def __call__(self, received: Received) -> Verdict:
        return self._verdict if key_of(received) == self._key else Leave(FILTERED_OUT)


class Editor:
    """Sends a few messages in another form; all others stay.

    Args:
        resender: says whether the destination takes the new form.
        forms: their new forms, by their keys.
    """

    def __init__(self, resender: Resender, forms: Mapping[Key, bytes]) -> None:
        self._resender = resender
        self._forms = forms

    @property
    def remarks(self) -> tuple[str, ...]:
        return self._resender.remarks

    def __call__(self, received: Received) -> Verdict:
        payload = self._forms.get(key_of(received))
        return Leave(FILTERED_OUT) if payload is None else self._resender.judge(received, payload)


SHOWN_DIFFERENCES = 3


class Repairer:
    """Sends messages with the changes of one repair; what it does not change keeps its bytes."""

    def __init__(self, resender: Resender, repair: Repair) -> None:
        self._resender = resender
        self._repair = repair
        self.changed: dict[Key, tuple[str, ...]] = {}
        """What the destination will get in another form; of the first few messages how they differ."""

    @property
    def remarks(self) -> tuple[str, ...]:
        return self._resender.remarks

    def __call__(self, received: Received) -> Verdict:
        """Raises UsageError: a property has a type that its new value does not fit."""
        if not self._resender.selects(received):
            return Leave(FILTERED_OUT)
        try:
            form = self._repair.form_of(received)
        except MalformedMessageError:
            return Leave(UNREADABLE)
        if form is None:
            return self._resender(received)
        verdict = self._resender.judge(received, form.payload)
        if isinstance(verdict, Forward):
            self.changed.setdefault(key_of(received), form.diff if len(self.changed) < SHOWN_DIFFERENCES else ())
        return verdict


class Purger:
    """Deletes the messages that are meant."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __call__(self, received: Received) -> Verdict:
        if self._selection.is_set and not self._selection.selects(received, describe(received.payload)):
            return Leave(FILTERED_OUT)
        return Finish(Disposition.COMPLETE, PURGED)


class Archiver:
    """Keeps the exact bytes of the messages that are meant; `destination`: where `restore` sends them."""

    def __init__(self, selection: Selection, destination: str) -> None:
        self._selection = selection
        self._destination = destination

    def __call__(self, received: Received) -> Verdict:
        summary = describe(received.payload)
        if not self._selection.selects(received, summary):
            return Leave(FILTERED_OUT)
        return Forward(received.payload, summary.destination or self._destination)


class Planned:
    """Another judge, which judges while a dry run browses and is held to it afterwards: what was not seen then is left,
    and a message gets the answer that was shown. `takes_later`: it is held to nothing, since what comes later is meant
    as well."""

    def __init__(self, judge: Judge, *, takes_later: bool = False) -> None:
        self._judge = judge
        self._takes_later = takes_later
        self._left: dict[Key, Leave] = {}
        self._meant: dict[Key, bool] = {}
        """Whether they have neither a session id nor a partition key."""
        self._settled = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was learnt about the messages that their senders may not expect."""
        return self._judge.remarks if isinstance(self._judge, Resender | Editor | Repairer | OnlyFor) else ()

    @property
    def repairs(self) -> Repairer | None:
        """The judge, if it repairs."""
        return self._judge if isinstance(self._judge, Repairer) else None

    @property
    def only_for(self) -> OnlyFor | None:
        """The judge, if it sends to one subscription."""
        return self._judge if isinstance(self._judge, OnlyFor) else None

    @property
    def chosen(self) -> int:
        """Messages that will be dealt with."""
        return len(self._meant)

    @property
    def without_key(self) -> int:
        """Of these, the ones that have neither a session id nor a partition key."""
        return sum(self._meant.values())

    @property
    def keys(self) -> tuple[Key, ...]:
        """Of these, in the order in which they were seen."""
        return tuple(self._meant)

    def some(self, keys: Iterable[Key], *, others: str = LATER_STEP) -> "Planned":
        """Held to these of them. `others`: why the others are left."""
        part = Planned(self._judge)
        part._meant = {key: self._meant[key] for key in keys}
        part._left = {**dict.fromkeys(self._meant, Leave(others)), **self._left}
        part.settle()
        return part

    def settle(self) -> None:
        """The dry run is over."""
        self._settled = True

    def __call__(self, received: Received) -> Verdict:
        key = key_of(received)
        held = self._settled and not self._takes_later
        if held and key not in self._meant:
            return self._left.get(key, Leave(CAME_LATER))
        verdict = self._judge(received)
        if held:
            return verdict
        if isinstance(verdict, Leave):
            self._left[key] = verdict
        elif key not in self._meant:
            keyed = isinstance(verdict, Forward) and (verdict.session_id, verdict.partition_key) != (None, None)
            self._meant[key] = not keyed
        return verdict
