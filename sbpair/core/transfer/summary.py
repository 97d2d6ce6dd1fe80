"""What may be said of messages that were sent again, moved, copied or deleted, wherever they lay."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sbpair.core.outcome import Exit
from sbpair.core.serialization import INLINED
from sbpair.core.transfer.conclusion import ENDED, hindered_by
from sbpair.core.transfer.report import DrainReport, reasons
from sbpair.core.transfer.resend import CAME_LATER, NOT_REACHED, stays
from sbpair.core.words import counted

_NOT_ASKED_FOR = (CAME_LATER,)


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of the messages of an entity. No `to`: they went into an archive, or were deleted."""

    namespace: str
    entity: str
    to_namespace: str | None
    to: str | None
    report: DrainReport = field(metadata=INLINED)
    guarantee: str | None = None
    """`exactly-once` or `at-least-once`: how often a crash can leave a message at `to`. None: nothing is sent there and
    completed here."""
    at_least_once_because: str | None = None
    """Why it cannot be exactly once; None if it is."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a command does, for its sentences."""

    verb: str
    """What is said to have been done: `sent`, `moved`, `copied`."""
    noun: str
    """`dead letter` or `message`."""
    go_on: str
    """The command line that goes on with what is left."""
    keep: bool = False
    """The messages stay where they are too."""
    edited: bool = False
    """They were changed on the way."""


def with_unreached(done: MoveResult, planned: DrainReport) -> MoveResult:
    """What a run did whose time was up, with how many of the planned messages it did not come to."""
    report = done.report
    if report.ended_by != "time":
        return done
    left = sum(one.count for one in report.left if one.reason not in _NOT_ASKED_FOR)
    dealt_with = report.forwarded + report.already_forwarded + left
    number = planned.forwarded + sum(one.count for one in planned.left) - dealt_with
    if number <= 0:
        return done
    counts = Counter({one.reason: one.count for one in report.left}) + Counter({NOT_REACHED: number})
    return replace(done, report=replace(report, left=reasons(counts)))


def closing(done: MoveResult, doing: Doing) -> str:
    """The last sentence: what happened, how much is left, and the command that goes on."""
    report = done.report
    number = report.forwarded or report.purged
    would = "would be " if report.dry_run else "was " if number == 1 else "were "
    what = f"{counted(number, doing.noun)} of {done.entity} {would}"
    if report.archive is not None or (report.dry_run and done.to is None and report.forwarded):
        what += "archived" + (f" in {report.archive}" if report.archive is not None else "") + " and deleted"
    elif done.to is None:
        what += "deleted"
    else:
        what += f"{doing.verb} to {done.to} on {done.to_namespace}"
    if report.already_forwarded:
        since = "left alone" if doing.keep else "completed"
        what += f"; {report.already_forwarded:,} had been sent before and {_were(report.already_forwarded)} {since}"
    if ended := ENDED.get(report.ended_by):
        what += f"; {ended}"
    left = sum(one.count for one in report.left if one.reason not in _NOT_ASKED_FOR)
    if report.dry_run:
        rest = f" {left:,} would be left." if left else ""
        return f"{what}.{rest} Nothing was changed."
    rest = f" {left:,} {_are(left)} left." if left else ""
    may_go = any(not stays(one.reason) and one.reason != CAME_LATER for one in report.left)
    again = may_go or report.failures or report.ended_by in ("stop", "filter")
    return f"{what}.{rest}{f' Go on with: {doing.go_on}' if again else ''}"


def notes(done: MoveResult, doing: Doing) -> Iterator[str]:
    """Why messages are left, and what a resent message cannot keep."""
    report = done.report
    for one in report.left:
        would = "would be" if report.dry_run else _are(one.count)
        yield f"{one.count:,} {would} left: {one.reason}."
    if report.broken_off is not None:
        yield report.broken_off
    for failure in report.failures:
        yield f"Not read: {failure.queue}: {failure.error.message}"
    if report.unchecked:
        yield (
            f"Not checked without Manage on {done.to_namespace}: whether {done.to} is full, takes messages with a "
            "session only, or drops what it takes for duplicates."
        )
    if report.uncompleted:
        yield (
            f"{counted(report.uncompleted, 'message')} {_were(report.uncompleted)} sent, but the completion was not "
            "confirmed: they will be redelivered, with the same MessageId."
        )
    if done.guarantee is not None and report.forwarded:
        yield _guaranteed(done)
    if done.to is not None and report.forwarded:
        kept = "All bytes that were not edited" if doing.edited else "All bytes"
        yield (
            f"{kept} are kept but what the service stamps: sequence number, enqueued time, delivery count and the "
            "dead-letter reason are new or gone, the time to live starts again, and what was deferred is active."
        )


EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"


def _guaranteed(done: MoveResult) -> str:
    if done.guarantee == EXACTLY_ONCE:
        return "Exactly once: a message is sent and completed in one transaction, which no crash divides."
    return (
        f"At least once: {done.at_least_once_because}. After a crash a message may be there twice, with the same "
        "MessageId; with --ledger it is not sent again once its line is written."
    )


def guaranteed(report: DrainReport, to: str, *, within: str | None, keyless: int) -> tuple[str, str | None]:
    """How often a crash can leave a message at `to`, and why that is not once.

    Args:
        within: why there are no transactions; None if there are.
        keyless: planned messages without a key, if the destination is known to be partitioned.
    """
    if within is not None:
        return AT_LEAST_ONCE, within
    outside = min(keyless, report.forwarded) if report.dry_run else report.forwarded - report.in_transactions
    if outside <= 0:
        return EXACTLY_ONCE, None
    does = "would be" if report.dry_run else _were(outside)
    why = "the namespace refused them within one"
    if outside <= keyless:
        why = f"{to} is partitioned and takes what has neither session id nor partition key into none"
    return (
        AT_LEAST_ONCE,
        f"{outside:,} of {counted(report.forwarded, 'message')} {does} sent outside of a transaction, as {why}",
    )


def exit_of(done: MoveResult) -> Exit:
    """Findings of a dry run that found anything; partial if messages are left that were asked for."""
    report = done.report
    if report.dry_run:
        return Exit.FINDINGS if report.forwarded or report.purged or hindered_by(report) is not None else Exit.OK
    return hindered_by(report, apart_from=_NOT_ASKED_FOR) or Exit.OK


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
