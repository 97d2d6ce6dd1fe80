"""`--dry-run` of `sbpair send` and `sbpair replicate send`: the input is read, the destinations are asked."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from sbpair.cli.context import Stop, run_async
from sbpair.cli.failover.records import InputFormat, Lines
from sbpair.cli.options import Options
from sbpair.core.access import shown_name
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.core.serialization import column
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from sbpair.core.access import NamespaceAccess
    from sbpair.core.transfer.destinations import DestinationSeen, Wanted

DRY_RUN = "Only read the lines and ask the destinations; exit 5 if anything would be sent."


@dataclass(frozen=True, slots=True)
class Place:
    """One destination: messages that it would take, those it would not by the reason, and whether its properties could
    be asked for, which tell whether it is full or takes messages with a session only. `side`: of a pair."""

    side: Side | None
    namespace: str
    entity: str
    would_take: int
    would_refuse: Mapping[str, int]
    asked: bool


@dataclass(frozen=True, slots=True)
class SendDryRun:
    """What a dry run found. `stopped_at`: a line that is no message; the real run sends nothing after it."""

    entity: str
    dry_run: bool
    messages: int
    size_bytes: int
    places: tuple[Place, ...]
    stopped_at: str | None


def dry_run(
    options: Options,
    destinations: "Sequence[tuple[Side | None, NamespaceAccess]]",
    entity: str,
    lines: "Lines[Any]",
    source: BinaryIO,
    form: InputFormat,
    to_payload: Callable[[bytes, InputFormat], bytes],
) -> CommandResult:
    """Say what the real run would meet on these namespaces."""

    async def work(stop: Stop) -> SendDryRun:
        from sbpair.connect import open_namespace
        from sbpair.core.summary import describe
        from sbpair.core.transfer.destinations import Wanted
        from sbpair.runtime.transfer.dry_run import ask_destinations
        from sbpair.runtime.transfer.sinks import NamespaceSink

        wanted = Wanted()
        async for payload in lines.payloads(source, form, stop, to_payload):
            wanted.add(len(payload), describe(payload).session_id)
        places = []
        for side, access in destinations:
            async with open_namespace(access) as (messaging, admin):
                sink = NamespaceSink(messaging)
                try:
                    seen = await ask_destinations([entity], sink=sink, admin=admin, stop=stop)
                finally:
                    await sink.close()
                places += [_place(side, shown_name(access), one, wanted) for one in seen]
        return SendDryRun(entity, True, wanted.messages, wanted.size_bytes, tuple(places), lines.bad_line)

    return _result(run_async(options, work))


def _place(side: Side | None, label: str, seen: "DestinationSeen", wanted: "Wanted") -> Place:
    from sbpair.core.transfer.destinations import Stays, expected

    left, refused = wanted.messages, Counter[str]()
    for trouble in expected(seen, wanted):
        if isinstance(trouble, Stays):
            reason, number = trouble.code, left
        else:
            reason, number = trouble.reason, min(trouble.messages, left)
        refused[reason] += number
        left -= number
    return Place(side, label, seen.path, left, dict(+refused), seen.asked or seen.error is not None)


@dataclass(frozen=True, slots=True)
class _Row:
    what: str = field(metadata=column("What"))
    where: str = field(metadata=column("Where"))
    messages: int = field(metadata=column("Messages", counts=True))


def _result(found: SendDryRun) -> CommandResult:
    rows = []
    for place in found.places:
        where = f"{place.entity} on {place.namespace}"
        rows.append(_Row("would be sent", where, place.would_take))
        for reason, number in place.would_refuse.items():
            rows.append(_Row("would not be taken", f"{where}: {reason}", number))
    blind = [place.namespace for place in found.places if not place.asked]
    notes = [
        f"Not checked without Manage on {namespace}: whether {found.entity} is full or requires a session id."
        for namespace in blind
    ]
    if found.stopped_at is not None:
        notes.append(f"It would stop at {found.stopped_at}; nothing after it would be sent.")
    places = " and ".join(place.namespace for place in found.places)
    exit = Exit.FINDINGS if found.messages else Exit.OK
    return CommandResult(
        found,
        (table_of(_Row, rows),),
        notes=tuple(notes),
        summary=f"{counted(found.messages, 'message')} would be sent to {found.entity} on {places}. Nothing was sent.",
        exit=Exit.USAGE if found.stopped_at is not None else exit,
        closing=True,
    )
