"""A port of the emulator's own, out of reach of every fault: also a namespace in the dark can be brought back.

https://HOST:PORT/{namespace}/$emulator/faults      as described in `fault_control`, for that namespace
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sbpair.emulator.admin.atom import allow
from sbpair.emulator.admin.calls import Call, Reply, arm_error, json_reply, method_not_allowed
from sbpair.emulator.errors import EntityError, bad_request, not_found
from sbpair.emulator.faults import FaultError, FaultRule, fault_to_json, parse_json
from sbpair.emulator.namespace import Namespace

if TYPE_CHECKING:
    from sbpair.emulator.server import Emulator


# The control endpoint of a running emulator: `/$emulator/faults`.
#
#     GET                       the rules in force
#     POST  {"text": "throttle:entity=orders,for=30s"}  or  {"kind": "throttle", "entity": "orders", "for": 30}
#     DELETE /$emulator/faults/{id}       one rule;  DELETE /$emulator/faults   all of them
#
# The root key (or any key of the namespace with Manage) must sign the token in the `Authorization` header. The endpoint
# itself is never hit by a fault that is answered over HTTP, so that a fault can always be taken back.

RESOURCE = "$emulator/faults"
"""What a token for this endpoint alone is signed for."""


def is_control_path(segments: tuple[str, ...]) -> bool:
    """Whether a path belongs to the emulator itself."""
    return bool(segments) and segments[0].lower() == "$emulator"


def handle_control(namespace: Namespace, call: Call) -> Reply:
    """Answer one request; refusals have the body of the resource manager's errors."""
    try:
        allow(namespace, call, RESOURCE)
        return _route(namespace, call)
    except EntityError as error:
        return arm_error(error, call)
    except FaultError as error:
        return arm_error(bad_request(str(error)), call)


def _route(namespace: Namespace, call: Call) -> Reply:
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
            return Reply(204)
        case ("DELETE", "faults", fault_id):
            if not faults.remove(fault_id):
                raise not_found(f"There is no fault '{fault_id}'.")
            return Reply(204)
        case (_, "faults", *_):
            raise method_not_allowed(call)
    raise not_found(f"The resource '{call.path}' does not exist.")


def _rule(call: Call) -> FaultRule | str:
    body = call.json_object()
    text = body.get("text")
    if isinstance(text, str) and len(body) == 1:
        return text
    return parse_json(body)


class ControlPort:
    """Serves fault control for all namespaces of an emulator over HTTPS. Port 0: any free one."""

    def __init__(self, emulator: "Emulator", number: int = 0) -> None:
        self._emulator = emulator
        self._number = number
        self._runner: Any = None

    @property
    def endpoint(self) -> str:
        """`host:port`, once started."""
        return f"{self._emulator.host}:{self._number}"

    async def start(self) -> None:
        """Begin to listen; OSError if the port is taken."""
        from aiohttp import web

        from sbpair.emulator.admin.http import http_logger

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, logger=http_logger())
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, self._emulator.host, self._number, ssl_context=self._emulator.tls.server_context()
        )
        await site.start()
        self._number = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        from sbpair.emulator.admin.http import call_of, response_of
        from sbpair.emulator.engine.port import closing
        from sbpair.emulator.server import EmulatorError

        refused = self._emulator.own_names.refusal(
            request.headers.getall("Host", []), request.headers.getall("Origin", [])
        )
        if refused is not None:
            return closing(web.Response(status=refused[0], text=refused[1]))
        call = await call_of(request, self._emulator.clock.now())
        name, *rest = call.segments
        call = replace(call, segments=tuple(rest))
        try:
            namespace = self._emulator.namespace(name)
        except EmulatorError as error:
            return response_of(arm_error(not_found(str(error)), call))
        return response_of(self._reply(namespace, call))

    def _reply(self, namespace: Any, call: Any) -> Reply:
        if is_control_path(call.segments):
            return handle_control(namespace, call)
        error: EntityError = not_found(f"The resource '{call.path}' does not exist.")
        return arm_error(error, call)
