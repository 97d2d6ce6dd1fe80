"""HTTP for the management clients: one transport that trusts the configured authority and notes the server's clock."""

from email.utils import parsedate_to_datetime
from typing import Any

from azure.core.pipeline.transport import AioHttpTransport

_CONNECT_SECONDS = 10
_READ_SECONDS = 30


class ClockTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core exports it untyped
    """azure-core's asynchronous transport; `service_time` is the last answer's Date header, UTC epoch seconds."""

    service_time: float | None = None

    async def send(self, request: Any, **options: Any) -> Any:
        response = await super().send(request, **options)
        date = response.headers.get("Date")
        if date:
            self.service_time = parsedate_to_datetime(date).timestamp()
        return response


def make_transport(ca_file: str | None) -> ClockTransport:
    options: dict[str, Any] = {"connection_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
    if ca_file is not None:
        options["connection_verify"] = ca_file
    return ClockTransport(**options)
