"""`sbpair help TOPIC|COMMAND`: what scripts and readers at 3 a.m. want to look up."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.options import Options, command
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.redact import quoted
from sbpair.render.result import CommandResult, table_of
from sbpair.settings import environment_names


class Topic(StrEnum):
    """What can be explained; the last ones are pages beside this file."""

    TERMS = "terms"
    EXIT_CODES = "exit-codes"
    FILTERS = "filters"
    CONFIG = "config"
    PERMISSIONS = "permissions"
    ENVIRONMENT = "environment"
    FAILOVER = "failover"
    GATEWAY = "gateway"
    PAIRING = "pairing"
    SPARK = "spark"
    TESTING = "testing"
    SECURITY = "security"
    MEASUREMENTS = "measurements"
    CONTRIBUTING = "contributing"


@dataclass(frozen=True, slots=True)
class ExitCode:
    code: int
    name: str
    when: str


@dataclass(frozen=True, slots=True)
class Right:
    command: str
    side: str
    sas_right: str
    entra_role: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


_NOTE = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
"""Above a block of a page: how its test runs it."""

ByName = Mapping[str, str]
"""Terms, or environment variables, with their meaning."""
Explained = tuple[ExitCode, ...] | tuple[Right, ...] | ByName | Text

TERMS = {
    "pair": "two Service Bus namespaces, usually in two regions: applications use the primary, and the secondary "
    "takes their messages while the primary is down",
    "primary": "the namespace with the queues and topics that applications send to",
    "secondary": "the namespace that keeps messages for the primary during an outage",
    "backlog queue": "a queue on the secondary, PRIMARY/x-servicebus-transfer/N, with messages that could not be sent "
    "to the primary; each message knows its destination",
    "drain": "send what is in the backlog queues to where it was meant to go on the primary, then stop",
    "syphon": "a drain that keeps running and forwards messages as they come into the backlog queues",
}

EXIT_CODES = {
    Exit.OK: "done, nothing to report",
    Exit.FAILED: "the work failed",
    Exit.USAGE: "wrong options or configuration",
    Exit.PARTIAL: "messages or other items are left, failed, or were skipped",
    Exit.DENIED: "authentication or authorisation",
    Exit.FINDINGS: "audit found something at or above --fail-on; a dry run found changes; send diverted messages",
    Exit.UNREACHABLE: "a namespace could not be reached in time",
    Exit.INTERRUPTED: "SIGINT, after in-flight messages were settled or released; a second signal skips that",
    Exit.TERMINATED: "SIGTERM or SIGHUP (terminal closed), likewise",
}

PERMISSIONS = (
    ("provision, cleanup", "secondary", "Manage", "Azure Service Bus Data Owner"),
    ("audit", "both", "Manage (without it, checks are skipped with the reason)", "Azure Service Bus Data Owner"),
    ("discover", "any namespace", "Manage, Listen on backlog queues", "Azure Service Bus Data Owner"),
    (
        "discover --subscription",
        "any namespace",
        "Listen on backlog queues",
        "Reader on the subscription, Data Receiver",
    ),
    ("peek", "secondary", "Listen", "Azure Service Bus Data Receiver"),
    ("drain, syphon", "secondary / primary", "Listen / Send", "Data Receiver / Data Sender"),
    ("restore", "primary", "Send", "Data Sender"),
    ("purge, dlq list, dlq peek, dlq purge", "any namespace", "Listen", "Data Receiver"),
    ("dlq resubmit, edit", "any namespace", "Listen and Send", "Data Receiver, Data Sender"),
    (
        "move, copy",
        "any two namespaces",
        "Listen / Send; move: Send on FROM for scheduled messages, Listen on TO for session states",
        "Data Receiver / Data Sender",
    ),
    ("evacuate", "any two namespaces", "Manage", "Azure Service Bus Data Owner"),
    ("entity", "any namespace", "Manage; delete also Listen", "Azure Service Bus Data Owner"),
    ("gateway", "both", "Send; what its applications need on the primary", "Data Sender; Data Receiver, Data Owner"),
    ("send", "both", "Send", "Data Sender"),
    ("ping", "both", "Send on entities, Listen on backlog queues", "Data Sender, Data Receiver"),
    ("ping --control-plane", "both", "Manage", "Azure Service Bus Data Owner"),
    ("status", "both", "Manage (for tiers and counts), Listen on backlog queues", "Data Owner; or Data Receiver alone"),
    ("doctor", "both", "none needed: says which of Manage, Listen and Send are there", ""),
    ("pipeline archive / replay", "secondary / primary", "Listen / Send", "Data Receiver / Data Sender"),
    ("replicate send / consume", "both", "Send / Listen", "Data Sender / Data Receiver"),
    ("cost, config, completion, schema", "none", "nothing is contacted", ""),
)

FILTERS = """\
peek, drain, syphon, restore, pipeline archive and pipeline replay take the same filters. All that are given have to
match; what they leave aside does not count as left.

    --destination 'invoices/*'    shell pattern of the path a message was to go to; case does not matter
    --session-id ID               the session it was sent with
    --since, --until TIME         when it came into its queue: 2026-11-21T08:00Z, or 2h for two hours ago
    --where CONDITION             Service Bus SQL, as in the filters of subscription rules

    --where "sys.Subject = 'invoice' AND sys.Size > 1000"
    --where "country IN ('DE', 'FR') OR sys.ContentType LIKE 'application/%'"
    --where "user.amount >= 100 AND NOT EXISTS(user.test)"

