"""What the commands that compute tables on Spark share: labelled actions, rows out of DataFrames, plans, reports."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sbpair.cli.options import Options
from sbpair.cli.pipeline_session import JobTalk, spark_session
from sbpair.core.errors import UsageError
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sbpair.pipeline.session import Session

T = TypeVar("T")

HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write the report here.", show_default=False)]


class Jobs:
    """An open session that runs labelled actions and tells how far they are."""

    def __init__(self, session: "Session", talk: JobTalk) -> None:
        self._session, self._talk = session, talk

    @property
    def spark(self) -> "SparkSession":
        return self._session.spark

    def run(self, action: Callable[[], T], label: str) -> T:
        """The action's result; Ctrl-C cancels its jobs."""
        return self._session.run(action, label, tell=self._talk)

    def rows(self, frame: "DataFrame", label: str) -> list[dict[str, Any]]:
        """All rows of a DataFrame; times have their zone."""
        found: list[dict[str, Any]] = self.run(lambda: frame.toArrow().to_pylist(), label)
        return found


@contextmanager
def spark_jobs(
    options: Options, master: str | None, conf: list[str] | None, *, rows: int | None, name: str, scanned: bool = False
) -> Iterator[Jobs]:
    """A Spark session sized for so many rows, ended with the block."""
    session_of = spark_session(options, master, conf, rows=rows, name=name, scanned=scanned)
    with session_of as session, JobTalk(options) as talk:
        yield Jobs(session, talk)


def plan_text(frame: "DataFrame") -> str:
    """Spark's physical plan of a DataFrame."""
    text = StringIO()
    with redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue()


def write_report(result: CommandResult, html: Path | None) -> None:
    """Write the page of a result to a file, if one is wanted."""
    from sbpair.render.console import write_atomically
    from sbpair.render.html import to_html

    if html is None:
        return
    if result.page is None:
        raise UsageError(f"{result.command} has no report to write.")
    write_atomically(html, to_html(result.page))
