"""How embedded namespaces start: on which addresses and ports they listen, and with which keys, decided before any is
opened; what they hold; and the laws that they keep.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbpair.core import system_properties
from sbpair.core.errors import ConfigurationError, UsageError
from sbpair.core.pairing import DEFAULT_BACKLOG_QUEUE_COUNT, DOCUMENTED_SETTINGS, expected_backlog_paths
from sbpair.core.redact import quoted
from sbpair.core.serialization import column, to_plain
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Table, columns_of, table_of
from sbpair.service import Tier
from sbpair.settings import EMULATOR_KEY

if TYPE_CHECKING:
    from sbpair.emulator import Namespace, NamespaceConfig
    from sbpair.emulator.laws import Form, Law


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


def configs(
    names: Sequence[str],
    doors: Doors,
    seed: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    throttled: bool = False,
    laws: Mapping[str, str] | None = None,
    paired: Sequence[str] = (),
) -> "list[NamespaceConfig]":
    """One for each namespace. `laws` are those that are not kept strictly; `paired` namespaces are Premium where the
    seed leaves their tier open.

    Raises:
        ConfigurationError: the seed's tier or keys are wrong. UsageError: the doors do not suit each other.
    """
    from sbpair.emulator import EmulatorError, NamespaceConfig
    from sbpair.emulator.throttling import limits_of

    hosts = _hosts(len(names), doors)
    made = []
    for index, (name, host) in enumerate(zip(names, hosts, strict=True)):
        ports = doors.fixed or (doors.port + index if doors.port else 0,)
        body = seed.get(name, {})
        keys = _keys(name, doors, body, environ)
        usual = Tier.PREMIUM if name in paired else Tier.STANDARD
        try:
            tier = Tier(body.get("tier", usual))
        except ValueError:
            tiers = f"the tier is Basic, Standard or Premium, not {quoted(body['tier'])}"
            raise SeedFileError(f"{name}: {tiers}.") from None
        try:
            limits, partitions = limits_of(tier) if throttled else None, body.get("partitions", 1)
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
    # In the place of Microsoft's image its clients have the key that everybody knows.
    known = doors.microsoft and environ.get(_ACCEPT, "").upper() in ("Y", "YES", "TRUE")
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


def announcement(doors: Doors, names: Sequence[str]) -> Iterator[str]:
    """What somebody who opens these doors should know."""
    if not doors.on_loopback:
        yield (
            f"Other machines can reach these namespaces at {doors.host}. They need a key. Traffic without "
            "TLS can be read on the network."
        )
    if doors.microsoft and doors.host == "127.0.0.1":
        yield (
            f"The connection string of Microsoft's emulator reaches {names[0]}: AMQP on port 5672, administration and "
            f"/health on port {doors.fixed[1]}."
        )
    if doors.microsoft:
        yield MICROSOFT_IS_UP


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


# What `sbpair emulator --sample NAME` starts with: worlds in which every command has something to show.
#
# After an outage the messages stand in the backlog queues as the failover of a sender puts them there: each sender of
# messages without a session in one queue, each session in its own.


class SampleWorld(StrEnum):
    """Worlds to start with."""

    OUTAGE = "outage"
    """A pair a little after an outage of its primary: messages and dead letters wait in ten backlog queues."""
    DEAD_LETTERS = "dead-letters"
    """A queue and a subscription whose consumers failed for several reasons."""
    ENTITIES = "entities"
    """Entities of an application with active, scheduled and dead-lettered messages, and no backlog queues."""


ORDERS, INVOICES, EVENTS = "orders", "invoices/incoming", "events"
CUSTOMERS = 12
DIVERTED = {ORDERS: 200, INVOICES: 180, EVENTS: 120}
BACKLOG_DEAD, ORDERS_DEAD = 3, 5
"""Of the diverted messages: dead letters of a backlog queue, and others that are dead letters of `orders`."""
_TRIED = {
    "reason": "MaxDeliveryCountExceeded",
    "description": "Message could not be consumed after 10 delivery attempts.",
}
_FAILURES = (
    (_TRIED["reason"], _TRIED["description"], 40),
    ("ValidationError", "country is missing (order {number})", 25),
    ("ValidationError", "amount -{number} is negative", 8),
    ("TTLExpiredException", "The message expired and was dead lettered.", 12),
    ("NotJson", "Unexpected token at position {number}", 5),
)
"""Reason, description and number of the dead letters of one entity."""
_ACTIVE = 60
_SCHEDULED = 6


def plant(sample: SampleWorld, primary: "Namespace", secondary: "Namespace", pair: str) -> str:
    """Create entities and messages of a sample; returns what there is now, and the command that shows it.

    Namespaces that have queues already, from a start before this one, stay as they are.
    """
    from sbpair.emulator import seed

    if primary.queues() or secondary.queues():
        return "The namespaces keep what they had; the sample is for new ones."
    if sample is SampleWorld.OUTAGE:
        letters = [_described(ORDERS, 900 + number) | {"dead_letter": _TRIED} for number in range(ORDERS_DEAD)]
        seed.plant(primary, _application(letters, [], []))
        seed.plant(secondary, {"queues": {ORDERS: {}} | _backlog(primary.name)})
        waiting = counted(sum(DIVERTED.values()) - BACKLOG_DEAD, "message")
        return (
            f"Sample: {waiting} and {BACKLOG_DEAD} dead letters wait in the backlog queues on {secondary.name}, and "
            f"{ORDERS} on {primary.name} has {ORDERS_DEAD} dead letters. Look at them: sbpair status {pair}"
        )
    active = [_described(ORDERS, number) for number in range(_ACTIVE)]
    invoices = [one | {"session_id": f"customer-{number % CUSTOMERS}"} for number, one in enumerate(active)]
    if sample is SampleWorld.DEAD_LETTERS:
        failed = list(_failed())
        seed.plant(primary, _application([*active, *failed], invoices, failed))
        return (
            f"Sample: {ORDERS} on {primary.name} has {len(failed)} dead letters, the subscription all of {EVENTS} as "
            f"many. Look at them: sbpair dlq list {ORDERS} --namespace {primary.name}"
        )
    later = [_described(ORDERS, 800 + number) | {"scheduled_in_seconds": 3_600} for number in range(_SCHEDULED)]
    seed.plant(primary, _application([*active, *later], invoices, active))
    return (
        f"Sample: {ORDERS} on {primary.name} has {_ACTIVE} messages and {_SCHEDULED} scheduled ones, {INVOICES} "
        f"has {CUSTOMERS} sessions, {EVENTS} two subscriptions. Look: sbpair entity list --namespace {primary.name}"
    )


_Messages = list[dict[str, Any]]


def _application(orders: _Messages, invoices: _Messages, events: _Messages) -> dict[str, Any]:
    """The application's entities on the primary with their messages, as a seed."""
    large = {"rules": {"amount": {"sql": "amount > 1000"}}}
    return {
        "queues": {ORDERS: {"messages": orders}, INVOICES: {"requires_session": True, "messages": invoices}},
        "topics": {EVENTS: {"subscriptions": {"all": {"messages": events}, "large": large}}},
    }


