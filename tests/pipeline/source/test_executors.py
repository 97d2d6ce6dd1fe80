"""Synchronous code at a namespace: pages in order, several queues at a time, errors as they are."""

import asyncio
import time

import pytest

from sbpair.concurrency import side_by_side
from sbpair.core.errors import EntityNotFoundError
from sbpair.core.transfer.pace import Pace
from sbpair.pipeline.executors import TaskConnection
from sbpair.pipeline.source.reader import find_spans
from sbpair.pipeline.spans import NumberRange
from sbpair.runtime.browse import PAGE_MESSAGES
from tests.pipeline.stage import QUEUES, Stage, backlog, messages


def test_pages_come_in_order_and_end_with_the_span(stage: Stage) -> None:
    count = 2 * PAGE_MESSAGES + 100
    stage.divert(messages(count))
    with TaskConnection.to(stage.pair, "secondary") as connection:
        pages = list(connection.browse(NumberRange(backlog(0), False, 1, count - 10)))
        beyond = list(connection.browse(NumberRange(backlog(0), False, count - 5, count + 1_000)))
    assert [len(page) for page in pages] == [PAGE_MESSAGES, PAGE_MESSAGES, 90]
    assert [one.sequence_number for page in pages for one in page] == list(range(1, count - 9))
    assert [one.sequence_number for page in beyond for one in page] == list(range(count - 5, count + 1))


def test_a_browse_that_is_given_up_leaves_the_connection_usable(stage: Stage) -> None:
    stage.divert(messages(2 * PAGE_MESSAGES))
    with TaskConnection.to(stage.pair, "secondary") as connection:
        for _ in connection.browse(NumberRange(backlog(0), False, 1, 2 * PAGE_MESSAGES)):
            break
        spans = find_spans(connection, [(backlog(queue), False) for queue in range(QUEUES)])
    assert spans == [NumberRange(backlog(0), False, 1, 2 * PAGE_MESSAGES)]


def test_an_error_of_the_namespace_is_raised_as_it_is(stage: Stage) -> None:
    with TaskConnection.to(stage.pair, "secondary") as connection, pytest.raises(EntityNotFoundError):
        next(connection.browse(NumberRange("no-such-queue", False, 1, 10)))


def test_a_browse_keeps_to_a_bound_and_learns_from_a_namespace_that_is_too_busy(stage: Stage) -> None:
    count = 2 * PAGE_MESSAGES
    stage.divert(messages(count))
    stage.emulator.faults("shop-neu").add(f"throttle:entity={backlog(0)},op=management,nth=2")
    pace = Pace(5 * PAGE_MESSAGES)
    with TaskConnection.to(stage.pair, "secondary") as connection:
        began = time.monotonic()
        pages = list(connection.browse(NumberRange(backlog(0), False, 1, count), pace))
    assert [one.sequence_number for page in pages for one in page] == list(range(1, count + 1))
    assert (pace.per_second(time.monotonic()) or 0.0) < 5 * PAGE_MESSAGES, "it was refused once"
    assert time.monotonic() - began > 0.9, "as long as what comes in the meantime pays for the first page, and a pause"


async def test_the_first_error_ends_what_runs_beside_it() -> None:
    ended = []

    async def work(number: int) -> int:
        if number == 3:
            raise EntityNotFoundError("gone")
        try:
            await asyncio.sleep(60 if number > 3 else 0)
        except asyncio.CancelledError:
            ended.append(number)
            raise
        return number

    with pytest.raises(EntityNotFoundError):
        await side_by_side(work, range(1, 6))
    assert sorted(ended) == [4, 5]
    assert await side_by_side(work, (1, 2)) == [1, 2]
