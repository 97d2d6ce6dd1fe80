"""Ports that clients know, keys and certificates that stay, and who may ask for a namespace's health."""

import asyncio
import os
import ssl
import stat
import threading
import urllib.request
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.emulator import Emulator, NamespaceConfig
from sbpair.emulator.admin.arm_models import ArmFacts, ResourceScope, namespace_resource
from sbpair.emulator.keys import StoredKeys
from sbpair.emulator.seed import SeedError, plant
from sbpair.emulator.server import AMQP_PORT, AMQPS_PORT, HTTPS_PORT, MICROSOFT_ADMINISTRATION_PORT
from sbpair.engine.tls import TlsFiles
from tests.emulator.addresses import own_address

MICROSOFT = "Endpoint=sb://{};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;{}"
DEVELOPMENT = "UseDevelopmentEmulator=true;"


async def there_and_back(connection_string: str, **options: str) -> list[str]:
    async with ServiceBusClient.from_connection_string(connection_string, **options) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("hello"))
        async with client.get_queue_receiver("orders") as receiver:
            return [str(one) for one in await receiver.receive_messages(max_wait_time=30)]


async def test_the_connection_string_of_microsofts_emulator_works_unchanged() -> None:
    host = own_address(AMQP_PORT, MICROSOFT_ADMINISTRATION_PORT)
    config = NamespaceConfig(
        "sbemulatorns",
        port=AMQP_PORT,
        further_ports=(MICROSOFT_ADMINISTRATION_PORT,),
        host=host,
        keys={"RootManageSharedAccessKey": "SAS_KEY_VALUE"},
    )
    async with Emulator([config]) as emulator:
        string = MICROSOFT.format(f"{host}:{MICROSOFT_ADMINISTRATION_PORT}", DEVELOPMENT)
        async with ServiceBusAdministrationClient.from_connection_string(
            string, connection_verify=str(emulator.ca_path)
        ) as administration:
            await administration.create_queue("orders")
        assert await there_and_back(MICROSOFT.format(host, DEVELOPMENT)) == ["hello"]
        await emulator.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, MICROSOFT_ADMINISTRATION_PORT)
        await emulator.start()
        assert await there_and_back(emulator.connection_string("sbemulatorns")) == ["hello"]


async def test_a_client_that_knows_only_the_services_own_ports_gets_in() -> None:
    host = own_address(AMQPS_PORT, HTTPS_PORT)
    async with Emulator(
        [NamespaceConfig("contoso", port=AMQPS_PORT, further_ports=(HTTPS_PORT,), host=host)]
    ) as emulator:
        string = emulator.connection_string("contoso")
        assert string.startswith(f"Endpoint=sb://{host}/;")
        assert "UseDevelopmentEmulator" not in string
        ca_file = str(emulator.ca_path)
        async with ServiceBusAdministrationClient.from_connection_string(
            string, connection_verify=ca_file
        ) as administration:
            await administration.create_queue("orders")
        assert await there_and_back(string, connection_verify=ca_file) == ["hello"]


