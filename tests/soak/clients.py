"""Takes an application with the drop-in clients through outages of every kind, and proves that it comes back each time.

    python -m tests.soak.clients --seed 7 --outages 30 [--as tasks|threads|forks] [--over sender|client|senders]

The application is a process of its own: tasks of one event loop, threads, or forked processes that inherited their
client, which all send at a steady pace over one shared sender, over one client with a sender for each message, or over
twenty senders. Two embedded namespaces in another process go through the outages. After each of them, from two seconds
after the failback on, no call may fail. At the end the application has the connections that it had before and takes the
CPU time that it took before, and every accepted message is there.
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

import sbpair
import sbpair.aio
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import NamespaceAccess
from sbpair.core.events import Event, FailedBack, FailedOver
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import describe
from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded, embedded

KINDS: dict[str, tuple[str, ...]] = {
    "dark": ("dark",),
    "refused": ("refuse", "drop"),
    "throttled": (f"throttle:entity={DESTINATION}",),
    "half-open": ("silent",),
    "token expired": (
        "detach:operation=send,condition=amqp:unauthorized-access,description=ExpiredToken: The token is expired.",
        "unauthorized:operation=attach,description=ExpiredToken: The token is expired.",
    ),
    "link detached": ("detach:operation=send",),
    "entity disabled": (f"disabled:entity={DESTINATION}", "detach"),
}
CALL_SECONDS = {"sender": 8.0, "client": 40.0, "senders": 8.0}
"""Time of one call of the application. With a sender for each call all workers may connect at once, which takes the
client alone 6 seconds of CPU time for 200 of them."""
OUTAGE_SECONDS = 4.0, 8.0
FORGIVEN_SECONDS = 2.0
"""After the failback."""
CALM_SECONDS = 4.0
MEASURED_SECONDS = 10.0
SETTLE_SECONDS = 45.0
"""Until what an outage had opened beside the senders' own links is closed again, when nobody uses it."""
RETURN_SECONDS = 30.0
START_SECONDS = 180.0
STOP_SECONDS = 120.0
PING_SECONDS = 1.0
MORE_CPU = 1.25, 0.02
"""What the application may take more afterwards: as a factor, and in cores; a machine with others on it varies."""
MORE_CONNECTIONS = {"sender": 0, "client": 10, "senders": 0}
"""A sender for each call opens and closes connections all the time."""
PROCESSES = 4
SENDERS = 20
"""Of each process, which its workers share, with `--over senders`."""
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Shape:
    """What the application is."""

    kind: str
    over: str
    workers: int
    pace_seconds: float
    """From one call of a worker to its next."""
    measured_seconds: float = MEASURED_SECONDS


# The application.


class Journal:
    """What came of the calls, a line each, and what the client announced."""

    def __init__(self, folder: Path, name: str) -> None:
        self._calls = (folder / f"calls-{name}").open("w", buffering=1 << 12)
        self._events = (folder / f"events-{name}").open("w", buffering=1)
        self._lock = threading.Lock()

    def call(self, began: float, message_id: str, error: Exception | None) -> None:
        text = "" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        with self._lock:
            self._calls.write(f"{began:.3f}\t{time.monotonic():.3f}\t{message_id}\t{text}\n")

    def event(self, event: Event) -> None:
        if isinstance(event, FailedBack | FailedOver):
            self._events.write(f"{time.monotonic():.3f}\t{type(event).__name__}\n")

    def close(self) -> None:
        with self._lock:
            self._calls.close()


def a_client(kind: Any, texts: Sequence[str], journal: list[Journal]) -> Any:
    primary, secondary, ca_file = texts
    host, away = (text.partition("sb://")[2].partition(";")[0].rstrip("/") for text in (primary, secondary))
    options = SendAvailabilityOptions(len(BACKLOG), 0.0, False, PING_SECONDS)
    pair = Pair(
        "soak", _access("primary", host, primary, ca_file), _access("secondary", away, secondary, ca_file), options
    )
    return kind.from_connection_string(
        primary, pair=pair, retry_total=1, retry_backoff_factor=0.05, on_event=lambda event: journal[-1].event(event)
    )


def _access(name: str, host: str, text: str, ca_file: str) -> NamespaceAccess:
    from sbpair.core.access import AuthMethod, Secret

    return NamespaceAccess(name, host, AuthMethod.CONNECTION_STRING, Secret(text), ca_file=ca_file)


