"""The contents pages of the groups of commands: which command of a group lives in which file."""

from collections.abc import Mapping

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command


def _group(help: str, commands: Mapping[str, Entry]) -> typer.Typer:
    """`commands`: name -> file in this package, function in it, and its line in the help."""
    app = typer.Typer(
        cls=type("Commands", (LazyGroup,), {"GROUPS": {"Commands": commands}}), help=help, no_args_is_help=True
    )
    app.callback()(before_the_command)
    return app


entity = _group(
    """Look at, create, disable and delete the queues, topics, subscriptions and rules of any namespace.

    An entity is a queue, a topic, TOPIC/Subscriptions/NAME or TOPIC/Subscriptions/NAME/Rules/RULE, on the primary of
    the pair in use unless --namespace, --pair, --side or NAMESPACE:ENTITY says otherwise.
    """,
    {
        "list": Entry(
            "inspection.entity_commands", "list_entities", "List queues, topics and subscriptions with counts."
        ),
        "show": Entry("inspection.entity_commands", "show", "Show one entity's settings, counts and rules."),
        "peek": Entry("transfer.dead_letters", "peek_messages", "Show the messages of one; nothing is taken."),
        "create": Entry("inspection.entity_commands", "create", "Create a queue, topic, subscription or rule."),
        "delete": Entry("inspection.entity_commands", "delete", "Delete one, empty unless told otherwise."),
        "set-status": Entry("inspection.entity_commands", "set_status", "Enable or disable sending and receiving."),
    },
)

dlq = _group(
    """Look at, resubmit and delete the dead letters of any queue or subscription.

    An entity is a queue or TOPIC/Subscriptions/NAME, on the primary of the pair in use unless --namespace, --pair,
    --side or NAMESPACE:ENTITY says otherwise.
    """,
    {
        "list": Entry("transfer.dead_letters", "list_reasons", "Count the dead letters of an entity by reason."),
        "peek": Entry("transfer.dead_letters", "peek", "Show dead letters, oldest first; nothing is taken."),
        "resubmit": Entry("transfer.resubmit", "resubmit", "Send dead letters again, to their entity or another one."),
        "purge": Entry("transfer.purge", "purge_dead_letters", "Delete dead letters, archived first."),
    },
)

replicate = _group(
    """Active/active: send every message to both namespaces, process it once, in order within its session.

    Consumers agree through a journal: SQLite on one host, Cosmos DB between regions.
    """,
    {
        "send": Entry("replication.send", "send", "Send lines to both namespaces, in order within each session."),
        "consume": Entry("replication.consume", "consume", "Run a command for each message: once, and in order."),
        "status": Entry("replication.status", "status", "Show the journal: sessions by state, and which are stuck."),
        "provision": Entry("replication.status", "provision", "Create a replicated queue on both namespaces."),
    },
)

pipeline = _group(
    "Archive, analyze, replay and reconcile large backlogs with Spark, here or on a cluster (--master).",
    {
        "archive": Entry("pipeline.archive", "archive", "Save a backlog as Parquet files."),
        "follow": Entry("pipeline.archive", "follow", "Keep an archive up to date while a backlog grows."),
        "replay": Entry("pipeline.replay", "replay", "Send archived messages to their destinations."),
        "reconcile": Entry(
            "pipeline.reconcile", "reconcile", "Check that each archived message has exactly one outcome."
        ),
        "analyze": Entry("pipeline.analyze", "analyze", "Report what is in archived backlogs."),
        "replication-audit": Entry(
            "pipeline.replication_audit", "replication_audit", "Check what became of the messages of active/active."
        ),
        "trend": Entry("pipeline.trend", "trend", "Show how backlogs and findings develop over time."),
    },
)

session = _group(
    """List the sessions of any queue or subscription, and show, set or clear their states.

    An entity is a queue or TOPIC/Subscriptions/NAME that requires sessions.
    """,
    {
        "list": Entry("transfer.session", "list_all", "List sessions that hold messages or a state."),
        "show": Entry("transfer.session", "show", "Show one session and its state."),
        "set-state": Entry("transfer.session", "set_state", "Set the state of a session."),
        "clear": Entry("transfer.session", "clear", "Clear the state of a session; its messages stay."),
    },
)

message = _group(
    """Show, dead-letter, delete or reschedule one message of any queue or subscription, by its sequence number.

    Numbers are those that `sbpair entity peek` and `sbpair dlq peek` show. To change one: `sbpair edit`.
    """,
    {
        "show": Entry("transfer.message", "show", "Show one message with its body and properties."),
        "dead-letter": Entry("transfer.message", "dead_letter", "Move one message to the dead letters."),
        "complete": Entry("transfer.message", "complete", "Delete one message, archived first."),
        "reschedule": Entry("transfer.message", "reschedule", "Schedule a scheduled message for another time."),
    },
)
