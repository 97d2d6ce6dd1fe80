"""Two regions. Geo-disaster recovery: two Premium namespaces under an alias that reaches one of them.

Entities, rules and keys of the primary are on the secondary at once, as the service has them there after a while; no
message is. A fail-over ends the pairing: the alias leads to the former secondary, and the former primary keeps what it
holds. On both sides is kept what an operator sees, in `Namespace.disaster_recovery_configs`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sbpair.emulator.broker.entity import Entity, MessageEntity
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.messages import Message, MessageStateCode
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.engine.errors import EmulatorError, EntityError
from sbpair.service import Tier

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace


PRIMARY = "Primary"
SECONDARY = "Secondary"
ALONE = "PrimaryNotReplicating"
_CHUNK_BYTES = 64 * 1024

Json = dict[str, Any]


def pair(alias: str, primary: "Namespace", secondary: "Namespace", configs: tuple[Json, Json]) -> None:
    """Join two namespaces under an alias; `configs` are what the primary and the secondary tell of it.

    Raises:
        EntityError: the secondary has entities of its own. A pairing that is there already is only announced again.
    """
    if primary.replicate is None:
        if secondary.queues() or secondary.topics():
            raise wrong_state(f"The secondary namespace '{secondary.name}' must be empty to be paired.")
        _copy_all(primary, secondary)
        primary.replicate = partial(_mirror, secondary)
        secondary.access.alias_rules = primary.auth_rules
    primary.recovery_partner, secondary.recovery_partner = secondary, primary
    primary.disaster_recovery_configs[alias], secondary.disaster_recovery_configs[alias] = configs
    _told(primary, secondary)


def part(alias: str, survivor: "Namespace") -> None:
    """End a pairing: the alias stays with `survivor`, the other namespace keeps what it holds and knows no alias."""
    other = survivor.recovery_partner
    survivor.disaster_recovery_configs[alias] |= {"role": ALONE, "partnerNamespace": ""}
    both = [survivor] if other is None else [survivor, other]
    if other is not None:
        other.disaster_recovery_configs.pop(alias, None)
    for one in both:
        one.replicate, one.recovery_partner = None, None
        one.access.alias_rules = dict(one.access.alias_rules)
    _told(*both)


def fail_over(alias: str, secondary: "Namespace") -> None:
    """Make the secondary the namespace that the alias leads to.

    Raises:
        EntityError: it is not the secondary of that alias.
    """
    config = secondary.disaster_recovery_configs.get(alias)
    if config is None or config["role"] != SECONDARY:
        raise wrong_state("Fail-over is started on the secondary namespace.")
    part(alias, secondary)


def fail_over_pair(alias: str, member: "Namespace") -> "Namespace":
    """`fail_over`, asked of either namespace of the pair; the one that the alias leads to from now on.

    Raises:
        EntityError: they are not paired under that alias.
    """
    config, partner = member.disaster_recovery_configs.get(alias), member.recovery_partner
    if config is None or partner is None:
        raise wrong_state(f"'{member.name}' is not paired under an alias '{alias}'.")
    secondary = member if config["role"] == SECONDARY else partner
    fail_over(alias, secondary)
    return secondary


def wrong_state(message: str) -> EntityError:
    """The service's answer to a step that the pairing is not ready for."""
    return EntityError(409, 40900, f"Conflict. {message}", "Conflict")


def _told(*namespaces: "Namespace") -> None:
    for namespace in namespaces:
        namespace.journal.put_settings()
        for watcher in list(namespace.recovery_watchers):
            watcher()


# Entities on both sides.


def _copy_all(primary: "Namespace", secondary: "Namespace") -> None:
    """All entities, without forwarding first: its target may come later."""
    forwarding: list[Queue | Subscription] = []
    for queue in primary.queues():
        secondary.create_queue(queue.path, replace(queue.description, **_NO_FORWARDING))
        forwarding.append(queue)
    for topic in primary.topics():
        secondary.create_topic(topic.path, topic.description)
        for _, one in sorted(topic.subscriptions.items()):
            secondary.create_subscription(topic.path, one.name, replace(one.description, **_NO_FORWARDING))
            forwarding.append(one)
    for entity in forwarding:
        _mirror(secondary, entity, gone=False)


_NO_FORWARDING: Any = {"forward_to": None, "forward_dead_lettered_messages_to": None}


