"""`sbpair gateway`: an AMQP endpoint for applications of any language, as a service with metrics and health."""

import logging
import os
import sys
from contextlib import AsyncExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import EventLog, Stop, choose_pairs, load_settings, run_and_show
from sbpair.cli.options import AllPairsArgument, Options, address_option, command, duration_option
from sbpair.cli.transfer.options import MetricsOptions
from sbpair.core.access import shown_name
from sbpair.core.errors import UsageError
from sbpair.core.failover.measured import GatewayEntity, GatewayPair, GatewayRun
from sbpair.core.outcome import Exit
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, concluded, table_of

if TYPE_CHECKING:
    from sbpair.engine.port import ServerTls
    from sbpair.gateway.keys import GatewayKey
    from sbpair.gateway.server import Gateway

DEFAULT_LISTEN = "127.0.0.1:5671"
STATUS = "status"
STATUS_SECONDS = 10.0
_log = logging.getLogger("sbpair")


Snippet = StrEnum("Snippet", ["ENV", "JSON", "DOTNET", "JAVA", "GO", "JAVASCRIPT", "SPRING", "K8S", "NONE"])


@command(output="core.failover.measured:GatewayOutput")
def gateway(
    options: Options,
    pairs: AllPairsArgument = None,
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients connect to; port 0 for any free one.")
    ] = DEFAULT_LISTEN,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RIGHTS[@PATTERNS]",
            help="A key, e.g. checkout=send@orders, random or from SBPAIR_GATEWAY_KEY_NAME; repeatable. "
            "Default: app=send,listen.",
        ),
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="Keys of a file, read again when it changes.")] = None,
    pass_tokens: Annotated[
        bool, typer.Option(help="Take the applications' own tokens too; the primary judges their rights.")
    ] = False,
    domain: Annotated[str, typer.Option(metavar="NAME", help="Of several pairs each goes by PAIR.NAME.")] = "localhost",
    cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM); without it an own authority's.")] = None,
    cert_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls: Annotated[bool, typer.Option(help="Print connection strings for AMQP over TLS.")] = False,
    snippet: Annotated[Snippet, typer.Option(help="How the connection strings are printed.")] = Snippet.ENV,
    monitored: MetricsOptions,
    send_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="What a message has, on both sides together.")
    ] = "55s",
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a stop waits for what is unsettled.")
    ] = "10s",
) -> CommandResult:
    """Run as a service: an AMQP endpoint that passes everything to the primary, and diverts sends while it is away.

    Applications get another connection string and change nothing else. A message is accepted when the primary or the
    backlog has it; nothing is stored here. Without TLS only clients on this machine are let in. SIGTERM and Ctrl-C
    refuse new clients, wait for unsettled messages and close. SIGUSR1, or a change of a file, has keys and
    configuration read again; links stay. `sbpair gateway status` shows the one that runs at --listen. More: `sbpair
    help gateway`

    \b
    Examples:
      sbpair gateway orders
      sbpair gateway status
      sbpair gateway orders --key checkout=send@orders --key worker=listen --metrics-port 9465
      sbpair gateway orders --listen 0.0.0.0:5671 --keys keys.yaml --cert tls.pem --cert-key tls.key --tls
    """
    from sbpair.engine.auth import is_loopback
    from sbpair.gateway.web import read_status

    host, port = address_option(listen, DEFAULT_LISTEN)
    if pairs == [STATUS]:
        return _shown(read_status(host, port, options.timeout_seconds(STATUS_SECONDS)))
    chosen = choose_pairs(load_settings(options), pairs)
    if not is_loopback(host) and keys is None and not pass_tokens:
        raise UsageError("On an address that other machines reach, keys come from a file: give --keys.")
    if (cert is None) != (cert_key is None):
        raise UsageError("--cert and --cert-key are given together.")
    own = _own_keys(key, keys, pass_tokens)
    grace_seconds, send_seconds = duration_option(grace) or 0.0, duration_option(send_timeout) or 55.0
    certificate = _tls(cert, cert_key, host, f"*.{domain}")

    async def work(stop: Stop) -> GatewayRun:
        from sbpair.gateway.keys import with_file
        from sbpair.gateway.server import GatewaySettings, Reloading, open_gateway, sum_of
        from sbpair.render.monitored import GatewayMetrics, metrics_port

        serving = GatewaySettings(
            names=(host,), domain=domain, observer=EventLog(), send_seconds=send_seconds, pass_tokens=pass_tokens
        )
        try:
            async with AsyncExitStack() as stack:
                opening = open_gateway(chosen, with_file(own, keys), certificate, serving, host=host, number=port)
                running = await stack.enter_async_context(opening)
                if (address := monitored.address) is not None:
                    await stack.enter_async_context(metrics_port(GatewayMetrics(running.front), *address))
                _say(running, snippet, plain=is_loopback(host) and not tls)
                running.keep_verifying()
                again = partial(load_settings, options, to_act=False)
                files = partial(_files, options, keys)
                await Reloading(running, own, keys, lambda: choose_pairs(again(), pairs), files).until(stop)
                unsettled = await running.drain(grace_seconds)
        except OSError as error:
            raise UsageError(f"Cannot listen on {listen}: {error.strerror or error}") from error
        total = sum_of(house.total for house in running.front.houses.values())
        figures = total.accepted, total.diverted, total.refused
        return GatewayRun(tuple(running.front.houses), running.endpoint(), *figures, unsettled)

    return run_and_show(options, work, concluded, nothing="Nothing was served.")


def _shown(told: tuple[GatewayPair, ...]) -> CommandResult:
    troubles = [text for one in told for text in one.troubles]
    count = sum(one.connections for one in told)
    return CommandResult(
        told,
        (table_of(GatewayEntity, [row for one in told for row in one.entities]),),
        notes=tuple(troubles),
        summary=f"{'Not ready' if troubles else 'Ready'}; {counted(count, 'connection')}.",
        exit=Exit.FAILED if troubles else Exit.OK,
    )


def _files(options: Options, keys: Path | None) -> list[Path]:
    """What the keys and pairs are read from."""
    from sbpair.settings.files import config_files

    return [*([] if keys is None else [keys]), *config_files(options.config, os.environ, Path.cwd())]


def _own_keys(given: list[str] | None, file: Path | None, pass_tokens: bool) -> "tuple[GatewayKey, ...]":
    from sbpair.gateway.keys import parse_key

    return tuple(map(parse_key, given or ([] if file is not None or pass_tokens else ["app=send,listen"])))


def _tls(cert: Path | None, key: Path | None, *hosts: str) -> "ServerTls":
    """The certificate: the one that was given, or that of an authority of this user's own."""
    from sbpair.engine.tls import CertificateFiles, TlsFiles
    from sbpair.settings.state import state_directory

    if cert is not None and key is not None:
        return CertificateFiles(cert, key)
    return TlsFiles(state_directory(os.environ) / "gateway-tls", *hosts)


def _say(running: "Gateway", snippet: Snippet, *, plain: bool) -> None:
    """Connection strings on stdout, everything else on stderr."""
    from sbpair.gateway.keys import SNIPPETS

    for house in running.front.houses.values():
        pair = house.pair
        _log.info(
            f"Gateway of {pair.name} on {running.endpoint(pair.name)}: sends to {shown_name(pair.primary)}, "
            f"or to the backlog on {shown_name(pair.secondary)}. Ctrl-C ends it."
        )
        for signer in house.signers("") if snippet in SNIPPETS else ():
            text = running.connection_string(signer.rule.name, pair=pair.name, plain=plain)
            sys.stdout.write(SNIPPETS[snippet](text) + "\n")
    sys.stdout.flush()
