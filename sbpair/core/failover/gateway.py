"""What a running gateway knows of its pairs and their entities."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayEntity:
    """One queue or topic that a gateway knows of, and what became of its messages since the gateway began."""

    pair: str
    entity: str
    state: str
    cause: str | None
    """Code of the error behind the state."""
    accepted: int
    diverted: int
    refused: int
    mean_milliseconds: float | None
    """Of a send that was accepted; None: there was none."""


@dataclass(frozen=True, slots=True)
class GatewayPair:
    """A pair as a running gateway sees it. `troubles` keep it from taking messages; none: it is ready."""

    pair: str
    primary: str
    connections: int
    troubles: tuple[str, ...]
    entities: tuple[GatewayEntity, ...]
