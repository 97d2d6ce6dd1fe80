"""A page for a browser on this machine: what lies in the embedded namespaces, and the buttons for it.

    GET  /                the page; `?token=` of the address that is printed
    GET  /events?token=   server-sent events: the state of all namespaces, whenever it has changed
    POST /call            one action, as JSON with the header `X-Window-Token`; the answer is JSON

It listens on loopback alone. Other users of the machine and pages of other origins lack the token; a name that was made
to lead here (DNS rebinding) is refused before anything is read. The page is one file: it loads nothing, its script and
style carry a nonce, and whatever comes from a message or a name goes into it as text.
"""

import asyncio
import hmac
import itertools
import json
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.messages import Message, parse
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.namespace import Namespace, expire_due
from sbpair.emulator.seed import payload
from sbpair.engine.auth import OwnNames
from sbpair.engine.clock import AdvancingClock
from sbpair.engine.errors import BrokerError, EmulatorError, EntityError
from sbpair.engine.faults import ActiveFault, FaultError, fault_to_json
from sbpair.engine.port import closing

if TYPE_CHECKING:
    from aiohttp import web

    from sbpair.emulator.server import Emulator

HOST: Final = "127.0.0.1"
MOST_SHOWN: Final = 100
MOST_BODY_CHARACTERS: Final = 4096
MOST_SECONDS: Final = 366 * 86400
_POLL_SECONDS: Final = 0.5
_LARGEST_CALL_BYTES: Final = 1024 * 1024
_TEXTS: Final = ("message_id", "session_id", "subject", "content_type")
_DEAD_LETTER_PROPERTIES: Final = ("DeadLetterReason", "DeadLetterErrorDescription")


class WindowError(Exception):
    """An action that cannot be carried out; the text says why, and nothing has changed."""


