"""What archive, replay, reconcile and replication-audit report and print with -o json; without Spark and Arrow."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from sbpair.core.durations import format_duration
from sbpair.core.outcome import Exit
from sbpair.core.serialization import AS_TIME, HIDDEN, INLINED, column, named, published, rounded
from sbpair.core.transfer.verdict import NOT_CONFIGURED
from sbpair.core.words import counted, listed
from sbpair.pipeline.spans import NumberRange


@dataclass(slots=True, kw_only=True)
class _OfTasks:
    """What the tasks of a job met, all of them together."""

    throttled: int = 0
    """How often the namespace refused a request because it was too busy; of an archive at a URI, where Spark writes, it
    is not counted."""
    waited_seconds: float = field(default=0.0, metadata=rounded(3))
    """How long they waited for the namespace's limits, or for what --reserve leaves."""
    seconds: float = field(default=0.0, metadata=rounded(3))

    def _waits(self) -> Iterator[str]:
        if self.throttled:
            came = counted(self.throttled, "request")
            yield f"{came} came when the namespace was too busy, and waited."
        if seconds := round(self.waited_seconds):
            waited = format_duration(seconds)
            yield f"The tasks waited {waited} in all for the namespace's limits or what --reserve leaves."


@dataclass(slots=True)
class _Archived(_OfTasks):
    """What was added to an archive, and removed from the queues."""

    pair: str
    archive: str
    _: KW_ONLY
    rows: int = 0
    settled: int = 0
    """Archived messages that were removed from their queues."""
    left: dict[str, int] = field(default_factory=dict)
    """Archived messages that could not be removed, by reason; by the last round of a run that goes on."""
    total_rows: int = 0
    take: bool = field(default=False, metadata=HIDDEN)
    """Whether they were to be removed."""

    @property
    def exit(self) -> Exit:
        return Exit.PARTIAL if self.left else Exit.OK

    def notes(self) -> Iterator[str]:
        for reason, count in sorted(self.left.items()):
            yield f"Left in the queue: {count:,} ({reason})"
        yield from self._waits()

    def summary(self) -> str:
        taken = f"; {self.settled:,} removed from their queues" if self.take else ""
        return f"{counted(self.rows, 'message')} added to {self.archive}, which has {self.total_rows:,}{taken}."


@dataclass(slots=True)
class ArchiveReport(_Archived):
    """What a run did. `spans`: what it found not yet covered."""

    run: str
    spans: tuple[NumberRange, ...] = field(default=(), metadata=named("not_archived_before"))
    bytes: int = 0
    files: int = 0
    retried: int = 0
    """Units that needed more than one attempt."""
    gone: int = 0
    """Archived messages that somebody else had taken out of their queue before they were completed here."""
    compacted: int = 0
    unnamed: int = 0
    """Files under `data/` that do not belong to the archive, or no longer: replaced ones, and those of a run that was
    killed. They stay for a day; a glob over `data/` reads their messages too."""
    per_queue: dict[str, int] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.dry_run and self.spans else super(ArchiveReport, self).exit

    def notes(self) -> Iterator[str]:
        yield from super(ArchiveReport, self).notes()
        if self.gone:
            yield (
                f"{counted(self.gone, 'archived message')} had left the queues before: removed by an interrupted run "
                "of this command, or sent back by a drain. Give the drain's ledger to `sbpair pipeline replay`."
            )
        if self.unnamed:
            yield (
                f"{counted(self.unnamed, 'file')} under data/ {'is' if self.unnamed == 1 else 'are'} not part of the "
                "archive and will go in a day. Do not read data/ by a glob: the commands of `sbpair pipeline` read "
                "what the commits name, and so do readers of Delta tables with --format delta."
            )

    def summary(self) -> str:
        if self.dry_run:
            return f"{counted(len(self.spans), 'sequence-number range')} not archived yet; nothing was changed."
        return super(ArchiveReport, self).summary()


@dataclass(slots=True)
class FollowReport(_Archived):
    """What a run that kept an archive up to date has done."""

    rounds: int = 0
    """That archived or removed something."""
    ended: str = ""
    """time (`--for`), idle (`--until-idle`), interrupted or terminated."""

    @property
    def exit(self) -> Exit:
        stopped = {"interrupted": Exit.INTERRUPTED, "terminated": Exit.TERMINATED}
        return stopped.get(self.ended) or super(FollowReport, self).exit

    def summary(self) -> str:
        ends = {"time": "The time is over", "idle": "Nothing new has come"}
        return f"{ends.get(self.ended, self.ended.capitalize())}. {super(FollowReport, self).summary()}"


