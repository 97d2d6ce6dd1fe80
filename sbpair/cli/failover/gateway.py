"""`sbpair gateway`: an AMQP endpoint for applications of any language, as a service with metrics and health."""

import logging
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import EventLog, load_settings, run_and_show
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.access import shown_name
from sbpair.core.errors import UsageError
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Metric

if TYPE_CHECKING:
    import asyncio

    from sbpair.engine.port import ServerTls
    from sbpair.gateway.keys import Key
    from sbpair.gateway.server import Gateway


DEFAULT_LISTEN = "127.0.0.1:5671"
RELOAD_SECONDS = 2.0
_log = logging.getLogger("sbpair")


class Snippet(StrEnum):
    ENV = "env"
    JSON = "json"
    DOTNET = "dotnet"
    JAVA = "java"
    GO = "go"
    JAVASCRIPT = "javascript"
    SPRING = "spring"
    K8S = "k8s"


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """Messages of all clients. `accepted`: the primary or the backlog has them; `diverted`: the backlog."""

    pair: str
    endpoint: str
    accepted: int
    diverted: int
    refused: int
    unsettled_connections: int
    """Connections that were closed before all of their messages were settled; their clients send those again."""

    def summary(self) -> str:
        told = f"The gateway for {self.pair} has ended: {counted(self.accepted, 'message')} accepted"
        told += f", {self.diverted:,} of them diverted to the backlog" if self.diverted else ""
        return f"{told}, {self.refused:,} refused." if self.refused else f"{told}."


@command(output="cli.failover.gateway:GatewayRun")
def gateway(
    options: Options,
    pair: PairArgument = None,
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients connect to; port 0 for any free one.")
    ] = DEFAULT_LISTEN,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RIGHTS[@PATTERNS]",
            help="A random key, e.g. checkout=send@orders; repeatable. Default: app=send,listen.",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys of a file, read again when it changes.")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM); without it an own authority's.")
    ] = None,
    cert_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")] = None,
    tls: Annotated[bool, typer.Option(help="Print connection strings for AMQP over TLS.")] = False,
    snippet: Annotated[Snippet, typer.Option(help="How the connection strings are printed.")] = Snippet.ENV,
    metrics_on: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65535, help="Serve /metrics and /healthz on this port; 0 for any free one."
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address that --metrics-port listens on.")] = "127.0.0.1",
    send_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="What a message has, on both sides together.")
    ] = "1m",
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a stop waits for what is unsettled.")
    ] = "10s",
) -> CommandResult:
    """Run as a service: an AMQP endpoint that passes everything to the primary, and diverts sends while it is away.

    Applications get another connection string and change nothing else. A message is accepted when the primary or the
    backlog has it; nothing is stored here. Without TLS only clients on this machine are let in. SIGTERM and Ctrl-C
    let in nobody new, wait for what is unsettled and close. More: `sbpair help gateway`

    \b
    Examples:
      sbpair gateway orders
      sbpair gateway orders --key checkout=send@orders --key worker=listen --metrics-port 9465
      sbpair gateway orders --listen 0.0.0.0:5671 --keys keys.yaml --cert tls.pem --cert-key tls.key --tls
    """
    from sbpair.engine.origins import is_loopback

    chosen = load_settings(options).pair(pair)
    host, port = _address(listen)
    if not is_loopback(host) and keys is None:
        raise UsageError("On an address that other machines reach, keys come from a file: give --keys.")
    if (cert is None) != (cert_key is None):
        raise UsageError("--cert and --cert-key are given together.")
    own = _own_keys(key, keys)
    grace_seconds, send_seconds = duration_option(grace) or 0.0, duration_option(send_timeout) or 60.0

    async def work(stop: "asyncio.Event") -> GatewayRun:
        from sbpair.cli.transfer.metrics_endpoint import metrics_port
        from sbpair.gateway.server import open_gateway

        try:
            opening = open_gateway(
                chosen, _with_file(own, keys), _tls(cert, cert_key, host), host=host, number=port, names=(host,),
                observer=EventLog(), send_seconds=send_seconds,
            )  # fmt: skip
            async with AsyncExitStack() as stack:
                running = await stack.enter_async_context(opening)
                if metrics_on is not None:
                    await stack.enter_async_context(metrics_port(_Metrics(running), metrics_host, metrics_on))
                _say(running, snippet, plain=is_loopback(host) and not tls)
                running.house.pairing.keep_verifying()
                await _until(stop, running, own, keys)
                unsettled = await running.drain(grace_seconds)
        except OSError as error:
            raise UsageError(f"Cannot listen on {listen}: {error.strerror or error}") from error
        counts = running.house.counts
        figures = counts.accepted, counts.diverted, counts.refused
        return GatewayRun(chosen.name, running.endpoint, *figures, unsettled)

    def shown(done: GatewayRun) -> CommandResult:
        return CommandResult("gateway", done, summary=done.summary(), closing=True)

    return run_and_show(options, work, shown, nothing="Nothing was served.")


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen is HOST:PORT, such as {DEFAULT_LISTEN}, not {listen}.")
    return host.strip("[]"), int(port)


