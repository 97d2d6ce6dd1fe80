"""One administrative request and its answer, free of any HTTP library: what ATOM and ARM handlers take and give."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

from sbpair.emulator.admin import atom_xml
from sbpair.emulator.admin.fields import format_log_time
from sbpair.engine.errors import EntityError, bad_request
from sbpair.service import PAGE_ENTITIES

MAX_BODY_ITEMS = 2000
"""Our own bound of tags, attributes and lines, or entries, in the body of an administration request: some 5 ms to read
or to write."""


# Refusals as the two administration APIs write them, with the tracking text every answer of the service carries.

JSON_CONTENT_TYPE = "application/json; charset=utf-8"
MORE = "To know more visit https://aka.ms/sbResourceMgrExceptions."


def atom_error(error: EntityError, call: "AdminCall", headers: Mapping[str, str] | None = None) -> "AdminReply":
    """A refusal of the data-plane API: `<Error><Code/><Detail/></Error>`."""
    body = atom_xml.error(error.http_status, f"{_sentence(error)} {tracking(call)}")
    return AdminReply(error.http_status, body.render().encode(), "application/xml; charset=utf-8", headers or {})


def arm_error(error: EntityError, call: "AdminCall", headers: Mapping[str, str] | None = None) -> "AdminReply":
    """A refusal of the resource manager: `{"error": {"code", "message"}}`."""
    message = f"{_sentence(error)} CorrelationId: {uuid4()}"
    return json_reply({"error": {"code": error.code, "message": message}}, error.http_status, headers)


def tracking(call: "AdminCall") -> str:
    """`TrackingId:…, SystemTracker:…, Timestamp:…`, by which the service's support finds a request."""
    tracker = ":".join(part for part in (call.host.partition(":")[0], call.path) if part)
    return f"TrackingId:{uuid4()}_G0, SystemTracker:{tracker}, Timestamp:{format_log_time(call.now)}"


def _sentence(error: EntityError) -> str:
    if error.sub_code is None:
        return error.message
    return f"SubCode={error.sub_code}. {error.message} {MORE}"


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A request: `segments` are the decoded parts of the path, header names are lower case, `now` is epoch seconds.

    The last two are what a fault does to the answer: entries to leave out of a list, and all counts reported as 0.
    """

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    base_url: str
    now: float
    entries_to_drop: int = 0
    zero_counts: bool = False

    @property
    def path(self) -> str:
        """The decoded path without the leading slash."""
        return "/".join(self.segments)

    @property
    def host(self) -> str:
        """Host and port the client used."""
        return self.base_url.partition("://")[2]

    @property
    def url(self) -> str:
        return self.url_with(self.query)

    def url_with(self, query: Mapping[str, str]) -> str:
        """The URL of the request with another query."""
        path = "/".join(quote(segment, safe="$~") for segment in self.segments)
        tail = f"?{urlencode(query, safe='$')}" if query else ""
        return f"{self.base_url}/{path}{tail}"

    def json_object(self) -> dict[str, object]:
        """The JSON object of the body, empty for no body; EntityError 40000 for anything else."""
        if not self.body.strip():
            return {}
        check_items(self.body, b"{[,:")
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"The request content was invalid and could not be deserialized: {error}.") from error
        if not isinstance(value, dict):
            raise bad_request("The request content must be a JSON object.")
        _refuse_unwritable(value)
        return value


def check_items(body: bytes, marks: bytes) -> None:
    """Refuse (EntityError 40000) a body whose parser would be busy for long: everybody else waits for it.

    `marks` are the characters that begin or part items of its language.
    """
    found = sum(body.count(mark) for mark in marks)
    if found > MAX_BODY_ITEMS:
        raise bad_request(f"The request content has more than {MAX_BODY_ITEMS} elements.")


_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What JSON can say and XML cannot: half a character, and most control characters."""


def _refuse_unwritable(value: object) -> None:
    """Refuse a text that no Atom feed could hold afterwards: every list with it in it would be broken for everybody."""
    waiting: list[object] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, str) and _UNWRITABLE.search(item):
            raise bad_request("The request content has a character that cannot be kept (a control character).")


@dataclass(frozen=True, slots=True)
class AdminReply:
    """An answer; `content_type` is empty for an answer without a body. What `parts` gives comes after `body`; it is
    asked for part by part, since a page of a list may take long to write."""

    status: int
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: Iterable[bytes] = ()


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> "AdminReply":
    return AdminReply(status, json.dumps(value).encode(), JSON_CONTENT_TYPE, headers or {})


def listed(values: Iterable[Mapping[str, object]]) -> "AdminReply":
    """A list of the resource manager without further pages."""
    return json_reply({"value": list(values)})


@dataclass(frozen=True, slots=True)
class ListPage:
    """Which part of a list is asked for."""

    skip: int
    top: int

    def cut(self, items: list[Item], entries_to_drop: int = 0) -> list[Item]:
        """The part of the list, less the entries a fault leaves out of the middle of the page."""
        part = items[self.skip : self.skip + self.top]
        middle = max(0, (len(part) - entries_to_drop) // 2)
        return part[:middle] + part[middle + entries_to_drop :]

    def following(self, total: int, query: Mapping[str, str]) -> dict[str, str] | None:
        """The query of the next page, or None if this is the last."""
        if self.top == 0 or self.skip + self.top >= total:
            return None
        return dict(query) | {"$skip": str(self.skip + self.top), "$top": str(self.top)}


def page_of(call: "AdminCall") -> ListPage:
    """The page a list request asks for: `$skip` from 0, `$top` up to 100. EntityError 40000 for anything else."""
    return ListPage(_number(call, "$skip", 0), min(_number(call, "$top", PAGE_ENTITIES), PAGE_ENTITIES))


def unchanged_left_out(given: Mapping[str, object], old: object) -> frozenset[str]:
    """The names of the settings a request really sets.

    Clients send back all they read, also what the tier would refuse if it were asked for; such values are not news.
    """
    nothing = object()
    return frozenset(name for name, value in given.items() if getattr(old, name, nothing) != value)


def only(call: "AdminCall", method: str) -> None:
    """Raises EntityError 405: a resource knows no other verb."""
    if call.method != method:
        raise method_not_allowed(call)


def method_not_allowed(call: "AdminCall") -> EntityError:
    """The answer to a verb the resource does not know."""
    return EntityError(405, None, f"The specified HTTP verb ({call.method}) is not valid.", "MethodNotAllowed")


_MOST_DIGITS = 10
"""The retired library asks for 2,147,483,647 entries."""


def _number(call: "AdminCall", name: str, default: int) -> int:
    text = call.query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise bad_request(f"The query parameter '{name}' must be a whole number from 0, not '{text}'.")
    return int(text)
