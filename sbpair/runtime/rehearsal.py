"""What a drain would do, found out by browsing alone: nothing is locked, sent or settled."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sbpair.core.errors import ServiceError
from sbpair.core.message import Disposition, Received
from sbpair.core.moves import Finish, Forward, Verdict
from sbpair.ports import Clock
from sbpair.runtime.classify import Classifier
from sbpair.runtime.draining import DrainReport, DrainRequest, Left, failures_of, raise_if_none_was_readable
from sbpair.runtime.mover import Source
from sbpair.runtime.survey import survey

OVER_THE_LIMIT = "over the number of messages wanted"


async def rehearse(
    request: DrainRequest, sources: Sequence[Source], classify: Classifier, *, clock: Clock, stop: asyncio.Event
) -> DrainReport:
    """Counts and bytes by destination, dead letters and leftovers, as a report marked `dry_run`."""
    began = clock.monotonic()
    tally = _Tally(request, classify)
    patience = request.patience_seconds
    for source in sources:
        if not stop.is_set():
            await _rehearse_one(source, tally, clock, patience)
            if source.failed is not None and source.failed.retryable:
                patience = 0.0  # it was waited for once; the next queues are on the same namespace
        await source.receiver.close()
    raise_if_none_was_readable(sources)
    return DrainReport(
        forwarded=tally.forwarded,
        completed=0,
        dead_lettered=sum(tally.dead_letters.values()),
        released=0,
        pings=tally.pings,
        left=tuple(Left(reason, count) for reason, count in sorted(tally.left.items())),
        per_destination=tuple(sorted(tally.per_destination.items())),
        seconds=clock.monotonic() - began,
        confirmed_empty=False,
        forwarded_bytes=tally.forwarded_bytes,
        dead_letter_reasons=tuple(sorted(tally.dead_letters.items())),
        original_faults=tuple(sorted(classify.original_faults.items())),
        failures=failures_of(sources),
        ended_by="stop" if stop.is_set() else "empty",
        dry_run=True,
    )


async def _rehearse_one(source: Source, tally: "_Tally", clock: Clock, patience: float) -> None:
    try:
        found = await survey(
            source.receiver,
            {},
            sleep=clock.sleep,
            patience_seconds=patience,
            visit=tally.add,
            visit_deferred=tally.request.deferred,
        )
    except ServiceError as error:
        source.failed = error
    else:
        tally.left += found.by_state


@dataclass(slots=True)
class _Tally:
    request: DrainRequest
    classify: Classifier
    forwarded: int = 0
    forwarded_bytes: int = 0
    pings: int = 0
    per_destination: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def add(self, received: Received) -> None:
        verdict: Verdict = self.classify(received)
        match verdict:
            case Forward():
                self._forward(verdict)
            case Finish(Disposition.DEAD_LETTER) if self.request.dead_letter:
                self.left[f"undeliverable: {verdict.reason}"] += 1
            case Finish(Disposition.DEAD_LETTER):
                self.dead_letters[verdict.reason] += 1
            case Finish():
                self.pings += 1
            case _:
                self.left[verdict.because] += 1

    def _forward(self, verdict: Forward) -> None:
        most = self.request.max_messages
        if most is not None and self.forwarded >= most:
            self.left[OVER_THE_LIMIT] += 1
            return
        self.forwarded += 1
        self.forwarded_bytes += len(verdict.payload)
        self.per_destination[verdict.destination] += 1