def _own_keys(given: list[str] | None, file: Path | None) -> "tuple[Key, ...]":
    from sbpair.gateway.keys import parse_key

    return tuple(map(parse_key, given or ([] if file is not None else ["app=send,listen"])))


def _with_file(own: "tuple[Key, ...]", file: Path | None) -> "tuple[Key, ...]":
    from sbpair.gateway.keys import read_keys

    found = (*own, *(read_keys(file) if file is not None else ()))
    if len({one.name for one in found}) < len(found):
        raise UsageError("Two keys have the same name.")
    return found


def _tls(cert: Path | None, key: Path | None, host: str) -> "ServerTls":
    """The certificate: the one that was given, or that of an authority of this user's own."""
    import os

    from sbpair.engine.tls import CertificateFiles, TlsFiles
    from sbpair.settings.state import state_directory

    if cert is not None and key is not None:
        return CertificateFiles(cert, key)
    return TlsFiles(state_directory(os.environ) / "gateway-tls", host)


def _say(running: "Gateway", snippet: Snippet, *, plain: bool) -> None:
    """Connection strings on stdout, everything else on stderr."""
    from sbpair.gateway.snippets import SNIPPETS

    pair = running.house.pair
    _log.info(
        f"Gateway of {pair.name} on {running.endpoint}: sends to {shown_name(pair.primary)}, "
        f"or to the backlog on {shown_name(pair.secondary)}. Ctrl-C ends it."
    )
    for key in running.house.ring.keys:
        sys.stdout.write(SNIPPETS[snippet](running.connection_string(key.name, plain=plain)) + "\n")
    sys.stdout.flush()


async def _until(stop: "asyncio.Event", running: "Gateway", own: "tuple[Key, ...]", file: Path | None) -> None:
    """Wait for the end, and take over a changed file of keys."""
    import asyncio

    from sbpair.core.errors import SbpairError

    changed = None if file is None else _changed_at(file)
    while not stop.is_set():
        try:
            async with asyncio.timeout(RELOAD_SECONDS):
                await stop.wait()
        except TimeoutError:
            pass
        if file is None:
            continue
        try:
            now = _changed_at(file)
            if now != changed:
                changed = now
                running.house.ring.replace(_with_file(own, file))
                _log.info(f"The keys of {file} have changed and are in force.")
        except (OSError, SbpairError) as error:
            _log.warning(f"{error} The keys that were in force stay.")


def _changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns


class _Metrics:
    """The gateway, as monitoring sees it."""

    def __init__(self, running: "Gateway") -> None:
        self._running = running

    def text(self) -> str:
        from sbpair.render.monitoring import exposition

        return exposition(self._samples())

    def troubles(self) -> list[str]:
        return self._running.house.troubles()

    def _samples(self) -> Iterator[Metric]:
        house = self._running.house
        pair = ("pair", house.pair.name)
        for entity, (accepted, diverted, refused) in sorted(house.counts.by_entity.items()):
            for outcome, value in (("primary", accepted - diverted), ("backlog", diverted), ("refused", refused)):
                labels = (pair, ("entity", entity), ("outcome", outcome))
                yield Metric(
                    "sbpair_gateway_messages_total", "Messages of clients, by what became of them.", value, labels, True
                )
        for one in house.pairing.state().entities:
            labels = (pair, ("entity", one.entity), ("state", one.state.value))
            yield Metric("sbpair_gateway_entity_state", "1 for the state of an entity's sends.", 1, labels)
        yield Metric(
            "sbpair_gateway_connections", "Connections of clients.", len(self._running.port.connections), (pair,)
        )
        yield Metric("sbpair_gateway_ready", "1 if messages can be accepted.", float(not self.troubles()), (pair,))
