"""What a syphon that runs as a service shows: samples for Prometheus, and whether it is healthy."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sbpair.core import events
from sbpair.core.durations import format_duration
from sbpair.core.metrics import of_a_service, series
from sbpair.core.serialization import iso_time, spoken_clock
from sbpair.core.transfer.report import Tally, numbers
from sbpair.core.words import counted, listed
from sbpair.render.formats import exposition
from sbpair.render.result import Metric

# Events of the runtime as one line each for a person; None for those not worth a line.


def describe(event: events.Event) -> str | None:
    """What happened, in words. Single diverted and forwarded batches are left to the progress display."""
    match event:
        case events.FailedOver(entity=entity, cause=cause, forced=forced):
            return f"FAILED OVER {entity}: {'on request' if forced else cause}. Sends go to the backlog."
        case events.FailedBack(entity=entity, seconds_away=seconds, diverted_messages=count):
            diverted = counted(count, "message")
            return f"FAILED BACK {entity} after {format_duration(seconds)}: {diverted} went to the backlog."
        case events.EntityInvalid(entity=entity, error_code=code):
            return f"{entity} cannot be used ({code}): sends raise an error until a ping succeeds."
        case events.BacklogQueueLeft(queue=queue, error_code=code, retry_after_seconds=seconds):
            return f"Backlog queue {queue} is unreachable ({code}); retrying in {format_duration(seconds)}."
        case events.BacklogQueueReturned(queue=queue):
            return f"Backlog queue {queue} is in use again."
        case events.SideFaulted(side=side, message=message):
            return f"The {side} namespace refuses: {message} It is probed until it accepts messages again."
        case events.SideRestored(side=side):
            return f"The {side} namespace accepts messages again."
        case events.NotReady(problems=problems):
            return f"An outage of the primary would not find all it needs: {' '.join(problems)}"
        case events.Ready():
            return "An outage of the primary would find all it needs again."
        case events.PairingNoticed(message=message):
            return f"Note: {message}"
        case events.DeadLettered(queue=queue, sequence_number=number, reason=reason, description=description):
            return f"Dead-lettered message {number} of {queue}: {reason}. {description}".rstrip()
        case events.ReceiveFailed():
            return describe_together([event])
        case events.QueueAppeared(queue=queue):
            return f"{queue} exists now: it is drained, too."
        case events.ProcessLost(queues=queues, how=how):
            return f"{how} Not emptied by this run: {listed(queues)}."
        case events.Doubtful():
            return _doubtful(event)
        case events.Restarting(error_code=code, message=message, seconds=seconds):
            return f"Failed ({code}: {message}); restarting in {format_duration(seconds)}."
        case events.Paused(entity=entity, error_code=code, seconds=seconds, abandoned_in_seconds=left):
            end = "" if left is None else f"; its messages stay there after {format_duration(round(left))} of failures"
            return f"{entity or 'The namespace'}: {code}, retry in {format_duration(seconds)}{end}."
        case events.LockedElsewhere():
            return describe_locked([event])
        case events.LedElsewhere(queues=queues, messages_per_second=pace):
            return _led_elsewhere(queues, pace)
        case events.Resumed(entity=entity):
            return f"Resuming {entity or 'everything'}."
        case events.MessageHandled(side=side, session_id=session, message_id=message, result=result, detail=detail):
            quiet = result in ("completed", "duplicate")
            return None if quiet else f"Message {message} of session {session} ({side}): {result}. {detail}".rstrip()
        case events.NotIdleYet(source=source, messages=messages, next_at=next_at):
            return _not_idle_yet(source, messages, next_at)
        case events.EntityCreated(entity=entity, kind=kind, namespace=namespace):
            return f"Created {kind} {entity} on {namespace}."
        case events.StepDone(item=item, result=result, detail=detail):
            return f"{item}: {result}{f' ({detail})' if detail else ''}"
        case _:
            return None


def _doubtful(event: events.Doubtful) -> str:
    said = []
    if event.found:
        found = f"{counted(event.found, 'message')} of an earlier run"
        said.append(f"Already at the destination, so not sent again: {found}.")
    if event.messages:
        said.append(
            f"Up to {counted(event.messages, 'message')} may arrive twice: an earlier run ended while they were on "
            f"their way. Their MessageIds are in {event.file}."
        )
    return " ".join(said)


def _not_idle_yet(source: str, messages: int, next_at: float | None) -> str:
    if next_at is None:
        return f"Not idle yet: the second copies of {counted(messages, 'message')} of {source} were not met."
    due = f"Not idle yet: {counted(messages, 'scheduled message')} of {source} will come"
    return f"{due}, the first at {iso_time(next_at)}."


def _led_elsewhere(queues: Sequence[str], messages_per_second: float) -> str:
    more = f" and {counted(len(queues) - 1, 'other queue')}" if len(queues) > 1 else ""
    return (
        f"Another drain or syphon empties {queues[0]}{more}, about {messages_per_second:,.1f} messages a second; this "
        "one stands by to keep the order of sessions. From one with --rate it takes over at that one's next pause; to "
        "go on at once, stop the other one."
    )


def describe_together(failures: Sequence[events.ReceiveFailed], *, again: bool = False) -> str:
    """Failed receives of the same cause as one line; the first one's words stand for all. `again`: they were told."""
    first = failures[0]
    others = len({failure.queue for failure in failures}) - 1
    what = first.queue + (f" and {others} more" if others else "")
    why = f"{first.error_code}: {first.message}" if first.message else first.error_code
    waits = [one.retry_after_seconds for one in failures if one.retry_after_seconds is not None]
    after = f"next try in {format_duration(max(waits))}." if waits else "no further try."
    if again:
        return f"Still cannot read {what} ({first.error_code}); {after}"
    return f"Cannot read {what} ({why}); {after}"


