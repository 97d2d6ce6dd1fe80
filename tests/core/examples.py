"""Examples of any dataclass, made from its types: nothing in it, all in it, and from both each field changed alone; and
arguments for any function.

`python -m tests.core.examples` writes digests of what they say and answer to tests/approved/examples.txt; with names as
they are there, it prints them.
"""

import contextlib
import copy
import enum
import hashlib
import importlib
import inspect
import itertools
import pkgutil
import random
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import sbpair.core
from sbpair.core.access import Secret
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import (
    ConfigurationError,
    EntityNotFoundError,
    OperationTimeoutError,
    SbpairError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.inspection.audit.findings import CannotRun
from sbpair.core.message import Received
from sbpair.core.names import ByName
from sbpair.core.rewrite import Head, compose, for_backlog
from sbpair.core.transfer.filters import Where
from sbpair.core.transfer.resend import ALL_MESSAGES, Planned, Purger
from sbpair.core.transfer.verdict import Judge

APPROVED = Path(__file__).parent.parent / "approved" / "examples.txt"
_SENTENCE_END = re.compile(r"(?<=[.?!]) ")
NAMES = ("", "orders", "Orders", "billing/$deadletterqueue", "events/Subscriptions/all")
TEXTS = (
    *NAMES,
    "contoso/x-servicebus-transfer/3",
    "contoso.servicebus.windows.net",
    "sb://Fabrikam.servicebus.windows.net:5671/orders",
    "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=drain;SharedAccessKey=c2VjcmV0;EntityPath=orders",
    "90s",
    "PT1H30M",
    "2026-11-28T12:00:00Z",
    "1,000",
    "color = 'red' AND size > 3",
    "{}",
)
_SENT = compose(
    body="{}",
    message_id="m1",
    session_id="s",
    application_properties={"color": "red", "DeadLetterReason": "Orders"},
    ttl_seconds=60.0,
    scheduled_at=1_763_000_000.0,
)
MESSAGES = (
    compose(body="x" * 300, message_id="m2"),
    _SENT,
    for_backlog(_SENT, "orders"),
    for_backlog(compose(body="x", message_id="m3", ttl_seconds=5.0), "events"),
)
MIXED, CALLED, REFUSALS = 80, 40, 50
REFUSED = (CannotRun, NotImplementedError, SbpairError)
LONGEST = 1000
"""Of an answer in parts; an iterator may have no end."""
DEEPEST = 3
"""Of a dataclass in so many others there are the least and the most alone."""
FAILURES = (
    EntityNotFoundError("There is no entity 'orders'."),
    OperationTimeoutError("No answer within 30 s."),
    UnauthorizedError("Listen is needed on 'orders'."),
)


class Held(Planned):
    """With the same name in each run."""

    def __repr__(self) -> str:
        return f"Planned({len(self._meant)})"


def planned(count: int) -> Planned:
    judge = Held(Purger(ALL_MESSAGES))
    for number in range(1, count + 1):
        judge(Received(b"", number, "orders"))
    judge.settle()
    return judge


GIVEN: dict[Any, tuple[Any, ...]] = {
    Any: ("anything",),
    object: ("anything",),
    bool: (False, True),
    int: (0, 1, 2_500),
    float: (0.0, 0.5, 5_400.0),
    str: ("", "orders", "billing"),
    bytes: (b"", b"x"),
    Path: (Path("ledger.jsonl"),),
    type(None): (None,),
    datetime: (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, 3, 4, 5, tzinfo=UTC)),
    Decimal: (Decimal(0), Decimal("12.345")),
    Fraction: (Fraction(0), Fraction(37, 3)),
    SbpairError: (ConfigurationError("The key 'pair' is unknown."), *FAILURES),
    ServiceError: FAILURES,
    Secret: (Secret("key"),),
    Where: (Where("color = 'red'"), Where("color = 'red' AND size > 3")),
    Judge: (Purger(ALL_MESSAGES),),
    Planned: (planned(0), planned(2)),
}
CHANGED = (SbpairError, ServiceError, Judge, Planned)
"""Of these each example gets its own: what is told to one would be seen in all that come later."""
SEQUENCES = {list: list, set: set, frozenset: frozenset, AbstractSet: frozenset} | dict.fromkeys(
    (tuple, Sequence, Iterable, Collection), tuple
)


