"""`sbpair pipeline`: the contents page of the Spark commands."""

from typing import ClassVar

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command

COMMANDS = {
    "archive": Entry("pipeline.archive", "archive", "Save a backlog as Parquet files."),
    "follow": Entry("pipeline.follow", "follow", "Keep an archive up to date while a backlog grows."),
    "replay": Entry("pipeline.replay", "replay", "Send archived messages to their destinations."),
    "reconcile": Entry("pipeline.reconcile", "reconcile", "Check that each archived message has exactly one outcome."),
    "analyze": Entry("pipeline.analyze", "analyze", "Report what is in archived backlogs."),
    "replication-audit": Entry(
        "pipeline.replication_audit", "replication_audit", "Check what became of the messages of active/active."
    ),
    "trend": Entry("pipeline.trend", "trend", "Show how backlogs and findings develop over time."),
}
"""Name -> file in this package, function in it, and its line in the help."""


class _Commands(LazyGroup):
    GROUPS: ClassVar = {"Commands": COMMANDS}


app = typer.Typer(
    cls=_Commands,
    help="Archive, analyze, replay and reconcile large backlogs with Spark, here or on a cluster (--master).",
    no_args_is_help=True,
)
app.callback()(before_the_command)
