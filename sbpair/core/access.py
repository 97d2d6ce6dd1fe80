"""How a namespace is reached: host, credential by name, transport. Secrets never show in a repr, log or traceback."""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from sbpair.core.errors import ConfigurationError
from sbpair.core.redact import quoted

CALL_SECONDS = 30.0
"""Longest wait for one answer, unless told otherwise."""


class Secret:
    """A string that prints as `***`; the value comes out by `reveal()` only."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled: pass the name of the credential instead")


class AuthMethod(StrEnum):
    """One credential, tried alone; `default` is the chain of azure-identity."""

    CONNECTION_STRING = "connection-string"
    AZURE_CLI = "azure-cli"
    MANAGED_IDENTITY = "managed-identity"
    WORKLOAD_IDENTITY = "workload-identity"
    ENVIRONMENT = "environment"
    BROWSER = "browser"
    DEFAULT = "default"


class ControlPlane(StrEnum):
    """Which management API is used. `auto`: data plane with a connection string, ARM where subscription and resource
    group are known, otherwise the data plane."""

    AUTO = "auto"
    DATA_PLANE = "data-plane"
    ARM = "arm"


class Transport(StrEnum):
    AMQP = "amqp"
    """AMQP over TLS, port 5671."""
    WEBSOCKET = "websocket"
    """AMQP over WebSocket, port 443, for networks that block 5671."""


class Cloud(StrEnum):
    """One of Azure's clouds: each has its own host names, resource manager and login."""

    PUBLIC = "public"
    CHINA = "china"
    US_GOVERNMENT = "us-government"

    @property
    def service_bus_suffix(self) -> str:
        """What every namespace's host ends with."""
        return _OF_CLOUDS[self][0]

    @property
    def resource_manager(self) -> str:
        """Base URL of the resource manager."""
        return f"https://{_OF_CLOUDS[self][1]}"

    @property
    def authority(self) -> str:
        """Host that gives out Entra ID tokens."""
        return _OF_CLOUDS[self][2]


_OF_CLOUDS = {
    Cloud.PUBLIC: (".servicebus.windows.net", "management.azure.com", "login.microsoftonline.com"),
    Cloud.CHINA: (".servicebus.chinacloudapi.cn", "management.chinacloudapi.cn", "login.chinacloudapi.cn"),
    Cloud.US_GOVERNMENT: (".servicebus.usgovcloudapi.net", "management.usgovcloudapi.net", "login.microsoftonline.us"),
}


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """Everything needed to reach one namespace. `label` is the name used in backlog queue paths ("Paired
    Namespaces: Implementation Details and Cost")."""

    label: str
    host: str
    """Fully qualified host, without scheme; with a port only for the embedded namespace."""
    auth: AuthMethod = AuthMethod.DEFAULT
    connection_string: Secret | None = None
    control_plane: ControlPlane = ControlPlane.AUTO
    transport: Transport = Transport.AMQP
    resource_group: str | None = None
    subscription: str | None = None
    ca_file: str | None = None
    """PEM file of the authority to trust instead of the system's: for proxies and the embedded namespace."""
    management_url: str | None = None
    """Base URL of ARM where it is not that of the host's cloud."""
    allow_plaintext: bool = False
    """Whether a connection string with `UseDevelopmentEmulator=true` may leave this machine, its token in clear."""
    chosen_by_user: bool = True
    """Whether host, management URL and authority are the user's own choice; not if a project folder's file made it."""
    host_from_list: bool = False
    """Whether a resource manager's list named the host, and not the user."""
    host_stated: bool = True
    """Whether label and host were written down together. If not, the host must be the one that the label has in one of
    Azure's clouds."""
    embedded: bool = False
    """Whether the running `sbpair emulator` of this user wrote down label and host."""
    call_seconds: float = CALL_SECONDS
    """Longest wait for the answer of one management call, or one page of a list, retries included. Receivers that open
    their link wait no longer either."""

    def __post_init__(self) -> None:
        """DNS names are the same in any case: from here on they are compared as they stand."""
        object.__setattr__(self, "label", self.label.lower())
        object.__setattr__(self, "host", self.host.lower())


HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
"""A host name or address, with or without a port."""


def parse_connection_string(text: str) -> dict[str, str]:
    """Split `Endpoint=sb://host/;SharedAccessKeyName=...;SharedAccessKey=...` into a dict with lower-case keys.

    Raises:
        ConfigurationError: no Endpoint with a host, or a part without `=`. The text itself is never repeated in the
            message.
    """
    if not text.isprintable():
        raise ConfigurationError("A connection string is one line; this one has control characters in it.")
    parts: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        key, separator, value = part.partition("=")
        if not separator:
            raise ConfigurationError("A connection string is `Name=value` parts separated by `;`; one part has no `=`.")
        name = key.strip().lower()
        if name in parts or name == "hostname":
            # Which of them counts, others decide in other ways: what was judged has to be what is contacted.
            raise ConfigurationError(f"The connection string names its host or key twice, by {quoted(name[:30])}.")
        parts[name] = value.strip()
    if "sharedaccesssignature" in parts and parts.keys() & {"sharedaccesskey", "sharedaccesskeyname"}:
        raise ConfigurationError("The connection string has a key and a signature; which of them counts is not clear.")
    if not parts.get("endpoint", "").lower().startswith("sb://"):
        raise ConfigurationError("The connection string has no `Endpoint=sb://...` part.")
    if not HOST.fullmatch(_authority_of(parts["endpoint"])):
        raise ConfigurationError("The `Endpoint=sb://...` part of the connection string names no host.")
    return parts


def entity_path_of(access: NamespaceAccess) -> str | None:
    """The one entity that the connection string is for (`EntityPath=...`), if it is for one only."""
    if access.connection_string is None:
        return None
    return parse_connection_string(access.connection_string.reveal()).get("entitypath", "").strip("/") or None


def namespace_name(access: NamespaceAccess) -> str:
    """The namespace by a name that stays: its host. An embedded one, whose port changes, is `contoso-weu@localhost`."""
    bare = without_port(access.host)
    return f"{access.label}@localhost" if is_loopback(bare) else bare


def has_own_host(label: str, host: str) -> bool:
    """Whether the host is the one that a namespace of this name has in one of Azure's clouds."""
    bare, _, port = host.lower().partition(":")
    return port in _PORTS and bare.removesuffix(".") in {f"{label.lower()}{suffix}" for suffix in SERVICE_BUS_SUFFIXES}


_PORTS = ("", "443", "5671")
"""None, and those that every namespace has."""


def shown_name(access: NamespaceAccess) -> str:
    """The namespace in a question, a closing sentence and a report: a reader knows which host is contacted.

    The label alone, where it tells the host: `contoso-weu` is contoso-weu.servicebus.windows.net. The whole host where
    the file of a folder chose it; `contoso-weu at 10.0.0.4:5671` for any other host.
    """
    if access.embedded:
        return access.label
    if not has_own_host(access.label, access.host):
        return f"{access.label} at {access.host}"
    return access.label if access.chosen_by_user else access.host


def spoken_name(label: str, host: str, *, embedded: bool = False) -> str:
    """The namespace for people: its host, with the name beside it where the host is an address of this machine; the
    configured name alone of what the running `sbpair emulator` of this user wrote down."""
    if not is_loopback(without_port(host.lower())):
        return host
    return label if embedded else f"{label} at {host}"


def host_name(access: NamespaceAccess) -> str:
    """The namespace as `spoken_name` has it."""
    return spoken_name(access.label, access.host, embedded=access.embedded)


def credential_name(access: NamespaceAccess) -> str:
    """The credential by name, for people and logs: `azure-cli`, or `connection-string (RootManageSharedAccessKey)`."""
    name = key_name(access)
    return access.auth.value if name is None else f"{access.auth.value} ({name})"


