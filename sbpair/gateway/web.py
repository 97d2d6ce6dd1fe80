"""What a gateway's port answers over HTTP: its health and status, and the administration of the primary, which passes.

A client that changes entities needs a key with Manage; the primary gets the gateway's own signature in the place of the
client's. The rest of a request and of its answer goes through as it is.
"""

import http.client
import json
import ssl
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sbpair.azure.client import authorities
from sbpair.azure.messaging import tls_context
from sbpair.core.access import check_credential, without_port
from sbpair.core.errors import ConnectionLostError, SbpairError, UsageError
from sbpair.core.failover.measured import GatewayEntity, GatewayPair
from sbpair.engine.auth import MANAGE, AuthError, Signer, authenticate, is_loopback, read_token, service_bus_audiences
from sbpair.engine.budgets import MAX_HELD_BYTES_BEFORE_TOKEN
from sbpair.gateway.tokens import JWT

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web
    from aiohttp.typedefs import Middleware

    from sbpair.gateway.server import GatewayFront, House

ADMINISTRATION_SECONDS: Final = 60.0
MOST_ANSWER_BYTES: Final = 32 * 1024 * 1024
_TO_PRIMARY: Final = ("Content-Type", "If-Match", "Accept", "x-ms-client-request-id")
_TO_CLIENT: Final = ("Content-Type", "ETag", "Date", "Retry-After")
_AUTHORIZING: Final = (
    "Authorization",
    "ServiceBusSupplementaryAuthorization",
    "ServiceBusDlqSupplementaryAuthorization",
)
STATUS_PATH: Final = "/status"


class Web:
    """The web server of one port."""

    def __init__(self, front: "GatewayFront") -> None:
        self._front = front
        self._session: aiohttp.ClientSession | None = None

    async def runner(self, front: "Middleware") -> "web.AppRunner":
        """The server with a middleware in front; called once, for the first client over HTTP."""
        from aiohttp import web

        app = web.Application(middlewares=[front], client_max_size=MAX_HELD_BYTES_BEFORE_TOKEN)
        own = {"/health": self._health, "/ready": self._ready, STATUS_PATH: self._status}
        app.add_routes([*(web.get(path, what) for path, what in own.items()), web.route("*", "/{path:.*}", self._pass)])
        app.on_cleanup.append(self._close)
        return web.AppRunner(app, access_log=None, handle_signals=False)

    async def _close(self, app: "web.Application") -> None:
        if self._session is not None:
            await self._session.close()

    async def _health(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        return web.json_response({"alive": True})

    async def _ready(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        troubles = self._front.troubles()
        return web.json_response({"ready": not troubles, "troubles": troubles}, status=503 if troubles else 200)

    async def _status(self, request: "web.Request") -> "web.Response":
        """For this machine only: it names entities."""
        from aiohttp import web

        if request.remote is None or not is_loopback(request.remote):
            return web.Response(status=403, text="The status is for clients on the gateway's own machine.")
        return web.json_response([asdict(house.status()) for house in self._front.houses.values()])

    async def _pass(self, request: "web.Request") -> "web.Response":
        """A request of the administration."""
        import aiohttp
        from aiohttp import web

        house = self._front.house_of(without_port(request.host))
        if house is None:
            return web.Response(status=404, text=f"No pair of this gateway goes by the host name '{request.host}'.")
        own, refused = self._judged(house, request)
        if refused is not None:
            return web.Response(status=401, text=refused)
        body = await request.read()
        access = house.tokens.access
        try:
            origin = check_credential(access)
            headers = {name: request.headers[name] for name in _TO_PRIMARY if name in request.headers}
            tokens = [name for name in _AUTHORIZING if name in request.headers]
            if own:
                token = await house.tokens.token(origin)
                text = f"Bearer {token.text}" if token.kind == JWT else token.text
                headers |= dict.fromkeys(tokens, text)
            else:
                headers |= {name: request.headers[name] for name in tokens}
            async with self._client().request(
                request.method,
                _exactly(f"{origin}{request.raw_path}"),
                data=body,
                headers=headers,
                allow_redirects=False,
                ssl=_context(access.ca_file),
            ) as answer:
                content = await answer.content.read(MOST_ANSWER_BYTES)
                kept = {name: answer.headers[name] for name in _TO_CLIENT if name in answer.headers}
                return web.Response(status=answer.status, body=content, headers=kept)
        except SbpairError as error:
            return web.Response(status=503, text=error.message)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return web.Response(status=503, text=f"The primary {access.label} is not reached: {error}")

    @staticmethod
    def _judged(house: "House", request: "web.Request") -> tuple[bool, str | None]:
        """Whether a key of the gateway has signed, and why the client may not do that; None if it may."""
        signers: list[Signer] = list(house.signers(""))
        given, now = request.headers.get("Authorization", ""), house.clock.client_now()
        try:
            claims = authenticate(signers, given, f"https://{request.host}{request.path}", now, allow_entra=False)
        except AuthError as error:
            if not house.passes_tokens:
                return False, str(error)
            access = house.tokens.access
            host, audiences = without_port(access.host), service_bus_audiences(access.label)
            try:
                read_token(given, "", now, host=host, audiences=audiences)
            except AuthError as failure:
                return False, str(failure)
            return False, None
        signer = next(one for one in signers if one.rule.name == claims.key_name)
        if MANAGE not in claims.rights or "*" not in getattr(signer.rule, "entities", ()):
            return True, "Unauthorized access. 'Manage' claim is required to perform this operation."
        return True, None

    def _client(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ADMINISTRATION_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
            )
        return self._session


@lru_cache(maxsize=8)
def _context(ca_file: str | None) -> ssl.SSLContext:
    return tls_context(authorities(ca_file))


def _exactly(url: str) -> Any:
    """The address as it is: names of entities have encoded slashes."""
    from yarl import URL

    return URL(url, encoded=True)


def read_status(host: str, port: int, timeout_seconds: float) -> tuple[GatewayPair, ...]:
    """What a running gateway of this machine tells of itself.

    Raises:
        ConnectionLostError: none listens there.
        UsageError: what listens there is none.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    if not is_loopback(host):
        # There it is reached over TLS only. Nothing is told to it, and its certificate is for names of other machines.
        context = ssl._create_unverified_context()  # noqa: S323
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_seconds, context=context)
    try:
        connection.request("GET", STATUS_PATH)
        answer = connection.getresponse()
        found = json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConnectionLostError(
            f"There is no gateway at {host}:{port}: {error}", hint="Name the address it listens on: --listen HOST:PORT"
        ) from error
    finally:
        connection.close()
    if found is None:
        raise UsageError(f"What listens at {host}:{port} is not a gateway, or reports no state.")
    return tuple(
        GatewayPair(
            **one
            | {"troubles": tuple(one["troubles"]), "entities": tuple(GatewayEntity(**each) for each in one["entities"])}
        )
        for one in found
    )
