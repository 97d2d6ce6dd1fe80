"""The control port: faults can be changed from another process, also while the namespace is dark."""

import pytest

from sbpair.emulator import EmulatorThread
from sbpair.emulator.control import ControlError, FaultControl


def control(emulator: EmulatorThread, *, key: str | None = None, namespace: str = "primary") -> FaultControl:
    endpoint = emulator.control_endpoint
    assert endpoint is not None
    root = emulator.call(lambda inner: inner.namespace("primary").auth_rules["RootManageSharedAccessKey"].primary_key)
    return FaultControl(
        endpoint, namespace, ca_file=str(emulator.ca_path), key_name="RootManageSharedAccessKey", key=key or root
    )


def test_a_namespace_is_brought_back_from_the_dark() -> None:
    with EmulatorThread(["primary"], control_port=0) as emulator:
        client = control(emulator)
        added = client.add("dark")
        assert [fault["id"] for fault in client.list()] == [added["id"]]
        client.remove(str(added["id"]))
        assert client.list() == []
        client.add("list-gap")
        client.add("throttle:entity=orders,for=30s")
        client.clear()
        assert client.list() == []


def test_refusals_say_what_is_wrong() -> None:
    with EmulatorThread(["primary"], control_port=0) as emulator:
        with pytest.raises(ControlError, match="nonsense"):
            control(emulator).add("nonsense")
        with pytest.raises(ControlError, match="no namespace 'other'"):
            control(emulator, namespace="other").list()
        with pytest.raises(ControlError):
            control(emulator, key="d3Jvbmc=").list()


def test_without_a_control_port_there_is_none() -> None:
    with EmulatorThread(["primary"]) as emulator:
        assert emulator.control_endpoint is None


def test_a_closed_emulator_does_not_answer() -> None:
    with EmulatorThread(["primary"], control_port=0) as emulator:
        client = control(emulator)
    with pytest.raises(ControlError, match="no answer"):
        client.list()
