"""Numbers and lists, as a sentence says them."""

from collections.abc import Collection, Iterable

MOST_NAMED = 3


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 message`, `1,200 messages`; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str]) -> str:
    """`a, b, c and 4 more`."""
    known = list(names)
    return ", ".join(known[:MOST_NAMED]) + (f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else "")


def ranges(numbers: Collection[int]) -> str:
    """`0-2, 5, 7-9`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
