"""What the calls of both management clients share: retries, and the meaning of 409."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sbpair.azure.errors import translating
from sbpair.core.errors import ConflictError, EntityExistsError

READ: Final = {"retry_total": 2}
"""Options of a read: it may be tried again within the call's bound."""

WRITE: Final = {"retry_total": 0}
"""Options of a create or delete: sent twice it can report its own success as a conflict."""


@contextmanager
def changing(tried: str, entity: str) -> Iterator[None]:
    """Translate errors of an update or delete, where 409 means that another operation is in progress."""
    try:
        with translating(tried, entity):
            yield
    except EntityExistsError as error:
        raise ConflictError(error.message, entity=entity) from error
