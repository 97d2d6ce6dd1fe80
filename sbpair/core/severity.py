"""How bad what an audit finds is; apart from the audit, so that a command line can name it without the checks."""

from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is. `rank` orders them."""

    INFO = "info"
    """Worth knowing; nothing to do."""
    WARNING = "warning"
    """Will bite one day, or costs money for nothing."""
    ERROR = "error"
    """A failover or the way home would not work as configured."""
    CRITICAL = "critical"
    """Messages are being lost or refused now."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)

    def at_least(self, other: "Severity") -> bool:
        return self.rank >= other.rank
