"""The HTTP side of a namespace: one aiohttp application for ATOM, the resource manager and the fault control.

The path decides: `/$emulator/…` is the emulator's own, `/subscriptions/{GUID}/…` and `/providers/…` are the resource
manager's, `/health` without a token is a health check's, everything else is the data plane's. Faults for HTTP are
decided once per request, before the token is looked at, as a throttled or failing front end would.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from urllib.parse import unquote
from uuid import uuid4

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sbpair.emulator.admin.arm import ArmApi, is_arm_path
from sbpair.emulator.admin.arm import entity_of as arm_entity
from sbpair.emulator.admin.arm_models import ArmDirectory
from sbpair.emulator.admin.atom import AtomApi, allow
from sbpair.emulator.admin.atom import entity_of as atom_entity
from sbpair.emulator.admin.calls import AdminCall, AdminReply, arm_error, atom_error, json_reply, method_not_allowed
from sbpair.emulator.geo import fail_over_pair
from sbpair.emulator.namespace import Namespace
from sbpair.engine.budgets import SLICE_SECONDS, ClientBudget, Memory, Turns
from sbpair.engine.errors import STORE_FULL, UNKNOWN_OUTCOME, EntityError, bad_request, not_found
from sbpair.engine.faults import FaultAction, FaultError, FaultKind, FaultRule, Operation, fault_to_json, parse_json
from sbpair.engine.wire import cut

LARGEST_BODY_BYTES = 512 * 1024
BODY_SECONDS = 60.0
RETRY_AFTER_SECONDS = 2
_COME_BACK = {"Retry-After": str(RETRY_AFTER_SECONDS)}
DIRECTORY = web.AppKey("directory", ArmDirectory)


def make_app(
    namespace: Namespace,
    *,
    directory: ArmDirectory | None = None,
    memory: Memory | None = None,
    turns: Turns | None = None,
) -> web.Application:
    """The application for one namespace's port.

    `directory` says which namespaces the resource manager on this port knows; without it only this one. Give the same
    directory to all ports of an emulator to have one resource manager over all namespaces. It is kept in the
    application under `DIRECTORY`. Routes added later for longer paths win over the catch-all made here. `memory` and
    `turns` are those of all clients of an emulator.
    """
    app = web.Application(client_max_size=LARGEST_BODY_BYTES)
    app[DIRECTORY] = directory if directory is not None else ArmDirectory(lambda: [namespace])
    front = Front(namespace, app[DIRECTORY], memory or Memory(), turns or Turns())
    app.router.add_route("*", "/{path:.*}", front.answer)
    return app


class Front:
    """Turns requests of the HTTP library into calls and replies into its responses.

    Each request has a budget for its body, and a turn of the event loop to be answered in.
    """

    def __init__(self, namespace: Namespace, directory: ArmDirectory, memory: Memory, turns: Turns) -> None:
        self._namespace = namespace
        self._directory = directory
        self._atom = AtomApi(namespace)
        self._arm = ArmApi(directory)
        self._memory = memory
        self._turns = turns

    async def answer(self, request: web.Request) -> web.StreamResponse:
        budget = budget_of(request, self._memory)
        try:
            return await self._answer(request, budget)
        finally:
            budget.end()

    async def _answer(self, request: web.Request, budget: ClientBudget) -> web.StreamResponse:
        call = await call_of(request, self._namespace.clock.client_now(), budget)
        await self._turns.turn()
        if _asks_for_health(call):
            return web.json_response({"status": "healthy", "message": f"The namespace {self._namespace.name} serves."})
        reply = self._decide(call)
        if reply is None:
            if request.transport is not None:
                cut(request.transport)
            raise ConnectionResetError("a fault cuts this connection")
        if call.method != "GET" and not await self._is_durable():
            reply = self._busy(call, UNKNOWN_OUTCOME)
        return response_of(reply, await self._parts(reply))

    async def _parts(self, reply: AdminReply) -> bytes:
        """The parts of a reply, made in slices of time."""
        parts, now = [b""], asyncio.get_running_loop().time
        until = now() + SLICE_SECONDS
        for part in reply.parts:
            parts.append(part)
            if now() >= until:
                await self._turns.turn()
                until = now() + SLICE_SECONDS
        return b"".join(parts)

    def _charged(self, call: AdminCall) -> AdminReply | None:
        """The refusal, where the namespace has no credits left for this second."""
        throttling = self._namespace.throttling
        if throttling is None:
            return None
        try:
            throttling.charge_management()
        except EntityError as error:
            return _refused(call, error, _COME_BACK)
        return None

    async def _is_durable(self) -> bool:
        """Wait until what has been changed is safe (without a store it is at once); False if it cannot be for now."""
        loop = asyncio.get_running_loop()
        answers = []
        for namespace in self._affected():
            namespace.journal.put_settings()
            answer: asyncio.Future[bool] = loop.create_future()
            namespace.when_durable(partial(_answered, answer, True), partial(_answered, answer, False))
            answers.append(answer)
        return all([await answer for answer in answers])

    def _affected(self) -> set[Namespace]:
        """The namespaces that a request on this port can change."""
        return {self._namespace, *self._directory.known()}

    def _busy(self, call: AdminCall, message: str) -> AdminReply:
        """The answer while a disk is full."""
        return _refused(call, EntityError(503, None, message, "ServerBusy"), _COME_BACK)

    def _decide(self, call: AdminCall) -> AdminReply | None:
        """The reply, or None if a fault cuts the connection instead."""
        if is_control_path(call.segments):
            return handle_control(self._namespace, call)
        if call.method != "GET" and any(one.read_only for one in self._affected()):
            return self._busy(call, "The namespace is read only while its secondary is promoted.")
        if call.method != "GET" and any(one.journal.failure is not None for one in self._affected()):
            return self._busy(call, f"{STORE_FULL} Nothing was changed.")
        is_arm = is_arm_path(call.segments)
        entity = arm_entity(call.segments) if is_arm else atom_entity(call.path)
        action = self._namespace.faults.check(Operation.HTTP, entity, call.now)
        api = self._arm if is_arm else self._atom
        if action is None:
            return self._charged(call) or api.handle(call)
        match action.kind:
            case FaultKind.LIST_GAP:
                return api.handle(replace(call, entries_to_drop=1))
            case FaultKind.ZERO_COUNTS:
                return api.handle(replace(call, zero_counts=True))
            case FaultKind.DROP:
                return None
        return _refused(call, refusal(action), _COME_BACK if action.status in (429, 503) else {})


def _asks_for_health(call: AdminCall) -> bool:
    """A health check carries no token; a request for a queue of that name has one."""
    return call.method in ("GET", "HEAD") and call.path == "health" and "authorization" not in call.headers


def _answered(waiting: asyncio.Future[bool], durable: bool) -> None:
    """Tell a request that waits; it is gone when the port has closed."""
    if not waiting.done():
        waiting.set_result(durable)


def refusal(action: FaultAction) -> EntityError:
    """The error an injected fault answers with."""
    if action.kind is FaultKind.THROTTLE:
        return EntityError(
            action.status,
            50004 if action.status == 429 else None,
            "The request was terminated because the namespace is being throttled. Error code : 50009. "
            f"Please wait {RETRY_AFTER_SECONDS} seconds and try again.",
            "TooManyRequests" if action.status == 429 else "ServerBusy",
        )
    if action.kind is FaultKind.UNAUTHORIZED:
        return EntityError(action.status, 40100, action.description, "Unauthorized")
    message = action.description or f"The fault '{action.rule_id}' answers with HTTP status {action.status}."
    return EntityError(action.status, None, message, action.kind.value)


def _refused(call: AdminCall, error: EntityError, headers: Mapping[str, str]) -> AdminReply:
    return (arm_error if is_arm_path(call.segments) else atom_error)(error, call, headers)


class _Requester:
    """The connection of a request, which pays with its end for a body that there is no memory for."""

    def __init__(self, request: web.Request) -> None:
        self._transport = request.transport
        self.is_closing = False

    def close(self, condition: str, description: str) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_closing = True
        if self._transport is not None:
            cut(self._transport)


def budget_of(request: web.Request, memory: Memory) -> ClientBudget:
    """What a request may make us hold."""
    return ClientBudget(_Requester(request), memory)


async def call_of(request: web.Request, now: float, budget: ClientBudget) -> AdminCall:
    """The call a request makes. Its body counts as held until the budget ends."""
    raw_path = request.rel_url.raw_path.lstrip("/")
    return AdminCall(
        method=request.method,
        segments=tuple(unquote(segment) for segment in raw_path.split("/")),
        query=dict(request.rel_url.query),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=await _body(request, budget),
        base_url=f"{request.scheme}://{request.host}",
        now=now,
    )


def make_runner(app: web.Application) -> web.AppRunner:
    """The web server of an application, which writes nothing of requests and little of clients' errors."""
    return web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1, logger=_http_logger())


