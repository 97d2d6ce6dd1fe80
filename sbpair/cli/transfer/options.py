"""Options that several commands for backlog messages take: which messages, where to, how fast, which ledger."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import side_named
from sbpair.cli.options import ONCE, Options, OptionSet, duration_option, moment_option
from sbpair.core.errors import UsageError
from sbpair.core.message import TtlMode
from sbpair.core.names import backlog_queue_path, check_entity_path, parse_backlog_queue_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND, PATIENCE_SECONDS, UNREACHED_SECONDS, credits_beside
from sbpair.core.words import counted

if TYPE_CHECKING:
    from sbpair.core.transfer.filters import MessageFilter
    from sbpair.operations.drain import BacklogRequest

LimitOption = Annotated[int | None, typer.Option("-n", "--limit", min=1, help="At most this many messages."), ONCE]
RateOption = Annotated[float | None, typer.Option(min=0.01, help="Maximum messages per second.")]
ReserveOption = Annotated[
    int | None,
    typer.Option(
        metavar="CREDITS",
        min=0,
        max=NAMESPACE_CREDITS_PER_SECOND - 1,
        help="Leave this many of the 1,000 throttling credits per second (Basic and Standard) to other clients.",
    ),
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, max=64, help="Concurrent batches.")]
TtlOption = Annotated[TtlMode, typer.Option(help="Restart the time to live in full, or keep what remains of it.")]

ReasonOption = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="REASON", help="Only dead letters with this reason, in any case; repeatable."),
]
LedgerOption = Annotated[
    Path | None, typer.Option(help="Record each message in this file. Messages it already has are not sent again.")
]
NewLedgerOption = Annotated[bool, typer.Option(help="Start a new ledger; the old file is kept beside it."), ONCE]
VerifyDoubtfulOption = Annotated[
    bool,
    typer.Option(
        "--verify-doubtful/--no-verify-doubtful",
        help="Browse the destinations first for messages that a killed run may have sent; needs Listen there.",
    ),
]
OnlyEntitiesOption = Annotated[
    bool, typer.Option(help="Send only to the pair's configured entities; leave and name all others.")
]


def _state_reason(text: str | None) -> str | None:
    if text:
        from sbpair.operations.log import REASON

        REASON.set(text)
    return text


StatedReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason",
        metavar="TEXT",
        help="Why, for the ledger, the operations log and the report; also SBPAIR_REASON, for any command.",
        callback=_state_reason,
    ),
]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="Stop after this time, e.g. 15m."), ONCE
]
UntilIdleOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop when nothing has come for this time."), ONCE
]
GiveUpAfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Leave the messages of a destination or queue that has failed for this long.",
        show_default="2m; 20s if it has not worked yet",
    ),
]
AlthoughInTheQueuesOption = Annotated[
    bool, typer.Option(help="Also send messages that are still in the backlog queues, without a check.")
]


def budget_of(reserve: int | None, *, one_namespace: bool = False) -> float | None:
    """Messages a second that --reserve leaves; None without it. A namespace pays a credit for each message that it
    gives and one for each that it gets: twice, if it is `one_namespace`."""
    if reserve is None:
        return None
    return credits_beside(reserve) / (2 if one_namespace else 1)


def patience(options: Options, give_up_after: str | None) -> dict[str, Any]:
    """How long a destination or queue may fail, as requests take it: what --give-up-after says; otherwise --timeout
    bounds it too, where one was given, and what has not worked yet has less."""
    told = duration_option(give_up_after)
    seconds = options.timeout_seconds(PATIENCE_SECONDS) if told is None else told
    return {"patience_seconds": seconds, "unreached_seconds": UNREACHED_SECONDS if told is None else told}


def check_new_ledger(ledger: Path | None, *, new: bool) -> None:
    """Raises UsageError for a new ledger without a name."""
    if new and ledger is None:
        raise UsageError("--new-ledger needs --ledger FILE.")


class Undelivered(StrEnum):
    """What becomes of a message that its destination does not take."""

    LEAVE = "leave"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Filters(OptionSet):
    """Which messages of a backlog or an archive are meant; all given filters have to match."""

    destination: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only messages whose destination matches, e.g. 'invoices/*'.",
            autocompletion=suggestions.entities,
        ),
    ] = None
    session_id: Annotated[str | None, typer.Option(help="Only messages of this session.")] = None
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER", help="Only messages that match this Service Bus SQL condition; see `sbpair help filters`."
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only messages enqueued since then, e.g. 2026-11-21T08:00Z, or 2h for two hours ago."
        ),
    ] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only messages enqueued until then.")] = None

    @property
    def given(self) -> bool:
        """Whether anything is filtered at all."""
        return bool(self.words())

    def wanted(self) -> "MessageFilter":
        """The filter that the options describe.

        Raises:
            UsageError: a time or a condition that is none; the option is named.
        """
        from sbpair.core.transfer.filters import MessageFilter, Where

        now = datetime.now(UTC).timestamp()
        return MessageFilter(
            destination=self.destination,
            session_id=self.session_id,
            since=None if self.since is None else moment_option(self.since, "--since", now),
            until=None if self.until is None else moment_option(self.until, "--until", now),
            where=None if self.where is None else Where(self.where),
        )


@dataclass(frozen=True, slots=True)
class BacklogOptions(OptionSet):
    """Which backlog queues, and whether they, their dead-letter queues or both.

    Raises:
        UsageError: both ways to say something of dead letters.
    """

    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="INDEX|PATH",
            help="Only this backlog queue; repeatable. Default: every one that exists.",
            autocompletion=suggestions.backlog_indexes,
        ),
    ] = None
    dlq: Annotated[bool, typer.Option(help="The dead-letter queues instead.")] = False
    with_dlq: Annotated[bool, typer.Option(help="The dead-letter queues as well.")] = False

    def __post_init__(self) -> None:
        if self.dlq and self.with_dlq:
            raise UsageError("--dlq means the dead-letter queues only, --with-dlq as well. Give one of them.")


@dataclass(frozen=True, slots=True)
class MoveOptions(OptionSet):
    """Options that drain and syphon share."""

    backlog: BacklogOptions = BacklogOptions()
    filters: Filters = Filters()
    to: Annotated[
        str,
        typer.Option(
            metavar="primary|queue:NAME",
            help="Send each message to its own destination, or all to one queue of the primary.",
        ),
    ] = "primary"
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the messages to a file in this folder instead.")
    ] = None
    only_entities: OnlyEntitiesOption = False
    for_: ForOption = None
    until_idle: UntilIdleOption = None
    rate: Annotated[RateOption, ONCE] = None
    reserve: ReserveOption = None
    concurrency: ConcurrencyOption = 8
    ttl: TtlOption = TtlMode.FULL
    ledger: LedgerOption = None
    new_ledger: NewLedgerOption = False
    verify_doubtful: VerifyDoubtfulOption = True
    stated_reason: StatedReasonOption = None

    def go_on(self, pair: Pair) -> str:
        """The drain that goes on with what is left."""
        return shlex.join(["sbpair", "drain", pair.name, *self.words()])


AgainToOption = Annotated[
    str | None,
    typer.Option(
        metavar="ENTITY",
        help="Queue or topic to send to, of this namespace or NAMESPACE:ENTITY. Default: the queue itself.",
    ),
]
DESPITE = "--despite-duplicate-detection"
DespiteOption = Annotated[
    bool,
    typer.Option(
        DESPITE, help="Send although the destination detects duplicates and drops a MessageId that it got before."
    ),
]


@dataclass(frozen=True, slots=True)
class SendingOptions(OptionSet):
    """How much is sent, how fast, and what is kept of it."""

    limit: LimitOption = None
    rate: RateOption = None
    reserve: ReserveOption = None
    concurrency: ConcurrencyOption = 8
    give_up_after: GiveUpAfterOption = None
    ledger: LedgerOption = None
    new_ledger: NewLedgerOption = False
    verify_doubtful: VerifyDoubtfulOption = True

    def request(self, options: Options, *, one_namespace: bool = False) -> dict[str, Any]:
        """The fields of a request that these options are. `one_namespace`: source and target are on one.

        Raises:
            UsageError: a new ledger without a name, or no duration.
        """
        check_new_ledger(self.ledger, new=self.new_ledger)
        return {
            "max_messages": self.limit,
            "rate_per_second": self.rate,
            "budget_per_second": budget_of(self.reserve, one_namespace=one_namespace),
            "concurrency": self.concurrency,
            "ledger": self.ledger,
            "new_ledger": self.new_ledger,
            "verify_doubtful": self.verify_doubtful,
            **patience(options, self.give_up_after),
        }


RESEND_DRY_RUN = "Browse, ask the destination, and say what would be sent."


@dataclass(frozen=True, slots=True)
class ResendOptions(OptionSet):
    """Which messages are sent to another place or again, and how."""

    filters: Filters = Filters()
    for_: ForOption = None
    sending: SendingOptions = SendingOptions()
    despite_duplicate_detection: DespiteOption = False

    def request(self, options: Options, *, reasons: Sequence[str] = (), one_namespace: bool) -> dict[str, Any]:
        """The fields of a `ResendRequest` that these options are. Arguments, errors: see `SendingOptions`."""
        return {
            "selection": operations.Selection(self.filters.wanted(), reasons),
            "for_seconds": duration_option(self.for_),
            "despite_duplicate_detection": self.despite_duplicate_detection,
            **self.sending.request(options, one_namespace=one_namespace),
        }


@dataclass(frozen=True, slots=True)
class DrainOptions(MoveOptions):
    """Options of drain: those of every move, how much, and what to do with the odd ones."""

    limit: LimitOption = None
    processes: Annotated[
        int,
        typer.Option(min=1, max=64, help="Share the queues among N processes, where one CPU core is the bottleneck."),
    ] = 1
    deferred: Annotated[bool, typer.Option(help="Fetch deferred messages too, after all others.")] = False
    on_missing: Annotated[Undelivered, typer.Option(help="What to do when a destination does not exist.")] = (
        Undelivered.LEAVE
    )
    on_refused: Annotated[
        Undelivered,
        typer.Option(
            help="What to do with messages that a destination refuses as they are: too large, or without a session id "
            "where it requires sessions."
        ),
    ] = Undelivered.LEAVE
    give_up_after: GiveUpAfterOption = None
    report: Annotated[
        Path | None,
        typer.Option(help="Write what happened to FILE.html or FILE.md, as a report of the incident."),
        ONCE,
    ] = None


@dataclass(frozen=True, slots=True)
class MetricsOptions(OptionSet):
    """Where monitoring finds a service."""

    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics and /healthz on this port; 0 for any free one.")
    ] = None
    metrics_host: Annotated[str, typer.Option(help="Address that --metrics-port listens on.")] = "127.0.0.1"

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port; None: none was named."""
        return None if self.metrics_port is None else (self.metrics_host, self.metrics_port)


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
            without a name.
    """
    check_new_ledger(options.ledger, new=options.new_ledger)
    return kind(
        queues=named_paths(pair, options.backlog.queue),
        dead_letter=options.backlog.dlq,
        with_dead_letter=options.backlog.with_dlq,
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
    return only_entities_of(pair)


def only_entities_of(pair: Pair) -> tuple[str, ...]:
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


def doing(pair: Pair, options: MoveOptions) -> str:
    """What a run is about to do, with the namespaces by their configured names."""
    of = options.backlog
    what = "dead letters" if of.dlq else "messages and dead letters" if of.with_dlq else "messages"
    queues = "the backlog queues" if not of.queue else counted(len(of.queue), "backlog queue")
    if options.archive is not None:
        where = f"into files in {options.archive}"
    elif options.to != "primary":
        where = f"to {options.to.partition(':')[2]} on {side_named(pair, Side.PRIMARY)}"
    else:
        where = f"back to {side_named(pair, Side.PRIMARY)}"
    return f"Drain {pair.name}: {what} of {queues} on {side_named(pair)} {where}"


def named_paths(pair: Pair, queues: list[str] | None) -> tuple[str, ...]:
    """Paths of the queues with the given indexes or paths. Whether they exist is asked later.

    Raises:
        UsageError: a backlog queue of another primary.
    """
    paths = tuple(dict.fromkeys(backlog_path(pair, queue) for queue in queues or ()))
    for path in paths:
        if not path.startswith(f"{pair.primary.label}/"):
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
