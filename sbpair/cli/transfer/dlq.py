"""`sbpair dlq`: the contents page of dead letters."""

from typing import ClassVar

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command

COMMANDS = {
    "list": Entry("transfer.dead_letters", "list_reasons", "Count the dead letters of an entity by reason."),
    "peek": Entry("transfer.dead_letters", "peek", "Show dead letters, oldest first; nothing is taken."),
    "resubmit": Entry("transfer.resubmit", "resubmit", "Send dead letters again, to their entity or another one."),
    "purge": Entry("transfer.purge", "purge_dead_letters", "Delete dead letters, archived first."),
}
"""Name -> file in this package, function in it, and its line in the help."""


class _Commands(LazyGroup):
    GROUPS: ClassVar = {"Commands": COMMANDS}


app = typer.Typer(
    cls=_Commands,
    help="""Look at, resubmit and delete the dead letters of any queue or subscription.

    An entity is a queue or TOPIC/Subscriptions/NAME, on the primary of the pair in use unless --namespace, --pair,
    --side or NAMESPACE:ENTITY says otherwise.
    """,
    no_args_is_help=True,
)
app.callback()(before_the_command)