@dataclass(frozen=True, slots=True)
class Imported:
    """A file of a drain that was added; no rows if it had been added before."""

    pair: str = field(metadata=HIDDEN)
    archive: str
    imported: Path
    per_queue: Mapping[str, int] = field(metadata=HIDDEN)
    files: int
    lines: tuple[int, ...] = field(default=(), metadata=HIDDEN)
    """Numbers of the lines that held no message."""
    unsent: tuple[Path, ...] = field(default=(), metadata=HIDDEN)
    """Files in the folder `unsent` beside the file, which have those lines."""

    @published
    def rows(self) -> int:
        return sum(self.per_queue.values())

    @published
    def unreadable(self) -> int:
        return len(self.lines)

    @property
    def exit(self) -> Exit:
        return Exit.PARTIAL if self.lines else Exit.OK

    def summary(self) -> str:
        if not self.files:
            return f"{self.imported} had been added before; nothing was added."
        text = f"{counted(self.rows, 'message')} of {self.imported} added."
        if self.lines:
            numbers = ", ".join(map(str, self.lines[:3])) + (", ..." if len(self.lines) > 3 else "")
            add = f"sbpair pipeline archive {self.pair} --archive {self.archive} --import {self.unsent[0]}"
            text += (
                f" {counted(len(self.lines), 'line')} (line {numbers}) held no message; kept in {self.unsent[0]}. "
                f"Correct and add them: {add}"
            )
        return text


ArchivePrinted = ArchiveReport | Imported


class Dedupe(StrEnum):
    """What counts as the same message of a replay."""

    STORED = "stored"
    """The same place in the same queue: several archives may hold it."""
    CONTENT = "content"
    """Also other copies with the same message id, destination, session and content, as a sender leaves them that was
    not sure whether its send had arrived."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became, or would become, of some of the messages of a replay."""

    what: str = field(metadata=column("Outcome"))
    where: str = field(metadata=column("Destination or reason"))
    messages: int = field(metadata=column("Messages", counts=True))


@dataclass(slots=True)
class ReplayReport(_OfTasks):
    """What became of the rows that matched. In a dry run `outcomes` says what would."""

    pair: str
    run: str
    ledger: str
    matched: int = 0
    already_done: int = 0
    """In the ledger from earlier runs."""
    duplicates: int = 0
    waiting: int | None = 0
    """Of those to be sent: still in their backlog queues or these's dead-letter queues. None: nobody looked."""
    gone: int | None = 0
    """Of those to be sent: no longer in their queues, although no archive took them out. None: nobody looked."""
    outcomes: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    per_destination: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)
    """By destination, what was left because only the pair's configured entities are sent to."""
    refused_files: tuple[str, ...] = ()
    """Files of the ledger's folder that hold what was refused, as `restore` takes it."""
    resent: int = 0
    skipped_by_retry: int = 0
    dry_run: bool = False

    @property
    def forwarded(self) -> int:
        return self.outcomes.get("forwarded", 0)

    @property
    def exit(self) -> Exit:
        if self.dry_run:
            return Exit.FINDINGS if self.forwarded else Exit.OK
        if self.elsewhere or (self.refusals and self.forwarded):
            return Exit.PARTIAL
        return Exit.FAILED if self.refusals else Exit.OK

    def fates(self) -> Iterator[Fate]:
        for path, count in sorted(self.per_destination.items()):
            yield Fate("sent", path, count)
        for why, count in sorted(self.refusals.items()):
            yield Fate("refused", why, count)
        for path, count in self.elsewhere.items():
            yield Fate("left", NOT_CONFIGURED + path, count)
        for what, count in (("already done", self.already_done), ("copies left out", self.duplicates)):
            if count:
                yield Fate(what, "", count)

    def notes(self) -> Iterator[str]:
        if self.resent:
            yield f"{self.resent:,} were sent again after an unclear answer, with the same MessageId."
        yield from self._waits()
        if self.refused_files:
            folder = shlex.quote(str(Path(self.refused_files[0]).parent))
            yield f"What was refused is kept. Send it to a queue of your choice: sbpair restore {folder} --to QUEUE"
        if self.waiting:
            yield (
                f"{self.waiting:,} still wait in the backlog queues or their dead-letter queues: without --dry-run "
                "this is refused, because a drain would send them a second time. Drain them, or take them with "
                "pipeline archive --take."
            )
        if self.gone:
            why = "without --dry-run this is refused unless --although-gone is given" if self.dry_run else "asked for"
            yield (
                f"{self.gone:,} have left the backlog queues without being taken by the archive: {why}, because a "
                "drain may have sent them already. Its ledger (--ledger drain.jsonl) leaves them out."
            )

    def summary(self) -> str:
        from sbpair.core.transfer.conclusion import left_out  # slow to import

        verb = "would be sent" if self.dry_run else "sent"
        done = left_out(self.already_done)
        return f"{self.forwarded:,} of {self.matched:,} messages {verb} to the primary{done}."


