"""The recorded dialogues of the .NET client through a gateway: each is answered as the namespace answers it."""

from pathlib import Path

import pytest

from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.emulator.server import Emulator
from sbpair.engine.auth import ALL_RIGHTS, ROOT_KEY_NAME
from sbpair.engine.tls import TlsFiles
from sbpair.gateway.keys import GatewayKey
from sbpair.gateway.server import open_gateway
from tests.engine.test_dotnet import FOLDER, Replay, dialogue


class Passed(Replay):
    """Without the answer to a detach that the end of its session follows at once: the end may overtake it here."""

    async def hear(self, line: str) -> None:
        if " detach [" not in line or ":amqp:" in line:
            await super().hear(line)


def side(emulator: Emulator, name: str) -> NamespaceAccess:
    text = emulator.connection_string(name)
    return NamespaceAccess(name, host_of(text), AuthMethod.CONNECTION_STRING, Secret(text))


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
async def test_a_recorded_dialogue_passes(file: Path, tmp_path: Path) -> None:
    async with Emulator() as emulator:
        options = SendAvailabilityOptions(1, verify="off")
        pair = Pair("dotnet", side(emulator, "primary"), side(emulator, "secondary"), options)
        backlog = emulator.namespace("secondary").create_queue(*pair.backlog_paths())
        replay = Passed(file.name, emulator)
        key = GatewayKey(ROOT_KEY_NAME, replay.key, ALL_RIGHTS)
        async with open_gateway([pair], [key], TlsFiles(tmp_path)) as gateway:
            replay.endpoint = gateway.endpoint()
            await dialogue(replay, file, emulator)
        assert not backlog.main.log
    assert replay.differing == []
    assert replay.answers > 1
