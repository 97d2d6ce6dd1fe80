"""The control port: faults can be changed from another process, also while the namespace is dark."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from sbpair.emulator import EmulatorThread
from sbpair.emulator.control import ControlError, FaultControl
from sbpair.engine.tls import TlsFiles


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
        # What lasts is not counted, and does not claim to have hit nobody.
        counted = {
            text: client.add(text)["hits"] for text in ("list-gap", "throttle:for=30s", "delay:rtt=1ms", "refuse")
        }
        assert counted == {"list-gap": 0, "throttle:for=30s": 0, "delay:rtt=1ms": None, "refuse": None}
        assert (added["seen"], client.add("refuse:nth=9")["seen"]) == (None, 0)
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


def serve_once(answer: bytes, tls: TlsFiles) -> tuple[int, list[bytes], threading.Thread]:
    """A server that gives one answer to whatever it is asked: its port, and what it was asked."""
    listening = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def run() -> None:
        with (
            listening,
            listening.accept()[0] as client,
            tls.server_context().wrap_socket(client, server_side=True) as it,
        ):
            asked.append(it.recv(65536))
            it.sendall(answer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return listening.getsockname()[1], asked, thread


def test_the_token_goes_along_with_no_redirect_and_through_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = TlsFiles(tmp_path)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    elsewhere, taken, _ = serve_once(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"value":[]}', tls)
    redirect = f"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:{elsewhere}/x\r\nContent-Length: 0\r\n\r\n"
    port, asked, thread = serve_once(redirect.encode(), tls)
    client = FaultControl(f"127.0.0.1:{port}", "primary", ca_file=str(tls.ca_path), key_name="k", key="a2V5")
    with pytest.raises(ControlError, match="302"):
        client.list()
    thread.join(30)
    assert b"SharedAccessSignature" in asked[0]
    assert taken == []


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "], ids=["nothing", "half a head"])
def test_a_client_that_never_asks_is_cut_off(start: bytes) -> None:
    with EmulatorThread(["primary"], control_port=0) as emulator:
        emulator.call(lambda inner: setattr(inner._control._requests, "patience_seconds", 0.5))
        host, _, port = str(emulator.control_endpoint).partition(":")
        trusting = ssl.create_default_context(cafile=emulator.ca_path)
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            client.sendall(start)
            with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
                assert client.recv(1) == b""
        assert control(emulator).list() == []


def test_without_a_control_port_there_is_none() -> None:
    with EmulatorThread(["primary"]) as emulator:
        assert emulator.control_endpoint is None


def test_a_closed_emulator_does_not_answer() -> None:
    with EmulatorThread(["primary"], control_port=0) as emulator:
        client = control(emulator)
    with pytest.raises(ControlError, match="no answer"):
        client.list()
