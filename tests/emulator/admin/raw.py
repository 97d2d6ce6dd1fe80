"""A plain HTTPS client for what the official clients never send and for the bytes they hide."""

import http.client
import ssl
import time
from dataclasses import dataclass
from xml.etree import ElementTree

from sbpair.emulator.entities import ROOT_KEY_NAME
from sbpair.engine.auth import make_sas_token

from .conftest import AdminServer

ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<{kind} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{body}</{kind}></content></entry>'
)


@dataclass(frozen=True)
class Answer:
    """Status, headers (lower-case names) and text of an answer."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def detail(self) -> str:
        """The `Detail` of an error body, whose `Code` must be the status."""
        error = ElementTree.fromstring(self.text)
        assert error.tag == "Error"
        assert error.findtext("Code") == str(self.status)
        return error.findtext("Detail") or ""


def sas(server: AdminServer, path: str = "", *, name: str = ROOT_KEY_NAME, key: str = "", age: float = 0) -> str:
    """A shared access signature for the server, by default a good one for the whole namespace."""
    resource = f"https://127.0.0.1:{server.port}/{path}"
    return make_sas_token(resource, name, key or server.root_key, time.time() + 3600 - age)


def send(
    server: AdminServer,
    method: str,
    target: str,
    body: str = "",
    token: str | None = "",
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request; an empty token means the root key's, None means no token at all."""
    given = dict(headers or {})
    if token is not None:
        given["Authorization"] = token or sas(server)
    context = ssl.create_default_context(cafile=server.ca_file)
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)
    try:
        connection.request(method, target, body.encode(), given)
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()
