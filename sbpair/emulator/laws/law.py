"""What a law of the service is: a sentence with its source, and what the embedded namespace makes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload

from sbpair.service import Tier

T = TypeVar("T")
ANY_NUMBER = 2**31 - 1


class Evidence(StrEnum):
    """How well a law is known, the strongest first."""

    DOCUMENTED = "documented"
    TESTED = "tested"
    """A live test of one of Microsoft's clients asserts it."""
    RECORDED = "recorded"
    """Seen in a recorded dialogue with the service."""
    REPORTED = "reported"
    """Seen in a public thread."""
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    """No source says what the service does; the law says what the embedded namespace does."""


@dataclass(frozen=True, slots=True)
class LawSource:
    """Where a law is known from: titles of public documents, names of live tests, public threads."""

    evidence: Evidence
    text: str


documented = partial(LawSource, Evidence.DOCUMENTED)
tested = partial(LawSource, Evidence.TESTED)
recorded = partial(LawSource, Evidence.RECORDED)
reported = partial(LawSource, Evidence.REPORTED)
inferred = partial(LawSource, Evidence.INFERRED)
unknown = partial(LawSource, Evidence.UNKNOWN)


class Form(StrEnum):
    """How a namespace keeps a law."""

    STRICT = "strict"
    """As the service does, as far as known; the default."""
    LAX = "lax"
    """Not at all: what the service refuses is accepted."""
    OTHER = "other"
    """In the other form that the service's rule may have, where the evidence leaves two."""


class ByTier(Generic[T]):
    """A value for each tier."""

    def __init__(self, basic: T, standard: T, premium: T) -> None:
        self._values: Mapping[Tier, T] = {Tier.BASIC: basic, Tier.STANDARD: standard, Tier.PREMIUM: premium}

    def of(self, tier: Tier) -> T:
        return self._values[tier]


class Law(Generic[T]):
    """One rule of the service.

    It is an attribute of a chapter; on `Laws`, which a namespace has, the same attribute is the value in force.

    Args:
        sentence: what holds at the service.
        source: where that is known from, and how well.
        asked_in: the file below `sbpair/emulator` and the function or class that keeps the law; "" where none does.
        differs: what the embedded namespace does instead, where it does not keep the law or not wholly.
        forms: the value by form; `strict` always, `lax` and `other` if the law can be bent so.
    """

    name = attribute = chapter = ""

    def __init__(
        self, sentence: str, source: LawSource, asked_in: str = "", *, differs: str = "", **forms: T | ByTier[T]
    ) -> None:
        self.sentence, self.source, self.asked_in, self.differs = sentence, source, asked_in, differs
        self.values = {Form(form): value for form, value in forms.items()}

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute, self.chapter = attribute, owner.__module__.rpartition(".")[2]
        self.name = attribute.replace("_", "-")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        # The values are in the instance's own dictionary, which comes before this.
        return self if instance is None else instance.__dict__[self.attribute]

    def value(self, form: Form, tier: Tier) -> T:
        """What holds in a namespace of that tier that keeps the law in that form (KeyError: it has no such form)."""
        value = self.values[form]
        return value.of(tier) if isinstance(value, ByTier) else value


def limit(sentence: str, source: LawSource, asked_in: str, strict: T | ByTier[T], lax: T) -> Law[T]:
    """A number that is the limit, or, if the law is lax, one beyond all that matters."""
    return Law[T](sentence, source, asked_in, strict=strict, lax=lax)


def rule(sentence: str, source: LawSource, asked_in: str, *, differs: str = "", **other: bool) -> Law[bool]:
    """A law that is kept or, if it is lax, not."""
    return Law[bool](sentence, source, asked_in, differs=differs, strict=True, lax=False, **other)


def fixed(sentence: str, source: LawSource, asked_in: str = "", *, differs: str = "") -> Law[Any]:
    """A law that nothing bends: it follows from how the broker works, or is not kept at all (`differs`)."""
    return Law[Any](sentence, source, asked_in, differs=differs, strict=None)
