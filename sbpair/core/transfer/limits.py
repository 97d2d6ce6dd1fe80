"""What the limits of a request may be: with another one a run would not begin, or never end."""

from sbpair.core.errors import UsageError

_AT_LEAST_1 = ("concurrency", "processes", "in_flight_messages", "in_flight_bytes")
_ABOVE_0 = ("rate_per_second", "budget_per_second")


class Limited:
    """A request that checks those of its fields that are limits.

    Raises:
        UsageError: one lets nothing through.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in (*_AT_LEAST_1, *_ABOVE_0):
            value = getattr(self, name, None)
            if value is not None and not (value >= 1 if name in _AT_LEAST_1 else value > 0):
                raise UsageError(f"{name} is {'at least 1' if name in _AT_LEAST_1 else 'above 0'}, not {value}.")
