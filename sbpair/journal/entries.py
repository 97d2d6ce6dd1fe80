"""An entry as it comes from a store that others write to as well."""

from typing import Any

from sbpair.core.errors import JournalError
from sbpair.ports import Entry


def checked_entry(journal: str, kind: Any, key: Any, document: Any, version: Any) -> Entry:
    """The entry, if it is one.

    Raises:
        JournalError: the store holds something else under that key.
    """
    if not isinstance(document, dict) or not all(isinstance(text, str) for text in (kind, key, version)):
        raise JournalError(f"An entry of the journal {journal} is not an sbpair entry: it cannot be read.")
    return Entry(kind, key, document, version)
