"""A ledger means one thing: what it has as sent between two namespaces, whoever wrote it, nobody sends again.

Each writer sends messages of its own and leaves a ledger. Then all messages lie in their places again, as after crashes
before their completions, and each reader gets the ledgers of all writers: only the messages of nobody are left to it.
One that it sends besides names the pair of writer and reader.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import typer.main

from sbpair import operations
from sbpair.cli.app import app
from sbpair.connect import opened
from sbpair.core.errors import UsageError
from sbpair.core.message import Disposition, Received
from sbpair.core.rewrite import compose
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.report import DrainReport
from sbpair.emulator import Emulator
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.entities import QueueDescription
from sbpair.operations.in_place import find_message
from sbpair.operations.ledgers import ReportRequest, report
from sbpair.pipeline.executors import TaskConnection
from sbpair.pipeline.source.datasource import BacklogDataSource, ServiceBusDataSource
from sbpair.pipeline.spark.session import StartedSpark
from tests.pipeline.stage import Stage, backlog, entity_options

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.spark

QUEUE = backlog(0)
"""On both namespaces: an evacuation takes messages to the queue of the same name, so all others do."""
ACTIVE, DEAD, DEFERRED = "active", "dead", "deferred"
ALL = (ACTIVE, DEAD, DEFERRED)
NOBODY = "nobody"


@dataclass
class World:
    """The queue on the secondary, where the messages lie, and that on the primary, where they go."""

    stage: Stage
    session: StartedSpark
    kept: dict[str, Message]
    """All messages, by MessageId: `drain-dead` is a dead letter, and of the writer `drain`."""

    def place(self, writer: str | None = None) -> None:
        """Let the messages of a writer lie in their places, or all, and no others; nothing was sent."""

        def placed(emulator: Emulator) -> None:
            for name in ("shop-neu", "shop-weu"):
                queue = emulator.namespace(name).get_queue(QUEUE)
                assert queue is not None
                for box in (queue.main, queue.dead_letters):
                    for there in list(box.log.since(0)):
                        box.remove(there)
                if name == "shop-neu":
                    for message_id, one in self.kept.items():
                        of, _, kind = message_id.rpartition("-")
                        if writer in (None, of):
                            (queue.dead_letters if kind == DEAD else queue.main).add(as_it_was(one))

        self.stage.emulator.call(placed)

    def arrived(self) -> set[str]:
        """MessageIds, each once."""
        found = [str(one.message_id) for one in self.stage.at_home(QUEUE)]
        assert len(found) == len(set(found)), found
        return set(found)


def as_it_was(message: Message) -> Message:
    twin = message.copy()
    for name in ("sequence_number", "enqueued_at", "expires_at", "state", "dead_letter_source"):
        setattr(twin, name, getattr(message, name))
    return twin


@dataclass
class Job:
    """One run: its world, its ledger (a folder that may have lines of others), whose messages it may take."""

    world: World
    ledger: Path
    writer: str
    dry_run: bool = False

    @property
    def wanted(self) -> MessageFilter:
        return MessageFilter(where=None if self.writer == "%" else Where(f"sys.MessageId LIKE '{self.writer}-%'"))

    def on_ends(self, verb: Any, request: Any) -> Any:
        pair = self.world.stage.pair.resolve()
        return self.call(verb, request, (pair.secondary, pair.primary))

    def on_sides(self, verb: Any, request: Any) -> Any:
        return self.call(verb, request, self.world.stage.pair.resolve())

    def call(self, verb: Any, request: Any, where: Any) -> Any:
        async def called() -> Any:
            async with opened(where) as ends:
                asked = request
                if isinstance(request, operations.EditRequest):
                    documents = json.loads((await find_message(ends, request)).text)
                    edited = [{**one, "subject": "edited"} for one in documents]
                    asked = replace(request, text=json.dumps(edited))
                return await verb(ends, replace(asked, dry_run=self.dry_run), observer=None, stop=None)

        return asyncio.run(called())

    def sink(self, kind: str, *, stream: bool) -> None:
        """Rows of the queue, written by a job of a user's own."""
        stage, spark = self.world.stage, self.world.session.spark
        options = stage.options | {"ledger": str(self.ledger)}
        target = options | {"to": QUEUE} if kind == "sbpair-backlog" else entity_options(stage, QUEUE)
        target |= {"ledger": str(self.ledger)}
        rows = {**stage.options, "queues": "0", "deadLetters": "both"}
        if not stream:
            frame = spark.read.format("sbpair-backlog").options(**rows).load()
            frame.write.format(kind).mode("append").options(**target).save()
            return
        checkpoint = self.ledger.with_name(f"{self.ledger.name}-checkpoint")
        frame = spark.readStream.format("sbpair-backlog").options(**rows).load()
        writer = frame.writeStream.format(kind).options(**target, checkpointLocation=str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()


def drain(job: Job) -> Any:
    request = operations.DrainRequest(with_dead_letter=True, deferred=True, to=TO, ledger=job.ledger)
    return job.on_sides(operations.drain, request).report


def syphon(job: Job) -> Any:
    if job.dry_run:
        return None
    request = operations.SyphonRequest(with_dead_letter=True, to=TO, ledger=job.ledger, idle_seconds=3.0)
    return job.on_sides(operations.syphon, request).report


def resent(verb: Any, kind: type, **more: Any) -> "Callable[[Job], Any]":
    def run(job: Job) -> Any:
        return job.on_ends(verb, kind(QUEUE, to=QUEUE, ledger=job.ledger, **more)).report

    return run


def edit(job: Job) -> Any:
    request = operations.EditRequest(QUEUE, None, to=QUEUE, ledger=job.ledger)
    return job.on_ends(operations.edit, request).moved.report


def restore(job: Job) -> int:
    files = tuple(sorted((job.world.stage.folder / "files").glob("*.jsonl")))
    request = operations.RestoreRequest(
        files, job.wanted, to=QUEUE, ledger=job.ledger, although_in_the_queues=True, although_gone=True
    )
    return sum(job.on_ends(operations.restore, request).restored.sent.values())


def evacuate(job: Job) -> None:
    request = operations.EvacuateRequest(
        job.ledger, without=tuple(backlog(queue) for queue in (1, 2)), dead_letters=operations.DeadLettersTo.RESUBMIT
    )
    if not job.dry_run:
        job.on_ends(operations.evacuate, request)


def replay(job: Job) -> int:
    report = job.world.stage.replay(
        job.world.session, ledger=job.ledger, wanted=job.wanted, dry_run=job.dry_run, although_gone=True
    )
    return report.forwarded


def sink(kind: str, *, stream: bool = False) -> "Callable[[Job], None]":
    def run(job: Job) -> None:
        if not job.dry_run:
            job.sink(kind, stream=stream)

    return run


TO = operations.ToQueue(QUEUE)


@dataclass(frozen=True)
class Row:
    """A command or job that sends by a ledger, and which messages it takes."""

    run: "Callable[[Job], DrainReport | int | None]"
    """Says how many messages it has sent, or in a dry run would send; None: it says no number of messages."""
    kinds: tuple[str, ...] = ALL
    _: KW_ONLY
    request: type | None = None
    is_job: bool = False
    rows: bool = False
    """Its ledger says that its messages came from rows, not from which namespace."""


ROWS = {
    "drain": Row(drain, request=operations.DrainRequest),
    "syphon": Row(syphon, (ACTIVE, DEAD), request=operations.SyphonRequest),
    "move": Row(resent(operations.move, operations.MoveRequest, with_dead_letter=True), request=operations.MoveRequest),
    "copy": Row(resent(operations.copy, operations.CopyRequest, with_dead_letter=True), request=operations.CopyRequest),
    "dlq resubmit": Row(
        resent(operations.resubmit, operations.ResubmitRequest), (DEAD,), request=operations.ResubmitRequest
    ),
    "undefer": Row(
        resent(operations.undefer, operations.UndeferRequest), (DEFERRED,), request=operations.UndeferRequest
    ),
    "edit": Row(edit, (ACTIVE, DEFERRED), request=operations.EditRequest),
    "restore": Row(restore, request=operations.RestoreRequest),
    "evacuate": Row(evacuate, request=operations.EvacuateRequest),
    "pipeline replay": Row(replay, is_job=True),
    "batch of sbpair-backlog": Row(sink("sbpair-backlog"), is_job=True),
    "stream of sbpair-backlog": Row(sink("sbpair-backlog", stream=True), is_job=True),
    "batch of servicebus": Row(sink("servicebus"), is_job=True, rows=True),
    "stream of servicebus": Row(sink("servicebus", stream=True), is_job=True, rows=True),
}
SEND_NOTHING = {
    "pipeline archive": "records what it takes out of queues",
    "pipeline follow": "the same",
    "pipeline reconcile": "only reads",
    "promotion report": "only reads",
}


def writer_name(command: str) -> str:
    return command.replace(" ", "_")


@pytest.fixture
def world(session: StartedSpark, stage: Stage) -> World:
    """Of each writer and of nobody a message of each kind, in their places and in both kinds of archives."""
    stage.emulator.namespace("shop-weu").create_queue(QUEUE, QueueDescription())
    stage.emulator.namespace("shop-neu").create_queue("aside", QueueDescription())
    ids = [f"{writer_name(one)}-{kind}" for one in (*ROWS, NOBODY) for kind in ALL]
    stage.divert([compose(body=one, message_id=one) for one in ids], destination=QUEUE)
    with TaskConnection.to(stage.pair, "secondary") as connection:
        receiver = connection.receiver(QUEUE, dead_letter=False)
        got: list[Received] = []
        while len(got) < len(ids):
            got += connection.run(receiver.receive(100, wait_seconds=10))
        for one in got:
            kind = str(one.message_id).rpartition("-")[2]
            connection.run(receiver.settle(one, HOW[kind]))
    made = World(stage, session, {})

    def keep(emulator: Emulator) -> None:
        queue = emulator.namespace("shop-neu").get_queue(QUEUE)
        assert queue is not None
        made.kept.update(
            {str(one.message_id): as_it_was(one) for box in (queue.main, queue.dead_letters) for one in box.log}
        )

    stage.emulator.call(keep)
    assert set(made.kept) == set(ids)
    stage.archive(session, dead_letters=(False, True))
    request = operations.DrainRequest(
        with_dead_letter=True, deferred=True, to=operations.ToArchive(stage.folder / "files")
    )
    Job(made, Path(), "%").on_sides(operations.drain, request)
    return made


HOW = {ACTIVE: Disposition.RELEASE, DEAD: Disposition.DEAD_LETTER, DEFERRED: Disposition.DEFER}


def written(world: World) -> Path:
    """The folder with the ledger of each writer, after it has sent its messages."""
    folder = world.stage.folder / "written"
    for name, row in ROWS.items():
        writer = writer_name(name)
        world.place(writer)
        row.run(Job(world, made(folder / writer), writer))
        assert world.arrived() == {f"{writer}-{kind}" for kind in row.kinds}, name
    return folder


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def together(folder: Path, writers: Iterable[str], to: Path) -> Path:
    """Their ledgers in one folder."""
    made(to)
    for writer in writers:
        for file in (folder / writer).glob("*.jsonl"):
            shutil.copy(file, to / f"{writer}-{file.name}")
    return to


def test_what_one_has_sent_no_other_sends_again(world: World) -> None:
    ledgers, wrong = written(world), []
    sent = {f"{writer_name(name)}-{kind}" for name, row in ROWS.items() for kind in row.kinds}
    of_rows = {writer_name(name) for name, row in ROWS.items() if row.rows}
    for name, row in ROWS.items():
        # A command of namespaces does not continue a ledger that names none: see the next test.
        takes = {writer_name(one) for one in ROWS} - (set() if row.is_job else of_rows)
        ledger = together(ledgers, takes, world.stage.folder / "read" / writer_name(name))
        known = {one for one in sent if one.rpartition("-")[0] in takes}
        expected = {one for one in world.kept if one.rpartition("-")[2] in row.kinds} - known
        for dry_run in (True, False):
            world.place()
            told = row.run(Job(world, ledger, "%", dry_run))
            number = told.forwarded if isinstance(told, DrainReport) else told
            if number not in (None, len(expected)):
                wrong.append(f"{name} {'would send' if dry_run else 'says it sent'} {number}, not {len(expected)}")
        arrived = world.arrived()
        wrong += [f"{name} sends {one} again" for one in sorted(arrived - expected)]
        wrong += [f"{name} does not send {one}" for one in sorted(expected - arrived)]
    assert wrong == [], "\n".join(wrong)

    # Who only reads counts the same.
    everything = together(ledgers, map(writer_name, ROWS), world.stage.folder / "all")
    found = world.stage.reconcile(world.session, [world.stage.archive_path], [str(everything)])
    assert found.counts.unaccounted == len(world.kept.keys() - sent)
    incident = asyncio.run(report(ReportRequest((everything,))))
    assert incident.sent == len(sent)

    # A ledger that does not say from which namespace is not continued by a command, and nothing is sent.
    for name, row in ROWS.items():
        if not row.is_job:
            world.place()
            ledger = together(ledgers, of_rows, world.stage.folder / "of-rows" / writer_name(name))
            with suppress(UsageError):
                row.run(Job(world, ledger, "%"))
            assert world.arrived() == set(), name


def test_ledgers_between_other_namespaces_are_no_reason_to_leave_a_message_out(world: World) -> None:
    """As long as a command does not refuse them: what went elsewhere has not come here."""
    pair = world.stage.pair.resolve()
    world.place("drain")
    job = Job(world, made(world.stage.folder / "elsewhere"), "drain")
    job.call(operations.copy, operations.CopyRequest(QUEUE, to="aside", ledger=job.ledger), pair.secondary)
    for name, run in (("replay", replay), ("sink", sink("sbpair-backlog"))):
        world.place("drain")
        run(Job(world, together(job.ledger, [""], world.stage.folder / name), "drain"))
        assert {one.rpartition("-")[2] for one in world.arrived()} == set(ALL)


def test_each_command_request_and_job_with_a_ledger_is_among_them() -> None:
    def with_ledger(command: Any, context: Any, *path: str) -> Iterator[str]:
        if any("--ledger" in one.opts for one in command.params):
            yield " ".join(path)
        for name in getattr(command, "commands", ()) or getattr(command, "list_commands", lambda _: ())(context):
            found = command.get_command(context, name)
            yield from with_ledger(found, click.Context(found, info_name=name, parent=context), *path, name)

    root: Any = typer.main.get_command(app)
    jobs = {name for name in ROWS if " of " in name}
    assert {*with_ledger(root, click.Context(root))} == ROWS.keys() - jobs | SEND_NOTHING.keys()
    public = [getattr(operations, name) for name in operations.__all__ if name.endswith("Request")]
    requests = {one for one in public if is_dataclass(one) and any(each.name == "ledger" for each in fields(one))}
    assert requests == {row.request for row in ROWS.values()} - {None}
    kinds = {kind.name() for kind in (BacklogDataSource, ServiceBusDataSource)}
    assert jobs == {f"{how} of {kind}" for how in ("batch", "stream") for kind in kinds}
