"""`sbpair replicate`: the contents page of active/active with guaranteed order."""

from typing import ClassVar

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command

COMMANDS = {
    "send": Entry("replication.send", "send", "Send lines to both namespaces, in order within each session."),
    "consume": Entry("replication.consume", "consume", "Run a command for each message: once, and in order."),
    "status": Entry("replication.status", "status", "Show the journal: sessions by state, and which are stuck."),
    "provision": Entry("replication.status", "provision", "Create a replicated queue on both namespaces."),
}
"""Name -> file in this package, function in it, and its line in the help."""


class _Commands(LazyGroup):
    GROUPS: ClassVar = {"Commands": COMMANDS}


app = typer.Typer(
    cls=_Commands,
    help="""Active/active: send every message to both namespaces, process it once, in order within its session.

    Consumers agree through a journal: SQLite on one host, Cosmos DB between regions.
    """,
    no_args_is_help=True,
)
app.callback()(before_the_command)
