"""What dlq, move, copy and purge share: a dry run that is shown, the question, the same run for good."""

import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.asking import can_ask
from sbpair.cli.context import EventLog, Interrupted, run_async, stoppable, system_clock, unchanged
from sbpair.cli.options import Options
from sbpair.cli.transfer.entity_ref import EntityRef
from sbpair.cli.transfer.options import Filters
from sbpair.core.access import namespace_name, shown_name
from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.names import dead_letter_path
from sbpair.core.outcome import Exit
from sbpair.core.transfer.resend import Planned
from sbpair.core.transfer.summary import (
    Doing,
    MoveResult,
    closing,
    exit_of,
    guaranteed,
    notes,
    with_unreached,
)
from sbpair.core.words import counted
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.entities import QueueFacts
    from sbpair.core.transfer.destinations import DestinationSeen
    from sbpair.core.transfer.report import DrainReport
    from sbpair.core.transfer.verdict import Judge
    from sbpair.ports import Ends
    from sbpair.runtime.transfer.drain import TransferRequest

_log = logging.getLogger("sbpair")
_FACTS_SECONDS = 10.0
"""Bound of the wait for properties that the work can do without."""
COLUMNS = (
    Column("what", "What"),
    Column("where", "Where or why"),
    Column("messages", "Messages", right=True, counts=True),
)


def open_ends(source: EntityRef, target: EntityRef | None) -> AbstractAsyncContextManager["Ends"]:
    """See `sbpair.connect.open_ends`."""
    from sbpair.connect import open_ends as connect

    return connect(source.access, None if target is None else target.access)


