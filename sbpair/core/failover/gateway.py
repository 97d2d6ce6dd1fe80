"""What a run of a gateway came to."""

from dataclasses import dataclass

from sbpair.core.words import counted


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """Messages of all clients. `accepted`: the primary or the backlog has them; `diverted`: the backlog."""

    pair: str
    endpoint: str
    accepted: int
    diverted: int
    refused: int
    unsettled_connections: int
    """Connections that were closed before all of their messages were settled; their clients send those again."""

    def summary(self) -> str:
        told = f"The gateway for {self.pair} has ended: {counted(self.accepted, 'message')} accepted"
        told += f", {self.diverted:,} of them diverted to the backlog" if self.diverted else ""
        return f"{told}, {self.refused:,} refused." if self.refused else f"{told}."