UNSEEN = {"Head": Head, "_Hash": object}
"""Names that only type checkers import."""


Answered = tuple[Callable[[], str], list[str]]
"""What names an example or a call, and what it says."""


class NoExampleError(TypeError):
    """Of a type that is none of the above."""


@cache
def hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, localns=UNSEEN)


def own(hint: Any, value: Any) -> Any:
    return copy.deepcopy(value) if hint in CHANGED else value


def values(hint: Any, within: tuple[type, ...] = ()) -> list[tuple[str, Any]]:
    """Examples of a type with their names: first the least, last the most of it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in GIVEN:
        return [(said(one), own(hint, one)) for one in GIVEN[hint]]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [(one.name, one) for one in hint]
    if origin is typing.Literal:
        return [(one, one) for one in arguments]
    if origin in (typing.Union, types.UnionType):
        ordered = sorted(arguments, key=lambda one: one is not type(None))
        return [pair for one in ordered for pair in values(one, within)]
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [[one for _, one in values(argument, within)] for argument in arguments]
        rows = [tuple(part[min(place, len(part) - 1)] for part in parts) for place in range(max(map(len, parts)))]
        return [(said(row), row) for row in rows]
    if origin in SEQUENCES:
        inner, kind = values(arguments[0], within), SEQUENCES[origin]
        some = [[], *([pair] for pair in inner[-4:]), *([[inner[0], inner[-1]]] if len(inner) > 1 else [])]
        return [(f"[{', '.join(name for name, _ in row)}]", kind(one for _, one in row)) for row in some]
    if origin in (dict, Mapping, ByName):
        keys, inner = values(str if origin is ByName else arguments[0], within)[-2:], values(arguments[-1], within)
        maps = [[], *([(keys[0], pair)] for pair in inner[-3:]), [*zip(keys, inner[-2:], strict=False)]]
        named = [(", ".join(f"{key[0]}: {one[0]}" for key, one in row), row) for row in maps]
        made = ByName if origin is ByName else dict
        return [(f"{{{name}}}", made((key[1], one[1]) for key, one in row)) for name, row in named]
    if isinstance(hint, type) and is_dataclass(hint) and hint not in within:
        return examples(hint, within)
    raise NoExampleError(hint)


def examples(kind: type, within: tuple[type, ...] = ()) -> list[tuple[str, Any]]:
    """Each with what is changed in it; those that the class itself refuses are left out."""
    within = (*within, kind)
    choices = {one.name: _of_field(one, hints(kind)[one.name], within) for one in fields(kind) if one.init}
    found: list[list[tuple[str, Any]]] = []
    for word, place in (("least", 0), ("most", -1)):
        base = {name: some[place][1] for name, some in choices.items()}
        changed = [
            (f"{word} {name}={shown}", base | {name: one})
            for name, some in choices.items()
            for shown, one in (some if word == "least" else some[:1])
            if one is not base[name]
        ]
        chosen = [(word, base), *(changed if len(within) < DEEPEST else [])]
        found.append([(name, one) for name, given in chosen for one in _made(kind, given)])
    least, most = found
    if not least + most:
        raise NoExampleError(kind)
    return [*least, *most[1:], *most[:1]]


class Mixer:
    """Values of any type at random, the same ones in each run; texts are names, and the words that the code knows."""

    def __init__(self, kind: Any, name: str = "") -> None:
        self._names = TEXTS if name else NAMES
        self.dice = random.Random(name or f"{kind.__module__} {kind.__name__}")
        known = vars(importlib.import_module(kind.__module__)).items()
        self._texts = sorted({text for name, text in known if name.isupper() and type(text) is str})

    def value(self, hint: Any) -> Any:
        dice, (origin, arguments) = self.dice, (typing.get_origin(hint), typing.get_args(hint))
        if hint is str:
            return dice.choice(self._texts if self._texts and dice.random() < 0.5 else self._names)
        if hint is bytes:
            return dice.choice((*MESSAGES, b"x"))
        if hint is EncodedMessage:
            return EncodedMessage(dice.choice(MESSAGES))
        if hint in GIVEN:
            return own(hint, dice.choice(GIVEN[hint]))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return dice.choice([*hint])
        if origin is typing.Literal:
            return dice.choice(arguments)
        if origin in (typing.Union, types.UnionType):
            return self.value(dice.choice(arguments))
        if origin is tuple and arguments[-1] is not Ellipsis:
            return tuple(map(self.value, arguments))
        if origin in SEQUENCES:
            return SEQUENCES[origin](self.value(arguments[0]) for _ in range(dice.randrange(4)))
        if origin in (dict, Mapping, ByName):
            key, made = (str, ByName) if origin is ByName else (arguments[0], dict)
            return made((self.value(key), self.value(arguments[-1])) for _ in range(dice.randrange(3)))
        if isinstance(hint, type) and is_dataclass(hint):
            return self.example(hint)
        if origin is Callable:
            answer = self.value(arguments[-1])
            return lambda *_: answer
        raise NoExampleError(hint)

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """For a function, or a method without the example that it is of."""
        known = typing.get_type_hints(function, localns=UNSEEN)
        found = {}
        for name, one in inspect.signature(function).parameters.items():
            if name == "self" or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                continue
            try:
                found[name] = self.value(known[name])
            except NoExampleError:
                if one.default is one.empty:
                    raise
        return found

    def example(self, kind: type) -> Any:
        for _ in range(REFUSALS):
            given = {one.name: self.of_field(one, hints(kind)[one.name]) for one in fields(kind) if one.init}
            for made in _made(kind, given):
                return made
        raise NoExampleError(kind)

    def of_field(self, one: Field[Any], hint: Any) -> Any:
        try:
            return self.value(hint)
        except NoExampleError:
            return _default(one)


def _default(one: Field[Any]) -> Any:
    if one.default is not MISSING:
        return one.default
    if one.default_factory is not MISSING:
        return one.default_factory()
    raise NoExampleError(one.name)


def _of_field(one: Field[Any], hint: Any, within: tuple[type, ...]) -> list[tuple[str, Any]]:
    try:
        return values(hint, within)
    except NoExampleError:
        return [("", _default(one))]


def _made(kind: type, given: Mapping[str, Any]) -> Iterator[Any]:
    try:
        yield kind(**given)
    except (ValueError, SbpairError):
        return


def said(value: Any) -> str:
    """One line of it."""
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(said(getattr(value, one.name)) for one in fields(value))})"
    if isinstance(value, enum.Enum | Field):
        return value.name
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{said(key)}: {said(one)}' for key, one in value.items())}}}"
    if isinstance(value, set | frozenset):
        return f"[{', '.join(sorted(map(said, value)))}]"
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return f"[{', '.join(map(said, value))}]"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def asked_of(kind: type) -> list[str]:
    """What an example says without being told anything: properties and methods that need no argument."""
    found = []
    for name, value in vars(kind).items():
        if isinstance(value, property) or (
            inspect.isfunction(value)
            and all(one.default is not one.empty for one in [*inspect.signature(value).parameters.values()][1:])
        ):
            found += [] if name.startswith("_") else [name]
    return found


def answer(ask: Callable[[], Any]) -> list[str]:
    """In parts: sentences, rows, figures."""
    try:
        found = ask()
        found = [*islice(found, LONGEST)] if isinstance(found, Iterator | tuple | list) else [found]
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, *REFUSED) as error:
        return [f"{type(error).__name__}: {error if isinstance(error, SbpairError) else ''}"]
    parts = [_sentences(one) if isinstance(one, str) else [said(one)] for one in found]
    return [line for part in itertools.chain(*parts) for line in part.splitlines()]


def _sentences(text: str) -> list[str]:
    around = [] if text == text.strip() else ["with spaces around it"]
    return [*_SENTENCE_END.split(text.strip()), *around]


def answers(example: Any) -> dict[str, list[str]]:
    """What an example says without being told anything; not what examples of others would say themselves."""

    def asked(name: str) -> Any:
        found = getattr(example, name)
        found = found() if inspect.ismethod(found) else found
        found = [*islice(found, LONGEST)] if isinstance(found, Iterator | tuple | list) else [found]
        shown = [one for one in found if not is_dataclass(one) or type(one).__name__.endswith("Row")]
        return shown if len(shown) == len(found) else []

    return {name: answer(partial(asked, name)) for name in asked_of(type(example))}


def modules() -> Iterator[types.ModuleType]:
    for name in sorted(one.name for one in pkgutil.walk_packages(sbpair.core.__path__, "sbpair.core.")):
        yield importlib.import_module(name)


def kinds(module: types.ModuleType) -> Iterator[type]:
    """The dataclasses that say something."""
    for kind in vars(module).values():
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__:
            yield from [kind] if asked_of(kind) and not kind.__name__.startswith("_") else []


def told(kind: type) -> Iterator[Answered]:
    """Each example with what it says: those with one field changed, and some with all of them changed."""
    mixer = Mixer(kind)
    mixed = (mixer.example(kind) for _ in range(MIXED))
    for label, example in itertools.chain(examples(kind), (("", one) for one in mixed)):
        lines = [f"{name}: {part}" for name, parts in answers(example).items() for part in parts]
        yield partial(str, label) if label else partial(said, example), lines


def functions(module: types.ModuleType) -> Iterator[Callable[..., Any]]:
    """The public functions, and the methods of dataclasses that are told something."""
    for name, one in vars(module).items():
        if name.startswith("_") or getattr(one, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(one):
            yield one
        elif isinstance(one, type) and is_dataclass(one):
            named = [name for name in vars(one) if not name.startswith("_") and name not in asked_of(one)]
            yield from (getattr(one, name) for name in named if callable(getattr(one, name)))


def called(
    function: Callable[..., Any], mixing: Callable[[type, str], Mixer] = Mixer, calls: int = CALLED
) -> Iterator[Answered]:
    """Calls with arguments of all kinds, and the answers."""
    owner = getattr(importlib.import_module(function.__module__), function.__qualname__.split(".")[0])
    mixer = mixing(owner, f"{function.__module__} {function.__qualname__}")
    for _ in range(calls):
        given = mixer.arguments(function)
        first = [mixer.example(owner)] if isinstance(owner, type) and inspect.isfunction(function) else []
        yield partial(_call, function, first, given), answer(partial(function, *first, **given))


def _call(function: Callable[..., Any], first: Sequence[Any], given: Mapping[str, Any]) -> str:
    named = [f"{name}={said(one)}" for name, one in given.items()]
    return f"{function.__name__}({', '.join([*map(said, first), *named])})"


def subjects(module: types.ModuleType) -> dict[str, Iterator[Answered]]:
    """What can be asked in a module of the core, by name."""
    place = module.__name__.removeprefix("sbpair.core.")
    asked = {f"{place} {kind.__name__}": told(kind) for kind in kinds(module)}
    return asked | {f"{place} {one.__qualname__}()": called(one) for one in functions(module)}


def current(module: types.ModuleType) -> dict[str, list[Answered]]:
    found = {}
    for name, answered in subjects(module).items():
        with contextlib.suppress(NoExampleError):
            found[name] = [*answered]
    return found


def digest(answered: Iterable[Answered]) -> str:
    return hashlib.sha256("\n".join(line for _, lines in answered for line in lines).encode()).hexdigest()[:16]


def main(names: Sequence[str]) -> None:
    from tests.core import walks  # which draws its arguments here

    found = {name: one for module in modules() for name, one in current(module).items()}
    found |= {name: [*one] for name, one in walks.subjects().items()}
    if not names:
        APPROVED.write_text("".join(f"{name} {digest(answered)}\n" for name, answered in found.items()), "utf-8")
    for label, lines in itertools.chain.from_iterable(found[name] for name in names):
        print(label(), *(f"  {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
