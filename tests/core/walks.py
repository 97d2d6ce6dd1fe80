"""Drawn walks of the core's machines: what a thing with a state answers and shows, call after call.

All public methods of a machine are called, with arguments drawn from their types, names that come again, and a clock
that goes on. What a method cannot be told so is drawn from `GIVEN_TO`. The pump's machine has histories of its own.
`python -m tests.core.examples` approves the digests with the others, and prints a walk by its name.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

from sbpair.core import errors
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.core.failover.machine import POLICIES, EntityFailover, Policy
from sbpair.core.failover.sending import Rotation, SessionHolds
from sbpair.core.message import MessageState, Received
from sbpair.core.pairing import Coupling
from sbpair.core.retry import TokenBucket
from sbpair.core.transfer.order import LockPatience, Numbers, OrderGap, QueueOrder
from sbpair.core.transfer.pace import Pace
from sbpair.core.transfer.state import LockClock
from sbpair.core.transfer.summary import Watch
from tests.core.cost import bills
from tests.core.examples import (
    SEQUENCES,
    UNSEEN,
    Answered,
    Mixer,
    NoExampleError,
    answers,
    called,
    functions,
    kinds,
    modules,
    own,
    said,
)
from tests.core.inspection import worlds
from tests.core.replication.histories import History as SessionHistory
from tests.core.transfer import ends, looks, runs
from tests.core.transfer.histories import History as PumpHistory

WALKS, STEPS = 36, 60
MACHINES = (
    EntityFailover,
    SessionHolds,
    Rotation,
    Coupling,
    TokenBucket,
    Pace,
    Numbers,
    QueueOrder,
    LockPatience,
    LockClock,
    Watch,
)
HISTORIES, TOGETHER = 300, 50

CALLS = 60
ROUGH = (
    "access",
    "cost.model",
    "cost.result",
    "cost.usage",
    "editing",
    "encoded",
    "errors",
    "prices",
    "redact",
    "rules",
    "summary",
    "transfer.explained",
    "transfer.filters",
    "transfer.peeked",
    "transfer.resend",
    "transfer.triage",
)
"""Modules that take what people type, and messages of strangers."""
QUIET = (
    "backlog",
    "failover.measured",
    "inspection.status",
    "prices",
    "transfer.conclusion",
    "transfer.filters",
    "transfer.ledger",
    "transfer.report",
    "transfer.resend",
    "transfer.restored",
    "transfer.summary",
    "transfer.verdict",
)
WORDS = ("orders", "reachable", "empty", "count", "stop", "filtered out", "locked elsewhere", "denied", "unreachable")
BODIES = (
    b"\0Sw\xa1\5hello",
    b"\0Sv\xc0\4\1\xa1\1a",
    b"\0Sv\xc0\4\1\xa1\1a\0Sv\xc0\4\1\xa1\1b",
    b"\0Su\xa0\2{}",
    b"\0Su\xa0\2\xff\xfe",
    b"\0Su\xa0\1a\0Su\xa0\1b",
)
"""AMQP values, sequences, data that is text or is not, and several of them."""

NUMBERS = (1, 2, 3, 5, 8, 13, 40)
LANES = (("orders", "a"), ("orders", "b"))
QUEUES = ("q/0", "q/1", "q/2")
GIVEN_TO: dict[Any, tuple[Any, ...]] = {
    float: (0.0, 0.3, 1.0, 4.0, 30.0, 70.0),
    int: NUMBERS,
    str: QUEUES,
    OrderGap: tuple(OrderGap(lane, foreign) for lane in LANES for foreign in (False, True)),
    Policy: tuple(POLICIES.values()),
    Received: tuple(
        Received(b"", number, "q/0", state=state)
        for number in NUMBERS
        for state in (MessageState.ACTIVE, *MessageState)
    ),
    ServiceError: (
        errors.ConnectionLostError("silence"),
        errors.OperationTimeoutError("late"),
        errors.ServerBusyError("busy"),
        errors.EntityDisabledError("disabled"),
        errors.QuotaExceededError("full"),
        errors.UnauthorizedError("no right"),
        errors.EntityNotFoundError("not there"),
        errors.ArgumentRefusedError("refused"),
    ),
}
PAUSES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0, 61.0)


class Walk(Mixer):
    """One machine, and what happens to it."""

    def __init__(self, kind: type, number: int) -> None:
        super().__init__(kind, f"walk {kind.__module__} {kind.__name__} {number}")
        self.now = 100.0
        self.pauses = PAUSES[: self.dice.choice((4, 6, len(PAUSES)))]
        self.tickets = [0]
        """Numbers that the machine has answered, to be handed back."""
        self.machine = self.made(kind)
        self.methods = [
            getattr(self.machine, name)
            for name, one in vars(kind).items()
            if inspect.isfunction(one) and not name.startswith("_")
        ]

    def made(self, kind: type) -> Any:
        while True:
            with suppress(SbpairError):
                return kind(**self.told(kind.__init__, 0.0 if is_dataclass(kind) else 0.5))

    def value(self, hint: Any) -> Any:
        return own(hint, self.dice.choice(GIVEN_TO[hint])) if hint in GIVEN_TO else super().value(hint)

    def told(self, function: Callable[..., Any], optional: float = 0.5) -> dict[str, Any]:
        """Arguments by name; `optional`: how many of those that need not be given."""
        known, found = get_type_hints(function, localns=UNSEEN), {}
        for name, one in inspect.signature(function).parameters.items():
            if name == "self" or (one.default is not one.empty and self.dice.random() >= optional):
                continue
            if name == "now":
                found[name] = self.now
            elif name in ("ticket", "started"):
                found[name] = self.dice.choice(self.tickets[-2:])
            elif name == "draw":
                found[name] = self.dice.random()
            elif name in ("now_utc", "locked_until"):
                found[name] = self.now + self.dice.choice((-20.0, 0.0, 7.0, 50.0))
            elif name in ("lane", "session"):
                found[name] = self.dice.choice(LANES)
            else:
                found[name] = self.value(known[name])
        return found

    def lines(self) -> Iterator[str]:
        yield self.shown()
        for _ in range(STEPS):
            self.now += self.dice.choice(self.pauses)
            method = self.dice.choice(self.methods)
            given = self.told(method)
            try:
                answer = method(**given)
            except (ArithmeticError, LookupError, StopIteration, ValueError) as error:  # what never began does not end
                answer = type(error).__name__
            answer = [*answer] if isinstance(answer, Iterator) else answer
            if type(answer) is int:
                self.tickets.append(answer)
            named = ", ".join(f"{name}={said(one)}" for name, one in given.items())
            yield f"{method.__name__}({named}): {said(answer)}; {self.shown()}"

    def shown(self) -> str:
        """What can be seen of it."""
        names = [name for name, one in inspect.getmembers(type(self.machine)) if isinstance(one, property)]
        names += [name for name in getattr(self.machine, "__dict__", {}) if not name.startswith("_")]
        names += [name for name in getattr(type(self.machine), "__slots__", ()) if not name.startswith("_")]
        return ", ".join(f"{name}={said(getattr(self.machine, name))}" for name in names)


def walks(kind: type) -> Iterator[Answered]:
    for number in range(WALKS):
        yield partial(str, f"walk {number}"), [*Walk(kind, number).lines()]


class Rough(Mixer):
    """Texts as people write them, and messages with every kind of body."""

    def value(self, hint: Any) -> Any:
        found, dice = super().value(hint), self.dice
        if hint is str:
            return dice.choice((found, found.upper(), found.title(), f" {found} ", f"{found}/", "LOCALHOST:5672"))
        return dice.choice((found, *BODIES)) if hint is bytes else found


class Quiet(Mixer):
    """Little happened: what all rules out, in which most branches begin, is rare among values of all kinds."""

    def value(self, hint: Any) -> Any:
        dice, arguments = self.dice, get_args(hint)
        if hint is int:
            return dice.choice((0, 0, 0, 1, 2, 300_000))
        if hint is str:
            return dice.choice((super().value(hint), *WORDS))
        if type(None) in arguments and dice.random() < 0.5:
            return None
        kind = SEQUENCES.get(get_origin(hint))
        return kind() if kind is not None and dice.random() < 0.6 else super().value(hint)


def quiet(module: ModuleType) -> Iterator[Answered]:
    """Functions, methods and what examples of classes say."""
    for function in functions(module):
        with suppress(NoExampleError):
            yield from called(function, Quiet, CALLS)
    for kind in kinds(module):
        with suppress(NoExampleError):
            mixer = Quiet(kind, f"quiet {kind.__module__} {kind.__name__}")
            for example in (mixer.example(kind) for _ in range(CALLS)):
                lines = [f"{name}: {part}" for name, parts in answers(example).items() for part in parts]
                yield partial(said, example), lines


def rough(module: ModuleType) -> Iterator[Answered]:
    for function in functions(module):
        with suppress(NoExampleError):
            yield from called(function, Rough, CALLS)


def lived(history: Callable[[int], Any], seeds: range) -> Iterator[Answered]:
    for seed in seeds:
        yield partial(str, f"history {seed}"), history(seed).live()


def subjects() -> Mapping[str, Iterator[Answered]]:
    """By name."""
    found = {f"walk {kind.__module__.removeprefix('sbpair.core.')} {kind.__name__}": walks(kind) for kind in MACHINES}
    for name, history in (("transfer.machine", PumpHistory), ("replication.ownership", SessionHistory)):
        for first in range(0, HISTORIES, TOGETHER):
            found[f"walk {name} {first}"] = lived(history, range(first, first + TOGETHER))
    for module in modules():
        if (place := module.__name__.removeprefix("sbpair.core.")) in ROUGH:
            found[f"walk {place} rough"] = rough(module)
        if place in QUIET:
            found[f"walk {place} quiet"] = quiet(module)
    found |= worlds.subjects() | runs.subjects() | ends.subjects() | looks.subjects()
    return found | bills.subjects()
