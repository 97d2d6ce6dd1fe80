"""The administration of a fresh namespace over HTTPS, in a thread of its own, and official clients to it."""

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.mgmt.servicebus import ServiceBusManagementClient
from azure.servicebus.management import ServiceBusAdministrationClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sbpair.emulator.admin.arm_models import ArmDirectory
from sbpair.emulator.admin.http import DIRECTORY, make_app
from sbpair.emulator.entities import ROOT_KEY_NAME, AuthorizationRule
from sbpair.emulator.namespace import Namespace
from sbpair.engine.auth import make_bearer_token
from sbpair.engine.clock import SystemClock
from sbpair.engine.faults import Faults
from sbpair.service import Tier

SUBSCRIPTION_ID = "11111111-2222-3333-4444-555555555555"
GROUP = "some-group"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1: both what the server shows and what clients trust."""

    certificate_file: Path
    key_file: Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "emulator under test")])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    files = Certificate(folder / "cert.pem", folder / "key.pem")
    files.certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


FAR_FUTURE = 4102444800
ARM_TOKEN = make_bearer_token(FAR_FUTURE, audience="https://management.azure.com")


class FakeCredential:
    """A bearer token for the resource manager, signed by nobody, for the synchronous clients."""

    def __init__(self, token: str = ARM_TOKEN) -> None:
        self._token = token

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        return AccessToken(self._token, FAR_FUTURE)


class AdminServer:
    """One namespace behind HTTPS. All state belongs to the loop of the server's thread: reach it through `run`."""

    def __init__(self, certificate: Certificate, tier: Tier, name: str, directory: ArmDirectory | None) -> None:
        self._certificate = certificate
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._clients: list[Any] = []
        self.namespace, self._runner, self.port = self._await(self._start(tier, name, directory))

    async def _start(
        self, tier: Tier, name: str, directory: ArmDirectory | None
    ) -> tuple[Namespace, web.AppRunner, int]:
        clock = SystemClock()
        namespace = Namespace(name, tier=tier, clock=clock, faults=Faults(clock))
        runner = web.AppRunner(make_app(namespace, directory=directory))
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate.certificate_file, self._certificate.key_file)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        namespace.host, namespace.port = "127.0.0.1", port
        return namespace, runner, port

    def _await(self, awaitable: Awaitable[Result]) -> Result:
        async def wait() -> Result:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(30)

    def run(self, action: Callable[[], Result]) -> Result:
        """Call something on the server's loop."""

        async def call() -> Result:
            return action()

        return self._await(call())

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._await(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> str:
        return str(self._certificate.certificate_file)

    @property
    def directory(self) -> Any:
        return self._runner.app[DIRECTORY]

    @property
    def root_key(self) -> str:
        return self.namespace.auth_rules[ROOT_KEY_NAME].primary_key

    def connection_string(self, key_name: str = ROOT_KEY_NAME, key: str | None = None) -> str:
        used = self.root_key if key is None else key
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName={key_name};SharedAccessKey={used};"
            "UseDevelopmentEmulator=true"
        )

    def add_key(self, name: str, *rights: str) -> str:
        """A key of the namespace with some rights; gives its connection string."""
        rule = AuthorizationRule(name=name, rights=frozenset(rights), primary_key=f"{name}-1", secondary_key="unused")
        self.run(lambda: self.namespace.set_auth_rule(rule))
        return self.connection_string(name, rule.primary_key)

    def admin(self, connection_string: str | None = None, **options: Any) -> ServiceBusAdministrationClient:
        """The official data-plane client; no retries unless asked for."""
        settings = {"connection_verify": self.ca_file, "retry_total": 0} | options
        text = connection_string or self.connection_string()
        client = ServiceBusAdministrationClient.from_connection_string(text, **settings)
        self._clients.append(client)
        return client

    def arm(self, credential: Any = None, **options: Any) -> ServiceBusManagementClient:
        """The official resource manager client; no retries unless asked for."""
        settings = {"connection_verify": self.ca_file, "retry_total": 0} | options
        client = ServiceBusManagementClient(
            credential or FakeCredential(), SUBSCRIPTION_ID, base_url=self.url, **settings
        )
        self._clients.append(client)
        return client


@pytest.fixture
def start(certificate: Certificate) -> Iterator[Callable[..., AdminServer]]:
    servers: list[AdminServer] = []

    def make(tier: Tier = Tier.STANDARD, name: str = "primary", directory: ArmDirectory | None = None) -> AdminServer:
        servers.append(AdminServer(certificate, tier, name, directory))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(start: Callable[..., AdminServer]) -> AdminServer:
    return start()


@pytest.fixture
def admin(server: AdminServer) -> ServiceBusAdministrationClient:
    return server.admin()


@pytest.fixture
def arm(server: AdminServer) -> ServiceBusManagementClient:
    return server.arm()
