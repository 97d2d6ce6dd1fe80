"""`sbpair demo`: the whole system on two embedded namespaces, with a proof at the end."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import Interrupted, run_async
from sbpair.cli.emulator import announced
from sbpair.cli.options import Options, command
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.words import counted
from sbpair.render.console import say
from sbpair.render.result import CommandResult, table_of
from sbpair.settings import LOCAL_NAMESPACES

if TYPE_CHECKING:
    from sbpair.cli.demo_story import Proved
    from sbpair.emulator import EmulatorThread

PRIMARY, SECONDARY = LOCAL_NAMESPACES
DEMO_MESSAGES = 1000
FAILOVER_INTERVAL_SECONDS = 1.0
PING_INTERVAL_SECONDS = 1.0


@command(output="cli.demo_story:Proved")
def demo(
    options: Options,
    messages: Annotated[int, typer.Option(min=100, max=100_000, help="How many messages are sent.")] = DEMO_MESSAGES,
    gateway: Annotated[
        bool, typer.Option(help="Send with plain clients to a gateway (`sbpair help gateway`), not as a pair.")
    ] = False,
    keep: Annotated[bool, typer.Option(help="Leave the namespaces running afterwards, until Ctrl-C.")] = False,
) -> CommandResult:
    """Play through an outage on two embedded namespaces: failover, backlog, drain, audit, bill, proof.

    Needs no configuration and no Azure account, and leaves nothing behind. Exit code 0 only if every message arrived
    exactly once, byte for byte.

    \b
    Examples:
      sbpair demo
      sbpair demo --gateway
      sbpair demo --keep
    """
    from sbpair.cli.demo_story import SEED, DemoStage, play
    from sbpair.emulator import EmulatorThread
    from sbpair.emulator.seed import plant

    with contextlib.ExitStack() as stack:
        emulator = stack.enter_context(EmulatorThread([PRIMARY, SECONDARY], control_port=0))
        emulator.call(lambda inner: plant(inner.namespace(PRIMARY), SEED))
        pair = embedded_pair(emulator)
        result = _result(run_async(options, lambda stop: play(DemoStage(pair, emulator, messages, gateway), stop)))
        if not sys.stdout.isatty() and not options.quiet:
            say(result.summary)  # a pipe has the rows; a viewer wants the verdict
        if keep:
            stack.enter_context(_kept(emulator))
            with contextlib.suppress(Interrupted):
                run_async(options, lambda stop: stop.wait())
        return result


def embedded_pair(emulator: "EmulatorThread") -> Pair:
    """The pair of two running embedded namespaces, with intervals short enough to watch."""
    intervals = SendAvailabilityOptions(
        failover_interval_seconds=FAILOVER_INTERVAL_SECONDS, ping_interval_seconds=PING_INTERVAL_SECONDS
    )
    return Pair("demo", embedded_access(emulator, PRIMARY), embedded_access(emulator, SECONDARY), intervals)


def embedded_access(emulator: "EmulatorThread", name: str) -> NamespaceAccess:
    """How a running embedded namespace is reached."""
    text = emulator.connection_string(name)
    return NamespaceAccess(
        label=name,
        host=host_of(text),
        auth=AuthMethod.CONNECTION_STRING,
        connection_string=Secret(text),
        ca_file=str(emulator.ca_path),
    )


@contextlib.contextmanager
def _kept(emulator: "EmulatorThread") -> Iterator[None]:
    """Announce the namespaces as the pair `local` while they are kept."""
    names = [PRIMARY, SECONDARY]
    with announced(emulator, names):
        for name in names:
            say(f"{name}  {emulator.connection_string(name)}")
        say("The namespaces keep running as the pair `local`; try `sbpair audit local`. Ctrl-C ends them.")
        yield


def _result(found: "Proved") -> CommandResult:
    from sbpair.cli.demo_story import DemoPlace

    bill = found.bill
    notes = (
        *found.findings,
        f"Audit: {counted(len(found.findings), 'finding') if found.findings else 'no findings'}. "
        f"A month with this pair and one such outage: {bill.operations:,} operations, "
        f"{bill.total} {bill.currency} (list prices of {bill.prices_dated}).",
    )
    verdict = "PROVED: every message arrived exactly once, byte for byte, sessions in order."
    return CommandResult(
        found,
        (table_of(DemoPlace, found.places),),
        notes=notes,
        summary=verdict if found.proved else "NOT PROVED: see the table; every count should be 0.",
        exit=Exit.OK if found.proved and not found.findings else Exit.FAILED,
    )
