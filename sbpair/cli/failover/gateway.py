"""`sbpair gateway`: an AMQP endpoint for applications of any language, as a service with metrics and health."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.context import EventLog, Stop, choose_pairs, load_settings, run_and_show
from sbpair.cli.options import AllPairsArgument, Options, address_option, command, duration_option
from sbpair.cli.transfer.options import MetricsOptions
from sbpair.core.access import shown_name
from sbpair.core.errors import ConnectionLostError, SbpairError, UsageError
from sbpair.core.failover.measured import GatewayEntity, GatewayPair
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted, listed
from sbpair.render.result import CommandResult, Metric, Table, columns

if TYPE_CHECKING:
    from sbpair.engine.port import ServerTls
    from sbpair.gateway.keys import Key
    from sbpair.gateway.server import Gateway, House

DEFAULT_LISTEN = "127.0.0.1:5671"
RELOAD_SECONDS = 2.0
STATUS = "status"
STATUS_SECONDS = 10.0
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
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """Messages of all clients. `accepted`: the primary or the backlog has them; `diverted`: the backlog."""

    pairs: tuple[str, ...]
    endpoint: str
    accepted: int
    diverted: int
    refused: int
    unsettled_connections: int
    """Connections that were closed before all of their messages were settled; their clients send those again."""

    def summary(self) -> str:
        told = f"The gateway for {listed(self.pairs)} has ended: {counted(self.accepted, 'message')} accepted"
        told += f", {self.diverted:,} of them diverted to the backlog" if self.diverted else ""
        return f"{told}, {self.refused:,} refused." if self.refused else f"{told}."


GatewayOutput = GatewayRun | tuple[GatewayPair, ...]
"""What `sbpair gateway` tells at its end, and `sbpair gateway status` of a running one."""


@command(output="cli.failover.gateway:GatewayOutput")
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

    host, port = address_option(listen, DEFAULT_LISTEN)
    if pairs == [STATUS]:
        return _status(options, host, port)
    chosen = choose_pairs(load_settings(options), pairs)
    if not is_loopback(host) and keys is None and not pass_tokens:
        raise UsageError("On an address that other machines reach, keys come from a file: give --keys.")
    if (cert is None) != (cert_key is None):
        raise UsageError("--cert and --cert-key are given together.")
    own = _own_keys(key, keys, pass_tokens)
    grace_seconds, send_seconds = duration_option(grace) or 0.0, duration_option(send_timeout) or 55.0
    certificate = _tls(cert, cert_key, host, f"*.{domain}")

    async def work(stop: Stop) -> GatewayRun:
        from sbpair.gateway.server import GatewaySettings, open_gateway, sum_of
        from sbpair.render.monitored import metrics_port

        serving = GatewaySettings(
            names=(host,), domain=domain, observer=EventLog(), send_seconds=send_seconds, pass_tokens=pass_tokens
        )
        try:
            async with AsyncExitStack() as stack:
                opening = open_gateway(chosen, _with_file(own, keys), certificate, serving, host=host, number=port)
                running = await stack.enter_async_context(opening)
                if (address := monitored.address) is not None:
                    await stack.enter_async_context(metrics_port(_Metrics(running), *address))
                _say(running, snippet, plain=is_loopback(host) and not tls)
                running.keep_verifying()
                again = partial(_pairs, options, pairs)
                await _Reloading(running, own, keys, options.config, again).until(stop)
                unsettled = await running.drain(grace_seconds)
        except OSError as error:
            raise UsageError(f"Cannot listen on {listen}: {error.strerror or error}") from error
        total = sum_of(house.total for house in running.front.houses.values())
        figures = total.accepted, total.diverted, total.refused
        return GatewayRun(tuple(running.front.houses), running.endpoint(), *figures, unsettled)

    def shown(done: GatewayRun) -> CommandResult:
        return CommandResult(done, summary=done.summary(), closing=True)

    return run_and_show(options, work, shown, nothing="Nothing was served.")


def _status(options: Options, host: str, port: int) -> CommandResult:
    """What a running gateway of this machine tells of itself.

    Raises:
        ConnectionLostError: none listens there.
    """
    import http.client
    import ssl

    from sbpair.engine.auth import is_loopback
    from sbpair.gateway.web import STATUS_PATH

    seconds = options.timeout_seconds(STATUS_SECONDS)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    if not is_loopback(host):
        # There it is reached over TLS only. Nothing is told to it, and its certificate is for names of other machines.
        context = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    try:
        connection.request("GET", STATUS_PATH)
        answer = connection.getresponse()
        found = json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConnectionLostError(
            f"There is no gateway at {host}:{port}: {error}", hint="Name the address it listens on: --listen HOST:PORT"
        ) from error
    finally:
        connection.close()
    if found is None:
        raise UsageError(f"What listens at {host}:{port} is not a gateway, or reports no state.")
    told = tuple(
        GatewayPair(**one | {"troubles": tuple(one["troubles"])} | {"entities": _entities(one)}) for one in found
    )
    counts = ("accepted", "diverted", "refused", "mean_milliseconds: Mean ms")
    troubles = [text for one in told for text in one.troubles]
    count = sum(one.connections for one in told)
    return CommandResult(
        told,
        (
            Table(
                "",
                columns("pair", "entity", "state", "cause", *counts),
                [row for one in told for row in to_plain(one.entities)],
            ),
        ),
        notes=tuple(troubles),
        summary=f"{'Not ready' if troubles else 'Ready'}; {counted(count, 'connection')}.",
        exit=Exit.FAILED if troubles else Exit.OK,
    )


def _entities(pair: dict[str, Any]) -> tuple[GatewayEntity, ...]:
    return tuple(GatewayEntity(**one) for one in pair["entities"])


def _pairs(options: Options, names: list[str] | None) -> list[Pair]:
    return choose_pairs(load_settings(options, to_act=False), names)


def _own_keys(given: list[str] | None, file: Path | None, pass_tokens: bool) -> "tuple[Key, ...]":
    from sbpair.gateway.keys import parse_key

    return tuple(map(parse_key, given or ([] if file is not None or pass_tokens else ["app=send,listen"])))


def _with_file(own: "tuple[Key, ...]", file: Path | None) -> "tuple[Key, ...]":
    from sbpair.gateway.keys import read_keys

    found = (*own, *(read_keys(file) if file is not None else ()))
    if len({one.name for one in found}) < len(found):
        raise UsageError("Two keys have the same name.")
    return found


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


class _Reloading:
    """Takes over keys and pairs that have changed: on SIGUSR1, or when a file has."""

    def __init__(
        self,
        running: "Gateway",
        own: "tuple[Key, ...]",
        keys: Path | None,
        config: Path | None,
        pairs: Callable[[], list[Pair]],
    ) -> None:
        self._running = running
        self._own, self._keys, self._config, self._pairs = own, keys, config, pairs
        self._changed = self._times()

    async def until(self, stop: Stop) -> None:
        """Look again and again until the end."""
        import asyncio

        from sbpair.concurrency import cancel_on

        asked = asyncio.Event()
        number = getattr(signal, "SIGUSR1", None)
        if number is not None:
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_SECONDS):
                    await cancel_on(stop, asked.wait())
            times = self._times()
            if asked.is_set() or times != self._changed:
                asked.clear()
                self._changed = times
                await self._reload()

    async def _reload(self) -> None:
        try:
            keys, pairs = _with_file(self._own, self._keys), self._pairs()
            changed = await self._running.replace_pairs(pairs)
        except (OSError, SbpairError) as error:
            _log.warning(f"{error} The keys and pairs that were in force stay.")
            return
        if self._running.front.ring.replace(keys):
            _log.info("Other keys are in force.")
        for name in changed:
            _log.info(f"{name}: new connections get it as it is configured now, those that are open stay as they are.")

    def _times(self) -> list[int]:
        """When the files were changed; 0 for one that is missing just now."""
        from sbpair.settings.files import config_files

        files = [*([] if self._keys is None else [self._keys]), *config_files(self._config, os.environ, Path.cwd())]
        return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]


class _Metrics:
    """The gateway, as monitoring sees it."""

    def __init__(self, running: "Gateway") -> None:
        self._running = running

    def text(self) -> str:
        from sbpair.render.formats import exposition

        return exposition(self._samples())

    def troubles(self) -> list[str]:
        return self._running.front.troubles()

    def _samples(self) -> Iterator[Metric]:
        for house in self._running.front.houses.values():
            yield from self._of(house)

    @staticmethod
    def _of(house: "House") -> Iterator[Metric]:
        from sbpair.gateway.server import LATENCIES

        pair = ("pair", house.pair.name)
        for entity, counts in sorted(house.counts.items()):
            of_entity = pair, ("entity", entity)
            passed = counts.accepted - counts.diverted
            for outcome, value in (("primary", passed), ("backlog", counts.diverted), ("refused", counts.refused)):
                yield Metric("sbpair_gateway_messages_total", value, (*of_entity, ("outcome", outcome)))
            yield Metric("sbpair_gateway_send_seconds_total", counts.seconds, of_entity)
            sends = 0
            for bound in LATENCIES:
                sends += counts.within[bound]
                yield Metric("sbpair_gateway_sends_total", sends, (*of_entity, ("le", f"{bound:g}")))
            yield Metric("sbpair_gateway_sends_total", counts.sends, (*of_entity, ("le", "+Inf")))
        for one in house.pairing.state().entities:
            yield Metric("sbpair_gateway_entity_state", 1, (pair, ("entity", one.entity), ("state", one.state.value)))
        told = house.status()
        yield Metric("sbpair_gateway_connections", told.connections, (pair,))
        yield Metric("sbpair_gateway_ready", float(not told.troubles), (pair,))
