"""What a gateway's port answers over HTTP: its health, and the administration of the primary, which passes.

A client that changes entities needs a key with Manage; the primary gets the gateway's own signature in the place of the
client's. The rest of a request and of its answer goes through as it is.
"""

from typing import TYPE_CHECKING, Any, Final, Protocol

from sbpair.azure.client import authorities
from sbpair.azure.messaging import tls_context
from sbpair.core.access import check_credential
from sbpair.core.errors import SbpairError
from sbpair.engine.auth import MANAGE, AuthError, Signer, authenticate
from sbpair.engine.clock import Clock
from sbpair.engine.limits import MAX_HELD_BYTES_BEFORE_TOKEN
from sbpair.gateway.primary import Tokens

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web
    from aiohttp.typedefs import Middleware

ADMINISTRATION_SECONDS: Final = 60.0
MOST_ANSWER_BYTES: Final = 32 * 1024 * 1024
_TO_PRIMARY: Final = ("Content-Type", "If-Match", "Accept", "x-ms-client-request-id")
_TO_CLIENT: Final = ("Content-Type", "ETag", "Date", "Retry-After")
_FORWARDING: Final = ("ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization")


class WebHouse(Protocol):
    """What the web server needs of the gateway."""

    @property
    def tokens(self) -> Tokens: ...
    @property
    def clock(self) -> Clock: ...
    def signers(self, path: str) -> Any: ...
    def troubles(self) -> list[str]: ...


class Web:
    """The web server of one port."""

    def __init__(self, house: WebHouse) -> None:
        self._house = house
        self._session: aiohttp.ClientSession | None = None

    async def runner(self, front: "Middleware") -> "web.AppRunner":
        """The server with a middleware in front; called once, for the first client over HTTP."""
        from aiohttp import web

        app = web.Application(middlewares=[front], client_max_size=MAX_HELD_BYTES_BEFORE_TOKEN)
        app.add_routes(
            [web.get("/health", self._health), web.get("/ready", self._ready), web.route("*", "/{path:.*}", self._pass)]
        )
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

        troubles = self._house.troubles()
        return web.json_response({"ready": not troubles, "troubles": troubles}, status=503 if troubles else 200)

    async def _pass(self, request: "web.Request") -> "web.Response":
        """A request of the administration."""
        import aiohttp
        from aiohttp import web

        refused = self._refusal(request)
        if refused is not None:
            return web.Response(status=401, text=refused)
        body = await request.read()
        try:
            headers = {name: request.headers[name] for name in _TO_PRIMARY if name in request.headers}
            token = await self._token()
            headers |= {"Authorization": token, **{name: token for name in _FORWARDING if name in request.headers}}
            url = f"{check_credential(self._house.tokens.access)}{request.raw_path}"
            async with self._client().request(
                request.method, _exactly(url), data=body, headers=headers, allow_redirects=False
            ) as answer:
                text = await answer.content.read(MOST_ANSWER_BYTES)
                kept = {name: answer.headers[name] for name in _TO_CLIENT if name in answer.headers}
                return web.Response(status=answer.status, body=text, headers=kept)
        except SbpairError as error:
            return web.Response(status=503, text=error.message)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            name = self._house.tokens.access.label
            return web.Response(status=503, text=f"The primary {name} is not reached: {error}")

    def _refusal(self, request: "web.Request") -> str | None:
        """Why the client may not do that; None if it may."""
        signers: list[Signer] = list(self._house.signers(""))
        given = request.headers.get("Authorization", "")
        try:
            claims = authenticate(
                signers, given, f"https://{request.host}/", self._house.clock.client_now(), allow_entra=False
            )
        except AuthError as error:
            return str(error)
        signer = next(one for one in signers if one.rule.name == claims.key_name)
        if MANAGE not in claims.rights or "*" not in getattr(signer.rule, "entities", ()):
            return "Unauthorized access. 'Manage' claim is required to perform this operation."
        return None

    async def _token(self) -> str:
        origin = check_credential(self._house.tokens.access)
        token, kind, _ = await self._house.tokens.token(origin)
        return f"Bearer {token}" if kind == "jwt" else token

    def _client(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp

            context = tls_context(authorities(self._house.tokens.access.ca_file))
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context),
                timeout=aiohttp.ClientTimeout(total=ADMINISTRATION_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
            )
        return self._session


def _exactly(url: str) -> Any:
    """The address as it is: names of entities have encoded slashes."""
    from yarl import URL

    return URL(url, encoded=True)
