"""What both management clients share: calls within a bound, whole lists, retries, and the meaning of 409."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from sbpair.azure.errors import translating
from sbpair.core.errors import ConflictError, EntityExistsError

T = TypeVar("T")

READ: Final = {"retry_total": 2}
"""Options of a read: it may be tried again within the call's bound."""

WRITE: Final = {"retry_total": 0}
"""Options of a create or delete: sent twice it can report its own success as a conflict."""

LIST_SECONDS: Final = 600.0
MOST_PAGES: Final = 300
"""Bounds of a whole list: a namespace has up to 10,000 entities, which is 100 pages."""


async def bounded(call: Awaitable[T], seconds: float) -> T:
    """The call's answer; TimeoutError when it takes longer."""
    async with asyncio.timeout(seconds):
        return await call


async def every_item(pages: Any, page_seconds: float) -> list[Any]:
    """Every item of a paged list, each page bounded.

    Raises:
        ValueError: the list leads back to a page that was read already, or has no end.
    """
    found: list[Any] = []
    iterator = pages.by_page()
    links: set[Any] = set()
    async with asyncio.timeout(LIST_SECONDS):
        while (page := await bounded(anext(iterator, None), page_seconds)) is not None:
            found += [item async for item in page]
            link = iterator.continuation_token
            if link in links:
                raise ValueError(f"the list does not end: page {len(links) + 1} leads back to an earlier one")
            if len(links) >= MOST_PAGES:
                raise ValueError(f"the list does not end: it has more than {MOST_PAGES:,} pages")
            links.add(link)
    return found


@contextmanager
def changing(tried: str, entity: str) -> Iterator[None]:
    """Translate errors of an update or delete, where 409 means that another operation is in progress."""
    try:
        with translating(tried, entity):
            yield
    except EntityExistsError as error:
        raise ConflictError(error.message, entity=entity) from error