async def test_keys_and_certificates_are_those_of_the_last_start(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        async with Emulator(["contoso-weu", "contoso-neu"], identity=tmp_path) as emulator:
            plant(emulator.namespace("contoso-weu"), {"keys": {"sender": ["Send"]}})
            strings = [emulator.connection_string("contoso-weu", name) for name in (None, "sender")]
            strings.append(emulator.connection_string("contoso-neu"))
            found.append(([text.split("SharedAccessKey=")[1] for text in strings], emulator.ca_path.read_bytes()))
    assert found[0] == found[1]
    assert len(set(found[0][0])) == 3
    if os.name == "posix":
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(kept) == 6
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
        assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    async with Emulator(["contoso-weu"], identity=tmp_path, tls_names=["bus.example.com"]) as emulator:
        assert emulator.ca_path.read_bytes() != found[0][1]
    async with Emulator(["contoso-weu"], identity=tmp_path) as emulator:
        assert emulator.ca_path.read_bytes() == found[0][1]
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(OSError, match="not a secret of 32 bytes"):
        StoredKeys(tmp_path)


def test_processes_that_start_at_once_have_one_certificate_and_one_secret(tmp_path: Path) -> None:
    seen: list[tuple[bytes, tuple[str, str]]] = []
    barrier = threading.Barrier(6)

    def start() -> None:
        files = TlsFiles(tmp_path / "tls")
        barrier.wait()
        keys = StoredKeys(tmp_path).of("contoso")("sender")
        authority = files.ca_path.read_bytes()
        files.server_context()
        seen.append((authority, keys))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 6
    assert len({keys for _, keys in seen}) == 1
    assert {authority for authority, _ in seen} == {TlsFiles(tmp_path / "tls").ca_path.read_bytes()}
    assert {path.name for path in tmp_path.iterdir()} == {"tls", "secret"}


async def test_keys_of_a_seed_and_of_the_environment(tmp_path: Path) -> None:
    seed = {"keys": {"reader": {"rights": ["Listen"], "key": "of-the-seed"}, "sender": ["Send"]}}
    root = {"keys": {"RootManageSharedAccessKey": {"key": {"env": "ROOT_KEY"}}}}
    async with Emulator(["contoso"], data_dir=tmp_path) as emulator:
        namespace = emulator.namespace("contoso")
        plant(namespace, seed)
        plant(namespace, root, {"ROOT_KEY": "of-the-environment"})
        keys = {name: rule.primary_key for name, rule in namespace.auth_rules.items()}
        assert (keys["reader"], keys["RootManageSharedAccessKey"]) == ("of-the-seed", "of-the-environment")
        assert namespace.auth_rules["reader"].rights == {"Listen"}
        for wrong, said in (
            (root, "ROOT_KEY is not set"),
            ({"keys": {"a": {"rights": ["Send"], "key": "with ; in it"}}}, "keys.a.key: a text"),
            ({"keys": {"a": {"right": ["Send"]}}}, "did you mean 'rights'"),
            ({"keys": {"a": {"key": "no-rights"}}}, "keys.a: rights are a list"),
        ):
            with pytest.raises(SeedError, match=said):
                plant(namespace, wrong)
    async with Emulator([NamespaceConfig("contoso", keys={"reader": "another"})], data_dir=tmp_path) as emulator:
        rules = emulator.namespace("contoso").auth_rules
        assert (rules["reader"].primary_key, rules["sender"].primary_key) == ("another", keys["sender"])


def _get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_health_is_for_everybody_and_a_queue_of_that_name_is_not(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("health")
    endpoint = emulator.endpoint("primary")
    status, body = await asyncio.to_thread(_get, f"http://{endpoint}/health")
    assert (status, b'"healthy"' in body) == (200, True)
    trusting = ssl.create_default_context(cafile=str(emulator.ca_path))
    assert (await asyncio.to_thread(_get, f"https://{endpoint}/health", trusting))[0] == 200
    assert (await asyncio.to_thread(_get, f"http://{endpoint}/health", None, Authorization="nonsense"))[0] == 401
    assert (await asyncio.to_thread(_get, f"http://{endpoint}/health", None, Host="evil.example"))[0] == 421


async def test_a_namespace_goes_by_the_host_name_that_was_asked_for() -> None:
    names = ["contoso-weu.servicebus.windows.net", "*.example.com"]
    async with Emulator(["contoso-weu", "other"], tls_names=names) as emulator:
        hosts = {name: emulator.namespace(name).public_host for name in ("contoso-weu", "other")}
        assert hosts == {"contoso-weu": names[0], "other": "other.example.com"}
        scope = ResourceScope("subscription", "group", "contoso-weu", "westeurope")
        shown = namespace_resource(scope, emulator.namespace("contoso-weu"), ArmFacts(), "127.0.0.1:5671")
        assert shown["properties"]["serviceBusEndpoint"] == f"https://{names[0]}/"
