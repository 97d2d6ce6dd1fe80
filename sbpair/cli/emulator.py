"""`sbpair emulator`: embedded namespaces in the foreground, and the faults of running ones."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli import emulator_start as start
from sbpair.cli import suggestions
from sbpair.cli.context import Stop, run_async
from sbpair.cli.hooks import Alone
from sbpair.cli.options import Options, before_the_command, command
from sbpair.core.access import Secret, parse_connection_string
from sbpair.core.errors import ConfigurationError, SbpairError, UsageError
from sbpair.core.names import check_namespace_label
from sbpair.core.redact import quoted, shortened
from sbpair.core.serialization import column, to_plain
from sbpair.core.words import counted
from sbpair.render.console import say, write_atomically
from sbpair.render.result import Column, CommandResult, Table, columns_of, table_of
from sbpair.settings import (
    LOCAL_NAMESPACES,
    DocumentError,
    data_directory,
    emulator_state,
    parse_yaml_with_lines,
    read_text,
    state_directory,
)
from sbpair.settings.state import EMULATOR_STATE_FILE, EmulatorState

if TYPE_CHECKING:
    from sbpair.emulator import AliasConfig, Emulator, EmulatorThread
    from sbpair.emulator.control import FaultControl

DEFAULT_PORT = 5680

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class TriedClient:
    """A release of a client that was run, unmodified, against the emulator.

    `failed` names scenarios; `not_applicable` says what the client itself has not got.
    """

    client: str
    version: str
    language: str
    scenarios: int
    passed: int
    failed: tuple[str, ...]
    not_applicable: tuple[str, ...]
    tried_on: str
    """ISO 8601; empty for the clients that a test of the project runs again."""


Listed = tuple[start.NotEmulated, ...] | tuple[TriedClient, ...] | tuple[start.ServiceLaw, ...]


@app.callback(invoke_without_command=True)
@command(
    output="cli.emulator:Listed",
    besides="While it serves it prints lines, NAMESPACE<TAB>CONNECTION STRING; "
    "-o json is for --laws, --not-emulated and --compatibility.",
)
def emulator(
    options: Options,
    ctx: typer.Context,
    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name of a namespace; repeatable.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of the first namespace, the next ones follow; 0 for any free ports."),
    ] = DEFAULT_PORT,
    admin_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for fault control, which no fault affects; 0 for any free one.")
    ] = 0,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all, and any machine's clients.")
    ] = "127.0.0.1",
    microsoft_ports: Annotated[
        bool,
        typer.Option(
            help="Listen where Microsoft's emulator does, 5672 and 5300, and take the key in its connection string."
        ),
    ] = False,
    standard_ports: Annotated[
        bool,
        typer.Option(help="Listen on 5671 and 443, for clients limited to these ports; an address for each namespace."),
    ] = False,
    new_keys: Annotated[
        bool, typer.Option(help="Make new keys and certificates, instead of those of the last start.")
    ] = False,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name clients use beside localhost, e.g. *.example.com; repeatable."),
    ] = None,
    bearer_tokens: Annotated[
        bool | None,
        typer.Option(
            "--bearer-tokens/--no-bearer-tokens",
            help="Take Entra ID tokens of any signer; by default only when listening on this machine alone.",
        ),
    ] = None,
    tls: Annotated[bool, typer.Option(help="Print connection strings for AMQP over TLS.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep entities and messages in this folder; survives kill -9.")
    ] = None,
    seed: Annotated[
        Path | None,
        typer.Option(help="Entities to start with: YAML, JSON, or the Config.json of Microsoft's emulator."),
    ] = None,
    sample: Annotated[
        start.SampleWorld | None,
        typer.Option(
            metavar=f"[{'|'.join(start.SampleWorld)}]",
            help="Start with messages to try commands on: outage (the default) has 500 of them in ten backlog queues, "
            "dead-letters a queue and a subscription whose consumers failed, entities the queues and topics of an "
            "application without backlog queues.",
        ),
        Alone("outage"),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAMESPACE/]SPEC", help="Start with this fault, e.g. throttle:entity=orders,for=30s; repeatable."
        ),
    ] = None,
    ui: Annotated[
        bool, typer.Option(help="Serve a page for a browser on this machine; its address is printed.")
    ] = False,
    throttling: Annotated[
        bool,
        typer.Option(help="Throttle as the service does: 1,000 credits a second, in the Premium tier 4 MB a second."),
    ] = False,
    alias: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Pair the first two namespaces under this Geo-DR alias; Premium unless the seed says otherwise.",
        ),
    ] = None,
    lax: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAW[=other]",
            help="Do not keep this law of the service, or keep it in the other form that it may have; repeatable.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Keep every law of the service, which is the default; refuses --lax.")
    ] = False,
    laws: Annotated[bool, typer.Option(help="List the known laws of the service, and exit.")] = False,
    law: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="List all that is known of this law, and exit; repeatable.")
    ] = None,
    not_emulated: Annotated[bool, typer.Option(help="List what is not emulated, and exit.")] = False,
    compatibility: Annotated[bool, typer.Option(help="List the client releases that were tried, and exit.")] = False,
) -> CommandResult:
    """Run embedded Service Bus namespaces until Ctrl-C. The pair `local` is the first two of them.

    Each namespace has one port for AMQP, AMQP over TLS, AMQP over WebSocket, and administration over HTTPS. Connection
    strings for .NET and other languages, fixtures of tests, containers: `sbpair help testing`

    \b
    Examples:
      sbpair emulator
      sbpair emulator --sample
      sbpair emulator --namespace contoso-weu --namespace contoso-neu --data-dir ./namespaces --seed seed.yaml
      sbpair emulator --microsoft-ports --seed Config.json
      sbpair emulator fault add local-primary dark:for=30s
      sbpair emulator --alias contoso
      sbpair emulator --lax partitioned-batch-key
    """
    if ctx.invoked_subcommand is not None:
        return CommandResult(None)
    if not_emulated:
        return start.not_emulated()
    if laws or law:
        return start.listed(law or ())
    if compatibility:
        return _compatibility()
    from sbpair.emulator import AliasConfig
    from sbpair.engine.errors import EmulatorError, StoreError

    doors = start.Doors(host, port, microsoft_ports, standard_ports, start.http_port(os.environ))
    if seed is None and not sample:
        seed = start.microsoft_config(doors)
    contents, suggested = read_seed(seed, (start.MICROSOFT_NAMESPACE,) if microsoft_ports else LOCAL_NAMESPACES)
    names = [check_namespace_label(name) for name in namespace or suggested]
    if sample and (seed is not None or len(names) < 2):
        raise UsageError(
            "--sample makes a pair of two namespaces and fills it: leave out --seed and a single --namespace.",
            hint="sbpair emulator --sample",
        )
    if unknown := set(contents) - set(names):
        raise start.SeedFileError(
            f"Seed file {seed} refers to unknown namespaces: {shortened(', '.join(sorted(map(str, unknown))))}; "
            f"known: {', '.join(names)}."
        )
    bent = start.bent(lax or (), strict=strict)
    if alias is not None and len(names) < 2:
        raise UsageError(
            "--alias pairs two namespaces. Nothing was started.", hint="Name two: --namespace A --namespace B"
        )
    aliases = [] if alias is None else [AliasConfig(check_namespace_label(alias), *names[:2])]
    paired = names[:2] if aliases else ()
    configs = start.configs(names, doors, contents, os.environ, throttled=throttling, laws=bent, paired=paired)
    faults = [_split_fault(text, names) for text in fault or ()]
    identity = None if new_keys else start.identity_folder(data_directory(os.environ) / "emulator")

    async def serve(stop: Stop) -> CommandResult:
        from sbpair.emulator import Emulator
        from sbpair.engine.clock import AdvancingClock

        clock = AdvancingClock() if ui else None
        async with Emulator(
            configs,
            host=host,
            data_dir=data_dir,
            identity=identity,
            tls_names=tls_name or (),
            control_port=admin_port,
            allow_entra=bearer_tokens,
            clock=clock,
            aliases=aliases,
        ) as running:
            plant_all(running, contents)
            for name, spec in faults:
                running.faults(name).add(spec)
            with announced(running, names, tls=tls) as is_announced:
                told = ""
                if sample:
                    primary, secondary = map(running.namespace, names[:2])
                    told = start.plant(sample, primary, secondary, "local" if is_announced else "PAIR")
                for name, text in _connection_strings(running, names, contents, aliases):
                    typer.echo(f"{name}\t{_for(text, tls=tls)}")
                sys.stdout.flush()
                say(f"Certificate authority of the administration ports: {running.ca_path}")
                for line in (_whose_pair(names, is_announced), *start.announcement(doors, names), told):
                    if line:
                        say(line)
                if clock is None:
                    await stop.wait()
                    return CommandResult(())
                from sbpair.emulator.window import open_window

                async with open_window(running) as window:
                    say(f"Open in a browser on this machine: {window.url}")
                    await stop.wait()
                clock.close()
        return CommandResult(())

    try:
        return run_async(options, serve)
    except StoreError as error:
        raise UsageError(
            f"The embedded namespaces cannot start: {error}.",
            hint="Stop what else uses the folder, move the file out of the way, or name another folder: --data-dir DIR",
        ) from error
    except (EmulatorError, OSError) as error:
        raise UsageError(
            f"The embedded namespaces cannot start: {getattr(error, 'strerror', None) or error}.",
            hint=start.how_to_open(doors, error) if isinstance(error, OSError) else None,
        ) from error


def compatibility() -> list[dict[str, Any]]:
    """The clients that have been asked, unmodified, and how many of their scenarios passed; kept by the run itself."""
    text = (resources.files("sbpair.emulator") / "compatibility.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def _compatibility() -> CommandResult:
    lists = ("failed", "not_applicable")
    tried = tuple(TriedClient(**row | {name: tuple(row[name]) for name in lists}) for row in compatibility())
    names = ("client", "version", "language", "passed", "scenarios", *lists, "tried_on")
    shown = [one | {name: "; ".join(one[name]) for name in lists} for one in to_plain(tried)]
    in_short = [one | {"passed": f"{one['passed']} of {one['scenarios']}"} for one in shown]
    few = tuple(Column(name, name.capitalize(), right=name == "passed") for name in names[:4])
    notes = [
        f"{one['client']} {one['version']}: {name.replace('_', ' ')}: {one[name]}."
        for name in lists
        for one in shown
        if one[name]
    ]
    screen = (Table("", few, in_short, compact=True),)
    return CommandResult(tried, (Table("", columns_of(TriedClient, names), shown),), notes=tuple(notes), screen=screen)


def read_seed(path: Path | None, usual: Sequence[str]) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Contents by namespace, and the namespaces to have where the command line names none: Microsoft's file is the
    only one that an emulator of theirs is started with, so it says which."""
    if path is None:
        return {}, usual
    from sbpair.emulator.seed import SeedError, is_microsoft_config, seed_of

    try:
        seed = parse_yaml_with_lines(read_text(path))
        if is_microsoft_config(seed):
            contents = seed_of(seed)
            return contents, tuple(contents)
    except (DocumentError, SeedError) as error:
        raise start.SeedFileError(f"Cannot read the seed {path}: {error}") from error
    if not isinstance(seed, dict) or not all(isinstance(body, dict) for body in seed.values()):
        raise start.SeedFileError(f"{path} is no seed, which maps namespace names to their contents.")
    return seed, usual


