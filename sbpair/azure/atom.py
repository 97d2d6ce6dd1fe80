"""What the data plane says of entities, read from its Atom entries.

Requests, credentials, retries, errors and paging are the SDK's. Only its models are left out: they take two thirds of
an audit's CPU time, and tell settings and counts as two reads of what the service says in one answer. The SDK hands
each answer, parsed, to a function that its calls take as `cls`; what goes on to its models is an empty shell.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from sbpair.azure.client import READ, LazyClient, a_text
from sbpair.core.durations import MOST_CHARACTERS, as_utc, parse_iso_duration
from sbpair.core.redact import quoted
from sbpair.service import NEVER_DAYS


def seconds_of(value: timedelta | str | None) -> float | None:
    """Seconds of a duration in either client's form; None for "never" (TimeSpan.MaxValue) and for none at all.

    Both SDKs lose the last digits of TimeSpan.MaxValue on the way out and the service refuses a value above it, so
    "never" is left out of requests or written as this very text.
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        return None if value.days >= NEVER_DAYS else value.total_seconds()
    seconds = parse_iso_duration(value) if isinstance(value, str) and len(value) <= MOST_CHARACTERS else None
    if seconds is None:
        raise ValueError(f"{quoted(value)} is not an ISO 8601 duration")
    return None if seconds >= NEVER_DAYS * 86_400 else seconds


