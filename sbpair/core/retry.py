"""How long to wait before the next try: plain values, no waiting and no randomness of their own."""

from dataclasses import dataclass

SERVER_BUSY_SECONDS = 10.0
"""After a ServerBusyException wait 10 seconds, then try again ("Asynchronous Messaging Patterns and High
Availability")."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow by `factor` from `first_seconds` to `most_seconds`."""

    first_seconds: float
    most_seconds: float
    factor: float = 2.0

    def seconds(self, failures: int, *, jitter: float = 0.0) -> float:
        """The wait after so many failures in a row (1 = the first); 0 for none.

        `jitter` between 0 and 1, drawn by the caller, shortens the wait by up to a half so that clients that failed
        together do not come back together.
        """
        if failures <= 0:
            return 0.0
        # The exponent is capped: a float overflows long after the wait has reached its bound.
        grown = self.first_seconds * self.factor ** min(failures - 1, 64)
        return min(grown, self.most_seconds) * (1.0 - jitter / 2)


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
