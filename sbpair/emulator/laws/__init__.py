"""The book of laws: what the service does, where that is known from, and how the embedded namespace keeps it.

    namespace = Namespace("contoso", laws=Laws(Tier.STANDARD, {"partitioned-batch-key": "lax"}), clock=clock)
    namespace.laws.partitioned_batch_key        # the value in force: a bool, a number, a set
    Laws.partitioned_batch_key                  # the law: sentence, source, evidence

A law stands in the chapter of its subject. It is in the book only with a test that is marked with its name.
"""

from collections.abc import Mapping

from sbpair.emulator.laws.entities import EntityLaws, ForwardingLaws, PartitionLaws, QuotaLaws, SizeLaws
from sbpair.emulator.laws.law import Evidence, Form, Law
from sbpair.emulator.laws.management import AccessLaws, ManagementLaws, RegionLaws
from sbpair.emulator.laws.messages import LinkRules, MessageLaws, SessionLaws, TransactionLaws
from sbpair.engine.errors import EmulatorError
from sbpair.service import Tier

__all__ = ["BOOK", "Evidence", "Form", "Law", "Laws", "law_named"]


class Laws(
    SizeLaws,
    QuotaLaws,
    EntityLaws,
    MessageLaws,
    SessionLaws,
    PartitionLaws,
    LinkRules,
    TransactionLaws,
    ForwardingLaws,
    AccessLaws,
    ManagementLaws,
    RegionLaws,
):
    """The laws of one namespace: every law of the book as an attribute, with the value in force.

    `bent` says by name which are not kept strictly: "lax", or "other" for the other form that the rule may have.

    Raises:
        EmulatorError: there is no such law, or it has no such form.
    """

    def __init__(self, tier: Tier = Tier.STANDARD, bent: Mapping[str, str] | None = None) -> None:
        self.tier = tier
        self.bent = {law_named(name).name: _form(law_named(name), form) for name, form in (bent or {}).items()}
        for law in BOOK:
            self.__dict__[law.attribute] = law.value(self.bent.get(law.name, Form.STRICT), tier)


BOOK: tuple[Law[object], ...] = tuple(
    law for chapter in Laws.__bases__ for law in vars(chapter).values() if isinstance(law, Law)
)
"""All laws, by chapter."""
_BY_NAME = {law.name: law for law in BOOK}


def law_named(name: str) -> Law[object]:
    """A law by its name.

    Raises:
        EmulatorError: there is none.
    """
    law = _BY_NAME.get(name.replace("_", "-"))
    if law is None:
        raise EmulatorError(f"there is no law {name!r}; `sbpair emulator --laws` lists them")
    return law


def _form(law: Law[object], form: str) -> Form:
    known = [one.value for one in law.values]
    if form not in known:
        raise EmulatorError(f"the law {law.name!r} has no form {form!r}; it has {', '.join(known)}")
    return Form(form)
