"""A port of the emulator's own, out of reach of every fault: also a namespace in the dark can be brought back.

https://HOST:PORT/{namespace}/$emulator/faults      as described in `fault_control`, for that namespace
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sbpair.emulator.admin_calls import Reply
from sbpair.emulator.admin_errors import arm_error
from sbpair.emulator.errors import EntityError, not_found
from sbpair.emulator.fault_control import handle_control, is_control_path

if TYPE_CHECKING:
    from sbpair.emulator.server import Emulator


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

        from sbpair.emulator.http import http_logger

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
        from sbpair.emulator.http import call_of, response_of
        from sbpair.emulator.server import EmulatorError

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
