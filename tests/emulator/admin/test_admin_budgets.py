"""Every kind of administration request is enumerated here, and each has a turn of its own and a budget for its body."""

import inspect
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

import aiohttp
import pytest
from aiohttp import web

from sbpair.emulator.admin.arm import ArmApi, Context
from sbpair.emulator.admin.atom import AtomApi
from sbpair.emulator.admin.calls import MAX_BODY_ITEMS
from sbpair.emulator.admin.http import LARGEST_BODY_BYTES, make_app, make_runner
from sbpair.emulator.namespace import Namespace
from sbpair.engine.auth import ROOT_KEY_NAME, make_sas_token
from sbpair.engine.budgets import ClientBudget, Memory, Turns
from sbpair.engine.clock import SystemClock

ATOM_ROUTES = {AtomApi._route: ["$namespaceinfo", "$Resources/queues"]}
_IN_SUBSCRIPTION = "subscriptions/00000000-0000-0000-0000-000000000001"
_PROVIDER = "providers/Microsoft.ServiceBus"
_NAMESPACE = f"{_IN_SUBSCRIPTION}/resourceGroups/g/{_PROVIDER}/namespaces/contoso"
ARM_ROUTES = {
    ArmApi._route: [
        f"{_PROVIDER}/operations",
        f"{_IN_SUBSCRIPTION}/{_PROVIDER}/namespaces",
        f"{_IN_SUBSCRIPTION}/{_PROVIDER}/checkNameAvailability",
        f"{_IN_SUBSCRIPTION}/resourceGroups/g/{_PROVIDER}/namespaces",
        _NAMESPACE,
    ],
    Context.handle: [
        f"{_NAMESPACE}/{rest}"
        for rest in (
            "queues",
            "queues/orders",
            "topics",
            "topics/events",
            "queues/orders/authorizationRules",
            "topics/events/subscriptions",
            "topics/events/subscriptions/all",
            "topics/events/subscriptions/all/rules",
            "topics/events/subscriptions/all/rules/$Default",
            "authorizationRules",
            f"{_PROVIDER.replace('ServiceBus', 'Resources')}/tags/default",
            "disasterRecoveryConfigs",
        )
    ],
}
OTHERS = [
    "orders",
    "events",
    "events/subscriptions/",
    "events/subscriptions/all",
    "events/subscriptions/all/rules/",
    "events/subscriptions/all/rules/$Default",
    "$emulator/faults",
    "nothing/of/the/kind",
]
PATHS = [*chain.from_iterable((ATOM_ROUTES | ARM_ROUTES).values()), *OTHERS]


class CountedTurns(Turns):
    """Turns, and how many have been waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def turn(self) -> None:
        self.count += 1
        await super().turn()


class WatchedMemory(Memory):
    """A memory that remembers the most that was held."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.most_bytes = 0

    def changed(self, budget: ClientBudget, by_bytes: int) -> None:
        super().changed(budget, by_bytes)
        self.most_bytes = max(self.most_bytes, self.used_bytes)


class Door:
    """A namespace's administration, a client of it, and what was spent."""

    def __init__(
        self, base_url: str, client: aiohttp.ClientSession, turns: CountedTurns, memory: WatchedMemory
    ) -> None:
        self.base_url, self.client, self.turns, self.memory = base_url, client, turns, memory

    async def ask(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> int:
        url = f"{self.base_url}/{path}?api-version={'2021-11-01' if _PROVIDER in path else '2021-05'}"
        async with self.client.request(method, url, data=body, headers={"Content-Type": content_type}) as answer:
            await answer.read()
            return answer.status


@asynccontextmanager
async def opened(limit_bytes: int = 10_000_000) -> AsyncIterator[Door]:
    namespace = Namespace("contoso", clock=SystemClock())
    namespace.create_queue("orders")
    namespace.create_topic("events")
    namespace.create_subscription("events", "all")
    turns, memory = CountedTurns(), WatchedMemory(limit_bytes)
    runner = make_runner(make_app(namespace, memory=memory, turns=turns))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        key = namespace.auth_rules[ROOT_KEY_NAME].primary_key
        token = make_sas_token(f"{base_url}/", ROOT_KEY_NAME, key, 4e9)
        async with aiohttp.ClientSession(headers={"Authorization": token}) as client:
            yield Door(base_url, client, turns, memory)
        assert memory.used_bytes == 0
    finally:
        await runner.cleanup()
        namespace.close()


def test_all_routes_are_listed_here() -> None:
    for route, paths in (ATOM_ROUTES | ARM_ROUTES).items():
        assert len(re.findall(r"^ +case ", inspect.getsource(route), re.MULTILINE)) == len(paths), route


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
async def test_each_request_has_a_turn_and_a_budget(method: str) -> None:
    async with opened() as door:
        for path in PATHS:
            before, door.memory.most_bytes = door.turns.count, 0
            assert await door.ask(method, path, b"x" * 1000) < 500
            assert door.turns.count > before, path
            assert door.memory.most_bytes >= 1000, path


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<a>" * 90_000 + b"</a>" * 60_000, "application/atom+xml"),
        (b"<a " + b" ".join(b'a%d=""' % number for number in range(MAX_BODY_ITEMS)) + b"/>", "application/atom+xml"),
        (b"\n" * (MAX_BODY_ITEMS + 1), "application/atom+xml"),
    ],
    ids=["elements", "attributes", "lines"],
)
async def test_a_body_that_a_parser_would_be_busy_with_is_refused(body: bytes, content_type: str) -> None:
    async with opened() as door:
        assert await door.ask("PUT", "events/subscriptions/all/rules/new", body, content_type) == 400


async def test_a_body_has_a_largest_size() -> None:
    async with opened() as door:
        assert await door.ask("PUT", "orders", b"x" * (LARGEST_BODY_BYTES + 1)) == 413


async def test_a_body_for_which_there_is_no_memory_ends_its_connection() -> None:
    async with opened(limit_bytes=100_000) as door:
        with pytest.raises(aiohttp.ClientError):
            await door.ask("PUT", "orders", b"x" * 200_000)
        assert await door.ask("GET", "orders") == 200
