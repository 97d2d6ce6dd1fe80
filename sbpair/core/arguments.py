"""What the public constructors are given: another type is refused where it is given, and not met somewhere below."""

from collections.abc import Callable

from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.replication.ownership import Terms

_NUMBER, _WHOLE, _NOTHING = (int, float), (int,), (type(None),)
_WANTED: dict[str, tuple[tuple[type, ...], str]] = {
    "concurrency": (_WHOLE, "a whole number"),
    "delay_seconds": (_NUMBER, "a number of seconds"),
    "entity": ((str,), "the path of a queue or topic"),
    "max_messages": (_WHOLE + _NOTHING, "a whole number"),
    "on_event": ((Callable, *_NOTHING), "a function of one event"),  # type: ignore[dict-item]
    "options": ((SendAvailabilityOptions, *_NOTHING), "what `sbpair.pair_options()` returns"),
    "pair": ((str, Pair), "the name of a configured pair, or a Pair"),
    "secondary": ((str,), "a connection string, or a host"),
    "sessions": (_WHOLE, "a whole number"),
    "source": ((str,), "the path of a queue or subscription"),
    "terms": ((Terms, *_NOTHING), "a Terms"),
    "until_idle_seconds": (_NUMBER + _NOTHING, "a number of seconds"),
}


def check_types(**given: object) -> None:
    """Refuse arguments of another type.

    Raises:
        TypeError: see `require`.
    """
    for name, value in given.items():
        require(name, value, *_WANTED[name])


def require(name: str, value: object, types: type | tuple[type, ...], wanted: str) -> None:
    """Refuse an argument of another type.

    Raises:
        TypeError: says what is wanted. The value is not repeated: it may be a secret.
    """
    if not isinstance(value, types) or isinstance(value, bool):
        raise TypeError(f"`{name}` is {wanted}, not of type {type(value).__name__}.")