class Recovery:
    """One run over one entity: `plan` browses and asks the destination, `carry_out` does what was planned.

    Args:
        target: where the messages go; None: they are archived or deleted.
        make_judge: says what is to become of a message, given what was learnt about the destination.
        keep: copy; the entity is left as it is.
        session_states: take the states of sessions along.
        despite_duplicate_detection: send also where an id that was taken already would be dropped.
        one_message: a single one is meant; once it is dealt with, nothing is said of the others.
    """

    def __init__(
        self,
        options: Options,
        source: EntityRef,
        target: EntityRef | None,
        request: "TransferRequest",
        make_judge: "Callable[[DestinationSeen, frozenset[str]], Judge]",
        *,
        keep: bool = False,
        session_states: bool = False,
        despite_duplicate_detection: bool = False,
        one_message: bool = False,
    ) -> None:
        self._options = options
        self._source = source
        self._target = target
        self._request = request
        self._make_judge = make_judge
        self._keep = keep
        self._one_message = one_message
        self._session_states = session_states
        self._despite = despite_duplicate_detection
        self._planned: Planned | None = None
        self._destination: DestinationSeen | None = None
        self._at_least_once_because: str | None = None
        self._topic = False

    def plan(self) -> MoveResult:
        """What the run would do, as far as browsing and asking tell.

        Raises:
            SbpairError: the entity cannot be browsed, or the destination takes nothing; nothing was moved.
        """

        async def work(stop: "asyncio.Event") -> "DrainReport":
            async with open_ends(self._source, self._target) as ends:
                facts, ends = await stoppable(stop, self._facts(ends))
                self._destination = seen = await stoppable(stop, self._seen(ends))
                recent = await stoppable(stop, self._recent(ends, seen))
                await stoppable(stop, self._in_transactions(ends))
                planned = Planned(self._make_judge(seen, recent), takes_later=self.waits)
                report = await self._run(ends, replace(self._request, dry_run=True), planned, facts, stop)
                planned.settle()
                self._planned = planned
                return report

        with unchanged("Nothing was moved."):
            try:
                return self._recovered(run_async(self._options, work))
            except Interrupted as interrupted:
                raise interrupted.with_state("Nothing was moved.") from None

    async def _seen(self, ends: "Ends") -> "DestinationSeen":
        """What the destination says; nothing where there is none."""
        import asyncio

        from sbpair.core.transfer.destinations import DestinationSeen
        from sbpair.core.transfer.resend import refuse_destination
        from sbpair.runtime.transfer.dry_run import ask_destinations
        from sbpair.runtime.transfer.sinks import NamespaceSink

        if self._target is None:
            return DestinationSeen("")
        sink = NamespaceSink(ends.target)
        try:
            asked = await ask_destinations(
                [self._target.path], sink=sink, admin=ends.target_admin, stop=asyncio.Event()
            )
        finally:
            await sink.close()
        refuse_destination(asked[0], shown_name(self._target.access), despite_duplicate_detection=self._despite)
        return asked[0]

    async def _recent(self, ends: "Ends", seen: "DestinationSeen") -> frozenset[str]:
        """MessageIds that lie in a queue which would drop another message with one of them. What a consumer has taken
        from there already cannot be seen.

        Raises:
            ServiceError: it cannot be browsed.
        """
        from sbpair.core.errors import MalformedMessageError
        from sbpair.core.rewrite import as_sent
        from sbpair.core.transfer.resend import window_of
        from sbpair.runtime.browse import pages
        from sbpair.runtime.links import close_quietly

        found: set[str] = set()
        window, clock = window_of(seen), system_clock()
        if window is None or seen.queue is None:
            return frozenset()
        since = clock.now().timestamp() - window
        for dead_letter in (False, True):
            if dead_letter and ends.target is ends.source and self._source.path.lower() == seen.path.lower():
                continue  # what is about to be sent: its own time says whether it is remembered
            receiver = ends.target.receiver(seen.path, dead_letter=dead_letter)
            try:
                async for page in pages(receiver, clock=clock, patience_seconds=self._request.patience_seconds):
                    for one in page:
                        if (one.enqueued_at or 0.0) >= since:
                            with suppress(MalformedMessageError):
                                found.add(as_sent(one.payload).message_id or "")
            finally:
                await close_quietly(receiver)
        return frozenset(found - {""})

    async def _in_transactions(self, ends: "Ends") -> "Ends":
        """The ends as they are to be used: with transactions where the namespace has them; else it is noted why not."""
        from sbpair.runtime.links import close_quietly

        self._at_least_once_because = None
        if self._target is None or self._keep or ends.transactions is None:
            if self._target is not None and not self._keep:
                self._at_least_once_because = "no transaction spans two namespaces"
            return replace(ends, transactions=None)
        mover = ends.transactions.mover(self._source.path, dead_letter=self._request.dead_letter)
        try:
            refused = await mover.why_not()
        finally:
            await close_quietly(mover)
        if refused is None:
            return ends
        label = shown_name(self._source.access)
        self._at_least_once_because = f"{label} has no transactions ({refused.message.rstrip('.')})"
        return replace(ends, transactions=None)

    async def _facts(self, ends: "Ends") -> "tuple[dict[str, QueueFacts | None], Ends]":
        """What the administration tells of the entity, if it may be asked, and the ends as they are to be used: who
        counts queues is not asked about a topic.

        Raises:
            UsageError: it is a topic, and its dead letters are meant.
        """
        from sbpair.concurrency import abandoning
        from sbpair.runtime.transfer.drain import entity_facts

        path, admin = self._source.path, ends.admin
        if admin is None:
            return {}, ends
        try:
            known = await abandoning(_FACTS_SECONDS, entity_facts(admin, path), what=f"Properties of {path}")
            topic = None if known is not None or self._source.is_subscription else await admin.get_topic(path)
        except ServiceError:
            return {}, ends
        if topic is None:
            return {} if known is None else {path: known}, ends
        if True in self._request.kinds:
            raise UsageError(
                f"{self._source} is a topic, which has no dead letters; its subscriptions have.",
                hint=f"Name one of its subscriptions: {path}/Subscriptions/NAME",
            )
        self._topic = True
        return {}, replace(ends, admin=None)

    def carry_out(self, ledger: Path | None = None, *, new_ledger: bool = False) -> tuple[MoveResult, Exit | None]:
        """Do what was planned, and nothing that came since; the second value is how a signal ended it.

        Raises:
            ServiceError: nothing could be read; nothing was moved.
        """
        planned = self._planned
        if planned is None:
            raise RuntimeError("plan() comes first")

        async def work(stop: "asyncio.Event") -> "DrainReport":
            from sbpair.operations.ledgers import open_ledger
            from sbpair.runtime.transfer.ledger import Way

            to = None if self._target is None else namespace_name(self._target.access)
            path, kinds = self._source.path, self._request.kinds
            queues = [dead_letter_path(path) if dead_letter else path for dead_letter in kinds]
            going = {} if self._target is None else dict.fromkeys(queues, self._target.path)
            way = Way(namespace_name(self._source.access), to)
            opening = open_ledger(ledger, way, new=new_ledger, to=going)
            async with opening as opened, open_ends(self._source, self._target) as ends:
                facts, ends = await self._facts(ends)
                ends = await stoppable(stop, self._in_transactions(ends))
                return await self._run(ends, self._request, planned, facts, stop, opened)

        try:
            return self._recovered(run_async(self._options, work)), None
        except Interrupted as interrupted:
            if interrupted.partial is None:
                raise interrupted.with_state("Nothing was moved.") from None
            return self._recovered(interrupted.partial), Exit.from_label(interrupted.exit_name)  # type: ignore[arg-type]

    async def _run(
        self,
        ends: "Ends",
        request: "TransferRequest",
        judge: "Judge",
        facts: "dict[str, QueueFacts | None]",
        stop: "asyncio.Event",
        ledger: Any = None,
    ) -> "DrainReport":
        from sbpair.core.transfer.destinations import DestinationSeen
        from sbpair.render.progress import MoveProgress
        from sbpair.runtime.transfer.move import move

        options = self._options
        log = None if options.quiet or request.dry_run else EventLog(verbose=options.verbose).notify
        quiet = options.quiet or request.dry_run
        with MoveProgress(self._source.path, quiet=quiet, color=not options.no_color, log=log) as progress:
            return await move(
                request,
                ends,
                judge,
                seen=self._destination or DestinationSeen(""),
                facts=facts,
                clock=system_clock(),
                observer=progress,
                ledger=ledger,
                stop=stop,
                keep=self._keep,
                session_states=self._session_states,
                topic=self._topic,
            )

    @property
    def waits(self) -> bool:
        """Whether it goes on for what comes later."""
        return self._request.idle_seconds > 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was learnt about the entity and its messages that their user may not have expected."""
        of_messages = () if self._planned is None else self._planned.remarks
        if not self._topic:
            return of_messages
        path = self._source.path
        return (
            *of_messages,
            f"{path} is a topic: only its scheduled messages lie in it. The others are in its subscriptions, "
            f"{path}/Subscriptions/NAME.",
        )

    def _recovered(self, report: "DrainReport") -> MoveResult:
        request, source, target = self._request, self._source, self._target
        if self._one_message and report.forwarded + report.already_forwarded:
            report = replace(report, left=(), filtered_out=0, ended_by="empty")
        entity = dead_letter_path(source.path) if request.dead_letter else source.path
        to_namespace, to = (None, None) if target is None else (shown_name(target.access), target.path)
        if target is None or self._keep:
            return MoveResult(shown_name(source.access), entity, to_namespace, to, report)
        guarantee, because = guaranteed(
            report, target.path, within=self._at_least_once_because, keyless=self._keyless()
        )
        return MoveResult(shown_name(source.access), entity, to_namespace, to, report, guarantee, because)

    def _keyless(self) -> int:
        """Planned messages that the destination takes into no transaction, if it is known to be partitioned."""
        seen, planned = self._destination, self._planned
        if seen is None or planned is None:
            return 0
        partitioned = any(
            one is not None and one.enable_partitioning
            for one in (seen.topic, None if seen.queue is None else seen.queue.settings)
        )
        return planned.without_key if partitioned else 0


def perform(
    command: str,
    recovery: Recovery,
    doing: Doing,
    *,
    options: Options,
    ask: Callable[[str], None],
    dry_run: bool,
    yes: bool,
    ledger: Path | None = None,
    new_ledger: bool = False,
) -> CommandResult:
    """The whole of a command: what would be done is planned, then shown or asked about, then done.

    `ask` puts the question, given what it is about, such as "3 dead letters", and raises where the answer is no.
    """
    planned = recovery.plan()
    if (shown_only := _shown(planned, dry_run=dry_run, waits=recovery.waits)) is not None:
        return _result_of(command, shown_only, doing, remarks=recovery.remarks)
    told = _tell_plan(options, planned, doing, yes=yes)
    ask(counted(planned.report.forwarded or planned.report.purged, doing.noun))
    done, ended = recovery.carry_out(ledger, new_ledger=new_ledger)
    result = _result_of(command, with_unreached(done, planned.report), doing, ended, remarks=recovery.remarks)
    return replace(result, notes=tuple(note for note in result.notes if note not in told))


def _shown(planned: MoveResult, *, dry_run: bool, waits: bool) -> MoveResult | None:
    """What is to be shown where nothing will be done: the plan of a dry run, or that there is nothing to do."""
    if dry_run:
        return planned
    if planned.report.forwarded or planned.report.purged or waits:
        return None
    return replace(planned, report=replace(planned.report, dry_run=False))


def _tell_plan(options: Options, planned: MoveResult, doing: Doing, *, yes: bool) -> tuple[str, ...]:
    """Before the question: what the dry run found that will not go, and what else there is to know. What was told."""
    told = tuple(notes(planned, doing)) if can_ask(options) and not yes else ()
    for line in told:
        _log.info(line)
    return told


def _result_of(
    command: str, done: MoveResult, doing: Doing, ended: Exit | None = None, *, remarks: Sequence[str] = ()
) -> CommandResult:
    """A run, or a dry run, as tables, data and exit code."""
    return CommandResult(
        command,
        done,
        (Table("", COLUMNS, _rows(done, doing)),),
        notes=(*remarks, *notes(done, doing)),
        summary=closing(done, doing),
        exit=ended or exit_of(done),
        closing=True,
    )


def _rows(done: MoveResult, doing: Doing) -> list[dict[str, Any]]:
    report = done.report
    rows: list[dict[str, Any]] = []
    if report.forwarded:
        where = str(report.archive or "") if done.to is None else f"{done.to} on {done.to_namespace}"
        rows.append(
            {"what": "archived" if done.to is None else doing.verb, "where": where, "messages": report.forwarded}
        )
    if report.purged:
        rows.append({"what": "deleted", "where": done.entity, "messages": report.purged})
    if report.already_forwarded:
        rows.append({"what": "sent before", "where": "", "messages": report.already_forwarded})
    rows += [{"what": "was dead-lettered for", "where": why, "messages": n} for why, n in report.original_faults]
    rows += [{"what": "left", "where": one.reason, "messages": one.count} for one in report.left]
    rows += [
        {"what": "not read", "where": f"{one.queue}: {one.error.message}", "messages": None} for one in report.failures
    ]
    return rows


def filter_words(filters: Filters, reasons: Sequence[str] = ()) -> list[str]:
    """The filters as they were given, for a command line that goes on."""
    words = [f"--reason={reason}" for reason in reasons]
    return words + filters.words()


def command_line(words: Sequence[str | None]) -> str:
    """The words of a command as one line of a shell."""
    return shlex.join(word for word in words if word is not None)
