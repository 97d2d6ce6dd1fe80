"""Names of namespaces, entities and backlog queues, with the service's limits.

Sources: "Paired Namespaces: Implementation Details and Cost" (backlog queue path), the Service Bus quota and naming
documents, ARM resource name rules.
"""

import re
from collections.abc import Iterable, Iterator, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from sbpair.core.errors import InvalidNameError
from sbpair.core.redact import quoted
from sbpair.service import MAX_ENTITY_PATH_CHARACTERS

BACKLOG_INFIX = "x-servicebus-transfer"
MAX_ID_CHARACTERS = 128
SUBSCRIPTIONS = "subscriptions"
"""The segment between a topic and the name of a subscription."""
RULES = "rules"
"""The segment between a subscription and the name of a rule."""
DEAD_LETTER_SUFFIX = "$deadletterqueue"

_NAMESPACE = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{4,48}[a-zA-Z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_BACKLOG = re.compile(rf"({_SEGMENT.pattern})/{BACKLOG_INFIX}/(0|[1-9][0-9]*)", re.IGNORECASE)
_FORBIDDEN_ENDINGS = ("-sb", "-mgmt")


class _HasPath(Protocol):
    @property
    def path(self) -> str: ...


V = TypeVar("V")
P = TypeVar("P", bound=_HasPath)


class ByName(MutableMapping[str, V]):
    """Values by names of entities or rules, or by hosts: to the service a name in other capitals is the same name.

    It iterates over the names in lower case, in the order in which they came.
    """

    __slots__ = ("_values",)

    def __init__(self, items: Iterable[tuple[str, V]] = ()) -> None:
        self._values = {name.lower(): value for name, value in items}

    def __getitem__(self, name: str) -> V:
        return self._values[name.lower()]

    def __setitem__(self, name: str, value: V) -> None:
        self._values[name.lower()] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Names(AbstractSet[str]):
    """Such names, without values."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def by_path(entities: Iterable[P]) -> ByName[P]:
    return ByName((one.path, one) for one in entities)


def same_name(first: str, second: str) -> bool:
    return first.lower() == second.lower()


def name_matches(name: str, pattern: str) -> bool:
    """Whether a shell pattern is of this name, whatever the case of either."""
    return fnmatchcase(name.lower(), pattern.lower())


@dataclass(frozen=True, slots=True)
class BacklogName:
    """A backlog queue path taken apart: the primary's label and the queue's index ("Paired Namespaces:
    Implementation Details and Cost")."""

    primary_label: str
    index: int

    @property
    def path(self) -> str:
        return backlog_queue_path(self.primary_label, self.index)


def namespace_label(host_or_name: str) -> str:
    """First DNS label of a namespace host, lower case: `contoso-weu` for `contoso-weu.servicebus.windows.net`.

    A scheme, port or path around the host is ignored.
    """
    host = host_or_name.split("://", 1)[-1].split("/", 1)[0].split(":", 1)[0]
    return host.split(".", 1)[0].lower()


def check_namespace_label(label: str) -> str:
    """Return `label` if the service would accept it as a namespace name.

    Raises:
        InvalidNameError: wrong length, characters or ending (naming rules: 6 to 50 characters, letters, digits and
            hyphens, begins with a letter, ends with a letter or digit, not with -sb or -mgmt).
    """
    if not _NAMESPACE.fullmatch(label) or label.lower().endswith(_FORBIDDEN_ENDINGS):
        raise InvalidNameError(
            f"{quoted(label)} is not a namespace name: 6 to 50 letters, digits and hyphens, beginning with a letter, "
            "ending with a letter or digit, and not with -sb or -mgmt."
        )
    return label


def check_entity_path(path: str) -> str:
    """Return `path` in the service's form (backslashes become slashes) if it is a legal queue or topic path.

    Raises:
        InvalidNameError: empty, longer than 260 characters, a leading or trailing slash, an empty segment, or a
            character other than letters, digits, period, hyphen and underscore.
    """
    normal = path.replace("\\", "/")
    if not normal or len(normal) > MAX_ENTITY_PATH_CHARACTERS:
        raise InvalidNameError(
            f"An entity path has 1 to {MAX_ENTITY_PATH_CHARACTERS} characters; {path[:40]!r} has {len(path)}."
        )
    for segment in normal.split("/"):
        if not _SEGMENT.fullmatch(segment):
            hint = "ARM ids use `~` for `/`; write the path with `/` here." if "~" in path else None
            raise InvalidNameError(
                f"{path!r} is not an entity path: between slashes only letters, digits, '.', '-' and '_' are allowed.",
                hint=hint,
            )
    return normal


def cut_path(path: str) -> str:
    """A path for people, where somebody else wrote it: no longer than one can be. What is cut ends with a sign that no
    path has, so that nobody takes it for one."""
    return path if len(path) <= MAX_ENTITY_PATH_CHARACTERS else f"{path[: MAX_ENTITY_PATH_CHARACTERS - 1]}\u2026"


def is_destination(path: str) -> bool:
    """Whether `path` may be opened to deliver a message to: the path of a queue or a topic, and nothing else.

    An "accepted" proves that a message is stored only if a queue or a topic said it. A management node
    (`orders/$management`, `$cbs`) accepts every transfer, carries out what it asks for and stores nothing; a
    subscription or a sub-queue (`$deadletterqueue`) has no door for senders. Paths that come with a message were
    written by somebody else, so this is asked of each of them before a link is opened.
    """
    try:
        normal = check_entity_path(path)
    except InvalidNameError:
        return False
    segments = normal.lower().split("/")
    return SUBSCRIPTIONS not in segments and not {".", ".."}.intersection(segments)


def subscription_of(path: str) -> tuple[str, str] | None:
    """Topic and name of a subscription's path, `topic/Subscriptions/name`; None for any other path."""
    topic, _, name = path.rpartition("/")
    topic, _, word = topic.rpartition("/")
    return (topic, name) if topic and name and word.lower() == SUBSCRIPTIONS else None


def subscription_path(topic: str, name: str) -> str:
    """Path of a subscription as the service writes it."""
    return f"{topic}/Subscriptions/{name}"


def rule_of(path: str) -> tuple[str, str] | None:
    """Subscription and name of a rule's path, `topic/Subscriptions/name/Rules/rule`; None for any other path."""
    subscription, _, name = path.rpartition("/")
    subscription, _, word = subscription.rpartition("/")
    return (subscription, name) if name and word.lower() == RULES and subscription_of(subscription) else None


def check_source_path(path: str) -> str:
    """Return the path of a queue or subscription, from which messages are received, in the service's form.

    Raises:
        InvalidNameError: as with `check_entity_path`.
    """
    normal = check_entity_path(path)
    subscription = subscription_of(normal)
    return normal if subscription is None else subscription_path(*subscription)


def backlog_queue_path(primary: str, index: int) -> str:
    """Path of one backlog queue on the secondary: `{primary}/x-servicebus-transfer/{index}` ("Paired Namespaces:
    Implementation Details and Cost")."""
    if index < 0:
        raise InvalidNameError(f"A backlog queue index is 0 or more, not {index}.")
    return f"{namespace_label(primary)}/{BACKLOG_INFIX}/{index}"


def parse_backlog_queue_path(path: str) -> BacklogName | None:
    """Take a backlog queue path apart; None for any other path. Case does not matter (entity names have none)."""
    match = _BACKLOG.fullmatch(path) if len(path) <= MAX_ENTITY_PATH_CHARACTERS else None
    return BacklogName(match[1].lower(), int(match[2])) if match else None


def to_arm_name(path: str) -> str:
    """Entity path as an ARM resource name: `/` is reserved there and written `~`."""
    return path.replace("/", "~")


def from_arm_name(name: str) -> str:
    """Entity path of an ARM resource name; lists have been seen with either character."""
    return name.replace("~", "/")


def split_source(source: str) -> tuple[str, bool]:
    """Queue path and whether the source is its dead-letter sub-queue."""
    queue, slash, last = source.rpartition("/")
    return (queue, True) if slash and last.lower() == DEAD_LETTER_SUFFIX else (source, False)


def dead_letter_path(path: str) -> str:
    """Address of the dead-letter sub-queue of a queue or subscription."""
    return f"{path}/{DEAD_LETTER_SUFFIX}"


def is_dead_letter_path(path: str) -> bool:
    """Whether `path` is that of a dead-letter sub-queue."""
    return path.lower().endswith(f"/{DEAD_LETTER_SUFFIX}")