def _mirror(secondary: "Namespace", entity: Queue | Topic | Subscription, *, gone: bool) -> None:
    """Have an entity of the primary on the secondary as it is now."""
    if isinstance(entity, Subscription):
        _mirror_subscription(secondary, entity, gone=gone)
    elif gone:
        secondary.delete(entity.path)
    else:
        put = secondary.create if secondary.find(entity.path) is None else secondary.update
        put(entity.path, entity.description)


def _mirror_subscription(secondary: "Namespace", entity: Subscription, *, gone: bool) -> None:
    topic, name = entity.topic.path, entity.name
    if gone:
        secondary.delete_subscription(topic, name)
        return
    if secondary.get_subscription(topic, name) is None:
        secondary.create_subscription(topic, name, entity.description)
    else:
        secondary.update_subscription(topic, name, entity.description)
    there = {rule.name.lower(): rule for rule in secondary.rules(topic, name)}
    for key, rule in entity.rules.items():
        if key not in there:
            secondary.create_rule(topic, name, rule.name, rule.description)
        elif there[key].description != rule.description:
            secondary.update_rule(topic, name, rule.name, rule.description)
    for key in there.keys() - entity.rules.keys():
        secondary.delete_rule(topic, name, key)


# The address of an alias.


@dataclass(frozen=True, slots=True)
class AliasConfig:
    """An alias to be, over two of the emulator's namespaces. Port 0 = any free one."""

    name: str
    primary: str
    secondary: str
    port: int = 0