def _failed() -> Iterator[dict[str, Any]]:
    numbers = iter(range(900, 2_000))
    for reason, text, count in _FAILURES:
        for number in islice(numbers, count):
            letter = {"reason": reason, "description": text.format(number=number)}
            yield _described(ORDERS, number) | {"dead_letter": letter}


def _described(entity: str, number: int) -> dict[str, Any]:
    amount = number * 37 % 2_000
    country = ("DE", "FR", "NL")[number % 3]
    return {
        "body": {"number": number, "amount": amount},
        "message_id": f"{entity.partition('/')[0].removesuffix('s')}-{number:04}",
        "subject": "created",
        "content_type": "application/json",
        "properties": {"amount": amount, "country": country},
    }


def _backlog(primary: str) -> dict[str, Any]:
    """The backlog queues with the diverted messages in the order of sending, as a seed."""
    from sbpair.core.failover.sending import stable_choice

    paths = expected_backlog_paths(primary, DEFAULT_BACKLOG_QUEUE_COUNT)
    settings = {key: value for key, value in asdict(DOCUMENTED_SETTINGS).items() if key != "status"}
    queues: dict[str, _Messages] = {path: [] for path in paths}
    drawn = {ORDERS: paths[0], EVENTS: paths[7]}
    for number in range(max(DIVERTED.values())):
        for entity in (one for one, count in DIVERTED.items() if number < count):
            message = _described(entity, number)
            message["properties"][system_properties.PATH] = entity
            if entity == INVOICES:
                session = message["properties"][system_properties.SESSION] = f"customer-{number % CUSTOMERS}"
                drawn[entity] = stable_choice((entity, session), paths)
            queues[drawn[entity]].append(message)
    for message in queues[paths[0]][-BACKLOG_DEAD:]:
        message["dead_letter"] = _TRIED
    return {path: settings | {"messages": messages} for path, messages in queues.items()}


