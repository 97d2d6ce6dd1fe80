"""`sbpair entity`: the contents page of queues, topics, subscriptions and rules."""

from typing import ClassVar

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command

COMMANDS = {
    "list": Entry("inspection.entity_commands", "list_entities", "List queues, topics and subscriptions with counts."),
    "show": Entry("inspection.entity_commands", "show", "Show one entity's settings, counts and rules."),
    "peek": Entry("transfer.dead_letters", "peek_messages", "Show the messages of one; nothing is taken."),
    "create": Entry("inspection.entity_commands", "create", "Create a queue, topic, subscription or rule."),
    "delete": Entry("inspection.entity_commands", "delete", "Delete one, empty unless told otherwise."),
    "set-status": Entry("inspection.entity_commands", "set_status", "Enable or disable sending and receiving."),
}
"""Name -> file in this package, function in it, and its line in the help."""


class _Commands(LazyGroup):
    GROUPS: ClassVar = {"Commands": COMMANDS}


app = typer.Typer(
    cls=_Commands,
    help="""Look at, create, disable and delete the queues, topics, subscriptions and rules of any namespace.

    An entity is a queue, a topic, TOPIC/Subscriptions/NAME or TOPIC/Subscriptions/NAME/Rules/RULE, on the primary of
    the pair in use unless --namespace, --pair, --side or NAMESPACE:ENTITY says otherwise.
    """,
    no_args_is_help=True,
)
app.callback()(before_the_command)
