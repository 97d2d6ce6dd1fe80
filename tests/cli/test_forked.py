"""The `sbpair` that shells of tests start: forked, with the streams, the exit code and the end of a program."""

import gc
import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.forked import FORKS, SERVER
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS, until

pytestmark = pytest.mark.skipif(not FORKS, reason="every process starts the usual way here")
MUTE = "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=Root;SharedAccessKey=QUJD;UseDevelopmentEmulator=true"


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{SERVER.folder()}{os.pathsep}{os.environ['PATH']}", **more}


def test_it_has_the_streams_of_the_shell_its_folder_and_its_exit_code(tmp_path: Path) -> None:
    line = "sbpair nonsense 2> said; echo $?; sbpair --version | cat; cat said"
    ran = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    code, version, *said = ran.stdout.splitlines()
    assert (code, ran.stderr) == ("2", "")
    assert version.startswith("sbpair ")
    assert "nonsense" in "".join(said)


def test_killed_it_takes_its_process_along(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        sides = {
            name: value
            for side, at in (("PRIMARY", port), ("SECONDARY", 1))
            for name, value in (
                (f"SBPAIR_{side}_NAMESPACE", f"contoso-{side.lower()}"),
                (f"SBPAIR_{side}_HOST", "127.0.0.1"),
                (f"SBPAIR_{side}_CONNECTION_STRING", MUTE.format(port=at)),
            )
        }
        command = [SERVER.folder() / "sbpair", "status", "--timeout", "1h"]
        program = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path, **sides))
        called = until(lambda: select.select([listener], [], [], 0)[0], program)[0].accept()[0]
        program.kill()
        program.wait(LIMIT_SECONDS)
        called.settimeout(LIMIT_SECONDS)
        with called:
            while called.recv(4096):
                pass


def test_one_that_is_forgotten_while_it_runs_fails_no_later_start(tmp_path: Path) -> None:
    forgotten = Sbpair(tmp_path).begin("emulator", "--port", "0", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = forgotten.pid
    forgotten.itself = forgotten  # type: ignore[attr-defined]  # as the traceback of a failed test holds it
    del forgotten
    gc.collect()
    try:
        assert subprocess.run(["true"], check=False).returncode == 0
    finally:
        os.kill(pid, signal.SIGKILL)
