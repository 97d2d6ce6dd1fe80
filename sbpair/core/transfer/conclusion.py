"""What may be said at the end of a drain or syphon: its exit code and its sentences.

Drawn from two values only: what became of the messages that were handled (`DrainReport`), and what the backlog holds
now (`core.backlog.Backlog`). "Back on the primary" is said of what the primary accepted; what went elsewhere
is called archived or moved, with the place.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbpair.core import errors
from sbpair.core.backlog import Advice, Backlog, BacklogVerdict, advice, empty_sentence
from sbpair.core.errors import ServiceError
from sbpair.core.message import MessageState
from sbpair.core.outcome import Exit
from sbpair.core.prices import Forecast, of_messages
from sbpair.core.serialization import HIDDEN, INLINED, OMITTED_IF_NONE, metric, published, spoken_clock
from sbpair.core.transfer.report import (
    TOO_MANY_LEFT,
    UNDELIVERABLE,
    CounterKind,
    DrainReport,
    Left,
    OutcomeRow,
    QueueFailure,
    fields_of,
    numbers,
)
from sbpair.core.transfer.resend import Planned
from sbpair.core.transfer.verdict import NOT_CONFIGURED, REFUSED_BY
from sbpair.core.words import are, counted, listed, were

_ERROR_CODE = re.compile(r"\(([a-z-]+)\)$")
_EXIT_NAMES = {
    kind.code: kind.exit_name
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ServiceError)
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the run was asked to do."""

    pair: str
    primary: str
    """The primary's configured name."""
    go_on: str
    """The command that goes on with what is left."""
    dead_letter: bool = False
    filtered: bool = False
    ledger: Path | None = None
    """What keeps what was sent from being sent again."""
    queue: str | None = None
    """The queue on the primary that everything was sent to, instead of each message's own destination."""


ARCHIVED, MOVED, TO_THE_PRIMARY, LEFT = "archived", "moved", "to the primary", "left"
"""What a row says of messages that went somewhere, or did not."""


@dataclass(frozen=True, slots=True)
class LeftInBacklog:
    """Messages of the whole backlog after a run; None where nobody knows how many."""

    messages: int | None = field(default=None, metadata=metric("sbpair_left_messages"))
    dead_letters: int | None = field(default=None, metadata=metric("sbpair_left_dead_letter_messages"))


@dataclass(frozen=True, slots=True)
class DrainResult:
    """A run and what it left, as `drain -o json` and `syphon -o json` print it.

    `forecast` is that of a dry run, `used` that of a real one, in operations of both namespaces. No `backlog`: what it
    holds after the run was not read.
    """

    pair: str
    report: DrainReport = field(metadata=INLINED)
    asked: Asked = field(metadata=HIDDEN)
    forecast: Forecast | None = field(default=None, metadata=OMITTED_IF_NONE)
    used: Forecast | None = field(default=None, metadata=OMITTED_IF_NONE)
    backlog: Backlog | None = field(default=None, metadata=OMITTED_IF_NONE)
    before: Mapping[str, int] = field(default_factory=dict, metadata=HIDDEN)
    """Messages that the run was to move, by queue, where they could be counted at its beginning."""
    plan: Planned | None = field(default=None, metadata=HIDDEN)
    """What a second call is given to move exactly what a dry run has found."""

    @classmethod
    def of(
        cls,
        asked: Asked,
        report: DrainReport,
        backlog: Backlog | None = None,
        used: Forecast | None = None,
        before: Mapping[str, int] | None = None,
        plan: Planned | None = None,
    ) -> "DrainResult":
        """`used`: what the run asked of the namespaces besides moving messages."""
        operations = operations_of(report)
        if report.dry_run:  # what it used itself is over; what is still to come is its forecast
            return cls(asked.pair, report, asked, operations, None, backlog, before or {}, plan)
        return cls(asked.pair, report, asked, None, operations + (used or Forecast()), backlog, before or {})

    @published
    def confirmed_empty(self) -> bool:
        """Whether the whole backlog was read and holds nothing of any kind."""
        return self.backlog is not None and self.backlog.confirmed_empty

    @property
    def exit(self) -> Exit:
        return exit_of(self.report, self.backlog, self.asked)

    @property
    def closing(self) -> str:
        return closing(self.report, self.backlog, self.asked)

    @property
    def notes(self) -> tuple[str, ...]:
        return further(self.report, self.backlog, self.asked)

    def rows(self) -> Iterator[OutcomeRow]:
        """What became of the messages: where they went, what is left and why, and what else was counted."""
        report = self.report
        went = ARCHIVED if report.archive is not None else MOVED if self.asked.queue is not None else TO_THE_PRIMARY
        for counter in fields_of(CounterKind.BY_NAME):
            for where, messages in getattr(report, counter.name):
                yield OutcomeRow(counter.metadata["row"] or went, where, messages)
        for left in report.left:
            yield OutcomeRow(LEFT, left.reason, left.count)
        for counter in numbers():
            if counter.metadata["row"] and (messages := getattr(report, counter.name)):
                yield OutcomeRow(counter.metadata["row"], "", messages)
        for first, others in _first_of_each_kind(report.failures):
            more = f" and {others} more" if others else ""
            yield OutcomeRow("not read", f"{first.queue}{more}: {first.error.message}", None)

    @property
    def left(self) -> LeftInBacklog:
        """What monitoring shows of the backlog."""
        backlog = self.backlog
        if backlog is None or not backlog.whole:
            return LeftInBacklog()
        uncertain = backlog.unread or backlog.at_least
        return LeftInBacklog(None if uncertain else backlog.seen, backlog.dead_letter)