def plant_all(running: "Emulator", seed: Mapping[str, Any]) -> None:
    from sbpair.emulator.seed import SeedError, plant
    from sbpair.engine.errors import EntityError

    for name, body in seed.items():
        try:
            plant(running.namespace(name), body, os.environ)
        except (SeedError, EntityError) as error:
            raise start.SeedFileError(f"The seed of {name}: {error}") from error


def _split_fault(text: str, names: list[str]) -> tuple[str, str]:
    from sbpair.engine.faults import FaultError, Faults

    head, slash, tail = text.partition("/")
    name, spec = (head, tail) if slash and head in names else (names[0], text)
    try:
        Faults.parse(spec)
    except FaultError as error:
        raise UsageError(f"--fault {shortened(text)}: {error}") from error
    return name, spec


def _connection_strings(
    running: "Emulator", names: list[str], seed: Mapping[str, Any], aliases: "list[AliasConfig]"
) -> Iterator[tuple[str, str]]:
    """Of the namespaces; for the keys of their seed, which are of use only to who knows them; and of the aliases."""
    for name in names:
        yield name, running.connection_string(name)
    for name, body in seed.items():
        for key in body.get("keys") or {}:
            yield f"{name}/{key}", running.connection_string(name, key_name=key)
    for one in aliases:
        yield one.name, running.alias_connection_string(one.name)


