"""HTTP for the management clients: one transport that trusts the configured authority, notes the server's clock and
takes no answer without end."""

from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport

MOST_ANSWER_BYTES = 32 * 1024 * 1024
"""A page of 100 entities has about half a megabyte."""
_CONNECT_SECONDS = 10
_READ_SECONDS = 30


class _BoundedResponse(aiohttp.ClientResponse):
    """A response whose body is read up to a bound, decompressed as it comes."""

    _whole: bytes | None = None

    async def read(self) -> bytes:
        if self._whole is None:
            parts, size = [], 0
            async for part in self.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > MOST_ANSWER_BYTES:
                    self.close()
                    raise aiohttp.ClientPayloadError(f"the answer has more than {MOST_ANSWER_BYTES:,} bytes")
            self._whole = b"".join(parts)
        return self._whole


class ClockTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core exports it untyped
    """azure-core's asynchronous transport; `service_time` is the last answer's Date header, UTC epoch seconds."""

    service_time: float | None = None
    session: aiohttp.ClientSession | None
    origin: str | None = None
    """The one place, `https://host:port`, that requests may go to: they carry a credential."""
    _made = False

    async def open(self) -> None:
        if self.session is None and not self._made:
            self._made = True
            self.session = aiohttp.ClientSession(
                trust_env=True, cookie_jar=aiohttp.DummyCookieJar(), response_class=_BoundedResponse
            )
        await super().open()

    async def send(self, request: Any, **options: Any) -> Any:
        if self.origin is not None and _origin_of(request.url) != _origin_of(self.origin):
            # A next page or a location of a stranger's making: the header with the credential is in the request by now.
            raise RefusedDestinationError(f"the answer leads to {_origin_of(request.url)}; the credential stays here")
        response = await super().send(request, **options)
        if response.status_code in _REDIRECTS:
            raise RefusedDestinationError(f"HTTP status {response.status_code}: a redirect, which is not followed")
        date = response.headers.get("Date")
        if date:
            self.service_time = _epoch_of(date)
        return response


class RefusedDestinationError(Exception):
    """A request was not sent, or its answer not followed, because it would take the credential somewhere else."""


_REDIRECTS = (300, 301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}:{parts.port or _PORTS.get(parts.scheme, 0)}"


def _epoch_of(date: str) -> float | None:
    """Epoch seconds of a Date header; None for one that is no date: the answer may be good all the same."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def make_transport(ca_file: str, origin: str) -> ClockTransport:
    """`ca_file`: the authorities to trust; `origin`: see `ClockTransport`."""
    transport = ClockTransport(
        connection_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, connection_verify=ca_file
    )
    transport.origin = origin
    return transport
