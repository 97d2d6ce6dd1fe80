"""The handler that writes the log to stderr: equal troubles of many queues or messages are one line with a count."""

import asyncio
import logging
import time
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sbpair.cli.options import PAIR
from sbpair.render.console import say
from sbpair.render.formats import dump_json

if TYPE_CHECKING:
    from sbpair.core.events import LockedElsewhere, ReceiveFailed

TOGETHER_SECONDS = 0.3
"""A namespace that goes away is noticed by all its queues within this time."""


COUNT_SECONDS = 10.0
"""So often what was told once in full is told as a number."""


class TalkHandler(logging.Handler):
    """Writes each record as one line; failed receives with the same cause, and queues whose first message is locked
    elsewhere, are gathered first.

    Of the messages dead-lettered for one reason the first is told in full and the others are counted, and so are
    failures of backlog queues; with `each` all are told.
    """

    def __init__(self, *, each: bool = False) -> None:
        super().__init__()
        self._each = each
        self._told: set[tuple[str, str]] = set()
        """Causes of failed receives that were told in full."""
        self._gathered: dict[Hashable, list[ReceiveFailed]] = {}
        self._locked: list[LockedElsewhere] = []
        self._more: dict[str, int] = {}
        self._counted_at = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event is None:
            self._tell_gathered()
            say(self.format(record))
            return
        # Here, since every command has this handler and few have events.
        from sbpair.core.events import BacklogQueueLeft, DeadLettered, LockedElsewhere, ReceiveFailed

        if isinstance(event, DeadLettered | BacklogQueueLeft) and not self._each:
            kind = (
                f"dead-lettered: {event.reason}"
                if isinstance(event, DeadLettered)
                else f"times a backlog queue failed: {event.error_code}"
            )
            if kind in self._more:
                self._more[kind] += 1
                if time.monotonic() - self._counted_at >= COUNT_SECONDS:
                    self.flush()
                return
            self._more[kind] = 0
        if isinstance(event, ReceiveFailed) and self._soon():
            self._gathered.setdefault((event.error_code, event.retry_after_seconds is None), []).append(event)
            return
        if isinstance(event, LockedElsewhere) and self._soon():
            self._locked.append(event)
            return
        self._tell_gathered()
        say(self.format(record))

    def _soon(self) -> bool:
        """Whether there is a loop that will write what is gathered."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if not (self._gathered or self._locked):
            loop.call_later(TOGETHER_SECONDS, self._tell_gathered)
        return True

    def flush(self) -> None:
        """Write what was gathered and counted."""
        self._tell_gathered()
        self._tell_counted()

    def _tell_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        locked, self._locked = self._locked, []
        if not (gathered or locked):
            return
        from sbpair.render.service import describe_locked, describe_together

        for events in gathered.values():
            # Whichever of the queues fails first: the cause is the same.
            cause = events[0].error_code, events[0].message.replace(events[0].queue, "")
            say(describe_together(events, again=cause in self._told and not self._each))
            self._told.add(cause)
        if locked:
            say(describe_locked(locked))

    def _tell_counted(self) -> None:
        self._counted_at = time.monotonic()
        for kind, number in self._more.items():
            if number:
                self._more[kind] = 0
                say(f"{number:,} more {kind if number > 1 else kind.replace('times ', 'time ', 1)}.")


def json_line(level: str, message: str, *, at: float | None = None, more: Mapping[str, Any] | None = None) -> str:
    """A log line for `--log-format json`. `at`: UTC epoch seconds, by default now."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    pair = {} if PAIR.get() is None else {"pair": PAIR.get()}
    return dump_json({"time": moment.isoformat(), "level": level, "message": message} | pair | dict(more or {}))
