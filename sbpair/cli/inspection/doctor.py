"""`sbpair doctor`: is everything here that the commands need, and what to do where it is not."""

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.context import call, load_settings
from sbpair.cli.options import Options, PairArgument, command
from sbpair.core.errors import ConfigurationError, IncompatibleSdkError, SbpairError, UsageError
from sbpair.core.inspection.diagnosis import COMMAND, VERSIONS, Diagnoses, Diagnosis, Verdict
from sbpair.core.pairing import Pair
from sbpair.core.serialization import column
from sbpair.render.result import CommandResult, Grade, MonitoredCheck, concluded, table_of
from sbpair.version import __version__


@command(output="core.inspection.diagnosis:Diagnoses", checks=True)
def doctor(
    options: Options,
    pair: PairArgument = None,
    for_application: Annotated[
        bool, typer.Option(help="Try only what an application needs to divert: links, with Send alone.")
    ] = False,
) -> CommandResult:
    """Check configuration, credentials, rights, connections, clocks, versions, Java and Spark, and say how to fix them.

    Sends no message and changes nothing. Every check is one row: ok, warning, error or skipped. Exit code 2 when the
    configuration is wrong, 6 when a side cannot be reached, 4 when a credential is refused, 1 for other errors;
    warnings, such as a right that some commands need, leave it at 0.

    \b
    Examples:
      sbpair doctor orders
      sbpair doctor orders --timeout 3s -o json
      sbpair doctor orders --for-application
    """
    rows = list(machine())
    chosen: Pair | None = None
    try:
        settings = load_settings(options)
        chosen = settings.pair(pair)
        files = ", ".join(str(path) for path in settings.files) or "no file"
        rows.append(Diagnosis("configuration", chosen.name, Verdict.OK, f"complete ({files})"))
    except UsageError as error:
        advised = error if error.hint else ConfigurationError(error.message)
        rows.append(Diagnosis.of_error("configuration", pair or "default pair", advised))
    if chosen is not None:
        request = operations.DoctorRequest(
            options.timeout_seconds(operations.DoctorRequest().timeout_seconds), for_application
        )
        rows += call(options, chosen, operations.doctor, request).checks
    return _result(Diagnoses(None if chosen is None else chosen.name, tuple(rows)))


def _result(found: Diagnoses) -> CommandResult:
    rows = found.checks
    return concluded(
        found,
        table_of(Diagnosis, rows, show=("result", "check", "subject", "detail", "next_step")),
        screen=(replace(table_of(_ScreenRow, _screen(rows)), compact=True),),
        checks=tuple(
            MonitoredCheck(row.check, row.subject, Grade(row.result.value), f"{row.detail} {row.next_step}".strip())
            for row in rows
        ),
    )


@dataclass(frozen=True, slots=True)
class _ScreenRow:
    result: Verdict = field(metadata=column("Result", colours=True))
    what: str = field(metadata=column("Check"))
    detail: str = field(metadata=column("Detail"))


def _screen(rows: Sequence[Diagnosis]) -> Iterator[_ScreenRow]:
    """A line for each check, and one for those of a kind that say the same."""
    together: dict[tuple[Verdict, str, str], list[Diagnosis]] = {}
    for row in rows:
        detail = "" if row.check == VERSIONS else row.detail
        together.setdefault((row.result, _what(row), detail), []).append(row)
    all_commands = sum(row.check == COMMAND for row in rows)
    for (result, what, detail), alike in together.items():
        if alike[0].check == VERSIONS:
            named = (
                one.detail if one.detail.startswith(one.subject) else f"{one.subject} {one.detail}" for one in alike
            )
            detail = "\n".join(dict.fromkeys(named))
        elif alike[0].check == COMMAND and result == Verdict.OK and len(alike) == all_commands:
            detail = "all have the rights they need"
        elif alike[0].check == COMMAND:
            detail = f"{', '.join(one.subject for one in alike)}: {detail}"
        yield _ScreenRow(result, what, "\n".join(filter(None, (detail, alike[0].next_step))))


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


# What it looks at on this machine: versions, the SDK's insides, Java and Spark.

OLDEST_PYTHON = (3, 11)
_SDKS = ("azure-servicebus", "azure-mgmt-servicebus", "azure-identity")


def machine() -> Iterator[Diagnosis]:
    """Rows about this machine; nothing is contacted."""
    yield _python()
    yield from _packages()
    yield from _self_tests()
    yield from _spark()


def _python() -> Diagnosis:
    text = f"sbpair {__version__}, Python {platform.python_version()} on {platform.system()}"
    if sys.version_info < OLDEST_PYTHON:
        return Diagnosis(VERSIONS, "sbpair", Verdict.ERROR, text, "Install Python 3.11 or newer.")
    return Diagnosis(VERSIONS, "sbpair", Verdict.OK, text)


def _packages() -> Iterator[Diagnosis]:
    for name in _SDKS:
        try:
            yield Diagnosis(VERSIONS, name, Verdict.OK, version(name))
        except PackageNotFoundError:
            yield Diagnosis(VERSIONS, name, Verdict.ERROR, "not installed", "pip install --force-reinstall sbpair")


def _self_tests() -> Iterator[Diagnosis]:
    """The lossless passage stands on insides of the SDK; they prove themselves on synthetic bytes. So do single
    features."""
    from sbpair.azure.wire import missing_features, self_test

    test, subject = "sdk self-test", "azure-servicebus"
    try:
        self_test()
    except IncompatibleSdkError as error:
        yield Diagnosis(test, subject, Verdict.ERROR, error.message, error.hint)
    else:
        yield Diagnosis(test, subject, Verdict.OK, "bytes pass unchanged")
    for sentence in missing_features():
        yield Diagnosis(test, subject, Verdict.WARNING, sentence, IncompatibleSdkError.hint)


def _spark() -> Iterator[Diagnosis]:
    if find_spec("pyspark") is None:
        advice = "pip install 'sbpair[spark,java]'"
        yield Diagnosis("spark", "pyspark", Verdict.SKIPPED, "not installed; only `pipeline` needs it", advice)
        yield Diagnosis("java", "java", Verdict.SKIPPED, "only Spark needs it")
        return
    yield Diagnosis("spark", "pyspark", Verdict.OK, version("pyspark"))
    yield _java()


def _java() -> Diagnosis:
    from sbpair.pipeline.spark.java import find_java

    try:
        found = find_java()
    except SbpairError as error:
        return Diagnosis("java", "java", Verdict.WARNING, error.message, error.hint)
    return Diagnosis("java", str(found.executable), Verdict.OK, f"Java {found.version_text} (from {found.origin})")
