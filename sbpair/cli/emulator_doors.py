"""On which addresses and ports the embedded namespaces listen, and with which keys: decided before any is opened."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.errors import ConfigurationError, UsageError
from sbpair.core.redact import quoted
from sbpair.core.words import counted
from sbpair.settings import EMULATOR_KEY

if TYPE_CHECKING:
    from sbpair.emulator import NamespaceConfig, Tier

MICROSOFT_NAMESPACE: Final = "sbemulatorns"
MICROSOFT_KEY: Final = "SAS_KEY_VALUE"
"""The key in the connection string of Microsoft's emulator; theirs takes any."""
LEAST_KEY_CHARACTERS: Final = 16
MICROSOFT_CONFIG: Final = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
"""Where the container modules of Testcontainers and Aspire put the file for Microsoft's image."""
MICROSOFT_IS_UP: Final = "Emulator Service is Successfully Up!"
"""The line of Microsoft's image that Testcontainers for Java, and recipes for Python, look for in the log. Those for
.NET, Go and Node ask `/health` on port 5300, Aspire opens AMQP."""
_HTTP_PORT: Final = "EMULATOR_HTTP_PORT"
_ACCEPT: Final = "ACCEPT_EULA"
"""Set by users of Microsoft's image, like SQL_SERVER, MSSQL_SA_PASSWORD and SQL_WAIT_INTERVAL, which are read by
nobody here: no SQL Server is needed."""


class SeedFileError(ConfigurationError):
    """What namespaces are to start with is wrong."""

    hint = "Correct the seed, and start again."


@dataclass(frozen=True, slots=True)
class Doors:
    """What the options say: `port` is the first namespace's; the other two are the ports that clients know."""

    host: str
    port: int
    microsoft: bool
    standard: bool
    http_port: int | None = None
    """Of Microsoft's two ports the one for administration, where it is not the usual one."""

    @property
    def fixed(self) -> tuple[int, ...]:
        """The ports that every namespace has, each on an address of its own."""
        from sbpair.emulator import server

        administration = self.http_port or server.MICROSOFT_ADMINISTRATION_PORT
        microsoft = (server.AMQP_PORT, administration) if self.microsoft else ()
        return microsoft + ((server.AMQPS_PORT, server.HTTPS_PORT) if self.standard else ())

    @property
    def on_loopback(self) -> bool:
        from sbpair.engine.auth import is_loopback

        return is_loopback(self.host)


