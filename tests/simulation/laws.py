"""Histories in which a law of the namespaces is bent, one law after the other: `python -m tests.simulation --laws`.

The movers may count on no law that is only inferred. Where one loses, doubles, overtakes or stalls once a law is lax,
or has the other form that the service's rule may have, it does count on it: that is said with the law's sentence and
its evidence. Three of four worlds have partitioned queues, in which most of the laws that were learnt from refusals
hold.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from sbpair.emulator.laws import BOOK, Form, law_named
from tests.simulation.plan import Plan

ORDINARY_WORLDS = 4
"""One in so many has no partitioned queue."""
Bent = tuple[tuple[str, str], ...]
FLIPS: tuple[tuple[str, str], ...] = tuple(
    (law.name, form.value) for law in BOOK for form in law.values if form is not Form.STRICT
)
_PROVISIONED = (
    "backlog queues are provisioned with the largest count there is; a service that takes no more than 2,000 refuses "
    "to make them, before any message is there"
)
EXPLAINED = {("max-delivery-count", "other"): _PROVISIONED}
"""What the product does count on, and why nothing can be lost by it."""
_MEANS = {
    "lost": "loss",
    "nowhere": "loss",
    "never arrived": "loss",
    "never moved": "loss",
    "twice": "doubles",
    "no answer was lost": "doubles",
    "sent again": "doubles",
    "overtaken": "order",
    "before": "order",
    "wait": "stall",
    "still in the backlog": "stall",
    "could not confirm": "stall",
    "left by": "stall",
}
"""By words of a violation: what the law keeps from happening."""


class Lived(Protocol):
    """What became of one history."""

    seed: int
    failure: str


Many = Callable[[Sequence[int], float, int, Bent], Iterator[Lived]]


def bent_plan(plan: Plan, bent: Bent) -> Plan:
    """The plan under these laws, with partitioned queues in most worlds."""
    return replace(plan, laws=bent, partitioned=plan.seed % ORDINARY_WORLDS != 0)


def flip(hours: float, seeds: Sequence[int], processes: int, many: Many, names: Iterable[str] = ()) -> int:
    """Live through the seeds under all laws as they are, and then with each of the named (all) bent; print what broke.

    1 if any history broke a rule.
    """
    chosen = {law_named(name).name for name in names}
    forms = [("", ""), *(pair for pair in FLIPS if not chosen or pair[0] in chosen)]
    held = 0
    for name, form in forms:
        bent: Bent = ((name, form),) if name else ()
        if (name, form) in EXPLAINED:
            held += 1
            print(f"{name} {form}: explained: {EXPLAINED[name, form]}", flush=True)
            continue
        failed = [told for told in many(seeds, hours, processes, bent) if told.failure]
        held += not failed
        lines = (
            explain(name, form, failed[0], hours)
            if failed
            else (f"{name or 'all laws kept'} {form}".rstrip() + ": held",)
        )
        print("\n".join(lines), flush=True)
    print(f"{held} of {len(forms)} held, {len(forms) - 1} of them with a bent law, in {len(seeds)} histories each.")
    return 0 if held == len(forms) else 1


def explain(name: str, form: str, lived: Lived, hours: float) -> Iterator[str]:
    """What broke, the law that was bent then, and the line that replays it."""
    what = next((kind for words, kind in _MEANS.items() if words in lived.failure), "another rule")
    yield f"{name or 'all laws kept'} {form}".rstrip() + f": {what}: {lived.failure}"
    if name:
        law = law_named(name)
        yield f"  Assumed: {law.sentence} ({law.source.evidence}: {law.source.text})"
    bend = f"--bend {name}={form}" if name else "--bend"
    yield f"  Replay: python -m tests.simulation --seed {lived.seed} --hours {hours:g} {bend}"
