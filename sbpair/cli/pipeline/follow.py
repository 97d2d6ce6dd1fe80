"""`sbpair pipeline follow`: an archive that is kept up to date."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import configure_logging
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.cli.pipeline.session import (
    ArchivingOptions,
    IntoOption,
    JobLog,
    check_folder,
    pair_by_name,
    spark_session,
    wants_delta,
)
from sbpair.cli.transfer.options import ForOption, UntilIdleOption
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.pipeline.reports import ArchiveReport, FollowReport, FollowResult
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import Session

_log = logging.getLogger("sbpair")


@command(output="pipeline.reports:FollowResult")
def follow(
    options: Options,
    into: IntoOption,
    pair: PairArgument = None,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Pause between two looks.")] = "30s",
    for_: ForOption = None,
    until_idle: UntilIdleOption = None,
    *,
    archiving: ArchivingOptions,
) -> CommandResult:
    """Keep an archive up to date while a backlog grows: look every --every, and add what is new.

    The archive is that of `pipeline archive`: `analyze` and `replay` read it at any time. The queues keep their
    messages; --take removes each one after the file that holds it is part of the archive. SIGTERM, Ctrl-C and the end
    of --for or --until-idle leave a whole archive; the same command goes on. Needs Listen on the secondary.

    \b
    Examples:
      sbpair pipeline follow orders --archive /data/outage-2026-11
      sbpair pipeline follow orders --archive /data/outage-2026-11 --format delta
      sbpair pipeline follow orders --archive /data/outage-2026-11 --every 5s --until-idle 10m --take --with-dlq
    """
    archiving.check()
    pause = duration_option(every) or 0.0
    if pause < 1:
        raise UsageError(f"--every is one second or more, not {every}.")
    from sbpair.pipeline.spark.session import check_installed

    check_installed()
    from sbpair.pipeline.follow import FollowRequest
    from sbpair.pipeline.follow import follow as keep_up_to_date
    from sbpair.pipeline.paths import is_folder

    delta = wants_delta(archiving.format_, into)
    chosen = pair_by_name(options, pair)
    if is_folder(into):
        check_folder(Path(into), create=False)
    if archiving.take:
        archiving.ask_to_take(options, pair, into, besides=", and those that come later")
    request = FollowRequest(
        archiving.request(options, chosen, into, delta=delta),
        pause,
        duration_option(for_),
        duration_option(until_idle),
    )
    configure_logging(options)
    with ExitStack() as stack:
        opened: list[Session] = []
        progress = JobLog(options)

        def session() -> "Session":
            if not opened:
                sources = archiving.take or not is_folder(into)
                spark = spark_session(
                    options, archiving.master, archiving.conf, rows=None, name="follow", sources=sources
                )
                opened.append(stack.enter_context(spark))
                stack.enter_context(progress)
            return opened[0]

        def begun() -> None:
            _log.info(f"Following {chosen.name} into {into}, every {every}.")

        report = keep_up_to_date(session, request, tell=progress, begun=begun, added=_say)
    return _result(chosen.name, report, take=archiving.take)


def _say(added: ArchiveReport) -> None:
    taken = f", {added.settled:,} removed from their queues" if added.settled else ""
    _log.info(f"{_count(added.rows)} added{taken}; the archive has {added.total_rows:,}.")


def _count(number: int) -> str:
    return f"{number:,} message{'s' if number != 1 else ''}"


_EXITS = {"interrupted": Exit.INTERRUPTED, "terminated": Exit.TERMINATED}
_ENDED = {
    "time": "The time is over",
    "idle": "Nothing new has come",
    "interrupted": "Interrupted",
    "terminated": "Terminated",
}


def _result(pair: str, report: FollowReport, *, take: bool) -> CommandResult:
    taken = f"; {report.settled:,} removed from their queues" if take else ""
    columns = (Column("rounds", "Rounds", right=True), Column("rows", "Added", right=True))
    row = {"rounds": report.rounds, "rows": report.rows}
    return CommandResult(
        "pipeline follow",
        FollowResult(pair, report),
        (Table("", columns, [row]),),
        notes=tuple(f"Left in the queue: {count:,} ({reason})" for reason, count in sorted(report.left.items())),
        closing=True,
        summary=(
            f"{_ENDED[report.ended]}. {_count(report.rows)} added to {report.archive}, "
            f"which has {report.total_rows:,}{taken}."
        ),
        exit=_EXITS.get(report.ended) or (Exit.PARTIAL if report.left else Exit.OK),
    )
