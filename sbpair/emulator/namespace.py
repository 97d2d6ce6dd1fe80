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
from sbpair.emulator.broker.intake import Identity
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.sessions import MessageSession
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
from sbpair.emulator.geo import GeoReplication, mailboxes
from sbpair.emulator.keys import KeySource, random_keys
from sbpair.emulator.laws import Laws
from sbpair.emulator.throttling import Throttling
from sbpair.emulator.validation import Sendable
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
from sbpair.engine.wire import Trace
from sbpair.service import Tier

__all__ = ["EntityError", "Namespace", "Tier"]

Entity = Queue | Topic
_Found = TypeVar("_Found", bound=Entity)
_Forwarding = TypeVar("_Forwarding", QueueDescription, SubscriptionDescription)


Witness = Callable[[str, list[Message]], None]
"""Told of the messages that a queue, topic or subscription has taken in, before anybody receives them."""


class Replicate(Protocol):
    """Has an entity on another namespace as it is on this one."""

    def __call__(self, entity: Queue | Topic | Subscription, *, gone: bool) -> None: ...


class ChangeJournal:
    """What a durable store is told: notes of changes, in order. Nothing is safe before `after_commit` has called back.

    As it stands it keeps nothing: everything lives in memory alone, and counts as safe at once. A store overrides all
    of it.
    """

    failure: str | None = None
    """Why nothing can be kept at present (a full disk); None while all is well."""

    def put_entity(self, entity: AnyEntity) -> None:
        """An entity is new or its description (or rules) changed."""

    def drop_entity(self, entity: AnyEntity) -> None:
        """An entity is gone, with all messages and sessions in it."""

    def put_message(self, entity: AnyEntity, place: str, message: Message) -> None:
        """A message is new in `place` of an entity, has moved there, or has changed."""

    def drop_message(self, message: Message) -> None:
        """A message is gone."""

    def put_numbers(self, entity: AnyEntity) -> None:
        """An entity has given a number to a message that it does not keep itself."""

    def put_session(self, entity: AnyEntity, session: MessageSession) -> None:
        """A session's state has changed; None means there is nothing to keep."""

    def put_duplicate(self, entity: AnyEntity, identity: Identity, until: float) -> None:
        """A message id is known to duplicate detection until then."""

    def put_settings(self) -> None:
        """Keys or aliases of the namespace may have changed."""

    def after_commit(self, action: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Call back once everything noted so far is safe; at once when it already is. Calls keep their order.

        When it cannot be made safe for the time being, `otherwise` is called instead, if there is one; what was noted
        is still tried, so nobody knows then whether it will be safe.
        """
        action()

    def close(self) -> None:
        """Nothing more will come."""


class NamespaceStore(ChangeJournal):
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
        self.journal: ChangeJournal = store if store is not None else ChangeJournal()
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
        self.entra_rights: dict[str, Rights] = {}
        self.access = SharedAccess(self)
        self.key_watchers = self.access.watchers
        self.disaster_recovery_configs: dict[str, dict[str, Any]] = {}
        self.recovery_partner: Namespace | None = None
        self.recovery_watchers: set[Callable[[], None]] = set()
        self.replicate: Replicate | None = None
        self.created_at = self.updated_at = clock.now()
        self.trace: Trace | None = None
        self.throttling: Throttling | None = None
        self.witnesses: list[Witness] = []
        self.background = Background()
        self._entities: dict[str, Entity] = {}
        self._admission = Admission(self)
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

    def _faults_changed(self, begun: ActiveFault | None) -> None:
        """Partitions may have come back."""
        for box in mailboxes(self) if begun is None else ():
            if box.entity.is_partitioned:
                box.resume()

    # -- keys

    @property
    def auth_rules(self) -> dict[str, AuthorizationRule]:
        """The shared access rules of the whole namespace, by name."""
        return self.access.rules

    def set_auth_rule(self, rule: AuthorizationRule) -> AuthorizationRule:
        return self.access.put(rule)

    def signers(self, path: str) -> Sequence[Signer]:
        """Whose keys may sign a token for `path`; see `SharedAccess`."""
        return self.access.signers(path)

    def entity_exists(self, path: str) -> bool:
        """Whether an address leads to an entity, its sub-queues and `$management` included ("" is the namespace)."""
        return not path or locate(self, path) is not None

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
        return cast(Queue, self.create(path, description or QueueDescription(), named=named))

    def update_queue(self, path: str, description: QueueDescription, *, named: Collection[str] = ()) -> Queue:
        return cast(Queue, self.update(path, description, named=named))

    def delete_queue(self, path: str) -> None:
        """Delete a queue with all it holds; its links are detached. Raises EntityError 404."""
        self._drop(self._existing(path, Queue))

    def create_topic(
        self, path: str, description: TopicDescription | None = None, *, named: Collection[str] = ()
    ) -> Topic:
        return cast(Topic, self.create(path, description or TopicDescription(), named=named))

    def delete_topic(self, path: str) -> None:
        """Delete a topic and its subscriptions. Raises EntityError 404."""
        self._drop(self._existing(path, Topic))

    def create(self, path: str, description: Sendable, *, named: Collection[str] = ()) -> Entity:
        """Make a queue or topic. `named` are the properties the request spelled out, which matters where a tier refuses
        them.

        Raises EntityError: 400 for a bad name or setting, 409 if the path is taken, 403 when the namespace is full.
        """
        path = self._admission.new_path(path)
        checked = self._admission.entity(description, named)
        entity = Queue(self, path, checked) if isinstance(checked, QueueDescription) else Topic(self, path, checked)
        self._entities[path.lower()] = entity
        self._kept(entity)
        return entity

    def update(self, path: str, description: Sendable, *, named: Collection[str] = ()) -> Entity:
        """Replace the whole description. Raises EntityError 404, or 400 for a bad or create-only change."""
        kind: type[Queue] | type[Topic] = Queue if isinstance(description, QueueDescription) else Topic
        entity = self._existing(path, kind)
        replace_description: Callable[[Any], None] = entity.update
        replace_description(self._admission.entity(description, named, entity.description))
        self._kept(entity)
        self.access.changed()
        return entity

    def delete(self, path: str) -> None:
        """Delete a queue or topic, whichever is there. Raises EntityError 404."""
        found = self.find(path)
        self._drop(self._existing(path, Queue if found is None else type(found)))

    # -- subscriptions

    def get_subscription(self, topic: str, name: str) -> Subscription | None:
        found = self.get_topic(topic)
        return found.subscriptions.get(name.lower()) if found else None

    def subscriptions(self, topic: str) -> list[Subscription]:
        """All subscriptions of a topic, by name. Raises EntityError 404 without the topic."""
        return [one for _, one in sorted(self._existing(topic, Topic).subscriptions.items())]

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
        parent = self._existing(topic, Topic)
        name = validation.child_name(self.laws, name, kind="subscription")
        if name.lower() in parent.subscriptions:
            raise conflict(f"The messaging entity '{parent.path}/Subscriptions/{name}' already exists.")
        most = self.laws.max_subscriptions_per_topic
        if len(parent.subscriptions) >= most:
            raise quota_exceeded(f"The topic '{parent.path}' has its {most} subscriptions.")
        checked = self._admission.subscription(description or SubscriptionDescription())
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
        subscription.update(self._admission.subscription(description, subscription.description))
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
        owner.add_rule(name, description)
        self._kept(owner)
        return owner.rule(name)

    def update_rule(self, topic: str, subscription: str, name: str, description: RuleDescription) -> Rule:
        """Replace a rule's filter and action; its creation time stays. Raises EntityError 404 or 400."""
        owner = self._existing_subscription(topic, subscription)
        old = owner.rule(name)
        owner.set_rule(Rule(old.name, validation.rule(self.laws, description), old.created_at))
        self._kept(owner)
        return owner.rule(name)

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Remove a rule; a subscription without rules matches nothing. Raises EntityError 404."""
        owner = self._existing_subscription(topic, subscription)
        del owner.rules[owner.rule(name).name.lower()]
        self._kept(owner)

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
        """Run `action` once all that was written so far is safe, at once without a store; see `ChangeJournal`."""
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
            self.journal = cast(ChangeJournal, self.geo_replication)

    def all_entities(self) -> Collection[Entity]:
        """Queues and topics, in no order."""
        return self._entities.values()

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

    def _existing(self, path: str, kind: type[_Found]) -> _Found:
        entity = self.find(path)
        if not isinstance(entity, kind):
            raise not_found(f"The messaging entity '{path}' could not be found in the namespace '{self.name}'.")
        return entity

    def _existing_subscription(self, topic: str, name: str) -> Subscription:
        subscription = self._existing(topic, Topic).subscriptions.get(name.lower())
        if subscription is None:
            raise not_found(f"The messaging entity '{topic}/Subscriptions/{name}' could not be found.")
        return subscription


def delete_all(namespace: Namespace) -> None:
    for entity in list(namespace.all_entities()):
        namespace.delete(entity.path)


def expire_due(namespace: Namespace) -> None:
    """Drop what has expired now: the service does when somebody receives, or some time later."""
    subscriptions = [one for topic in namespace.topics() for one in topic.subscriptions.values()]
    for entity in (*namespace.queues(), *subscriptions):
        entity.main.expire_due()


def new_auth_rule(name: str, rights: Collection[str], *, keys: tuple[str, str] | None = None) -> AuthorizationRule:
    """A shared access rule with these keys, the primary one first; with fresh random ones if none are given."""
    primary, secondary = random_keys(name) if keys is None else keys
    return AuthorizationRule(name=name, rights=frozenset(rights), primary_key=primary, secondary_key=secondary)


class SharedAccess:
    """The shared access rules of a namespace, and whose keys may sign tokens. `watchers` look after each change whether
    the key that they act on is still there."""

    def __init__(self, namespace: "Namespace") -> None:
        self.rules: dict[str, AuthorizationRule] = {}
        self.alias_rules: dict[str, AuthorizationRule] = {}
        """Of the namespace from which this one has taken an alias over."""
        self.watchers: set[Callable[[], None]] = set()
        self._allowed = True
        self._namespace = namespace

    def put(self, rule: AuthorizationRule) -> AuthorizationRule:
        """Create or replace a rule of the whole namespace."""
        self.rules[rule.name] = validation.authorization_rule(self._namespace.laws, rule)
        self._namespace.journal.put_settings()
        self.changed()
        return rule

    def delete(self, name: str) -> None:
        """Remove a rule of the namespace; tokens signed with it end at once, and links that stand on them."""
        if self.rules.pop(name, None) is None:
            raise not_found(f"The authorization rule '{name}' does not exist.")
        self._namespace.journal.put_settings()
        self.changed()

    def choose_keys(self, keys: Mapping[str, str]) -> None:
        """Give rules that are there already (a store may have brought them) these primary keys."""
        for name, key in keys.items():
            rule = self.rules.get(name)
            if rule is not None and rule.primary_key != key:
                self.put(replace(rule, primary_key=key))

    def rules_for(self, path: str) -> dict[str, AuthorizationRule]:
        """The rules of a path by name: the namespace's, and the entity's own which win by name."""
        return self.rules | {rule.name: rule for rule in self._own_rules(path)[1]}

    def signers(self, path: str) -> Sequence[Signer]:
        """Whose keys may sign a token for `path`: the entity's own, then the namespace's, then those that came with an
        alias; of one name all."""
        if not self._allowed:
            return KeysOff() if self._namespace.laws.local_auth_disabled else ()
        entity, own = self._own_rules(path)
        return [
            *(Signer(rule, entity) for rule in own),
            *map(Signer, (*self.rules.values(), *self.alias_rules.values())),
        ]

    def allow_keys(self, allowed: bool) -> None:
        """Whether keys may sign tokens at all (`disableLocalAuth` of the resource manager); links they opened go."""
        if allowed is not self._allowed:
            self._allowed = allowed
            self.changed()

    def _own_rules(self, path: str) -> tuple[str, tuple[AuthorizationRule, ...]]:
        """The queue or topic that a path is in or below, and its rules. `orders/eu` is not below `orders`."""
        entity = self._namespace.find(path.lower().split("/subscriptions/")[0].split("/$")[0])
        return ("", ()) if entity is None else (entity.path.lower(), entity.description.authorization_rules)

    def changed(self) -> None:
        """Let everybody who acts on a token look whether its key is still there."""
        for watcher in list(self.watchers):
            watcher()


class Admission:
    """What a namespace lets be made: paths that are free, room, settings as it takes them, targets of forwarding that
    exist. Raises EntityError for the rest."""

    def __init__(self, namespace: "Namespace") -> None:
        self._namespace = namespace

    def new_path(self, path: str) -> str:
        """The path of a new queue or topic."""
        path = validation.entity_path(self._namespace.laws, path)
        if self._namespace.find(path) is not None:
            raise conflict(f"The messaging entity '{path}' already exists in the namespace '{self._namespace.name}'.")
        return path

    def entity(self, description: Sendable, named: Collection[str], old: Sendable | None = None) -> Sendable:
        """The settings of a queue or topic that is new, or has had `old`."""
        laws = self._namespace.laws
        wished = replace(description, enable_partitioning=True) if self._always_partitioned else description
        if old is not None:
            wished = validation.update(laws, old, wished)
        checked = validation.entity(wished, laws, named, partitioned=self._always_partitioned)
        if isinstance(checked, QueueDescription):
            checked = self._forwarding(checked)
        if old is None:
            self._check_room(checked.enable_partitioning)
        return checked

    def subscription(
        self, description: SubscriptionDescription, old: SubscriptionDescription | None = None
    ) -> SubscriptionDescription:
        """The settings of a subscription that is new, or has had `old`."""
        laws = self._namespace.laws
        wished = description if old is None else validation.update(laws, old, description)
        validation.check_ranges(wished, laws)
        return self._forwarding(wished)

    @property
    def _always_partitioned(self) -> bool:
        """In a Premium namespace with partitions there are no other entities, whatever is asked for."""
        return self._namespace.tier is Tier.PREMIUM and self._namespace.premium_partitions > 1

    def _check_room(self, partitioned: bool) -> None:
        there, laws = self._namespace.all_entities(), self._namespace.laws
        if len(there) >= laws.max_entities:
            raise quota_exceeded(f"The namespace holds its maximum of {laws.max_entities} queues and topics.")
        count = sum(entity.description.enable_partitioning for entity in there)
        most = laws.max_partitioned_entities
        if partitioned and not self._always_partitioned and count >= most:
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
        path, laws = target_path(target), self._namespace.laws
        if self._namespace.find(path) is None and laws.forwarding_target_exists:
            raise bad_request(f"The forwarding destination '{path}' does not exist; create it first.")
        return target if target.startswith("https://") and laws.forwarding_scheme else path
