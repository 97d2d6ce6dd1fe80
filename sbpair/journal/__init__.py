"""Where active/active keeps its journal: `open_journal` picks by address, `sqlite:FILE` or
`cosmos:ACCOUNT_URL/DATABASE/CONTAINER`; the modules `sqlite` and `cosmos` implement the port."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted
from sbpair.ports import Journal

FORMS = "sqlite:FILE or cosmos:https://ACCOUNT.documents.azure.com/DATABASE/CONTAINER"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

COSMOS_KEY = "SBPAIR_COSMOS_KEY"
"""Environment variable with the key of a Cosmos DB account."""


def open_journal(address: str, *, cosmos_key: str | None = None) -> Journal:
    """The journal at an address; nothing is connected before its first use.

    `cosmos_key`: the account's key; None means Entra ID.

    Raises:
        UsageError: the address is of no known form. JournalError: the package it needs is not installed.
    """
    kind, _, rest = address.partition(":")
    if kind == "sqlite" and rest:
        from sbpair.journal.sqlite import SqliteJournal

        return SqliteJournal(Path(rest).expanduser())
    if kind == "cosmos" and rest:
        from sbpair.journal.cosmos import CosmosJournal

        url, database, container = _cosmos_parts(rest)
        return CosmosJournal(url, database, container, key=cosmos_key)
    raise UsageError(f"{quoted(address)} is no journal: write {FORMS}.")


def open_with_key(address: str, *, key_variable: str = COSMOS_KEY) -> Journal:
    """As `open_journal`, with the account's key in an environment variable; without one Entra ID is asked."""
    return open_journal(address, cosmos_key=os.environ.get(key_variable) or None)


def check_journal(journal: object) -> None:
    """Raise TypeError for what is neither an address nor a `Journal`, which is known by what it can do."""
    if not isinstance(journal, str) and not hasattr(journal, "check"):
        raise TypeError(f"`journal` is {FORMS}, or a Journal, not of type {type(journal).__name__}.")


def _cosmos_parts(text: str) -> tuple[str, str, str]:
    no_journal = UsageError(f"{quoted(f'cosmos:{text}')} is no journal: write {FORMS}.")
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
    except ValueError as error:
        raise no_journal from error
    names = [name for name in parts.path.split("/") if name]
    safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not parts.hostname or len(names) != 2 or not safe or parts.query:
        raise no_journal
    return f"{parts.scheme}://{parts.netloc}", names[0], names[1]
