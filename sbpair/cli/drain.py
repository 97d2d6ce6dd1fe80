"""`sbpair drain`: one pass over the backlog, home to the primary, until confirmed empty."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import candidates
from sbpair.cli.context import Interrupted, Talk, load_settings, open_sides, run_async, system_clock
from sbpair.cli.moving import MoveOptions, ledger_errors, make_request, report_result
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.errors import UsageError
from sbpair.core.message import TtlMode
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.console import unwritable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.runtime.draining import DrainReport, DrainRequest

QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="INDEX|PATH",
        help="A backlog queue; repeatable. Default: all.",
        show_default=False,
        autocompletion=candidates.backlog_indexes,
    ),
]
ToOption = Annotated[str, typer.Option("--to", help="primary, archive:DIRECTORY or queue:NAME (on the primary).")]
PathOption = Annotated[
    str | None, typer.Option("--path", help="Only messages to destinations like this pattern.", show_default=False)
]
SessionOption = Annotated[str | None, typer.Option("--session", help="Only this session.", show_default=False)]
WhereOption = Annotated[
    str | None,
    typer.Option("--where", help="Only messages that match, e.g. 'subject = invoice and size_bytes > 1000'.",
                 show_default=False),
]  # fmt: skip
RateOption = Annotated[
    float | None, typer.Option("--rate", min=0.01, help="At most so many messages a second.", show_default=False)
]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Batches under way at once.")]
TtlOption = Annotated[TtlMode, typer.Option("--ttl", help="Time to live starts again in full, or what remains of it.")]
LedgerOption = Annotated[
    Path | None, typer.Option("--ledger", help="Append a JSON line per message to this file.", show_default=False)
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the ledger: what it has is not sent again.")]


@command
def drain(
    options: Options,
    pair: PairArgument = None,
    queue: QueueOption = None,
    dlq: Annotated[bool, typer.Option("--dlq", help="Empty the dead-letter queues of the backlog queues.")] = False,
    to: ToOption = "primary",
    path: PathOption = None,
    session: SessionOption = None,
    where: WhereOption = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", min=1, help="Stop after so many.", show_default=False)
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="Stop after this time, e.g. 15m.", show_default=False)
    ] = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = 8,
    ttl: TtlOption = TtlMode.FULL,
    ledger: LedgerOption = None,
    resume: ResumeOption = False,
    deferred: Annotated[
        bool, typer.Option("--deferred", help="Also fetch what somebody has deferred, after all the rest.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Count by destination; exit 5 if there is any.")
    ] = False,
) -> CommandResult:
    """Bring the messages in a pair's backlog queues home to the primary, exactly as they were sent. [writes]

    Ends only when counts and a browse agree that nothing is left; otherwise says what is left and why. Safe to stop at
    any moment: Ctrl-C settles or gives back what is in flight. --timeout bounds how long a side that does not answer
    is waited for (default 2m). Needs Listen on the secondary, Send on the primary.

    \b
    Examples:
      sbpair drain orders --dry-run
      sbpair drain orders --ledger drain.jsonl --for 15m --rate 500
    """
    chosen = load_settings(options).pair(pair)
    if resume and ledger is None:
        raise UsageError("--resume continues a ledger: name it with --ledger FILE.")
    seconds = duration_option(for_)
    request = make_request(
        chosen,
        MoveOptions(queue, dlq, to, path, session, where, rate, concurrency, ttl, max_messages, seconds, dry_run),
    )
    patience_seconds = options.timeout_seconds(request.patience_seconds)
    request = replace(request, patience_seconds=patience_seconds, deferred=deferred)

    async def work(stop: "asyncio.Event") -> "DrainReport":
        with ledger_errors(ledger):
            return await run_drain(options, chosen, request, stop, ledger=ledger, resume=resume)

    try:
        return report_result("drain", chosen, run_async(options, work))
    except Interrupted as interrupted:
        result = report_result("drain", chosen, interrupted.partial)  # type: ignore[arg-type]
        return replace(result, exit=Exit.from_label(interrupted.exit_name))


async def run_drain(
    options: Options,
    pair: Pair,
    request: "DrainRequest",
    stop: "asyncio.Event",
    *,
    ledger: Path | None = None,
    resume: bool = False,
) -> "DrainReport":
    """Drain with the pair's real sides, progress on stderr and an optional ledger."""
    from sbpair.render.progress import MoveProgress
    from sbpair.runtime.drain import drain as drain_backlog
    from sbpair.runtime.ledger import Ledger

    try:
        book = None if ledger is None else Ledger(ledger, resume=resume)
    except OSError as error:
        raise unwritable(ledger or Path(), error).with_state("Nothing was moved.") from error
    talk = None if options.quiet else Talk().notify
    with MoveProgress("drain", quiet=options.quiet, color=not options.no_color, talk=talk) as progress:
        async with open_sides(pair) as sides:
            try:
                return await drain_backlog(
                    request,
                    secondary=sides.secondary,
                    primary=sides.primary,
                    admin=sides.secondary_admin,
                    clock=system_clock(),
                    observer=progress,
                    ledger=book,
                    stop=stop,
                )
            finally:
                if book is not None:
                    await book.close()
