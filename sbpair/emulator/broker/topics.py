"""Topics and subscriptions: a message sent to a topic is copied to each subscription whose rules match.

Rules without an action together make one copy; each matching rule with an action makes one of its own, changed by the
action. A filter that fails to evaluate dead-letters a copy where the subscription asks for it.

A topic may have millions of rules. They are gone through in slices of time before anything changes (`Topic.accepting`,
`Topic.publishing`); then all subscriptions take their copies at once.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.emulator import validation
from sbpair.emulator.broker.entity import MessageEntity, Quota
from sbpair.emulator.broker.intake import Accepting, Intake
from sbpair.emulator.broker.messages import Message, MessageLog, MessageStateCode
from sbpair.emulator.broker.partitions import Numbering
from sbpair.emulator.entities import RuleDescription, StateCounts, SubscriptionDescription, TopicDescription
from sbpair.emulator.filters import BrokerMessageView, FilterEvaluationError, Rule
from sbpair.engine import errors
from sbpair.engine.budgets import finish
from sbpair.engine.clock import Timer
from sbpair.engine.errors import BrokerError, conflict, not_found, quota_exceeded
from sbpair.service import EntityStatus

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace

# Scheduled messages of a topic: they wait in the topic itself and are published when their time comes.

PLACE = "scheduled"


class Scheduled:
    """The waiting messages by sequence number; `publish` is called with each when it is due, and what is offered of it
    to the subscriptions."""

    def __init__(self, topic: "Topic", publish: Callable[[Message, "Sequence[Offer]"], None]) -> None:
        self._topic = topic
        self._publish = publish
        self.log = MessageLog()
        self._timers: dict[int, Timer] = {}

    def add(self, message: Message) -> None:
        """Keep a message until its time."""
        self.place_quietly(message)
        self._topic.namespace.journal.put_message(self._topic, PLACE, message)

    def place_quietly(self, message: Message) -> None:
        """Keep a message without telling the store: for `add` and for a restart."""
        clock = self._topic.namespace.clock
        self.log.add(message)
        self._topic.quota.used_bytes += len(message.payload)
        due = message.head.scheduled_at or clock.now()
        self._timers[message.sequence_number] = clock.call_at(due, lambda: self._strike(message))

    def cancel(self, numbers: list[int]) -> None:
        """Delete messages by number, all or none (BrokerError message-not-found)."""
        for message in self.find(numbers):
            self._take_out(message)

    def find(self, numbers: list[int]) -> list[Message]:
        """The messages with these numbers, or BrokerError message-not-found."""
        chosen = []
        for number in dict.fromkeys(numbers):
            message = self.log.get(number)
            if message is None:
                raise BrokerError(errors.MESSAGE_NOT_FOUND, f"There is no scheduled message with the number {number}.")
            chosen.append(message)
        return chosen

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _take_out(self, message: Message) -> None:
        self._timers.pop(message.sequence_number).cancel()
        self.log.remove(message)
        self._topic.quota.used_bytes -= len(message.payload)
        self._topic.namespace.journal.drop_message(message)

    def _strike(self, message: Message) -> None:
        self._topic.namespace.background.do(self._publishing(message))

    def _publishing(self, message: Message) -> Iterator[None]:
        """Publish it under a new number, unless it is cancelled while the rules are gone through."""
        active = message.copy()
        active.enqueued_at = self._topic.namespace.clock.now()
        active.sequence_number = self._topic.reserve(active)
        if active.enqueued_sequence_number is None:
            active.enqueued_sequence_number = active.sequence_number
        offers = yield from self._topic.evaluating(active)
        if self.log.get(message.sequence_number) is message:
            self._take_out(message)
            self._publish(active, offers)


@dataclass(slots=True)
class Offer:
    """What a subscription is to take of a message: copies, or a dead letter where a rule could not be evaluated."""

    subscription: "Subscription"
    copies: list[Message] = field(default_factory=list)
    failure: str | None = None


class Topic(Accepting):
    """One topic. `subscriptions` by lower-case name. All its subscriptions share its size quota."""

    description: TopicDescription

    def __init__(self, namespace: "Namespace", path: str, description: TopicDescription) -> None:
        self.description = description
        super().__init__(namespace, path)
        self.subscriptions: dict[str, Subscription] = {}
        self.quota = Quota(description.max_size_in_megabytes, namespace.laws)
        self.numbering = Numbering(
            partitions=namespace.partition_count if description.enable_partitioning else 1,
            laws=namespace.laws,
            by_message_id=description.requires_duplicate_detection,
        )
        self.scheduled = Scheduled(self, self._publish)
        self.intake = Intake(self, description, self.quota)
        self.watch_idle()

    @property
    def takes_steps(self) -> bool:
        """A rule or two, as nearly all topics have, are a step anyway."""
        found = self.subscriptions
        return len(found) > 2 or sum(len(one.rules) for one in found.values()) > 2

    @property
    def status(self) -> EntityStatus:
        return self.description.status

    def counts(self) -> StateCounts:
        """Only scheduled messages stay in a topic; the size is that of its subscriptions' messages with them."""
        return StateCounts(0, 0, len(self.scheduled.log), 0, 0, self.quota.used_bytes)

    def update(self, description: TopicDescription) -> None:
        """Replace the description; it acts at once."""
        old, self.description = self.description, description
        self.changed()
        self.intake.describe(description)
        if description.status is not old.status and not description.status.may_send:
            self.detach_links("com.microsoft:entity-disabled", f"Messaging entity '{self.path}' is currently disabled.")
        self.watch_idle()

    def cancel_scheduled(self, numbers: list[int]) -> None:
        self.scheduled.cancel(numbers)

    def check_scheduled(self, numbers: list[int]) -> None:
        self.scheduled.find(numbers)

    def reserve(self, message: Message) -> int:
        return self.numbering.next(message, self.closed_partitions)

    def delete(self) -> None:
        super().delete()
        self.scheduled.close()
        for subscription in self.subscriptions.values():
            subscription.delete()

    def preparing(
        self, messages: list[Message], turn: int | None = None
    ) -> Generator[None, None, dict[Message, Sequence[Offer]]]:
        prepared: dict[Message, Sequence[Offer]] = {}
        size_bytes = 0
        for message in messages:
            if not message.head.is_ping and not self._is_early(message):
                self.numbering.transfer_turn = turn
                self._number(message)
                self.numbering.transfer_turn = None
                offers = yield from self.evaluating(message)
                size_bytes += sum(len(copy.payload) for offer in offers for copy in offer.copies)
                self.quota.check(size_bytes, self.path)
                prepared[message] = offers
            yield
        return prepared

    def arrive(self, message: Message, reserved: int = 0, prepared: Sequence[Offer] | None = None) -> None:
        if prepared is not None:
            self._publish(message, prepared)
        elif self._is_early(message):
            message.sequence_number = reserved or self.reserve(message)
            message.enqueued_at = self.namespace.clock.now()
            message.state = MessageStateCode.SCHEDULED
            self.scheduled.add(message)
        else:
            self._number(message, reserved)
            self._publish(message, finish(self.evaluating(message)))

    def evaluating(self, message: Message) -> Generator[None, None, list[Offer]]:
        """Ask all rules; a step for each. What the subscriptions are to take comes back, and nothing has changed."""
        view = BrokerMessageView(message)
        offers = []
        for subscription in list(self.subscriptions.values()):
            offers.append((yield from subscription.evaluating(message, view)))
        return offers

    def _is_early(self, message: Message) -> bool:
        due = message.head.scheduled_at
        return due is not None and due > self.namespace.clock.now()

    def _number(self, message: Message, reserved: int = 0) -> None:
        message.sequence_number = reserved or self.reserve(message)
        message.enqueued_at = self.namespace.clock.now()
        if message.enqueued_sequence_number is None:
            message.enqueued_sequence_number = message.sequence_number

    def _publish(self, message: Message, offers: Sequence[Offer]) -> None:
        self.namespace.journal.put_numbers(self)
        for offer in offers:
            if self.subscriptions.get(offer.subscription.name.lower()) is offer.subscription:
                offer.subscription.take(message, offer, self.description.default_message_time_to_live_seconds)


