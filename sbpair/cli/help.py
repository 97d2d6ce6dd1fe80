"""`sbpair help TOPIC`: what every script and every 3 a.m. reader wants to look up."""

from enum import StrEnum
from typing import Annotated

import typer

from sbpair.cli.options import Options, command
from sbpair.core.outcome import Exit
from sbpair.render.result import CommandResult
from sbpair.settings import environment_names


class Topic(StrEnum):
    EXIT_CODES = "exit-codes"
    CONFIG = "config"
    PERMISSIONS = "permissions"
    ENVIRONMENT = "environment"


EXIT_CODES = {
    Exit.OK: "done, nothing to report",
    Exit.FAILED: "the work failed",
    Exit.USAGE: "wrong options or configuration",
    Exit.PARTIAL: "some items failed or were skipped for a reason other than nothing to do",
    Exit.DENIED: "authentication or authorisation",
    Exit.FINDINGS: "audit found something at or above --fail-on; a dry run found changes; send diverted messages",
    Exit.UNREACHABLE: "a namespace could not be reached in time",
    Exit.INTERRUPTED: "SIGINT, after in-flight messages were settled or released; a second signal skips that",
    Exit.TERMINATED: "SIGTERM, likewise",
}

PERMISSIONS = (
    ("provision, cleanup", "secondary", "Manage", "Azure Service Bus Data Owner"),
    ("audit", "both", "Manage (without it, checks are skipped with the reason)", "Azure Service Bus Data Owner"),
    ("peek", "secondary", "Listen", "Azure Service Bus Data Receiver"),
    ("drain, syphon", "secondary / primary", "Listen / Send", "Data Receiver / Data Sender"),
    ("send", "primary / secondary", "Send / Manage (to verify the backlog queues)", "Data Sender / Data Owner"),
    ("ping", "both", "Send on entities, Listen on backlog queues", "Data Sender, Data Receiver"),
    ("ping --control-plane", "both", "Manage", "Azure Service Bus Data Owner"),
    ("status", "both", "Manage (for tiers and counts), Listen on backlog queues", "Data Owner; or Data Receiver alone"),
    ("doctor", "both", "none needed: says which of Manage, Listen and Send are there", ""),
    ("pipeline archive / replay", "secondary / primary", "Listen / Send", "Data Receiver / Data Sender"),
    ("replicate send / consume", "both", "Send / Listen", "Data Sender / Data Receiver"),
    ("cost, config, completion, schema", "none", "nothing is contacted", ""),
)

CONFIG = """\
sbpair.yaml is looked for with --config, SBPAIR_CONFIG, upwards from the working directory to the repository root, then
in the XDG configuration folder (~/.config/sbpair). Flags win over the environment, that over the project's file, that
over the user's.

    version: 1
    pairs:
      orders:
        primary:   {namespace: contoso-weu.servicebus.windows.net}
        secondary: {namespace: contoso-neu.servicebus.windows.net}
        backlog_queues: 10            # 1 to 10,000
        failover_interval: 1m         # 0 to 60m
        ping_interval: 1m             # 1s to 30m
        entities: [orders, invoices/incoming]
        protected: ["*/x-servicebus-transfer/0"]
        environment: production
    auth: azure-cli                   # or managed-identity, workload-identity, environment, browser, default

With a key instead of an identity (a secret is never written into the file):

        secondary: {connection_string: {env: CONTOSO_NEU}}

A connection string with EntityPath is for that one entity, as it is for the Azure SDKs: enough to send to a queue of
the primary, not for the backlog queues.

Without any file: SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING make a pair. The pair `local`
means the namespaces of a running `sbpair emulator`. See also: sbpair config show, sbpair config schema.
"""


@command
def help_on(
    options: Options,
    topic: Annotated[Topic, typer.Argument(metavar="TOPIC", help="exit-codes, config, permissions or environment.")],
) -> CommandResult:
    """Explain exit codes, the configuration, the rights each command needs, or the environment variables.

    \b
    Examples:
      sbpair help exit-codes
      sbpair help permissions
    """
    match topic:
        case Topic.EXIT_CODES:
            data = [{"code": int(code), "name": code.label, "when": when} for code, when in EXIT_CODES.items()]
            text = "".join(f"{line['code']:>4}  {line['name']:<12} {line['when']}\n" for line in data)
            return CommandResult("help", data, text=text, prose=True)
        case Topic.PERMISSIONS:
            rights = [
                dict(zip(("command", "side", "sas_right", "entra_role"), row, strict=True)) for row in PERMISSIONS
            ]
            text = "".join(
                f"{command}\n    {side}: {right}{f' ({role})' if role else ''}\n"
                for command, side, right, role in PERMISSIONS
            )
            return CommandResult("help", rights, text=text, prose=True)
        case Topic.ENVIRONMENT:
            names = environment_names()
            text = "".join(f"{name}\n    {doc}\n" for name, doc in sorted(names.items()))
            return CommandResult("help", names, text=text, prose=True)
    return CommandResult("help", {"text": CONFIG}, text=CONFIG, prose=True)
