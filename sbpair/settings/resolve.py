"""Effective settings: what wins over what, and the pairs that come out of it."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sbpair.core.access import (
    CALL_SECONDS,
    HOST,
    AuthMethod,
    Cloud,
    ControlPlane,
    NamespaceAccess,
    Secret,
    Transport,
    check_credential,
    cloud_of_authority,
    host_of,
    is_at,
    other_host,
    parse_connection_string,
    resource_manager_url,
    shown_name,
)
from sbpair.core.errors import ConfigurationError, InvalidNameError
from sbpair.core.names import check_namespace_label, namespace_label
from sbpair.core.pairing import PAIR_OPTIONS, Pair, Side, pair_options
from sbpair.core.redact import quoted
from sbpair.core.words import did_you_mean
from sbpair.settings.documents import DocumentError, read_text
from sbpair.settings.files import config_files, read_file, user_file
from sbpair.settings.keys import (
    CONNECTION_STRINGS,
    ENVIRONMENT_PAIR,
    NAMESPACE_KEYS,
    PAIR_KEYS,
    SIDES,
    Sourced,
    from_environment,
)
from sbpair.settings.state import (
    EMULATOR_STATE_FILE,
    LOCAL_NAMESPACES,
    LOCAL_PAIR,
    authority_of_embedded,
    first_use,
    local_pair,
    remembered_default_pair,
    state_directory,
)

__all__ = ["BETWEEN", "HOW_TO_CONFIGURE", "Settings", "connection_strings", "first_use_notice", "load", "load_noticed"]

BETWEEN = ":"
"""`contoso-weu:contoso-neu` is a pair of two namespaces that nobody gave a name: primary, then secondary."""
MOST_SECRET_BYTES = 1024 * 1024
_START = "Start the embedded namespaces in another terminal: sbpair emulator"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything configured, flat: `pairs.orders.primary.namespace` -> value and source."""

    values: Mapping[str, Sourced]
    files: tuple[Path, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    call_seconds: float = CALL_SECONDS
    project_file: Path | None = None
    """The file found in or above the working directory, which may be somebody else's; not one the user has named."""
    given: tuple[NamespaceAccess, ...] = ()
    """Namespaces whose connection strings were given for this run; they count first."""

    def pair_names(self) -> tuple[str, ...]:
        names = {key.split(".")[1] for key in self.values if key.startswith("pairs.")}
        return tuple(sorted(names))

    def pairs_of_project(self) -> tuple[str, ...]:
        """Those that the project file defines."""
        return tuple(name for name in self.pair_names() if any(self._of_project(key) for key in self._keys_of(name)))

    def _keys_of(self, name: str) -> list[str]:
        return [key for key in self.values if key.startswith(f"pairs.{name}.")]

    def get(self, key: str) -> Any:
        found = self.values.get(key)
        return None if found is None else found.value

    def pair(self, name: str | None = None) -> Pair:
        """The named pair, the default one, or the only one there is.

        Raises:
            ConfigurationError: no such pair, none configured, several and none named, or an incomplete one.
        """
        return self._build_pair(self.choose(name))

    def namespaces(self) -> tuple[NamespaceAccess, ...]:
        """Every namespace of the configuration once, also those of pairs with one side.

        Raises:
            ConfigurationError: one of them is configured wrongly.
        """
        found = {access.host: access for access in self.given}
        for access in (self.side(name, side) for name in self._pairs_of_files_first() for side in SIDES):
            if access is not None:
                found.setdefault(access.host, access)
        return tuple(found.values())

    def side(self, pair: str, side: str) -> NamespaceAccess | None:
        """One namespace of a pair; None if nothing says which it is.

        Raises:
            ConfigurationError: it is configured wrongly.
        """
        if BETWEEN in pair:
            name = pair.split(BETWEEN)[list(SIDES).index(side)]
            try:
                return self.named_namespace(name, None) if name else None
            except ConfigurationError as error:
                meant = f"{quoted(pair)} means two namespaces, PRIMARY:SECONDARY."
                hint = f"{meant} For a queue: sbpair entity peek NAMESPACE:QUEUE"
                raise ConfigurationError(error.message, hint=_START if error.hint == _START else hint) from error
        prefix = f"pairs.{pair}.{side}."
        named = any(self.get(prefix + key) for key in ("namespace", "connection_string"))
        return self._access(prefix) if named else None

    def side_in_use(self, pair: str | None, side: str) -> tuple[str, NamespaceAccess]:
        """Name and one namespace of the named pair, the default one or the only one; the other side may be missing.

        Raises:
            ConfigurationError: as `pair`, or that side is not configured.
        """
        if pair is None and len(self.given) == 1:
            return self.given[0].label, self.given[0]
        name = self.choose(pair)
        access = self.side(name, side)
        if access is None:
            raise ConfigurationError(f"The pair {quoted(name)} has no {side}.", hint=HOW_TO_CONFIGURE)
        return name, access

    def environment_of(self, access: NamespaceAccess) -> str | None:
        """What the configuration calls the environment of a namespace, say `production`; None if it names none."""
        prefix, _ = self._configured(access.label, access.host, whole=False)
        return None if prefix is None else self.get(f"{prefix.rsplit('.', 2)[0]}.environment")

    def keys_of(self, access: NamespaceAccess) -> dict[str, Any]:
        """The keys that say how a namespace is reached: as the configuration says them, otherwise as it would."""
        prefix, _ = self._configured(access.label, access.host)
        if prefix is not None:
            found = {key.name: self.get(prefix + key.name) for key in NAMESPACE_KEYS}
            return {key: getattr(value, "value", value) for key, value in found.items() if value is not None}
        keys: dict[str, Any] = {"namespace": access.host, "auth": access.auth.value}
        if access.subscription:
            keys |= {"subscription": access.subscription, "resource_group": access.resource_group}
        if resource_manager_url(access) != resource_manager_url(replace(access, management_url=None)):
            keys["management_url"] = access.management_url
        return keys

    def named_namespace(self, name: str, auth: AuthMethod | None) -> NamespaceAccess:
        """A namespace by its host or name: as the configuration reaches it, otherwise with an Entra ID credential.

        Raises:
            ConfigurationError: it is no name of a namespace, or asks for a connection string where none is known.
        """
        host, label = _host(name, None, "NAMESPACE").lower(), namespace_label(name)
        for access in self.given:
            if access.host == host or ("." not in name and access.label == label):
                return access
        _, configured = self._configured(label, host, whole="." in name)
        if configured is not None:
            return configured
        if name.lower() in LOCAL_NAMESPACES:
            raise ConfigurationError(
                f"{name} means an embedded namespace, and none of that name is running for this user.", hint=_START
            )
        try:
            check_namespace_label(label)
        except InvalidNameError as error:
            raise ConfigurationError(error.message) from error
        method = auth or self.get("auth") or AuthMethod.DEFAULT
        if method is AuthMethod.CONNECTION_STRING:
            raise ConfigurationError(
                f"No connection string is configured for {label}.",
                hint="Give it with --connection-string-file FILE, - for stdin, or SBPAIR_CONNECTION_STRING; or name an "
                "Entra ID credential with --auth.",
            )
        access = NamespaceAccess(label=label, host=host, auth=method, call_seconds=self.call_seconds)
        check_credential(access)
        return access

    def _configured(
        self, label: str, host: str, *, whole: bool = True
    ) -> tuple[str, NamespaceAccess] | tuple[None, None]:
        """Where a namespace is configured, and how it is reached there. What is wrong elsewhere does not matter.
        `whole`: the host is meant, not any namespace of that name."""
        for pair in self._pairs_of_files_first():
            for side in SIDES:
                prefix = f"pairs.{pair}.{side}."
                named = self.get(prefix + "namespace")
                if named is not None and namespace_label(named) != label:
                    continue
                try:
                    access = self.side(pair, side)
                except ConfigurationError:
                    if named is not None:
                        raise
                    continue
                if access is None:
                    continue
                if access.host == host.lower() or (access.label == label and not whole):
                    return prefix, access
        return None, None

    def _pairs_of_files_first(self) -> list[str]:
        """Of several ways to reach one namespace the user's own counts first, then a folder's file, then the state file
        of the running emulator."""
        of_project = self.pairs_of_project()
        return sorted(self.pair_names(), key=lambda name: (name == LOCAL_PAIR, name in of_project))

    def choose(self, name: str | None) -> str:
        """Name of the pair that is meant: the given one, the default one, or the only one there is.

        Raises:
            ConfigurationError: no such pair, none configured, or several and none named.
        """
        names = self.pair_names()
        chosen = name or self.get("default_pair")
        if chosen is not None and chosen.count(BETWEEN) == 1:
            return str(chosen)
        if chosen is not None:
            if chosen == LOCAL_PAIR and LOCAL_PAIR not in names:
                raise ConfigurationError(
                    "The pair `local` means two embedded namespaces, and no two are running for this user.", hint=_START
                )
            if chosen not in names:
                known = f"Known pairs: {', '.join(names)}." if names else "No pair is configured."
                raise ConfigurationError(
                    f"There is no pair named {quoted(chosen)}. {known}",
                    hint=did_you_mean(chosen, names, HOW_TO_CONFIGURE),
                )
            return chosen
        configured = [candidate for candidate in names if candidate != LOCAL_PAIR] or list(names)
        if not configured:
            raise ConfigurationError("No pair is configured and none was named.", hint=HOW_TO_CONFIGURE)
        if len(configured) > 1:
            raise ConfigurationError(
                f"Several pairs are configured ({', '.join(configured)}); name the one you mean.",
                hint="Choose a default with: sbpair config use PAIR",
            )
        return configured[0]

    def between(self, primary: str | None, secondary: str | None) -> "Settings":
        """With these namespaces, by name or host, as the pair in use; one of them may be left out where it does not
        matter."""
        name = f"{primary or ''}{BETWEEN}{secondary or ''}"
        return replace(self, values={**self.values, "default_pair": Sourced(name, "--primary and --secondary")})

    def _pair_between(self, name: str) -> Pair:
        """The pair of two namespaces that were named: the configured one if there is one of them, else one without
        options of its own. What the configuration protects, or calls production, it does here as well."""
        found = {side: self.side(name, side) for side in SIDES}
        for side, access in found.items():
            if access is None:
                raise ConfigurationError(f"No {side} was named.", hint=f"Name it: --{side} contoso-weu")
        primary, secondary = (access for access in found.values() if access is not None)
        hosts = primary.host, secondary.host
        of_project = self.pairs_of_project()
        beside: list[str] = []
        for other in self._pairs_of_files_first():
            sides = [self._side_if_right(other, side) for side in SIDES]
            names = tuple(access.host if access is not None else None for access in sides)
            if names == hosts and not (other in of_project and beside):
                return self._build_pair(other)
            if set(names) & set(hosts):
                beside.append(other)
        # What a folder's file calls a namespace of the user's own does not count.
        naming = [other for other in beside if other not in of_project] or beside
        protected = [pattern for other in beside for pattern in self._pair_value(f"pairs.{other}.", "protected")]
        environments = [found for other in naming if (found := self._pair_value(f"pairs.{other}.", "environment"))]
        return Pair(
            name=name,
            primary=primary,
            secondary=secondary,
            protected=tuple(dict.fromkeys(protected)),
            environment=environments[0] if environments else None,
        )

    def _side_if_right(self, pair: str, side: str) -> NamespaceAccess | None:
        """What is wrong with a pair that was not named does not matter."""
        try:
            return self.side(pair, side)
        except ConfigurationError:
            return None

    def _build_pair(self, name: str) -> Pair:
        if BETWEEN in name:
            return self._pair_between(name)
        prefix = f"pairs.{name}."
        return Pair(
            name=name,
            primary=self._access(f"{prefix}primary."),
            secondary=self._access(f"{prefix}secondary."),
            options=pair_options(**{name: self._pair_value(prefix, name) for name in PAIR_OPTIONS}),
            entities=self._pair_value(prefix, "entities"),
            protected=self._pair_value(prefix, "protected"),
            environment=self._pair_value(prefix, "environment"),
        )

    def _pair_value(self, prefix: str, name: str) -> Any:
        found = self.values.get(prefix + name)
        return found.value if found else next(key.default for key in PAIR_KEYS if key.name == name)

    def _access(self, prefix: str) -> NamespaceAccess:
        get = self._getter(prefix)
        reference = get("connection_string")
        secret = _read_secret(reference, prefix.rstrip("."), self.environ) if reference else None
        host, host_stated = self._host_and_whether_stated(prefix, secret)
        label = namespace_label(get("namespace") or host)
        try:
            check_namespace_label(label)
        except InvalidNameError as error:
            hint = None if get("namespace") else "Give its name beside the connection string: `namespace: contoso-weu`."
            raise ConfigurationError(f"{prefix.rstrip('.')}: {error.message}", hint=hint) from error
        auth = AuthMethod.CONNECTION_STRING if secret else get("auth") or self.get("auth") or AuthMethod.DEFAULT
        if auth is AuthMethod.CONNECTION_STRING and secret is None:
            raise ConfigurationError(
                f"{prefix}auth is connection-string, but {prefix}connection_string is not given.",
                hint="Give it as `connection_string: {env: NAME}` or `{file: PATH}`.",
            )
        access = NamespaceAccess(
            label=label,
            host=host,
            auth=auth,
            connection_string=secret,
            control_plane=get("management") or ControlPlane.AUTO,
            transport=get("transport") or Transport.AMQP,
            resource_group=get("resource_group"),
            subscription=get("subscription"),
            ca_file=get("ca_file") or authority_of_embedded(host, self.environ),
            management_url=get("management_url"),
            call_seconds=self.call_seconds,
            allow_plaintext=bool(get("allow_plaintext")) and not self._of_project(prefix + "allow_plaintext"),
            chosen_by_user=not any(self._of_project(prefix + name) for name in _CHOICES_OF_HOST),
            host_stated=host_stated,
            embedded=self._of_emulator(prefix),
        )
        check_credential(access)
        if access.auth is not AuthMethod.CONNECTION_STRING and access.management_url is not None:
            check_credential(access, resource_manager=True)
        return access

    def _host_and_whether_stated(self, prefix: str, secret: Secret | None) -> tuple[str, bool]:
        """Where a namespace is reached, and whether the configuration itself says that its name belongs there.

        Raises:
            ConfigurationError: the connection string leads elsewhere than `namespace:` or `host:` say, or a folder's
                file says where a name belongs.
        """
        namespace, stated = self.get(prefix + "namespace"), self.get(prefix + "host")
        if secret is None and stated is not None and namespace is not None:
            reached = stated
        else:
            reached = _host(namespace, secret, prefix.rstrip("."))
        if self._of_project(prefix + "connection_string"):
            self._check_cloud(prefix, reached)
        if stated is not None:
            if self._of_project(prefix + "host") and not is_at("localhost", reached):
                raise ConfigurationError(
                    f"{self.values[prefix + 'host'].source}: a file in a folder does not say that a namespace is at "
                    f"{quoted(stated)}. Nothing was sent.",
                    hint="If that is right, write it into your own sbpair.yaml, or name this file with --config.",
                )
            if not is_at(stated, reached):
                raise other_host(stated, reached)
            return reached, True
        if namespace is None:
            return reached, True  # its name is the first label of the host
        if "." in namespace and not is_at(_host(namespace, None, ""), reached):
            raise other_host(_host(namespace, None, ""), reached)
        return reached, "." in namespace

    def _check_cloud(self, prefix: str, host: str) -> None:
        """A folder's file brings connection strings for one cloud, the one that is signed in to, and for this machine.

        Raises:
            ConfigurationError: the host is elsewhere.
        """
        cloud = cloud_of_authority(self.environ.get("AZURE_AUTHORITY_HOST", "")) or Cloud.PUBLIC
        if not is_at("localhost", host) and not host.lower().endswith(cloud.service_bus_suffix):
            raise ConfigurationError(
                f"{self.values[prefix + 'connection_string'].source}: the connection string that this folder's file "
                f"gives leads to {quoted(host)}, which is not a host of Azure Service Bus "
                f"(*{cloud.service_bus_suffix}). Nothing was sent.",
                hint="If that is right, name the file with --config, or write the pair into your own sbpair.yaml.",
            )

    def _of_emulator(self, prefix: str) -> bool:
        """Whether name and host come from the state file of this user's running `sbpair emulator` alone."""
        file = str(state_directory(self.environ) / EMULATOR_STATE_FILE)
        found = [self.values.get(prefix + name) for name in ("namespace", "host", "connection_string")]
        return all(value is not None and value.source == file for value in found)

    def _of_project(self, key: str) -> bool:
        """Whether a value stands in the project file."""
        found = self.values.get(key)
        return found is not None and self.project_file is not None and found.source.startswith(f"{self.project_file}:")

    def _getter(self, prefix: str) -> Callable[[str], Any]:
        return lambda name: self.get(prefix + name)


_CHOICES_OF_HOST = ("namespace", "host", "connection_string", "ca_file", "management_url")
HOW_TO_CONFIGURE = (
    "Name both namespaces as PRIMARY:SECONDARY, write sbpair.yaml (see `sbpair help config`), or set "
    "SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING. `sbpair demo` and the pair `local` need "
    "no configuration."
)


def resource_manager(
    settings: Settings,
    subscription: str,
    resource_group: str | None,
    *,
    auth: AuthMethod | None = None,
    cloud: Cloud | None = None,
    url: str | None = None,
) -> NamespaceAccess:
    """The way to a resource manager that lists the namespaces of a subscription; it names no namespace.

    Args:
        cloud: whose resource manager; None: of the cloud that AZURE_AUTHORITY_HOST signs in to, else the public.
        url: its base URL where it is another one than the cloud's.

    Raises:
        ConfigurationError: the credential is a connection string, or may not go there.
    """
    method = auth or settings.get("auth") or AuthMethod.DEFAULT
    if method is AuthMethod.CONNECTION_STRING:
        raise ConfigurationError(
            "A connection string does not open a subscription.", hint="Name an Entra ID credential: --auth azure-cli"
        )
    login = settings.environ.get("AZURE_AUTHORITY_HOST", "")
    chosen = url or (cloud or cloud_of_authority(login) or Cloud.PUBLIC).resource_manager
    host = chosen.partition("://")[2].rstrip("/")
    if not HOST.fullmatch(host):
        raise ConfigurationError(
            f"{quoted(chosen)} is not the base URL of a resource manager.",
            hint="It is https:// and a host: --management-url https://management.azure.com",
        )
    access = NamespaceAccess(
        label="the resource manager",
        host="",
        auth=method,
        subscription=subscription,
        resource_group=resource_group,
        management_url=chosen,
        ca_file=authority_of_embedded(host, settings.environ),
        call_seconds=settings.call_seconds,
    )
    check_credential(access, resource_manager=True)
    return access


def connection_strings(settings: Settings, path: Path | None = None) -> Settings:
    """With the namespaces whose connection strings stand in a file (`-`: stdin; None: the environment), one a line. A
    name may stand before one, `contoso-weu Endpoint=sb://...`, where the host does not tell it.

    Raises:
        ConfigurationError: the file cannot be read, or a line is no connection string; the line is not repeated.
    """
    origin = CONNECTION_STRINGS if path is None else "stdin" if str(path) == "-" else str(path)
    try:
        text = settings.environ.get(CONNECTION_STRINGS, "") if path is None else _read(path)
    except DocumentError as error:
        raise ConfigurationError(f"--connection-string-file: cannot read {origin}: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if path is not None and not lines:
        raise ConfigurationError(f"There is no connection string in {origin}.")
    return replace(settings, given=tuple(_given(settings, line, origin) for line in lines))


def _read(path: Path) -> str:
    return sys.stdin.read(MOST_SECRET_BYTES) if str(path) == "-" else read_text(path, most_bytes=MOST_SECRET_BYTES)


def _given(settings: Settings, line: str, origin: str) -> NamespaceAccess:
    name, _, text = line.rpartition("Endpoint=")
    try:
        host = host_of(f"Endpoint={text}")
        label = namespace_label(name.strip() or host)
        check_namespace_label(label)
    except (ConfigurationError, InvalidNameError) as error:
        hint = "One a line: Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=..."
        raise ConfigurationError(f"{origin}: {error.message}", hint=hint) from error
    azure = any(host.lower().endswith(cloud.service_bus_suffix) for cloud in Cloud)
    if azure and namespace_label(host) != label:
        raise ConfigurationError(f"{origin}: the connection string after {quoted(label)} is that of {host}.")
    access = NamespaceAccess(
        label=label,
        host=host,
        auth=AuthMethod.CONNECTION_STRING,
        connection_string=Secret(f"Endpoint={text}"),
        ca_file=authority_of_embedded(host, settings.environ),
        call_seconds=settings.call_seconds,
        host_stated=not azure,
    )
    check_credential(access)
    return access


def _host(namespace: str | None, secret: Secret | None, where: str) -> str:
    if secret is not None:
        return host_of(secret.reveal())
    if namespace is None:
        raise ConfigurationError(f"{where} names no namespace.", hint="Give `namespace:` or `connection_string:`.")
    bare = namespace.split("://", 1)[-1].rstrip("/")
    return bare if "." in bare else bare + Cloud.PUBLIC.service_bus_suffix


def _read_secret(reference: Mapping[str, str], where: str, environ: Mapping[str, str]) -> Secret:
    kind, name = next(iter(reference.items()))
    if kind == "env":
        text = environ.get(name, "")
        origin = f"environment variable {name}"
    else:
        origin = f"file {name}"
        try:
            text = read_text(_home_in(name), most_bytes=MOST_SECRET_BYTES)
        except DocumentError as error:
            raise ConfigurationError(f"{where}.connection_string: cannot read {origin}: {error}") from error
    if not text.strip():
        raise ConfigurationError(f"{where}.connection_string: {origin} is empty or not set.")
    try:
        parse_connection_string(text.strip())
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}.connection_string, from {origin}: {error.message}") from error
    return Secret(text.strip())


def _home_in(name: str) -> Path:
    """The path with `~` written out, where there is such a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise DocumentError("there is no such home folder") from error


def load(
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    call_seconds: float = CALL_SECONDS,
) -> Settings:
    """Read the user file, the project file and the environment, later ones winning, and add the pair `local`.

    `call_seconds`: of every `NamespaceAccess` that comes out.

    Raises:
        ConfigurationError: an unreadable file, an unknown key, a bad value; file, line and key are named.
    """
    variables = os.environ if environ is None else environ
    values: dict[str, Sourced] = {}
    files = []
    found = config_files(config, variables, directory or Path.cwd())
    of_project = None
    for path in found:
        read = read_file(path)
        if config is None and not variables.get("SBPAIR_CONFIG") and path != user_file(variables):
            of_project = path
            read = _of_its_own_pairs(values, read)
        values.update(read)
        files.append(path)
    remembered = remembered_default_pair(variables)
    embedded = local_pair(variables)
    if remembered and any(key.startswith(f"pairs.{remembered['default_pair'].value}.") for key in values | embedded):
        values.update(remembered)
    values.update(from_environment(variables, values))
    values.update(embedded)
    return connection_strings(Settings(values, tuple(files), dict(variables), call_seconds, of_project))


def _of_its_own_pairs(values: Mapping[str, Sourced], read: dict[str, Sourced]) -> dict[str, Sourced]:
    """What a file in some folder may say: its own pairs, and how they sign in.

    A pair of the user's own file is theirs. A file that changes parts of it (what is protected, where the backlog is),
    chooses another of their pairs for commands that name none, or another credential for all of them would turn a
    command they know into another.

    Raises:
        ConfigurationError: it defines a pair of the user's once more, or its default pair is one of the user's.
    """
    _refuse_redefinition(values, read)
    default = read.get("default_pair")
    if default is not None and any(key.startswith(f"pairs.{default.value}.") for key in values):
        raise ConfigurationError(
            f"{default.source}: default_pair is {quoted(default.value)}, a pair of your own file; a file in a folder "
            "does not choose among yours.",
            hint="Choose with `sbpair config use PAIR`, or use this file alone with --config.",
        )
    if "auth" not in read or not any(key.startswith("pairs.") for key in values):
        return read
    auth = read.pop("auth")
    names = {key.split(".")[1] for key in read if key.startswith("pairs.")}
    return {f"pairs.{name}.{side}.auth": auth for name in names for side in SIDES} | read


def _refuse_redefinition(values: Mapping[str, Sourced], read: Mapping[str, Sourced]) -> None:
    pairs = {key.split(".")[1]: found for key, found in values.items() if key.startswith("pairs.")}
    for key, found in read.items():
        if key.startswith("pairs.") and (name := key.split(".")[1]) in (LOCAL_PAIR, ENVIRONMENT_PAIR):
            raise ConfigurationError(
                f"{found.source}: the pair `{name}` means the embedded namespaces, or what your environment variables "
                "name; a file in a folder cannot define it.",
                hint="Rename it, or use this file alone with --config.",
            )
        if key.startswith("pairs.") and (name := key.split(".")[1]) in pairs:
            raise ConfigurationError(
                f"{found.source}: the pair `{name}` is defined in {pairs[name].source} already, and a file in a folder "
                "cannot change it.",
                hint="Rename one of the two, or use this file alone with --config.",
            )


# What is said of a folder's file, once and again after each change: it decides where messages go.


def first_use_notice(settings: Settings) -> str | None:
    """The file with its pairs and their hosts, if these contents of it are used for the first time."""
    file = settings.project_file
    if file is None:
        return None
    try:
        if not first_use(file, settings.environ):
            return None
    except (OSError, ConfigurationError):
        pass  # it cannot be written down: then it is said every time
    pairs = ", ".join(f"{name} ({_hosts(settings, name)})" for name in settings.pairs_of_project())
    return f"First use of {file}, as it is now; it defines {pairs or 'no pair'}."


def load_noticed(config: Path | None = None) -> Settings:
    """As `load`, for callers of the library: a folder's file is logged as a warning when it is used for the first time.

    Raises:
        ConfigurationError: as `load`.
    """
    settings = load(config=config)
    if (notice := first_use_notice(settings)) is not None:
        logging.getLogger("sbpair").warning(notice)
    return settings


def _hosts(settings: Settings, pair: str) -> str:
    def place(side: Side) -> str:
        with suppress(ConfigurationError):  # the caller that uses it gets the error
            access = settings.side(pair, side)
            if access is not None:
                return shown_name(access)
        reference = settings.get(f"pairs.{pair}.{side}.connection_string") or {}
        named = [f"connection string of {kind} {name}" for kind, name in reference.items()]
        return settings.get(f"pairs.{pair}.{side}.namespace") or "".join(named) or "no namespace"

    return " with ".join(map(place, Side))