_ATOM = "{http://www.w3.org/2005/Atom}"
_SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
_COUNTS = "{http://schemas.microsoft.com/netservices/2011/06/servicebus}"
_MOST_DIGITS = 19
QUEUE: Final = "QueueDescription"
TOPIC: Final = "TopicDescription"
SUBSCRIPTION: Final = "SubscriptionDescription"
_TAGS = {f"{_SERVICE_BUS}{kind}": kind for kind in (QUEUE, TOPIC, SUBSCRIPTION)}


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A shared access rule of an entity, without its keys."""

    key_name: str | None = None
    rights: tuple[str, ...] = ()


@dataclass(slots=True)
class EntityDescription:
    """An entity's settings, counts and times by the names of the SDK's properties; None is what was not said.

    Durations stay the ISO 8601 texts that they are.
    """

    kind: str
    """QUEUE, TOPIC or SUBSCRIPTION."""
    name: str
    authorization_rules: tuple[KeyRule, ...] | None = None
    lock_duration: str | None = None
    max_size_in_megabytes: int | None = None
    requires_duplicate_detection: bool | None = None
    duplicate_detection_history_time_window: str | None = None
    requires_session: bool | None = None
    default_message_time_to_live: str | None = None
    auto_delete_on_idle: str | None = None
    dead_lettering_on_message_expiration: bool | None = None
    dead_lettering_on_filter_evaluation_exceptions: bool | None = None
    max_delivery_count: int | None = None
    enable_batched_operations: bool | None = None
    enable_partitioning: bool | None = None
    enable_express: bool | None = None
    support_ordering: bool | None = None
    status: str | None = None
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None
    size_in_bytes: int | None = None
    subscription_count: int | None = None
    created_at_utc: datetime | None = None
    updated_at_utc: datetime | None = None
    accessed_at_utc: datetime | None = None
    active_message_count: int | None = None
    dead_letter_message_count: int | None = None
    scheduled_message_count: int | None = None
    transfer_message_count: int | None = None
    transfer_dead_letter_message_count: int | None = None


async def listed(client: LazyClient, kind: str, pages: Callable[..., Any], *of: str) -> list[EntityDescription]:
    """Every entity of a list; one that is listed twice counts once.

    `pages`: the SDK's call that begins it, with the arguments `of`.

    Raises:
        ValueError: the answer is no list of entities of that `kind`, or does not end.
    """
    found: dict[str, EntityDescription] = {}

    def keep(_response: Any, feed: Any, _headers: Any) -> Element:
        _check_root(feed, "feed")
        for entry in feed.iterfind(f"{_ATOM}entry"):
            one = _read(entry, kind)
            found[one.name.lower()] = one
        shell = Element(feed.tag)
        shell.extend(feed.findall(f"{_ATOM}link"))
        return shell

    await client.items(pages(*of, cls=keep, **READ))
    return list(found.values())


async def described(client: LazyClient, get: Callable[..., Awaitable[Any]], *of: str) -> EntityDescription:
    """The entity that the SDK's call `get` asks for, called as it was asked for: the last of `of`. Who asks for a queue
    is told of the topic of that name, and the other way round.

    Raises:
        ResourceNotFoundError: there is nothing of that name, as the SDK says it.
        ValueError: the answer describes no entity.
    """
    from azure.core.exceptions import ResourceNotFoundError

    found: list[EntityDescription] = []

    def keep(_response: Any, answer: Any, _headers: Any) -> Element:
        if getattr(answer, "tag", None) == f"{_ATOM}feed" and answer.find(f"{_ATOM}entry") is None:
            raise ResourceNotFoundError(f"{of[-1]} does not exist")  # the service's answer is an empty list
        _check_root(answer, "entry")
        found.append(_read(answer, None, of[-1]))
        return _shell()

    await client.answer(get(*of, cls=keep, **READ))
    return found[0]


def _shell() -> Element:
    """An entry that has each description, which says nothing."""
    entry = Element(f"{_ATOM}entry")
    content = SubElement(entry, f"{_ATOM}content")
    for tag in _TAGS:
        SubElement(content, tag)
    return entry


def _check_root(answer: Any, wanted: str) -> None:
    tag = getattr(answer, "tag", None)
    if tag != f"{_ATOM}{wanted}":
        raise ValueError(f"the answer is {quoted(tag)}, which is no Atom {wanted}")


def _read(entry: Element, kind: str | None, name: str | None = None) -> EntityDescription:
    """`kind`: that is expected; `name`: instead of the title."""
    description = next((one for one in entry.iterfind(f"{_ATOM}content/*") if one.tag in _TAGS), None)
    found = None if description is None else _TAGS[description.tag]
    if description is None or found is None or kind not in (None, found):
        raise ValueError(f"the answer has an entry that is no {kind or 'description of an entity'}")
    values = _values(description, _SETTINGS)
    return EntityDescription(
        found, a_text(entry.findtext(f"{_ATOM}title"), "title") if name is None else name, **values
    )


def _values(parent: Element, known: "Mapping[str, Known]") -> dict[str, Any]:
    """What the children say that are known, by attribute; an element may be there once."""
    values: dict[str, Any] = {}
    for child in parent:
        if (found := known.get(child.tag)) is None:
            continue
        name, read, of_text = found
        if name in values:
            raise ValueError(f"the answer has {_name(child)} more than once")
        try:
            values[name] = read(child.text) if of_text else read(child)
        except _WrongError as error:
            raise ValueError(f"the answer has {quoted(child.text)} for `{_name(child)}`, not {error}") from None
    counts: dict[str, Any] | None = values.pop(_COUNT_DETAILS, None)
    return values if counts is None else values | counts


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


class _WrongError(Exception):
    """A text is not what it should be: the message says what."""


def _text(text: str | None) -> str:
    return text or ""


# Most entities say the same of most things.


@lru_cache(maxsize=1024)
def _whole_number(text: str | None) -> int | None:
    if not text:
        return None
    if len(text) > _MOST_DIGITS or not text.isascii() or not text.isdigit():
        raise _WrongError("a whole number")
    return int(text)


@lru_cache(maxsize=8)
def _flag(text: str | None) -> bool | None:
    if not text:
        return None
    if (value := _FLAGS.get(text.lower())) is None:
        raise _WrongError("true or false")
    return value


def _moment(text: str | None) -> datetime:
    """A time without an offset is UTC: so the service writes the year 1, which stands for never."""
    try:
        return as_utc(datetime.fromisoformat(text or ""))
    except ValueError:
        raise _WrongError("a time") from None


def _rules(element: Element) -> tuple[KeyRule, ...]:
    return tuple(KeyRule(**_values(one, _RULE)) for one in element)


def _rights(element: Element) -> tuple[str, ...]:
    return tuple(one.text or "" for one in element)


def _counts(element: Element) -> dict[str, Any]:
    return _values(element, _MESSAGES)


Known = tuple[str, Callable[[Any], Any], bool]
"""Attribute, how an element is read for it, and whether its text is all that it takes."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_COUNT_DETAILS = "count details"
_READERS: Mapping[Any, tuple[Callable[[Any], Any], bool]] = {
    str | None: (_text, True),
    int | None: (_whole_number, True),
    bool | None: (_flag, True),
    datetime | None: (_moment, True),
    tuple[KeyRule, ...] | None: (_rules, False),
    tuple[str, ...]: (_rights, False),
}


def _by_tag(of: type, prefix: str, *, counts: bool = False) -> dict[str, Known]:
    """The elements that tell the fields of a dataclass: `lock_duration` is `LockDuration`."""
    found = {}
    for field in fields(of):
        if field.type in _READERS and field.name.endswith("_message_count") is counts:
            tag = "".join(word.capitalize() for word in field.name.removesuffix("_utc").split("_"))
            found[f"{prefix}{tag}"] = field.name, *_READERS[field.type]
    return found


_RULE = _by_tag(KeyRule, _SERVICE_BUS)
_MESSAGES = _by_tag(EntityDescription, _COUNTS, counts=True)
_SETTINGS = {
    **_by_tag(EntityDescription, _SERVICE_BUS),
    f"{_SERVICE_BUS}CountDetails": (_COUNT_DETAILS, _counts, False),
}
