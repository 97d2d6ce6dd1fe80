"""Messages out of files: where each goes, and what became of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sbpair.core.errors import ServiceError
from sbpair.core.message import Received
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, INLINED
from sbpair.core.transfer.conclusion import left_out
from sbpair.core.transfer.report import OutcomeRow
from sbpair.core.transfer.state import Forward
from sbpair.core.words import counted


@dataclass(frozen=True, slots=True)
class Restorable:
    """A message out of a file, in the form in which its application sent it."""

    received: Received
    """As the file has it; `origin` says where it lay."""
    forward: Forward
    browsed: bool = False
    """It was only browsed: it may still lie in its queue."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The messages that a restore sends, in the order in which they were put into the backlog."""

    messages: tuple[Restorable, ...]
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Chosen messages that are not sent, by reason: their destinations are not among those allowed."""

    @property
    def chosen(self) -> int:
        """Messages that the filter and the limit have left."""
        return len(self.messages) + sum(self.elsewhere.values())


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
        again = self.restored.sent_again
        return (f"{again:,} were sent again after an unclear answer, with the same MessageId.",) if again else ()

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
