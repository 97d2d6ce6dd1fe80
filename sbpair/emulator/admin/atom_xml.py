"""XML of the data-plane administration API, written and read by hand.

Written as text with the prefixes the service itself uses: not every official client understands namespaces, some look
for `d2p1:ActiveMessageCount` literally. ElementTree only reads here; its `register_namespace` is never called, because
that registry is shared by the whole process and an SDK in the same process relies on it being empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

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
class Entry:
    """What is the same in every Atom entry: where it lives, its title and its dates (ISO 8601 texts)."""

    url: str
    title: str
    published: str
    updated: str
    author: str


def entry(head: Entry, description: Node) -> Node:
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
