"""What the rules of a topic's subscriptions take, why a message is not taken, and what none of them takes.

A subscription takes a message if the condition of one of its rules is true for it, and while it may be sent to: a
disabled one takes nothing, and one with ReceiveDisabled does ("Topic filters and actions", "Suspend and reactivate
messaging entities").
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sbpair.amqp.sections import TEXT_FIELDS, Section
from sbpair.core.encoded import EncodedMessage
from sbpair.core.entities import EntityFacts, RuleFacts
from sbpair.core.errors import MalformedMessageError
from sbpair.core.names import subscription_of
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, column
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.words import counted, listed
from sbpair.sqlfilter.complement import Complement, NotWritable, can_fail, complement_of, failing_parts, value_text
from sbpair.sqlfilter.expressions import Expression, MessageView
from sbpair.sqlfilter.parser import Draft, correlation, parse_changes, parse_filter
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError

MOST_SQL_CHARACTERS = 1024
"""Of a filter ("Service Bus quotas")."""
CATCH_ALL_RULE = "sbpair-unmatched-"
"""How the rule of a catch-all subscription begins; the rest says which rules it is the complement of."""
_BY_THE_SERVICE = (
    "sequencenumber", "enqueuedsequencenumber", "deliverycount", "deadlettersource", "enqueuedtimeutc", "expiresatutc",
    "state",
)  # fmt: skip


def condition_of(rule: RuleFacts) -> Expression:
    """Its filter.

    Raises:
        FilterSyntaxError: it cannot be parsed.
    """
    if rule.sql is None:
        return correlation(dict(rule.correlation), dict(rule.properties))
    return parse_filter(rule.sql, dict(rule.parameters))


class MessageOfRules(MessageView):
    """A message as rules see it when it is sent to a topic."""

    def __init__(self, payload: bytes, summary: MessageSummary | None = None) -> None:
        self._summary = summary = summary or describe(payload)
        self._user = {name.lower(): value for name, value in summary.application_properties.items()}
        self._system: dict[str, object] = {
            "sessionid": summary.session_id,
            "partitionkey": summary.partition_key,
            "timetolive": summary.ttl_seconds,
            "scheduledenqueuetimeutc": None if summary.scheduled_at is None else int(summary.scheduled_at * 1000),
            "size": summary.size_bytes,
        }
        try:
            message = EncodedMessage(payload)
            fields = {name: message.field(Section.PROPERTIES, index) for name, index in TEXT_FIELDS.items()}
        except MalformedMessageError:
            fields = {}
        for name, value in fields.items():
            self._system.setdefault(name.replace("_", ""), None if value is None else str(value))
        self._system["label"] = summary.subject

    def user(self, name: str) -> object:
        return self._user.get(name.lower(), UNKNOWN)

    def system(self, name: str) -> object:
        if name.lower() in _BY_THE_SERVICE:
            raise FilterEvaluationError(f"sys.{name} is set by the service when it accepts the message.")
        if name.lower() not in self._system:
            raise FilterEvaluationError(f"There is no system property '{name}'.")
        value = self._system[name.lower()]
        return UNKNOWN if value is None else value


class Takes(StrEnum):
    """Whether a rule takes a message."""

    YES = "yes"
    NO = "no"
    FAILS = "fails"
    """Its filter or action cannot be evaluated for it."""


@dataclass(frozen=True, slots=True)
class TestedRule:
    """A rule, and what it says of a message."""

    __test__ = False
    subscription: str = field(metadata=column("Subscription"))
    rule: str | None = field(metadata=column("Rule"))
    """None: the subscription takes nothing, whatever its rules say."""
    takes: Takes = field(metadata=column("Takes it"))
    because: tuple[str, ...] = field(metadata=column("Because"))
    """Each part of the filter that is not true with what the message has; empty where the rule takes it."""
    changes: tuple[str, ...] = field(metadata=column("Changes"))
    """What its action makes of the copy."""


def tested(subscriptions: Iterable[EntityFacts], view: MessageView) -> tuple[TestedRule, ...]:
    """Every rule of the subscriptions, asked about a message."""
    return tuple(
        rule
        for facts in subscriptions
        for rule in (
            (_not_taking(facts),)
            if not facts.settings.status.may_send or not facts.rules
            else tuple(_tested(facts, rule, view) for rule in facts.rules)
        )
    )


def _not_taking(facts: EntityFacts) -> TestedRule:
    status = facts.settings.status
    why = "it has no rule" if status.may_send else f"the subscription is {status}, and gets no messages"
    return TestedRule(_name(facts), None, Takes.NO, (why,), ())


def _tested(facts: EntityFacts, rule: RuleFacts, view: MessageView) -> TestedRule:
    try:
        condition = condition_of(rule)
        takes, failing = condition(view) is True, tuple(failing_parts(condition, view))
        changes = _changes(rule, view) if takes else ()
    except (FilterEvaluationError, FilterSyntaxError) as error:
        then = facts.settings.dead_lettering_on_filter_evaluation_exceptions
        fate = "a copy is dead-lettered" if then else "the subscription drops it"
        return TestedRule(_name(facts), rule.name, Takes.FAILS, (f"{error} For such a message {fate}.",), ())
    return TestedRule(_name(facts), rule.name, Takes.YES if takes else Takes.NO, failing, changes)


def _changes(rule: RuleFacts, view: MessageView) -> tuple[str, ...]:
    if rule.action is None:
        return ()
    draft = Draft(view)
    draft.carry_out(parse_changes(rule.action, dict(rule.action_parameters)))
    removed = [f"{name} is removed" for name in sorted(draft.removed - set(draft.properties))]
    set_ = [_change(name, view.user(name), value) for name, value in draft.properties.values()]
    own = [_change(f"sys.{name}", view.system(name), value) for name, value in draft.fields.items()]
    return (*own, *set_, *removed)


def _change(name: str, before: object, after: object) -> str:
    return f"{name}: {value_text(before)} -> {value_text(UNKNOWN if after is None else after)}"


def _name(facts: EntityFacts) -> str:
    found = subscription_of(facts.path)
    return facts.path if found is None else found[1]


# What no rule takes.


def is_catch_all(facts: EntityFacts) -> bool:
    """Whether it is a subscription for what the others do not take."""
    return any(rule.name.startswith(CATCH_ALL_RULE) for rule in facts.rules)


@dataclass(frozen=True, slots=True)
class CatchAll:
    """The rule that takes what no rule of a topic takes, or why there is none."""

    rule: RuleFacts | None
    problem: str | None
    """Why the rule cannot be made, and what can be done."""
    notes: tuple[str, ...] = ()
    """What it does not cover, and which subscriptions do not count."""
    nothing_left: bool = False
    """The rules take every message."""


def catch_all_of(subscriptions: Sequence[EntityFacts]) -> CatchAll:
    """The complement of all rules of all subscriptions that take messages, other catch-alls apart."""
    asked = [facts for facts in subscriptions if not is_catch_all(facts)]
    taking = [facts for facts in asked if facts.settings.status.may_send]
    disabled = [_name(facts) for facts in asked if not facts.settings.status.may_send]
    notes = [f"Disabled, so taking nothing: {listed(disabled)}."] if disabled else []
    rules = [(facts, rule) for facts in taking for rule in facts.rules]
    conditions: list[Expression] = []
    for facts, rule in rules:
        try:
            conditions.append(condition_of(rule))
            complement_of(conditions[-1:])
        except (NotWritable, FilterSyntaxError) as error:
            problem = f"Rule {rule.name} of {_name(facts)} has no complement that a filter can say: {error}."
            return CatchAll(None, problem, tuple(notes))
    failing = [rule.name for (_, rule), one in zip(rules, conditions, strict=True) if can_fail(one)]
    if failing:
        notes.append(f"Rules that calculate may fail for a message, and so may the catch-all: {listed(failing)}.")
    found = complement_of(conditions)
    notes += [f"Not covered: messages with {gap}." for gap in found.gaps]
    if len(found.sql) > MOST_SQL_CHARACTERS:
        return CatchAll(None, _too_long(found, len(rules)), tuple(notes))
    values = tuple(sorted(found.parameters.items()))
    name = CATCH_ALL_RULE + hashlib.sha256(f"{found.sql}{values}".encode()).hexdigest()[:12]
    rule = RuleFacts(name, found.sql, parameters=values)  # type: ignore[arg-type]  # they came out of rules
    return CatchAll(rule, None, tuple(notes), found.is_nothing)


def _too_long(found: Complement, rules: int) -> str:
    return (
        f"What none of {counted(rules, 'rule')} takes is a filter of {len(found.sql):,} characters, and the service "
        f"takes {MOST_SQL_CHARACTERS:,}. A subscription takes what any of its rules takes, so this cannot be cut into "
        "several: it has to be one filter. Shorter is what compares one property with many values, which "
        "become one list; otherwise let senders set a property that says who takes the message, or look at messages "
        "with --archive or --peek."
    )


@dataclass(frozen=True, slots=True)
class TestedMessage:
    """What `rules test -o json` prints."""

    __test__ = False
    namespace: str
    topic: str
    taken_by: tuple[str, ...]
    """Subscriptions with a rule that takes it."""
    rules: tuple[TestedRule, ...]

    @property
    def exit(self) -> Exit:
        return Exit.OK if self.taken_by else Exit.FINDINGS

    def summary(self) -> str:
        total = len({rule.subscription for rule in self.rules})
        if self.taken_by:
            return f"{len(self.taken_by)} of {counted(total, 'subscription')} of {self.topic} would take it."
        return f"None of {counted(total, 'subscription')} of {self.topic} would take it: the service drops it."


@dataclass(frozen=True, slots=True)
class UnmatchedMessage:
    """A message that no subscription takes."""

    source: str = field(metadata=column("From"))
    sequence_number: int = field(metadata=column("Number", right=True))
    message_id: str | None = field(metadata=column("Message id"))
    subject: str | None = field(metadata=column("Subject"))
    fails: bool = field(metadata=column("A filter fails"))
    """For some rule it cannot be evaluated, so a copy may be dead-lettered."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """What `rules unmatched -o json` prints."""

    namespace: str
    topic: str = field(metadata=column("Topic"))
    filter: str | None = field(metadata=column("What no rule takes"))
    """The filter that takes what no rule takes; null if there is none."""
    problem: str | None
    notes: tuple[str, ...]
    catch_all: str | None = field(metadata=column("Catch-all"))
    """The catch-all subscription that exists."""
    looked_at: int | None
    """Messages; null: none were asked for."""
    messages: tuple[UnmatchedMessage, ...]
    whole: bool
    """False: there were more than were looked at."""
    nothing_left: bool = field(metadata=HIDDEN)

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.messages else Exit.OK

    def summary(self) -> str:
        left = "" if self.whole else " There are more than were looked at."
        if self.looked_at is not None:
            found = counted(len(self.messages), "message")
            return f"{found} of {self.looked_at:,} would be taken by no subscription of {self.topic}.{left}"
        if self.nothing_left:
            return f"The rules of {self.topic} take every message."
        return f"What no subscription of {self.topic} takes: {self.filter or 'no filter can say it.'}"