class EmulatorWindow:
    """Serves the page for all namespaces of an emulator, on its loop. Port 0: any free one."""

    def __init__(self, emulator: "Emulator", number: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._emulator = emulator
        self._number = number
        self._names = OwnNames()
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    @property
    def url(self) -> str:
        """The address to open, its token included."""
        return f"http://{HOST}:{self._number}/?token={self.token}"

    async def start(self) -> None:
        """Begin to listen; OSError if the port is taken."""
        from aiohttp import web

        from sbpair.emulator.admin.http import make_runner

        app = web.Application(client_max_size=_LARGEST_CALL_BYTES, middlewares=[self._guard()])
        app.router.add_get("/", self._page)
        app.router.add_get("/events", self._events)
        app.router.add_post("/call", self._call)
        self._runner = make_runner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, self._number)
        await site.start()
        self._number = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening, and end what is still connected."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # -- HTTP

    def _guard(self) -> Any:
        from aiohttp import web

        @web.middleware
        async def guard(request: "web.Request", handler: Any) -> "web.StreamResponse":
            hosts, origins = request.headers.getall("Host", []), request.headers.getall("Origin", [])
            refused = self._names.refusal(hosts, origins)
            if refused is not None:
                return closing(web.Response(status=refused[0], text=refused[1]))
            header = request.method == "POST"
            given = request.headers.get("X-Window-Token", "") if header else request.query.get("token", "")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
                text = "Open the address that sbpair emulator --ui has printed; it ends with this start's token."
                return closing(web.Response(status=403, text=text))
            answer: web.StreamResponse = await handler(request)
            return answer

        return guard

    async def _page(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        nonce = secrets.token_urlsafe(16)
        text = files("sbpair.emulator.window").joinpath("page.html").read_text(encoding="utf-8")
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return web.Response(text=text.replace("{nonce}", nonce), content_type="text/html", headers=headers)

    async def _events(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await answer.prepare(request)
        last = ""
        while not self._closing.is_set():
            state = json.dumps(self.state())
            # A comment now and then finds out whether the browser is still there.
            await answer.write(f"data: {state}\n\n".encode() if state != last else b": \n\n")
            last = state
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._closing.wait()
            except TimeoutError:
                continue
        return answer

    async def _call(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        try:
            asked = json.loads(await request.read())
            if not isinstance(asked, dict):
                raise WindowError("A call is a JSON object.")
            return web.json_response(self.perform(asked))
        except BrokerError as error:
            said = error.description
        except (WindowError, EmulatorError, EntityError, FaultError) as error:
            said = str(error)
        except (ValueError, RecursionError):
            said = "The call is not JSON."
        return web.json_response({"error": said}, status=400)

    # -- what is shown

    def state(self) -> dict[str, Any]:
        """All namespaces with their entities, counts and faults."""
        clock = self._emulator.clock
        ahead = clock.now() - clock.client_now()
        return {
            "ahead_seconds": round(ahead) if isinstance(clock, AdvancingClock) else None,
            "namespaces": [_namespace_state(self._emulator.namespace(name)) for name in self._emulator.names],
        }

    def perform(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one action.

        Raises:
            WindowError, EmulatorError, EntityError, BrokerError, FaultError: it is refused.
        """
        actions: dict[str, Callable[[Namespace, Mapping[str, Any]], dict[str, Any]]] = {
            "peek": _peek,
            "send": _send,
            "resubmit": _resubmit,
            "add-fault": _add_fault,
            "remove-fault": _remove_fault,
        }
        name = _text(asked, "action")
        if name == "advance":
            return self._advance(asked)
        if name not in actions:
            raise WindowError(f"There is no action {name[:40]!r}.")
        return actions[name](self._emulator.namespace(_text(asked, "namespace")), asked)

    def _advance(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        clock = self._emulator.clock
        if not isinstance(clock, AdvancingClock):
            raise WindowError("The time of these namespaces cannot be moved on.")
        seconds = _seconds(asked, "seconds")
        clock.advance(seconds)
        for name in self._emulator.names:
            expire_due(self._emulator.namespace(name))
        return {}


@asynccontextmanager
async def open_window(emulator: "Emulator") -> AsyncIterator[EmulatorWindow]:
    """The page, for as long as the block runs."""
    window = EmulatorWindow(emulator)
    try:
        await window.start()
        yield window
    finally:
        await window.close()


def _entities(namespace: Namespace) -> list[Queue | Topic | Subscription]:
    found: list[Queue | Topic | Subscription] = list(namespace.queues())
    for topic in namespace.topics():
        found += [topic, *(one for _, one in sorted(topic.subscriptions.items()))]
    return found


def _namespace_state(namespace: Namespace) -> dict[str, Any]:
    throttling = namespace.throttling
    return {
        "name": namespace.name,
        "tier": namespace.tier.value,
        "endpoint": namespace.endpoint,
        "entities": [_entity_state(entity) for entity in _entities(namespace)],
        "faults": [_fault_state(fault) for fault in namespace.faults.list()],
        "throttled": None if throttling is None else throttling.refused,
    }


def _fault_state(fault: ActiveFault) -> dict[str, Any]:
    told = fault_to_json(fault)
    return {name: told[name] for name in ("id", "text", "hits")}


def _entity_state(entity: Queue | Topic | Subscription) -> dict[str, Any]:
    state: dict[str, Any] = {"path": entity.path, "kind": type(entity).__name__.lower()}
    if isinstance(entity, MessageEntity):
        counts = entity.counts()
        state |= {"active": counts.active, "scheduled": counts.scheduled, "dead_letter": counts.dead_letter}
    return state


def _peek(namespace: Namespace, asked: Mapping[str, Any]) -> dict[str, Any]:
    entity = _message_entity(namespace, asked)
    box = entity.dead_letters if asked.get("dead_letter") is True else entity.main
    since = asked.get("since", 0)
    if type(since) is not int:
        raise WindowError("`since` is a sequence number.")
    found: Sequence[Message] = list(itertools.islice(box.log.since(since), MOST_SHOWN))
    return {"messages": [_shown(message) for message in found], "more": len(found) == MOST_SHOWN}


def _shown(message: Message) -> dict[str, Any]:
    from sbpair.emulator.testing import stored_message

    told = asdict(stored_message(message))
    body = told.pop("body")
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    properties = {name: _of_json(value) for name, value in told.pop("properties").items()}
    rest = {name: _of_json(value) for name, value in told.items() if value is not None}
    return rest | {
        # As text, also a small one: those of partitioned entities are too large for a browser's numbers.
        "sequence_number": str(message.sequence_number),
        "body": text[:MOST_BODY_CHARACTERS],
        "body_bytes": len(body) if isinstance(body, bytes) else None,
        "properties": properties,
        "state": "locked" if message.locked else message.state.name.lower(),
    }


_LARGEST_NUMBER: Final = 2**53 - 1
"""Up to here a browser's numbers are exact."""


def _of_json(value: object) -> object:
    """The value as the page shows it: what JSON knows as it is, everything else as text."""
    match value:
        case bool():
            return value
        case int() if abs(value) <= _LARGEST_NUMBER:
            return value
        case float() if math.isfinite(value):
            return value
    return str(value)[:MOST_BODY_CHARACTERS]


def _send(namespace: Namespace, asked: Mapping[str, Any]) -> dict[str, Any]:
    entity = namespace.find(_text(asked, "entity"))
    if entity is None:
        raise WindowError("There is no such queue or topic any more.")
    properties = asked.get("properties") or {}
    values = properties.values() if isinstance(properties, dict) else [None]
    if not all(isinstance(one, str | bool | int | float) for one in values):
        raise WindowError("Properties are an object of texts, numbers and true or false.")
    wanted: dict[str, Any] = {name: _text(asked, name) for name in _TEXTS if asked.get(name)}
    delay = _seconds(asked, "scheduled_in_seconds") if asked.get("scheduled_in_seconds") else None
    due = None
    if delay is not None:
        due = datetime.fromtimestamp(namespace.clock.now(), UTC) + timedelta(seconds=delay)
    namespace.check_store()
    try:
        encoded = payload(_text(asked, "body"), properties=properties, scheduled_enqueue_time=due, **wanted)
    except (OverflowError, TypeError, ValueError) as error:
        raise WindowError(f"The message cannot be sent: {error}.") from error
    entity.send(encoded)
    return {}


def _resubmit(namespace: Namespace, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A dead letter goes to where it was sent, as a new message without the reason; then it is taken out."""
    entity = _message_entity(namespace, asked)
    number = _text(asked, "sequence_number")
    message = entity.dead_letters.log.get(int(number)) if number.isascii() and number.isdecimal() else None
    if message is None:
        raise WindowError("The dead letter is gone.")
    if message.locked:
        raise WindowError("A client has locked the dead letter.")
    namespace.check_store()
    bare = message.copy()
    bare.put_application_properties({}, _DEAD_LETTER_PROPERTIES)
    fresh = parse(bare.payload, namespace.laws)
    if isinstance(entity, Queue):
        entity.accept([fresh])
    else:
        entity.arrive(fresh)
    entity.dead_letters.remove(message)
    return {}


def _add_fault(namespace: Namespace, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": namespace.faults.add(_text(asked, "text"))}


def _remove_fault(namespace: Namespace, asked: Mapping[str, Any]) -> dict[str, Any]:
    if not namespace.faults.remove(_text(asked, "id")):
        raise WindowError("The fault is gone already.")
    return {}


def _message_entity(namespace: Namespace, asked: Mapping[str, Any]) -> Queue | Subscription:
    path = _text(asked, "entity")
    topic, found, name = path.partition("/Subscriptions/")
    entity = namespace.get_subscription(topic, name) if found else namespace.get_queue(path)
    if entity is None:
        raise WindowError("There is no such queue or subscription any more.")
    return entity


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise WindowError(f"`{name}` is a text.")
    return value


def _seconds(asked: Mapping[str, Any], name: str) -> float:
    value = asked.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WindowError(f"`{name}` is a number of seconds.")
    if not 0 <= value <= MOST_SECONDS:
        raise WindowError(f"`{name}` is between 0 and {MOST_SECONDS:,}.")
    return float(value)
