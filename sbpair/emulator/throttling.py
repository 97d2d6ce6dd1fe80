"""What a namespace may do in a second, as the service documents it; off unless it is asked for.

Basic and Standard: at the start of each second a namespace gets 1,000 credits. A message that is sent, received or
browsed for costs one, an operation on an entity or rule (create, read, update, delete, list) ten; what a second
overdraws is missing in the next one. Premium: a number of bytes in and out for each messaging unit. What is refused
is answered with server-busy over AMQP and 429 over HTTP; deliveries are not refused, they wait for the next second.
Connections and the receivers of an entity have their limits besides ("Throttling operations on Azure Service Bus",
"Service Bus quotas"). The documents leave open what a batch costs: here it costs what its messages cost. A settlement
costs nothing.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from sbpair.engine.clock import Clock
from sbpair.engine.errors import QUOTA, SERVER_BUSY, BrokerError, EntityError
from sbpair.service import Tier

MANAGEMENT_CREDITS: Final = 10
RETRY_AFTER_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class ThrottlingLimits:
    """None: without a limit. `bytes_per_second` count in both directions."""

    credits_per_second: int | None = None
    bytes_per_second: int | None = None
    max_connections: int | None = 5000
    max_receivers: int | None = 5000
    """Of one queue, subscription or sub-queue."""


def limits_of(tier: Tier, messaging_units: int = 1) -> ThrottlingLimits:
    """What the service gives a namespace of a tier."""
    if tier is Tier.PREMIUM:
        return ThrottlingLimits(bytes_per_second=4 * 1024 * 1024 * max(messaging_units, 1))
    return ThrottlingLimits(credits_per_second=1000)


class Throttling:
    """The budget of one namespace. Nothing of it is used where a namespace has none."""

    def __init__(self, namespace: str, limits: ThrottlingLimits, clock: Clock) -> None:
        self.limits = limits
        self.granted = self.refused = 0
        """Requests, deliveries included."""
        self.credits_spent = self.bytes_spent = 0
        self.busiest_credits = 0
        """The most that was spent in one second."""
        self.first_second: int | None = None
        """Of the clock, in which anything was spent; None: nothing was. `last_second`: the latest such."""
        self.last_second = 0
        self._namespace = namespace
        self._clock = clock
        self._second = math.floor(clock.now())
        self._credits = self._bytes = self._in_this_second = 0
        self._connections: set[Hashable] = set()

    def charge(self, credits: int, size_bytes: int = 0) -> None:
        """Pay for a request.

        Raises:
            BrokerError: server-busy; this second's budget is used up, and nothing was charged.
        """
        if not self.is_open():
            self.refused += 1
            raise BrokerError(SERVER_BUSY, self._text())
        self.spend(credits, size_bytes)

    def charge_management(self) -> None:
        """Pay for a request over HTTP.

        Raises:
            EntityError: 429, as `charge`.
        """
        try:
            self.charge(MANAGEMENT_CREDITS)
        except BrokerError as error:
            raise EntityError(429, 50009, error.description, "TooManyRequests") from error

    def spend(self, credits: int, size_bytes: int = 0) -> None:
        """Pay for what happens anyway."""
        self._turn()
        self.granted += 1
        self._credits += credits
        self._bytes += size_bytes
        self._in_this_second += credits
        if credits:
            self.last_second = self._second
            if self.first_second is None:
                self.first_second = self._second
        self.credits_spent += credits
        self.bytes_spent += size_bytes
        self.busiest_credits = max(self.busiest_credits, self._in_this_second)

    def is_open(self) -> bool:
        """Whether there is anything left of this second's budget."""
        self._turn()
        credits, size = self.limits.credits_per_second, self.limits.bytes_per_second
        return (credits is None or self._credits < credits) and (size is None or self._bytes < size)

    @property
    def next_second(self) -> float:
        """When the next budget is given, in epoch seconds."""
        return self._second + 1.0

    def connected(self, connection: Hashable) -> bool:
        """Count a connection; False if there are too many already."""
        most = self.limits.max_connections
        if most is not None and len(self._connections) >= most:
            self.refused += 1
            return False
        self._connections.add(connection)
        return True

    def disconnected(self, connection: Hashable) -> None:
        """Count it no longer."""
        self._connections.discard(connection)

    def check_receivers(self, present: int, path: str) -> None:
        """Refuse one receiver too many.

        Raises:
            BrokerError: amqp:resource-limit-exceeded.
        """
        most = self.limits.max_receivers
        if most is not None and present >= most:
            self.refused += 1
            raise BrokerError(QUOTA, f"'{path}' has the {most} concurrent receivers that an entity can have.")

    def _turn(self) -> None:
        second = math.floor(self._clock.now())
        passed = second - self._second
        if passed > 0:
            self._second = second
            self._credits = max(0, self._credits - passed * (self.limits.credits_per_second or self._credits))
            self._bytes = max(0, self._bytes - passed * (self.limits.bytes_per_second or self._bytes))
            self._in_this_second = 0

    def _text(self) -> str:
        return (
            f"The request was terminated because the namespace {self._namespace} is being throttled. "
            f"Error code: 50009. Please wait {RETRY_AFTER_SECONDS} seconds and try again."
        )
