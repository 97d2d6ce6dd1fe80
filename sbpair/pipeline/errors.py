"""Errors of the pipeline, and how one that happened in a Python worker of Spark reaches the driver as what it was.

Spark keeps only the text of an exception from a worker or planner process. So ours put their code, message and hint
into that text, and the driver makes the same error of it again.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sbpair.core import errors
from sbpair.core.errors import SbpairError

_MARKED = re.compile(
    r"sbpair error \((?P<code>[a-z-]+)\): (?P<message>[^\n]*?)"
    r"(?:\n\s*Hint: (?P<hint>[^\n]*?))?\s*(?:SQLSTATE: \w+\s*)?(?:\n|$)"
)


class SparkUnavailableError(SbpairError):
    """PySpark, PyArrow or a Java is missing or too old."""

    code = "spark-unavailable"
    exit_name = "usage"
    hint = "pip install 'sbpair[spark,java]'"


class SparkFailedError(SbpairError):
    """A Spark job failed for a reason of its own; `log` names the file with the rest."""

    code = "spark-failed"


class ArchiveError(SbpairError):
    """An archive that cannot be read or written."""

    code = "archive"


RUN_AGAIN = "Everything that was committed before stays. When it can be written, run the same command again."


class ReplayError(SbpairError):
    """A replay that cannot be carried out as asked."""

    code = "replay"
    exit_name = "usage"


class DataLossError(SbpairError):
    """A stream cannot have all messages that lay between two of its micro-batches."""

    code = "data-loss"


class TaskError(Exception):
    """One of our errors on its way out of a worker process of Spark, as text."""

    def __init__(self, error: SbpairError) -> None:
        message, hint = (" ".join(text.split()) for text in (error.message, error.hint or ""))
        super().__init__(f"sbpair error ({error.code}): {message}" + (f"\nHint: {hint}" if hint else "") + "\n")


@contextmanager
def marking_errors() -> Iterator[None]:
    """In a worker process: let our errors out in the form that `error_in` reads."""
    try:
        yield
    except SbpairError as error:
        raise TaskError(error) from None


def error_in(text: str) -> SbpairError | None:
    """The error that a worker process marked in Spark's text of it; None if there is none of ours."""
    found = _MARKED.search(text)
    if found is None:
        return None
    kind = _classes().get(found["code"], SbpairError)
    if issubclass(kind, errors.SendIncompleteError):
        kind = SbpairError
    rebuilt = kind(found["message"], hint=found["hint"])
    rebuilt.code = found["code"]
    return rebuilt


def _classes(kind: type[SbpairError] = SbpairError) -> dict[str, type[SbpairError]]:
    """By their codes; one without a code of its own does not stand for its parent's."""
    below = {code: found for child in kind.__subclasses__() for code, found in _classes(child).items()}
    return below | {kind.code: kind}
