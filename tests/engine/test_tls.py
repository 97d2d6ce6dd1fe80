"""The throwaway certificates: what they are good for, and when a durable folder's are made anew."""

import asyncio
import ssl
from pathlib import Path

import pytest

from sbpair.emulator import Emulator
from sbpair.engine.tls import TlsFiles


async def test_other_names_than_localhost_pass_the_clients_check() -> None:
    async with Emulator(["a"], tls_names=["*.example.com", "10.0.0.9"]) as emulator:
        port = int(emulator.endpoint("a").rpartition(":")[2])
        for name in ("a.example.com", "10.0.0.9", "localhost", "127.0.0.1"):
            await _handshake(emulator.ca_path, port, name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await _handshake(emulator.ca_path, port, "example.org")


def test_a_durable_folder_keeps_its_certificates_until_they_lack_a_name(tmp_path: Path) -> None:
    first = TlsFiles(tmp_path).ca_path.read_bytes()
    assert TlsFiles(tmp_path, "localhost").ca_path.read_bytes() == first
    named = TlsFiles(tmp_path, "bus.example.com").ca_path.read_bytes()
    assert named != first
    assert TlsFiles(tmp_path, "bus.example.com").ca_path.read_bytes() == named


async def _handshake(ca_path: Path, port: int, name: str) -> None:
    context = ssl.create_default_context(cafile=ca_path)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    writer.close()
    await writer.wait_closed()