@dataclass(frozen=True, slots=True)
class Explained:
    plan: str
    """Spark's."""


ReplayPrinted = ReplayReport | Explained


@dataclass(frozen=True, slots=True)
class FindingCounts:
    """Messages by the verdicts that are findings, the gravest first."""

    unaccounted: int = 0
    taken: int = 0
    waiting: int = 0
    altered: int = 0
    doubled: int = 0


FINDINGS = tuple(one.name for one in fields(FindingCounts))


@dataclass(frozen=True, slots=True)
class ReconcileFinding:
    """A message that has not exactly one outcome."""

    verdict: str = field(metadata=column("Verdict", colours=True))
    pair: str
    queue: str = field(metadata=column("Queue"))
    dead_letter: bool
    sequence_number: int = field(metadata=column("Number", right=True))
    message_id: str | None = field(metadata=column("Message id"))
    session_id: str | None = field(metadata=column("Session"))
    destination: str | None = field(metadata=column("Destination"))
    why: str = field(metadata=column("Why"))
    ledgers: tuple[str, ...]


def _not_all_listed(findings: int, listed: Sequence[object]) -> Iterator[str]:
    if findings > len(listed):
        yield f"{len(listed):,} of {findings:,} findings are listed; see --limit."


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """Messages by verdict, outcomes of the good ones, and the findings (up to a number) one by one, as
    `pipeline reconcile -o json` prints it."""

    messages: int
    verdicts: Mapping[str, int] = field(metadata=HIDDEN)
    """Those that are no finding as well: `ok`, `arrived`."""
    outcomes: Mapping[str, int]
    perhaps_doubled: int
    not_archived: int
    not_looked_at: Mapping[str, str]
    """Places that could not be looked into, and why."""
    listed: tuple[ReconcileFinding, ...]
    searched: bool = field(metadata=HIDDEN)
    """Whether queues were searched for unaccounted messages."""

    @published
    def counts(self) -> FindingCounts:
        return FindingCounts(**{kind: self.verdicts.get(kind, 0) for kind in FINDINGS})

    @published
    def findings(self) -> int:
        return sum(self.verdicts.get(kind, 0) for kind in FINDINGS)

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.findings else Exit.OK

    def notes(self) -> Iterator[str]:
        if number := self.perhaps_doubled:
            yield f"{number:,} may have arrived twice, with the same MessageId: an answer got lost."
        if self.not_archived:
            lines = counted(self.not_archived, "ledger line")
            yield f"{lines} for messages that these archives do not contain."
        for place, why in sorted(self.not_looked_at.items()):
            yield f"{place} could not be looked into: {why}"
        if self.counts.unaccounted and not self.searched:
            yield "With --pair NAME the queues are searched for unaccounted messages."
        if self.counts.taken:
            yield "Taken: only the archive has these, unless a replay without its ledger sent them (replay --dry-run)."
        yield from _not_all_listed(self.findings, self.listed)

    def summary(self) -> str:
        said = ", ".join(f"{self.verdicts.get(kind, 0):,} {kind}" for kind in FINDINGS)
        good = self.verdicts.get("ok", 0) + self.verdicts.get("arrived", 0)
        return f"{good:,} of {self.messages:,} archived messages have exactly one outcome; {said}."


# What `sbpair pipeline replication-audit -o json` prints. Needs neither Spark nor Arrow.