def _whose_pair(names: list[str], is_announced: bool) -> str:
    if not is_announced:
        return (
            "The pair `local`, `sbpair emulator env` and `fault` belong to another sbpair emulator "
            "that runs for this user; reach these namespaces by their connection strings. Ctrl-C stops them."
        )
    if len(names) < 2:
        return "A pair needs two namespaces, so there is no pair `local`. Ctrl-C stops this one."
    return "The pair `local` is these namespaces. Ctrl-C stops them."


_PLAIN_AMQP = ";UseDevelopmentEmulator=true"
"""The part of a connection string that turns TLS off for AMQP."""


def _for(text: str, *, tls: bool) -> str:
    """A connection string; for AMQP over TLS the switch that turns TLS off is left out."""
    return text.replace(_PLAIN_AMQP, "") if tls else text


@contextlib.contextmanager
def announced(running: "Emulator | EmulatorThread", names: list[str], *, tls: bool = False) -> Iterator[bool]:
    """Write the state file of running namespaces, from which other commands know them, while they run. Only its owner
    can read it. Gives whether it was written; two namespaces are then the pair `local`.

    A second emulator leaves the file of the first alone, unless it has a pair and the first has none.
    """
    folder = state_directory(os.environ)
    path = folder / EMULATOR_STATE_FILE
    theirs = _somebody_elses()
    if theirs is not None and (len(names) < 2 or len(theirs.connection_string_files) > 1):
        yield False
        return
    namespaces = []
    secrets = [folder / f"emulator-{name}.connection" for name in names]
    for name, file in zip(names, secrets, strict=True):
        write_atomically(file, _for(running.connection_string(name), tls=tls) + "\n", private=True)
        namespaces.append({"name": name, "connection_string_file": str(file)})
    state = {
        "pid": os.getpid(),
        "ca_file": str(running.ca_path),
        "control": running.control_endpoint,
        "namespaces": namespaces,
    }
    write_atomically(path, json.dumps(state, indent=2) + "\n", private=True)
    try:
        yield True
    finally:
        # A pair that was started later has put its own file there, and perhaps a connection string of the same name.
        if _somebody_elses() is None:
            for file in (path, *secrets):
                file.unlink(missing_ok=True)


