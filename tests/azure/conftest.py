"""A running emulator with one namespace, and the adapters on it."""

from collections.abc import AsyncIterator

import pytest

from sbpair.azure.messaging import AzureMessaging
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import Emulator
from tests.contract.conftest import access_to


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator(["primary"], seed=1) as running:
        running.namespace("primary").create_queue("orders", QueueDescription())
        yield running


@pytest.fixture
async def messaging(emulator: Emulator) -> AsyncIterator[AzureMessaging]:
    adapter = AzureMessaging(access_to(emulator))
    yield adapter
    await adapter.close()