# The laws of the service that the embedded namespaces know: lists of them, and which ones a start bends.


@dataclass(frozen=True, slots=True)
class NotEmulated:
    """A law that the emulator does not keep, or not wholly."""

    law: str = field(metadata=column("Law"))
    what: str = field(metadata=column("At the service"))
    instead: str = field(metadata=column("Here"))


@dataclass(frozen=True, slots=True)
class ServiceLaw:
    """A rule of the service. `evidence` is how well it is known, `asked_in` the code that keeps it, `forms` the values
    by form (by tier where these differ), `differs` what the emulator does instead."""

    law: str
    chapter: str
    sentence: str
    evidence: str
    source: str
    asked_in: str
    forms: Mapping[str, str]
    differs: str


def not_emulated() -> CommandResult:
    """All laws of which the emulator does something else."""
    from sbpair.emulator.laws import BOOK

    missing = tuple(NotEmulated(law.name, law.sentence, law.differs) for law in BOOK if law.differs)
    return CommandResult(missing, (table_of(NotEmulated, missing),))


def listed(names: Sequence[str]) -> CommandResult:
    """The laws with these names, with all that is known of them; without names all, in short.

    Raises:
        UsageError: there is no such law.
    """
    from sbpair.emulator.laws import BOOK, law_named
    from sbpair.engine.errors import EmulatorError

    try:
        laws = tuple(_shown(law) for law in ([law_named(name) for name in names] or BOOK))
    except EmulatorError as error:
        raise UsageError(f"--law: {error}.", hint="sbpair emulator --laws") from error
    more = ("source", "asked_in", "forms", "differs") if names else ()
    columns = columns_of(ServiceLaw, ("law", "sentence", "evidence", *more))
    rows = [
        row | {"forms": ", ".join(f"{form}: {value}" for form, value in row["forms"].items())} for row in to_plain(laws)
    ]
    return CommandResult(laws, (Table("", columns, rows),))


def bent(lax: Sequence[str], *, strict: bool) -> dict[str, str]:
    """The form of each law that is not to be kept strictly, by `LAW` or `LAW=other`.

    Raises:
        UsageError: there is no such law or form, or all are to be strict.
    """
    if not lax:
        return {}
    from sbpair.emulator.laws import Laws
    from sbpair.engine.errors import EmulatorError

    if strict:
        raise UsageError("--strict keeps every law of the service and excludes --lax. Nothing was started.")
    parted = {text: text.partition("=") for text in lax}
    forms = {name if form else text: form or "lax" for text, (name, _, form) in parted.items()}
    try:
        return {name: form.value for name, form in Laws(bent=forms).bent.items()}
    except EmulatorError as error:
        raise UsageError(f"--lax: {error}. Nothing was started.", hint="sbpair emulator --laws") from error


def _shown(law: "Law[object]") -> ServiceLaw:
    forms = {form.value: _text(law, form) for form in law.values} if len(law.values) > 1 else {}
    source = law.source
    return ServiceLaw(
        law.name, law.chapter, law.sentence, source.evidence.value, source.text, law.asked_in, forms, law.differs
    )


def _text(law: "Law[object]", form: "Form") -> str:
    by_tier = {tier.value: _plain(law.value(form, tier)) for tier in Tier}
    different = len(set(by_tier.values())) > 1
    return ", ".join(f"{value} ({tier})" for tier, value in by_tier.items()) if different else by_tier[Tier.STANDARD]


def _plain(value: object) -> str:
    if isinstance(value, frozenset | tuple):
        return " ".join(sorted(map(str, value))) or "none"
    return str(getattr(value, "__name__", value))
