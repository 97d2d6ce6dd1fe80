"""How long to wait before the next try, and for a rate: plain values, no waiting of their own."""

from dataclasses import dataclass

SERVER_BUSY_SECONDS = 10.0
"""After a ServerBusyException wait 10 seconds, then try again ("Asynchronous Messaging Patterns and High
Availability")."""

NAMESPACE_CREDITS_PER_SECOND = 1000
"""What a namespace of the Basic or Standard tier may spend: a message sent, received or browsed costs one ("Throttling
operations on Azure Service Bus")."""

PATIENCE_SECONDS = 120.0
"""How long a queue or destination that has answered before may fail before the work goes on without it."""

UNREACHED_SECONDS = 20.0
"""The same for one that has never answered: a person at a terminal wants to know."""


def credits_beside(reserve: int) -> float:
    """Credits a second that are left of a namespace's when that many are left to others."""
    return float(NAMESPACE_CREDITS_PER_SECOND - reserve)


def ends_in_time(elapsed_seconds: float, last_try_seconds: float, bound_seconds: float) -> bool:
    """Whether another try that takes as long as the last one ends within the bound. A try against a namespace that is
    silent takes its whole time-out: one more would be told of long after the end that was announced."""
    return elapsed_seconds + last_try_seconds <= bound_seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow by `factor` from `first_seconds` to `most_seconds`."""

    first_seconds: float
    most_seconds: float
    factor: float = 2.0

    def seconds(self, failures: int) -> float:
        """The wait after that many failures in a row (1 = the first); 0 for none."""
        if failures <= 0:
            return 0.0
        # The exponent is capped: a float overflows long after the wait has reached its bound.
        grown = self.first_seconds * self.factor ** min(failures - 1, 64)
        return min(grown, self.most_seconds)


SYPHON = Backoff(first_seconds=1.0, most_seconds=120.0)
"""The syphon's pause after an error: 1 s up to 2 minutes (the retired library's limits)."""

SDK = Backoff(first_seconds=1.6, most_seconds=120.0)
"""Between tries of one send, as azure-servicebus waits: 0.8 s times 2, 4, 8."""
SDK_RETRIES = 3
"""How often azure-servicebus tries a send again."""

SENDER = Backoff(first_seconds=0.1, most_seconds=2.0)
"""Between tries of a message that the primary did not take, while the failover timer runs."""

REFUSED = Backoff(first_seconds=10.0, most_seconds=120.0)
"""After quota exceeded or unauthorised: somebody has to act first, so there is no hurry."""


class TokenBucket:
    """A rate: tokens come evenly, and up to `most` of them are saved up. Who takes more than there are leaves a debt.

    Args:
        tokens: what there is at the first look.
    """

    def __init__(self, per_second: float, *, most: float, tokens: float = 0.0) -> None:
        self._per_second, self._most = per_second, most
        self._tokens = tokens
        self._looked_at: float | None = None

    def tokens(self, now: float) -> float:
        """How many there are; negative for a debt."""
        if self._looked_at is not None:
            self._tokens = min(self._most, self._tokens + (now - self._looked_at) * self._per_second)
        self._looked_at = now
        return self._tokens

    def take(self, tokens: float) -> None:
        self._tokens -= tokens

    def seconds_until(self, tokens: float, now: float) -> float:
        """How long until there are that many, if nobody takes any."""
        return max(0.0, (tokens - self.tokens(now)) / self._per_second)