def http_port(environ: Mapping[str, str]) -> int | None:
    """The port of `EMULATOR_HTTP_PORT`, as Microsoft's image reads it; None if it is not set.

    Raises:
        ConfigurationError: it is no port.
    """
    text = environ.get(_HTTP_PORT, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ConfigurationError(
            f"{_HTTP_PORT} is a port, 1 to 65535, not {quoted(text)}. Nothing was started.",
            hint=f"Set it to a port, or unset it: unset {_HTTP_PORT}",
        )
    return int(text)


def microsoft_config(doors: Doors, path: Path = MICROSOFT_CONFIG) -> Path | None:
    """The file to start with in the place of Microsoft's container, if it is there."""
    return path if doors.microsoft and path.is_file() else None


def takes_the_known_key(environ: Mapping[str, str]) -> bool:
    """Whether this is started in the place of Microsoft's image, whose clients have the key that everybody knows."""
    return environ.get(_ACCEPT, "").upper() in ("Y", "YES", "TRUE")


def configs(
    names: Sequence[str],
    doors: Doors,
    seed: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    throttled: bool = False,
    laws: Mapping[str, str] | None = None,
) -> "list[NamespaceConfig]":
    """One for each namespace. `laws` are those that are not kept strictly.

    Raises:
        ConfigurationError: the seed's tier or keys are wrong. UsageError: the doors do not suit each other.
    """
    from sbpair.emulator import EmulatorError, NamespaceConfig
    from sbpair.emulator.throttling import limits_of

    hosts = _hosts(len(names), doors)
    made = []
    for index, (name, host) in enumerate(zip(names, hosts, strict=True)):
        ports = doors.fixed or (doors.port + index if doors.port else 0,)
        keys = _keys(name, doors, seed.get(name, {}), environ)
        tier, partitions = _tier(name, seed), _partitions(name, seed)
        try:
            limits = limits_of(tier) if throttled else None
            made.append(NamespaceConfig(name, tier, ports[0], ports[1:], host, keys, partitions, limits, laws or {}))
        except EmulatorError as error:
            raise SeedFileError(f"{error}.") from error
    return made


def _hosts(count: int, doors: Doors) -> list[str | None]:
    """Where each listens. Ports that are the same for all take an address for each."""
    if not doors.fixed:
        return [None] * count
    if count == 1 and not (doors.standard and doors.host == "127.0.0.1"):
        return [doors.host]
    try:
        first = ipaddress.ip_address(doors.host)
    except ValueError:
        first = None
    if first is None or not first.is_loopback or first.version != 4:
        raise UsageError(
            f"{counted(count, 'namespace')} cannot share the ports {', '.join(map(str, doors.fixed))} of {doors.host}.",
            hint="Name one namespace: --namespace NAME, or give the first of several loopback addresses: "
            "--host 127.0.0.2",
        )
    # 127.0.0.1 itself stays free of 443 and 5671, which other programs of a developer may want.
    start = first + 1 if doors.standard and doors.host == "127.0.0.1" else first
    return [str(start + index) for index in range(count)]


def _tier(name: str, seed: Mapping[str, Any]) -> "Tier":
    from sbpair.emulator import Tier

    tier = seed.get(name, {}).get("tier", Tier.STANDARD.value)
    if tier not in [known.value for known in Tier]:
        raise SeedFileError(f"{name}: the tier is Basic, Standard or Premium, not {quoted(tier)}.")
    return Tier(tier)


def _partitions(name: str, seed: Mapping[str, Any]) -> int:
    partitions = seed.get(name, {}).get("partitions", 1)
    if type(partitions) is not int:
        raise SeedFileError(f"{name}: `partitions` is a number: 1, 2 or 4.")
    return partitions


def _keys(name: str, doors: Doors, seed: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The keys that somebody has chosen: the environment before the seed, and Microsoft's where there is neither."""
    from sbpair.emulator.seed import SeedError, chosen_keys
    from sbpair.engine.auth import ROOT_KEY_NAME

    try:
        chosen = {ROOT_KEY_NAME: MICROSOFT_KEY} if doors.microsoft else {}
        chosen |= chosen_keys(seed, environ)
    except SeedError as error:
        raise SeedFileError(f"The keys of {name}: {error}") from error
    if environ.get(EMULATOR_KEY):
        try:
            chosen |= chosen_keys({"keys": {ROOT_KEY_NAME: {"key": {"env": EMULATOR_KEY}}}}, environ)
        except SeedError as error:
            raise ConfigurationError(
                f"{EMULATOR_KEY}: a text of 1 to 256 printable characters without ; is expected. Nothing was started.",
                hint=f"Set another one: export {EMULATOR_KEY}=$(openssl rand -base64 32)",
            ) from error
    known = doors.microsoft and takes_the_known_key(environ)
    weak = [rule for rule, key in chosen.items() if key == MICROSOFT_KEY or len(key) < LEAST_KEY_CHARACTERS]
    weak = [rule for rule in weak if not (known and chosen[rule] == MICROSOFT_KEY)]
    if weak and not doors.on_loopback:
        raise ConfigurationError(
            f"{name}: other machines can reach {doors.host}, and the key {weak[0]} is known to everybody or shorter "
            f"than {LEAST_KEY_CHARACTERS} characters. Nothing was started.",
            hint=f"Give the namespace a key of its own: export {EMULATOR_KEY}=$(openssl rand -base64 32). For tests in "
            f"the place of Microsoft's container, {_ACCEPT}=Y accepts the key of its connection string.",
        )
    return chosen


def announcement(doors: Doors, names: Sequence[str]) -> list[str]:
    """What somebody who opens these doors should know."""
    lines = []
    if not doors.on_loopback:
        lines.append(
            f"Other machines can reach these namespaces at {doors.host}. They need a key. Traffic without "
            "TLS can be read on the network."
        )
    if doors.microsoft and doors.host == "127.0.0.1":
        lines.append(
            f"The connection string of Microsoft's emulator reaches {names[0]}: AMQP on port 5672, administration and "
            f"/health on port {doors.fixed[1]}."
        )
    if doors.microsoft:
        lines.append(MICROSOFT_IS_UP)
    return lines


def how_to_open(doors: Doors, error: OSError) -> str:
    """What to do about an address or port that cannot be had."""
    if isinstance(error, PermissionError) and doors.standard:
        return "Port 443 needs a right on this system: sudo sysctl net.ipv4.ip_unprivileged_port_start=443."
    if doors.fixed:
        return (
            f"Stop what else uses the ports {', '.join(map(str, doors.fixed))}, or take another address of this "
            "machine: --host 127.0.0.2 (macOS: sudo ifconfig lo0 alias 127.0.0.2)."
        )
    return "Take other ports: --port and --admin-port N, or --port 0 for any free ones; --host is this machine's."


def identity_folder(folder: Path) -> Path:
    """The folder that keeps keys and certificates from one start to the next.

    Raises:
        ConfigurationError: it cannot be used.
    """
    from sbpair.emulator.keys import StoredKeys

    try:
        StoredKeys(folder)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot keep keys in {folder}: {error.strerror or error}.",
            hint="Let the keys be new at each start: --new-keys",
        ) from error
    return folder