async def tasks(shape: Shape, texts: Sequence[str], folder: Path, stop: Path) -> None:
    journal = Journal(folder, "0")
    async with a_client(sbpair.aio.ServiceBusClient, texts, [journal]) as client:
        shared = client.get_queue_sender(DESTINATION)

        async def send(sender: Any, message_id: str) -> None:
            if shape.over == "client":
                async with client.get_queue_sender(DESTINATION) as sender:
                    await sender.send_messages(a_message(message_id), timeout=CALL_SECONDS[shape.over])
            else:
                await sender.send_messages(a_message(message_id), timeout=CALL_SECONDS[shape.over])

        several = (
            [client.get_queue_sender(DESTINATION) for _ in range(SENDERS)] if shape.over == "senders" else [shared]
        )

        async def work(worker: int) -> None:
            sender = several[worker % len(several)]
            await asyncio.sleep(shape.pace_seconds * worker / shape.workers)
            number = 0
            while not stop.exists():
                number += 1
                began, message_id = time.monotonic(), f"0-{worker}-{number}"
                try:
                    await send(sender, message_id)
                except Exception as error:  # noqa: BLE001 - whatever it is, the application sees it
                    journal.call(began, message_id, error)
                else:
                    journal.call(began, message_id, None)
                await asyncio.sleep(max(0.0, began + shape.pace_seconds - time.monotonic()))

        await asyncio.gather(*map(work, range(shape.workers)))
    journal.close()


def threads(shape: Shape, client: Any, shared: Any, journal: Journal, process: int, stop: Path) -> None:
    def send(sender: Any, message_id: str) -> None:
        if shape.over == "client":
            with client.get_queue_sender(DESTINATION) as sender:
                sender.send_messages(a_message(message_id), timeout=CALL_SECONDS[shape.over])
        else:
            sender.send_messages(a_message(message_id), timeout=CALL_SECONDS[shape.over])

    several = [client.get_queue_sender(DESTINATION) for _ in range(SENDERS)] if shape.over == "senders" else [shared]

    def work(worker: int) -> None:
        sender = several[worker % len(several)]
        time.sleep(shape.pace_seconds * worker / shape.workers)
        number = 0
        while not stop.exists():
            number += 1
            began, message_id = time.monotonic(), f"{process}-{worker}-{number}"
            try:
                send(sender, message_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, the application sees it
                journal.call(began, message_id, error)
            else:
                journal.call(began, message_id, None)
            time.sleep(max(0.0, began + shape.pace_seconds - time.monotonic()))

    working = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(shape.workers)]
    for one in working:
        one.start()
    for one in working:
        one.join()
    journal.close()


