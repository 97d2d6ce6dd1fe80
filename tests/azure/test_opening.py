"""Links of the SDK's own senders below the drop-in clients: opened within a time, forgotten, closed."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import exceptions

from sbpair.azure import wire
from tests.waiting import LIMIT_SECONDS


class Link:
    def __init__(self, *, silent: bool = False) -> None:
        self.closed = threading.Event()
        self.silent = silent
        self._connection: Any = None
        self._keep_alive_thread: Any = None

    def close(self) -> None:
        self.closed.set()
        raise OSError("it is gone already")

    async def close_async(self) -> None:
        if self.silent:
            await asyncio.Event().wait()
        self.close()


class Sender:
    """As the SDK's: `_open` closes the link that it had."""

    def __init__(self) -> None:
        self._handler: Any = Link()
        self._running = True
        self._max_message_size_on_link = 0


def test_a_link_is_opened_on_a_copy_that_closes_the_old_one_and_comes_back_when_it_has_ended() -> None:
    sender, seen = Sender(), list[Any]()
    old, new = sender._handler, Link()

    def opening(own: Any) -> None:
        seen.append((own is sender, own._handler, sender._handler, sender._running))
        seen.append(threading.current_thread() is threading.main_thread())
        own._handler, own._running, own._max_message_size_on_link = new, True, 9

    wire.open_in_time(opening, sender, None)
    assert seen == [(False, old, None, False), False]
    assert (sender._handler, sender._running, sender._max_message_size_on_link) == (new, True, 9)
    assert not new.closed.is_set()


@pytest.mark.parametrize("error", [exceptions.ServiceBusConnectionError(message="lost"), SystemExit(1)])
def test_what_opening_raises_is_raised_and_leaves_the_sender_as_the_copy_was(error: BaseException) -> None:
    sender, half = Sender(), Link()

    def opening(own: Any) -> None:
        own._handler = half
        raise error

    with pytest.raises(type(error)) as raised:
        wire.open_in_time(opening, sender, LIMIT_SECONDS)
    assert raised.value is error
    assert sender._handler is half


def test_a_link_that_comes_too_late_is_closed_and_not_the_sender_s() -> None:
    sender, late, over = Sender(), Link(), threading.Event()

    def opening(own: Any) -> None:
        over.wait()
        own._handler = late

    with pytest.raises(exceptions.OperationTimeoutError, match=r"The link was not open within 0\.0 seconds"):
        wire.open_in_time(opening, sender, 0.01)
    assert (sender._handler, sender._running) == (None, False)
    over.set()
    assert late.closed.wait(LIMIT_SECONDS)
    assert sender._handler is None


async def test_an_asynchronous_link_has_its_time() -> None:
    class Opening:
        def __init__(self, hangs: bool) -> None:
            self.hangs = hangs

        async def _open(self) -> None: ...

        async def _do_retryable_operation(self, operation: Any, **_: Any) -> None:
            assert operation == self._open
            if self.hangs:
                await asyncio.Event().wait()

    await wire._open_bounded(Opening(False), LIMIT_SECONDS)
    with pytest.raises(exceptions.OperationTimeoutError, match="was not open within"):
        await wire._open_bounded(Opening(True), 0.01)


def test_what_is_forgotten_is_closed_in_a_thread_and_its_errors_are_nobody_s() -> None:
    sender = Sender()
    link = sender._handler
    assert wire.forget_connection(sender) is link
    assert (sender._handler, sender._running) == (None, False)
    assert wire.forget_connection(sender) is None
    before = {one.name for one in threading.enumerate()}
    wire.close_forgotten(None)
    assert {one.name for one in threading.enumerate()} <= before
    wire.close_forgotten(link)
    assert link.closed.wait(LIMIT_SECONDS)


async def test_an_asynchronous_link_is_closed_within_a_bound_and_its_socket_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "_GOODBYE_SECONDS", 0.01)
    for silent in (False, True):
        dropped: list[str] = []
        link = Link(silent=silent)
        transport = SimpleNamespace(abort=lambda dropped=dropped: dropped.append("aborted"))
        link._connection = SimpleNamespace(_transport=SimpleNamespace(writer=SimpleNamespace(transport=transport)))
        link._keep_alive_thread = asyncio.create_task(asyncio.Event().wait())
        await wire.close_forgotten_async(link)
        assert (dropped, link._keep_alive_thread.cancelled(), link.closed.is_set()) == (["aborted"], True, not silent)
    await wire.close_forgotten_async(Link())


def test_a_sender_is_closed_once_its_sdk_says_so() -> None:
    def check_live() -> None:
        raise ValueError("The handler has already been shutdown.")

    assert wire.is_closed(SimpleNamespace(_check_live=check_live))
    assert not wire.is_closed(SimpleNamespace(_check_live=lambda: None))
    with pytest.raises(ValueError, match="shutdown"):
        wire.check_live(SimpleNamespace(_check_live=check_live))