def key_name(access: NamespaceAccess) -> str | None:
    """Name of the key in the connection string, `signature` for a ready-made one; None without a connection string."""
    if access.connection_string is None:
        return None
    return parse_connection_string(access.connection_string.reveal()).get("sharedaccesskeyname", "signature")


# The gate for credentials: which host may receive which credential over which transport. Every client of a namespace
# asks here before it is made, and every request afterwards may go to that one origin only.

SERVICE_BUS_SUFFIXES = tuple(suffix for suffix, _, _ in _OF_CLOUDS.values())
RESOURCE_MANAGER_HOSTS = tuple(host for _, host, _ in _OF_CLOUDS.values())


def cloud_of(access: NamespaceAccess) -> Cloud | None:
    """The cloud whose namespace or resource manager this is; None if host and management URL tell none."""
    host, manager = without_port(access.host), _host_of_url(access.management_url or "")
    return next((one for one in Cloud if host.endswith(one.service_bus_suffix)), None) or next(
        (one for one in Cloud if manager == _OF_CLOUDS[one][1]), None
    )


def cloud_of_authority(host: str) -> Cloud | None:
    """The cloud that a login host is of, with or without `https://`; None for an unknown one."""
    bare = _host_of_url(host if "://" in host else f"https://{host}")
    return next((one for one in Cloud if bare == one.authority), None)


def resource_manager_url(access: NamespaceAccess) -> str:
    """Base URL of the resource manager that knows the namespace: the given one, else that of its cloud."""
    return (access.management_url or (cloud_of(access) or Cloud.PUBLIC).resource_manager).rstrip("/")


def check_credential(access: NamespaceAccess, *, resource_manager: bool = False) -> str:
    """The one origin (`https://host`) that may receive the credential of `access`, for AMQP and HTTP alike.

    An Entra ID token is good for all that the user may do, so it goes to Azure's own hosts, and elsewhere - this
    machine included, whose ports others may listen on - only where the user has written the host down. A token in clear
    stays on this machine.

    Raises:
        ConfigurationError: the credential may not go there; nothing was sent.
    """
    _check_label(access)
    url = resource_manager_url(access) if resource_manager else f"https://{access.host}"
    # AMQP takes the namespace's host as it stands: with `#` or `/` in it, another one than a URL's parser finds.
    scheme, host = url.partition("://")[0].lower(), (_authority_of(url) if resource_manager else access.host).lower()
    if not HOST.fullmatch(host):
        raise ConfigurationError(
            f"{quoted(url)}, where {access.label} is to be reached, does not name a host alone. Nothing was sent.",
            hint="Write a host, with a port where it needs one, and neither user nor password before it.",
        )
    bare = without_port(host)
    local = is_loopback(bare)
    if is_plaintext(access) and not (local or access.allow_plaintext):
        raise ConfigurationError(
            f"The connection string of {access.label} has UseDevelopmentEmulator=true, which sends its token in "
            f"clear, and {bare} is not this machine. Nothing was sent.",
            hint="Take UseDevelopmentEmulator=true out, or set `allow_plaintext: true` in your own sbpair.yaml.",
        )
    if resource_manager and scheme != "https":
        raise ConfigurationError(
            f"The management URL of {access.label} is not https; a token is not sent in clear. Nothing was sent.",
            hint="Write it with https://, in `management_url:` or with --management-url.",
        )
    known = bare in RESOURCE_MANAGER_HOSTS if resource_manager else bare.endswith(SERVICE_BUS_SUFFIXES)
    listed = access.host_from_list and not resource_manager
    if listed and not known and not (local and access.chosen_by_user and _is_local_manager(access)):
        raise ConfigurationError(
            f"The resource manager's list says that {access.label} is at {bare}, which is no host of Azure Service "
            "Bus. Nothing was sent.",
            hint=f"If that is right, name it yourself: sbpair discover {host}",
        )
    if access.chosen_by_user or (local and access.connection_string is not None):
        return f"{scheme}://{host}"
    if access.connection_string is None and not known:
        raise ConfigurationError(
            f"The configuration of this folder would send your Entra ID token to {bare}, which is no host of Azure"
            f"{', and another user may listen on a port here' if local else ' Service Bus'}. Nothing was sent.",
            hint=_IF_THAT_IS_RIGHT,
        )
    if access.connection_string is not None and not known:
        raise ConfigurationError(
            f"The connection string that the configuration of this folder gives for {access.label} leads to {bare}, "
            "which is no host of Azure Service Bus. Nothing was sent.",
            hint=_IF_THAT_IS_RIGHT,
        )
    if access.ca_file is not None:
        raise ConfigurationError(
            f"The configuration of this folder would trust its own certificate authority for {bare}. Nothing was sent.",
            hint=_IF_THAT_IS_RIGHT,
        )
    return f"{scheme}://{host}"