def a_message(message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage("x" * 100, message_id=message_id)


def application(shape: Shape, texts: Sequence[str], folder: Path) -> None:
    stop = folder / "stop"
    if shape.kind == "tasks":
        asyncio.run(tasks(shape, texts, folder, stop))
        return
    journals = [Journal(folder, "0")]
    client = a_client(sbpair.ServiceBusClient, texts, journals)
    shared = client.get_queue_sender(DESTINATION)
    if shape.kind == "threads":
        with client:
            threads(shape, client, shared, journals[-1], 0, stop)
        return
    shared.send_messages(a_message("0-parent-1"))
    journals[-1].call(time.monotonic(), "0-parent-1", None)
    children = []
    for process in range(1, PROCESSES + 1):
        if (child := os.fork()) == 0:
            journals.append(Journal(folder, str(process)))
            threads(shape, client, shared, journals[-1], process, stop)
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    journals[0].close()


# Who takes it through the outages.


@dataclass(frozen=True)
class Call:
    began: float
    ended: float
    message_id: str
    error: str


@dataclass
class Outage:
    kind: str
    began: float
    healed: float = 0.0
    back: float = 0.0
    """The last failback after it; when it was healed if nothing had failed over."""
    over: float = 0.0
    """When the next one began."""
    failed: int = 0
    """Calls that failed while it lasted and until FORGIVEN_SECONDS after the failback."""
    late: list[str] = field(default_factory=list)
    """Errors after that."""
    served: int = 0
    """Calls that succeeded after that."""


@dataclass
class Result:
    shape: Shape
    outages: list[Outage] = field(default_factory=list)
    connections: tuple[int, int] = (0, 0)
    """Before the first outage and after the last."""
    cpu: tuple[float, float] = (0.0, 0.0)
    """Cores."""
    accepted: int = 0
    lost: list[str] = field(default_factory=list)
    twice: int = 0

    @property
    def cpu_is_as_before(self) -> bool:
        factor, cores = MORE_CPU
        return self.cpu[1] <= self.cpu[0] * factor + cores

    @property
    def connections_are_as_before(self) -> bool:
        before, after = self.connections
        return after <= before + MORE_CONNECTIONS[self.shape.over]

    @property
    def holds(self) -> bool:
        back = all(not one.late and one.served for one in self.outages)
        return back and not self.lost and self.connections_are_as_before and self.cpu_is_as_before


def report(result: Result) -> str:
    shape = result.shape
    lines = [f"{shape.workers} {shape.kind} over {shape.over}, a call each every {shape.pace_seconds:g} s"]
    for one in result.outages:
        errors = Counter(one.late).most_common(2) or ""
        lines.append(
            f"{one.kind:16} {one.healed - one.began:5.1f} s, back after {one.back - one.healed:5.1f} s, "
            f"{one.failed} failed, then {one.served} served and {len(one.late)} failed {errors}"
        )
    lines.append(
        f"connections {result.connections[0]} -> {result.connections[1]}, CPU {result.cpu[0]:.3f} -> "
        f"{result.cpu[1]:.3f} cores, {result.accepted} accepted, {len(result.lost)} lost, {result.twice} stored twice"
    )
    return "\n".join(lines)


class Driver:
    def __init__(self, on: Embedded, folder: Path, shape: Shape, say: Callable[[str], object]) -> None:
        self._on = on
        self._folder = folder
        self._say = say
        self.result = Result(shape)
        self._application = self._start(shape)

    def _start(self, shape: Shape) -> "subprocess.Popen[bytes]":
        texts = [
            one.connection_string.reveal() for one in (self._on.primary, self._on.secondary) if one.connection_string
        ]
        words = [shape.kind, shape.over, str(shape.workers), str(shape.pace_seconds)]
        command = [sys.executable, "-m", "tests.soak.clients", "--application", *words, str(self._folder)]
        variables = {**os.environ, "SOAK_TEXTS": "\n".join([*texts, str(self._on.primary.ca_file)])}
        log = (self._folder / "log").open("wb")
        return subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def run(self, outages: Sequence[tuple[str, float]]) -> None:
        try:
            self._until(lambda: len(list(self.calls())) > self.result.shape.workers, START_SECONDS, "calls succeed")
            time.sleep(CALM_SECONDS)
            before = self._measure()
            for kind, seconds in outages:
                self._outage(kind, seconds)
            self._until(lambda: self._connections() <= before[0], SETTLE_SECONDS, "", patient=True)
            after = self._measure()
            self.result.connections, self.result.cpu = (before[0], after[0]), (before[1], after[1])
        finally:
            (self._folder / "stop").touch()
            try:
                self._application.wait(STOP_SECONDS)
            finally:
                self._application.kill()
                self._application.wait()
        self._judge()

    def _outage(self, kind: str, seconds: float) -> None:
        outage = Outage(kind, time.monotonic())
        for fault in KINDS[kind]:
            self._on.strike("primary", fault)
        time.sleep(seconds)
        self._on.delay(0)
        outage.healed = outage.back = time.monotonic()
        # A process that has failed over says when it has failed back.
        self._until(lambda: self._away() == 0, RETURN_SECONDS, f"failback after {kind}")
        outage.back = max([outage.healed, *(at for at, what in self._events() if what == "FailedBack")])
        time.sleep(FORGIVEN_SECONDS + CALM_SECONDS)
        outage.over = time.monotonic()
        self.result.outages.append(outage)
        self._say(f"{kind}: back after {outage.back - outage.healed:.1f} s")

    def _away(self) -> int:
        """Processes that are failed over."""
        away = 0
        for file in self._folder.glob("events-*"):
            last = [what for _, what in _events_of(file)][-1:]
            away += last == ["FailedOver"]
        return away

    def _events(self) -> list[tuple[float, str]]:
        return [event for file in self._folder.glob("events-*") for event in _events_of(file)]

    def calls(self) -> Iterator[Call]:
        for file in self._folder.glob("calls-*"):
            for line in file.read_text().splitlines():
                parts = line.split("\t")
                if len(parts) == 4:
                    yield Call(float(parts[0]), float(parts[1]), parts[2], parts[3])

    def _until(self, condition: Callable[[], bool], seconds: float, what: str, *, patient: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline and patient:
                return
            gone = self._application.poll() is not None
            assert not gone and time.monotonic() < deadline, (
                f"not in time: {what}\n{(self._folder / 'log').read_text()[-3000:]}"
            )
            time.sleep(0.2)

    def _pids(self) -> list[int]:
        own = self._application.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return [own, *map(int, children)]

    def _measure(self) -> tuple[int, float]:
        """Connections, the median of several moments, and cores."""
        used, counted, began = self._cpu_seconds(), [], time.monotonic()
        while time.monotonic() - began < self.result.shape.measured_seconds:
            counted.append(self._connections())
            time.sleep(0.5)
        return int(statistics.median(counted)), (self._cpu_seconds() - used) / (time.monotonic() - began)

    def _cpu_seconds(self) -> float:
        ticks = 0
        for pid in self._pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICK

    def _connections(self) -> int:
        """Established connections of the application's processes."""
        established = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "01":
                    established.add(f"socket:[{fields[9]}]")
        open_files = set()
        for pid in self._pids():
            for one in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    open_files.add(str(one.readlink()))
        return len(established & open_files)

    def _judge(self) -> None:
        calls = list(self.calls())
        for outage in self.result.outages:
            quiet = outage.back + FORGIVEN_SECONDS
            for call in calls:
                if outage.began <= call.ended <= quiet:
                    outage.failed += bool(call.error)
                elif quiet < call.ended < outage.over:
                    outage.served += not call.error
                    outage.late += [call.error] if call.error else []
        stored = Counter(asyncio.run(_stored(self._on)))
        accepted = {call.message_id for call in calls if not call.error}
        self.result.accepted = len(accepted)
        self.result.lost = sorted(accepted - stored.keys())
        self.result.twice = sum(count > 1 for count in stored.values())


def _events_of(file: Path) -> list[tuple[float, str]]:
    lines = [line.split("\t") for line in file.read_text().splitlines() if line.count("\t") == 1]
    return [(float(at), what) for at, what in lines]


async def _stored(on: Embedded) -> list[str]:
    """Ids of all messages of both namespaces."""
    found: list[str] = []
    for access, paths in ((on.primary, (DESTINATION,)), (on.secondary, BACKLOG)):
        messaging = AzureMessaging(access)
        try:
            for path in paths:
                receiver, number = messaging.receiver(path), 1
                while page := await receiver.peek(250, from_sequence_number=number):
                    found += [str(describe(one.payload).message_id) for one in page]
                    number = page[-1].sequence_number + 1
                await receiver.close()
        finally:
            await messaging.close()
    return [one for one in found if not one.startswith("sbpair-ping-")]


def campaign(
    seed: int, shape: Shape, *, outages: int, say: Callable[[str], object] = print, kinds: Sequence[str] = tuple(KINDS)
) -> Result:
    """Outages of all kinds in a random order, each kind as often as any other."""
    chance = random.Random(seed)
    chosen = [kinds[number % len(kinds)] for number in range(outages)]
    chance.shuffle(chosen)
    with embedded() as on, tempfile.TemporaryDirectory() as folder:
        on.fill(0, 0)
        driver = Driver(on, Path(folder), shape, say)
        driver.run([(kind, chance.uniform(*OUTAGE_SECONDS)) for kind in chosen])
        return driver.result


PACE_SECONDS = {"sender": 4.0, "client": 40.0, "senders": 4.0}
"""A connection takes some 30 ms of CPU time of the client."""
WORKERS = {"tasks": 200, "threads": 200, "forks": 50}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.clients", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outages", type=int, default=30)
    parser.add_argument("--as", dest="kind", choices=WORKERS, default="tasks")
    parser.add_argument("--over", choices=("sender", "client", "senders"), default="sender")
    parser.add_argument("--workers", type=int, help="in each process; by default 200, of forks 50")
    parser.add_argument("--pace", type=float, help="seconds from one call of a worker to its next; see PACE_SECONDS")
    parser.add_argument("--application", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.application:
        kind, over, workers, pace, folder = chosen.application
        texts = os.environ["SOAK_TEXTS"].split("\n")
        application(Shape(kind, over, int(workers), float(pace)), texts, Path(folder))
        return
    shape = Shape(
        chosen.kind, chosen.over, chosen.workers or WORKERS[chosen.kind], chosen.pace or PACE_SECONDS[chosen.over]
    )
    result = campaign(chosen.seed, shape, outages=chosen.outages)
    print(report(result))
    sys.exit(0 if result.holds else 1)


if __name__ == "__main__":
    main()
