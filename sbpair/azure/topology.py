"""Topology over the data plane: every entity of a namespace with all its settings, by the SDK's administration."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sbpair.azure.administration import (
    DataPlaneAdmin,
    access_rules_of,
    counts_of,
    create_options,
    epoch_of,
    sdk_name,
    sdk_value,
    settings_of,
)
from sbpair.azure.atom import QUEUE, SUBSCRIPTION, TOPIC, Described, described, listed
from sbpair.azure.client import READ, WRITE, a_text
from sbpair.concurrency import side_by_side
from sbpair.core.entities import AccessRule, EntityFacts, EntityKind, EntitySettings, RuleFacts, Values
from sbpair.core.errors import EntityNotFoundError
from sbpair.core.names import subscription_of, subscription_path
from sbpair.service import CORRELATION_FIELDS

READS_AT_ONCE = 8
"""Topics, or subscriptions, that are read at a time."""


class DataPlaneTopology(DataPlaneAdmin):
    """Every entity of one namespace, by connection string or Entra ID (Azure Service Bus Data Owner)."""

    async def entities(self, *, rules: bool) -> list[EntityFacts]:
        sdk = self._client.sdk
        with self._reading(f"list the entities of {self._access.label}"):
            queues = await self._listed(QUEUE, sdk.list_queues)
            topics = await self._listed(TOPIC, sdk.list_topics)
            below = await side_by_side(self._subscriptions_of, [topic.path for topic in topics], at_once=READS_AT_ONCE)
            subscriptions = [one for found in below for one in found]
            if rules:
                subscriptions = await side_by_side(self._with_rules, subscriptions, at_once=READS_AT_ONCE)
            return [*queues, *topics, *subscriptions]

    async def _subscriptions_of(self, topic: str) -> list[EntityFacts]:
        return await self._listed(SUBSCRIPTION, self._client.sdk.list_subscriptions, topic)

    async def subscriptions(self, topic: str, *, rules: bool) -> list[EntityFacts]:
        with self._reading(f"list the subscriptions of {topic} on {self._access.label}", topic):
            found = await self._subscriptions_of(topic)
            return await side_by_side(self._with_rules, found, at_once=READS_AT_ONCE) if rules else found

    async def rules(self, subscription: EntityFacts) -> EntityFacts:
        path = subscription.path
        with self._reading(f"read the rules of {path} on {self._access.label}", path):
            return await self._with_rules(subscription)

    async def _listed(self, kind: str, pages: Callable[..., Any], *of: str) -> list[EntityFacts]:
        """In the order of their names."""
        found = await listed(self._client, kind, pages, *of)
        return [_facts(one, *of) for one in sorted(found, key=lambda one: one.name.lower())]

    async def entity(self, path: str) -> EntityFacts | None:
        sdk = self._client.sdk
        try:
            with self._reading(f"read {path} of {self._access.label}", path):
                if (below := subscription_of(path)) is not None:
                    found = _facts(await described(self._client, sdk.get_subscription, *below), below[0])
                    return await self._with_rules(found)
                return _facts(await described(self._client, sdk.get_queue, path))  # a queue or a topic
        except EntityNotFoundError:
            return None

    async def _with_rules(self, subscription: EntityFacts) -> EntityFacts:
        topic, name = _parts(subscription.path)
        found = await self._client.items(self._client.sdk.list_rules(topic, name, **READ))
        return replace(subscription, rules=tuple(sorted(map(_rule, found), key=lambda rule: rule.name.lower())))

    async def create(self, kind: EntityKind, path: str, settings: EntitySettings) -> None:
        sdk, options = self._client.sdk, create_options(kind, settings)
        with self._reading(f"create {kind.value} {path} on {self._access.label}", path):
            if kind is EntityKind.QUEUE:
                await self._client.answer(sdk.create_queue(path, **options, **WRITE))
            elif kind is EntityKind.TOPIC:
                # The SDK takes every further argument of this one call for a property of the topic.
                await self._client.answer(sdk.create_topic(path, **options))
            else:
                await self._client.answer(sdk.create_subscription(*_parts(path), **options, **WRITE))

    async def update(self, path: str, change: Mapping[str, Any]) -> None:
        sdk = self._client.sdk
        with self._changing(tried := f"change {path} on {self._access.label}", path):
            present = await self.entity(path)
            if present is None:
                raise EntityNotFoundError(f"Could not {tried}: it does not exist.", entity=path)
            if present.kind is EntityKind.SUBSCRIPTION:
                topic, name = _parts(path)
                found = await self._client.answer(sdk.get_subscription(topic, name, **READ))
                await self._client.answer(sdk.update_subscription(topic, _changed(found, change), **WRITE))
            elif present.kind is EntityKind.TOPIC:
                found = await self._client.answer(sdk.get_topic(path, **READ))
                await self._client.answer(sdk.update_topic(_changed(found, change), **WRITE))
            else:
                found = await self._client.answer(sdk.get_queue(path, **READ))
                await self._client.answer(sdk.update_queue(_changed(found, change), **WRITE))

    async def delete(self, path: str) -> None:
        sdk = self._client.sdk
        with self._changing(f"delete {path} on {self._access.label}", path):
            if (below := subscription_of(path)) is not None:
                await self._client.answer(sdk.delete_subscription(*below, **WRITE))
            else:
                await self._client.answer(sdk.delete_queue(path, **WRITE))  # a topic is deleted at the same address

    async def create_rule(self, subscription: str, rule: RuleFacts) -> None:
        from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

        topic, name = _parts(subscription)
        made: Any
        if rule.sql is not None:
            made = SqlRuleFilter(rule.sql, dict(rule.parameters) or None)
        else:
            made = CorrelationRuleFilter(**dict(rule.correlation), properties=dict(rule.properties) or None)  # type: ignore[arg-type]
        action = None if rule.action is None else SqlRuleAction(rule.action, dict(rule.action_parameters) or None)
        with self._reading(f"create rule {rule.name} of {subscription} on {self._access.label}", subscription):
            making = self._client.sdk.create_rule(topic, name, rule.name, filter=made, action=action, **WRITE)
            await self._client.answer(making)

    async def delete_rule(self, subscription: str, name: str) -> None:
        with self._changing(f"delete rule {name} of {subscription} on {self._access.label}", subscription):
            await self._client.answer(self._client.sdk.delete_rule(*_parts(subscription), name, **WRITE))


def _parts(subscription: str) -> tuple[str, str]:
    found = subscription_of(subscription)
    if found is None:
        raise EntityNotFoundError(f"{subscription} is no subscription.", entity=subscription)
    return found


def _changed(found: Any, change: Mapping[str, Any]) -> Any:
    for name, value in change.items():
        setattr(found, sdk_name(name), sdk_value(name, value))
    return found


_KINDS = {QUEUE: EntityKind.QUEUE, TOPIC: EntityKind.TOPIC, SUBSCRIPTION: EntityKind.SUBSCRIPTION}


def _facts(found: Described, topic: str = "") -> EntityFacts:
    kind = _KINDS[found.kind]
    return EntityFacts(
        kind=kind,
        path=subscription_path(topic, found.name) if topic else found.name,
        settings=settings_of(EntitySettings, kind, found),
        counts=counts_of(found),
        size_in_bytes=found.size_in_bytes or 0,
        access_rules=tuple(AccessRule(*rule) for rule in access_rules_of(found)),
        accessed_at=epoch_of(found.accessed_at_utc),
    )


def _rule(found: Any) -> RuleFacts:
    action = None if found.action is None else found.action.sql_expression
    parameters = () if action is None else _values(found.action.parameters)
    if hasattr(found.filter, "sql_expression"):
        return RuleFacts(
            name=found.name,
            sql=a_text(found.filter.sql_expression, "SqlExpression"),
            parameters=_values(found.filter.parameters),
            action=action,
            action_parameters=parameters,
        )
    named = ((name, getattr(found.filter, name, None)) for name in CORRELATION_FIELDS)
    return RuleFacts(
        name=found.name,
        sql=None,
        correlation=tuple((name, value) for name, value in named if value is not None),
        properties=_values(found.filter.properties if found.filter else None),
        action=action,
        action_parameters=parameters,
    )


def _values(found: Mapping[str, Any] | None) -> Values:
    return tuple(sorted((found or {}).items()))
