"""`sbpair drain`: one pass over the backlog, back to the primary, until it is confirmed empty."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.asking import go_ahead, pair_to_write
from sbpair.cli.context import (
    EventLog,
    configure_logging,
    load_settings,
    open_sides,
    run_and_show,
    stoppable,
    system_clock,
)
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.transfer.options import DrainOptions, OnMissing, Patience
from sbpair.cli.transfer.report import (
    Drained,
    doing,
    ledger_errors,
    make_request,
    named_paths,
    report_result,
    what_was_asked,
)
from sbpair.core.access import AuthMethod, namespace_name
from sbpair.core.errors import SbpairError, UsageError, unwritable
from sbpair.core.pairing import Pair
from sbpair.render.console import check_writable, write_file
from sbpair.render.output import Format
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from sbpair.core.events import Event
    from sbpair.core.transfer.conclusion import Asked
    from sbpair.core.transfer.report import DrainReport
    from sbpair.ports import Observer
    from sbpair.runtime.inspection.backlog import FoundQueues
    from sbpair.runtime.inspection.usage import Usage
    from sbpair.runtime.transfer.drain import TransferRequest
    from sbpair.runtime.transfer.ledger import Ledger, Recorder, Way
    from sbpair.runtime.transfer.processes import Share

_log = logging.getLogger("sbpair")


@command(output="core.transfer.conclusion:DrainResult", checks=True, page=True)
def drain(
    options: Options,
    pair: PairArgument = None,
    *,
    moves: DrainOptions,
) -> CommandResult:
    """Return the messages in a pair's backlog queues to the primary, exactly as they were sent.

    Drains every backlog queue that exists, not only the configured ones. Stops when they are empty, verified by count
    and by browse (with --until-idle: and nothing has come for that long). Otherwise says what is left, why, and which
    command continues (exit code 3). Asks on a terminal before it begins. Safe to stop at any time: Ctrl-C settles or
    releases what is in flight. Needs Listen on the secondary and Send on the primary.

    \b
    Examples:
      sbpair drain orders --dry-run
      sbpair drain orders --ledger drain.jsonl --for 15m --rate 500
      sbpair drain orders --ledger drain.jsonl --report incident.md
    """
    if moves.report is not None:
        check_report(moves.report)
    chosen = pair_to_write(options, load_settings(options), pair, "Drain")
    check_processes(chosen, moves)
    request = make_request(chosen, moves)
    patience = Patience.of(options, moves.give_up_after)
    request = replace(
        request,
        max_messages=moves.limit,
        deferred=moves.deferred,
        dry_run=moves.dry_run,
        patience_seconds=patience.seconds,
        unreached_seconds=patience.unreached_seconds,
        leave_missing=moves.on_missing is OnMissing.LEAVE,
    )
    only = named_paths(chosen, moves.queues)
    told = moves.dry_run or go_ahead(options, doing("drain", chosen, moves), yes=moves.yes, state="Nothing was moved.")

    async def work(stop: "asyncio.Event") -> Drained:
        if not told:
            _log.info(f"{doing('drain', chosen, moves)}.")
        with ledger_errors(moves.ledger):
            return await run_drain(
                options,
                chosen,
                request,
                stop,
                only=only,
                ledger=moves.ledger,
                new_ledger=moves.new_ledger,
                processes=1 if moves.dry_run else moves.processes,
            )

    asked = what_was_asked(chosen, moves)
    began_at = system_clock().now().timestamp()

    def shown(drained: Drained) -> CommandResult:
        result = report_result("drain", chosen, drained, asked, verbose=options.verbose)
        if options.output is not Format.HTML and moves.report is None:
            return result
        result = _as_page(chosen, drained, result, began_at, moves.ledger, asked)
        if moves.report is not None:
            write_report(moves.report, result)
        return result

    return run_and_show(options, work, shown, nothing="Nothing was moved.")


def check_processes(pair: Pair, moves: DrainOptions) -> None:
    """Refuse what several processes cannot keep to together.

    Raises:
        UsageError: a bound or a file that is for one process, or a credential that asks in a browser.
    """
    if moves.processes == 1:
        return
    for option, value in (
        ("--limit", moves.limit),
        ("--rate", moves.rate),
        ("--reserve", moves.reserve),
        ("--archive", moves.archive),
        ("--until-idle", moves.until_idle),
    ):
        if value is not None:
            raise UsageError(f"{option} is kept by one process; --processes starts several. Nothing was moved.")
    if any(side.auth is AuthMethod.BROWSER for side in (pair.primary, pair.secondary)):
        raise UsageError("With --processes each process would ask in a browser. Use another credential.")


def check_report(path: Path) -> None:
    """Refuse a report that cannot be written before anything moves.

    Raises:
        UsageError: its name ends neither as HTML nor as Markdown.
        SbpairError: it cannot be written there.
    """
    if path.suffix.lower() not in _REPORTS:
        raise UsageError(f"--report {path} ends in none of {', '.join(sorted(_REPORTS))}. Nothing was moved.")
    check_writable(path)


def write_report(path: Path, result: CommandResult) -> None:
    """The page of a result in the form that the file's name asks for.

    Raises:
        SbpairError: it cannot be written.
    """
    if result.page is None:
        raise RuntimeError("there is no page to write")
    if path.suffix.lower() in _MARKDOWN:
        from sbpair.render.markdown import page_to_markdown

        text = page_to_markdown(result.page)
    else:
        from sbpair.render.html import to_html

        text = to_html(result.page)
    try:
        write_file(path, text)
    except OSError as error:
        raise unwritable(path, error) from error
    _log.info(f"Report written to {path}.")


_MARKDOWN = frozenset({".md", ".markdown"})
_REPORTS = _MARKDOWN | {".html", ".htm"}


def _as_page(
    pair: Pair, drained: Drained, result: CommandResult, began_at: float, ledger: Path | None, asked: "Asked"
) -> CommandResult:
    from sbpair.cli.transfer.report_page import Course, LedgerFile, page_of

    with ledger_errors(ledger):
        file = LedgerFile.of(ledger) if ledger is not None and ledger.is_file() else None
    return replace(result, page=page_of(pair, drained, result, Course(began_at, drained.before, file), asked))


_AFTER_SECONDS = 10.0
"""How long a stopped run may take to count what is left."""


async def run_drain(
    options: Options,
    pair: Pair,
    request: "TransferRequest",
    stop: "asyncio.Event",
    *,
    only: tuple[str, ...] = (),
    ledger: Path | None = None,
    new_ledger: bool = False,
    processes: int = 1,
) -> Drained:
    """Drain every backlog queue that exists, or `only` those, then read what the whole backlog holds.

    Raises:
        SbpairError: no backlog queue exists, or none of that path.
    """
    from sbpair.core.events import BacklogCounted
    from sbpair.render.progress import MoveProgress
    from sbpair.runtime.inspection.backlog import find_queues, is_own, read_backlog
    from sbpair.runtime.inspection.usage import CountedAdmin, CountedMessaging, Usage
    from sbpair.runtime.transfer.drain import DrainJob
    from sbpair.runtime.transfer.drain import drain as drain_backlog

    opened_ledger = open_ledger(ledger, way_of(pair, request), new=new_ledger)
    usage, clock = Usage(), system_clock()
    log = None if options.quiet else EventLog(verbose=options.verbose)
    before: dict[str, int] = {}

    def noted(event: "Event") -> None:
        if isinstance(event, BacklogCounted):
            before.setdefault(event.queue, event.messages)
        if log is not None:
            log.notify(event)

    with MoveProgress("drain", quiet=options.quiet, color=not options.no_color, log=noted) as progress:
        async with open_sides(pair) as sides:
            secondary = CountedMessaging(sides.secondary, usage)
            admin, primary_admin = CountedAdmin(sides.secondary_admin, usage), CountedAdmin(sides.primary_admin, usage)
            seconds = min(request.patience_seconds, _AFTER_SECONDS)
            facts = None
            try:
                if left_over := not all(is_own(path, pair) for path in only):
                    paths = only  # named by whoever listed them: no search under this pair's prefix finds them
                else:
                    searching = find_queues(pair, messaging=secondary, admin=admin, timeout_seconds=seconds)
                    found = await stoppable(stop, searching)
                    paths, facts = chosen_paths(pair, found, only), found.facts
                if processes > 1 and len(paths) > 1:
                    from sbpair.runtime.transfer.processes import drain_in_processes

                    report = await drain_in_processes(
                        replace(request, queues=paths),
                        Sharing(options, pair.name, _hosts(pair)),
                        processes,
                        clock=clock,
                        observer=progress,
                        ledger=opened_ledger,
                        stop=stop,
                        facts=facts,
                        usage=usage,
                    )
                else:
                    report = await drain_backlog(
                        DrainJob(
                            replace(request, queues=paths),
                            secondary=secondary,
                            primary=sides.primary,
                            admin=admin,
                            clock=clock,
                            observer=progress,
                            ledger=opened_ledger,
                            stop=stop,
                            primary_admin=primary_admin,
                            facts=facts,
                        )
                    )
            finally:
                if opened_ledger is not None:
                    await opened_ledger.close()
            if left_over:
                return Drained(report, None, usage.forecast(), before)
            # Searched for again: a queue that was made meanwhile belongs to the backlog, too.
            found = await find_queues(pair, messaging=secondary, admin=admin, timeout_seconds=seconds)
            backlog = await read_backlog(
                pair,
                found,
                messaging=secondary,
                admin=admin,
                clock=clock,
                timeout_seconds=seconds,
                only=only or None,
                recount=False,
            )
    return Drained(report, backlog, usage.forecast(), before)


@dataclass(frozen=True, slots=True)
class Sharing:
    """`sbpair.runtime.transfer.processes.Work`: opens the pair anew, from the same configuration and environment."""

    options: Options
    pair: str
    hosts: tuple[str, str]

    async def __call__(
        self, share: "Share", observer: "Observer", ledger: "Recorder | None", stop: "asyncio.Event"
    ) -> "tuple[DrainReport, Usage]":
        from sbpair.runtime.inspection.usage import CountedAdmin, CountedMessaging, Usage
        from sbpair.runtime.transfer.drain import DrainJob
        from sbpair.runtime.transfer.drain import drain as drain_backlog

        configure_logging(self.options)
        pair, usage = load_settings(self.options, to_act=False).pair(self.pair), Usage()
        if _hosts(pair) != self.hosts:
            raise UsageError(
                f"The configuration of {self.pair} was changed during the drain. What was moved until then has left "
                "the backlog.",
                hint=f"See what is left: sbpair status {self.pair}",
            )
        async with open_sides(pair) as sides:
            report = await drain_backlog(
                DrainJob(
                    share.request,
                    secondary=CountedMessaging(sides.secondary, usage),
                    primary=sides.primary,
                    admin=CountedAdmin(sides.secondary_admin, usage),
                    clock=system_clock(),
                    observer=observer,
                    ledger=ledger,
                    stop=stop,
                    facts=share.facts,
                    part=True,
                )
            )
        return report, usage


def _hosts(pair: Pair) -> tuple[str, str]:
    return pair.primary.host, pair.secondary.host


def chosen_paths(pair: Pair, found: "FoundQueues", only: tuple[str, ...]) -> tuple[str, ...]:
    """The queues to empty.

    Raises:
        SbpairError: there is none.
        UsageError: a queue that was named does not exist.
    """
    if not found.existing:
        raise SbpairError(
            f"No backlog queue of {pair.primary.label} exists on {pair.secondary.label}. Nothing was moved.",
            hint=f"Create them: sbpair provision {pair.name}",
        )
    for path in only:
        if path not in found.existing and not (path in pair.backlog_paths() and path not in found.missing):
            there = ", ".join(one.rpartition("/")[2] for one in found.existing)
            raise UsageError(
                f"There is no {path} on {pair.secondary.label}; the backlog queues that exist are {there}."
            )
    return only or found.existing


def way_of(pair: Pair, request: "TransferRequest") -> "Way":
    """Between which namespaces the run moves messages."""
    from sbpair.runtime.transfer.drain import ToArchive
    from sbpair.runtime.transfer.ledger import Way

    to = None if isinstance(request.to, ToArchive) else namespace_name(pair.primary)
    return Way(namespace_name(pair.secondary), to)


def open_ledger(path: Path | None, way: "Way", *, new: bool, to: "Mapping[str, str] | None" = None) -> "Ledger | None":
    """The ledger, continued if the file is there; with `new` the old file is renamed to the first free FILE.N. `to` as
    for `Ledger`."""
    from sbpair.runtime.transfer.ledger import Ledger

    if path is None:
        return None
    try:
        if new and path.is_file() and path.stat().st_size:
            path.rename(_free_name(path))
        return Ledger(path, resume=True, way=way, to=to or {})
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was moved.") from error


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside
