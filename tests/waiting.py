"""Tests wait for what happens, not for a time: a slow machine makes them slow, never red."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT_SECONDS = 600.0
"""Bounds every wait for something that has to come. Only what hangs takes so long, however busy the machine is."""
_LOOK_AGAIN_SECONDS = 0.02


def until(
    condition: Callable[[], T],
    process: "subprocess.Popen[str] | None" = None,
    *,
    limit_seconds: float = LIMIT_SECONDS,
    look_again_seconds: float = _LOOK_AGAIN_SECONDS,
) -> T:
    """The first true value of the condition.

    Raises:
        AssertionError: the process that should have met it has ended, or it was not met in time.
    """
    deadline = time.monotonic() + limit_seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(look_again_seconds)
    return value


def closing_at_once(client: type[T]) -> type[T]:
    """A client of the SDK whose senders close at once: the SDK's own wait up to a second for what keeps their
    connection alive."""
    base: Any = client

    class Client(base):  # type: ignore[misc]
        def get_queue_sender(self, queue_name: str, **options: Any) -> Any:
            return super().get_queue_sender(queue_name, **{"keep_alive": 0} | options)

        def get_topic_sender(self, topic_name: str, **options: Any) -> Any:
            return super().get_topic_sender(topic_name, **{"keep_alive": 0} | options)

    return Client
