"""XML of the data-plane administration API, written and read by hand.

Written as text with the prefixes the service itself uses: not every official client understands namespaces, some look
for `d2p1:ActiveMessageCount` literally. ElementTree only reads here; its `register_namespace` is never called, because
that registry is shared by the whole process and an SDK in the same process relies on it being empty.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

from sbpair.amqp.types import Described, Long, Symbol, Timestamp
from sbpair.emulator.admin.fields import MAX_INT32, MAX_TICKS, capitalized, duration_ticks, format_duration, format_time
from sbpair.emulator.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from sbpair.engine.errors import bad_request
from sbpair.service import CORRELATION_FIELDS, TICKS_PER_SECOND

ATOM_NS = "http://www.w3.org/2005/Atom"
SERVICE_BUS_NS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS_NS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE_NS = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA_NS = "http://www.w3.org/2001/XMLSchema"
TYPE_ATTRIBUTE = f"{{{INSTANCE_NS}}}type"


class MalformedBody(ValueError):
    """The request's body is not the XML the operation needs."""


@dataclass(frozen=True, slots=True)
class Node:
    """One element to write: its tag with the prefix spelled out, attributes, and either text or children."""

    tag: str
    content: "str | tuple[Node, ...]" = ""
    attributes: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> str:
        """The element as XML text, without a declaration."""
        head = self.tag + "".join(f" {name}={quoteattr(value)}" for name, value in self.attributes.items())
        inner = escape(self.content) if isinstance(self.content, str) else "".join(c.render() for c in self.content)
        return f"<{head}>{inner}</{self.tag}>" if inner else f"<{head} />"


def node(tag: str, *children: Node, **attributes: str) -> Node:
    return Node(tag, children, attributes)


def text_node(tag: str, value: object, **attributes: str) -> Node:
    """An element with text; booleans are written the XML Schema way."""
    return Node(tag, str(value).lower() if isinstance(value, bool) else str(value), attributes)


@dataclass(frozen=True, slots=True)
class AtomEntry:
    """What is the same in every Atom entry: where it lives, its title and its dates (ISO 8601 texts)."""

    url: str
    title: str
    published: str
    updated: str
    author: str


def entry(head: AtomEntry, description: Node) -> Node:
    """An Atom entry around one description."""
    return node(
        "entry",
        text_node("id", head.url),
        text_node("title", head.title, type="text"),
        text_node("published", head.published),
        text_node("updated", head.updated),
        node("author", text_node("name", head.author)),
        Node("link", "", {"rel": "self", "href": head.url}),
        node("content", description, type="application/xml"),
        xmlns=ATOM_NS,
    )


def feed(title: str, url: str, updated: str, *, next_url: str | None = None) -> Node:
    """An Atom feed without entries. The link to the next page is the second link: the official client takes it by
    position."""
    links = [Node("link", "", {"rel": "self", "href": url})]
    if next_url is not None:
        links.append(Node("link", "", {"rel": "next", "href": next_url}))
    return node(
        "feed",
        text_node("title", title, type="text"),
        text_node("id", url),
        text_node("updated", updated),
        *links,
        xmlns=ATOM_NS,
    )


def open_feed(empty: Node) -> tuple[bytes, bytes]:
    """A feed without entries as the bytes before and behind its entries."""
    tail = f"</{empty.tag}>"
    return empty.render().removesuffix(tail).encode(), tail.encode()


def error(code: int, detail: str) -> Node:
    """The error body of the data-plane administration API."""
    return node("Error", text_node("Code", code), text_node("Detail", detail))


def description(tag: str, *children: Node) -> Node:
    """An entity description in the service's namespace, with the instance namespace bound to `i`."""
    return Node(tag, children, {"xmlns": SERVICE_BUS_NS, "xmlns:i": INSTANCE_NS})


def parse_body(body: bytes) -> ElementTree.Element:
    """The description inside the entry of a PUT body; MalformedBody if there is none or the text is not safe XML.

    Read as UTF-8 whatever the document says of itself: in another encoding a type definition would not be seen here.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise MalformedBody("The request body is not UTF-8.") from problem
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise MalformedBody("A document type definition is not allowed in the request body.")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as problem:
        raise MalformedBody(f"The request body is not well-formed XML: {problem}.") from problem
    content = root.find(f"{{{ATOM_NS}}}content")
    if root.tag != f"{{{ATOM_NS}}}entry" or content is None or len(content) != 1:
        raise MalformedBody("The request body must be an Atom entry whose content is one description.")
    return content[0]


def local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def child(element: ElementTree.Element, name: str) -> ElementTree.Element | None:
    """The child of that name in the service's namespace, or None."""
    return element.find(f"{{{SERVICE_BUS_NS}}}{name}")


def child_text(element: ElementTree.Element, name: str) -> str | None:
    """The text of a child; None if it is absent, "" if it is empty."""
    found = child(element, name)
    return None if found is None else (found.text or "")


def instance_type(element: ElementTree.Element) -> str:
    """The value of `xsi:type` without its prefix, "" if the attribute is missing."""
    return element.get(TYPE_ATTRIBUTE, "").rpartition(":")[2]


# Subscription rules to and from XML: SQL, correlation, true and false filters, SQL actions, typed values. A value of
# a correlation property or SQL parameter carries its XML Schema type. It becomes what a message carries for it: str,
# int, float, bool, an AMQP timestamp for a dateTime, the described `com.microsoft:timespan` for a duration.

COMPATIBILITY_LEVEL = 20
TIMESPAN = Symbol("com.microsoft:timespan")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEY_VALUE = f"{{{SERVICE_BUS_NS}}}KeyValueOfstringanyType"


class WrittenTime(Timestamp):
    """A timestamp that remembers how it was written: with or without a zone, which readers tell apart."""

    text: str