def _http_logger() -> logging.Logger:
    """For the web server's own words: its errors, but not the ones of clients that speak no HTTP or break off."""
    logger = logging.getLogger("sbpair.emulator.admin.http")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, _OF_CLIENTS)


_OF_CLIENTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)


async def _body(request: web.Request, budget: ClientBudget) -> bytes:
    """The whole body; HTTP 413 for one that is too large, 408 for one that does not come to an end, 400 for one that
    is not encoded as its header says."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = bytearray()
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > LARGEST_BODY_BYTES:
                    raise web.HTTPRequestEntityTooLarge(max_size=LARGEST_BODY_BYTES, actual_size=len(body))
                if not budget.hold(len(chunk)):
                    raise ConnectionResetError("there is no memory for the body of this request")
            return bytes(body)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="The body of the request did not arrive in time.") from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise web.HTTPBadRequest(text="The body of the request is not encoded as its headers say.") from None


def response_of(reply: AdminReply, parts: bytes = b"") -> web.Response:
    """A reply as the HTTP library sends it."""
    headers = dict(reply.headers) | {"x-ms-request-id": str(uuid4()), "Server": "Microsoft-HTTPAPI/2.0"}
    if reply.content_type:
        headers["Content-Type"] = reply.content_type
    return web.Response(status=reply.status, body=reply.body + parts, headers=headers)


RESOURCE = "$emulator/faults"
"""What a token for this endpoint alone is signed for."""


def is_control_path(segments: tuple[str, ...]) -> bool:
    """Whether a path belongs to the emulator itself."""
    return bool(segments) and segments[0].lower() == "$emulator"


def handle_control(namespace: Namespace, call: AdminCall) -> AdminReply:
    """Answer a request to a running emulator itself; refusals have the body of the resource manager's errors.

        GET /$emulator/faults               the rules in force
        POST   /$emulator/faults            {"text": "throttle:entity=orders,for=30s"}
                                            or {"kind": "throttle", "entity": "orders", "for": 30}
        DELETE /$emulator/faults/{id}       one rule;  DELETE /$emulator/faults   all of them
        POST   /$emulator/failover/{alias}  have an alias of Geo-disaster recovery lead to the other namespace

    The root key (or any key of the namespace with Manage) must sign the token in the `Authorization` header. The
    endpoint itself is never hit by a fault that is answered over HTTP, so that a fault can always be taken back.
    """
    try:
        allow(namespace, call, RESOURCE)
        return _route(namespace, call)
    except EntityError as error:
        return arm_error(error, call)
    except FaultError as error:
        return arm_error(bad_request(str(error)), call)


def _route(namespace: Namespace, call: AdminCall) -> AdminReply:
    faults = namespace.faults
    words = tuple(segment.lower() for segment in call.segments[1:])
    match (call.method, *words):
        case ("GET", "faults"):
            return json_reply({"value": [fault_to_json(fault) for fault in faults.list()]})
        case ("POST", "faults"):
            fault_id = faults.add(_rule(call))
            added = next(fault for fault in faults.list() if fault.id == fault_id)
            return json_reply(fault_to_json(added), 201)
        case ("DELETE", "faults"):
            faults.clear()
            return AdminReply(204)
        case ("DELETE", "faults", fault_id):
            if not faults.remove(fault_id):
                raise not_found(f"There is no fault '{fault_id}'.")
            return AdminReply(204)
        case ("POST", "failover", _):
            alias = call.segments[2]
            return json_reply({"alias": alias, "namespace": fail_over_pair(alias, namespace).name})
        case (_, "faults" | "failover", *_):
            raise method_not_allowed(call)
    raise not_found(f"The resource '{call.path}' does not exist.")


def _rule(call: AdminCall) -> FaultRule | str:
    body = call.json_object()
    text = body.get("text")
    if isinstance(text, str) and len(body) == 1:
        return text
    return parse_json(body)