def _somebody_elses() -> EmulatorState | None:
    """The state that another process, which still runs, has written down."""
    try:
        state = emulator_state(os.environ)
        if state is None or state.pid == os.getpid():
            return None
        os.kill(state.pid, 0)
    except (OSError, ConfigurationError):
        return None
    return state


NamespaceArgument = Annotated[
    str, typer.Argument(help="Name of a running embedded namespace.", autocompletion=suggestions.emulated_namespaces)
]
NamespacesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names of running embedded namespaces; by default all of them.",
        autocompletion=suggestions.emulated_namespaces,
    ),
]


class EnvironmentFormat(StrEnum):
    SH = "sh"
    POWERSHELL = "powershell"
    DOTENV = "dotenv"
    APPSETTINGS = "appsettings"


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    value: str


Variables = tuple[Variable, ...]


@app.command("env")
@command(output="cli.emulator:Variables")
def emulator_env(
    options: Options,
    namespace: NamespacesArgument = None,
    form: Annotated[EnvironmentFormat, typer.Option("--format", help="What reads the lines.")] = EnvironmentFormat.SH,
) -> CommandResult:
    """Print how an application reaches the running embedded namespaces, keys included.

    A namespace contoso-weu is in CONTOSO_WEU, and the certificate authority for TLS in SERVICEBUS_CA_FILE. A shell
    takes them over with eval "$(sbpair emulator env)".

    \b
    Examples:
      sbpair emulator env
      sbpair emulator env --format powershell | Invoke-Expression
      sbpair emulator env local-primary --format dotenv > .env
    """
    state = _running()
    names = list(namespace or state.connection_string_files)
    in_capitals = str.maketrans("-.", "__")
    variables = [
        Variable(name.upper().translate(in_capitals), _connection_string_of(state, name).reveal()) for name in names
    ]
    variables.append(Variable("SERVICEBUS_CA_FILE", state.ca_file))
    if form is EnvironmentFormat.APPSETTINGS:
        text = json.dumps({"ConnectionStrings": {one.name: one.value for one in variables[:-1]}}, indent=2)
    else:
        text = "\n".join(_LINES[form](one) for one in variables)
    return CommandResult(tuple(variables), text=text + "\n")