def describe_rule(name: str, rule: RuleDescription, created_at: float) -> Node:
    return description(
        "RuleDescription",
        _write_filter(rule.filter),
        _write_action(rule.action),
        text_node("CreatedAt", format_time(created_at)),
        text_node("Name", name),
    )


def read_rule(element: Element) -> RuleDescription:
    """The rule of a description element; a missing filter is the true filter. EntityError 40000 for nonsense."""
    rule_filter, action = child(element, "Filter"), child(element, "Action")
    return RuleDescription(
        filter=TrueFilter() if rule_filter is None else _read_filter(rule_filter),
        action=None if action is None else _read_action(action),
    )


def _write_filter(rule_filter: RuleFilter) -> Node:
    if isinstance(rule_filter, CorrelationFilter):
        fields = [
            text_node(capitalized(name), getattr(rule_filter, name))
            for name in CORRELATION_FIELDS
            if getattr(rule_filter, name) is not None
        ]
        children = (*fields, _write_values("Properties", rule_filter.properties))
        return Node("Filter", children, {"i:type": "CorrelationFilter"})
    parameters = rule_filter.parameters if isinstance(rule_filter, SqlFilter) else {}
    kind = type(rule_filter).__name__
    return Node("Filter", _sql(rule_filter.expression, parameters), {"i:type": kind})


def _write_action(action: SqlAction | None) -> Node:
    if action is None:
        return Node("Action", "", {"i:type": "EmptyRuleAction"})
    return Node("Action", _sql(action.expression, action.parameters), {"i:type": "SqlRuleAction"})


def _sql(expression: str, parameters: Mapping[str, object]) -> tuple[Node, ...]:
    return (
        text_node("SqlExpression", expression),
        text_node("CompatibilityLevel", COMPATIBILITY_LEVEL),
        _write_values("Parameters", parameters),
    )


def _read_filter(element: Element) -> RuleFilter:
    kind = instance_type(element)
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        expression, parameters = _read_sql(element)
        return SqlFilter(expression=expression, parameters=parameters)
    if kind == "CorrelationFilter":
        fields = {name: child_text(element, capitalized(name)) for name in CORRELATION_FIELDS}
        return CorrelationFilter(**fields, properties=_read_values(element, "Properties"))
    raise bad_request(f"The rule filter type '{kind}' is not known.")


def _read_action(element: Element) -> SqlAction | None:
    kind = instance_type(element)
    if kind == "EmptyRuleAction":
        return None
    if kind == "SqlRuleAction":
        expression, parameters = _read_sql(element)
        return SqlAction(expression=expression, parameters=parameters)
    raise bad_request(f"The rule action type '{kind}' is not known.")


def _read_sql(element: Element) -> tuple[str, dict[str, object]]:
    expression = child_text(element, "SqlExpression")
    if not expression:
        raise bad_request("A SQL expression is missing.")
    return expression, _read_values(element, "Parameters")


def _write_values(tag: str, values: Mapping[str, object]) -> Node:
    return node(tag, *(_write_value(key, value) for key, value in values.items()))


def _write_value(key: str, value: object) -> Node:
    kind, text = _typed_text(value)
    attributes = {"xmlns:d6p1": SCHEMA_NS, "i:type": f"d6p1:{kind}"}
    return node("KeyValueOfstringanyType", text_node("Key", key), Node("Value", text, attributes))


def _typed_text(value: object) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    if isinstance(value, WrittenTime):
        return "dateTime", value.text
    if isinstance(value, Timestamp):
        return "dateTime", format_time(value / 1000)
    if isinstance(value, Long):
        return "long", str(int(value))
    if isinstance(value, int):
        return "int" if -MAX_INT32 - 1 <= value <= MAX_INT32 else "long", str(value)
    if isinstance(value, float):
        return "double", repr(value)
    if isinstance(value, Described):
        return "duration", format_duration(value.value / TICKS_PER_SECOND)
    return "string", str(value)


def _read_values(element: Element, name: str) -> dict[str, object]:
    found = child(element, name)
    values: dict[str, object] = {}
    for item in () if found is None else found.iterfind(_KEY_VALUE):
        key, value = child_text(item, "Key"), child(item, "Value")
        if not key or value is None:
            raise bad_request(f"An entry of '{name}' needs a key and a value.")
        values[key] = _read_value(value)
    return values


def _read_value(element: Element) -> object:
    kind, text = instance_type(element) or "string", element.text or ""
    reader = _READERS.get(kind)
    if reader is None:
        raise bad_request(f"The value type '{kind}' is not supported in a rule.")
    try:
        return reader(text)
    except (ValueError, OverflowError) as error:
        raise bad_request(f"The value '{text}' is not a valid {kind}.") from error


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


def _read_time(text: str) -> WrittenTime:
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    time = WrittenTime((aware - _EPOCH) // timedelta(milliseconds=1))
    time.text = text
    return time


def _read_timespan(text: str) -> Described:
    ticks = duration_ticks(text)
    if abs(ticks) > MAX_TICKS:
        raise ValueError(text)
    return Described(TIMESPAN, Long(ticks))


def _read_integer(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError(text)
    return number


def _read_long(text: str) -> Long:
    return Long(_read_integer(text))


_INTEGERS = ("byte", "unsignedByte", "short", "unsignedShort", "int", "unsignedInt", "unsignedLong", "integer")
_READERS: Mapping[str, Callable[[str], object]] = {
    "string": str,
    "char": str,
    "guid": str,
    "boolean": _read_boolean,
    "double": float,
    "float": float,
    "decimal": float,
    "dateTime": _read_time,
    "duration": _read_timespan,
    "long": _read_long,
    **dict.fromkeys(_INTEGERS, _read_integer),
}
