"""The emulator: several namespaces in one process, each behind one port. As a library:

    async with Emulator(["primary", "secondary"]) as emulator:
        emulator.namespace("primary").create_queue("orders")
        client = ServiceBusClient.from_connection_string(emulator.connection_string("primary"))

Everything runs on the event loop that started it; from other threads use `EmulatorThread`.
"""

import asyncio
import hashlib
import importlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from sbpair.emulator.control import ControlPort
from sbpair.emulator.endpoints import Endpoints
from sbpair.emulator.keys import StoredKeys, chosen_keys, random_keys
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.throttling import Throttling, ThrottlingLimits
from sbpair.engine.auth import ROOT_KEY_NAME, OwnNames, is_loopback
from sbpair.engine.budgets import Memory, Turns
from sbpair.engine.clock import Clock, SystemClock
from sbpair.engine.errors import EmulatorError
from sbpair.engine.faults import Faults
from sbpair.engine.port import Port
from sbpair.engine.tls import TlsFiles
from sbpair.engine.wire import Trace
from sbpair.service import EMBEDDED_NAMES, Tier

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

    from sbpair.emulator.admin.arm_models import ArmDirectory
    from sbpair.emulator.geo import AliasConfig, AliasPort

DEFAULT_HOST: Final = "127.0.0.1"
AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671
HTTPS_PORT: Final = 443
MICROSOFT_ADMINISTRATION_PORT: Final = 5300
"""Where Microsoft's emulator serves administration and its health."""
_REACHABLE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean "all of this machine", and what a client on it can connect to."""


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """One namespace to be. Port 0 = any free one, settled at the first start and kept.

    `further_ports` are open besides, and every port speaks every protocol. `host` is the address to listen on where it
    is not the emulator's. `keys` are primary keys of somebody's choice, by the name of the rule. `premium_partitions`:
    1 (none), 2 or 4, of a Premium namespace. Raises EmulatorError for any other. `throttling` is what its clients may
    do in a second; without it as much as they like. `laws` that are not kept strictly, by name: "lax" or "other" (see
    `emulator.laws`).
    """

    name: str
    tier: Tier = Tier.STANDARD
    port: int = 0
    further_ports: tuple[int, ...] = ()
    host: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    premium_partitions: int = 1
    throttling: ThrottlingLimits | None = None
    laws: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.premium_partitions) is not int or self.premium_partitions not in (1, 2, 4):
            raise EmulatorError(f"{self.name}: a Premium namespace has 1, 2 or 4 partitions")
        if self.premium_partitions > 1 and self.tier is not Tier.PREMIUM:
            raise EmulatorError(f"{self.name}: only a Premium namespace has partitions of its own")


class Emulator:
    """Embedded Service Bus namespaces.

    `data_dir` makes them durable (entities, messages, keys and certificates live there); without it all is forgotten.
    `identity` is a folder that keeps what the certificates and keys of namespaces without a past are made from, so
    that they are the same at the next start. `seed` decides what random faults hit. `clock` is the time all
    namespaces live in. `tls_names` are host names (also `*.example.com`) beyond `host` and localhost that the
    server certificate is to be good for, and that HTTP clients may use. `control_port` (0: any free one) opens the
    fault control that no fault reaches. `allow_entra`: whether bearer tokens are taken, which nobody can check
    here; unless said otherwise, only on a loopback `host`. `aliases` of Geo-disaster recovery get a port each.
    """

    def __init__(
        self,
        namespaces: Sequence[str | NamespaceConfig] = ("primary", "secondary"),
        *,
        host: str = DEFAULT_HOST,
        data_dir: str | Path | None = None,
        identity: str | Path | None = None,
        seed: int | str | None = None,
        clock: Clock | None = None,
        tls_names: Sequence[str] = (),
        control_port: int | None = None,
        allow_entra: bool | None = None,
        aliases: "Sequence[AliasConfig]" = (),
    ) -> None:
        self._configs = [NamespaceConfig(one) if isinstance(one, str) else one for one in namespaces]
        names = [config.name.lower() for config in self._configs]
        if len(set(names)) != len(names):
            raise EmulatorError("the names of an emulator's namespaces must differ")
        self.host = host
        self.clock: Clock = SystemClock() if clock is None else clock
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._identity = None if identity is None else Path(identity)
        self._kept_keys: StoredKeys | None = None
        self._seed = seed
        self._tls_names = tuple(tls_names)
        self._allow_entra = allow_entra
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._tls: TlsFiles | None = None
        self._namespaces: dict[str, Namespace] = {}
        self._ports: dict[str, list[Port]] = {}
        self._memory, self._turns = Memory(), Turns()
        self._directory: ArmDirectory | None = None
        self._alias_configs = tuple(aliases)
        self._aliases: dict[str, AliasPort] = {}
        self._control = None if control_port is None else ControlPort(self, control_port)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self, name: str | None = None) -> None:
        """Bring up one namespace again on its old port, or (without a name) all of them."""
        if not self._ports:
            for config in self._configs:
                self._open(config)
        for namespace in self._chosen(name):
            ports = self._ports_of(namespace)
            for port in ports:
                await port.start()
                EMBEDDED_NAMES[_address(port)] = namespace.name
            namespace.host, namespace.port = ports[0].host, ports[0].number
            if namespace.port == AMQPS_PORT and namespace.host not in _REACHABLE:
                namespace.service_address = _shown_host(namespace.host)
            namespace.endpoint = self.endpoint(namespace.name)
        if name is None:
            if not self._aliases:
                await self._open_aliases()
            if self._control is not None:
                await self._control.start()

    async def _open_aliases(self) -> None:
        """Pair the namespaces of every alias, and listen for it."""
        if not self._alias_configs:
            return
        from sbpair.emulator.geo import AliasPort, first_pairing

        for config in self._alias_configs:
            members = (self.namespace(config.primary), self.namespace(config.secondary))
            if config.name.lower() in self._namespaces:
                raise EmulatorError(f"{config.name!r} is the name of a namespace, and cannot be an alias")
            first_pairing(config, *members)
            port = AliasPort(config.name, members, self._reached, self.host, config.port)
            await port.start()
            self._aliases[config.name.lower()] = port

    def _reached(self, namespace: Namespace) -> tuple[str, int]:
        port = self._ports_of(namespace)[0]
        return _REACHABLE.get(port.host, port.host), port.number

    def _alias(self, name: str) -> "AliasPort":
        try:
            return self._aliases[name.lower()]
        except KeyError:
            raise EmulatorError(f"there is no alias {name!r} here") from None

    def fail_over(self, alias: str) -> None:
        """Have an alias lead to its secondary, and end the pairing; on the emulator's loop only.

        Raises:
            EntityError: it has no secondary any more.
        """
        from sbpair.emulator.geo import fail_over_pair

        config = next(one for one in self._alias_configs if one.name == self._alias(alias).name)
        fail_over_pair(config.name, self.namespace(config.primary))

    def alias_connection_string(self, alias: str) -> str:
        """What a client needs to reach whichever namespace has the alias; it stays the same through a fail-over."""
        port = self._alias(alias)
        config = next(one for one in self._alias_configs if one.name.lower() == alias.lower())
        key = self.namespace(config.primary).auth_rules[ROOT_KEY_NAME].primary_key
        endpoint = f"{_shown_host(port.host)}:{port.number}"
        return (
            f"Endpoint=sb://{endpoint};SharedAccessKeyName={ROOT_KEY_NAME};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )

    async def stop(self, name: str | None = None) -> None:
        """Take one namespace (or all) off the network: connections are cut, new ones refused. What it holds stays."""
        for namespace in self._chosen(name):
            for port in self._ports_of(namespace):
                await port.stop()

    async def add(
        self,
        config: NamespaceConfig,
        *,
        clock: Clock | None = None,
        trace: Trace | None = None,
        seed: int | str | None = None,
    ) -> Namespace:
        """One more namespace, listening at once; in a time of its own if it is given a clock, with faults that draw
        from a seed of its own if it is given one.

        Raises:
            EmulatorError: there is one of that name. OSError: its port is taken.
        """
        key = config.name.lower()
        if key in self._namespaces:
            raise EmulatorError(f"there is a namespace {config.name!r} already")
        self._open(config, clock, seed)
        self._namespaces[key].trace = trace
        self._configs.append(config)
        try:
            await self.start(config.name)
        except BaseException:
            await self.remove(config.name)
            raise
        return self._namespaces[key]

    async def remove(self, name: str) -> None:
        """Take a namespace away, with all it holds (what is in a `data_dir` stays there)."""
        namespace = self.namespace(name)
        for port in self._ports_of(namespace):
            await _close(port)
        namespace.close()
        del self._ports[name.lower()], self._namespaces[name.lower()]
        self._configs = [config for config in self._configs if config.name.lower() != name.lower()]

    async def close(self) -> None:
        """Stop, giving ports and files back."""
        if self._control is not None:
            await self._control.close()
        for alias in self._aliases.values():
            await alias.close()
        self._aliases.clear()
        for ports in self._ports.values():
            for port in ports:
                await _close(port)
        for namespace in self._namespaces.values():
            namespace.close()
        self._ports.clear()
        self._namespaces.clear()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None
            self._tls = None

    @property
    def own_names(self) -> OwnNames:
        """What HTTP clients may call the ports of this emulator."""
        return OwnNames(self._own_names)

    @property
    def _own_names(self) -> tuple[str, ...]:
        hosts = (config.host for config in self._configs if config.host is not None)
        return tuple(dict.fromkeys((self.host, *hosts, *self._tls_names)))

    @property
    def names(self) -> list[str]:
        """The namespaces, in the order they were given."""
        return [config.name for config in self._configs]

    @property
    def tls(self) -> TlsFiles:
        """The certificates of this emulator, made when they are first asked for."""
        if self._tls is None:
            if self._data_dir is not None:
                directory = self._data_dir / "tls"
            elif self._identity is not None:
                directory = self._identity / f"tls{_names_mark(self._own_names)}"
            else:
                self._scratch = tempfile.TemporaryDirectory(prefix="sbpair-emulator-")
                directory = Path(self._scratch.name) / "tls"
            self._tls = TlsFiles(directory, *self._own_names)
        return self._tls

    @property
    def ca_path(self) -> Path:
        """The certificate (PEM) a client must trust to use TLS here."""
        return self.tls.ca_path

    @property
    def control_endpoint(self) -> str | None:
        """`host:port` of the fault control that no fault reaches; None without a `control_port`."""
        return None if self._control is None else self._control.endpoint

    def namespace(self, name: str) -> Namespace:
        """A namespace's entities; on the emulator's loop only."""
        try:
            return self._namespaces[name.lower()]
        except KeyError:
            raise EmulatorError(f"there is no namespace {name!r} here; there are {', '.join(self.names)}") from None

    def faults(self, name: str) -> Faults:
        """What goes wrong in a namespace; on the emulator's loop only."""
        return self.namespace(name).faults

    def endpoint(self, name: str) -> str:
        return _address(self._ports_of(self.namespace(name))[0])

    def connection_string(self, name: str, key_name: str | None = None, entity: str | None = None) -> str:
        """What a client needs; the root key unless another is named. With `entity`, that entity's keys count too.

        On the service's own port it is a string as the service gives them, for clients that use TLS.
        """
        rules = self.namespace(name).access.rules_for(entity or "")
        wanted = key_name or ROOT_KEY_NAME
        if wanted not in rules:
            raise EmulatorError(f"there is no key {wanted!r} in {name!r}; there are {', '.join(sorted(rules))}")
        port = self._ports_of(self.namespace(name))[0]
        key = f"SharedAccessKeyName={wanted};SharedAccessKey={rules[wanted].primary_key}"
        if port.number == AMQPS_PORT:
            text = f"Endpoint=sb://{_shown_host(port.host)}/;{key}"
        else:
            text = f"Endpoint=sb://{self.endpoint(name)};{key};UseDevelopmentEmulator=true"
        return text if entity is None else f"{text};EntityPath={entity}"

    def _open(self, config: NamespaceConfig, clock: Clock | None = None, faults_seed: int | str | None = None) -> None:
        if faults_seed is None and self._seed is not None:
            faults_seed = f"{self._seed}:{config.name}"
        namespace = self._new_namespace(config, self.clock if clock is None else clock, faults_seed)
        self._namespaces[config.name.lower()] = namespace
        endpoints = Endpoints(namespace)
        self._ports[config.name.lower()] = [
            Port(
                namespace,
                endpoints,
                self.tls,
                partial(self._make_runner, namespace),
                (self._host_of(config), number),
                names=self._own_names,
                memory=self._memory,
                turns=self._turns,
            )
            for number in (config.port, *config.further_ports)
        ]

    def _takes_bearer_tokens(self, config: NamespaceConfig) -> bool:
        return is_loopback(self._host_of(config)) if self._allow_entra is None else self._allow_entra

    def _host_of(self, config: NamespaceConfig) -> str:
        return self.host if config.host is None else config.host

    def _new_namespace(self, config: NamespaceConfig, clock: Clock, faults_seed: int | str | None) -> Namespace:
        faults = Faults(clock, faults_seed)
        store = None
        if self._data_dir is not None:
            from sbpair.emulator.store import open_store

            store = open_store(self._data_dir / config.name)
        if self._kept_keys is None and self._identity is not None:
            self._kept_keys = StoredKeys(self._identity)
        keys = random_keys if self._kept_keys is None else self._kept_keys.of(config.name)
        namespace = Namespace(
            config.name,
            tier=config.tier,
            premium_partitions=config.premium_partitions,
            clock=clock,
            faults=faults,
            store=store,
            key_source=chosen_keys(config.keys, keys),
            laws=config.laws,
        )
        namespace.public_host = self._public_host(config.name)
        namespace.access.choose_keys(config.keys)
        if config.throttling is not None:
            namespace.throttling = Throttling(config.name, config.throttling, clock)
        namespace.allow_entra = self._takes_bearer_tokens(config)
        return namespace

    def _public_host(self, name: str) -> str | None:
        """The host name of a namespace among those that were asked for: its own, or below a `*`."""
        named = (one.replace("*", name, 1) for one in self._tls_names)
        return next((one for one in named if one.partition(".")[0].lower() == name.lower()), None)

    def _chosen(self, name: str | None) -> list[Namespace]:
        return list(self._namespaces.values()) if name is None else [self.namespace(name)]

    def _ports_of(self, namespace: Namespace) -> list[Port]:
        return self._ports[namespace.name.lower()]

    async def _make_runner(self, namespace: Namespace, front: "Middleware") -> "web.AppRunner":
        """The administration of one namespace; all of them share one resource manager."""
        await asyncio.to_thread(importlib.import_module, "sbpair.emulator.admin.http")
        from sbpair.emulator.admin.arm_models import ArmDirectory
        from sbpair.emulator.admin.http import make_app, make_runner

        if self._directory is None:
            self._directory = ArmDirectory(lambda: list(self._namespaces.values()))
        app = make_app(namespace, directory=self._directory, memory=self._memory, turns=self._turns)
        app.middlewares.insert(0, front)
        return make_runner(app)


def _names_mark(names: Sequence[str]) -> str:
    """Other names need another certificate, which must not take the place of the one with the usual names."""
    unusual = sorted(name for name in names if name != DEFAULT_HOST)
    return "-" + hashlib.sha256("\n".join(unusual).encode()).hexdigest()[:12] if unusual else ""


def _shown_host(host: str) -> str:
    """The address as a client on this machine writes it in front of a port."""
    reachable = _REACHABLE.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def _address(port: Port) -> str:
    """As in the connection strings of the namespace."""
    return f"{_shown_host(port.host)}:{port.number}"


async def _close(port: Port) -> None:
    EMBEDDED_NAMES.pop(_address(port), None)
    await port.close()