def _first_of_each_kind(failures: Iterable[QueueFailure]) -> list[tuple[QueueFailure, int]]:
    """The first failure of each kind, and how many others are like it."""
    kinds: dict[str, tuple[QueueFailure, int]] = {}
    for failure in failures:
        first, others = kinds.get(failure.error.code, (failure, -1))
        kinds[failure.error.code] = first, others + 1
    return list(kinds.values())


def operations_of(report: DrainReport) -> Forecast:
    """Operations of what moved (or would): received, completed and sent, in billing units of 64 KB at the average
    size."""
    rest = Forecast(message_operations=2 * (report.dead_lettered + report.pings + report.already_forwarded))
    if not report.forwarded:
        return rest
    average = -(-report.forwarded_bytes // report.forwarded)
    return of_messages(report.forwarded, average) + rest


def moved(report: DrainReport, asked: Asked) -> str:
    """What happened to the messages, without a full stop."""
    noun = "dead letter" if asked.dead_letter else "message"
    number = counted(report.forwarded, noun)
    would = report.dry_run
    if report.archive is not None:
        return f"{number} {'would be ' if would else ''}archived in {report.archive}"
    if asked.queue is not None:
        return f"{number} {'would be ' if would else ''}moved to {asked.queue} on {asked.primary}"
    verb = "would go back to" if would else f"{are(report.forwarded)} back on"
    return f"{number} {verb} {asked.primary}"


def _before(report: DrainReport) -> str:
    """Said in every format: who could write to the ledger could have a message completed that was never sent."""
    if not report.already_forwarded:
        return ""
    verb = "would be" if report.dry_run else were(report.already_forwarded)
    return f"; {report.already_forwarded:,} had been sent before and {verb} completed without being sent again"


def _uncompleted(report: DrainReport, asked: Asked) -> str:
    if not report.uncompleted:
        return ""
    one, (send, sending) = (
        report.uncompleted == 1,
        ("archives", "archiving") if report.archive else ("sends", "sending"),
    )
    these = "it" if one else "them"
    of_them = f"{report.uncompleted:,} of them {are(report.uncompleted)} not completed yet and still in the backlog"
    if asked.ledger is not None:
        return f"; {of_them}: the same command completes {these} without {sending} {these} again"
    return f"; {of_them}: the next run {send} {these} again, with the same MessageId"


ONLY_ENTITIES = "--only-entities"
_EARLY = {
    "stop": "stopped by a signal",
    "cut": "not all were read",
    "time": "the time was up",
    "count": "the limit was reached",
    "filter": "stopped at a message for which the filter cannot be evaluated",
}
ENDED = _EARLY | {
    "idle": "no message arrived for the requested time",
    TOO_MANY_LEFT: "as many were left as can be kept locked, and none behind them was read",
}
_NOT_ALL_READ = frozenset({*_EARLY, TOO_MANY_LEFT})


def left_out(messages: int) -> str:
    """Part of the last sentence of a restore or replay: how many messages a ledger keeps from being sent."""
    if not messages:
        return ""
    return f"; {messages:,} left out, because a ledger has {'it' if messages == 1 else 'them'}"


def headline(report: DrainReport, backlog: Backlog | None, asked: Asked) -> str:
    """What `closing` says, the worst first: what is left, then what happened, then the command that goes on."""
    return closing(report, backlog, asked, worst_first=True)


def closing(report: DrainReport, backlog: Backlog | None, asked: Asked, *, worst_first: bool = False) -> str:
    """The last sentence of a run: what happened, what is left, and the command that goes on."""
    ended, asked = ENDED.get(report.ended_by), _to_go_on(report, asked)
    first = f"{moved(report, asked)}{_before(report)}{_uncompleted(report, asked)}{f'; {ended}' if ended else ''}."
    if report.dry_run:
        fates = "; ".join([first.removesuffix("."), *_other_fates(report, backlog, asked)])
        return f"{fates}. Nothing was changed."
    if backlog is None:
        return f"{first} The rest of the backlog was not counted. Run: sbpair status {asked.pair}"
    if backlog.verdict is BacklogVerdict.EMPTY:
        return f"{first} {empty_sentence(backlog)}"
    if _all_that_match(report, asked):
        if not (deferred := sum(one.count for one in report.left)):
            return f"{first} Nothing that matches the filter is left."
        but = f"Nothing that matches the filter is left but {counted(deferred, 'deferred message')}."
        return f"{first} {but} Run: {asked.go_on} --deferred"
    found = _remaining(report, backlog, asked)
    if not found:
        return f"{first} {_of_some_queues(backlog)}"
    if worst_first:
        return str(replace(found[0], sentence=f"{found[0].sentence} {first}"))
    nothing_active = not asked.dead_letter and backlog.verdict is BacklogVerdict.SET_ASIDE
    return f"{first} {'No active message is left. ' if nothing_active else ''}{found[0]}"


def _other_fates(report: DrainReport, backlog: Backlog | None, asked: Asked) -> Iterator[str]:
    """What would become of the messages of a dry run that would not move."""
    if report.dead_lettered:
        why = listed(f"{reason} {number:,}" for reason, number in report.dead_letter_reasons)
        yield f"{report.dead_lettered:,} would be dead-lettered ({why})"
    if stay := sum(one.count for one in report.left):
        yield f"{stay:,} would stay ({listed(one.reason for one in report.left if one.count)})"
    if backlog is not None and not asked.dead_letter and (behind := backlog.known("dead_letter")):
        yield f"{counted(behind, 'dead letter')} would stay where {'it is' if behind == 1 else 'they are'}"


def _all_that_match(report: DrainReport, asked: Asked) -> bool:
    """Whether the filter was applied to all messages, and nothing that matches it is left but deferred ones."""
    return asked.filtered and report.ended_by not in _NOT_ALL_READ and not _received_left(report)


def waits_for_locks(queues: Mapping[str, int], until: float) -> str:
    """What a run says, without its end, that waits for messages others have received. `queues`: how many by queue;
    `until`: when their locks end, UTC epoch seconds."""
    where = listed(queues) if len(queues) == 1 else counted(len(queues), "queue")
    return (
        f"Waiting for {counted(sum(queues.values()), 'message')} of {where}, locked by another receiver (a killed run "
        f"keeps its locks) until {spoken_clock(until)} at the latest, unless it renews them"
    )


def waits_for_more(until: float) -> str:
    """What a run says, without its end, that goes on until nothing has come for a while."""
    return f"Nothing is left; it ends at {spoken_clock(until)} if nothing comes before"


def further(report: DrainReport, backlog: Backlog | None, asked: Asked) -> tuple[str, ...]:
    """Sentences before the closing one: why messages are left, what each reason calls for, and what else there is."""
    told, asked = [*_why_left(report), *_notes(report, asked)], _to_go_on(report, asked)
    if backlog is not None and not report.dry_run:
        all_match = _all_that_match(report, asked)
        rest = (
            advice(backlog, recorded=_recorded(report, asked)) if all_match else _remaining(report, backlog, asked)[1:]
        )
        told += [str(one) for one in rest]
    return tuple(told)


def exit_of(report: DrainReport, backlog: Backlog | None, asked: Asked) -> Exit:
    """Denied or unreachable if that is why all of it is left, partial if messages are left, else ok."""
    if report.dry_run:
        return Exit.FINDINGS if report.forwarded or report.dead_lettered or _left(report) else Exit.OK
    if (hindered := hindered_by(report)) is not None:
        return hindered
    if backlog is None:
        return Exit.OK if report.confirmed_empty else Exit.PARTIAL
    return Exit.PARTIAL if _unhandled(report, backlog, asked) else Exit.OK


def hindered_by(report: DrainReport, *, apart_from: Collection[str] = ()) -> Exit | None:
    """Denied or unreachable if that is why all of it is left, partial if messages are left for other reasons than
    those; None if nothing was in the way."""
    hindrances = [_EXIT_NAMES.get(_code_in(reason), "partial") for reason in _left(report) if reason not in apart_from]
    hindrances += [failure.error.exit_name for failure in report.failures]
    if hindrances and not report.dead_lettered:
        for code in (Exit.DENIED, Exit.UNREACHABLE):
            if set(hindrances) == {code.label}:
                return code
    handled_less = hindrances or report.dead_lettered or report.uncompleted or report.broken_off is not None
    return Exit.PARTIAL if handled_less else None


def _unhandled(report: DrainReport, backlog: Backlog, asked: Asked) -> bool:
    """Whether anything remains that the run was asked to handle."""
    if asked.filtered:
        return report.ended_by in _NOT_ALL_READ and bool(backlog.seen or backlog.unread)
    if asked.dead_letter:
        return bool(backlog.known("dead_letter") or backlog.unread)
    if backlog.seen or backlog.unread:
        return True
    return backlog.whole and backlog.verdict is not BacklogVerdict.EMPTY


def _remaining(report: DrainReport, backlog: Backlog, asked: Asked) -> list[Advice]:
    """What is left, what the run was asked about first."""
    without_filter = asked.dead_letter or (asked.filtered and report.ended_by == TOO_MANY_LEFT)
    drain = None if without_filter else asked.go_on
    found = list(advice(backlog, drain=drain, recorded=_recorded(report, asked)))
    if asked.dead_letter:
        found.sort(key=lambda one: not any(" --dlq" in command for command in one.commands))
    if asked.filtered and backlog.known("dead_letter" if asked.dead_letter else "active"):
        sentence = f"{found[0].sentence.removesuffix('.')}, whether they match the filter or not."
        found[0] = replace(found[0], sentence=sentence)
    if asked.dead_letter:
        undeliverable = _only_left(report, lambda reason: reason.startswith(UNDELIVERABLE))
        if found and report.archive is None and undeliverable:
            # The same command would leave them again.
            found[0] = replace(found[0], commands=(f"sbpair drain {asked.pair} --dlq --archive {asked.pair}-kept",))
    elif found and _only_left(report, lambda reason: reason.startswith(REFUSED_BY)):
        found[0] = replace(found[0], commands=(f"{asked.go_on} --on-refused dead-letter",))
    elif found and _only_left(report, lambda reason: _code_in(reason) in _CURES):
        found[0] = replace(
            found[0], sentence=f"{found[0].sentence} Make the changes above first, or they are left again."
        )
    if not asked.dead_letter and report.dead_lettered and report.dead_lettered == backlog.known("dead_letter"):
        found = [replace(one, commands=tuple(_kept(command, asked) for command in one.commands)) for one in found]
    return found


def _recorded(report: DrainReport, asked: Asked) -> str:
    """The option with which another drain to the primary keeps the same ledger; that of an archive refuses it."""
    return "" if asked.ledger is None or report.archive is not None else f" --ledger {shlex.quote(str(asked.ledger))}"


def _kept(command: str, asked: Asked) -> str:
    """Instead of a command that would only leave what this run has just dead-lettered."""
    drain = f"sbpair drain {asked.pair} --dlq"
    return f"{drain} --archive {asked.pair}-kept" if command.startswith(drain) else command


def _only_left(report: DrainReport, why: Callable[[str], bool]) -> bool:
    """Whether all that is left is for such reasons, so that the same command would leave it again."""
    in_vain = report.ended_by not in _EARLY and not report.failures and not report.uncompleted
    return in_vain and bool(left := _received_left(report)) and all(map(why, left))


def _to_go_on(report: DrainReport, asked: Asked) -> Asked:
    """Where every message that is left is for an entity that --only-entities leaves aside, the same command would leave
    it again: the one that goes on is the one without."""
    in_vain = report.ended_by not in _EARLY and not report.failures and any(map(_is_elsewhere, report.left))
    if in_vain and all(_is_elsewhere(one) or not one.count for one in report.left):
        return replace(asked, go_on=asked.go_on.replace(f" {ONLY_ENTITIES}", ""))
    return asked


def _of_some_queues(backlog: Backlog) -> str:
    number = len(backlog.not_asked)
    left = f"{counted(number, 'other queue')} of the backlog {were(number)} not read"
    return f"The queues that were named are empty; {left}. Run: sbpair status {backlog.pair}"


def _left(report: DrainReport) -> list[str]:
    """Reasons for which messages are left."""
    return [one.reason for one in report.left if one.count]


def _received_left(report: DrainReport) -> list[str]:
    """The same without deferred messages, which a drain takes only if asked to."""
    return [reason for reason in _left(report) if reason != MessageState.DEFERRED]


def _code_in(reason: str) -> str:
    """The error's code at the end of a reason; empty if there is none."""
    found = _ERROR_CODE.search(reason)
    return found[1] if found else ""


_CURES = {
    "entity-not-found": "The destination does not exist. Create it and drain again, or drain with --on-missing "
    "dead-letter.",
    "entity-disabled": "The destination is disabled for senders. Enable it and drain again.",
    "quota-exceeded": "The destination is full. Make room there (let its consumers run) and drain again.",
    "unauthorized": "The credential lacks the right Send on the primary; what each command needs: sbpair help "
    "permissions",
    "argument-refused": "The destination refuses such messages, for example without a session id where it requires "
    "sessions. Change the destination and drain again, or collect them in one queue with --to queue:NAME.",
    "message-too-large": "The destination accepts smaller messages only. Raise its limit and drain again, or keep them "
    "in files with --archive DIR.",
    "authentication-failed": "The primary refused the credential; see which one is used: sbpair config show",
}


def _why_left(report: DrainReport) -> Iterator[str]:
    """One sentence a cause, however many destinations and messages it has."""
    by_code: dict[str, int] = {}
    for one in report.left:
        if code := _code_in(one.reason):
            by_code[code] = by_code.get(code, 0) + one.count
    for code, number in sorted(by_code.items()):
        verb = "would be" if report.dry_run else are(number)
        yield f"{counted(number, 'message')} {verb} left ({code}). {_CURES.get(code, _TRY_AGAIN)}"
    if undeliverable := sum(one.count for one in report.left if one.reason.startswith(UNDELIVERABLE)):
        yield (
            f"{counted(undeliverable, 'dead letter')} cannot be sent to a destination as "
            f"{'it is' if undeliverable == 1 else 'they are'}. Keep {'it' if undeliverable == 1 else 'them'} in files "
            "with --archive DIR, or collect in one queue with --to queue:NAME."
        )
    elsewhere = {one.reason.removeprefix(NOT_CONFIGURED): one.count for one in report.left if _is_elsewhere(one)}
    if elsewhere:
        yield (
            f"{counted(sum(elsewhere.values()), 'message')} for {listed(sorted(elsewhere))} stay in the backlog: not "
            f"among the pair's `entities:`. Add what belongs there, or drain without {ONLY_ENTITIES}."
        )


def _is_elsewhere(one: Left) -> bool:
    return one.reason.startswith(NOT_CONFIGURED) and one.count > 0


_TRY_AGAIN = "The destination did not take them in time; drain again when it does."


def _notes(report: DrainReport, asked: Asked) -> Iterator[str]:
    if report.broken_off is not None:
        yield f"{report.broken_off} What was moved until then has left the backlog; correct the filter to go on."
    moved_any = report.forwarded or report.already_forwarded or report.dead_lettered or report.pings
    if asked.filtered and report.filtered_out and not moved_any and not _received_left(report):
        browse = f"sbpair peek {asked.pair} --group-by destination{' --dlq' if asked.dead_letter else ''}"
        yield f"Of {counted(report.filtered_out, 'message')} none matches the filter. Their destinations: {browse}"
    if report.locked:
        until = spoken_clock(max(one.until for one in report.locked))
        yield (
            f"The next message of {listed(one.queue for one in report.locked)} is locked by another receiver until "
            f"{until} at the latest; drain again after that."
        )
    if report.archive is not None and report.forwarded and not report.dry_run:
        restore = f"sbpair restore {report.archive} --pair {asked.pair} --ledger restored.jsonl"
        yield f"To send the archived messages to their destinations: {restore}"
    if report.unchecked:
        full = "is full or requires" if len(report.unchecked) == 1 else "are full or require"
        yield (f"Not checked without Manage on the primary: whether {listed(report.unchecked)} {full} a session id.")
