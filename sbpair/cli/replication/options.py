"""Options and arguments of the `sbpair replicate` commands, and what they become."""

from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import suggestions
from sbpair.cli.options import duration_option
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path, check_source_path
from sbpair.core.replication.ownership import Granularity, Terms

if TYPE_CHECKING:
    from sbpair.ports import Journal

FirstArgument = Annotated[
    str,
    typer.Argument(
        metavar="[PAIR] QUEUE",
        help="A pair, and a queue on both its namespaces; or a topic to send to, TOPIC/Subscriptions/NAME to consume.",
        autocompletion=suggestions.pairs_and_entities,
    ),
]
SecondArgument = Annotated[
    str | None, typer.Argument(metavar="", hidden=True, show_default=False, autocompletion=suggestions.entities)
]
JournalOption = Annotated[
    str | None, typer.Option(envvar="SBPAIR_JOURNAL", help="sqlite:FILE, or cosmos:ACCOUNT_URL/DB/CONTAINER.")
]
JournalKeyOption = Annotated[
    str, typer.Option(help="Environment variable with the Cosmos DB key; without it Entra ID is used.", metavar="NAME")
]
LeaseOption = Annotated[
    str, typer.Option(metavar="DURATION", help="How long until a crashed consumer's sessions are taken over.")
]
MarginOption = Annotated[str, typer.Option(metavar="DURATION", help="How far the clocks of the hosts may differ.")]
AttemptsOption = Annotated[int, typer.Option(min=1, help="Dead-letter a message after this many failed attempts.")]
GapOption = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Skip a missing predecessor after this time. Default: wait for it."),
]
GranularityOption = Annotated[Granularity, typer.Option(help="Claim whole sessions, or single messages.")]
RetentionOption = Annotated[
    str, typer.Option(metavar="DURATION", help="How long the journal remembers a message of which only one copy came.")
]
RememberOption = Annotated[
    str, typer.Option(metavar="DURATION", help="How long the journal remembers a message after both copies came.")
]


def pair_and_queue(first: str, second: str | None) -> tuple[str | None, str]:
    """`[PAIR] QUEUE` taken apart; a topic where messages are sent to."""
    return (None, check_entity_path(first)) if second is None else (first, check_entity_path(second))


def pair_and_source(first: str, second: str | None) -> tuple[str | None, str]:
    """`[PAIR] QUEUE` or `[PAIR] TOPIC/Subscriptions/NAME` taken apart."""
    return (None, check_source_path(first)) if second is None else (first, check_source_path(second))


def make_terms(
    *,
    lease: str = "30s",
    margin: str = "5s",
    attempts: int = 5,
    gap: str | None = None,
    retention: str = "14d",
    remember: str = "1d",
    granularity: Granularity = Granularity.SESSION,
) -> Terms:
    return Terms(
        lease_seconds=duration_option(lease) or 0.0,
        margin_seconds=duration_option(margin) or 0.0,
        max_attempts=attempts,
        gap_seconds=duration_option(gap),
        retention_seconds=duration_option(retention) or 0.0,
        remember_seconds=duration_option(remember) or 0.0,
        granularity=granularity,
    )


def journal_at(address: str | None, key_variable: str) -> "Journal":
    """The journal of --journal.

    Raises:
        UsageError: none was named. JournalError: the package it needs is not installed.
    """
    from sbpair.journal import FORMS, open_with_key

    if address is None:
        raise UsageError("Name the journal with --journal or SBPAIR_JOURNAL.", hint=f"Write {FORMS}.")
    return open_with_key(address, key_variable=key_variable)
