"""`sbpair pipeline`: the contents page of the Spark commands."""

from typing import ClassVar

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command

COMMANDS = {
    "archive": Entry(
        "pipeline.archive", "archive", "Archive a backlog as Parquet files, partitioned by pair, queue and date."
    ),
    "replay": Entry("pipeline.replay", "replay", "Send archived messages home, each session in its order."),
    "reconcile": Entry(
        "pipeline.reconcile", "reconcile", "Hold archives against ledgers: exactly one outcome each, or listed."
    ),
    "analyze": Entry(
        "pipeline.analyze", "analyze", "Say what is in archived backlogs: sizes, ages, sessions, duplicates."
    ),
    "trend": Entry(
        "pipeline.trend", "trend", "Show how backlogs and findings grow, come and go, from audit histories."
    ),
}
"""Name -> file in this package, function in it, and its line in the help."""


class _Commands(LazyGroup):
    GROUPS: ClassVar = {"Commands": COMMANDS}


app = typer.Typer(
    cls=_Commands,
    help="Archive, analyse, replay and reconcile large backlogs on Spark, here or on a cluster (--master).",
    no_args_is_help=True,
)
app.callback()(before_the_command)
