"""What drain and syphon share: the request out of options, the report as a result."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sbpair import operations
from sbpair.cli.asking import side_named
from sbpair.cli.options import duration_option
from sbpair.cli.transfer.options import MoveOptions, budget_of, check_new_ledger
from sbpair.core.errors import UsageError
from sbpair.core.names import backlog_queue_path, check_entity_path, parse_backlog_queue_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.prices import in_words
from sbpair.core.words import counted
from sbpair.render.result import Check, CommandResult, Severity, metrics_of, table_of

if TYPE_CHECKING:
    from sbpair.operations.backlog import BacklogRequest


# Backlog queues as they are named on the command line.


def backlog_path(pair: Pair, text: str) -> str:
    """Path of a backlog queue given by its index, or by the path as findings show it.

    Raises:
        UsageError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return backlog_queue_path(pair.primary.label, int(text))
    name = parse_backlog_queue_path(text)
    if name is None:
        raise UsageError(f"--queue {text!r} is neither the index nor the path of a backlog queue.")
    return name.path


R = TypeVar("R", bound="BacklogRequest")


def make_request(kind: type[R], pair: Pair, options: MoveOptions) -> R:
    """What drain and syphon share of their requests.

    Raises:
        UsageError: no index or path of a backlog queue, an unknown target, a filter that cannot be read, a new ledger
            without a name, --dlq with --with-dlq.
    """
    if options.dlq and options.with_dlq:
        raise UsageError("--dlq means the dead-letter queues only, --with-dlq as well. Give one of them.")
    check_new_ledger(options.ledger, new=options.new_ledger)
    return kind(
        queues=named_paths(pair, options.queues),
        dead_letter=options.dlq,
        with_dead_letter=options.with_dlq,
        for_seconds=duration_option(options.for_),
        idle_seconds=duration_option(options.until_idle) or 0.0,
        to=_target(options.to, options.archive),
        wanted=options.filters.wanted(),
        rate_per_second=options.rate,
        budget_per_second=budget_of(options.reserve),
        concurrency=options.concurrency,
        ttl=options.ttl,
        only=_allowed(pair, options) if options.only_entities else None,
        ledger=options.ledger,
        new_ledger=options.new_ledger,
        verify_doubtful=options.verify_doubtful,
    )


def _allowed(pair: Pair, options: MoveOptions) -> tuple[str, ...]:
    if options.to != "primary" or options.archive is not None:
        raise UsageError("--only-entities limits each message's own destination; --to and --archive name another one.")
    return only_entities(pair)


def only_entities(pair: Pair) -> tuple[str, ...]:
    """The queues and topics of the primary that --only-entities sends to.

    Raises:
        UsageError: the configuration names none.
    """
    if not pair.entities:
        raise UsageError(
            f"--only-entities sends to the entities of {pair.name}, and its configuration has none. Nothing was moved.",
            hint="Write `entities: [orders, ...]` below the pair in sbpair.yaml.",
        )
    return pair.entities


def doing(command: str, pair: Pair, options: MoveOptions) -> str:
    """What a run is about to do, with the namespaces by their configured names."""
    what = "dead letters" if options.dlq else "messages and dead letters" if options.with_dlq else "messages"
    queues = "the backlog queues" if not options.queues else counted(len(options.queues), "backlog queue")
    if options.archive is not None:
        where = f"into files in {options.archive}"
    elif options.to != "primary":
        where = f"to {options.to.partition(':')[2]} on {side_named(pair, Side.PRIMARY)}"
    else:
        where = f"back to {side_named(pair, Side.PRIMARY)}"
    return f"{command.capitalize()} {pair.name}: {what} of {queues} on {side_named(pair)} {where}"


def named_paths(pair: Pair, queues: list[str] | None) -> tuple[str, ...]:
    """Paths of the queues with the given indexes or paths. Whether they exist is asked later.

    Raises:
        UsageError: a backlog queue of another primary.
    """
    paths = tuple(dict.fromkeys(backlog_path(pair, queue) for queue in queues or ()))
    for path in paths:
        if not path.startswith(f"{pair.primary.label.lower()}/"):
            raise UsageError(f"{path} is not a backlog queue of {pair.primary.label}, the primary of {pair.name!r}.")
    return paths


def _target(text: str, archive: Path | None) -> "operations.ToPrimary | operations.ToArchive | operations.ToQueue":
    kind, _, rest = text.partition(":")
    if archive is not None:
        if text != "primary":
            raise UsageError("--archive writes files, --to sends messages; give one of them.")
        return operations.ToArchive(archive)
    match kind, bool(rest):
        case "primary", False:
            return operations.ToPrimary()
        case "archive", _:
            raise UsageError("--to archive:DIRECTORY is --archive DIRECTORY now.")
        case "queue", True:
            return operations.ToQueue(check_entity_path(rest))
    raise UsageError(f"--to is primary or queue:NAME, not {text!r}.")


def report_result(
    command: str, pair: Pair, result: "operations.DrainResult", *, verbose: bool = False
) -> CommandResult:
    """A run of the pump as tables, data and exit code."""
    from sbpair.core.transfer.report import OutcomeRow

    operations = result.used or result.forecast
    takes = "It took" if result.used else "Moving them would take"
    severity = Severity.OK if result.exit is Exit.OK else Severity.WARNING
    label = ("pair", pair.name)
    return CommandResult(
        command,
        result,
        (table_of(OutcomeRow, result.rows()),),
        notes=(*result.notes, *([f"{takes} {in_words(operations)}."] if verbose and operations else [])),
        summary=result.closing,
        exit=result.exit,
        checks=(Check("backlog", pair.name, severity, result.closing),),
        metrics=(*metrics_of(result.report, label), *metrics_of(result.left, label)),
        closing=True,
    )
