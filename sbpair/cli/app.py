"""The contents page of the command line: which command lives in which file. No work happens here, no command is
imported before it is called."""

from typing import Annotated, Any

import typer

from sbpair.cli.contents import Contents, Entry
from sbpair.cli.options import before_the_command, with_common_options
from sbpair.version import __version__

COMMANDS = {
    "demo": Entry("demo", "demo", "Show the whole system on two embedded namespaces, and prove that nothing is lost."),
    "emulator": Entry("emulator", "app", "Run embedded Service Bus namespaces until Ctrl-C: the pair `local`."),
    "provision": Entry("provision", "provision", "Create the backlog queues that a pair needs on its secondary."),
    "audit": Entry("audit", "audit", "Check that pairs are as they should be: missing, extra, stranded, drift."),
    "cleanup": Entry("cleanup", "cleanup", "Show the extra backlog queues; --apply deletes those that are empty."),
    "peek": Entry("peek", "peek", "Browse the messages of a pair's backlog queues, oldest first."),
    "drain": Entry("drain", "drain", "Bring the messages of a pair's backlog home, exactly as they were sent."),
    "syphon": Entry("syphon", "syphon", "Bring home what comes into the backlog, for ever: drain as a service."),
    "replicate": Entry("replicate", "app", "Active/active: each message to both namespaces, processed once, in order."),
    "send": Entry("send", "send", "Send lines to a queue or topic; to the backlog while the primary is down."),
    "ping": Entry("ping", "ping", "Measure whether and how fast each side of a pair answers, and with which right."),
    "cost": Entry("cost", "cost", "Estimate what a pair costs a month, line by line, each with its rule."),
    "status": Entry("status", "status", "Show a pair on one screen: both sides, the backlog, when it is home."),
    "doctor": Entry("doctor", "doctor", "Check configuration, credentials, rights, clock, Java; say what to do."),
    "pipeline": Entry("pipeline", "app", "Archive, analyse, replay and reconcile large backlogs on Spark."),
    "config": Entry("config", "app", "Show and check the configuration: what is in force, and where it came from."),
    "schema": Entry("schema", "schema", "Print the JSON Schema of what a command writes with -o json."),
    "completion": Entry("completion", "completion", "Print the completion script of a shell."),
    "help": Entry("help", "help_on", "Explain exit codes, configuration, permissions or environment variables."),
}
"""Name -> file in this package, function or typer app in it, and its line in the help."""


class _Commands(Contents):
    ENTRIES = COMMANDS


app = typer.Typer(
    name="sbpair",
    cls=_Commands,
    help="""Operate paired Azure Service Bus namespaces: provision backlog queues, audit them, bring messages home.

    Try it without an Azure account: sbpair demo

    \b
    Examples:
      sbpair audit orders
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
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


def _root(ctx: typer.Context, version: VersionOption = False, **values: Any) -> None:
    before_the_command(ctx, **values)


app.callback()(with_common_options(_root))
