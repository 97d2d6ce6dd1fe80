"""The emulator as a whole: names, endpoints, durability, threads, start-up time."""

import asyncio
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.emulator import Emulator, EmulatorError, EmulatorThread, ManualClock, NamespaceConfig, Tier


async def test_it_starts_in_well_under_a_third_of_a_second() -> None:
    """Of a processor's time, which no other program takes a part of; the best of three."""
    took = []
    for _ in range(3):
        begun = time.process_time()
        async with Emulator(["a", "b", "c"]):
            took.append(time.process_time() - begun)
    assert min(took) < 0.3


def test_namespaces_need_different_names() -> None:
    with pytest.raises(EmulatorError, match="must differ"):
        Emulator(["a", "A"])


async def test_what_is_not_there_is_said_so(emulator: Emulator) -> None:
    with pytest.raises(EmulatorError, match="primary, secondary"):
        emulator.namespace("third")
    with pytest.raises(EmulatorError, match="RootManageSharedAccessKey"):
        emulator.connection_string("primary", "nokey")


async def test_a_taken_port_is_an_error_and_leaves_nothing_behind() -> None:
    async with Emulator(["first"]) as first:
        taken = int(first.endpoint("first").rpartition(":")[2])
        second = Emulator([NamespaceConfig("second", port=taken)])
        with pytest.raises(OSError, match="in use"):
            await second.__aenter__()


async def test_connection_strings_name_key_and_entity(emulator: Emulator) -> None:
    text = emulator.connection_string("Primary", entity="orders")
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    assert parts["Endpoint"] == f"sb://{emulator.endpoint('primary')}"
    assert parts["SharedAccessKeyName"] == "RootManageSharedAccessKey"
    assert (parts["UseDevelopmentEmulator"], parts["EntityPath"]) == ("true", "orders")


async def test_a_server_on_all_addresses_names_one_that_can_be_reached() -> None:
    async with Emulator(["a"], host="0.0.0.0") as emulator:
        host, _, port = emulator.endpoint("a").rpartition(":")
        assert host == "127.0.0.1"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()


async def test_the_clock_is_everybodys() -> None:
    clock = ManualClock(5_000.0)
    async with Emulator(["a"], clock=clock) as emulator:
        assert emulator.namespace("a").created_at == 5_000.0


def test_one_connection_string_for_administration_and_messages(emulator_thread: EmulatorThread) -> None:
    text = emulator_thread.connection_string("primary")
    with ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=str(emulator_thread.ca_path)
    ) as administration:
        administration.create_queue("orders")
        with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("m"))
        assert administration.get_queue_runtime_properties("orders").active_message_count == 1


def test_a_durable_namespace_comes_back_with_keys_authority_and_messages(tmp_path: Path) -> None:
    config = NamespaceConfig("kept", tier=Tier.PREMIUM)
    with EmulatorThread([config], data_dir=tmp_path) as emulator:
        emulator.namespace("kept").create_queue("orders")
        text, authority = emulator.connection_string("kept"), emulator.ca_path.read_bytes()
        with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("kept"))
    port = int(text.partition("127.0.0.1:")[2].partition(";")[0])
    with EmulatorThread([NamespaceConfig("kept", tier=Tier.PREMIUM, port=port)], data_dir=tmp_path) as emulator:
        assert emulator.connection_string("kept") == text
        assert emulator.ca_path.read_bytes() == authority
        with (
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_receiver("orders", max_wait_time=5) as receiver,
        ):
            assert [str(message) for message in receiver.receive_messages(1)] == ["kept"]


def test_a_threads_stand_ins_work_from_outside(emulator_thread: EmulatorThread) -> None:
    faults = emulator_thread.faults("primary")
    fault_id = faults.add("throttle:entity=orders,for=1h")
    assert [fault.id for fault in faults.list()] == [fault_id]
    assert faults.remove(fault_id) is True
    assert emulator_thread.namespace("secondary").name == "secondary"
    emulator_thread.stop("primary")
    emulator_thread.start("primary")
    with pytest.raises(EmulatorError):
        emulator_thread.namespace("third")


def test_a_closed_thread_says_so() -> None:
    emulator = EmulatorThread(["a"])
    with emulator:
        assert emulator.names == ["a"]
    with pytest.raises(RuntimeError, match="not running"):
        emulator.endpoint("a")
