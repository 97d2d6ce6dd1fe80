"""What really happened, seen from above, and what must hold of it at every moment."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from sbpair.amqp import sections
from sbpair.amqp.sections import Section
from sbpair.core.names import BACKLOG_INFIX
from sbpair.core.transfer.report import DrainReport
from sbpair.emulator.broker.mailbox import DEAD_LETTER, MAIN
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.namespace import Namespace
from sbpair.service import session_key
from tests.simulation.claims import Claims, of_drain
from tests.simulation.trace import Trace

Stored = tuple[str, int]
"""A stored copy: its queue in lower case and its sequence number there."""


class Violation(AssertionError):
    """Something that must never be."""


@dataclass(slots=True)
class Sent:
    """A message that was accepted by a namespace."""

    number: int
    side: str
    """The primary whose pair it is sent with."""
    destination: str
    session_id: str | None
    body: bytes
    backlog: bool
    """Whether it was put straight into the backlog; else a sender sends it, to whichever side."""
    accepted: bool = True
    """Whether somebody was told that it is stored."""
    refused: bool = False
    """Whether somebody was told that it is not."""


@dataclass(frozen=True, slots=True)
class Lies:
    """Where a stored message lies: on which namespace, in which entity (lower case), in which place of it."""

    side: str
    path: str
    place: str


class Watcher(Protocol):
    """Judges what happens in some entities. `before`: where the message lay; None: it is new."""

    def stored(self, before: Lies | None, lies: Lies, message: Message) -> None: ...
    def dropped(self, lies: Lies, message: Message) -> None: ...


class Truth:
    """Told by the brokers of every message they take in and let go, and by the disk of every line.

    `strict_order`: sessions arrive in their order, whoever moves them. That is the order of first arrivals: what was on
    its way when its sender was killed may come again behind its successors (`test_several.py`).
    `with_ledgers`: every process that moves messages keeps a ledger.
    """

    def __init__(
        self, trace: Trace, *, strict_order: bool, with_ledgers: bool = False, holds_sessions: bool = False
    ) -> None:
        self.trace = trace
        self.claims = Claims(holds=strict_order and holds_sessions)
        self.strict_order = strict_order
        self.with_ledgers = with_ledgers
        self.sent: dict[str, Sent] = {}
        self.waiting: dict[str, Counter[str]] = defaultdict(Counter)
        """Copies of a message in the backlog, by queue and place."""
        self.arrived: dict[str, list[float]] = defaultdict(list)
        self.doubts: list[tuple[float, str]] = []
        """Moments at which an answer or a lock may have been lost."""
        self.copies: Counter[str] = Counter()
        """How often each message was put into the backlog: a sender whose answer was lost puts it there again."""
        self._first_stored_at: dict[str, float] = {}
        self.ledgers: dict[str, dict[Stored, str]] = defaultdict(dict)
        """What each ledger has on disk: the message of each stored copy."""
        self.last_in_session: dict[tuple[str, str], int] = {}
        self.now: Callable[[], float] = lambda: 0.0
        self.wrong: Callable[[BaseException], None] = lambda violation: None
        self.watchers: dict[tuple[str, str], Watcher] = {}
        """Who judges an entity, by namespace and path; the others are a backlog or destinations of it."""
        self._places: dict[tuple[str, int], Lies] = {}
        self.last_stored_at: dict[str, float] = {}
        """When a message came into the backlog of a primary last."""
        self.dropped: Counter[str] = Counter()
        """Messages that have left the backlog, by their primary."""

    # -- from the brokers

    def stored(self, side: str, path: str, place: str, message: Message, row: int) -> None:
        lies, before = Lies(side, path.lower(), place), self._places.get((side, row))
        self._places[side, row] = lies
        watcher = self.watchers.get((side, lies.path))
        self._judged(self._otherwise_stored if watcher is None else watcher.stored, before, lies, message)

    def let_go(self, side: str, message: Message, row: int) -> None:
        lies = self._places.pop((side, row), None)
        if lies is None:
            self.wrong(Violation(f"message {message.message_id} was taken from {side}, and had left it before"))
            return
        watcher = self.watchers.get((side, lies.path))
        self._judged(self._otherwise_dropped if watcher is None else watcher.dropped, lies, message)

    def _judged(self, judge: Callable[..., None], *what: Any) -> None:
        """Whoever tells goes on, as the broker it is."""
        try:
            judge(*what)
        except Violation as violation:
            self.wrong(violation)

    def _otherwise_stored(self, before: Lies | None, lies: Lies, message: Message) -> None:
        (self.backlog_stored if BACKLOG in lies.path else self.primary_stored)(before, lies, message)

    def _otherwise_dropped(self, lies: Lies, message: Message) -> None:
        if BACKLOG in lies.path:
            self.backlog_dropped(lies, message)
        else:
            raise Violation(f"message {message.message_id} was taken from {lies.path}, where nobody receives")

    def backlog_stored(self, before: Lies | None, lies: Lies, message: Message) -> None:
        key, where = str(message.message_id), f"{lies.path}|{lies.place}"
        if before == lies:
            return
        if before is None:
            self.last_stored_at[primary_of(lies.path)] = self.now()
            self.copies[key] += 1
            self.claims.copies[key] += 1
            first_at = self._first_stored_at.setdefault(key, self.now())
            if self.copies[key] > 1:
                self._explained(f"message {key} was put into the backlog twice", first_at)
        else:
            self.waiting[key][f"{before.path}|{before.place}"] -= 1
        self.waiting[key][where] += 1
        self.trace.note("stored", key, where)
        if lies.place != MAIN:
            raise Violation(f"message {key} was dead-lettered, and nothing is wrong with it")

    def backlog_dropped(self, lies: Lies, message: Message) -> None:
        key = str(message.message_id)
        self.waiting[key][f"{lies.path}|{lies.place}"] -= 1
        self.trace.note("completed", key)
        self.dropped[primary_of(lies.path)] += 1
        if key not in self.sent:
            return
        if not self.arrived[key]:
            raise Violation(f"message {key} was completed in the backlog and has not arrived anywhere: it is lost")
        copy = lies.path, message.sequence_number
        if self.with_ledgers and not any(copy in lines for lines in self.ledgers.values()):
            raise Violation(f"message {key} was completed before a ledger had it on disk")

    def backlog_counts(self, side: str) -> int:
        """Messages in the backlog of a primary."""
        return sum(BACKLOG in one.path and primary_of(one.path) == side for one in self._places.values())

    def primary_stored(self, before: Lies | None, lies: Lies, message: Message) -> None:
        key = str(message.message_id)
        if before == lies:
            return
        self.trace.note("arrived", key, lies.path)
        sent = self.sent.get(key)
        if sent is None:
            raise Violation(f"message {key} arrived at {lies.path} and was never sent")
        if lies.place == DEAD_LETTER:
            raise Violation(f"message {key} was dead-lettered at {lies.path}")
        if (sent.side, sent.destination.lower()) != (lies.side, lies.path):
            there = f"{lies.path} of {lies.side}"
            raise Violation(f"message {key} was for {sent.destination} of {sent.side} and arrived at {there}")
        self._same_content(key, sent, message)
        first = not self.arrived[key]
        if not first and len(self.arrived[key]) >= self.copies[key]:
            # Each copy of the backlog arrives, however late; why there are two was asked when the second was stored.
            self._explained(f"message {key} arrived twice", self.arrived[key][0])
        self.arrived[key].append(self.now())
        if first and self.strict_order and sent.session_id is not None and sent.backlog:
            self._in_order(key, sent)
        self._believed(self.claims.came(key))

    def _same_content(self, key: str, sent: Sent, message: Message) -> None:
        if message.head.session_id != sent.session_id:
            raise Violation(f"message {key} had session {sent.session_id} and arrived with {message.head.session_id}")
        spans = sections.scan(message.payload)
        span = next(one for one in spans if one.section == Section.DATA)
        if not message.payload[span.start : span.end].endswith(sent.body):
            raise Violation(f"message {key} arrived with another body")
        names = dict(message.section(Section.APPLICATION_PROPERTIES) or {})  # type: ignore[call-overload]
        if [name for name in names if str(name).startswith("x-ms-")] or names.get("n") != sent.number:
            raise Violation(f"message {key} arrived with the properties {names}")

    def _in_order(self, key: str, sent: Sent) -> None:
        assert sent.session_id is not None
        place = f"{sent.side}/{sent.destination}", session_key(sent.session_id)
        last = self.last_in_session.get(place, -1)
        if sent.number < last:
            raise Violation(f"message {key} of session {sent.session_id} was overtaken by number {last}")
        self.last_in_session[place] = sent.number

    def _explained(self, what: str, first_at: float) -> None:
        """A second copy needs a reason: about when the first came, or since, something was lost that a sender had to
        know."""
        if not any(at >= first_at - DOUBT_SECONDS for at, _ in self.doubts):
            raise Violation(f"{what}, and no answer was lost")

    def told(self, keys: Sequence[str], *, accepted: bool, certain: bool) -> None:
        """A sender was told what became of its messages."""
        self.trace.note("told", *keys, accepted, certain)
        if not certain:
            self.doubt("a send without an answer")
        for key in keys:
            self.sent[key].accepted, self.sent[key].refused = accepted, certain and not accepted
        self._believed(self.claims.said(keys, accepted=accepted, certain=certain))
        self.check()

    def _believed(self, broken: Iterable[str]) -> None:
        for claim in broken:
            raise Violation(claim)

    def doubt(self, why: str) -> None:
        self.doubts.append((self.now(), why))

    # -- from the processes

    def about_to_send(self, ledger: str, key: str) -> None:
        lines = self.ledgers.get(ledger, {})
        if key in lines.values() and list(lines.values()).count(key) >= self.copies[key]:
            raise Violation(f"message {key} was sent again, although the ledger has it as sent")
        self.trace.note("sending", key)
        self.claims.moved[key] += 1

    def written(self, ledger: Path) -> None:
        """The ledger's file has changed."""
        known = self.ledgers[ledger.name]
        for line in whole_lines(ledger):
            key, copy = str(line["message_id"]), (str(line["queue"]).lower(), int(line["sequence_number"]))
            if copy in known:
                continue
            known[copy] = key
            self.trace.note("line", ledger.name, key, line["outcome"])
            if line["outcome"] in ("forwarded", "already-forwarded") and not self.arrived[key]:
                raise Violation(f"the ledger says {line['outcome']} of message {key}, which has not arrived")

    def ended(
        self,
        report: DrainReport,
        *,
        began: float,
        lines_before: int,
        unsynced: bool,
        dropped_before: int,
        ledger: Path | None,
        alone: bool,
        side: str,
    ) -> None:
        """A run that `began` then has told what it did. Closing its connections takes a while after what it reports."""
        told = report.forwarded
        lines = None if ledger is None else whole_lines(ledger)[lines_before:]
        counted = {name: getattr(report, name) for name in ("forwarded", "dead_lettered", "per_destination")}
        self._believed(of_drain(counted, lines, unsynced=unsynced))
        self.trace.note("report", report.ended_by, told, report.completed, report.uncompleted, report.confirmed_empty)
        gone = self.dropped[side] - dropped_before
        if alone and report.completed + report.already_forwarded > gone:
            told_gone = report.completed + report.already_forwarded
            raise Violation(f"the report says {told_gone} were completed, {gone} have left the backlog")
        left = self.backlog_counts(side)
        if report.confirmed_empty and left and alone and self.last_stored_at.get(side, 0.0) < began:
            raise Violation(f"the drain says the backlog is empty; it holds {left}")
        if report.confirmed_empty and report.left:
            raise Violation(f"the drain says the backlog is empty, and that it holds {report.left}")

    def same_as_ledger(self, told: int, lines: list[dict[str, Any]]) -> None:
        counted = len([one for one in lines if one["outcome"] == "forwarded"])
        if told != counted:
            raise Violation(f"the report says {told} forwarded, the ledger of the run has {counted}")

    # -- at any time, and at the end

    def check(self) -> None:
        """Everything accepted is somewhere."""
        for key, sent in self.sent.items():
            there = self.arrived[key] or sum(self.waiting[key].values())
            if sent.accepted and not there:
                raise Violation(f"message {key} was accepted and is nowhere")
            if sent.refused and there:
                raise Violation(f"message {key} was said not to be stored, and is")

    def check_end(self, *namespaces: Namespace) -> None:
        """All has come to rest, after a last drain without any trouble."""
        self.check()
        for key, sent in self.sent.items():
            if sent.accepted and not self.arrived[key]:
                raise Violation(f"message {key} never arrived")
            if sum(self.waiting[key].values()):
                raise Violation(f"message {key} is still in the backlog")
        for namespace in namespaces:
            for queue in namespace.queues():
                if len(queue.main.locks):
                    raise Violation(f"{queue.path} of {namespace.name} holds {len(queue.main.locks)} locks for ever")


BACKLOG = f"/{BACKLOG_INFIX}/"


def primary_of(path: str) -> str:
    """Whose backlog queue it is."""
    return path.partition("/")[0].lower()


DOUBT_SECONDS = 400.0
"""A lost answer is noticed so late at the latest, by a silence of 90 seconds and the attempts after that."""


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines about messages; others name batches that are on their way."""
    if not path.exists():
        return []
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    try:
        return [read for line in lines if "messages" not in (read := _line(line))]
    except ValueError as error:
        raise Violation(f"{path.name} has a line that is none of a ledger: {error}") from error


@cache
def _line(line: bytes) -> dict[str, Any]:
    """A ledger is read again after each write: what was read before is not taken apart again. Nobody changes it."""
    read: dict[str, Any] = json.loads(line)
    return read
