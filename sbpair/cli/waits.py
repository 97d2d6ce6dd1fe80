"""Says what a command waits for, once it has been silent for a few seconds."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sbpair.core.durations import format_duration
from sbpair.render.console import silent_seconds

if TYPE_CHECKING:
    from types import ModuleType

    from sbpair.concurrency import Wait

SILENT_SECONDS = 3.0
AGAIN_SECONDS = 10.0
"""Between two lines of ours, if nothing else was said meanwhile."""
SAME_SECONDS = 30.0
"""Between two lines of the very same words, whatever was said meanwhile."""
LEAST_SECONDS = 0.5
"""What has been asked for only now is not what a command waits for."""
_POLL_SECONDS = 0.25


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
    ours, told, line = 0.0, "", ""
    while not ended.wait(_POLL_SECONDS):
        now, silent = time.monotonic(), silent_seconds()
        again = now - silent <= ours  # nobody else has spoken since
        if silent < (AGAIN_SECONDS if again else SILENT_SECONDS):
            continue
        waits = [one for one in waits_in(sys.modules) if now - one.since >= LEAST_SECONDS]
        if not waits:
            continue
        if (text := in_words(waits, now, known=told)) == line and now - ours < SAME_SECONDS:
            continue
        import logging

        logging.getLogger("sbpair").info(text)
        ours, told, line = time.monotonic(), waits[0].error, text


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
        text = f"No answer for {seconds}: still trying to {first.tried}"
    elif _kind(first.error) == _kind(known):
        text = f"Still failing{f' to {first.tried}' if first.tried else ''} after {seconds}; trying again"
    else:
        text = f"{first.error.rstrip('. ')}; trying again after {seconds}"
    if first.until is not None and (left := round(first.until - now)) > 0:
        text += f", {first.afterwards} in {format_duration(left)} at the latest"
    others = len({one.error or one.tried for one in waits} - {first.error or first.tried})
    return f"{text}{f', and {others} more like it' if others else ''}."


_VARYING = re.compile(r"\(TrackingId [^)]*\)|\d+")


def _kind(error: str) -> str:
    return _VARYING.sub("", error)
