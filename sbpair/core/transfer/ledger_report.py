"""What ledgers tell of an incident over all of their runs, and whether their lines stand as they were written."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from sbpair.core.durations import epoch_seconds, format_duration
from sbpair.core.outcome import Exit
from sbpair.core.serialization import AS_OBJECT, AS_TIME, HIDDEN, Time, column, rounded, spoken_time
from sbpair.core.transfer.custody import DEAD_LETTERED, REFUSED_OUTCOME
from sbpair.core.transfer.ledger import (
    BATCH_OUTCOMES,
    EMPTY_MARK,
    LINES_OF_A_MARK,
    RUN_BEGAN,
    RUN_ENDED,
    STATE_MOVED,
    InDoubt,
    LedgerLine,
    chain_of,
    mark_of,
)
from sbpair.core.transfer.report import Named, in_order
from sbpair.core.transfer.state import Key
from sbpair.core.words import counted, listed, ranges, were

NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class LedgerSeen:
    """A file of a ledger, and what its chain says of it."""

    path: str = field(metadata=column("Ledger"))
    lines: int = field(metadata=column("Lines", counts=True))
    sha256: str = field(metadata=column("SHA-256"))
    """Of the file, in hexadecimal."""
    not_chained: int = field(metadata=column("Not chained", counts=True))
    """Lines that no mark covers: all, of a release before the chain; of a write that was cut off, the last ones."""
    parts: int
    """Ledgers that were put together in it, where it is that of a stream. Whether one of them lacks its end, or stands
    there twice, cannot be seen."""
    cut_off: bool
    """The last line is not whole: its process was killed, or the disk was full. It is left out."""
    ended: bool
    """The last run wrote that it had ended; otherwise it was killed, or lines were removed at the end."""
    faults: tuple[str, ...]
    """What is not proven to stand as it was written."""
    signature: str | None = None
    """What stands in the file's `.sig`, as `ssh-keygen -Y sign` writes it."""


class LedgerChain:
    """Follows the lines of one ledger. A user who can write the file can also chain it again: a digest or a
    signature that is kept elsewhere shows that.

    Args:
        put_together: the file was made of several ledgers, as that of a stream is.
    """

    def __init__(self, *, put_together: bool = False) -> None:
        self._put_together = put_together
        self.lines = self.not_chained = 0
        self.parts = 1
        self.cut_off = False
        self._all = sha256()
        self._since_mark = sha256(EMPTY_MARK)
        self._uncovered: deque[bytes] = deque(maxlen=LINES_OF_A_MARK - 1)
        """The last lines behind the last mark."""
        self._broken: list[int] = []
        self._unchained: list[int] = []
        self._unreadable: list[int] = []

    def add(self, text: bytes) -> LedgerLine | None:
        """The next line, with its end, and what it says; None: nothing that counts."""
        line, before = LedgerLine.parse(text), self._all.copy()
        self._all.update(text)
        # A crash leaves the beginning of a line; a whole one with another byte in place of its end was changed.
        if not text.endswith(b"\n") and not self.cut_off and LedgerLine.parse(text.rstrip(b"\0")[:-1]) is None:
            self.cut_off = True
            return None
        self.lines += 1
        if line is None or self.cut_off or not text.endswith(b"\n"):
            self._unreadable.append(self.lines)
        if (found := chain_of(text)) is None:
            self._since_mark.update(text)
            self._uncovered.append(text)
            self.not_chained += 1
            return line
        body, mark = found
        self._since_mark.update(body)
        as_by_1_0_0 = sha256(mark_of(before) + body)
        if mark not in (mark_of(self._since_mark), mark_of(as_by_1_0_0)) and not self._begins_part(body, mark):
            self._broken += range(self.lines - self.not_chained, self.lines + 1)
        self._since_mark, self.not_chained = sha256(mark), 0
        self._uncovered.clear()
        return line

    def _begins_part(self, body: bytes, mark: bytes) -> bool:
        """Whether this mark is the first one of another ledger. The one before may end in lines without a mark."""
        if not self._put_together:
            return False
        behind = list(self._uncovered)
        for begin in range(len(behind) + 1):
            if mark_of(sha256(b"".join((EMPTY_MARK, *behind[begin:], body)))) == mark:
                self.parts += 1
                part = self.lines - len(behind) + begin
                self._unchained += range(self.lines - self.not_chained, part)
                return True
        return False

    def seen(self, path: str, *, ended: bool, signature: str | None) -> LedgerSeen:
        """The whole file."""
        unchained = [*self._unchained, *range(self.lines - self.not_chained + 1, self.lines + 1)]
        not_chained = "not chained: their write was cut off, they were added, or they are from before the chain"
        faults = (
            (self._broken, "not as written, or lines were dropped, moved or added there"),
            (unchained, not_chained),
            (self._unreadable, "no line of a ledger"),
        )
        said = tuple(f"{path}: {_lines(numbers)} {fault}" for numbers, fault in faults if numbers)
        digest, left_out = self._all.hexdigest(), self.cut_off
        return LedgerSeen(path, self.lines, digest, len(unchained), self.parts, left_out, ended, said, signature)


