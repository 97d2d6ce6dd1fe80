"""Holds what arrived against what was sent: nothing lost, altered or out of order; every double has its reason."""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sbpair.amqp import sections
from sbpair.amqp.sections import Section
from sbpair.core.message import Received
from tests.soak.world import DESTINATIONS, ProcessEnd, World

CLOCK_SECONDS = 0.3
"""How much later than it was done an observer in another process may note something."""


@dataclass
class Proof:
    sent: int
    arrived: int
    left: int
    lost: list[str] = field(default_factory=list)
    """Neither arrived nor in a backlog queue."""
    unrecorded: list[str] = field(default_factory=list)
    """Arrived, but not in the ledger."""
    altered: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    """Not ours, or not where they belong."""
    disordered: list[str] = field(default_factory=list)
    doubles: Counter[str] = field(default_factory=Counter)
    """Copies beyond the first, by reason."""
    unexplained: list[str] = field(default_factory=list)
    doubles_despite_detection: int = 0

    @property
    def holds(self) -> bool:
        wrong = self.lost or self.unrecorded or self.altered or self.strange or self.disordered or self.unexplained
        return not (wrong or self.left or self.doubles_despite_detection)

    def complaints(self, *, one_ledger: bool = True) -> str:
        """The first few of everything that is wrong. Several ledgers: what `World.ledger` alone has says nothing."""
        names = ["lost", "altered", "strange", "disordered"] + ["unrecorded", "unexplained"] * one_ledger
        return ", ".join(f"{name} {getattr(self, name)[:5]}" for name in names if getattr(self, name))


def prove(world: World) -> Proof:
    """Compare both sides of the world, once everything is quiet."""
    arrived = world.arrived()
    left = world.left()
    proof = Proof(sent=len(world.sent), arrived=sum(map(len, arrived.values())), left=len(left))
    copies: dict[str, list[Received]] = defaultdict(list)
    for destination, found in arrived.items():
        for one in found:
            _inspect(world, destination, one, proof)
            copies[str(one.message_id)].append(one)
        proof.disordered += [f"{destination}/{text}" for text in _disorder(found)]
    recorded = world.recorded()
    proof.lost = sorted(set(world.sent) - set(copies) - set(left))
    proof.unrecorded = sorted(set(copies) & set(world.sent) - recorded)
    _explain_doubles(world, copies, proof)
    return proof


def _inspect(world: World, destination: str, one: Received, proof: Proof) -> None:
    sent = world.sent.get(str(one.message_id))
    if sent is None or sent.destination != destination:
        proof.strange.append(f"{destination}/{one.message_id}")
    elif _essence(one.payload) != _essence(sent.payload):
        proof.altered.append(str(one.message_id))


def _essence(payload: bytes) -> bytes:
    """The sections that belong to the application alone, byte for byte."""
    broker = (Section.HEADER, Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS)
    return b"".join(payload[span.start : span.end] for span in sections.scan(payload) if span.section not in broker)


def _disorder(found: list[Received]) -> list[str]:
    """Sessions in which a message first arrived after one that had been sent later."""
    sessions: dict[str, list[str]] = defaultdict(list)
    for one in found:
        if one.session_id is not None and one.message_id not in sessions[one.session_id]:
            sessions[one.session_id].append(str(one.message_id))
    return [
        f"{session}: {before} after {after}"
        for session, ids in sessions.items()
        for after, before in itertools.pairwise(ids)
        if before < after
    ]


def _explain_doubles(world: World, copies: dict[str, list[Received]], proof: Proof) -> None:
    attempts = Counter[str]()
    for entry in world.entries():
        attempts[entry["message_id"]] = max(attempts[entry["message_id"]], entry["attempts"])
    for message_id in set(copies) & set(world.sent):
        found = copies[message_id]
        found.sort(key=lambda one: one.enqueued_at or 0.0)
        for earlier in found[:-1]:
            reason = _reason(message_id, earlier.enqueued_at or 0.0, attempts, world.ends)
            if reason is None:
                proof.unexplained.append(message_id)
            else:
                proof.doubles[reason] += 1
        if world.sent[message_id].destination in _detecting():
            proof.doubles_despite_detection += len(found) - 1


def _reason(message_id: str, arrived_at: float, attempts: Counter[str], ends: list[ProcessEnd]) -> str | None:
    """Why a message was sent once more after this copy: it was on its way when something was cut off."""
    for end in ends:
        if message_id not in end.recorded and arrived_at <= end.at + CLOCK_SECONDS:
            return end.how
    return "connection" if attempts[message_id] > 1 else None


def _detecting() -> set[str]:
    return {name for name, settings in DESTINATIONS.items() if settings.get("requires_duplicate_detection")}
