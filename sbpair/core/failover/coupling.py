"""The rule that ties the two namespaces' connections together in a process that runs the syphon ("Paired Namespaces:
Implementation Details and Cost").

When one side is closed or faulted and the other is not, the other has five seconds to close; then it is faulted. (The
retired code faulted it at once after a fault; the documents give five seconds in both cases, and so do we.) In a
process without the syphon the sides live and die on their own.
"""

from enum import StrEnum

from sbpair.core.pairing import Side

PARTNER_GRACE_SECONDS = 5.0


class Condition(StrEnum):
    """How the connection to one side is."""

    UNKNOWN = "unknown"
    """Nothing was asked of it yet."""
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


class Coupling:
    """The machine: told what became of a side, it says which side is to be faulted and when."""

    def __init__(self, *, with_syphon: bool) -> None:
        self._with_syphon = with_syphon
        self._conditions = dict.fromkeys(Side, Condition.OPEN)
        self._deadline: float | None = None

    def condition(self, side: Side) -> Condition:
        return self._conditions[side]

    def next_deadline(self) -> float | None:
        """When `due` will name a side; None while nothing is pending."""
        return self._deadline

    def ended(self, side: Side, condition: Condition, now: float) -> None:
        """A side was closed or faulted. The first word on a side stands: what is closed cannot fault any more."""
        if condition is Condition.OPEN or self._conditions[side] is not Condition.OPEN:
            return
        self._conditions[side] = condition
        pending = self._with_syphon and self._conditions[side.partner] is Condition.OPEN
        self._deadline = now + PARTNER_GRACE_SECONDS if pending else None

    def due(self, now: float) -> Side | None:
        """The side to fault now: its partner ended five seconds ago and it is still open."""
        if self._deadline is None or now < self._deadline:
            return None
        return next(side for side in Side if self._conditions[side] is Condition.OPEN)