class Subscription(MessageEntity):
    """One subscription of a topic. `path` is `<topic>/Subscriptions/<name>`; `rules` by lower-case name."""

    description: SubscriptionDescription

    def __init__(self, namespace: "Namespace", topic: Topic, name: str, description: SubscriptionDescription) -> None:
        self.description = description
        self.topic = topic
        self.name = name
        self.rules: dict[str, Rule] = {}
        self._cap_seconds: float | None = None
        super().__init__(
            namespace,
            f"{topic.path}/Subscriptions/{name}",
            sessions=description.requires_session,
            quota=topic.quota,
            numbering=Numbering(
                partitions=namespace.partition_count if topic.description.enable_partitioning else 1,
                laws=namespace.laws,
            ),
        )
        self.used_at = self.created_at  # the service tells no time of "never" for subscriptions
        self.watch_idle()

    @property
    def top_path(self) -> str:
        return self.topic.top_path

    @property
    def size_in_bytes(self) -> int:
        """A subscription reports no size of its own; the topic does."""
        return 0

    def rule(self, name: str) -> Rule:
        """A rule, whatever the case of its name. EntityError 404 if there is none."""
        rule = self.rules.get(name.lower())
        if rule is None:
            raise not_found(f"The messaging entity '{self.path}/Rules/{name}' could not be found.")
        return rule

    def add_rule(self, name: str, description: RuleDescription) -> None:
        """Add one of a new name. EntityError 400 for a bad name or text, 409 for a taken name, 403 when full."""
        laws = self.namespace.laws
        validation.child_name(laws, name, kind="rule")
        if name.lower() in self.rules:
            raise conflict(f"The messaging entity '{self.path}/Rules/{name}' already exists.")
        if len(self.rules) >= laws.max_rules_per_subscription:
            raise quota_exceeded(f"The subscription '{self.path}' has its {laws.max_rules_per_subscription} rules.")
        self.set_rule(Rule(name, validation.rule(laws, description), self.namespace.clock.now()))

    def set_rule(self, rule: Rule) -> None:
        """Add or replace a rule."""
        self.rules[rule.name.lower()] = rule
        self.updated_at = self.namespace.clock.now()

    def update(self, description: SubscriptionDescription) -> None:
        """Replace the description; it acts at once."""
        old, self.description = self.description, description
        self.changed()
        self.apply_status(old.status)
        self.watch_idle()
        self.wake()

    def evaluating(self, message: Message, view: BrokerMessageView) -> Generator[None, None, Offer]:
        """Find out what the rules want of a message; a step for each rule."""
        offer = Offer(self)
        if not self.status.may_send:
            return offer
        try:
            matching = []
            for rule in list(self.rules.values()):
                if rule.matches(view):
                    matching.append(rule)
                yield
            if any(rule.action is None for rule in matching):
                offer.copies.append(message.copy())
            for rule in matching:
                if rule.action is not None:
                    offer.copies.append(rule.changed(view))
                    yield
        except FilterEvaluationError as error:
            return Offer(self, failure=str(error))
        return offer

    def take(self, message: Message, offer: Offer, cap_seconds: float | None) -> None:
        """Take what was found out before; `cap_seconds` is the topic's default time to live."""
        if not self.status.may_send:
            return
        self._cap_seconds = cap_seconds
        if offer.failure is None:
            for copy in offer.copies:
                self._take(copy)
        elif self.description.dead_lettering_on_filter_evaluation_exceptions and self.namespace.laws.failed_filter:
            self._dead_letter_unevaluated(message.copy(), offer.failure)

    def _take(self, copy: Message) -> None:
        self.namespace.took_in(self.path, [copy])
        if self.requires_session and copy.head.session_id is None:
            copy.sequence_number = self.numbering.next(copy, self.closed_partitions)
            copy.enqueued_at = self.namespace.clock.now()
            self.dead_letter(
                copy, "Session ID is null.", "Session enabled entity doesn't allow a message without session."
            )
        else:
            self.enqueue(copy)

    def _dead_letter_unevaluated(self, copy: Message, text: str) -> None:
        copy.sequence_number = self.numbering.next(copy, self.closed_partitions)
        copy.enqueued_at = self.namespace.clock.now()
        self.dead_letter(copy, "FilterEvaluationException", text)

    def _expiry(self, message: Message) -> float | None:
        own = super()._expiry(message)
        if self._cap_seconds is None:
            return own
        cap = message.enqueued_at + self._cap_seconds
        return cap if own is None else min(own, cap)
