"""Who pays for what a test asks of the broker without a connection."""

from sbpair.engine.budgets import ClientBudget, Memory


class Spender:
    """A client with a right and a budget; `ended_with` is the condition with which it was sent away."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.ended_with: str | None = None
        self.budget = ClientBudget(self, Memory() if memory is None else memory)
        self.budget.has_right = True

    @property
    def is_closing(self) -> bool:
        return self.ended_with is not None

    def close(self, condition: str, description: str) -> None:
        self.ended_with = condition

    def abort(self) -> None:
        self.ended_with = "cut"


class Slow:
    """A clock of work that moves on by a millisecond each time it is asked, so that a slice has two steps."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 0.001
        return self._now