def _lines(numbers: list[int]) -> str:
    return f"line {numbers[0]} is" if len(numbers) == 1 else f"lines {ranges(numbers)} are"


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run of a command, as its ledger has it. Of a ledger's lines before the first run that is recorded nobody
    knows who wrote them."""

    began: Time | None = field(metadata=column("Began"))
    ended: Time | None = field(default=None, metadata=column("Ended"))
    """None: it was killed, or goes on."""
    who: str = field(default=NOT_RECORDED, metadata=column("Who"))
    command: str = field(default=NOT_RECORDED, metadata=column("Command"))
    credentials: str = field(default=NOT_RECORDED, metadata=column("Credentials"))
    """On the namespace that messages were taken from, and on the one they went to."""
    between: str = field(default="", metadata=column("Between"))
    version: str = ""
    reason: str = field(default="", metadata=column("Reason"))
    sent: int = field(default=0, metadata=column("Sent", counts=True))
    dead_lettered: int = field(default=0, metadata=column("Dead-lettered", counts=True))
    ended_by: str | None = None


@dataclass(frozen=True, slots=True)
class PossibleDouble:
    """A message that may be at its destination more than once, always with the same MessageId."""

    message_id: str | None = field(metadata=column("MessageId"))
    destination: str = field(metadata=column("Destination"))
    queue: str = field(metadata=column("From"))
    sequence_number: int = field(metadata=column("Number"))
    why: str = field(metadata=column("Why"))


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """An incident over all runs of its ledgers. Messages are told apart by queue, number, MessageId and time."""

    ledgers: tuple[LedgerSeen, ...]
    runs: tuple[RunSeen, ...]
    messages: int
    """Different messages that were dealt with."""
    sent: int
    """Messages that their destinations accepted; `forwarded_lines` of them with those that were sent more than once."""
    first_enqueued_at: float | None = field(metadata=AS_TIME)
    """When the first message was put into the queue that it was taken from: of a backlog, the first one diverted."""
    last_enqueued_at: float | None = field(metadata=AS_TIME)
    first_sent_at: Time | None
    last_sent_at: Time | None
    longest_wait_seconds: float | None = field(metadata=rounded(3))
    """From there until a message was sent."""
    outcomes: Named = field(metadata=AS_OBJECT)
    """Lines by outcome."""
    destinations: Named = field(metadata=AS_OBJECT)
    """Messages sent, by destination."""
    dead_letter_reasons: Named = field(metadata=AS_OBJECT)
    possible_doubles: tuple[PossibleDouble, ...]
    left: Named | None = field(metadata=HIDDEN)
    """What the last run left, by reason. None: no run has said."""
    waiting: Mapping[str, int | None] | None
    """What the backlog held after the last run, by kind. None: no run has counted it."""
    verified: bool = field(default=False, metadata=HIDDEN)

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for ledger in self.ledgers for fault in ledger.faults)

    @property
    def exit(self) -> Exit:
        """Findings where the ledgers are to be verified, and are not as they were written."""
        return Exit.FINDINGS if self.verified and self.faults else Exit.OK

    @property
    def closing(self) -> str:
        """The last sentence."""
        runs = counted(len(self.runs), "run")
        if self.verified and self.faults:
            return f"The ledgers are not proven to be as they were written: {counted(len(self.faults), 'fault')}."
        dead = sum(number for _, number in self.dead_letter_reasons)
        said = f"{counted(self.messages, 'message')} in {runs}: {self.sent:,} sent, {dead:,} dead-lettered"
        if self.possible_doubles:
            said += f", {len(self.possible_doubles):,} possibly twice at the destination"
        return f"{said}.{self._proven()}"

    def _proven(self) -> str:
        if not self.verified:
            return ""
        lines = sum(ledger.lines for ledger in self.ledgers)
        return f" No line of {lines:,} was changed, dropped, moved or added."

    def notes(self) -> Iterator[str]:
        """What was left, and what the numbers cannot tell."""
        yield from (f"{fault}." for fault in self.faults)
        for ledger in self.ledgers:
            if ledger.parts > 1:
                yield f"{ledger.path}: put together of {ledger.parts:,} ledgers."
            if ledger.cut_off:
                yield f"{ledger.path}: the last line was cut off by a crash or a full disk, and is left out."
            if ledger.lines > ledger.not_chained and not ledger.ended:
                yield f"{ledger.path}: the last run has no end: it goes on, was killed, or its last lines were removed."
        for reason, number in self.left or ():
            yield f"{number:,} {were(number)} left: {reason}."

    def figures(self) -> Iterator[tuple[str, str]]:
        """What a reader asks first, with the answer."""
        if self.first_enqueued_at is not None and self.last_enqueued_at is not None:
            yield "First message waited since", spoken_time(self.first_enqueued_at)
            yield "Last message waited since", spoken_time(self.last_enqueued_at)
        if self.first_sent_at is not None and self.last_sent_at is not None:
            for what, at in (("First sent", self.first_sent_at), ("Last sent", self.last_sent_at)):
                yield what, at if (seconds := _moment(at)) is None else spoken_time(seconds)
        if self.longest_wait_seconds is not None:
            yield "Longest wait", format_duration(round(self.longest_wait_seconds))
        if self.waiting is not None:
            kinds = [
                f"{'an unknown number of' if number is None else f'{number:,}'} {kind.replace('_', '-')}"
                for kind, number in self.waiting.items()
                if number != 0
            ]
            yield "Left in the backlog", listed(kinds, most=len(kinds)) or "nothing"


class IncidentCounter:
    """Adds up the lines of ledgers, one ledger after the other."""

    def __init__(self) -> None:
        self._runs: list[RunSeen] = []
        self._messages: set[tuple[str, Key]] = set()
        self._sent: Counter[tuple[str, Key]] = Counter()
        self._lines: set[tuple[tuple[str, Key], str, str]] = set()
        """What a line says that stands in two files of a folder: a stream's is folded into another one."""
        self._outcomes: Counter[str] = Counter()
        self._destinations: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._doubles: dict[tuple[str, Key], PossibleDouble] = {}
        self._waits: list[float] = []
        self._enqueued: list[float] = []
        self._times: list[str] = []
        self._last: Mapping[str, Any] = {}
        self._doubt = InDoubt()
        self._run: RunSeen | None = None
        self._of_run: Counter[str] = Counter()

    def add(self, line: LedgerLine) -> None:
        """The next line of the ledger."""
        said = line.fields
        if line.outcome in BATCH_OUTCOMES:
            self._doubt.note(line)
        elif line.outcome == RUN_BEGAN:
            self._close()
            names = ("who", "command", "credentials", "version", "reason")
            named: dict[str, Any] = {name: str(said[name]) for name in names if name in said}
            self._run = RunSeen(str(said.get("time")), between=_between(line.way), **named)
        elif line.outcome == RUN_ENDED:
            self._last = said
            run = self._run or RunSeen(None, between=_between(line.way))
            self._run = replace(run, ended=str(said.get("time")), ended_by=str(said.get("ended_by")))
            self._close()
        elif line.outcome != STATE_MOVED:
            self._message(line)

    def over(self) -> bool:
        """The ledger has no more lines. Whether its last run, if it is known, wrote that it had ended."""
        between = NOT_RECORDED if self._run is None else self._run.between
        why = "an answer was lost, and no later line mentions the message"
        for key, destination in self._doubt.destinations().items():
            self._may_be_double((between, key), destination, why)
        ended = self._run is None or self._run.who == NOT_RECORDED
        self._close()
        self._doubt = InDoubt()
        return ended

    def _close(self) -> None:
        if self._run is not None:
            sent, dead_lettered = (sum(self._of_run[name] for name in names) for names in (_SENT, _UNDELIVERED))
            self._runs.append(replace(self._run, sent=sent, dead_lettered=dead_lettered))
        self._run, self._of_run = None, Counter()

    def _message(self, line: LedgerLine) -> None:
        key, outcome, said = line.key, line.outcome, line.fields
        time, destination = str(said.get("time")), str(said.get("destination") or "")
        between = _between(line.way)
        message, enqueued = (between, key), key[3] / 1000
        if (message, outcome, time) in self._lines:
            return
        self._lines.add((message, outcome, time))
        unanswered = self._doubt.note(line)
        self._messages.add(message)
        if self._run is None:
            self._run = RunSeen(time, between=between)
        for counter in (self._outcomes, self._of_run):
            counter[outcome] += 1
        if enqueued > 0:
            self._enqueued.append(enqueued)
        if outcome in _SENT:
            self._times.append(time)
            self._sent[message] += 1
            self._destinations[destination] += 1
            if enqueued > 0 and (at := _moment(time)) is not None:
                self._waits.append(at - enqueued)
            if self._sent[message] > 1:
                self._may_be_double(message, destination, "it was sent more than once")
        elif outcome in _UNDELIVERED:
            self._reasons[str(said.get("reason"))] += 1
        attempts = said.get("attempts")
        if unanswered or (isinstance(attempts, int) and attempts > 1):
            self._may_be_double(message, destination, "an earlier send of it was not answered")

    def _may_be_double(self, message: tuple[str, Key], destination: str, why: str) -> None:
        _, key = message
        self._doubles.setdefault(message, PossibleDouble(key[2], destination, key[0], key[1], why))

    def report(self, ledgers: tuple[LedgerSeen, ...], *, verified: bool) -> IncidentReport:
        """All of them."""
        left, waiting = _numbers(self._last.get("left")), _numbers(self._last.get("waiting"))
        return IncidentReport(
            ledgers,
            tuple(sorted(self._runs, key=lambda run: run.began or "")),
            len(self._messages),
            len(self._sent),
            min(self._enqueued, default=None),
            max(self._enqueued, default=None),
            min(self._times, default=None),
            max(self._times, default=None),
            max(self._waits, default=None),
            in_order(self._outcomes),
            in_order(self._destinations, entities=True),
            in_order(self._reasons),
            tuple(self._doubles.values()),
            None if left is None else tuple((reason, number or 0) for reason, number in left.items()),
            waiting,
            verified,
        )


_SENT, _UNDELIVERED = ("forwarded",), (DEAD_LETTERED, REFUSED_OUTCOME)


def _numbers(said: Any) -> dict[str, int | None] | None:
    if not isinstance(said, dict):
        return None
    return {str(name): number for name, number in said.items() if isinstance(number, int | None)}


def _moment(time: str) -> float | None:
    with suppress(ValueError):
        return epoch_seconds(time)
    return None


def _between(way: Mapping[str, Any]) -> str:
    if not way:
        return NOT_RECORDED
    return f"{way.get('from_namespace')} to {way.get('to_namespace') or 'an archive'}"
