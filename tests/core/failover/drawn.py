"""The failover machine's tables as the page on failover and the README draw them."""

from collections.abc import Mapping

from sbpair.core.errors import Category
from sbpair.core.failover.machine import (
    BUSY_PAUSE_SECONDS,
    PINGING,
    POLICIES,
    ROUTES,
    TRANSITIONS,
    ErrorAction,
    Route,
    Signal,
    State,
)


def diagram() -> str:
    """TRANSITIONS as a Mermaid state diagram, for the page on failover."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.HEALTHY.name}"]
    for before, row in TRANSITIONS.items():
        for after in State:
            signals = [signal.value.replace(":", ",") for signal in Signal if row[signal] is after]
            if before is not after and signals:
                lines.append(f"    {before.name} --> {after.name}: {' / '.join(signals)}")
    lines += [f"    note right of {state.name}: sends go to {_destination(state)}" for state in State]
    return "\n".join(lines)


_MEANINGS: Mapping[Category, str] = {
    Category.TIMEOUT: "time-out",
    Category.CONNECTION: "no connection, or it was lost",
    Category.DETACHED: "the link was detached",
    Category.INTERNAL: "internal error of the service",
    Category.BUSY: "server busy (throttled)",
    Category.DISABLED: "entity disabled",
    Category.QUOTA: "quota exceeded, entity full",
    Category.UNAUTHORIZED: "wrong key, missing right",
    Category.NOT_FOUND: "entity not found",
    Category.TOO_LARGE: "message too large",
    Category.ARGUMENT: "message refused as such",
    Category.UNKNOWN: "anything else",
}
_CONSEQUENCES: Mapping[ErrorAction, str] = {
    ErrorAction.START_TIMER: "starts the timer",
    ErrorAction.WAIT_AND_RESEND: f"waits {BUSY_PAUSE_SECONDS:g} s, sends again",
    ErrorAction.RAISE: "raises, no failover",
}


def error_table() -> str:
    """Which errors count, as a Markdown table for the page on failover: a row for each kind, a column for each policy,
    and what the same error of a ping means."""
    names = " | ".join(f"`{name}`" for name in POLICIES)
    lines = [f"| error of a send | {names} | of a ping |", "|---|" + "---|" * (len(POLICIES) + 1)]
    for category in Category:
        actions = " | ".join(_CONSEQUENCES[policy.action(category)] for policy in POLICIES.values())
        wrong = any(category in policy.entity_wrong for policy in POLICIES.values())
        ping = "the entity is wrong: sends raise" if wrong else "still away"
        lines.append(f"| {_MEANINGS[category]} | {actions} | {ping} |")
    return "\n".join(lines)


def _destination(state: State) -> str:
    words = {Route.PRIMARY: "the primary", Route.BACKLOG: "a backlog queue", Route.NOWHERE: "nobody, they raise"}
    return words[ROUTES[state]] + (", pings run" if state in PINGING else "")
