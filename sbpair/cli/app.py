"""The contents pages of the command line and of its groups: which command lives in which file. No work happens here,
no command is imported before it is called."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sbpair.cli.hooks import Lazy, LazyGroup
from sbpair.cli.options import before_the_command, with_common_options
from sbpair.version import __version__

GROUPS = {
    "Find and recover": {
        "discover": Lazy("inspection.discover", "discover", "Find out whether you have backlog queues, and whose."),
        "status": Lazy("inspection.status", "status", "Count waiting messages, and check both namespaces."),
        "top": Lazy(
            "inspection.watching", "top", "Watch pairs, queues and dead letters on a terminal, down to a message."
        ),
        "audit": Lazy("inspection.audit", "audit", "Find stranded messages and wrong, missing or extra queues."),
        "peek": Lazy("transfer.browse", "peek", "Show waiting messages, oldest first; change nothing."),
        "drain": Lazy("transfer.drain", "drain", "Send waiting messages to their destinations, then stop."),
        "syphon": Lazy("transfer.drain", "syphon", "Send waiting messages as they arrive, as a service."),
        "incident": Lazy("transfer.report", "incident", "Guide you through a recovery, one command after another."),
        "report": Lazy("transfer.report", "report", "Report an incident from its ledgers, and verify them."),
        "promotion": Lazy("app", "promotion", "List messages that a region's promotion lost or duplicated."),
        "restore": Lazy("transfer.move", "restore", "Send archived messages to their destinations."),
        "cleanup": Lazy("inspection.plans", "cleanup", "List and delete backlog queues that no pair needs."),
    },
    "Set up": {
        "config": Lazy("config", "app", "Show and check the configuration."),
        "doctor": Lazy("inspection.doctor", "doctor", "Check configuration, credentials, rights, clock and Java."),
        "provision": Lazy("inspection.plans", "provision", "Create the backlog queues of a pair on its secondary."),
        "exporter": Lazy("inspection.watching", "exporter", "Serve figures of namespaces and pairs for Prometheus."),
        "export": Lazy("export", "export", "Write alerts, dashboard, services, jobs and templates to install."),
    },
    "Any entity": {
        "entity": Lazy("app", "entity", "List, create, disable and delete queues, topics and rules."),
        "rules": Lazy("app", "rules", "Test the rules of a topic; find messages that no subscription gets."),
        "dlq": Lazy("app", "dlq", "List, resubmit and delete dead letters of any queue or subscription."),
        "diff": Lazy("inspection.diff", "diff", "Compare the entities of two namespaces, files or snapshots."),
        "move": Lazy("transfer.move", "move", "Send messages of any entity to another one, and complete them."),
        "copy": Lazy("transfer.move", "copy", "Send copies of the messages of any entity to another one."),
        "explain": Lazy("transfer.message", "explain", "Explain why a message is where it is, and what to do."),
        "session": Lazy("app", "session", "List sessions; show, set and clear their states."),
        "message": Lazy("app", "message", "Show, dead-letter, delete or reschedule one message."),
        "edit": Lazy("transfer.message", "edit", "Change messages in an editor and send them in their place."),
        "undefer": Lazy("transfer.message", "undefer", "Make deferred messages of any queue active again."),
        "purge": Lazy("transfer.message", "purge", "Delete messages of any entity, archived first."),
        "evacuate": Lazy("transfer.evacuate", "evacuate", "Move all entities and messages to another namespace."),
    },
    "Applications": {
        "gateway": Lazy("failover.gateway", "gateway", "Give applications of any language failover, as a service."),
        "send": Lazy("failover.send", "send", "Send messages; to the secondary while the primary is down."),
        "ping": Lazy("failover.ping", "ping", "Measure the response times of each namespace; check your rights."),
        "drill": Lazy("failover.drill", "drill", "Rehearse an outage beside the live entities, and prove it."),
        "replicate": Lazy("app", "replicate", "Send to both namespaces; process each message once, in order."),
    },
    "Plan": {
        "cost": Lazy("cost", "cost", "Estimate what a pair costs a month, line by line."),
        "pipeline": Lazy("app", "pipeline", "Archive, analyze and replay large backlogs with Spark."),
    },
    "Try": {
        "demo": Lazy("demo", "demo", "Play through an outage on two embedded namespaces."),
        "emulator": Lazy("emulator", "app", "Run embedded Service Bus namespaces (the pair `local`)."),
    },
    "Help": {
        "help": Lazy("help", "help_on", "Explain terms, exit codes, rights or a command."),
        "cheat": Lazy("help", "cheat", "Show the commands for common tasks."),
        "schema": Lazy("help", "schema", "Print the JSON Schema of a command's -o json."),
        "completion": Lazy("help", "completion", "Print the completion script of a shell."),
    },
}
"""Heading in the help -> name -> file in this package, function or typer app in it, and its line in the help."""
COMMANDS = {name: entry for entries in GROUPS.values() for name, entry in entries.items()}


app = typer.Typer(
    name="sbpair",
    cls=type("Commands", (LazyGroup,), {"GROUPS": GROUPS}),
    help="""Recover messages that Service Bus failover left on a second namespace, and keep the two namespaces healthy.

    Try it without an Azure account: `sbpair demo`. What the words mean: `sbpair help terms`

    \b
    Examples:
      sbpair status orders
      sbpair drain orders --dry-run
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sbpair {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option(callback=_print_version, is_eager=True, help="Print the version and exit.")
]


