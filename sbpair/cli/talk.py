"""The handler that writes talk to stderr: equal troubles of many queues, all within a moment, are one line."""

import asyncio
import logging
import time
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import Any

from sbpair.core.events import ReceiveFailed
from sbpair.render.console import say
from sbpair.render.events import describe_together
from sbpair.render.formats import dump_json

TOGETHER_SECONDS = 0.3
"""A namespace that goes away is noticed by all its queues within this time."""


class TalkHandler(logging.Handler):
    """Writes each record as one line; failed receives with the same cause are gathered first."""

    def __init__(self) -> None:
        super().__init__()
        self._gathered: dict[Hashable, list[ReceiveFailed]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, ReceiveFailed) and self._soon():
            self._gathered.setdefault((event.error_code, event.retry_after_seconds is None), []).append(event)
            return
        self.flush()
        say(self.format(record))

    def _soon(self) -> bool:
        """Whether there is a loop that will write what is gathered."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if not self._gathered:
            loop.call_later(TOGETHER_SECONDS, self.flush)
        return True

    def flush(self) -> None:
        """Write what was gathered."""
        gathered, self._gathered = self._gathered, {}
        for events in gathered.values():
            say(describe_together(events))


def json_line(level: str, message: str, *, at: float | None = None, more: Mapping[str, Any] | None = None) -> str:
    """A line of talk for `--log-format json`. `at`: UTC epoch seconds, by default now."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return dump_json({"time": moment.isoformat(), "level": level, "message": message} | dict(more or {}))
