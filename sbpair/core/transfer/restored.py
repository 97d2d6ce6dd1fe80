"""Messages out of files: where each goes, and what became of them."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sbpair.core.errors import ServiceError
from sbpair.core.message import Received
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, INLINED
from sbpair.core.transfer.conclusion import left_out
from sbpair.core.transfer.report import OutcomeRow
from sbpair.core.transfer.state import Forward
from sbpair.core.words import counted, were

UNSENDABLE = "cannot be sent to its destination: "
"""Before the reason of a line whose message stays in files."""
_NAMED_LINES = 3


@dataclass(frozen=True, slots=True)
class Restorable:
    """A message out of a file, in the form in which its application sent it."""

    received: Received
    """As the file has it; `origin` says where it lay."""
    forward: Forward
    browsed: bool = False
    """It was only browsed: it may still lie in its queue."""


@dataclass(frozen=True, slots=True)
class Unsendable:
    """A line whose message cannot be sent to where it was to go. It holds up no other line."""

    file: Path
    line: int
    """Of the file, from 1."""
    offset_bytes: int
    size_bytes: int
    reason: str
    """As a dead letter has it: `InvalidDestination`."""
    description: str


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The messages that a restore sends, in the order in which they were put into the backlog."""

    messages: tuple[Restorable, ...]
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Chosen messages that are not sent, by reason: their destinations are not among those allowed."""
    unsendable: tuple[Unsendable, ...] = ()

    @property
    def chosen(self) -> int:
        """Messages that the filter and the limit have left."""
        return len(self.messages) + sum(self.elsewhere.values()) + len(self.unsendable)

    @property
    def left(self) -> dict[str, int]:
        """Chosen messages that are not sent, by reason."""
        return self.elsewhere | Counter(f"{UNSENDABLE}{line.reason}" for line in self.unsendable)


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of the messages."""

    sent: dict[str, int] = field(default_factory=dict)
    """By destination; in a dry run: what would be sent."""
    left: dict[str, int] = field(default_factory=dict)
    """Not sent, by reason."""
    already_sent: int = 0
    """The ledger has them from earlier runs."""
    sent_again: int = 0
    """Sent once more after an unclear answer, with the same MessageId."""
    first_error: ServiceError | None = field(default=None, metadata=HIDDEN)
    """Why messages were left, if a namespace refused or did not answer."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A restore, or its dry run, as `restore -o json` prints it. `sent` and `left`: messages by destination and by
    reason."""

    pair: str | None
    """None where only a namespace was named."""
    namespace: str
    dry_run: bool
    messages: int
    restored: Restored = field(metadata=INLINED)
    plan: RestorePlan = field(metadata=HIDDEN)
    kept_in: tuple[Path, ...] = ()
    """Files that hold the lines whose messages cannot be sent to their destinations."""

    @property
    def rows(self) -> Iterator[OutcomeRow]:
        """What became of how many messages, for a table."""
        done = self.restored
        for place, number in sorted(done.sent.items()):
            yield OutcomeRow("sent", place, number)
        if done.already_sent:
            yield OutcomeRow("sent before", "", done.already_sent)
        for why, number in sorted(done.left.items()):
            yield OutcomeRow("left", why, number)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences before the closing one."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if again := self.restored.sent_again:
            yield f"{again:,} {were(again)} sent again after an unclear answer, with the same MessageId."
        lines = self.plan.unsendable
        for line in lines[:_NAMED_LINES]:
            yield f"Line {line.line} of {line.file}: {line.description}"
        if len(lines) > _NAMED_LINES:
            yield f"{counted(len(lines) - _NAMED_LINES, 'more line')} cannot be sent to their destinations either."
        if self.kept_in:
            files = " ".join(shlex.quote(str(path)) for path in self.kept_in)
            command = f"sbpair restore {files} --to QUEUE"
            yield f"These lines are kept unchanged. Send their messages to a queue of your choice: {command}"

    @property
    def closing(self) -> str:
        """The last sentence: how many of the messages were sent where."""
        sent, would = sum(self.restored.sent.values()), "would be " if self.dry_run else ""
        where = self.namespace if self.pair is None else "the primary"
        before = left_out(self.restored.already_sent)
        return f"{sent:,} of {counted(self.messages, 'message')} {would}sent to {where}{before}."

    @property
    def exit(self) -> Exit:
        """Findings of a dry run that would send; denied or unreachable if that is why all are left; else partial if any
        are."""
        done = self.restored
        if self.dry_run:
            return Exit.FINDINGS if done.sent else Exit.OK
        if not done.left:
            return Exit.OK
        error = done.first_error
        if error is not None and not done.sent and error.exit_name in ("denied", "unreachable"):
            return Exit.from_label(error.exit_name)
        return Exit.PARTIAL
