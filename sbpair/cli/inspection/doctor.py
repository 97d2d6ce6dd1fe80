"""`sbpair doctor`: is everything here that the commands need, and what to do where it is not."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair.cli.context import load_settings, open_sides, run_async, stoppable
from sbpair.cli.options import Options, PairArgument, command
from sbpair.core.errors import ConfigurationError, UsageError, for_pair
from sbpair.core.inspection.diagnosis import Diagnoses, Diagnosis, Verdict
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.serialization import to_plain
from sbpair.render.result import Check, Column, CommandResult, Severity, Table

if TYPE_CHECKING:
    import asyncio


DEFAULT_TIMEOUT_SECONDS = 10.0
COLUMNS = (
    Column("result", "Result"),
    Column("check", "Check"),
    Column("subject", "Subject"),
    Column("detail", "Detail"),
    Column("next_step", "What to do"),
)
_GRAVEST_FIRST = (Exit.UNREACHABLE, Exit.DENIED, Exit.USAGE)


@command(output="core.inspection.diagnosis:Diagnoses", checks=True)
def doctor(options: Options, pair: PairArgument = None) -> CommandResult:
    """Check configuration, credentials, rights, connections, clocks, versions, Java and Spark, and say how to fix them.

    Sends no message and changes nothing. Every check is one row: ok, warning, error or skipped. Exit code 2 when the
    configuration is wrong, 6 when a side cannot be reached, 4 when a credential is refused, 1 for other errors;
    warnings, such as a right that some commands need, leave it at 0.

    \b
    Examples:
      sbpair doctor orders
      sbpair doctor orders --timeout 3s -o json
    """
    from sbpair.cli.inspection.doctor_checks import machine

    rows = list(machine())
    chosen: Pair | None = None
    try:
        settings = load_settings(options)
        chosen = settings.pair(pair)
        files = ", ".join(str(path) for path in settings.files) or "no file"
        rows.append(Diagnosis("configuration", chosen.name, Verdict.OK, f"complete ({files})"))
    except UsageError as error:
        rows.append(Diagnosis.of_error("configuration", pair or "default pair", _advised(error)))
    if chosen is not None:
        rows += [_of_pair(row, chosen.name) for row in _examine(options, chosen)]
    return _result(chosen, rows)


def _of_pair(row: Diagnosis, pair: str) -> Diagnosis:
    return replace(row, next_step=for_pair(row.next_step, pair))


def _advised(error: UsageError) -> UsageError:
    return error if error.hint else ConfigurationError(error.message)


def _examine(options: Options, pair: Pair) -> list[Diagnosis]:
    async def work(stop: "asyncio.Event") -> list[Diagnosis]:
        from sbpair.cli.inspection.doctor_checks import examine_pair

        async with open_sides(pair) as sides:
            seconds = options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
            return await stoppable(stop, examine_pair(pair, sides, seconds))

    return run_async(options, work)


def _result(pair: Pair | None, rows: Sequence[Diagnosis]) -> CommandResult:
    counts = Counter(row.result for row in rows)
    said = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    return CommandResult(
        "doctor",
        Diagnoses(None if pair is None else pair.name, tuple(rows)),
        (Table("", COLUMNS, to_plain(rows), style_key="result"),),
        screen=(Table("", _SCREEN_COLUMNS, [*_screen(rows)], style_key="result", compact=True),),
        summary=f"{said}.{_enough_for(rows)}",
        closing=True,
        exit=_exit(rows),
        checks=tuple(
            Check(row.check, row.subject, Severity(row.result.value), f"{row.detail} {row.next_step}".strip())
            for row in rows
        ),
    )


_SCREEN_COLUMNS = (Column("result", "Result"), Column("what", "Check"), Column("detail", "Detail"))


def _screen(rows: Sequence[Diagnosis]) -> Iterator[dict[str, str]]:
    """A line for each check, and one for those of a kind that say the same."""
    from sbpair.cli.inspection.doctor_checks import COMMAND, VERSIONS

    together: dict[tuple[str, str, str], list[Diagnosis]] = {}
    for row in rows:
        detail = "" if row.check == VERSIONS else row.detail
        together.setdefault((row.result, _what(row), detail), []).append(row)
    all_commands = sum(row.check == COMMAND for row in rows)
    for (result, what, detail), alike in together.items():
        if alike[0].check == VERSIONS:
            detail = "\n".join(dict.fromkeys(_version(one) for one in alike))
        elif alike[0].check == COMMAND and result == Verdict.OK and len(alike) == all_commands:
            detail = "all have the rights they need"
        elif alike[0].check == COMMAND:
            detail = f"{', '.join(one.subject for one in alike)}: {detail}"
        yield {"result": result, "what": what, "detail": "\n".join(filter(None, (detail, alike[0].next_step)))}


def _version(row: Diagnosis) -> str:
    return row.detail if row.detail.startswith(row.subject) else f"{row.subject} {row.detail}"


def _what(row: Diagnosis) -> str:
    """`amqp primary`, `right Send orders`: no more of a subject than tells it from the others."""
    role, _, rest = row.subject.partition(" ")
    if role not in ("primary", "secondary"):
        return f"{row.check} {row.subject}" if row.check == "configuration" else row.check
    if not row.check.startswith("right") or rest == row.subject or row.result is Verdict.SKIPPED:
        return f"{row.check} {role}"
    entity = _BACKLOG_QUEUE.sub(r"backlog queue \1", rest)
    return f"{row.check} {entity}"


_BACKLOG_QUEUE = re.compile(r"\S+/x-servicebus-transfer/(\d+)")


def _enough_for(rows: Sequence[Diagnosis]) -> str:
    """What the credentials can do, where they cannot do everything."""
    from sbpair.cli.inspection.doctor_checks import COMMAND

    commands = [row for row in rows if row.check == COMMAND]
    if not any(row.result is Verdict.WARNING for row in commands):
        return ""
    able = [row.subject for row in commands if row.result is Verdict.OK]
    unable = [row.subject for row in commands if row.result is Verdict.WARNING]
    enough = f" These credentials are enough for: {', '.join(able)}." if able else ""
    return f"{enough} Not for: {', '.join(unable)}."


def _exit(rows: Sequence[Diagnosis]) -> Exit:
    """By the errors alone: unreachable, denied, configuration, anything else."""
    names = {row.exit_name for row in rows if row.result is Verdict.ERROR}
    for code in _GRAVEST_FIRST:
        if code.label in names:
            return code
    return Exit.FAILED if names else Exit.OK
