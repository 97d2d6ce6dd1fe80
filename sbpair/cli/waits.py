"""Says what a command waits for, once it has been silent for a few seconds."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.core.durations import format_duration
from sbpair.core.words import counted
from sbpair.render.console import silent_seconds

if TYPE_CHECKING:
    from types import ModuleType

    from sbpair.concurrency import Wait

SILENT_SECONDS = 3.0
"""An answer is missed after this time of waiting, and after this time without a line of anybody."""
AGAIN_SECONDS = 30.0
"""Between two lines about the same."""
LEAST_SECONDS = 0.5
"""A try that failed only now, or a lock met only now, is not what a command waits for."""
_POLL_SECONDS = 0.25
_LEAST_SHARE = 0.1
"""However busy the machine is, a missing answer is reported after ten times `SILENT_SECONDS`."""
_SCHEDULED = Path("/proc/self/schedstat")


@contextmanager
def telling_waits() -> Iterator[None]:
    """Log, while the block runs, what an answer is outstanding for whenever nothing was said for `SILENT_SECONDS`.

    A thread, because some commands run a loop of asyncio and some do not.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(ended,), name="sbpair-waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(ended: threading.Event) -> None:
    notices = Notices()
    while not ended.wait(_POLL_SECONDS):
        text = notices.due(waits_in(sys.modules), time.monotonic(), silent_seconds(), scheduled())
        if text:
            import logging

            logging.getLogger("sbpair").info(text)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What the main thread has had of the processors since it began, in seconds."""

    ran: float
    delayed: float
    """It was ready to run, and others ran."""


def scheduled() -> Scheduled:
    """Of the main thread, where the system tells (Linux kernel, "Scheduler Statistics"); of the whole process, without
    its delays, elsewhere."""
    try:
        ran, delayed, _ = _SCHEDULED.read_text(encoding="ascii").split()
        return Scheduled(int(ran) / 1e9, int(delayed) / 1e9)
    except (OSError, ValueError):
        return Scheduled(time.process_time(), 0.0)


class Notices:
    """Decides when a wait is worth a line, from what is seen a few times a second.

    An answer is not missed while this process could not have noticed it: it was stopped, it was computing, or it was
    ready and other programs had the processors. And where it gets a part of the processor time that it could use, a
    peer on the same machine gets as little: time passes for both in that proportion.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._scheduled = Scheduled(0.0, 0.0)
        self._ran = self._delayed = 0.0
        self._idle_seconds = 0.0
        self._first_seen: dict[tuple[str, float], float] = {}
        """Wait -> idle seconds when it was first seen."""
        self._said: dict[tuple[str, str, bool], float] = {}
        """Subject of a line -> when it was last said."""
        self._error = ""

    def due(self, waits: "list[Wait]", now: float, silent: float, had: Scheduled) -> str:
        """The line to say now, or an empty text.

        Args:
            waits: what is waited for, the longest wait first.
            now: monotonic seconds.
            silent: seconds since the last line of anybody.
            had: the processor time of this process so far.
        """
        self._pass(now, had)
        before = self._first_seen
        self._first_seen = {key: before.get(key, self._idle_seconds) for key in map(_key, waits)}
        missed = [one for one in waits if self._is_missed(one, now)]
        if silent < SILENT_SECONDS or not missed:
            return ""
        first = missed[0]
        subject = (first.tried, _kind(first.error), bool(first.sentence))
        if now - self._said.get(subject, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return ""
        text = in_words(missed, now, known=self._error)
        self._said = {key: at for key, at in self._said.items() if now - at < AGAIN_SECONDS} | {subject: now}
        self._error = first.error
        return text

    def _pass(self, now: float, had: Scheduled) -> None:
        if self._at is not None:
            ran, delayed = had.ran - self._scheduled.ran, had.delayed - self._scheduled.delayed
            # Half of it is forgotten in three seconds.
            self._ran, self._delayed = 0.95 * self._ran + ran, 0.95 * self._delayed + delayed
            idle = min(now - self._at, 2 * _POLL_SECONDS) - ran - delayed
            self._idle_seconds += max(0.0, idle) * self._share
        else:
            self._ran, self._delayed = had.ran, had.delayed
        self._at, self._scheduled = now, had

    @property
    def _share(self) -> float:
        """What the process had of the processor time that it could have used lately."""
        wanted = self._ran + self._delayed
        return max(_LEAST_SHARE, self._ran / wanted) if wanted else 1.0

    def _is_missed(self, wait: "Wait", now: float) -> bool:
        if wait.error or wait.sentence:
            return now - wait.since >= LEAST_SECONDS
        return self._idle_seconds - self._first_seen[_key(wait)] >= SILENT_SECONDS - _POLL_SECONDS


def _key(wait: "Wait") -> tuple[str, float]:
    return wait.tried, wait.since


def waits_in(modules: "Mapping[str, ModuleType]") -> "list[Wait]":
    """What is waited for. Nobody who has not imported the module waits; importing it here would cost every command its
    start, and the thread that works may be in the middle of doing so."""
    waits: Callable[[], list[Wait]] | None = getattr(modules.get("sbpair.concurrency"), "waits", None)
    return [] if waits is None else waits()


def in_words(waits: "list[Wait]", now: float, *, known: str = "") -> str:
    """One line for what is waited for, the longest wait first; an error that is `known` is not told again, whatever
    numbers and tracking ids the service has put into it this time."""
    first, seconds = waits[0], format_duration(round(now - waits[0].since))
    if sentence := first.sentence:
        return f"{sentence}."
    if not first.error:
        text = f"Waiting {seconds} for an answer: {first.tried}"
    elif _kind(first.error) == _kind(known):
        text = f"Still failing{f' to {first.tried}' if first.tried else ''} after {seconds}; trying again"
    else:
        text = f"{first.error.rstrip('. ')}; trying again after {seconds}"
    if first.until is not None and (left := round(first.until - now)) > 0:
        text += f", {first.afterwards} in {format_duration(left)} at the latest"
    others = len({one.error or one.tried for one in waits} - {first.error or first.tried})
    waiting = counted(others, "other call is", "other calls are")
    return f"{text}; {waiting} waiting." if others else f"{text}."


_VARYING = re.compile(r"\(TrackingId [^)]*\)|\d+")


def _kind(error: str) -> str:
    return _VARYING.sub("", error)
