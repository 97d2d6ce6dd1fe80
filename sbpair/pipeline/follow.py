"""`pipeline follow`: keeps an archive up to date while a backlog grows.

It looks into the queues again and again and has `archive` do what is new, so the manifest alone says how far it came: a
run that was killed anywhere leaves whole commits, and the next one goes on from there. Nothing is archived twice. With
`take` each round removes from the queues what its committed files hold, as `archive` does it.

Looks are billed. Most of them only ask each queue for what lies behind the archive. Now and then, and before it ends,
the queues are listed and browsed from the start: that finds queues that were made since, or made again.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.core.cost.model import FOLLOW_LIST_SECONDS
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.message import Received
from sbpair.core.names import split_source
from sbpair.core.transfer.restored import Unsendable
from sbpair.operations.restore import MOST_LINE_BYTES, NO_MESSAGE, received_in
from sbpair.pipeline.archive import ArchiveRequest, Tell, anything_behind, archive, open_store, plan_archive
from sbpair.pipeline.delta import publish
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.files import UnitFiles
from sbpair.pipeline.manifest import Commit, Covered, LocalStore, Manifest, Store, append, is_folder
from sbpair.pipeline.reports import ArchiveReport, FollowReport, Imported
from sbpair.pipeline.rows import message_row
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, NumberRange
from sbpair.pipeline.spark.session import Stop, signals_as_errors
from sbpair.runtime.transfer.restore import keep_lines

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark


WHOLE_POLL_SECONDS = FOLLOW_LIST_SECONDS
"""After this time the next look is a whole one."""


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """What to keep up to date, and until when."""

    archiving: ArchiveRequest
    every_seconds: float
    """Pause between two looks."""
    for_seconds: float | None = None
    until_idle_seconds: float | None = None
    """End when nothing new was found for this long."""


def follow(
    session: "Callable[[], StartedSpark]",
    request: FollowRequest,
    *,
    tell: Tell | None = None,
    begun: Callable[[], None] = lambda: None,
    added: Callable[[ArchiveReport], None] = lambda done: None,
) -> FollowReport:
    """Archive what is new until the time is over, nothing comes any more, or SIGINT or SIGTERM; `ended` says which.

    Args:
        session: Spark's session, first asked for when there is something to archive.
        begun: called once a signal ends the run in good order.
        added: told of each round that changed something.

    Raises:
        SbpairError: the queues cannot be read or the archive cannot be written. What was committed before it stays.
    """
    into = request.archiving.into
    store: Store = LocalStore(Path(into)) if is_folder(into) else open_store(session().context, into)
    publish(store, wanted=request.archiving.delta)  # what a run that was killed has committed
    report = FollowReport(request.archiving.pair.name, store.uri, take=request.archiving.take)
    began, rows = time.monotonic(), store.manifest().rows
    try:
        with signals_as_errors() as stop:
            begun()
            _rounds(session, request, store, report, stop, tell, added)
    except KeyboardInterrupt:
        report.ended = "interrupted"
    except InterruptedWorkError as stopped:
        report.ended = stopped.exit_name
    report.total_rows = store.manifest().rows
    report.rows = report.total_rows - rows  # a round that was interrupted had commits, too
    report.seconds = time.monotonic() - began
    return report


def _rounds(
    session: "Callable[[], StartedSpark]",
    request: FollowRequest,
    store: Store,
    report: FollowReport,
    stop: Stop,
    tell: Tell | None,
    added: Callable[[ArchiveReport], None],
) -> None:
    archiving, began = request.archiving, time.monotonic()
    moved, whole, next_whole = began, False, 0.0
    sources: tuple[tuple[str, bool], ...] = ()
    while True:
        stop.check()
        manifest = store.manifest()
        whole = whole or bool(report.left) or time.monotonic() >= next_whole
        if not whole:
            whole = anything_behind(archiving, manifest, sources)
        if whole:
            plan = plan_archive(archiving, manifest)
            sources, next_whole = plan.sources, time.monotonic() + WHOLE_POLL_SECONDS
            if plan.missing or (archiving.take and plan.present):
                done = archive(session(), archiving, plan=plan, tell=tell)
                report.settled += done.settled
                report.throttled += done.throttled
                report.waited_seconds += done.waited_seconds
                report.left = done.left
                if done.rows or done.settled:
                    report.rounds += 1
                    moved = time.monotonic()
                    added(done)
            else:
                report.left = {}
        now = time.monotonic()
        ends = {"time": (began, request.for_seconds), "idle": (moved, request.until_idle_seconds)}
        waits = {name: since + most - now for name, (since, most) in ends.items() if most is not None}
        over = [name for name, seconds in waits.items() if seconds <= 0]
        if over and whole:
            report.ended = over[0]
            return
        whole = bool(over)
        if not whole:
            time.sleep(min([request.every_seconds, *waits.values()]))


# Takes the JSON Lines file that `sbpair drain --archive DIR` writes into a Parquet archive.
#
# One process wrote it, so one process reads it. A file is taken in once: the commit bears a digest of it. A line that
# holds no message is copied into the folder `unsent` beside the file, as `restore` does.


def import_drained(store: LocalStore, pair: str, file: Path) -> Imported:
    """Add the messages of a drain's archive; nothing if the same file was added before.

    Raises:
        UsageError: not such a file: no line of it is a message.
        SbpairError: the lines without a message cannot be kept. Nothing was added.
        ArchiveError: the archive cannot be written.
    """
    run = f"import-{_digest(file)}"
    if any(commit.run == run for commit in store.manifest().commits):
        return Imported(pair, store.uri, file, {}, 0)
    by_source: dict[str, UnitFiles] = {}
    unreadable: list[Unsendable] = []
    with ExitStack() as files:
        for received in _messages(file, unreadable):
            if (source := received.source) not in by_source:
                span = NumberRange(*split_source(source), 0, LAST_SEQUENCE_NUMBER)
                by_source[source] = files.enter_context(UnitFiles(store.root, run, pair, span))
            by_source[source].add([message_row(pair, received)])
        if unreadable and not by_source:
            raise UsageError(f"Line {unreadable[0].line} of {file}, and all others, are no lines of a drain's archive.")
        kept_in = keep_lines(unreadable)
    added = [one for unit in by_source.values() for one in unit.written]
    taken = tuple(Covered(one.pair, one.queue, one.dead_letter, one.first, one.last) for one in added)
    append(store, Commit(time.time(), run, added=tuple(added), taken=taken), still_valid=partial(_refuse_twice, run))
    per_queue = Counter[str]()
    for one in added:
        per_queue[one.queue] += one.rows
    return Imported(pair, store.uri, file, per_queue, len(added), tuple(one.line for one in unreadable), kept_in)


def _refuse_twice(run: str, manifest: Manifest) -> None:
    if any(commit.run == run for commit in manifest.commits):
        raise ArchiveError("Somebody else has added the same file meanwhile; nothing was added twice.")


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error}.") from error


def _messages(file: Path, unreadable: list[Unsendable]) -> Iterator[Received]:
    """The whole lines; one that a crash cut off was never settled, so its message is still in the queue."""
    with file.open("rb") as opened:
        offset = 0
        for number, line in enumerate(iter(lambda: opened.readline(MOST_LINE_BYTES), b""), 1):
            begins_at, offset = offset, offset + len(line)
            if not line.endswith(b"\n") and not opened.peek(1):
                return
            try:
                yield received_in(json.loads(line))
            except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError):
                why = "It is not a line of a drain's archive."
                unreadable.append(Unsendable(file, number, begins_at, len(line), NO_MESSAGE, why))
