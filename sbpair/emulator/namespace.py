"""One namespace: its entities by path, created, replaced and deleted under the service's rules.

Paths compare without regard to case and may contain `/`. A refused request raises `EntityError` and changes nothing.
Everything runs on one event loop; there are no locks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from sbpair.emulator import validation
from sbpair.emulator.broker.addresses import locate
from sbpair.emulator.broker.entity import Entity as AnyEntity
from sbpair.emulator.broker.journal import Journal
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.broker.transactions import Transactions
from sbpair.emulator.entities import (
    DEFAULT_RULE_NAME,
    ROOT_KEY_NAME,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    target_path,
)
from sbpair.emulator.filters import Rule
from sbpair.emulator.geo_replication import GeoReplication
from sbpair.emulator.keys import KeySource, random_keys
from sbpair.emulator.laws import Laws
from sbpair.emulator.throttling import Throttling
from sbpair.engine.auth import KeysOff, Rights, Signer
from sbpair.engine.budgets import Background
from sbpair.engine.clock import Clock
from sbpair.engine.errors import (
    SERVER_BUSY,
    STORE_FULL,
    BrokerError,
    EntityError,
    bad_request,
    conflict,
    not_found,
    quota_exceeded,
)
from sbpair.engine.faults import ActiveFault, Faults
from sbpair.engine.trace import Trace
from sbpair.service import Tier

__all__ = ["EntityError", "Namespace", "Tier"]

Entity = Queue | Topic
_Forwarding = TypeVar("_Forwarding", QueueDescription, SubscriptionDescription)
_Sendable = TypeVar("_Sendable", QueueDescription, TopicDescription)


Witness = Callable[[str, list[Message]], None]
"""Told of the messages that a queue, topic or subscription has taken in, before anybody receives them."""


class Replicate(Protocol):
    """Has an entity on another namespace as it is on this one."""

    def __call__(self, entity: Queue | Topic | Subscription, *, gone: bool) -> None: ...


class NamespaceStore(Journal):
    """A journal that also knows what an earlier process has left."""

    def restore(self, namespace: "Namespace") -> None:
        """Put it back, before the namespace serves anybody."""
        raise NotImplementedError


class Namespace:
    """The owner of all entities of one namespace.

    `clock` gives UTC epoch seconds and timers, `faults` decides on injected trouble, `store` (optional) keeps entities
    and messages beyond the process; what it holds is restored here. `endpoint` is set by the server once it listens.
    `trace` keeps the last frames of its connections, if one is given before they are opened. `key_source` gives
    the keys of the rules that are made with the namespace. `laws` says by name which laws of the service it keeps in
    another form than strictly (`emulator.laws`), and does not change afterwards.
    """

    def __init__(
        self,
        name: str,
        *,
        tier: Tier = Tier.STANDARD,
        premium_partitions: int = 1,
        clock: Clock,
        faults: Faults | None = None,
        store: NamespaceStore | None = None,
        key_source: KeySource | None = None,
        laws: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.key_source: KeySource = random_keys if key_source is None else key_source
        self.laws = Laws(tier, laws)
        self.premium_partitions = premium_partitions
        self.clock = clock
        self.faults = faults if faults is not None else Faults(clock)
        self.journal: Journal = store if store is not None else Journal()
        self.endpoint = ""
        self.host = "localhost"
        self.port = 0
        self.geo_replication: GeoReplication | None = None
        self.read_only = False
        """While a planned promotion of its secondary goes on."""
        self.service_address: str | None = None
        """Where it listens on the service's own port, if no other namespace can have that."""
        self.public_host: str | None = None
        """The host name that its server certificate was asked for, if there is one."""
        self.messaging_units = premium_partitions if tier is Tier.PREMIUM else 0
        self.allow_entra = True
        self.keys_allowed = True
        self.entra_rights: dict[str, Rights] = {}
        self.auth_rules: dict[str, AuthorizationRule] = {}
        self.key_watchers: set[Callable[[], None]] = set()
        self.disaster_recovery_configs: dict[str, dict[str, Any]] = {}
        self.recovery_partner: Namespace | None = None
        self.recovery_watchers: set[Callable[[], None]] = set()
        self.replicate: Replicate | None = None
        self.alias_rules: dict[str, AuthorizationRule] = {}
        self.created_at = self.updated_at = clock.now()
        self.trace: Trace | None = None
        self.throttling: Throttling | None = None
        self.witnesses: list[Witness] = []
        self.background = Background()
        self._entities: dict[str, Entity] = {}
        self.transactions = Transactions(clock, self.laws)
        self.faults.listen(self._faults_changed)
        self.set_auth_rule(
            new_auth_rule(ROOT_KEY_NAME, {"Manage", "Send", "Listen"}, keys=self.key_source(ROOT_KEY_NAME))
        )
        if store is not None:
            store.restore(self)

    @property
    def tier(self) -> Tier:
        return self.laws.tier

    @tier.setter
    def tier(self, tier: Tier) -> None:
        self.laws = Laws(tier, self.laws.bent)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What connections are offered if they ask: JMS 2.0, which Premium has, with its delivery delay."""
        return ("DELAYED_DELIVERY",) if self.laws.delivery_delay else ()

    @property
    def partition_count(self) -> int:
        """Of a partitioned entity. All entities of a Premium namespace with partitions are."""
        return self.premium_partitions if self.tier is Tier.PREMIUM else self.laws.partition_count

    def closed_partitions(self, path: str) -> frozenset[int]:
        """The partitions of an entity that a fault has taken away."""
        return self.faults.closed_partitions(path)

    def _faults_changed(self, begun: ActiveFault | None) -> None:
        """Partitions may have come back."""
        if begun is not None:
            return
        for entity in self._entities.values():
            if entity.numbering.partitioned:
                holders = [entity] if isinstance(entity, Queue) else entity.subscriptions.values()
                for mailbox in (mailbox for holder in holders for mailbox in holder.mailboxes):
                    mailbox.resume()

    @property
    def _partitioned(self) -> bool:
        return self.tier is Tier.PREMIUM and self.premium_partitions > 1

    # -- keys

    def set_auth_rule(self, rule: AuthorizationRule) -> AuthorizationRule:
        """Create or replace a shared access rule of the whole namespace."""
        self.auth_rules[rule.name] = validation.authorization_rule(self.laws, rule)
        self.journal.put_settings()
        self._keys_changed()
        return rule

    def delete_auth_rule(self, name: str) -> None:
        """Remove a rule of the namespace; tokens signed with it end at once, and links that stand on them."""
        if self.auth_rules.pop(name, None) is None:
            raise not_found(f"The authorization rule '{name}' does not exist.")
        self.journal.put_settings()
        self._keys_changed()

    def choose_keys(self, keys: Mapping[str, str]) -> None:
        """Give rules that are there already (a store may have brought them) these primary keys."""
        for name, key in keys.items():
            rule = self.auth_rules.get(name)
            if rule is not None and rule.primary_key != key:
                self.set_auth_rule(replace(rule, primary_key=key))

    def entity_exists(self, path: str) -> bool:
        """Whether an address leads to an entity, its sub-queues and `$management` included ("" is the namespace)."""
        return not path or locate(self, path) is not None

    def auth_rules_for(self, path: str) -> dict[str, AuthorizationRule]:
        """The rules of a path by name: the namespace's, and the entity's own which win by name."""
        return self.auth_rules | {rule.name: rule for rule in self._own_rules(path)[1]}

    def signers(self, path: str) -> Sequence[Signer]:
        """Whose keys may sign a token for `path`: the entity's own, then the namespace's, then those that came with an
        alias; of one name all."""
        if not self.keys_allowed:
            return KeysOff() if self.laws.local_auth_disabled else ()
        entity, own = self._own_rules(path)
        return [
            *(Signer(rule, entity) for rule in own),
            *map(Signer, (*self.auth_rules.values(), *self.alias_rules.values())),
        ]

    def allow_keys(self, allowed: bool) -> None:
        """Whether keys may sign tokens at all (`disableLocalAuth` of the resource manager); links they opened go."""
        if allowed is not self.keys_allowed:
            self.keys_allowed = allowed
            self._keys_changed()

    def _own_rules(self, path: str) -> tuple[str, tuple[AuthorizationRule, ...]]:
        """The queue or topic that a path is in or below, and its rules. `orders/eu` is not below `orders`."""
        entity = self.find(path.lower().split("/subscriptions/")[0].split("/$")[0])
        return ("", ()) if entity is None else (entity.path.lower(), entity.description.authorization_rules)

    def _keys_changed(self) -> None:
        """Let everybody who acts on a token look whether its key is still there."""
        for watcher in list(self.key_watchers):
            watcher()

    # -- queues and topics

    def find(self, path: str) -> Entity | None:
        """The queue or topic at `path`, whatever its case."""
        return self._entities.get(path.replace("\\", "/").strip("/").lower())

    def get_queue(self, path: str) -> Queue | None:
        entity = self.find(path)
        return entity if isinstance(entity, Queue) else None

    def get_topic(self, path: str) -> Topic | None:
        entity = self.find(path)
        return entity if isinstance(entity, Topic) else None

    def queues(self) -> list[Queue]:
        """All queues, by path."""
        return [entity for _, entity in sorted(self._entities.items()) if isinstance(entity, Queue)]

    def topics(self) -> list[Topic]:
        """All topics, by path."""
        return [entity for _, entity in sorted(self._entities.items()) if isinstance(entity, Topic)]

    def create_queue(
        self, path: str, description: QueueDescription | None = None, *, named: Collection[str] = ()
    ) -> Queue:
        """Make a queue. `named` are the properties the request spelled out, which matters where a tier refuses them.

        Raises EntityError: 400 for a bad name or setting, 409 if the path is taken, 403 when the namespace is full.
        """
        path = self._new_path(path)
        wished = self._in_partitions(description or QueueDescription())
        checked = validation.queue(wished, self.laws, named, partitioned=self._partitioned)
        checked = self._forwarding(checked)
        self._check_room(checked.enable_partitioning)
        queue = Queue(self, path, checked)
        self._entities[path.lower()] = queue
        self._kept(queue)
        return queue

    def update_queue(self, path: str, description: QueueDescription, *, named: Collection[str] = ()) -> Queue:
        """Replace the whole description. Raises EntityError 404, or 400 for a bad or create-only change."""
        queue = self._existing_queue(path)
        wished = validation.update(self.laws, queue.description, self._in_partitions(description))
        checked = validation.queue(wished, self.laws, named, partitioned=self._partitioned)
        queue.update(self._forwarding(checked))
        self._kept(queue)
        self._keys_changed()
        return queue

    def delete_queue(self, path: str) -> None:
        """Delete a queue with all it holds; its links are detached. Raises EntityError 404."""
        self._drop(self._existing_queue(path))

    def create_topic(
        self, path: str, description: TopicDescription | None = None, *, named: Collection[str] = ()
    ) -> Topic:
        """Make a topic; errors as for `create_queue`."""
        path = self._new_path(path)
        wished = self._in_partitions(description or TopicDescription())
        checked = validation.topic(wished, self.laws, named, partitioned=self._partitioned)
        self._check_room(checked.enable_partitioning)
        topic = Topic(self, path, checked)
        self._entities[path.lower()] = topic
        self._kept(topic)
        return topic

    def update_topic(self, path: str, description: TopicDescription, *, named: Collection[str] = ()) -> Topic:
        """Replace the whole description; errors as for `update_queue`."""
        topic = self._existing_topic(path)
        wished = validation.update(self.laws, topic.description, self._in_partitions(description))
        topic.update(validation.topic(wished, self.laws, named, partitioned=self._partitioned))
        self._kept(topic)
        self._keys_changed()
        return topic

    def delete_topic(self, path: str) -> None:
        """Delete a topic and its subscriptions. Raises EntityError 404."""
        self._drop(self._existing_topic(path))

    # -- subscriptions

    def get_subscription(self, topic: str, name: str) -> Subscription | None:
        found = self.get_topic(topic)
        return found.subscriptions.get(name.lower()) if found else None

    def subscriptions(self, topic: str) -> list[Subscription]:
        """All subscriptions of a topic, by name. Raises EntityError 404 without the topic."""
        return [one for _, one in sorted(self._existing_topic(topic).subscriptions.items())]

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        *,
        rule_name: str = DEFAULT_RULE_NAME,
        rule: RuleDescription | None = None,
    ) -> Subscription:
        """Make a subscription with one rule: the given one, or `$Default` which matches everything."""
        parent = self._existing_topic(topic)
        name = validation.child_name(self.laws, name, kind="subscription")
        if name.lower() in parent.subscriptions:
            raise conflict(f"The messaging entity '{parent.path}/Subscriptions/{name}' already exists.")
        most = self.laws.max_subscriptions_per_topic
        if len(parent.subscriptions) >= most:
            raise quota_exceeded(f"The topic '{parent.path}' has its {most} subscriptions.")
        checked = validation.subscription(self.laws, description or SubscriptionDescription())
        checked = self._forwarding(checked)
        first_rule = validation.rule(self.laws, rule or RuleDescription())
        validation.child_name(self.laws, rule_name, kind="rule")
        subscription = Subscription(self, parent, name, checked)
        subscription.set_rule(Rule(rule_name, first_rule, self.clock.now()))
        parent.subscriptions[name.lower()] = subscription
        parent.touch()  # its AccessedAt is not "never" then (azure-sdk-for-net, GetTopicRuntimeInfo)
        self._kept(subscription)
        return subscription

    def update_subscription(self, topic: str, name: str, description: SubscriptionDescription) -> Subscription:
        """Replace the whole description; rules stay. Raises EntityError 404 or 400."""
        subscription = self._existing_subscription(topic, name)
        checked = validation.subscription(
            self.laws, validation.update(self.laws, subscription.description, description)
        )
        subscription.update(self._forwarding(checked))
        self._kept(subscription)
        return subscription

    def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription with all it holds. Raises EntityError 404."""
        subscription = self._existing_subscription(topic, name)
        del subscription.topic.subscriptions[subscription.name.lower()]
        subscription.delete()
        self._dropped(subscription)

    # -- rules

    def get_rule(self, topic: str, subscription: str, name: str) -> Rule | None:
        found = self.get_subscription(topic, subscription)
        return found.rules.get(name.lower()) if found else None

    def rules(self, topic: str, subscription: str) -> list[Rule]:
        """All rules of a subscription, by name."""
        return [rule for _, rule in sorted(self._existing_subscription(topic, subscription).rules.items())]

    def create_rule(self, topic: str, subscription: str, name: str, description: RuleDescription) -> Rule:
        """Add a rule. Raises EntityError 400 for text that cannot be parsed, 409 for a taken name."""
        owner = self._existing_subscription(topic, subscription)
        validation.child_name(self.laws, name, kind="rule")
        if name.lower() in owner.rules:
            raise conflict(f"The messaging entity '{owner.path}/Rules/{name}' already exists.")
        most = self.laws.max_rules_per_subscription
        if len(owner.rules) >= most:
            raise quota_exceeded(f"The subscription '{owner.path}' has its {most} rules.")
        return self._put_rule(owner, Rule(name, validation.rule(self.laws, description), self.clock.now()))

    def update_rule(self, topic: str, subscription: str, name: str, description: RuleDescription) -> Rule:
        """Replace a rule's filter and action; its creation time stays. Raises EntityError 404 or 400."""
        owner = self._existing_subscription(topic, subscription)
        old = self._existing_rule(owner, name)
        return self._put_rule(owner, Rule(old.name, validation.rule(self.laws, description), old.created_at))

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Remove a rule; a subscription without rules matches nothing. Raises EntityError 404."""
        owner = self._existing_subscription(topic, subscription)
        self._existing_rule(owner, name)
        del owner.rules[name.lower()]
        self._kept(owner)

    def _put_rule(self, owner: Subscription, rule: Rule) -> Rule:
        owner.set_rule(rule)
        self._kept(owner)
        return rule

    # -- for the broker's own parts

    def adopt(self, entity: Entity) -> None:
        """Put an entity back that the store remembered, without checks."""
        self._entities[entity.path.lower()] = entity

    def expire_idle(self, entity: AnyEntity) -> None:
        """Auto-delete on idle has struck: delete the entity as its owner would."""
        if isinstance(entity, Subscription):
            self.delete_subscription(entity.topic.path, entity.name)
        elif isinstance(entity, Queue | Topic) and self._entities.get(entity.path.lower()) is entity:
            self._drop(entity)

    def close(self) -> None:
        """End all timers and the store; the namespace is of no use afterwards."""
        self.transactions.close()
        self.background.close()
        for entity in self._entities.values():
            entity.delete()
        self._entities.clear()
        self.journal.close()

    def when_durable(self, action: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Run `action` once everything written so far is safe: at once without a store; see `Journal.after_commit`."""
        self.journal.after_commit(action, otherwise)

    def took_in(self, path: str, messages: list[Message]) -> None:
        """Tell the witnesses of messages that have been accepted."""
        for witness in self.witnesses:
            witness(path, messages)

    def charge(self, credits: int, size_bytes: int = 0) -> None:
        """Pay for a client's request, where requests cost something (BrokerError server-busy); see `throttling`."""
        if self.throttling is not None:
            self.throttling.charge(credits, size_bytes)

    def check_store(self) -> None:
        """Refuse (BrokerError server-busy) what could not be kept at present, before anything has changed."""
        if self.read_only:
            raise BrokerError(SERVER_BUSY, "The namespace is read only while its secondary is promoted. Please retry.")
        if self.journal.failure is not None:
            raise BrokerError(SERVER_BUSY, f"{STORE_FULL} Nothing was changed. Please wait 10 seconds and try again.")

    def replicate_geo(self, lag_seconds: float | None) -> None:
        """Have another region that is so far behind; None: none."""
        if self.geo_replication is not None:
            self.journal, self.geo_replication = self.geo_replication.journal, None
        if lag_seconds is not None:
            self.geo_replication = GeoReplication(self, lag_seconds)
            self.journal = cast(Journal, self.geo_replication)

    # -- inside

    def _kept(self, entity: Entity | Subscription) -> None:
        """An entity is new or has changed."""
        self.journal.put_entity(entity)
        if self.replicate is not None:
            self.replicate(entity, gone=False)

    def _dropped(self, entity: Entity | Subscription) -> None:
        self.journal.drop_entity(entity)
        if self.replicate is not None:
            self.replicate(entity, gone=True)

    def _drop(self, entity: Entity) -> None:
        del self._entities[entity.path.lower()]
        entity.delete()
        self._dropped(entity)

    def _new_path(self, path: str) -> str:
        path = validation.entity_path(self.laws, path)
        if path.lower() in self._entities:
            raise conflict(f"The messaging entity '{path}' already exists in the namespace '{self.name}'.")
        return path

    def _in_partitions(self, description: _Sendable) -> _Sendable:
        """In a Premium namespace with partitions there are no other entities, whatever is asked for."""
        return replace(description, enable_partitioning=True) if self._partitioned else description

    def _check_room(self, partitioned: bool) -> None:
        if len(self._entities) >= self.laws.max_entities:
            raise quota_exceeded(f"The namespace holds its maximum of {self.laws.max_entities} queues and topics.")
        if not partitioned or self._partitioned:
            return
        count = sum(entity.description.enable_partitioning for entity in self._entities.values())
        most = self.laws.max_partitioned_entities
        if count >= most:
            raise quota_exceeded(f"The namespace holds its maximum of {most} partitioned queues and topics.")

    def _forwarding(self, description: _Forwarding) -> _Forwarding:
        """Forwarding targets that exist; the entity itself is one: the hop limit ends the circle. Bare paths, but for
        one given as https://, which reads back as it was given (azure-sdk-for-go, TestAdminClient_Queue_Forwarding)."""
        forward_to = self._target(description.forward_to)
        dead_letters_to = self._target(description.forward_dead_lettered_messages_to)
        return replace(description, forward_to=forward_to, forward_dead_lettered_messages_to=dead_letters_to)

    def _target(self, target: str | None) -> str | None:
        if not target:
            return None
        path = target_path(target)
        if self.find(path) is None and self.laws.forwarding_target_exists:
            raise bad_request(f"The forwarding destination '{path}' does not exist; create it first.")
        return target if target.startswith("https://") and self.laws.forwarding_scheme else path

    def _existing_queue(self, path: str) -> Queue:
        queue = self.get_queue(path)
        if queue is None:
            raise not_found(f"The messaging entity '{path}' could not be found in the namespace '{self.name}'.")
        return queue

    def _existing_topic(self, path: str) -> Topic:
        topic = self.get_topic(path)
        if topic is None:
            raise not_found(f"The messaging entity '{path}' could not be found in the namespace '{self.name}'.")
        return topic

    def _existing_subscription(self, topic: str, name: str) -> Subscription:
        subscription = self._existing_topic(topic).subscriptions.get(name.lower())
        if subscription is None:
            raise not_found(f"The messaging entity '{topic}/Subscriptions/{name}' could not be found.")
        return subscription

    @staticmethod
    def _existing_rule(owner: Subscription, name: str) -> Rule:
        rule = owner.rules.get(name.lower())
        if rule is None:
            raise not_found(f"The messaging entity '{owner.path}/Rules/{name}' could not be found.")
        return rule


def new_auth_rule(name: str, rights: Collection[str], *, keys: tuple[str, str] | None = None) -> AuthorizationRule:
    """A shared access rule with these keys, the primary one first; with fresh random ones if none are given."""
    primary, secondary = random_keys(name) if keys is None else keys
    return AuthorizationRule(
        name=name,
        rights=frozenset(rights),
        primary_key=primary,
        secondary_key=secondary,
    )
