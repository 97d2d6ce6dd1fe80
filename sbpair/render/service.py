"""What a syphon that runs as a service shows of itself: counters for Prometheus, and whether it is healthy."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sbpair.core import events
from sbpair.core.durations import format_duration
from sbpair.render.monitoring import exposition
from sbpair.render.result import Metric

FAILURES_IN_A_ROW = 3
"""So often a queue may fail in a row before the service counts as unhealthy; a single dropped connection is none."""
POLLS_MISSED = 2
GRACE_SECONDS = 30.0
"""How much later than it is due an answer may come."""


@dataclass(slots=True)
class _Queue:
    polled_at: float | None = None
    failures: int = 0
    error_code: str = ""
    waiting: int | None = None


@dataclass(slots=True)
class _Counts:
    """Counters by their labels' values."""

    forwarded: Counter[tuple[str, ...]] = field(default_factory=Counter)
    forwarded_bytes: Counter[tuple[str, ...]] = field(default_factory=Counter)
    dead_lettered: Counter[tuple[str, ...]] = field(default_factory=Counter)
    receive_failures: Counter[tuple[str, ...]] = field(default_factory=Counter)
    pauses: Counter[tuple[str, ...]] = field(default_factory=Counter)
    restarts: Counter[tuple[str, ...]] = field(default_factory=Counter)


class ServiceMetrics:
    """An observer that remembers what a scraper or a health probe asks for.

    Args:
        pair: name of the pair, a label of every sample.
        poll_seconds: how long a poll of an empty queue takes.
    """

    def __init__(self, pair: str, *, poll_seconds: float, now: Callable[[], float] = time.time) -> None:
        self._pair = pair
        self._poll_seconds = poll_seconds
        self._now = now
        self._began = self._lively_until = now()
        self._queues: dict[str, _Queue] = {}
        self._paused: dict[str, float] = {}
        self._counts = _Counts()

    def notify(self, event: events.Event) -> None:
        counts = self._counts
        match event:
            case events.Polled(at=at, queue=queue):
                polled = self._queue(queue)
                polled.polled_at, polled.failures = at, 0
                self._alive_at(at)
            case events.ReceiveFailed(queue=queue, error_code=code):
                counts.receive_failures[queue, code] += 1
                self._queue(queue).failures += 1
                self._queue(queue).error_code = code
            case events.BacklogCounted(queue=queue, messages=messages):
                self._queue(queue).waiting = messages
            case events.Forwarded(at=at, queue=queue, entity=entity, messages=messages, size_bytes=size_bytes):
                counts.forwarded[queue, entity] += messages
                counts.forwarded_bytes[queue, entity] += size_bytes
                self._alive_at(at)
            case events.DeadLettered(queue=queue, reason=reason):
                counts.dead_lettered[queue, reason] += 1
            case events.Paused(at=at, entity=entity, error_code=code, seconds=seconds):
                counts.pauses[entity, code] += 1
                self._paused[entity] = at + seconds
                self._alive_at(at + seconds)
            case events.Resumed(entity=entity):
                self._paused.pop(entity, None)
            case events.Restarting(error_code=code):
                counts.restarts[(code,)] += 1

    def _queue(self, path: str) -> _Queue:
        return self._queues.setdefault(path, _Queue())

    def _alive_at(self, at: float) -> None:
        self._lively_until = max(self._lively_until, at)

    def troubles(self) -> list[str]:
        """Why it is not healthy; empty if it is.

        A destination that is down is no trouble of the service: it holds still on purpose and restarting it would help
        nobody.
        """
        found = [
            f"{path} failed {queue.failures} times in a row ({queue.error_code})"
            for path, queue in sorted(self._queues.items())
            if queue.failures >= FAILURES_IN_A_ROW
        ]
        silent = self._now() - self._lively_until
        if silent > POLLS_MISSED * self._poll_seconds + GRACE_SECONDS:
            found.append(f"no poll was answered for {format_duration(silent)}")
        return found

    def text(self) -> str:
        """All samples in the Prometheus text format."""
        return exposition(self._samples())

    def _samples(self) -> Iterator[Metric]:
        counts = self._counts
        yield from self._counter("forwarded_messages_total", "Messages that went home.", counts.forwarded, _FROM_TO)
        yield from self._counter("forwarded_bytes_total", "Bytes that went home.", counts.forwarded_bytes, _FROM_TO)
        yield from self._counter(
            "dead_lettered_messages_total", "Messages put into dead-letter queues.", counts.dead_lettered, _WHY
        )
        yield from self._counter(
            "receive_failures_total", "Receives that failed.", counts.receive_failures, ("queue", "code")
        )
        yield from self._counter(
            "pauses_total", "Times a destination was held back; an empty entity is the whole namespace.",
            counts.pauses, ("entity", "code"),
        )  # fmt: skip
        yield from self._counter(
            "restarts_total", "Times the service started again after an error.", counts.restarts, ("code",)
        )
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        yield self._gauge("start_timestamp_seconds", "When the service started.", round(self._began, 3))
        yield self._gauge("healthy_ratio", "1 while /healthz says so, else 0.", 0 if self.troubles() else 1)
        now = self._now()
        for entity, until in sorted(self._paused.items()):
            seconds = round(max(0.0, until - now), 3)
            yield self._gauge("pause_left_seconds", "Until a held back destination is tried.", seconds, entity=entity)
        for path, queue in sorted(self._queues.items()):
            if queue.polled_at is not None:
                at = round(queue.polled_at, 3)
                yield self._gauge("last_poll_timestamp_seconds", "When a poll was last answered.", at, queue=path)
            if queue.waiting is not None:
                yield self._gauge("waiting_messages", "Messages in it, as last counted.", queue.waiting, queue=path)

    def _counter(
        self, name: str, text: str, values: Counter[tuple[str, ...]], labels: tuple[str, ...]
    ) -> Iterator[Metric]:
        for key, value in sorted(values.items()):
            yield Metric(
                f"sbpair_syphon_{name}",
                text,
                value,
                (("pair", self._pair), *zip(labels, key, strict=True)),
                counter=True,
            )

    def _gauge(self, name: str, text: str, value: float, **labels: str) -> Metric:
        return Metric(f"sbpair_syphon_{name}", text, value, (("pair", self._pair), *labels.items()))


_FROM_TO = ("queue", "entity")
_WHY = ("queue", "reason")
