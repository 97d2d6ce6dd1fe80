"""Puts the Azure adapters under a pair: the composition behind the command line and behind `sbpair.open_pairing`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sbpair.core.access import NamespaceAccess
from sbpair.core.arguments import require
from sbpair.core.errors import PairingError
from sbpair.core.failover.machine import Policy
from sbpair.core.pairing import Pair, Verify

if TYPE_CHECKING:
    from sbpair.ports import Ends, NamespaceAdmin, Observer, Sides, Topology, TransactedMessaging
    from sbpair.runtime.failover.pairing import PairedNamespaces


@asynccontextmanager
async def open_sides(
    pair: Pair, *, reopen: "Callable[[], AbstractAsyncContextManager[Sides]] | None" = None
) -> "AsyncIterator[Sides]":
    """Connect a pair's messaging and administration; nothing goes over the wire until it is used.

    `reopen`: as `Sides` has it; by default the same pair is opened once more, in another process only if none of its
    credentials is a secret.
    """
    from sbpair.azure import make_admin, make_messaging, make_topology
    from sbpair.ports import Sides

    require("pair", pair, Pair, "a Pair")
    async with AsyncExitStack() as stack:
        primary, secondary = make_messaging(pair.primary), make_messaging(pair.secondary)
        primary_admin, secondary_admin = make_admin(pair.primary), make_admin(pair.secondary)
        topologies = make_topology(pair.primary), make_topology(pair.secondary)
        for part in (primary, secondary, primary_admin, secondary_admin, *topologies):
            stack.push_async_callback(part.close)
        again = reopen or partial(open_sides, pair)
        yield Sides(pair, primary, secondary, primary_admin, secondary_admin, again, topologies)


@asynccontextmanager
async def open_namespace(access: NamespaceAccess) -> "AsyncIterator[tuple[TransactedMessaging, NamespaceAdmin]]":
    """Connect one namespace; nothing goes over the wire until it is used."""
    from sbpair.azure import make_admin, make_messaging

    require("access", access, NamespaceAccess, "a NamespaceAccess")
    async with AsyncExitStack() as stack:
        messaging, admin = make_messaging(access), make_admin(access)
        for part in (messaging, admin):
            stack.push_async_callback(part.close)
        yield messaging, admin


@asynccontextmanager
async def open_ends(source: NamespaceAccess, target: NamespaceAccess | None = None) -> "AsyncIterator[Ends]":
    """Connect two namespaces, or one twice where `target` is None or the same host; nothing goes over the wire until
    it is used."""
    from sbpair.ports import Ends

    target = source if target is None or target.host == source.host else target
    async with AsyncExitStack() as stack:
        messaging, admin = await stack.enter_async_context(open_namespace(source))
        topology = await stack.enter_async_context(open_topology(source))
        to_messaging, to_admin, to_topology = messaging, admin, topology
        if target is not source:
            to_messaging, to_admin = await stack.enter_async_context(open_namespace(target))
            to_topology = await stack.enter_async_context(open_topology(target))
        yield Ends(
            messaging,
            to_messaging,
            admin,
            to_admin,
            messaging if target is source else None,
            topology,
            to_topology,
            source_access=source,
            target_access=target,
        )


@asynccontextmanager
async def open_topology(access: NamespaceAccess) -> "AsyncIterator[Topology]":
    """All entities of one namespace; nothing goes over the wire until it is used."""
    from sbpair.azure import make_topology

    topology = make_topology(access)
    try:
        yield topology
    finally:
        await topology.close()


@asynccontextmanager
async def open_pairing(
    pair: Pair,
    *,
    observer: "Observer | None" = None,
    policy: Policy | None = None,
    hold_sessions: bool | None = None,
    create_missing: bool | None = None,
    verify: Verify | None = None,
) -> AsyncIterator["PairedNamespaces"]:
    """Open a pairing over the Azure SDKs for an application that sends.

        async with open_pairing(pair) as pairing:
            result = await pairing.sender("orders").send(compose(body="hello", message_id="1"))

    With `verify` (by default the pair's choice, `warn`) links to the backlog queues are tried beforehand and at every
    `verify_interval`: `warn` says by an event what is wrong, `require` raises PairingError for what would keep messages
    from being diverted, `off` asks nothing of the secondary before the first failure of the primary. Other arguments
    and errors are those of `PairedNamespaces.open`; `create_missing` is the pair's choice by default. A send is tried
    as often as azure-servicebus tries it before the failover policy hears of its failure. The backlog is brought back
    by `sbpair syphon` or `sbpair drain`, or in this process if the pair's options enable the syphon.
    """
    from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext

    async with open_sides(pair) as sides:
        pairing = await PairedNamespaces.open(
            pair,
            PairingContext.over(sides, observer, policy=policy, hold_sessions=hold_sessions),
            secondary_admin=sides.secondary_admin,
            create_missing=pair.options.create_missing if create_missing is None else create_missing,
        )
        async with pairing:
            chosen = pair.options.verify if verify is None else verify
            if chosen == Verify.REQUIRE and not (found := await pairing.verify()).ready:
                raise PairingError(f"An outage of {pair.primary.host} would lose messages: {' '.join(found.problems)}")
            if chosen != Verify.OFF:
                pairing.keep_verifying()
            yield pairing


_Request = TypeVar("_Request", contravariant=True)
_Result = TypeVar("_Result", covariant=True)


class Verb(Protocol[_Request, _Result]):
    """A function of `sbpair.operations`."""

    async def __call__(
        self, ends: Any, request: _Request, /, *, observer: "Observer | None", stop: asyncio.Event | None
    ) -> _Result: ...


Where = str | Pair | NamespaceAccess | tuple[NamespaceAccess, NamespaceAccess]
"""What a verb works on: a configured pair's name or a pair; for the verbs that take `Ends`, one namespace or two."""


def run(
    verb: Verb[_Request, _Result], where: Where, request: _Request, *, observer: "Observer | None" = None
) -> _Result:
    """Call a verb of `sbpair.operations` from code that is not asynchronous.

        result = sbpair.run(drain, "orders", DrainRequest(ledger=Path("drain.jsonl")))

    Connects, runs one event loop until the verb has returned, and closes. Ctrl-C stops the verb as its `stop` does,
    which settles or releases the messages in flight, before KeyboardInterrupt is raised.

    Args:
        verb: for example `sbpair.operations.drain`.
        where: the name of a pair in the configuration, or a `Pair`. For a verb that takes `Ends`: the namespace, or
            source and target.
        request: what to do; see the verb.
        observer: gets the events on the way, in this thread.

    Raises:
        ConfigurationError: no such pair is configured.
        TypeError: the verb works on a pair, and `where` is none; or the other way round.
        RuntimeError: an event loop runs in this thread already; await the verb there.
    """
    takes = str(next(iter(signature(verb).parameters.values())))
    given, other = ("Sides", "Ends") if isinstance(where, str | Pair) else ("Ends", "Sides")
    if other in takes and given not in takes:
        wanted = "a pair: give its name, or a Pair" if other == "Sides" else "namespaces: give a NamespaceAccess or two"
        raise TypeError(f"{getattr(verb, '__name__', verb)} works on {wanted}.")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("An event loop runs in this thread: await the verb, in a block of open_sides or open_ends.")
    return asyncio.run(_open_and_call(verb, where, request, observer))


async def _open_and_call(
    verb: Verb[_Request, _Result], where: Where, request: _Request, observer: "Observer | None"
) -> _Result:
    async with opened(where) as ends:
        stop = asyncio.Event()
        called = asyncio.ensure_future(verb(ends, request, observer=observer, stop=stop))
        try:
            return await asyncio.shield(called)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({called})
            raise


def opened(where: Where) -> "AbstractAsyncContextManager[Any]":
    """What a verb works on, opened: the sides of a pair, or the ends of namespaces."""
    match where:
        case str(name):
            from sbpair.settings import load_noticed

            return open_sides(load_noticed().pair(name), reopen=_Configured(name))
        case Pair() as pair:
            return open_sides(pair)
        case (source, target):
            return open_ends(source, target)
    return open_ends(where)


@dataclass(frozen=True, slots=True)
class _Configured:
    """Opens a configured pair in another process."""

    name: str

    def __call__(self) -> "AbstractAsyncContextManager[Sides]":
        from sbpair.settings import load

        return open_sides(load().pair(self.name), reopen=self)
