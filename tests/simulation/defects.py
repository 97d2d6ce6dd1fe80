"""Defects to plant: a simulation that finds none of them proves nothing.

Each replaces one function of the product by one that does almost the same, in the process of one history. A defect that
fits the product no longer breaks by itself, which shows nothing: it counts as found by nobody (`Misfit`).
"""

import dataclasses
import inspect
import statistics
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

from sbpair.amqp import performatives, sections
from sbpair.azure import wire
from sbpair.azure.receiver import AzureReceiver
from sbpair.core.errors import JournalConflictError, ServiceError
from sbpair.core.message import Disposition
from sbpair.core.replication import ownership
from sbpair.core.transfer import custody, delivery, machine, order, pace
from sbpair.core.transfer.report import Accepted, Moment
from sbpair.emulator.store import Store
from sbpair.files import AppendedFile
from sbpair.runtime.browse import BrowsedMessages
from sbpair.runtime.failover import backlog, sender
from sbpair.runtime.replication import session, store
from sbpair.runtime.transfer import drain, ledger, move_sessions, pump, sinks


@dataclass(frozen=True, slots=True)
class Defect:
    what: str
    plant: Callable[[], None]


DEFECTS: dict[str, Defect] = {}


def defect(what: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(plant: Callable[[], None]) -> Callable[[], None]:
        DEFECTS[plant.__name__.removeprefix("_").replace("_", "-")] = Defect(what, plant)
        return plant

    return keep


class Misfit(Exception):
    """A planted defect and the product no longer fit each other."""


_misfits: list[str] = []
"""What of the planted code did not fit, in this process."""


_OTHERWISE_MADE = (TypeError, AttributeError, NameError)
"""What shows that the product takes or has something else than the planted code believes, wherever it is raised."""


def misfit(failure: BaseException | None = None) -> str:
    """What did not fit first of the defect that was planted in this process; empty: nothing was noticed. `failure`:
    that of the history."""
    if not _misfits and isinstance(failure, _OTHERWISE_MADE):
        return f"{type(failure).__name__}: {failure}"
    return _misfits[0] if _misfits else ""


def plant(name: str) -> None:
    """Plant the defect of this name in this process; `misfit` says if that was not possible."""
    try:
        DEFECTS[name].plant()
    except Misfit as error:
        _misfits.append(str(error))


def put(owner: Any, name: str, new: Any) -> None:
    """Put something else in the place of what the product has under this name.

    Raises:
        Misfit: it has nothing there.
    """
    if not hasattr(owner, name):
        raise Misfit(f"{owner.__name__} has no {name}")
    setattr(owner, name, property(_watched(new.fget)) if isinstance(new, property) else _watched(new))


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(what is there)` in its place."""
    if not hasattr(owner, name):
        raise Misfit(f"{owner.__name__} has no {name}")
    put(owner, name, make(getattr(owner, name)))


def _watched(planted: Any) -> Any:
    """The same, with a note of every call that shows that it does not fit. The product may well survive such a call and
    break a promise for it later, so what the history comes to does not tell."""
    if inspect.isasyncgenfunction(planted):

        @wraps(planted)
        async def asked(*arguments: Any, **options: Any) -> Any:
            with _noting_misfits(planted):
                async with aclosing(planted(*arguments, **options)) as answers:
                    async for answer in answers:
                        yield answer

        return asked
    if inspect.iscoroutinefunction(planted):

        @wraps(planted)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            with _noting_misfits(planted):
                return await planted(*arguments, **options)

        return awaited
    if not inspect.isfunction(planted):
        return planted

    @wraps(planted)
    def called(*arguments: Any, **options: Any) -> Any:
        with _noting_misfits(planted):
            return planted(*arguments, **options)

    return called


@contextmanager
def _noting_misfits(planted: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        own = frame.f_code is planted.__code__
        if own or isinstance(error, _OTHERWISE_MADE):
            _misfits.append(f"{type(error).__name__}: {error} (line {line}, in {frame.f_code.co_name})")
        raise


# Sending


@defect("the last message of a batch is not sent")
def _message_left_out() -> None:
    async def send(self: Any, destination: str, items: Sequence[Any]) -> None:
        kept = items[:-1] if len(items) > 2 else items
        await self._sender(destination).send([one.payload for one in kept], timeout_seconds=sinks.SEND_SECONDS)

    put(sinks.NamespaceSink, "send", send)


@defect("a send without an answer counts as accepted")
def _unclear_send_accepted() -> None:
    def make(send: Any) -> Any:
        async def careless(self: Any, destination: str, items: Sequence[Any]) -> None:
            try:
                await send(self, destination, items)
            except ServiceError as error:
                if not error.uncertain:
                    raise

        return careless

    replace(sinks.NamespaceSink, "send", make)


@defect("messages of a batch go out in the opposite order")
def _batch_reversed() -> None:
    def make(send: Any) -> Any:
        async def backwards(self: Any, destination: str, items: Sequence[Any]) -> None:
            await send(self, destination, items[::-1])

        return backwards

    replace(sinks.NamespaceSink, "send", make)


@defect("a message that is sent a second time keeps what the backlog added")
def _second_send_unrestored() -> None:
    def make(send: Any) -> Any:
        async def raw(self: Any, destination: str, items: Sequence[Any]) -> None:
            for item in items:
                if item.attempts > 1:
                    item.payload = sections.edit(item.received.payload, {})
            await send(self, destination, items)

        return raw

    replace(sinks.NamespaceSink, "send", make)


@defect("a session has two batches on their way")
def _session_twice_under_way() -> None:
    def make(take: Any) -> Any:
        def taken(self: Any, lane: Any, chosen: Any, blocked: Any) -> bool:
            some = bool(take(self, lane, chosen, blocked))
            lane.busy = False
            self._offer(lane)
            return some

        return taken

    replace(delivery.Destination, "_take_from", make)


# The ledger


@defect("the ledger's lines are written before the answer")
def _line_before_confirmation() -> None:
    def make(send: Any) -> Any:
        async def early(self: Any, batch: Any) -> None:
            recorder = self.ledger
            begun = await recorder.begin(self._entries(batch.items, "forwarded"))
            await recorder.confirm(begun, range(len(batch.items)))
            self.ledger = None
            try:
                await send(self, batch)
            finally:
                self.ledger = recorder

        return early

    replace(pump.Carrier, "send", make)


@defect("the receipt is settled without waiting for the ledger")
def _settled_before_the_line() -> None:
    async def on_disk(self: Any) -> None:
        self._unsynced.append(ledger.asyncio.get_running_loop().create_future())
        if self._syncing is None or self._syncing.done():
            self._syncing = ledger.asyncio.create_task(self._sync_groups())

    put(ledger.Ledger, "_on_disk", on_disk)


@defect("what earlier runs have sent is not read")
def _ledger_not_read() -> None:
    def make(read: Any) -> Any:
        def forgetful(*arguments: Any) -> tuple[frozenset[Any], dict[Any, str]]:
            read(*arguments)
            return frozenset(), {}

        return forgetful

    replace(ledger, "_cut_and_read", make)


@defect("a line that a crash cut off is left where it is")
def _torn_line_kept() -> None:
    def make(opened: Any) -> Any:
        def keeping(path: Any, mode: str) -> Any:
            file = opened(path, mode)

            class DeadLettersTo:
                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def __getattr__(self, name: str) -> Any:
                    return (lambda size: size) if name == "truncate" else getattr(file, name)

            return DeadLettersTo()

        return keeping

    replace(ledger, "open_private", make)


@defect("what a full disk took of a line is left there")
def _failed_write_kept() -> None:
    put(AppendedFile, "_cut", lambda self, size_bytes: None)


@defect("the ledger is not synced")
def _not_synced() -> None:
    put(AppendedFile, "sync", lambda self: None)


@defect("what the ledger could not take is completed all the same")
def _completed_without_line() -> None:
    def unrecorded(self: Any, items: Any) -> None:
        self.stopping = True
        for item in items:
            self.settle(item, Disposition.COMPLETE, "forwarded")

    put(custody.Custody, "unrecorded", unrecorded)


# Settling


@defect("a settlement that failed counts as done")
def _failed_settlement_done() -> None:
    def failed(self: Any, settle: Any, error: Any, now: float) -> None:
        self.settled([settle])

    put(custody.Custody, "settle_failed", failed)


@defect("a settlement is not waited for")
def _settlement_not_awaited() -> None:
    async def settle(
        self: Any, link: Any, delivery: Any, disposition: Disposition, reason: str, description: str
    ) -> None:
        from sbpair.azure import receiver

        outcome, expected = receiver._ON_LINK.get(disposition, (performatives.released(), "released"))
        link.settle(delivery, outcome, expected).add_done_callback(lambda done: done.exception())

    async def settle_all(self: Any, received: Any, disposition: Disposition) -> Any:
        for one in received:
            await self.settle(one, disposition)
            yield [(one, None)]

    put(AzureReceiver, "_settle_on_link", settle)
    put(AzureReceiver, "settle_all", settle_all)


@defect("what is given back is completed")
def _released_is_completed() -> None:
    def make(settle: Any) -> Any:
        async def wrong(self: Any, received: Any, disposition: Disposition, **options: Any) -> None:
            if disposition is Disposition.RELEASE:
                disposition = Disposition.COMPLETE
            await settle(self, received, disposition, **options)

        return wrong

    replace(AzureReceiver, "settle", make)


@defect("what was sent is forgotten when its lock is lost")
def _sent_forgotten() -> None:
    def make(drop: Any) -> Any:
        def forgetful(self: Any, item: Any, now: float, *, lost: bool) -> None:
            drop(self, item, now, lost=lost)
            self._forwarded.pop(item.key, None)

        return forgetful

    replace(custody.Custody, "drop", make)


# Order


@defect("a gap is closed after three seconds")
def _gap_closed_by_timer() -> None:
    def make(keep: Any) -> Any:
        def timed(self: Any, now: float) -> None:
            for one in self._queues:
                opened = self.__dict__.setdefault("_opened_at", {})
                for number in list(one.gaps):
                    if now - opened.setdefault((one.path, number), now) > 3.0:
                        one.close_gap(number)
                        del opened[one.path, number]
            keep(self, now)

        return timed

    replace(machine.Holding, "keep", make)


@defect("what a receive skipped is not browsed")
def _skipped_not_browsed() -> None:
    put(order.QueueOrder, "skipped", lambda self, numbers, *, ordered: [])


@defect("what was given back is not waited for")
def _return_not_awaited() -> None:
    put(order.Queues, "await_return", lambda self, item, now: None)


@defect("what is held behind a gap fills the window")
def _window_filled_by_held() -> None:
    # Half of the window is never used for what is held, what is held does not count, and what has waited in vain is
    # given back: any of the three would be enough.
    def hold(self: Any, queue: Any, now: float) -> None:
        queue.blocked = len(self._blocked_items(queue))

    def counted(grant: Any) -> Any:
        def stingy(self: Any, wanted: int, load: Any, now: float, source: str | None = None) -> int:
            blocked = [queue.blocked for queue in self._queues]
            for queue in self._queues:
                queue.blocked = 0
            granted = int(grant(self, wanted, load, now, source))
            for queue, number in zip(self._queues, blocked, strict=False):
                queue.blocked = number
            return granted

        return stingy

    put(machine.Holding, "_hold_or_release", hold)
    replace(pace.Window, "grant", counted)


# Knowing


@defect("an empty receive is an empty queue")
def _empty_without_browse() -> None:
    async def confirmed(self: Any, moving: Any, halt: Any) -> bool:
        return bool(await moving.settle_down(halt))

    put(drain._Run, "_until_confirmed", confirmed)


@defect("what others have locked does not count")
def _locked_counts_as_empty() -> None:
    put(BrowsedMessages, "empty", property(lambda self: not (self.by_state or self.explained or self.not_visible)))

    async def confirmed(self: Any, moving: Any, halt: Any) -> bool:
        while await moving.settle_down(halt):
            if await self._look_unless(halt, moving, enough=None) is None:
                return False
            return all(found.empty for found in self._found.values())
        return False

    put(drain._Run, "_until_confirmed", confirmed)


@defect("what is accepted is counted twice where it was sent twice")
def _counted_twice() -> None:
    def make(accepted: Any) -> Any:
        def twice(self: Any, items: Sequence[Any], destination: str) -> None:
            accepted(self, items, destination)
            for item in items:
                if item.attempts > 1:
                    self._tally.note(Moment.ACCEPTED, Accepted([item], destination))

        return twice

    replace(custody.Custody, "accepted", make)


@defect("a silent connection is never given up")
def _silence_not_noticed() -> None:
    put(wire, "_SILENCE_SECONDS", 1e9)


@defect("a session is kept only while messages of it are in hand")
def _session_not_kept() -> None:
    async def keep(receiver: Any, clock: Any, *, pause_seconds: float) -> None:
        """Renew nothing."""
        await clock.sleep(1e9)

    put(move_sessions, "keep_session", keep)


@defect("the state of a session is cleared and not taken along")
def _state_not_taken_along() -> None:
    async def place(self: Any, session_id: str, state: bytes) -> None:
        """Set nothing at the destination."""

    put(move_sessions.SessionMove, "_place_state", place)


@defect("a destination that failed is not tried again")
def _never_tried_again() -> None:
    def make(trouble: Any) -> Any:
        def final(self: Any, destination: Any, error: Any, now: float) -> None:
            trouble(self, destination, error, now)
            if destination.failures > 1:
                destination.paused_until, destination.probe_at = now + 1e7, None

        return final

    replace(delivery.Destinations, "_trouble", make)


# Claims


@defect("the doubt that an earlier attempt has left is forgotten")
def _doubt_forgotten() -> None:
    def make(route: Any) -> Any:
        async def certain(self: Any, payloads: Any, budget: Any, attempt: Any) -> Any:
            return dataclasses.replace(await route(self, payloads, budget, attempt), uncertain=False)

        return certain

    replace(sender.FailoverSender, "_route", make)


@defect("a session is held by the spelling of its entity")
def _held_by_spelling() -> None:
    def make(grouped: Any) -> Any:
        def spelled(entity: str, payloads: Any) -> Any:
            groups = grouped(entity, payloads)
            return {None if key is None else (entity, key[1]): items for key, items in groups.items()}

        return spelled

    replace(backlog, "_by_session", make)


@defect("what was accepted of a batch has no line in the ledger")
def _half_not_recorded() -> None:
    def make(recorded: Any) -> Any:
        async def of_whole_batches(self: Any, batch: Any, begun: Any, places: Any, **options: Any) -> bool:
            return 0 < len(places) < len(batch.items) or bool(await recorded(self, batch, begun, places, **options))

        return of_whole_batches

    replace(pump.Carrier, "_recorded", make)


@defect("every message counts for one destination")
def _counted_for_one_destination() -> None:
    def make(accepted: Any) -> Any:
        def for_one(self: Any, items: Sequence[Any], destination: str) -> None:
            accepted(self, items, "orders")

        return for_one

    replace(custody.Custody, "accepted", make)


@defect("a second copy counts as a message that was processed")
def _duplicates_counted_as_completed() -> None:
    def make(tell: Any) -> Any:
        def completed(self: Any, message_id: str, result: str, detail: str = "") -> None:
            tell(self, message_id, "completed" if result == "duplicate" else result, detail)

        return completed

    replace(session.SessionWorker, "_tell", make)


@defect("a copy whose settlement has no answer is recorded as settled")
def _unsettled_copy_recorded_as_settled() -> None:
    def make(settle: Any) -> Any:
        async def sure(self: Any, *arguments: Any, **options: Any) -> bool:
            await settle(self, *arguments, **options)
            return True

        return sure

    replace(session.SessionWorker, "_settle", make)


@defect("what an owner finished and did not record is dropped")
def _finished_by_others_dropped() -> None:
    def make(record: Any) -> Any:
        async def of_settled_ones(
            self: Any, session_id: str, finished: Any, settled: Any = (), *, is_new: bool = False
        ) -> None:
            if settled:
                await record(self, session_id, finished, settled, is_new=is_new)

        return of_settled_ones

    replace(store.SessionStore, "record", make)


@defect("what has failed is recorded as completed")
def _failure_recorded_as_completed() -> None:
    def make(record: Any) -> Any:
        async def completed(self: Any, session_id: str, finished: Any, *arguments: Any, **options: Any) -> None:
            finished = dataclasses.replace(finished, state=ownership.SessionState.COMPLETED)
            await record(self, session_id, finished, *arguments, **options)

        return completed

    replace(store.SessionStore, "record", make)


# Active/active


@defect("a lease of somebody else counts as free")
def _lease_of_another_ignored() -> None:
    put(ownership, "_leased_to_another", lambda entry, owner, now, terms: None)


@defect("what comes first in a session is not waited for")
def _predecessor_not_awaited() -> None:
    put(ownership, "_predecessor", lambda entry, copy, outcomes: None)


@defect("the journal's entry is written whoever has changed it meanwhile")
def _swap_without_comparison() -> None:
    def make(swap: Any) -> Any:
        async def blind(self: Any, known: Any, entry: Any) -> Any:
            try:
                return await swap(self, known, entry)
            except JournalConflictError:
                return await swap(self, await self.read(entry.session_id), entry)

        return blind

    replace(store.SessionStore, "swap", make)


@defect("a handler goes on when its lease is over")
def _handler_outlives_its_lease() -> None:
    def make(begin: Any) -> Any:
        def endless(self: Any, *arguments: Any, **options: Any) -> None:
            begin(self, *arguments, **options)
            self._over_at = self._renew_at = 1e12

        return endless

    replace(session.LeaseHeldRun, "__init__", make)


@defect("what is finished is known nowhere")
def _finished_not_recorded() -> None:
    # The session's entry, its streams and a record of each message say so, each where the others cannot.
    async def record(self: Any, *_: Any, **options: Any) -> None:
        """Write nothing."""

    put(store.SessionStore, "record", record)
    put(ownership.SessionEntry, "outcome", lambda self, message_id: None)
    put(ownership.SessionEntry, "has_finished", lambda self, place: False)


@defect("the copy is settled before the journal says what became of it")
def _copy_settled_first() -> None:
    def make(process: Any) -> Any:
        async def hasty(self: Any, copy: Any, claim: Any, run: Any) -> None:
            received = self._held[copy]
            await self.receiver.settle(received, Disposition.COMPLETE)
            await process(self, copy, claim, run)

        return hasty

    replace(session.SessionWorker, "_process", make)


# The namespace's own store


@defect("the namespace confirms what is not on its disk yet")
def _confirmed_before_commit() -> None:
    put(Store, "after_commit", lambda self, action, otherwise=None: action())


@defect("what was completed is left in the namespace's files")
def _completed_stays_in_the_files() -> None:
    def drop(self: Any, message: Any) -> None:
        message.row = 0

    put(Store, "drop_message", drop)


# The hunt


class Lived(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def failure(self) -> str: ...
    @property
    def misfit(self) -> str: ...


Many = Callable[[Sequence[int], float, int, str], Iterator[Lived]]


def hunt(hours: float, most: int, processes: int, many: Many, names: Iterable[str] = ()) -> int:
    """Plant each in turn; print how many seeds it took to find it. 1 if any was not found, or does not fit."""
    found: list[int] = []
    chosen = list(names) or list(DEFECTS)
    for name in chosen:
        for seeds, lived in enumerate(many(range(1, most + 1), hours, processes, name), 1):
            if lived.misfit:
                print(f"{name}: DOES NOT FIT the product any more: seed {lived.seed}: {lived.misfit}", flush=True)
                break
            if lived.failure:
                found.append(seeds)
                print(f"{name}: seed {lived.seed}: {lived.failure[:110]}", flush=True)
                break
        else:
            print(f"{name}: NOT FOUND in {most} seeds ({DEFECTS[name].what})", flush=True)
    if found:
        middle = statistics.median(found)
        print(
            f"{len(found)} of {len(chosen)} defects found; the median took {middle:g} seeds, the longest {max(found)}."
        )
    return 0 if len(found) == len(chosen) else 1
