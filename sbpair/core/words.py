"""Numbers with their nouns, as a sentence says them."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 message`, `1,200 messages`; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