def _root(ctx: typer.Context, version: VersionOption = False, **values: Any) -> None:
    before_the_command(ctx, **values)


app.callback()(with_common_options(_root))


# The groups below it.


def _group(help: str, commands: Mapping[str, Lazy]) -> typer.Typer:
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
        "list": Lazy(
            "inspection.entity_commands", "list_entities", "List queues, topics and subscriptions with counts."
        ),
        "show": Lazy("inspection.entity_commands", "show", "Show one entity's settings, counts and rules."),
        "peek": Lazy("transfer.browse", "peek_messages", "Show the messages of one; nothing is taken."),
        "create": Lazy("inspection.entity_commands", "create", "Create a queue, topic, subscription or rule."),
        "delete": Lazy("inspection.entity_commands", "delete", "Delete one, empty unless told otherwise."),
        "set-status": Lazy("inspection.entity_commands", "set_status", "Enable or disable sending and receiving."),
    },
)

rules = _group(
    """Test the rules of a topic's subscriptions with a message, and find messages that no subscription gets.

    `entity show` lists rules, `entity create` and `entity delete` change them.
    """,
    {
        "test": Lazy("inspection.rules", "test", "Show which rules match a message, and why others do not."),
        "unmatched": Lazy("inspection.rules", "unmatched", "Find messages that no subscription gets."),
    },
)

dlq = _group(
    """Look at, resubmit and delete the dead letters of any queue or subscription.

    An entity is a queue or TOPIC/Subscriptions/NAME, on the primary of the pair in use unless --namespace, --pair,
    --side or NAMESPACE:ENTITY says otherwise.
    """,
    {
        "list": Lazy("transfer.browse", "list_reasons", "Count the dead letters of an entity by reason."),
        "peek": Lazy("transfer.browse", "peek_dead_letters", "Show dead letters, oldest first; nothing is taken."),
        "resubmit": Lazy("transfer.move", "resubmit", "Send dead letters again, to their entity or another one."),
        "purge": Lazy("transfer.message", "purge_dead_letters", "Delete dead letters, archived first."),
    },
)

promotion = _group(
    "Look at what a promotion to another region, or a failover of an alias, did to messages.",
    {
        "report": Lazy(
            "inspection.diff", "promotion_report", "List messages that are lost, duplicated, or active again."
        )
    },
)

replicate = _group(
    """Active/active: send every message to both namespaces, process it once, in order within its session.

    Consumers agree through a journal: SQLite on one host, Cosmos DB between regions.
    """,
    {
        "send": Lazy("replication.replicate", "send", "Send lines to both namespaces, in order within each session."),
        "consume": Lazy("replication.replicate", "consume", "Run a command for each message: once, and in order."),
        "status": Lazy("replication.replicate", "status", "Show the journal: sessions by state, and which are stuck."),
        "provision": Lazy("replication.replicate", "provision", "Create a replicated queue on both namespaces."),
    },
)

pipeline = _group(
    "Archive, analyze, replay and reconcile large backlogs with Spark, here or on a cluster (--master).",
    {
        "archive": Lazy("pipeline.archive", "archive", "Save a backlog as Parquet files."),
        "follow": Lazy("pipeline.archive", "follow", "Keep an archive up to date while a backlog grows."),
        "replay": Lazy("pipeline.replay", "replay", "Send archived messages to their destinations."),
        "reconcile": Lazy("pipeline.replay", "reconcile", "Check that each archived message has exactly one outcome."),
        "analyze": Lazy("pipeline.analyze", "analyze", "Report on the messages of archived backlogs."),
        "replication-audit": Lazy(
            "pipeline.replication_audit", "replication_audit", "Check what became of the messages of active/active."
        ),
        "trend": Lazy("pipeline.analyze", "trend", "Show how backlogs and findings develop over time."),
    },
)

session = _group(
    """List the sessions of any queue or subscription, and show, set or clear their states.

    An entity is a queue or TOPIC/Subscriptions/NAME that requires sessions.
    """,
    {
        "list": Lazy("transfer.browse", "list_all", "List sessions that hold messages or a state."),
        "show": Lazy("transfer.browse", "show", "Show one session and its state."),
        "set-state": Lazy("transfer.browse", "set_state", "Set the state of a session."),
        "clear": Lazy("transfer.browse", "clear", "Clear the state of a session; its messages stay."),
    },
)

message = _group(
    """Show, dead-letter, delete or reschedule one message of any queue or subscription, by its sequence number.

    Numbers are those that `sbpair entity peek` and `sbpair dlq peek` show. To change one: `sbpair edit`.
    """,
    {
        "show": Lazy("transfer.message", "show", "Show one message with its body and properties."),
        "dead-letter": Lazy("transfer.message", "dead_letter", "Move one message to the dead letters."),
        "complete": Lazy("transfer.message", "complete", "Delete one message, archived first."),
        "reschedule": Lazy("transfer.message", "reschedule", "Schedule a scheduled message for another time."),
    },
)
