"""The ports, implemented twice: by the fakes that other tests trust, and by the adapters over real sockets."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.management import ArmAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.entities import QueueSettings
from sbpair.emulator.server import Emulator
from sbpair.emulator.thread import EmulatorThread
from sbpair.ports import Messaging, NamespaceAdmin
from tests.azure.support import FixedCredential
from tests.fakes import FakeClock, FakeNamespace

BRIEF_LOCK_SECONDS = 0.3


@dataclass
class Bench:
    """One implementation of the ports on an empty namespace."""

    messaging: Messaging
    admin: NamespaceAdmin
    brief_locks: Callable[[str], float]
    """Makes the locks of a queue last for a moment only; returns its seconds."""

    async def queue(self, path: str = "orders", **settings: object) -> str:
        await self.admin.create_queue(path, QueueSettings(**settings))  # type: ignore[arg-type]
        return path


def access_to(emulator: Emulator | EmulatorThread, name: str = "primary") -> NamespaceAccess:
    text = emulator.connection_string(name)
    return NamespaceAccess(
        label=name,
        host=host_of(text),
        auth=AuthMethod.CONNECTION_STRING,
        connection_string=Secret(text),
        ca_file=str(Path(emulator.ca_path)),
    )


def arm_access_to(emulator: Emulator, name: str = "primary") -> NamespaceAccess:
    host = host_of(emulator.connection_string(name))
    return NamespaceAccess(
        label=name,
        host=host,
        auth=AuthMethod.AZURE_CLI,
        ca_file=str(Path(emulator.ca_path)),
        resource_group="rg",
        subscription="00000000-0000-0000-0000-000000000001",
        management_url=f"https://{host}",
    )


@pytest.fixture(params=["fake", "azure"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "fake":
        fake = FakeNamespace("primary", FakeClock())

        def brief(path: str) -> float:
            queue = fake.queue(path)
            queue.settings = replace(queue.settings, lock_duration_seconds=BRIEF_LOCK_SECONDS)
            return BRIEF_LOCK_SECONDS

        yield Bench(fake.messaging(), fake.admin(), brief)
        return
    async with Emulator(["primary"], seed=1) as emulator:
        access = access_to(emulator)
        messaging, admin = AzureMessaging(access), DataPlaneAdmin(access)

        def brief_by_fault(path: str) -> float:
            emulator.faults("primary").add(f"expire-locks:entity={path},lock={BRIEF_LOCK_SECONDS}s")
            return BRIEF_LOCK_SECONDS

        yield Bench(messaging, admin, brief_by_fault)
        await messaging.close()
        await admin.close()


@pytest.fixture(params=["fake", "data-plane", "arm"])
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[NamespaceAdmin]:
    if request.param == "fake":
        yield FakeNamespace("primary", FakeClock()).admin()
        return
    async with Emulator(["primary"], seed=1) as emulator:
        one: NamespaceAdmin = (
            DataPlaneAdmin(access_to(emulator))
            if request.param == "data-plane"
            else ArmAdmin(arm_access_to(emulator), credential=FixedCredential())
        )
        yield one
        await one.close()