def describe_locked(locked: Sequence[events.LockedElsewhere]) -> str:
    """Queues whose next message is locked by others as one line."""
    first, others = locked[0], len({one.queue for one in locked}) - 1
    where = first.queue + (f" and {others} more" if others else "")
    what = "the next message of each" if others else f"message {first.sequence_number}"
    until = spoken_clock(max(one.until for one in locked))
    return (
        f"Waiting in {where}: {what} is locked by another receiver (a killed run keeps its locks) until {until} at the "
        "latest, unless it renews them; sessions are not overtaken."
    )


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


_COUNTERS = {
    "forwarded": "sbpair_syphon_forwarded_messages_total",
    "forwarded_bytes": "sbpair_syphon_forwarded_bytes_total",
    "dead_lettered": "sbpair_syphon_dead_lettered_messages_total",
    "receive_failures": "sbpair_syphon_receive_failures_total",
    "pauses": "sbpair_syphon_pauses_total",
    "restarts": "sbpair_syphon_restarts_total",
}
"""What is counted: its metric, which has the labels by which it is counted."""


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
        self._counts = {name: Counter[tuple[str, ...]]() for name in _COUNTERS}
        self.totals = Tally()
        """What a syphon counts over all its runs."""

    def notify(self, event: events.Event) -> None:
        counts = self._counts
        match event:
            case events.Polled(at=at, queue=queue):
                polled = self._queue(queue)
                polled.polled_at, polled.failures = at, 0
                self._alive_at(at)
            case events.ReceiveFailed(queue=queue, error_code=code):
                counts["receive_failures"][queue, code] += 1
                self._queue(queue).failures += 1
                self._queue(queue).error_code = code
            case events.BacklogCounted(queue=queue, messages=messages):
                self._queue(queue).waiting = messages
            case events.Forwarded(at=at, queue=queue, entity=entity, messages=messages, size_bytes=size_bytes):
                counts["forwarded"][queue, entity] += messages
                counts["forwarded_bytes"][queue, entity] += size_bytes
                self._alive_at(at)
            case events.DeadLettered(queue=queue, reason=reason):
                counts["dead_lettered"][queue, reason] += 1
            case events.Paused(at=at, entity=entity, error_code=code, seconds=seconds):
                counts["pauses"][entity, code] += 1
                self._paused[entity] = at + seconds
                self._alive_at(at + seconds)
            case events.Resumed(entity=entity):
                self._paused.pop(entity, None)
            case events.Restarting(error_code=code):
                counts["restarts"][(code,)] += 1

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
        return exposition(self.samples())

    def samples(self) -> Iterator[Metric]:
        """What is known now, each by its labels."""
        for kind, name in _COUNTERS.items():
            for key, value in sorted(self._counts[kind].items()):
                yield Metric(name, value, tuple(zip(series()[name].labels, (self._pair, *key), strict=True)))
        yield from self._of_totals()
        yield from self._gauges()

    def _of_totals(self) -> Iterator[Metric]:
        """The counters of a drain, but for those that are told by queue and destination already."""
        for number in numbers():
            if number.name in self.totals.numbers and number.name not in SHOWN_IN_PARTS:
                value = self.totals.numbers[number.name]
                yield Metric(of_a_service(number.metadata["metric"]), value, (("pair", self._pair),))

    def _gauges(self) -> Iterator[Metric]:
        yield self._gauge("start_timestamp_seconds", round(self._began, 3))
        yield self._gauge("healthy_ratio", 0 if self.troubles() else 1)
        now = self._now()
        for entity, until in sorted(self._paused.items()):
            yield self._gauge("pause_left_seconds", round(max(0.0, until - now), 3), entity=entity)
        for path, queue in sorted(self._queues.items()):
            if queue.polled_at is not None:
                yield self._gauge("last_poll_timestamp_seconds", round(queue.polled_at, 3), queue=path)
            if queue.waiting is not None:
                yield self._gauge("waiting_messages", queue.waiting, queue=path)

    def _gauge(self, name: str, value: float, **labels: str) -> Metric:
        return Metric(f"sbpair_syphon_{name}", value, (("pair", self._pair), *labels.items()))


SHOWN_IN_PARTS = ("forwarded", "forwarded_bytes", "dead_lettered")
"""Counters of a drain that are told by queue and destination or reason."""