def _wrong(title: str) -> Any:
    return field(default=0, metadata=column(title, right=True))


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """Messages by what is wrong with them, the gravest first; one message may be counted under several."""

    missing: int = _wrong("Missing")
    """A later message names it as accepted; it is in no archive and was not processed."""
    unprocessed: int = _wrong("Not processed")
    """It is in an archive, and the journal knows that it is not finished."""
    failed: int = _wrong("Failed")
    """Its handler failed permanently, or the session went on without it."""
    out_of_order: int = _wrong("Out of order")
    """It began before a message that comes before it."""
    sides_differ: int = _wrong("In different order on the sides")
    """It has no stamp, and the sides have it in different places of their order."""
    twice: int = _wrong("Begun more than once")
    """Its handler began more than once before it was completed."""
    one_side: int = _wrong("On one side only")
    """Only one side's archive has it, and the other side's copy was not settled either."""


VERDICTS = {one.name: str(one.metadata["column"]["title"]).lower() for one in fields(VerdictCounts)}
"""With the words for them."""
GRAVE = ("missing", "unprocessed", "failed", "out_of_order")


@dataclass(frozen=True, slots=True)
class AuditedDestination:
    """The messages of one queue or subscription, in archives or journal."""

    destination: str = field(metadata=column("Queue"))
    messages: int = field(metadata=column("Messages", counts=True))
    on_primary: int = field(metadata=column("On primary", right=True))
    """Messages of which the primary's archives have a copy."""
    on_secondary: int = field(metadata=column("On secondary", right=True))
    stamped: int = field(metadata=column("Stamped", right=True))
    """Messages in the archives of sbpair's own senders."""
    unstamped: int
    """Messages in the archives of anybody else."""
    completed: int = field(metadata=column("Completed", right=True))
    sent_again: int
    """Messages that one side has more than once."""
    unknown: int = field(metadata=column("Unknown", right=True))
    """Messages of which the journal may have forgotten that they were processed."""
    verdicts: VerdictCounts = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class ReplicationFinding:
    verdict: str = field(metadata=column("Finding", colours=True))
    destination: str = field(metadata=column("Queue"))
    session_id: str = field(metadata=column("Session"))
    message_id: str = field(metadata=column("Message id"))
    why: str = field(metadata=column("Why"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationReport:
    """`as_of`: when the journal was read."""

    journal: str
    as_of: float = field(metadata=AS_TIME)
    copies: int
    """Messages in the archives, those without a session or message id left out."""
    without_ids: int
    """Messages without a session id or message id: nothing can be said of them."""
    unreadable: tuple[str, ...]
    """Where lines lie that are no messages: file and byte. What stands there counts as missing in that archive."""
    destinations: tuple[AuditedDestination, ...]
    listed: tuple[ReplicationFinding, ...]

    @published
    def messages(self) -> int:
        return sum(one.messages for one in self.destinations)

    @published
    def completed(self) -> int:
        return sum(one.completed for one in self.destinations)

    @published
    def unknown(self) -> int:
        return sum(one.unknown for one in self.destinations)

    @published
    def counts(self) -> VerdictCounts:
        rows = [one.verdicts for one in self.destinations]
        return VerdictCounts(**{name: sum(getattr(one, name) for one in rows) for name in VERDICTS})

    @published
    def findings(self) -> int:
        counts = self.counts
        return sum(getattr(counts, name) for name in VERDICTS)

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.findings or self.unreadable else Exit.OK

    def notes(self) -> Iterator[str]:
        if self.unknown:
            yield (
                f"{counted(self.unknown, 'message')} may have been processed: what the journal knew of them is "
                "forgotten after --remember, with stamps --retention."
            )
        if self.without_ids:
            yield f"{counted(self.without_ids, 'message')} without a session id or message id left out."
        if self.unreadable:
            lines, places = counted(len(self.unreadable), "line"), listed(self.unreadable)
            yield f"{lines} could not be read; what they held counts as not archived: {places}."
        if unstamped := sum(one.unstamped for one in self.destinations):
            without = counted(unstamped, "message")
            yield f"{without} without a stamp: one that is on neither side would go unnoticed."
        yield from _not_all_listed(self.findings, self.listed)

    def summary(self) -> str:
        counts = ((getattr(self.counts, name), words) for name, words in VERDICTS.items())
        wrong = ", ".join(f"{count:,} {words}" for count, words in counts if count)
        done = f"{self.completed:,} of {counted(self.messages, 'message')} completed"
        return f"{done}; {wrong or 'nothing is wrong with them'}."
