"""What an analysis is asked."""

import math
from dataclasses import dataclass

MICROS = 1_000_000
MICROS_PER_MINUTE = 60 * MICROS
STANDARD_LIMIT_BYTES = 256 * 1024
"""Largest message of tiers Basic and Standard (Service Bus quotas)."""


@dataclass(frozen=True, slots=True)
class Question:
    """The moment (UTC epoch seconds) ages are measured at, and where things begin to be worth a word."""

    as_of: float
    limit_bytes: int = STANDARD_LIMIT_BYTES
    """Largest message the primary takes."""
    near_share: float = 0.9
    """From this share of the limit on a message is near it."""
    messages_per_second: float = 200.0
    """The rate the backlog is drained at."""
    quiet_minutes: int = 10
    """So long without a diverted message, and an outage of a destination is taken to be over."""

    @property
    def as_of_micros(self) -> int:
        return round(self.as_of * MICROS)

    @property
    def near_bytes(self) -> int:
        """Smallest size that is near the limit."""
        return math.ceil(self.limit_bytes * self.near_share)