_IF_THAT_IS_RIGHT = "If that is right, name the file with --config, or write the pair into your own sbpair.yaml."


def _check_label(access: NamespaceAccess) -> None:
    """What is shown is what is contacted.

    Raises:
        ConfigurationError: the connection string, or the host, is of another namespace than the label says.
    """
    reached = access.host if access.connection_string is None else host_of(access.connection_string.reveal())
    if reached.lower() != access.host:
        raise other_host(access.host, reached)
    if not access.host_stated and not has_own_host(access.label, reached):
        raise other_host(access.label, reached)


def other_host(named: str, reached: str) -> ConfigurationError:
    """The error of a namespace whose name and host do not belong together; nothing was contacted."""
    return ConfigurationError(
        f"The namespace is named {quoted(named)}, but its connection string or host leads to {quoted(reached)}. "
        "Nothing was sent.",
        hint="Correct the one that is wrong. If both are right (a Geo-DR alias, a custom endpoint, an embedded "
        f"namespace), write `host: {without_port(reached)}` beside `namespace:` in your own sbpair.yaml, or set "
        "SBPAIR_PRIMARY_HOST or SBPAIR_SECONDARY_HOST.",
    )


def _is_local_manager(access: NamespaceAccess) -> bool:
    """Whether the resource manager is on this machine, as that of the embedded namespaces is."""
    return is_loopback(_host_of_url(access.management_url or ""))


def _authority_of(url: str) -> str:
    """What a client connects to: all between the scheme and the path, so that `host@elsewhere` is no host. Empty where
    there is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:  # a bracket that is not closed
        return ""


def _host_of_url(url: str) -> str:
    return without_port(_authority_of(url).lower())


def is_loopback(host: str) -> bool:
    """Whether a host, without its port, is this machine whatever a name server says."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether a host, without its port, says nothing of the namespace's name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def is_plaintext(access: NamespaceAccess) -> bool:
    """Whether the connection string asks for AMQP without TLS, as the embedded namespaces offer it."""
    if access.connection_string is None:
        return False
    return parse_connection_string(access.connection_string.reveal()).get("usedevelopmentemulator", "") == "true"


def without_port(host: str) -> str:
    """`127.0.0.1` of `127.0.0.1:5680`, `::1` of `[::1]:5680`."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def is_at(stated: str, host: str) -> bool:
    """Whether a host that was written down is the one that is contacted. Without a port it stands for any; `localhost`
    and every loopback address are this machine."""
    stated, host = stated.lower(), host.lower()
    if stated == host:
        return True
    bare, reached = without_port(stated), without_port(host)
    return bare == stated.strip("[]") and (bare == reached or (is_loopback(bare) and is_loopback(reached)))


def host_of(connection_string: str) -> str:
    """Host (and port, if any) of a connection string's endpoint."""
    return _authority_of(parse_connection_string(connection_string)["endpoint"])
