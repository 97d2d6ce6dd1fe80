"""A plan for messages as a file keeps it, so that one user plans and another applies it: these messages, no others."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.serialization import Document, from_plain
from sbpair.core.transfer.report import Left
from sbpair.core.transfer.state import Key
from sbpair.core.words import counted, ranges, runs_of

FORMAT_VERSION = 1
FIRST_MESSAGES = 5
_STATE = "Nothing was changed."


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One of the messages, for those who read the file."""

    queue: str
    sequence_number: int
    message_id: str | None


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """Messages of one queue, by the runs of their sequence numbers: first and last."""

    queue: str
    numbers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class MessagePlan(Document):
    """What a command is going to do with which messages."""

    format_version: int
    command: str
    """The command line that the plan is for, without what concerns one run only."""
    hosts: tuple[str, ...]
    messages: int
    left: tuple[Left, ...]
    undo: str
    """What it takes to take it back."""
    first: tuple[PlannedMessage, ...]
    queues: tuple[PlannedQueue, ...]
    keys_sha256: str
    """Of all messages: queue, number, MessageId and time of each."""

    @classmethod
    def of(
        cls, keys: Sequence[Key], *, command: str, hosts: Sequence[str], left: Sequence[Left], undo: str
    ) -> "MessagePlan":
        """The plan for these messages."""
        numbers: dict[str, list[int]] = {}
        for queue, number, _, _ in keys:
            numbers.setdefault(queue, []).append(number)
        return cls(
            FORMAT_VERSION,
            command,
            tuple(hosts),
            len(keys),
            tuple(left),
            undo,
            tuple(PlannedMessage(*key[:3]) for key in keys[:FIRST_MESSAGES]),
            tuple(PlannedQueue(queue, tuple(map(tuple, runs_of(found)))) for queue, found in sorted(numbers.items())),
            _digest(keys),
        )

    @classmethod
    def parse(cls, name: str, plans: Sequence[object], *, command: str, hosts: Sequence[str]) -> "MessagePlan":
        """The only plan of a file called `name`, if it is one for this command line.

        Raises:
            UsageError: it is none, or for something else.
        """
        if len(plans) != 1:
            raise UsageError(f"{name} holds {counted(len(plans), 'plan')}, not one. {_STATE}")
        (data,) = plans
        if not isinstance(data, dict) or data.get("format_version") != FORMAT_VERSION or "keys_sha256" not in data:
            raise UsageError(f"{name} is not a plan for messages of this release. {_STATE}", hint=StalePlanError.hint)
        plan = from_plain(cls, data, "plan")
        if plan.command != command:
            raise UsageError(
                f"{name} is a plan for another command line. {_STATE}", hint=f"It is for: {plan.command} --plan {name}"
            )
        if plan.hosts != tuple(hosts):
            raise UsageError(f"{name} is a plan for {', '.join(plan.hosts)}, not {', '.join(hosts)}. {_STATE}")
        return plan

    def chosen(self, name: str, found: Sequence[Key]) -> tuple[Key, ...]:
        """Those of the messages that a dry run has found now which are the plan's.

        Raises:
            StalePlanError: they are not all there any more; says which.
        """
        runs = [(one.queue, run) for one in self.queues for run in one.numbers]
        wanted = {(queue, number) for queue, run in runs for number in range(run[0], run[-1] + 1)}
        keys = tuple(key for key in found if key[:2] in wanted)
        if _digest(keys) == self.keys_sha256:
            return keys
        missing: dict[str, list[int]] = {}
        for queue, number in wanted - {key[:2] for key in keys}:
            missing.setdefault(queue, []).append(number)
        gone = sum(map(len, missing.values()))
        where = "; ".join(f"{ranges(numbers)} of {queue}" for queue, numbers in sorted(missing.items()))
        changed = f"{gone:,} of {counted(self.messages, 'message')} are gone, or would be left now: {where}"
        raise StalePlanError(f"{name} is stale: {changed if gone else 'its numbers mean other messages now'}. {_STATE}")


def _digest(keys: Sequence[Key]) -> str:
    return sha256(json.dumps(sorted(keys, key=str)).encode()).hexdigest()
