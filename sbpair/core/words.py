"""Numbers and lists, as a sentence says them."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

MOST_NAMED = 3


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 message`, `1,200 messages`; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def are(number: int) -> str:
    """`is` of one thing, `are` of several or none."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """`was` of one thing, `were` of several or none."""
    return "was" if number == 1 else "were"


def listed(names: Iterable[str], *, most: int = MOST_NAMED) -> str:
    """`a, b, c and 4 more`."""
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def size_in_words(size: float) -> str:
    """`700 bytes`, `1.5 KB`, `250 MB`: units of 1024."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"


def ranges(numbers: Collection[int]) -> str:
    """`0-2, 5, 7-9`."""
    return ", ".join(map(span, runs_of(numbers)))


def span(run: Sequence[int]) -> str:
    """`7-9` for the first and last number of a run, `5` for a run of one."""
    first, last = run
    return str(first) if first == last else f"{first}-{last}"


def runs_of(numbers: Collection[int]) -> list[list[int]]:
    """First and last of each run of numbers without a gap, in their order."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6) -> str:
    """The question whether the nearest of the known words is meant; `otherwise`: what is said where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"Did you mean {near[0]!r}?" if near else otherwise


def with_hint(message: str, hint: str) -> str:
    """What happened and what to do next, on one line."""
    return f"{message.rstrip('.')}. {hint}" if hint else message


def merge_spellings(counts: Mapping[str, int]) -> dict[str, int]:
    """Numbers by name with one spelling of each: names are compared without case, and the one met most often stands
    for all."""
    spelled: dict[str, str] = {}
    total: dict[str, int] = {}
    for name in sorted(counts, key=lambda one: (-counts[one], one)):
        shown = spelled.setdefault(name.lower(), name)
        total[shown] = total.get(shown, 0) + counts[name]
    return total
