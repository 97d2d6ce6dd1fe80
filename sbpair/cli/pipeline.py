"""`sbpair pipeline`: the contents page of the Spark commands."""

import typer

from sbpair.cli.contents import Contents, Entry
from sbpair.cli.options import before_the_command

COMMANDS = {
    "archive": Entry(
        "pipeline_archive", "archive", "Archive a backlog as Parquet files, partitioned by pair, queue and date."
    ),
    "replay": Entry("pipeline_replay", "replay", "Send archived messages home, each session in its order."),
    "reconcile": Entry(
        "pipeline_reconcile", "reconcile", "Hold archives against ledgers: exactly one outcome each, or listed."
    ),
    "warm": Entry("pipeline_warm", "warm", "Keep the classes that Spark loads, so that the others start faster."),
    "analyze": Entry(
        "pipeline_analyze", "analyze", "Say what is in archived backlogs: sizes, ages, sessions, duplicates."
    ),
    "usage": Entry("pipeline_usage", "usage", "Add up what was used and billed per entity and month."),
    "trend": Entry(
        "pipeline_trend", "trend", "Show how backlogs and findings grow, come and go, from audit histories."
    ),
}
"""Name -> file in this package, function in it, and its line in the help."""


class _Commands(Contents):
    ENTRIES = COMMANDS


app = typer.Typer(
    cls=_Commands,
    help="Archive, analyse, replay and reconcile large backlogs on Spark, here or on a cluster (--master).",
    no_args_is_help=True,
)
app.callback()(before_the_command)
