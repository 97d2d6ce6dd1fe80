"""What monitoring a namespace of thousands of entities asks of it, and takes.

    python -m tests.benchmarks --only scrape [--quick]

The namespaces are a process of their own, which counts what it is asked. The first scrape reads every dead letter, the
second one only those that came since.
"""

import asyncio
import time
from typing import Any

from sbpair.connect import open_ends
from sbpair.core.inspection.entity import NOT_READ
from sbpair.operations import ScrapeRequest, scrape_namespace
from tests.benchmarks.embedded import Embedded, embedded
from tests.benchmarks.table import Row

MOST_CALLS = 35
"""Management calls of a scrape of 3,000 entities."""


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; half a minute."""
    entities = 1_000 if quick else 3_000
    with embedded() as on:
        on.entities(entities)
        return [row.as_dict() for row in asyncio.run(scraped(on, entities))]


async def scraped(on: Embedded, entities: int) -> list[Row]:
    """The figures of two scrapes one after the other."""
    rows: list[Row] = []
    most = max(entities, ScrapeRequest().least_credits)
    async with open_ends(on.primary) as ends:
        before = None
        for case in ("first", "second"):
            on.watch()
            on.budget(None, None)
            began, cpu = time.monotonic(), time.process_time()
            found = await scrape_namespace(ends, ScrapeRequest(before=before))
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            seen, credits = on.watched()["primary"], on.spent()["primary"]["credits"]
            browsed = credits - 10 * seen["http"]
            unread = sum(found.causes(one).get(NOT_READ, 0) for one in found.listed.entities)
            name, before = f"{case} scrape of {entities:,} entities", found
            rows += [
                Row("scrape", name, "management calls", seen["http"], at_most=MOST_CALLS),
                Row("scrape", name, "management calls, as told", found.used.management_calls),
                Row("scrape", name, "credits of browses", browsed, at_most=most),
                Row("scrape", name, "credits of browses, as told", found.used.message_operations),
                Row("scrape", name, "requests of browses", seen["management"]),
                Row("scrape", name, "connections", seen["connect"]),
                Row("scrape", name, "ages", len(found.oldest_age_seconds)),
                Row("scrape", name, "entities with sessions", len(found.sessions)),
                Row("scrape", name, "dead letters not read", unread),
                Row("scrape", name, "time", round(seconds, 1), "s"),
                Row("scrape", name, "CPU", round(cpu, 1), "s"),
            ]
    return rows
