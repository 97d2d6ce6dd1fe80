"""The laws of the service that the embedded namespaces know: lists of them, and which ones a start bends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.core.errors import UsageError
from sbpair.core.serialization import column, to_plain
from sbpair.render.result import CommandResult, Table, columns_of, table_of

if TYPE_CHECKING:
    from sbpair.emulator.laws import Form, Law


@dataclass(frozen=True, slots=True)
class NotEmulated:
    """A law that the emulator does not keep, or not wholly."""

    law: str = field(metadata=column("Law"))
    what: str = field(metadata=column("At the service"))
    instead: str = field(metadata=column("Here"))


@dataclass(frozen=True, slots=True)
class ServiceLaw:
    """A rule of the service. `evidence` is how well it is known, `asked_in` the code that keeps it, `forms` the values
    by form (by tier where these differ), `differs` what the emulator does instead."""

    law: str
    chapter: str
    sentence: str
    evidence: str
    source: str
    asked_in: str
    forms: Mapping[str, str]
    differs: str


def not_emulated() -> CommandResult:
    """All laws of which the emulator does something else."""
    from sbpair.emulator.laws import BOOK

    missing = tuple(NotEmulated(law.name, law.sentence, law.differs) for law in BOOK if law.differs)
    return CommandResult(missing, (table_of(NotEmulated, missing),))


def listed(names: Sequence[str]) -> CommandResult:
    """The laws with these names, with all that is known of them; without names all, in short.

    Raises:
        UsageError: there is no such law.
    """
    from sbpair.emulator.laws import BOOK, law_named
    from sbpair.engine.errors import EmulatorError

    try:
        laws = tuple(_shown(law) for law in ([law_named(name) for name in names] or BOOK))
    except EmulatorError as error:
        raise UsageError(f"--law: {error}.", hint="sbpair emulator --laws") from error
    more = ("source", "asked_in", "forms", "differs") if names else ()
    columns = columns_of(ServiceLaw, ("law", "sentence", "evidence", *more))
    rows = [
        row | {"forms": ", ".join(f"{form}: {value}" for form, value in row["forms"].items())} for row in to_plain(laws)
    ]
    return CommandResult(laws, (Table("", columns, rows),))


def bent(lax: Sequence[str], *, strict: bool) -> dict[str, str]:
    """The form of each law that is not to be kept strictly, by `LAW` or `LAW=other`.

    Raises:
        UsageError: there is no such law or form, or all are to be strict.
    """
    if not lax:
        return {}
    from sbpair.emulator.laws import Laws
    from sbpair.engine.errors import EmulatorError

    if strict:
        raise UsageError("--strict keeps every law of the service and excludes --lax. Nothing was started.")
    parted = {text: text.partition("=") for text in lax}
    forms = {name if form else text: form or "lax" for text, (name, _, form) in parted.items()}
    try:
        return {name: form.value for name, form in Laws(bent=forms).bent.items()}
    except EmulatorError as error:
        raise UsageError(f"--lax: {error}. Nothing was started.", hint="sbpair emulator --laws") from error


def _shown(law: "Law[object]") -> ServiceLaw:
    forms = {form.value: _text(law, form) for form in law.values} if len(law.values) > 1 else {}
    source = law.source
    return ServiceLaw(
        law.name, law.chapter, law.sentence, source.evidence.value, source.text, law.asked_in, forms, law.differs
    )


def _text(law: "Law[object]", form: "Form") -> str:
    from sbpair.service import Tier

    by_tier = {tier.value: _plain(law.value(form, tier)) for tier in Tier}
    different = len(set(by_tier.values())) > 1
    return ", ".join(f"{value} ({tier})" for tier, value in by_tier.items()) if different else by_tier[Tier.STANDARD]


def _plain(value: object) -> str:
    if isinstance(value, frozenset | tuple):
        return " ".join(sorted(map(str, value))) or "none"
    return str(getattr(value, "__name__", value))
