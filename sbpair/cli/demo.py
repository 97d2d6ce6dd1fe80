"""`sbpair demo`: the whole system on two embedded namespaces, with a proof at the end."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from sbpair.cli.context import Interrupted, run_async
from sbpair.cli.emulator import announced
from sbpair.cli.options import Options, command
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.serialization import Money, column
from sbpair.core.words import counted
from sbpair.render.console import say
from sbpair.render.result import CommandResult, table_of
from sbpair.settings import LOCAL_NAMESPACES

if TYPE_CHECKING:
    from sbpair.cli.demo_story import Story
    from sbpair.core.inspection.drilled import Proof
    from sbpair.emulator import EmulatorThread

PRIMARY, SECONDARY = LOCAL_NAMESPACES
DEMO_MESSAGES = 1000
FAILOVER_INTERVAL_SECONDS = 1.0
PING_INTERVAL_SECONDS = 1.0


@command(output="cli.demo:Proved")
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
    from sbpair.cli.demo_story import SEED, Stage, play
    from sbpair.emulator import EmulatorThread
    from sbpair.emulator.seed import plant

    with contextlib.ExitStack() as stack:
        emulator = stack.enter_context(EmulatorThread([PRIMARY, SECONDARY], control_port=0))
        emulator.call(lambda inner: plant(inner.namespace(PRIMARY), SEED))
        pair = embedded_pair(emulator)
        story = run_async(options, lambda stop: play(Stage(pair, emulator, messages, gateway), stop))
        result = _result(story)
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


@dataclass(frozen=True, slots=True)
class Place:
    """What was expected in a queue or subscription, and what arrived."""

    place: str = field(metadata=column("Place"))
    expected: int = field(metadata=column("Expected", right=True))
    arrived: int = field(metadata=column("Arrived", right=True))
    missing: int = field(metadata=column("Missing", right=True))
    doubled: int = field(metadata=column("Doubled", right=True))
    altered: int = field(metadata=column("Altered", right=True))
    out_of_order: int = field(metadata=column("Out of order", right=True))
    verdict: str = field(metadata=column("Verdict", colours=True))

    @classmethod
    def of(cls, proof: "Proof") -> Self:
        """The figures of a proof, which names each message that is wrong."""
        found: dict[str, Any] = asdict(proof)
        found |= {name: len(value) for name, value in found.items() if isinstance(value, tuple)}
        return cls(**found, verdict="ok" if proof.holds else "failed")


@dataclass(frozen=True, slots=True)
class Bill:
    """A month with the demo's messages and outage, at list prices."""

    operations: int
    total: Money
    currency: str
    prices_dated: str


@dataclass(frozen=True, slots=True)
class Proved:
    """What the demo found."""

    proved: bool
    messages: int
    accepted_by: Mapping[str, int]
    backlog: Mapping[str, int]
    forwarded: int
    findings: tuple[str, ...]
    bill: Bill
    places: tuple[Place, ...]
    seconds: Mapping[str, float]
    """How long each act took."""


def _result(story: "Story") -> CommandResult:
    bill = _bill(story)
    found = Proved(
        proved=story.proved,
        messages=len(story.messages),
        accepted_by=dict(story.sent),
        backlog=story.backlog,
        forwarded=story.drained.forwarded if story.drained else 0,
        findings=tuple(f"{one.code} {one.subject}: {one.message}" for one in story.findings),
        bill=bill,
        places=tuple(map(Place.of, story.proofs)),
        seconds=story.seconds,
    )
    notes = (
        *found.findings,
        f"Audit: {counted(len(found.findings), 'finding') if found.findings else 'no findings'}. "
        f"A month with this pair and one such outage: {bill.operations:,} operations, "
        f"{bill.total} {bill.currency} (list prices of {bill.prices_dated}).",
    )
    verdict = "PROVED: every message arrived exactly once, byte for byte, sessions in order."
    return CommandResult(
        found,
        (table_of(Place, found.places),),
        notes=notes,
        summary=verdict if story.proved else "NOT PROVED: see the table; every count should be 0.",
        exit=Exit.OK if story.proved and not story.findings else Exit.FAILED,
    )


def _bill(story: "Story") -> Bill:
    """The month's bill of a pair that sends what the demo sent, with the demo's share diverted."""
    from sbpair.core.cost.model import Flow, Workload, estimate
    from sbpair.core.prices import built_in, to_cents

    by_entity: dict[str, list[int]] = {}
    for message in story.messages:
        by_entity.setdefault(message.entity, []).append(len(message.payload))
    flows = tuple(Flow(entity, len(sizes), max(sizes)) for entity, sizes in by_entity.items())
    share = Fraction(story.sent["backlog"], max(1, story.sent.total()))
    found = estimate(Workload(flows=flows, diverted_share=share, outage_seconds=60), built_in())
    return Bill(found.operation_count, to_cents(found.total), found.currency, found.prices_dated)