A name without a prefix, or with user., is an application property. A condition that asks for a property that a message
does not have is neither true nor false, so the message is left aside. Times are text of one form
(2026-11-21T08:00:00.000Z), sizes are bytes, TimeToLive is in seconds. Properties are those the message was sent with:

"""

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
        policy: documented            # which errors start a failover: documented or sdk
        hold_sessions: false          # keep order within a session across failover and failback
        enable_syphon: false          # applications that open the pair bring its backlog back
        verify: warn                  # try beforehand what an outage will need: warn, require or off
        verify_interval: 1h           # and again so often; 0: once
        create_missing: false         # applications create missing backlog queues, with the Manage right
        entities: [orders, invoices/incoming]
        protected: ["*/x-servicebus-transfer/0"]
        environment: production
    auth: azure-cli                   # or managed-identity, workload-identity, environment, browser, default

With a key instead of an identity (a secret is never written into the file):

        secondary: {namespace: contoso-neu, connection_string: {env: CONTOSO_NEU}}

The connection string must lead to the namespace that is named, or nothing is sent. Where its host has another name - a
Geo-DR alias, a custom endpoint, an embedded namespace on this machine - write the host beside the name:

        primary: {namespace: contoso-weu, host: localhost, connection_string: {env: CONTOSO_WEU}}

A file found in a folder may say so of this machine only; your own file, or one named with --config, of any host.

A connection string with EntityPath is for that one entity, as it is for the Azure SDKs: enough to send to a queue of
the primary, not for the backlog queues.

Without any file: SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING make a pair. The pair `local`
means the namespaces of a running `sbpair emulator`. See also: sbpair config show, sbpair config schema.
"""


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    from sbpair.cli.app import COMMANDS

    if ctx.params.get("words"):
        return []
    return [name for name in (*Topic, *COMMANDS) if name.startswith(incomplete)]


@command(output="cli.help:Explained")
def help_on(
    options: Options,
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC|COMMAND]",
            help=f"{', '.join(Topic)}, or a command.",
            autocompletion=_complete,
        ),
    ] = None,
) -> CommandResult:
    """Explain a topic or a command.

    \b
    Examples:
      sbpair help terms
      sbpair help drain
      sbpair help exit-codes
    """
    match list(words or ()):
        case [Topic.TERMS]:
            return _named(TERMS)
        case [Topic.ENVIRONMENT]:
            return _named(environment_names())
        case [Topic.EXIT_CODES]:
            codes = tuple(ExitCode(int(code), code.label, when) for code, when in EXIT_CODES.items())
            text = "".join(f"{one.code:>4}  {one.name:<12} {one.when}\n" for one in codes)
            return CommandResult("help", codes, (table_of(ExitCode, codes),), text=text, prose=True)
        case [Topic.PERMISSIONS]:
            rights = tuple(Right(*row) for row in PERMISSIONS)
            text = "".join(
                f"{one.command}\n    {one.side}: {one.sas_right}{f' ({one.entra_role})' if one.entra_role else ''}\n"
                for one in rights
            )
            return CommandResult("help", rights, (table_of(Right, rights),), text=text, prose=True)
        case [Topic.FILTERS]:
            from sbpair.core.transfer.filters import SYSTEM_PROPERTIES

            text = FILTERS + "".join(f"    sys.{name}\n" for name in SYSTEM_PROPERTIES)
            return CommandResult("help", Text(text), text=text, prose=True)
        case [Topic.CONFIG]:
            return CommandResult("help", Text(CONFIG), text=CONFIG, prose=True)
        case [topic] if topic in list(map(str, Topic)):
            page = _NOTE.sub("", (Path(__file__).parent / "pages" / f"{topic}.md").read_text(encoding="utf-8"))
            return CommandResult("help", Text(page), text=page, prose=True)
    text = _help_of(ctx, words or ())
    return CommandResult("help", Text(text), text=text)


def _named(meanings: Mapping[str, str]) -> CommandResult:
    text = "".join(f"{name}\n    {meaning}\n" for name, meaning in meanings.items())
    return CommandResult("help", dict(meanings), text=text, prose=True)


def _help_of(ctx: typer.Context, words: Sequence[str]) -> str:
    """What `sbpair WORDS --help` prints.

    Raises:
        UsageError: there is neither such a topic nor such a command.
    """
    context = ctx.find_root()
    for depth, word in enumerate(words):
        known = getattr(context.command, "commands", {})
        if word not in known:
            raise _unknown(words[: depth + 1], [*([] if depth else Topic), *known])
        context = known[word].make_context(word, [], parent=context, resilient_parsing=True)
    return f"{context.get_help()}\n"


def _unknown(words: Sequence[str], known: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(words[-1], known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There is: {', '.join(known) or 'nothing below that command'}."
    return UsageError(f"{quoted(' '.join(words))} is neither a topic nor a command.", hint=hint)
