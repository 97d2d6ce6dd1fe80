"""Dead letters sent again in growing steps, each watched before the next one: what a step has shown, and when to stop.

A step is over once none of its messages lies in the queue and none has come back to its dead letters. A message that
came back ends the run, and so does a queue whose consumers take nothing for the time of the watch. So no more messages
than those of one step can fail before the run stops, and it goes on as long as consumers work.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.words import counted

DEFAULT_WATCH_SECONDS = 30.0
ALL = "all"


@dataclass(frozen=True, slots=True)
class Steps:
    """How many messages each step sends; the last number goes on. None: all that remain."""

    sizes: tuple[int | None, ...]

    @classmethod
    def parse(cls, text: str) -> "Steps":
        """Read `1,2,5,20`, where the last one may be `all`.

        Raises:
            UsageError: it is no list of numbers above 0.
        """
        parts = [part.strip() for part in text.split(",")]
        *before, last = parts
        if not all(part.isdecimal() and int(part) for part in (*before, *([] if last == ALL else [last]))):
            raise UsageError(f"--grow {text!r} is no list of numbers such as 1,2,5,20,100; the last one may be {ALL}.")
        return cls(tuple(None if part == ALL else int(part) for part in parts))

    def of(self, messages: int) -> Iterator[int]:
        """The steps for that many messages."""
        number = 0
        while messages > 0:
            size = self.sizes[min(number, len(self.sizes) - 1)]
            step = messages if size is None else min(size, messages)
            yield step
            messages -= step
            number += 1


@dataclass(frozen=True, slots=True)
class Looked:
    """What the queue shows of a step. Dead letters are looked at after the queue: a message that is in neither was
    completed, or expired.

    Args:
        waiting: messages of the step that lie in the queue.
        returned: those that came back to its dead letters, by reason.
        deliveries: delivery counts of the queue's first messages and of the step's, by sequence number.
    """

    waiting: int
    returned: Mapping[str, int]
    deliveries: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of the messages of one step. `waiting`: still in the queue when it was looked at last."""

    sent: int
    taken: int
    returned: int
    waiting: int
    seconds: float
    """How long it was watched."""


class Watch:
    """Watches one step.

    Args:
        sent: messages of the step.
        seconds: for so long consumers may do nothing.
        now: monotonic seconds.
    """

    def __init__(self, sent: int, seconds: float, now: float) -> None:
        self._sent = sent
        self._seconds = seconds
        self._began = self._active_at = now
        self._deliveries: Mapping[int, int] = {}
        self.why: str | None = None
        """Why the run stops; None: it goes on."""
        self.result = StepResult(sent, 0, 0, sent, 0.0)
        """As far as is known."""

    def observe(self, looked: Looked, now: float) -> bool:
        """Take in what was seen; whether the watch has ended."""
        before, self._deliveries = self._deliveries, looked.deliveries
        if any(looked.deliveries.get(number, count + 1) > count for number, count in before.items()):
            self._active_at = now  # taken, or tried once more
        returned = sum(looked.returned.values())
        if returned:
            named = ", ".join(f"{reason} {number:,}" for reason, number in Counter(looked.returned).most_common(3))
            self.why = f"{returned:,} of {counted(self._sent, 'message')} came back to the dead letters ({named})"
        elif looked.waiting and now - self._active_at >= self._seconds:
            self.why = (
                f"nothing was taken from the queue for {format_duration(self._seconds)}, and {looked.waiting:,} of "
                f"{counted(self._sent, 'message')} {'waits' if looked.waiting == 1 else 'wait'} there"
            )
        taken = max(0, self._sent - returned - looked.waiting)
        self.result = StepResult(self._sent, taken, returned, looked.waiting, round(now - self._began, 1))
        return self.why is not None or not looked.waiting


@dataclass(frozen=True, slots=True)
class Grown:
    """The steps of one run, and why it ended before the last dead letter; None: it did not."""

    steps: tuple[StepResult, ...] = ()
    stopped_because: str | None = None

    @property
    def sentence(self) -> str:
        """What the steps have shown."""
        sizes = ", ".join(f"{step.sent:,}" for step in self.steps) or "none"
        after = f"Stopped: {self.stopped_because}." if self.stopped_because else "All of them were taken."
        return f"{'Step' if len(self.steps) == 1 else 'Steps'} of {sizes}. {after}"


@dataclass(slots=True)
class Follow:
    """The messages of a step where they lie: by MessageId, which they keep.

    Args:
        ids: how often each was sent.
        known: sequence numbers that were there before, where numbers do not tell what is new.
    """

    ids: Mapping[str, int]
    known: frozenset[int] = field(default_factory=frozenset)

    def those_of(self, found: Sequence[tuple[int, str | None]]) -> list[int]:
        """Places in a browse of those that are of the step: (sequence number, MessageId) of each message."""
        left = Counter(self.ids)
        places = []
        for place, (number, message_id) in enumerate(found):
            if number not in self.known and message_id is not None and left[message_id] > 0:
                left[message_id] -= 1
                places.append(place)
        return places
