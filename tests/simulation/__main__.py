"""Lives through histories of simulated time: `python -m tests.simulation --seed N [--hours H] [--seeds COUNT]`.

Ends with 1 if an invariant was broken; then it says what was broken, the shortest schedule of troubles with which it
still breaks, and the line that replays it.
"""

import argparse
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from tests.simulation import plan as plans
from tests.simulation import world
from tests.simulation.defects import DEFECTS, hunt, misfit, plant
from tests.simulation.laws import Bent, bent_plan, flip

_clock = time.perf_counter  # before a history takes it over
SEEDS_BETWEEN_LINES = 100
"""A long campaign says so often how far it is."""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one history."""

    seed: int
    digest: str
    simulated_seconds: float
    messages: int
    struck: int
    """Troubles that met something they can strike."""
    failure: str
    last: tuple[str, ...]
    cpu_seconds: float
    misfit: str = ""
    """What of the planted defect does not fit the product any more: then nothing else counts."""


_bent: Bent | None = None
"""Laws that are bent in the histories that begin from now on; None: worlds as their seeds draw them."""


def drawn(seed: int, hours: float) -> plans.Plan:
    plan = plans.draw(seed, hours)
    return plan if _bent is None else bent_plan(plan, _bent)


def live(seed: int, hours: float, *, only: Sequence[int] | None = None, defect: str = "", follow: bool = False) -> Told:
    """One history, in a process of its own."""
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe(duplex=False)
    child = context.Process(target=_live, args=(far, seed, hours, only, defect, follow))
    child.start()
    far.close()
    try:
        told: Told = near.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"The history of seed {seed} ended with {child.exitcode} and said nothing.") from None
    child.join()
    return told


def _live(answer, seed, hours, only, defect, follow) -> None:  # type: ignore[no-untyped-def]
    plan = chosen(drawn(seed, hours), only)
    if defect:
        plant(defect)
    began = time.process_time()
    lived = world.live(plan, follow=print if follow else None)
    failure = "" if lived.failure is None else f"{type(lived.failure).__name__}: {lived.failure}"
    if follow and lived.failure is not None:
        import traceback

        traceback.print_exception(lived.failure)
    told = Told(
        seed,
        lived.trace.digest,
        lived.loop.time(),
        len(lived.truth.sent),
        lived.struck,
        failure,
        tuple(lived.trace.last[-25:]),
        time.process_time() - began,
        misfit(lived.failure) if defect else "",
    )
    answer.send(told)
    sys.stdout.flush()
    os._exit(0)  # whatever the dead processes still hold is not to be tidied up


def chosen(plan: plans.Plan, only: Sequence[int] | None) -> plans.Plan:
    """The plan with these of its troubles (by place) alone."""
    return plan if only is None else replace(plan, troubles=tuple(plan.troubles[place] for place in only))


def shortened(seed: int, hours: float, defect: str = "") -> list[int]:
    """The troubles that the failure needs: halves, quarters, ... are left out as long as it still fails."""
    places = list(range(len(drawn(seed, hours).troubles)))
    size = max(1, len(places) // 2)
    while places and size >= 1:
        for start in range(0, len(places), size):
            rest = places[:start] + places[start + size :]
            if live(seed, hours, only=rest, defect=defect).failure:
                places = rest
                break
        else:
            size //= 2
    return places


def explain(told: Told, hours: float, defect: str = "") -> Iterator[str]:
    places = shortened(told.seed, hours, defect)
    needed = chosen(drawn(told.seed, hours), places)
    short = live(told.seed, hours, only=places, defect=defect)
    yield f"seed {told.seed}: {told.failure}"
    yield from (f"  {name} = {value}" for name, value in plans.told(needed))
    yield from (f"  {trouble}" for trouble in needed.troubles)
    yield "  The last that happened:"
    yield from (f"    {line}" for line in short.last)
    only = f" --only={','.join(map(str, places))}"
    also = f" --defect {defect}" if defect else ""
    bend = "" if _bent is None else " --bend " + " ".join(f"{name}={form}" for name, form in _bent)
    yield f"Replay: python -m tests.simulation --seed {told.seed} --hours {hours:g}{only}{also}{bend}".rstrip()


def many(seeds: Sequence[int], hours: float, processes: int, defect: str = "") -> Iterator[Told]:
    one = partial(live, hours=hours, defect=defect)
    if processes == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, seeds)


def many_bent(seeds: Sequence[int], hours: float, processes: int, bent: Bent) -> Iterator[Told]:
    global _bent  # the histories are lived in processes that are made after this
    _bent = bent
    return many(seeds, hours, processes)


def main() -> int:
    global _bent
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=_seed, default=0, help="the first seed, or `random`")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the first on")
    parser.add_argument(
        "--hours", type=float, default=0.5, help="simulated hours in which messages come and trouble strikes"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more seeds after so long")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=_places, help="only these troubles of the plan")
    parser.add_argument("--defect", choices=sorted(DEFECTS), default="", help="plant this defect first")
    parser.add_argument(
        "--defects",
        nargs="*",
        choices=sorted(DEFECTS),
        metavar="NAME",
        help="plant these in turn (all): what finds them",
    )
    parser.add_argument("--laws", nargs="*", metavar="LAW", help="bend these laws in turn (all): what counts on one")
    parser.add_argument("--bend", nargs="*", type=_bend, metavar="LAW=FORM", help="live under bent laws")
    parser.add_argument("--follow", action="store_true", help="print everything that happens")
    options = parser.parse_args()
    if options.laws is not None:
        seeds = range(options.seed, options.seed + options.seeds)
        return flip(options.hours, seeds, options.processes, many_bent, options.laws)
    _bent = None if options.bend is None else tuple(options.bend)
    if options.defects is not None:
        return hunt(options.hours, options.seeds, options.processes, many, options.defects)
    if options.only is not None or options.follow:
        told = live(options.seed, options.hours, only=options.only, defect=options.defect, follow=options.follow)
        _refuse_misfit(told, options.defect)
        print("\n".join(told.last if told.failure else ()))
        print(f"seed {told.seed}: {told.failure or 'all holds'} (digest {told.digest})")
        return 1 if told.failure else 0
    return _campaign(options)


def _seed(text: str) -> int:
    return secrets.randbelow(10**9) if text == "random" else int(text)


def _bend(text: str) -> tuple[str, str]:
    name, _, form = text.partition("=")
    return name, form


def _places(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _refuse_misfit(told: Told, defect: str) -> None:
    if told.misfit:
        sys.exit(f"The defect {defect} does not fit the product any more: seed {told.seed}: {told.misfit}")


def _campaign(options: argparse.Namespace) -> int:
    began, cpu, simulated, messages, failed, struck, count = _clock(), 0.0, 0.0, 0, 0, 0, 0
    seeds = range(options.seed, options.seed + options.seeds)
    for told in many(seeds, options.hours, options.processes, options.defect):
        _refuse_misfit(told, options.defect)
        count += 1
        cpu, simulated, messages = cpu + told.cpu_seconds, simulated + told.simulated_seconds, messages + told.messages
        struck += told.struck > 0
        if options.seeds == 1:
            print(f"seed {told.seed}: digest {told.digest}")
        if told.failure:
            failed += 1
            print("\n".join(explain(told, options.hours, options.defect)), flush=True)
        if count % SEEDS_BETWEEN_LINES == 0:
            rate, hours = simulated / max(cpu, 0.001), simulated / 3600
            line = f"seeds to {told.seed}: {failed:,} failed, {messages:,} messages, {hours:,.1f} simulated hours"
            print(f"{line}, {rate:,.0f} an hour", file=sys.stderr)
        if _clock() - began > 60 * options.minutes:
            break
    seconds = _clock() - began
    rate = simulated / max(cpu, 0.001)
    print(
        f"{count:,} seeds from {options.seed} on, {failed:,} failed; trouble struck in {struck / count:.0%}; "
        f"{messages:,} messages in {simulated / 3600:,.1f} simulated hours; "
        f"{seconds:,.0f} s, {cpu:,.0f} s of CPU: {rate:,.0f} simulated hours per hour of one core."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of words would differ from run to run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
