"""What a promotion to another region did to the messages of a namespace, by a snapshot, ledgers and archives."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sbpair.concurrency import run_until, side_by_side
from sbpair.core.access import namespace_name
from sbpair.core.durations import epoch_seconds
from sbpair.core.entities import EntityKind
from sbpair.core.errors import MalformedMessageError, ServiceError, UsageError
from sbpair.core.inspection.contents import Contents
from sbpair.core.inspection.promotion import (
    ExpectedMessage,
    Present,
    PromotionEvidence,
    PromotionReport,
    SettledMessage,
    promotion_report,
)
from sbpair.core.message import Received
from sbpair.core.names import dead_letter_path, split_source
from sbpair.core.rewrite import as_sent
from sbpair.core.summary import describe
from sbpair.core.transfer.ledger import RUN_BEGAN, RUN_ENDED, SENT_OUTCOMES
from sbpair.core.transfer.restored import Restorable
from sbpair.core.transfer.state import Key, key_of
from sbpair.operations.entity import ListEntitiesRequest, read_namespace
from sbpair.operations.restore import read_archives
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import pages
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.ledger import ledgers_in, lines_in

__all__ = ["PromotionReport", "PromotionRequest", "report_promotion"]

_GONE = SENT_OUTCOMES | {"purged", "taken"}
_COPIES = (None, "copy", "restore", "replay")
"""Commands that leave the message where it lies; None: no line says which command it was."""
BROWSES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """What is known of the time before the promotion."""

    snapshot: Contents | None = None
    ledgers: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()
    """As for `restore`."""
    undisturbed: bool = False
    """Nobody has received since these files were written."""
    since: float | None = None
    """What was there before (UTC epoch seconds) had been replicated, so that its absence says nothing."""


async def report_promotion(
    ends: Ends, request: PromotionRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> PromotionReport:
    """Compare what files say with what the namespace has. Reads only; browses every entity. Needs Manage and Listen.

    Raises:
        UsageError: a file cannot be read, or is none of these.
        ServiceError: the entities could not be read.
    """
    stop = stop or asyncio.Event()
    files = await asyncio.to_thread(_Files, request, namespace_name(ends.source_access))
    now = await read_namespace(ends, ListEntitiesRequest(), stop=stop)
    present: list[Present] = []
    unread: dict[str, str] = {}
    places = [one.path for one in now.entities]
    places += [dead_letter_path(one.path) for one in now.entities if one.kind is not EntityKind.TOPIC]

    async def browse(place: str) -> None:
        try:
            present.extend(await _named_in(ends, place, files.message_ids))
        except ServiceError as error:
            unread[place] = error.message

    await run_until(stop, side_by_side(browse, places, at_once=BROWSES_AT_ONCE))
    expected, failed = tuple(files.expected(request.since)), dict(sorted(unread.items()))
    return promotion_report(
        PromotionEvidence(files.settled, expected, request.snapshot, now, tuple(present), failed, request.undisturbed)
    )


async def _named_in(ends: Ends, place: str, message_ids: Collection[str | None]) -> list[Present]:
    """The messages of a queue, subscription or dead-letter queue that files name."""
    path, dead_letter = split_source(place)
    async with closing(ends.source.receiver(path, dead_letter=dead_letter)) as receiver:
        found = [
            message
            async for page in pages(receiver, clock=LoopClock())
            for message in page
            if message.message_id in message_ids
        ]
    return [Present(place, _key(message, place), _content(message, dead_letter)) for message in found]


def _key(message: Received, place: str) -> Key:
    return place.lower(), *key_of(message)[1:]


def _content(message: Received, dead_letter: bool) -> bytes:
    try:
        payload = as_sent(message.payload, from_dead_letter=dead_letter).payload
    except MalformedMessageError:
        payload = message.payload
    return sha256(payload).digest()


class _Files:
    """What ledgers and archives say of a namespace."""

    def __init__(self, request: PromotionRequest, namespace: str) -> None:
        self.settled: dict[Key, SettledMessage] = {}
        self._accepted: dict[tuple[str, str], list[ExpectedMessage]] = {}
        self._seen: dict[Key, ExpectedMessage] = {}
        for path in request.ledgers:
            if not (ledgers := ledgers_in(path)):
                raise UsageError(f"There is no ledger {path}.")
            for ledger in ledgers:
                try:
                    self._read_ledger(ledger, namespace)
                except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    raise UsageError(f"Cannot read the ledger {ledger}: {error}") from error
        for path in request.archives:
            for message in read_archives((path,), to="anywhere"):  # nothing is sent
                if isinstance(message, Restorable):
                    self._read_message(message, str(path))

    @property
    def message_ids(self) -> set[str | None]:
        accepted = {message_id for _, message_id in self._accepted}
        return {key[2] for key in (*self.settled, *self._seen)} | accepted

    def _read_ledger(self, path: Path, namespace: str) -> None:
        command, open_keys = None, list[Key]()
        for line in lines_in(path, runs=True):
            if line.outcome == RUN_BEGAN:
                command, open_keys = line.fields.get("command"), []
            elif line.outcome == RUN_ENDED and not line.fields.get("left"):
                self.settled |= {key: SettledMessage(str(path), self.settled[key].to, True) for key in open_keys}
            elif line.outcome in _GONE:
                here = line.way.get("to_namespace") == namespace and line.outcome in SENT_OUTCOMES
                if line.way.get("from_namespace") == namespace and command not in _COPIES:
                    key = (line.key[0].lower(), *line.key[1:])
                    self.settled[key] = SettledMessage(str(path), line.destination if here else None, False)
                    open_keys.append(key)
                if here and line.key[2] is not None:
                    at = epoch_seconds(line.fields["time"])
                    accepted = ExpectedMessage(line.destination, line.key[2], at, str(path), False)
                    self._accepted.setdefault((line.destination.lower(), line.key[2]), []).append(accepted)

    def _read_message(self, message: Restorable, path: str) -> None:
        received, key = message.received, _key(message.received, message.received.queue)
        if not message.browsed:
            self.settled.setdefault(key, SettledMessage(path, None, False))
        elif received.message_id is not None:
            at, lives = received.enqueued_at or 0.0, describe(received.payload).ttl_seconds
            ends = None if lives is None else at + lives
            self._seen[key] = ExpectedMessage(received.queue, received.message_id, at, path, True, ends)

    def expected(self, since: float | None) -> Iterator[ExpectedMessage]:
        """What should be there: a message that a ledger and an archive name is one."""
        return (one for one in self._all() if since is None or one.at >= since)

    def _all(self) -> Iterator[ExpectedMessage]:
        gone = {(key[0], key[2]) for key in self.settled}
        archived: dict[tuple[str, str], list[ExpectedMessage]] = {}
        for key, seen in self._seen.items():
            if key not in self.settled:
                archived.setdefault((seen.place.lower(), seen.message_id), []).append(seen)
        for place in archived | self._accepted:
            known = archived.get(place, [])
            yield from known
            if place not in gone:
                yield from self._accepted.get(place, [])[len(known) :]