class AliasPort:
    """A port of its own, as an alias has a host name of its own: what connects there reaches the namespace that has the
    alias. After a fail-over connections to the other one are cut, as when a host name leads elsewhere.
    """

    def __init__(
        self,
        name: str,
        members: Sequence["Namespace"],
        reach: Callable[["Namespace"], tuple[str, int]],
        host: str,
        port: int,
    ) -> None:
        """`reach`: host and port of a namespace."""
        self.name = name
        self.host = host
        self.number = port
        self._members = tuple(members)
        self._reach = reach
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], Namespace] = {}

    async def start(self) -> None:
        """Begin to listen. OSError if the port is taken."""
        self._server = await asyncio.start_server(self._serve, self.host, self.number)
        self.number = self._server.sockets[0].getsockname()[1]
        for namespace in self._members:
            namespace.recovery_watchers.add(self._reconsider)

    async def close(self) -> None:
        """Stop listening, and cut what is connected."""
        for namespace in self._members:
            namespace.recovery_watchers.discard(self._reconsider)
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def serving(self) -> "Namespace | None":
        """The namespace that the alias leads to; None once it was deleted."""
        for namespace in self._members:
            config = namespace.disaster_recovery_configs.get(self.name)
            if config is not None and config["role"] in (PRIMARY, ALONE):
                return namespace
        return None

    def _reconsider(self) -> None:
        serving = self.serving
        for task, namespace in list(self._open.items()):
            if namespace is not serving:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving, task = self.serving, asyncio.current_task()
        try:
            if serving is None or task is None:
                return
            self._open[task] = serving
            await _join(reader, writer, *self._reach(serving))
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or the alias leads elsewhere now: to the client the connection is lost
        finally:
            if task is not None:
                self._open.pop(task, None)
            writer.transport.abort()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Pass bytes both ways until one side has ended."""
    far_reader, far_writer = await asyncio.open_connection(host, port)
    ways = [asyncio.create_task(_pass_on(reader, far_writer)), asyncio.create_task(_pass_on(far_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        with contextlib.suppress(OSError):
            writer.close()  # what the other side has said last still goes out
        far_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


def first_pairing(config: AliasConfig, primary: "Namespace", secondary: "Namespace") -> None:
    """Pair the namespaces of an alias at the start, unless it is from an earlier one (a store has kept it).

    Raises:
        EmulatorError: a namespace is not Premium, or the secondary is not empty.
    """
    if any(one.tier is not Tier.PREMIUM for one in (primary, secondary)) or primary is secondary:
        raise EmulatorError(f"the alias {config.name!r} takes two Premium namespaces")
    known = [one.disaster_recovery_configs.get(config.name) for one in (primary, secondary)]
    if any(one is not None and one["role"] == ALONE for one in known):
        return
    configs = tuple(_config(role, other.name) for role, other in ((PRIMARY, secondary), (SECONDARY, primary)))
    try:
        if all(one is not None for one in known):
            primary.replicate = partial(_mirror, secondary)
            secondary.access.alias_rules = primary.auth_rules
        pair(config.name, primary, secondary, (configs[0], configs[1]))
    except EntityError as error:
        raise EmulatorError(f"the alias {config.name!r}: {error}") from error


def _config(role: str, partner: str) -> Json:
    return {
        "provisioningState": "Succeeded",
        "pendingReplicationOperationsCount": 0,
        "partnerNamespace": (
            "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/emulator"
            f"/providers/Microsoft.ServiceBus/namespaces/{partner}"
        ),
        "role": role,
    }


# Geo-Replication of one namespace ("Azure Service Bus Geo-Replication"): what another region does not have yet. The
# secondary is as far behind as it may be (`maxReplicationLagDurationInSeconds`; 0: never), so that a forced promotion
# loses as much as it can: messages of that time are gone, and those completed or deferred in it are there again. A
# planned promotion waits until the secondary has everything; until then the namespace is read only. Either ends all
# connections and locks. Not kept: dead-lettering and forwarding are not taken back, and sessions keep their states.

ANSWER_SECONDS = 0.5
"""So long connections outlive a promotion: the request for it, which may be on one of them, is answered first."""


def mailboxes(namespace: "Namespace") -> list[Mailbox]:
    """All of a namespace."""
    entities: list[MessageEntity] = list(namespace.queues())
    entities += [one for topic in namespace.topics() for one in topic.subscriptions.values()]
    return [box for entity in entities for box in entity.mailboxes]


class GeoReplication:
    """Stands before a namespace's journal, and knows how to take back what was noted within the lag."""

    def __init__(self, namespace: "Namespace", lag_seconds: float) -> None:
        self.lag_seconds = lag_seconds
        self._namespace = namespace
        self.journal = namespace.journal
        self._places: dict[int, tuple[Mailbox, Message, MessageStateCode]] = {}
        self._tail: deque[tuple[float, Callable[[], None]]] = deque()
        for box in mailboxes(self._namespace):
            for message in box.log:
                self._places[id(message)] = (box, message, message.state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)

    def put_message(self, entity: Entity, place: str, message: Message) -> None:
        """A message is new, or has changed."""
        self.journal.put_message(entity, place, message)
        if not isinstance(entity, MessageEntity) or ":" in place:
            return  # on its way through a topic or a forwarding
        before = self._places.get(id(message))
        box = entity.mailbox(place)
        self._places[id(message)] = (box, message, message.state)
        if before is None:
            self._note(partial(self._lose, message))
        elif before[0] is box and before[2] is MessageStateCode.ACTIVE and message.state is MessageStateCode.DEFERRED:
            self._note(partial(self._make_active, box, message))

    def drop_message(self, message: Message) -> None:
        """A message is gone."""
        self.journal.drop_message(message)
        if (found := self._places.pop(id(message), None)) is not None:
            self._note(partial(self._bring_back, *found))

    def promote(self, promoted: Callable[[], None], *, forced: bool) -> None:
        """Make the secondary the primary: now, without what it does not have, or once it has everything."""
        clock = self._namespace.clock
        if forced:
            self._catch_up()
            for _, take_back in reversed(tuple(self._tail)):
                take_back()
            self._finish(promoted)
        elif self.lag_seconds:
            self._namespace.read_only = self._namespace.laws.planned_promotion_read_only
            clock.call_at(clock.now() + self.lag_seconds, lambda: self._finish(promoted))
        else:
            self._finish(promoted)

    def _finish(self, promoted: Callable[[], None]) -> None:
        self._tail.clear()
        self._namespace.read_only = False
        promoted()
        clock = self._namespace.clock
        clock.call_at(clock.now() + ANSWER_SECONDS, self._cut)

    def _cut(self) -> None:
        self._namespace.faults.remove(self._namespace.faults.add("drop"))
        for box in mailboxes(self._namespace):
            box.free_all()

    def _note(self, take_back: Callable[[], None]) -> None:
        self._catch_up()
        self._tail.append((self._namespace.clock.now(), take_back))

    def _catch_up(self) -> None:
        replicated = self._namespace.clock.now() - self.lag_seconds
        while self._tail and self._tail[0][0] <= replicated:
            self._tail.popleft()

    def _lose(self, message: Message) -> None:
        if (found := self._places.get(id(message))) is not None:
            found[0].free_all()
            found[0].remove(message)

    @staticmethod
    def _make_active(box: Mailbox, message: Message) -> None:
        if box.log.get(message.sequence_number) is message and message.state is MessageStateCode.DEFERRED:
            box.take_out(message)
            message.state = MessageStateCode.ACTIVE
            box.add(message)

    def _bring_back(self, box: Mailbox, message: Message, state: MessageStateCode) -> None:
        message.state = MessageStateCode.ACTIVE if state is MessageStateCode.DEFERRED else state
        box.add(message)
