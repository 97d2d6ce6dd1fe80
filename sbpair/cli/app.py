"""The contents page of the command line: which command lives in which file. No work happens here, no command is
imported before it is called."""

from typing import Annotated, Any, ClassVar

import typer

from sbpair.cli.lazy_group import Entry, LazyGroup
from sbpair.cli.options import before_the_command, with_common_options
from sbpair.version import __version__

GROUPS = {
    "Find and recover": {
        "discover": Entry("inspection.discover", "discover", "Find out whether you have backlog queues, and whose."),
        "status": Entry("inspection.status", "status", "Show what is waiting, and whether both namespaces answer."),
        "audit": Entry("inspection.audit", "audit", "Find stranded messages and wrong, missing or extra queues."),
        "peek": Entry("transfer.peek", "peek", "Show waiting messages, oldest first; nothing is taken."),
        "drain": Entry("transfer.drain", "drain", "Send waiting messages to their destinations, then stop."),
        "syphon": Entry("transfer.syphon", "syphon", "Send waiting messages as they arrive, as a service."),
        "incident": Entry("transfer.incident", "incident", "Guide through a recovery, one command after another."),
        "report": Entry("transfer.ledger_report", "report", "Tell an incident from its ledgers, and verify them."),
        "restore": Entry("transfer.restore", "restore", "Send archived messages to their destinations."),
        "cleanup": Entry("inspection.cleanup", "cleanup", "List and delete backlog queues that no pair needs."),
    },
    "Set up": {
        "config": Entry("config", "app", "Show and check the configuration."),
        "doctor": Entry("inspection.doctor", "doctor", "Check configuration, credentials, rights, clock and Java."),
        "provision": Entry(
            "inspection.provision", "provision", "Create the backlog queues of a pair on its secondary."
        ),
        "exporter": Entry("inspection.exporter", "exporter", "Serve figures of namespaces and pairs for Prometheus."),
        "export": Entry("export", "export", "Write alerts, dashboard, services, jobs and templates to install."),
    },
    "Any entity": {
        "entity": Entry("groups", "entity", "List, create, disable and delete queues, topics and rules."),
        "dlq": Entry("groups", "dlq", "List, resubmit and delete dead letters of any queue or subscription."),
        "diff": Entry("inspection.diff", "diff", "Compare the entities of two namespaces, files or snapshots."),
        "move": Entry("transfer.move", "move", "Send messages of any entity to another one, and complete them."),
        "copy": Entry("transfer.move", "copy", "Send copies of the messages of any entity to another one."),
        "explain": Entry("transfer.message", "explain", "Explain why a message lies where it lies, and what to do."),
        "session": Entry("groups", "session", "List sessions; show, set and clear their states."),
        "message": Entry("groups", "message", "Show, dead-letter, delete or reschedule one message."),
        "edit": Entry("transfer.edit", "edit", "Change messages in an editor and send them in their place."),
        "undefer": Entry("transfer.message", "undefer", "Make deferred messages of any queue active again."),
        "purge": Entry("transfer.purge", "purge", "Delete messages of any entity, archived first."),
        "evacuate": Entry("transfer.evacuate", "evacuate", "Move all entities and messages to another namespace."),
    },
    "Applications": {
        "gateway": Entry("failover.gateway", "gateway", "Give applications of any language failover, as a service."),
        "send": Entry("failover.send", "send", "Send messages; to the secondary while the primary is down."),
        "ping": Entry("failover.ping", "ping", "Measure how fast each namespace answers, and check your rights."),
        "replicate": Entry("groups", "replicate", "Send to both namespaces; process each message once, in order."),
    },
    "Plan": {
        "cost": Entry("cost.cost", "cost", "Estimate what a pair costs a month, line by line."),
        "pipeline": Entry("groups", "pipeline", "Archive, analyze and replay large backlogs with Spark."),
    },
    "Try": {
        "demo": Entry("demo", "demo", "Play through an outage on two embedded namespaces."),
        "emulator": Entry("emulator", "app", "Run embedded Service Bus namespaces (the pair `local`)."),
    },
    "Help": {
        "help": Entry("help", "help_on", "Explain terms, exit codes, rights or a command."),
        "cheat": Entry("help", "cheat", "Show the commands for common tasks."),
        "schema": Entry("schema", "schema", "Print the JSON Schema of a command's -o json."),
        "completion": Entry("completion", "completion", "Print the completion script of a shell."),
    },
}
"""Heading in the help -> name -> file in this package, function or typer app in it, and its line in the help."""
COMMANDS = {name: entry for entries in GROUPS.values() for name, entry in entries.items()}


class _Commands(LazyGroup):
    GROUPS: ClassVar = GROUPS


app = typer.Typer(
    name="sbpair",
    cls=_Commands,
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
