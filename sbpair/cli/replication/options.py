"""Options and arguments of the `sbpair replicate` commands, and what they become."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli import suggestions
from sbpair.cli.options import OptionSet, duration_option
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path, check_source_path
from sbpair.core.replication.ownership import Granularity, Terms
from sbpair.journal import COSMOS_KEY

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
RetentionOption = Annotated[
    str, typer.Option(metavar="DURATION", help="How long the journal remembers a message of which only one copy came.")
]


@dataclass(frozen=True, slots=True)
class JournalOptions(OptionSet):
    """Which journal the consumers agree through."""

    journal: Annotated[
        str | None, typer.Option(envvar="SBPAIR_JOURNAL", help="sqlite:FILE, or cosmos:ACCOUNT_URL/DB/CONTAINER.")
    ] = None
    journal_key: Annotated[
        str,
        typer.Option(help="Environment variable with the Cosmos DB key; without it Entra ID is used.", metavar="NAME"),
    ] = COSMOS_KEY

    def open(self) -> "Journal":
        """The journal.

        Raises:
            UsageError: none was named. JournalError: the package it needs is not installed.
        """
        from sbpair.journal import FORMS, open_with_key

        if self.journal is None:
            raise UsageError("Name the journal with --journal or SBPAIR_JOURNAL.", hint=f"Write {FORMS}.")
        return open_with_key(self.journal, key_variable=self.journal_key)

    def open_if_named(self) -> "Journal | None":
        return None if self.journal is None else self.open()


@dataclass(frozen=True, slots=True)
class LeaseOptions(OptionSet):
    """When a consumer that is gone is given up."""

    lease: Annotated[
        str, typer.Option(metavar="DURATION", help="How long until a crashed consumer's sessions are taken over.")
    ] = "30s"
    margin: Annotated[str, typer.Option(metavar="DURATION", help="How far the clocks of the hosts may differ.")] = "5s"

    def terms(self, **more: Any) -> Terms:
        """What consumers with these options agree on; `more` as `Terms` takes it."""
        lease_seconds, margin_seconds = duration_option(self.lease) or 0.0, duration_option(self.margin) or 0.0
        return Terms(lease_seconds=lease_seconds, margin_seconds=margin_seconds, **more)


@dataclass(frozen=True, slots=True)
class MemoryOptions(OptionSet):
    """How long the journal remembers a message."""

    retention: RetentionOption = "14d"
    remember: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long the journal remembers a message after both copies came."),
    ] = "1d"

    def seconds(self) -> dict[str, Any]:
        """The same in the words of `Terms`."""
        return {
            "retention_seconds": duration_option(self.retention) or 0.0,
            "remember_seconds": duration_option(self.remember) or 0.0,
        }


@dataclass(frozen=True, slots=True)
class TermsOptions(OptionSet):
    """All that consumers of a destination have to agree on."""

    leasing: LeaseOptions = LeaseOptions()
    attempts: Annotated[int, typer.Option(min=1, help="Dead-letter a message after this many failed attempts.")] = 5
    gap_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Skip a missing predecessor after this time. Default: wait for it."),
    ] = None
    granularity: Annotated[Granularity, typer.Option(help="Claim whole sessions, or single messages.")] = (
        Granularity.SESSION
    )
    memory: MemoryOptions = MemoryOptions()

    def terms(self) -> Terms:
        return self.leasing.terms(
            max_attempts=self.attempts,
            gap_seconds=duration_option(self.gap_timeout),
            granularity=self.granularity,
            **self.memory.seconds(),
        )


def pair_and_queue(first: str, second: str | None) -> tuple[str | None, str]:
    """`[PAIR] QUEUE` taken apart; a topic where messages are sent to."""
    return (None, check_entity_path(first)) if second is None else (first, check_entity_path(second))


def pair_and_source(first: str, second: str | None) -> tuple[str | None, str]:
    """`[PAIR] QUEUE` or `[PAIR] TOPIC/Subscriptions/NAME` taken apart."""
    return (None, check_source_path(first)) if second is None else (first, check_source_path(second))
