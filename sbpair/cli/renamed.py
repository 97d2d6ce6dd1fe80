"""Options that had another name before 0.1: they are refused, and the new name is told."""

from collections.abc import Mapping, Sequence

_LIMIT = "--limit (-n)"
_MOVES: Mapping[str, str] = {
    "--max-messages": _LIMIT,
    "--path": "--destination",
    "--session": "--session-id",
    "--resume": "--ledger FILE alone: a ledger that is there is continued, --new-ledger begins anew",
}
_PLANS: Mapping[str, str] = {"--out": "--plan-out"}
RENAMED: Mapping[str, Mapping[str, str]] = {
    "drain": _MOVES,
    "syphon": _MOVES,
    "peek": {
        "--max": _LIMIT,
        "--path": "--destination",
        "--session": "--session-id",
        "--primary": "--side primary",
    },
    "provision": {**_PLANS, "--count": "--queues"},
    "cleanup": {
        **_PLANS,
        "--archive-to": "--archive",
        "--apply": "not needed: cleanup shows the plan and asks; --yes answers, --dry-run only shows",
    },
}


def new_name(arguments: Sequence[str]) -> str | None:
    """A sentence about the first option on this command line that has another name now."""
    command = next((word for word in arguments if word in RENAMED), None)
    if command is None:
        return None
    for word in arguments:
        option = word.partition("=")[0]
        if option in RENAMED[command]:
            return f"{option} of {command} is now {RENAMED[command][option]}."
    return None
