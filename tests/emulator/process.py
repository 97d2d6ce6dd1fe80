"""An emulator in a process of its own, so that a test can fill its disk, kill it, or see what an attack costs it."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = r"""
import asyncio, logging, resource, sys
from sbpair.emulator import Emulator
from tests.emulator.turns import MeasuredLoop

async def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with Emulator(["primary"], data_dir=sys.argv[1] if len(sys.argv) > 1 else None) as running:
        namespace = running.namespace("primary")
        for name in ("orders", "theirs"):
            if namespace.get_queue(name) is None:
                namespace.create_queue(name)
        if namespace.get_topic("events") is None:
            namespace.create_topic("events")
            namespace.create_subscription("events", "all")
        print(running.connection_string("primary"), running.endpoint("primary"), running.ca_path, flush=True)
        while await asyncio.to_thread(sys.stdin.readline) == "turns\n":
            taken = asyncio.get_running_loop().taken()
            print(taken[len(taken) * 99 // 100], taken[-1], flush=True)

with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
    runner.run(main())
"""


class Process:
    """One namespace, `primary`, with the queues `orders` and `theirs`. With a folder it is durable."""

    def __init__(self, log: Path, folder: Path | None = None) -> None:
        self.log = log
        self.folder = folder
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *([] if folder is None else [str(folder)])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # What it imports while its files are limited would be cut in the cache of all later runs.
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            )
        assert self._process.stdout is not None
        self.connection_string, self.endpoint, self.ca_file = self._process.stdout.readline().split()

    @property
    def root_key(self) -> str:
        return self.connection_string.split("SharedAccessKey=")[1].split(";")[0]

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.endpoint.partition(":")
        return host, int(port)

    def turns(self) -> tuple[float, float]:
        """The 99th percentile and the longest of the turns of its event loop since the last call, in seconds of its own
        time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("turns\n")
        self._process.stdin.flush()
        ninety_nine, longest = self._process.stdout.readline().split()
        return float(ninety_nine), float(longest)

    @property
    def kept_waiting_seconds(self) -> float:
        """How long the emulator's event loop has been ready to run while others had the processors."""
        fields = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return int(fields[1]) / 1e9

    @property
    def resident_bytes(self) -> int:
        """What the process has of the machine's memory now."""
        fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()

    def fill_disk(self) -> None:
        """No file of the process can grow beyond what the largest has now."""
        assert self.folder is not None
        largest = max(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        self._limit(largest)

    def make_room(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size_bytes: int) -> None:
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.communicate()
