"""Embedded namespaces, a configuration that names their keys by file, and what the pipeline's tests do with them."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbpair.core.message import Disposition, Received
from sbpair.core.rewrite import compose, for_backlog
from sbpair.emulator import EmulatorThread
from sbpair.emulator.entities import QueueDescription
from sbpair.pipeline.archive import ArchiveRequest, archive
from sbpair.pipeline.executors import PairByName, TaskConnection
from sbpair.pipeline.reconcile import reconcile
from sbpair.pipeline.replay import ReplayRequest, replay
from sbpair.pipeline.reports import ArchiveReport, ReconcileReport, ReplayReport
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.pipeline.tables import LocalTables, SparkTables

QUEUES = 3
CONFIGURATION = """\
version: 1
pairs:
  shop:
    primary: {{namespace: shop-weu, host: localhost, connection_string: {{file: {folder}/shop-weu.key}}, ca_file: {ca}}}
    secondary:
      {{namespace: shop-neu, host: localhost, connection_string: {{file: {folder}/shop-neu.key}}, ca_file: {ca}}}
    backlog_queues: {queues}
"""


@dataclass
class Stage:
    """A pair on embedded namespaces."""

    emulator: EmulatorThread
    config: Path
    folder: Path

    @property
    def pair(self) -> PairByName:
        return PairByName.load("shop", self.config)

    @property
    def options(self) -> dict[str, str]:
        """Options of the data source."""
        return {"pair": "shop", "config": str(self.config)}

    @property
    def archive_path(self) -> str:
        return str(self.folder / "archive")

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def key(self, namespace: str) -> str:
        """The secret part of a namespace's connection string."""
        text = self.emulator.connection_string(namespace)
        return next(part for part in text.split(";") if part.startswith("SharedAccessKey=")).partition("=")[2]

    def divert(self, payloads: Sequence[bytes], *, queue: int = 0, destination: str = "orders") -> None:
        """Put messages into a backlog queue as a failover sender does."""
        self.send("secondary", backlog(queue), [for_backlog(one, destination) for one in payloads])

    def send(self, side: str, entity: str, payloads: Sequence[bytes]) -> None:
        with TaskConnection.to(self.pair, side) as connection:
            sender = connection.messaging.sender(entity)
            for start in range(0, len(payloads), 100):
                connection.run(sender.send(payloads[start : start + 100], timeout_seconds=30))

    def browse(self, side: str, entity: str, *, dead_letter: bool = False) -> list[Received]:
        found: list[Received] = []
        with TaskConnection.to(self.pair, side) as connection:
            receiver = connection.receiver(entity, dead_letter=dead_letter)
            while page := connection.run(
                receiver.peek(250, from_sequence_number=found[-1].sequence_number + 1 if found else 1)
            ):
                found += page
        return found

    def at_home(self, entity: str = "orders") -> list[Received]:
        return self.browse("primary", entity)

    def in_backlog(self) -> int:
        return sum(len(self.browse("secondary", backlog(queue))) for queue in range(QUEUES))

    def active_in_backlog(self) -> int:
        """The same as the broker counts it, from any thread and without a connection."""
        queues = (self.emulator.namespace("shop-neu").get_queue(backlog(queue)) for queue in range(QUEUES))
        return sum(queue.counts().active for queue in queues if queue is not None)

    def dead_letter_all(self, queue: int, reason: str) -> None:
        with TaskConnection.to(self.pair, "secondary") as connection:
            receiver = connection.receiver(backlog(queue), dead_letter=False)
            for one in connection.run(receiver.receive(100, wait_seconds=10)):
                connection.run(receiver.settle(one, Disposition.DEAD_LETTER, reason=reason, description="by a test"))

    def archive(self, session: StartedSpark, **changes: Any) -> ArchiveReport:
        plain = ArchiveRequest(self.pair, self.archive_path, unit_messages=100)
        return archive(session, dataclasses.replace(plain, **changes))

    def replay(self, session: StartedSpark, **changes: Any) -> ReplayReport:
        """Most tests are about what is sent; that it waits in the queues as well is their convenience."""
        plain = ReplayRequest(self.pair, (self.archive_path,), self.ledger, although_in_queues=True)
        request = dataclasses.replace(plain, **changes)
        report = replay(SparkTables(session), request, session=session)
        if request.dry_run:  # the other engine says the same
            here = replay(LocalTables(), request)
            assert dataclasses.replace(here, run=report.run, seconds=report.seconds) == report
        return report

    def reconcile(
        self, session: StartedSpark, archives: Sequence[str], ledgers: Sequence[str], **more: Any
    ) -> ReconcileReport:
        """By both engines, which have to say the same."""
        report = reconcile(SparkTables(session), archives, ledgers, **more)
        assert reconcile(LocalTables(), archives, ledgers, **more) == report
        return report


def rows_in(session: StartedSpark, *archives: str) -> list[dict[str, Any]]:
    """What archives hold, each message once, by their numbers."""
    tables = SparkTables(session)
    tables.archived(archives, once=True, of_backlog=False)
    return tables.query("select * from archived order by sequence_number", "Reading")


def entity_options(stage: Stage, entity: str = "orders") -> dict[str, str]:
    """Options of the data source `servicebus` for an entity of the primary."""
    return {
        "namespace": "shop-weu",
        "host": "localhost",
        "connectionStringFile": str(stage.folder / "shop-weu.key"),
        "caFile": str(stage.emulator.ca_path),
        "entity": entity,
    }


def backlog(queue: int) -> str:
    return f"shop-weu/x-servicebus-transfer/{queue}"


def messages(count: int, *, prefix: str = "m", sessions: int = 0, **options: Any) -> list[bytes]:
    """Small messages with ids `m-0`, `m-1`, ...; with sessions they take turns."""
    return [
        compose(
            body=f"body {number}",
            message_id=f"{prefix}-{number}",
            session_id=f"s-{number % sessions}" if sessions else None,
            **options,
        )
        for number in range(count)
    ]


@contextmanager
def on_stage(folder: Path) -> Iterator[Stage]:
    with EmulatorThread(["shop-weu", "shop-neu"]) as emulator:
        for name in ("shop-weu", "shop-neu"):
            (folder / f"{name}.key").write_text(emulator.connection_string(name))
        for queue in range(QUEUES):
            emulator.namespace("shop-neu").create_queue(backlog(queue), QueueDescription())
        emulator.namespace("shop-weu").create_queue("orders", QueueDescription())
        config = folder / "sbpair.yaml"
        config.write_text(CONFIGURATION.format(folder=folder, ca=emulator.ca_path, queues=QUEUES))
        yield Stage(emulator, config, folder)
