"""Options and commands that had another name: they are refused, and the new one is named."""

from collections.abc import Mapping, Sequence


def _now(new: str) -> str:
    return f"is now {new}"


_LIMIT = _now("--limit (-n)")
_NO_PLAN = "is gone; `sbpair pipeline replay --explain-plan` shows a plan of Spark"
_NO_SPARK = "is gone: a trend is computed without Spark"
_FILTERS: Mapping[str, str] = {"--path": _now("--destination"), "--session": _now("--session-id")}
_MOVES: Mapping[str, str] = {
    **_FILTERS,
    "--resume": "is not needed: --ledger FILE continues a ledger that exists, --new-ledger starts a new one",
}
_NO_OPTION = "is not needed: name the folder or file without it"
_PLANS: Mapping[str, str] = {"--out": _now("--plan-out")}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "audit": {"--save": _now("--snapshot-out"), "--from": _now("--snapshot")},
    "cleanup": {
        **_PLANS,
        "--archive-to": _now("--archive"),
        "--apply": "is not needed: cleanup shows the plan and asks; --yes answers, --dry-run only shows",
    },
    "cost": {"--from": _now("--snapshot"), "--sensitivity": "is gone; --compare shows what a change would cost"},
    "drain": {**_MOVES, "--max-messages": _LIMIT},
    "peek": {**_FILTERS, "--max": _LIMIT},
    "pipeline analyze": {
        "--explain": _NO_PLAN,
        "--from": _now("--snapshot"),
        "--rate": _now("--assume-rate"),
        "--top": _LIMIT,
        "--archive": _NO_OPTION,
    },
    "pipeline archive": {
        "--explain": _NO_PLAN,
        "--into": _now("--archive"),
        "--only-dlq": _now("--dlq (--with-dlq: the dead-letter queues as well)"),
    },
    "pipeline reconcile": {"--archive": _NO_OPTION, "--max": _LIMIT},
    "pipeline replay": {
        "--explain": _now("--explain-plan"),
        "--from": _now("--archive"),
        "--tasks": _now("--concurrency"),
    },
    "pipeline trend": {"--conf": _NO_SPARK, "--master": _NO_SPARK},
    "provision": {**_PLANS, "--count": _now("--queues")},
    "replicate consume": {"--max-messages": _LIMIT},
    "replicate send": {"--session": _now("--session-id")},
    "restore": {"--archive": _NO_OPTION},
    "syphon": _MOVES,
}
"""Command -> old option -> what became of it."""
COMMANDS: Mapping[str, str] = {
    "pipeline usage": _now("`sbpair cost --usage FILE`"),
    "pipeline warm": "is gone: Spark starts without it",
}


def new_name(arguments: Sequence[str]) -> str | None:
    """A sentence about the first option or command on this command line that has another name now."""
    words = [word for word in arguments if not word.startswith("-")]
    for old, instead in COMMANDS.items():
        if old.split() == words[:2]:
            return f"`{old}` {instead}."
    command = next((name for name in OPTIONS if name.split() == words[: len(name.split())]), None)
    for word in arguments:
        option = word.partition("=")[0]
        if command is not None and option in OPTIONS[command]:
            return f"{option} of {command} {OPTIONS[command][option]}."
    return None
