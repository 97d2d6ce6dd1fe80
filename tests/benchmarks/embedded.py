"""Both namespaces in a process of their own, so that a client's CPU time is its own; takes orders by lines of JSON."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.amqp.types import Long
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.rewrite import compose, for_backlog
from sbpair.emulator import Emulator
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.throttling import Throttling, ThrottlingLimits
from sbpair.engine.clock import SystemClock
from tests.benchmarks.processes import ask

BACKLOG = tuple(f"primary/x-servicebus-transfer/{index}" for index in range(10))
DESTINATION = "orders"
TOPICS, SUBSCRIPTIONS = 3, 99
"""Of a namespace that is given entities; the rest are queues."""
_NEVER = 10**9
COUNTED = ("attach", "send", "receive", "settle", "management", "http")


@dataclass(frozen=True)
class Embedded:
    """The running namespaces, seen from the benchmark."""

    process: "subprocess.Popen[str]"
    primary: NamespaceAccess
    secondary: NamespaceAccess

    def order(self, what: str, **values: Any) -> Any:
        """Have something done and wait for the answer."""
        return ask(self.process, what, **values)

    def fill(self, count: int, size_bytes: int) -> None:
        """Empty everything, then spread so many messages over the ten backlog queues."""
        self.order("fill", count=count, size_bytes=size_bytes)

    def delay(self, milliseconds: float) -> None:
        """Round trip added on both sides."""
        self.order("delay", milliseconds=milliseconds)

    def strike(self, namespace: str, fault: str) -> None:
        """Add a fault to `primary` or `secondary`."""
        self.order("fault", namespace=namespace, text=fault)

    def counts(self) -> dict[str, int]:
        """Messages: `home` and `backlog`."""
        counts: dict[str, int] = self.order("counts")
        return counts

    def entities(self, count: int) -> None:
        """Give the primary so many queues, topics and subscriptions: every second one holds messages, every fifth one
        dead letters of two causes, every tenth one requires sessions."""
        self.order("entities", count=count)

    def watch(self) -> None:
        """Begin to count the operations of both namespaces anew (takes back every fault)."""
        self.order("watch")

    def budget(self, primary: int | None, secondary: int | None) -> None:
        """Give the namespaces so many throttling credits a second from now on, None for any number, and count what is
        spent anew."""
        self.order("budget", primary=primary, secondary=secondary)

    def spent(self) -> dict[str, dict[str, Any]]:
        """Per namespace since `budget`: `credits`, those of the `busiest` second, requests `granted` and `refused`,
        the `first_second` and `last_second` of the clock in which credits were spent, and from that one to this
        `by_second` the credits and the requests refused."""
        spent: dict[str, dict[str, Any]] = self.order("spent")
        return spent

    def watched(self) -> dict[str, dict[str, int]]:
        """Operations per namespace since `watch`; `connect` are connections."""
        seen: dict[str, dict[str, int]] = self.order("watched")
        return seen


@contextmanager
def embedded(*, durable: bool = False) -> Iterator[Embedded]:
    """Start them; they end with the context. `durable` keeps everything on disk, as `--data-dir` does."""
    command = [sys.executable, "-m", "tests.benchmarks.embedded", *(["--durable"] if durable else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        told = json.loads(process.stdout.readline())
        sides = [
            NamespaceAccess(name, host_of(text), AuthMethod.CONNECTION_STRING, Secret(text), ca_file=told["ca_file"])
            for name, text in told["connection_strings"].items()
        ]
        try:
            yield Embedded(process, *sides)
        finally:
            process.stdin.close()


class _Counted(Throttling):
    """Counts by the second: credits, and requests refused."""

    def __init__(self, namespace: str, limits: ThrottlingLimits, clock: SystemClock) -> None:
        super().__init__(namespace, limits, clock)
        self.by_second: dict[int, tuple[int, int]] = {}

    def _add(self, credits: int, refused: int) -> None:
        second = math.floor(SystemClock().now())
        before = self.by_second.get(second, (0, 0))
        self.by_second[second] = before[0] + credits, before[1] + refused

    def charge(self, credits: int, size_bytes: int = 0) -> None:
        before = self.refused
        try:
            super().charge(credits, size_bytes)
        finally:
            self._add(0, self.refused - before)

    def spend(self, credits: int, size_bytes: int = 0) -> None:
        super().spend(credits, size_bytes)
        self._add(credits, 0)


class _Server:
    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._watching: dict[str, dict[str, str]] = {}

    def do(self, what: str, **values: Any) -> Any:
        return getattr(self, f"_{what}")(**values)

    def _fill(self, count: int, size_bytes: int) -> None:
        primary, secondary = (self._emulator.namespace(name) for name in ("primary", "secondary"))
        _make(primary, DESTINATION)
        queues = [_make(secondary, path) for path in BACKLOG]
        for number in range(count):
            payload = compose(
                body=bytes(size_bytes),
                message_id=f"message-{number:08}",
                subject="benchmark",
                application_properties={"tenant": "contoso", "number": Long(number)},
            )
            queues[number % len(queues)].send(for_backlog(payload, DESTINATION), 0)

    def _entities(self, count: int) -> None:
        namespace = self._emulator.namespace("primary")
        for number in range(count):
            topic, below = divmod(number, SUBSCRIPTIONS + 1)
            if topic < TOPICS:
                if not below:
                    namespace.create_topic(f"topic-{topic}", TopicDescription())
                else:
                    namespace.create_subscription(f"topic-{topic}", f"s-{below:03}", SubscriptionDescription())
                continue
            sessions = number % 10 == 0
            queue = namespace.create_queue(f"queue-{number:05}", QueueDescription(requires_session=sessions))
            if number % 5 == 0:
                for reason in ("TTLExpiredException", "MaxDeliveryCountExceeded", f"reason {number}"):
                    queue.send(compose(body="x", message_id="1", session_id="s" if sessions else None))
                    (message,) = queue.mailboxes[0].peek(0, 1, _NEVER)
                    queue.to_dead_letters(queue.mailboxes[0], message, reason, "")
            if number % 2 == 0:
                for session in range(3):
                    queue.send(compose(body="x", message_id="1", session_id=str(session) if sessions else None))

    def _delay(self, milliseconds: float) -> None:
        for name in self._emulator.names:
            faults = self._emulator.faults(name)
            faults.clear()
            if milliseconds:
                faults.add(f"delay:rtt={milliseconds}ms")

    def _fault(self, namespace: str, text: str) -> None:
        self._emulator.faults(namespace).add(text)

    def _counts(self) -> dict[str, int]:
        primary, secondary = (self._emulator.namespace(name) for name in ("primary", "secondary"))
        return {
            "home": sum(queue.counts().active for queue in primary.queues()),
            "backlog": sum(queue.counts().active for queue in secondary.queues()),
        }

    def _budget(self, **credits_per_second: int | None) -> None:
        for name, credits in credits_per_second.items():
            limits = ThrottlingLimits(credits_per_second=credits)
            self._emulator.namespace(name).throttling = _Counted(name, limits, SystemClock())

    def _spent(self) -> dict[str, dict[str, Any]]:
        spent: dict[str, dict[str, Any]] = {}
        for name in self._emulator.names:
            budget = self._emulator.namespace(name).throttling
            assert isinstance(budget, _Counted)
            first = budget.first_second or 0
            spent[name] = {
                "credits": budget.credits_spent,
                "busiest": budget.busiest_credits,
                "granted": budget.granted,
                "refused": budget.refused,
                "first_second": first,
                "last_second": budget.last_second,
                "by_second": [budget.by_second.get(one, (0, 0)) for one in range(first, budget.last_second + 1)],
            }
        return spent

    def _watch(self) -> None:
        """Faults that never strike, but count what they might have struck."""
        for name in self._emulator.names:
            faults = self._emulator.faults(name)
            faults.clear()
            ids = {operation: faults.add(f"fail:op={operation},after={_NEVER}") for operation in COUNTED}
            ids["connect"] = faults.add(f"refuse:after={_NEVER}")
            self._watching[name] = ids

    def _watched(self) -> dict[str, dict[str, int]]:
        seen: dict[str, dict[str, int]] = {}
        for name, ids in self._watching.items():
            by_id = {fault.id: fault.seen for fault in self._emulator.faults(name).list()}
            seen[name] = {operation: by_id[fault_id] for operation, fault_id in ids.items()}
        return seen


def _make(namespace: Namespace, path: str) -> Queue:
    """An empty queue, in place of the one that is there."""
    if namespace.get_queue(path) is not None:
        namespace.delete_queue(path)
    return namespace.create_queue(path, QueueDescription(max_size_in_megabytes=5120))


async def _serve(folder: str | None) -> None:
    async with Emulator(["primary", "secondary"], data_dir=folder) as emulator:
        strings = {name: emulator.connection_string(name) for name in emulator.names}
        print(json.dumps({"connection_strings": strings, "ca_file": str(emulator.ca_path)}), flush=True)
        server = _Server(emulator)
        server.do("fill", count=0, size_bytes=0)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(server.do(**json.loads(line))), flush=True)


def main() -> None:
    if "--durable" not in sys.argv:
        asyncio.run(_serve(None))
        return
    with TemporaryDirectory() as folder:
        asyncio.run(_serve(folder))


if __name__ == "__main__":
    main()