_LINES: Mapping[EnvironmentFormat, Callable[[Variable], str]] = {
    EnvironmentFormat.SH: lambda one: f"export {one.name}={shlex.quote(one.value)}",
    EnvironmentFormat.POWERSHELL: lambda one: "$env:{} = '{}'".format(one.name, one.value.replace("'", "''")),
    EnvironmentFormat.DOTENV: lambda one: f'{one.name}="{one.value}"',
}


@dataclass(frozen=True, slots=True)
class AliasFailedOver:
    """An alias, and the namespace that it leads to from now on."""

    alias: str
    namespace: str


@app.command("failover")
@command(output="cli.emulator:AliasFailedOver")
def emulator_failover(
    options: Options,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias that the namespaces were started with.")],
) -> CommandResult:
    """Point the alias of the running embedded namespaces to the second one, as a Geo-DR failover does.

    The connections to the first one are cut, the pairing ends, and the first one keeps its messages.

    \b
    Examples:
      sbpair emulator failover contoso
      sbpair emulator failover contoso -o json
    """
    name, *_ = _running().connection_string_files
    with _controlled(name, f"Failover of {alias}") as control:
        now = control.fail_over(check_namespace_label(alias))
    return CommandResult(
        AliasFailedOver(alias, now),
        summary=f"{alias} leads to {now}. What {name} holds is left there. See: sbpair evacuate {name} {now} --dry-run",
        closing=True,
    )


