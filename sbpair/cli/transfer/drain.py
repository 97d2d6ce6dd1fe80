"""`sbpair drain`: one pass over the backlog, back to the primary, until it is confirmed empty."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import suggestions
from sbpair.cli.asking import pair_to_write
from sbpair.cli.context import Interrupted, Talk, load_settings, open_sides, run_async, stoppable, system_clock
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.cli.transfer.report import (
    Drained,
    MoveOptions,
    ledger_errors,
    make_request,
    named_paths,
    report_result,
    what_was_asked,
)
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.message import TtlMode
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.console import unwritable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.runtime.inspection.backlog import FoundQueues
    from sbpair.runtime.transfer.drain import DrainRequest
    from sbpair.runtime.transfer.ledger import Ledger

QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="INDEX|PATH",
        help="A backlog queue; repeatable. Default: all that exist.",
        show_default=False,
        autocompletion=suggestions.backlog_indexes,
    ),
]
DlqOption = Annotated[bool, typer.Option("--dlq", help="Their dead-letter queues instead.")]
ToOption = Annotated[
    str, typer.Option("--to", metavar="primary|queue:NAME", help="Own destinations, or one queue of the primary.")
]
ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", metavar="DIR", help="Into a file in this folder instead.", show_default=False),
]
DestinationOption = Annotated[
    str | None,
    typer.Option(
        "--destination", metavar="PATTERN", help="Only messages to destinations like this.", show_default=False
    ),
]
SessionOption = Annotated[str | None, typer.Option("--session-id", help="Only this session.", show_default=False)]
WhereOption = Annotated[
    str | None,
    typer.Option("--where", help="Only messages that match, e.g. 'subject = invoice and size_bytes > 1000'.",
                 show_default=False),
]  # fmt: skip
RateOption = Annotated[
    float | None, typer.Option("--rate", min=0.01, help="At most so many messages a second.", show_default=False)
]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Concurrent batches.")]
TtlOption = Annotated[TtlMode, typer.Option("--ttl", help="Time to live starts again in full, or what remains of it.")]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Append a JSON line per message; what it has is not sent again.",
        show_default=False,
    ),
]
NewLedgerOption = Annotated[
    bool, typer.Option("--new-ledger", help="Begin the ledger anew; the old file is kept beside it.")
]


class OnMissing(StrEnum):
    LEAVE = "leave"
    DEAD_LETTER = "dead-letter"


@command
def drain(
    options: Options,
    pair: PairArgument = None,
    queue: QueueOption = None,
    dlq: DlqOption = False,
    to: ToOption = "primary",
    archive: ArchiveOption = None,
    destination: DestinationOption = None,
    session_id: SessionOption = None,
    where: WhereOption = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", min=1, help="Stop after so many messages.", show_default=False)
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="Stop after this time, e.g. 15m.", show_default=False)
    ] = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = 8,
    ttl: TtlOption = TtlMode.FULL,
    ledger: LedgerOption = None,
    new_ledger: NewLedgerOption = False,
    deferred: Annotated[
        bool, typer.Option("--deferred", help="Also fetch deferred messages, after all others.")
    ] = False,
    on_missing: Annotated[
        OnMissing, typer.Option("--on-missing", help="Messages whose destination does not exist.")
    ] = OnMissing.LEAVE,
    give_up_after: Annotated[
        str | None,
        typer.Option(
            "--give-up-after",
            help="Leave messages of a destination or queue that fails for this long.",
            show_default="--timeout, else 2m",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Browse, ask the destinations, and tell what a drain would do.")
    ] = False,
) -> CommandResult:
    """Return the messages in a pair's backlog queues to the primary, exactly as they were sent. [writes]

    Takes every backlog queue that exists, also above the configured number. Stops when the queues are empty, verified
    by count and by browse; otherwise says what remains, why, and the command that goes on (exit code 3). Safe to stop
    at any moment: Ctrl-C settles or releases what is in flight. Needs Listen on the secondary, Send on the primary.

    \b
    Examples:
      sbpair drain orders --dry-run
      sbpair drain orders --ledger drain.jsonl --for 15m --rate 500
    """
    chosen = pair_to_write(options, load_settings(options), pair, "Drain")
    if new_ledger and ledger is None:
        raise UsageError("--new-ledger begins a ledger anew: name it with --ledger FILE.")
    moves = MoveOptions(
        queue,
        dlq,
        to,
        archive,
        destination,
        session_id,
        where,
        rate,
        concurrency,
        ttl,
        limit=limit,
        for_seconds=duration_option(for_),
        dry_run=dry_run,
        deferred=deferred,
        ledger=ledger,
    )
    request = make_request(chosen, moves)
    patience = duration_option(give_up_after)
    if patience is None:
        patience = options.timeout_seconds(request.patience_seconds)
    request = replace(request, patience_seconds=patience, leave_missing=on_missing is OnMissing.LEAVE)

    async def work(stop: "asyncio.Event") -> Drained:
        with ledger_errors(ledger):
            return await run_drain(
                options,
                chosen,
                request,
                stop,
                only=named_paths(chosen, queue),
                ledger=ledger,
                new_ledger=new_ledger,
            )

    asked = what_was_asked(chosen, moves)
    try:
        return report_result("drain", chosen, run_async(options, work), asked, verbose=options.verbose)
    except Interrupted as interrupted:
        if not isinstance(interrupted.partial, Drained):
            raise interrupted.with_state("Nothing was moved.") from None
        result = report_result("drain", chosen, interrupted.partial, asked, verbose=options.verbose)
        return replace(result, exit=Exit.from_label(interrupted.exit_name))


_AFTER_SECONDS = 10.0
"""How long a stopped run may take to count what is left."""


async def run_drain(
    options: Options,
    pair: Pair,
    request: "DrainRequest",
    stop: "asyncio.Event",
    *,
    only: tuple[str, ...] = (),
    ledger: Path | None = None,
    new_ledger: bool = False,
) -> Drained:
    """Drain every backlog queue that exists, or `only` those, then read what the whole backlog holds.

    Raises:
        SbpairError: no backlog queue exists, or none of that path.
    """
    from sbpair.render.progress import MoveProgress
    from sbpair.runtime.inspection.backlog import find_queues, is_own, read_backlog
    from sbpair.runtime.inspection.usage import CountedAdmin, CountedMessaging, Usage
    from sbpair.runtime.transfer.drain import drain as drain_backlog

    book = open_ledger(ledger, new=new_ledger)
    usage, clock = Usage(), system_clock()
    talk = None if options.quiet else Talk().notify
    with MoveProgress("drain", quiet=options.quiet, color=not options.no_color, talk=talk) as progress:
        async with open_sides(pair) as sides:
            secondary = CountedMessaging(sides.secondary, usage)
            admin, primary_admin = CountedAdmin(sides.secondary_admin, usage), CountedAdmin(sides.primary_admin, usage)
            seconds = min(request.patience_seconds, _AFTER_SECONDS)
            try:
                if left_over := not all(is_own(path, pair) for path in only):
                    paths = only  # named by whoever listed them: no search under this pair's prefix finds them
                else:
                    searching = find_queues(pair, messaging=secondary, admin=admin, timeout_seconds=seconds)
                    paths = chosen_paths(pair, await stoppable(stop, searching), only)
                report = await drain_backlog(
                    replace(request, queues=paths),
                    secondary=secondary,
                    primary=sides.primary,
                    admin=admin,
                    clock=clock,
                    observer=progress,
                    ledger=book,
                    stop=stop,
                    primary_admin=primary_admin,
                )
            finally:
                if book is not None:
                    await book.close()
            if left_over:
                return Drained(report, None, usage.forecast())
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
    return Drained(report, backlog, usage.forecast())


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


def open_ledger(path: Path | None, *, new: bool) -> "Ledger | None":
    """The ledger, continued if the file is there; with `new` the old file is renamed to the first free FILE.N."""
    from sbpair.runtime.transfer.ledger import Ledger

    if path is None:
        return None
    try:
        if new and path.is_file() and path.stat().st_size:
            path.rename(_free_name(path))
        return Ledger(path, resume=True)
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was moved.") from error


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside
