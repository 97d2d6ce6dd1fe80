"""The namespaces of a world: each served by a process of its own, in memory or from its files, which outlive it."""

import base64
import hashlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from sbpair.core.access import AuthMethod, NamespaceAccess, Secret
from sbpair.emulator.broker.entity import Entity
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.sessions import DeliveryTarget, Lock, MessageSession
from sbpair.emulator.endpoints import Endpoints
from sbpair.emulator.entities import ROOT_KEY_NAME
from sbpair.emulator.namespace import Namespace, NamespaceStore
from sbpair.emulator.store import Store
from sbpair.engine.clock import SystemClock
from sbpair.engine.faults import Faults
from sbpair.engine.port import FirstBytes, Port
from sbpair.engine.tls import TlsFiles
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.trace import Trace


def beyond_ascii(seed: int) -> bool:
    """Whether sessions of this world have letters beyond ASCII. How the service compares these is unknown, so the
    namespaces of half of these worlds fold them, and of the others not."""
    return seed % 16 in (6, 7)


class Witness(Protocol):
    """Is told what a namespace keeps, once that is safe. `row` names a stored message as long as it is stored."""

    def stored(self, side: str, path: str, place: str, message: Message, row: int) -> None: ...
    def let_go(self, side: str, message: Message, row: int) -> None: ...


class Notes(NamespaceStore):
    """Keeps nothing: what is noted is safe at once."""

    def __init__(self, side: str, witness: Witness) -> None:
        self._side, self._witness = side, witness
        self._last_row = 0

    def restore(self, namespace: Namespace) -> None:
        """It begins empty."""

    def put_message(self, entity: Entity, place: str, message: Message) -> None:
        if not message.row:
            self._last_row += 1
            message.row = self._last_row
        self._witness.stored(self._side, entity.path, place, message, message.row)

    def drop_message(self, message: Message) -> None:
        row, message.row = message.row, 0
        if row:
            self._witness.let_go(self._side, message, row)


class KeptNotes(Store):
    """The product's own store on a disk that can be full; the witness is told after the commit."""

    def __init__(self, path: Path, side: str, witness: Witness) -> None:
        super().__init__(path)
        self._side, self._witness = side, witness
        self.failing = False

    def put_message(self, entity: Entity, place: str, message: Message) -> None:
        super().put_message(entity, place, message)
        twin = message.copy()  # it may have moved on when its commit comes
        twin.sequence_number, twin.state, row = message.sequence_number, message.state, message.row
        self.after_commit(lambda: self._witness.stored(self._side, entity.path, place, twin, row))

    def drop_message(self, message: Message) -> None:
        row = message.row
        super().drop_message(message)
        if row:
            self.after_commit(lambda: self._witness.let_go(self._side, message, row))

    def flush(self) -> None:
        if self.failing:
            raise sqlite3.OperationalError("database or disk is full")
        super().flush()

    def crash(self) -> None:
        """The process is gone, with all that was not committed."""
        self._closed = True
        self._database.close()


class Broker:
    """One namespace, and the process that serves it now.

    Args:
        file: where it keeps everything; None: in memory, so that it must not end.
        make: makes its entities, when there are none yet.
        session_lost: told of the lock of a session that ran out: this name, the entity's path, the session.
    """

    def __init__(
        self,
        name: str,
        port: int,
        *,
        seed: int,
        loop: SimulatedLoop,
        network: Network,
        trace: Trace,
        witness: Witness,
        file: Path | None,
        make: Callable[[Namespace], None],
        lock_expired: Callable[[Message], None],
        session_lost: Callable[[str, str, str], None],
        laws: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.port = name, port
        self._seed, self._loop, self._network, self._trace = seed, loop, network, trace
        self._witness, self._file, self._make = witness, file, make
        self._lock_expired, self._session_lost = lock_expired, session_lost
        self._laws = laws
        self.starts = 0
        self.process: Process
        self.namespace: Namespace
        self._store: Notes | KeptNotes

    @property
    def durable(self) -> bool:
        return self._file is not None

    def start(self, *, skew_seconds: float) -> None:
        """Serve, from the files if it has served before."""
        self.starts += 1
        self.process = Process(self._loop, self.name, skew_seconds=skew_seconds)
        self.process.on_end.append(self._ended)
        self._trace.note("broker", self.name, self.starts)
        self.process.context.run(self._serve)

    def _serve(self) -> None:
        clock, faults_seed = SystemClock(), f"{self._seed} {self.name} {self.starts}"
        file, witness = self._file, self._witness
        self._store = Notes(self.name, witness) if file is None else KeptNotes(file, self.name, witness)
        self.namespace = namespace = Namespace(
            self.name,
            clock=clock,
            faults=Faults(clock, faults_seed),
            store=self._store,
            key_source=self._keys,
            laws=({"session-key": "other"} if beyond_ascii(self._seed) and self._seed % 2 else {})
            | dict(self._laws or {}),
        )
        namespace.host, namespace.port = "localhost", self.port
        namespace.endpoint = f"localhost:{self.port}"
        if self.starts == 1:
            self._make(namespace)
        if isinstance(self._store, KeptNotes):
            self._store.flush()
        for queue in namespace.queues():
            queue.main.locks._on_expiry = self._expiry_of(queue.main.locks._on_expiry)
        subscriptions = [one for topic in namespace.topics() for one in namespace.subscriptions(topic.path)]
        for entity in (*namespace.queues(), *subscriptions):
            if (sessions := entity.main.sessions) is not None:
                sessions._on_lost = self._loss_of(entity.path, sessions._on_lost)
        # Never started: it only keeps the connections that the network gives it.
        port = Port(namespace, Endpoints(namespace), cast(TlsFiles, None), cast(Any, None))
        self._network.listen(self.port, self.process, lambda: FirstBytes(port), namespace.faults.refusing)

    def _expiry_of(self, expired: Callable[[Lock], None]) -> Callable[[Lock], None]:
        def told(lock: Lock) -> None:
            self._lock_expired(lock.message)
            expired(lock)

        return told

    def _loss_of(
        self, path: str, lost: Callable[[MessageSession, DeliveryTarget], None]
    ) -> Callable[[MessageSession, DeliveryTarget], None]:
        def told(session: MessageSession, holder: DeliveryTarget) -> None:
            self._session_lost(self.name, path, session.id)
            lost(session, holder)

        return told

    def _keys(self, rule: str) -> tuple[str, str]:
        """The same at each start."""
        digest = hashlib.sha256(f"{self._seed} {self.name} {rule}".encode()).digest()
        return base64.b64encode(digest).decode(), base64.b64encode(digest[::-1]).decode()

    def _ended(self, power: bool) -> None:
        self._trace.note("broker ends", self.name, "power" if power else "")
        self._network.process_ended(self.process, power)
        if isinstance(self._store, KeptNotes):
            self._store.crash()

    def disk_full(self, full: bool) -> None:
        if isinstance(self._store, KeptNotes):
            self._store.failing = full

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """As the broker's own process."""
        return self.process.context.copy().run(work, *arguments)

    def access(self) -> NamespaceAccess:
        key = self.namespace.auth_rules[ROOT_KEY_NAME].primary_key
        text = (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )
        return NamespaceAccess(
            self.name, f"localhost:{self.port}", AuthMethod.CONNECTION_STRING, connection_string=Secret(text)
        )