fault_app = typer.Typer(help="List and change the faults of running embedded namespaces.", no_args_is_help=True)
fault_app.callback()(before_the_command)
app.add_typer(fault_app, name="fault")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault as the fault control tells of it; times in seconds since the epoch.

    `seen` and `hits` count operations; None for a fault that lasts, such as dark or delay: it is not counted.
    """

    namespace: str = field(metadata=column("Namespace"))
    id: str = field(metadata=column("Id"))
    text: str = field(metadata=column("Fault"))
    rule: Mapping[str, Any]
    begins_at: float
    ends_at: float | None
    seen: int | None = field(metadata=column("Seen", right=True))
    hits: int | None = field(metadata=column("Hit", right=True))


Faults = tuple[Fault, ...]


def _fault(namespace: str, told: Mapping[str, Any]) -> Fault:
    return Fault(namespace, **{each.name: told[each.name] for each in fields(Fault) if each.name != "namespace"})


@dataclass(frozen=True, slots=True)
class Cleared:
    namespace: str
    id: str | None


@fault_app.command("list")
@command(output="cli.emulator:Faults")
def fault_list(options: Options, namespace: NamespacesArgument = None) -> CommandResult:
    """List the faults in force.

    \b
    Examples:
      sbpair emulator fault list
      sbpair emulator fault list local-secondary -o json
    """
    found: list[Fault] = []
    for name in namespace or _running().connection_string_files:
        with _controlled(name, f"Faults of {name}") as control:
            found += (_fault(name, told) for told in control.list())
    summary = f"{counted(len(found), 'fault')}."
    return CommandResult(tuple(found), (table_of(Fault, found),), summary=summary)


@fault_app.command("add")
@command(output="cli.emulator:Fault")
def fault_add(
    options: Options,
    namespace: NamespaceArgument,
    spec: Annotated[str, typer.Argument(help="KIND[:key=value,...], e.g. dark:for=30s")],
) -> CommandResult:
    """Add a fault to a running namespace.

    \b
    dark, refuse, drop, silent, delay                  of connections
    throttle, quota, disabled, unauthorized, fail      answers to requests
    detach, expire-locks                               of links and locks
    lose-settlement-reply, settle-delay                of answers to settlements
    http-status, list-gap, zero-counts                 of the administration
    partition-down                                     of partitioned entities

    Keys: for (how long), at (from when), entity (a pattern), operation (connect, attach, send, receive, settle,
    management, http), after, nth, every, count, p (probability); rtt of delay and settle-delay, lock of
    expire-locks, status of http-status, condition and description of fail, partition of partition-down.

    \b
    Examples:
      sbpair emulator fault add local-primary dark
      sbpair emulator fault add local-primary throttle:entity=orders,for=30s,after=3
    """
    with _controlled(namespace, shortened(spec), UsageError) as control:
        added = _fault(namespace, control.add(spec))
    return CommandResult(
        added,
        summary=f"Fault {added.id} is in force on {namespace}. End it: sbpair emulator fault clear {namespace}",
        closing=True,
    )


@fault_app.command("clear")
@command(output="cli.emulator:Cleared")
def fault_clear(
    options: Options,
    namespace: NamespaceArgument,
    fault_id: Annotated[str | None, typer.Option("--id", help="Only this one.")] = None,
) -> CommandResult:
    """Remove all faults of a namespace, or one of them.

    \b
    Examples:
      sbpair emulator fault clear local-primary
      sbpair emulator fault clear local-primary --id 3
    """
    with _controlled(namespace, f"Faults of {namespace}") as control:
        if fault_id is None:
            control.clear()
        else:
            control.remove(fault_id)
    removed = f"fault {fault_id}" if fault_id else "all faults"
    return CommandResult(Cleared(namespace, fault_id), summary=f"{namespace}: removed {removed}.", closing=True)


@contextlib.contextmanager
def _controlled(name: str, what: str, refusal: type[SbpairError] = SbpairError) -> "Iterator[FaultControl]":
    """The fault control of a running namespace.

    Raises:
        ConfigurationError: none runs, or it cannot be used. `refusal`: it was asked, and refused; said of `what`.
    """
    from sbpair.emulator.control import ControlError, FaultControl

    state = _running()
    if state.control is None:
        raise ConfigurationError(
            "The embedded namespaces that run have no fault control.", hint="Start others: sbpair emulator"
        )
    text = _connection_string_of(state, name)
    try:
        parts = parse_connection_string(text.reveal())
        control = FaultControl(
            state.control,
            name,
            ca_file=state.ca_file,
            key_name=parts["sharedaccesskeyname"],
            key=parts["sharedaccesskey"],
        )
    except (ControlError, KeyError) as error:
        raise _unusable(state, name, "a key is missing" if isinstance(error, KeyError) else str(error)) from error
    try:
        yield control
    except ControlError as error:
        raise refusal(f"{what}: {error}") from error


def _running() -> EmulatorState:
    state = emulator_state(os.environ)
    if state is None:
        raise ConfigurationError(
            "No embedded namespaces are running for this user.", hint="Start them in another terminal: sbpair emulator"
        )
    return state


def _connection_string_of(state: EmulatorState, name: str) -> Secret:
    files = state.connection_string_files
    if name not in files:
        raise UsageError(f"There is no embedded namespace {quoted(name)}; running: {', '.join(files)}.")
    try:
        return Secret(read_text(Path(files[name])).strip())
    except DocumentError as error:
        raise _unusable(state, name, str(error)) from error


def _unusable(state: EmulatorState, name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"Cannot use {state.connection_string_files[name]}, named by {state.path}: {why}.",
        hint="Delete that file and start sbpair emulator again.",
    )
