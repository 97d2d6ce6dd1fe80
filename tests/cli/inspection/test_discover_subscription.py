"""`sbpair discover --subscription` with the official client: namespaces as a resource manager lists them, and what it
says when it refuses."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sbpair.engine.auth import SERVICE_BUS_AUDIENCE, make_bearer_token
from sbpair.engine.tls import TlsFiles
from tests.cli.conftest import embedded_pair
from tests.cli.process import Ran, Sbpair

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
WORDS = ("discover", "--subscription", SUBSCRIPTION, "--auth", "managed-identity")
RESOURCE_MANAGER = "https://management.azure.com"


class Web:
    """A web server whose answers a test sets: status, headers and document by path."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        web = self
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, dict[str, str], Any]] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(self.path)
                status, headers, document = web.answer(self.path)
                body = json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Type": "application/json"}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_CONNECT(self) -> None:
                web.asked.append(self.path)
                self.send_error(502)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.server_context().wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def answer(self, path: str) -> tuple[int, dict[str, str], Any]:
        return self.answers.get(urlsplit(path).path, (200, {}, {"value": []}))

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class Identity(Web):
    """The identity endpoint that Azure's hosts give to what runs on them."""

    def answer(self, path: str) -> tuple[int, dict[str, str], Any]:
        (resource,) = parse_qs(urlsplit(path).query)["resource"]
        expires_at = int(time.time()) + 3600
        audience = SERVICE_BUS_AUDIENCE if "servicebus" in resource else RESOURCE_MANAGER
        token = make_bearer_token(expires_at, audience=audience)
        return 200, {}, {"access_token": token, "expires_on": expires_at, "resource": resource, "token_type": "Bearer"}

    @property
    def resources(self) -> list[str]:
        return [parse_qs(urlsplit(path).query)["resource"][0] for path in self.asked]


@pytest.fixture(scope="module")
def identity() -> Iterator[Identity]:
    found = Identity()
    with found.running():
        yield found


def signed_in(runner: Sbpair, identity: Identity) -> Sbpair:
    on_azure = {"IDENTITY_ENDPOINT": f"http://{identity.host}/token", "IDENTITY_HEADER": "of this host"}
    return replace(runner, environ={**runner.environ, **on_azure})


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, identity: Identity) -> Iterator[Sbpair]:
    """Two namespaces under a Geo-DR alias."""
    with embedded_pair(Sbpair(tmp_path_factory.mktemp("home")), "--alias", "contoso") as runner:
        assert runner("provision", "local", "--queues", "2", "--yes").code == 0
        yield signed_in(runner, identity)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def arm(tls: TlsFiles) -> Iterator[Web]:
    found = Web(tls)
    with found.running():
        yield found


def ask(runner: Sbpair, identity: Identity, arm: Web, tls: TlsFiles, *more: str) -> Ran:
    trusting = replace(runner, environ={**runner.environ, "SSL_CERT_FILE": str(tls.ca_path)})
    return signed_in(trusting, identity)(*WORDS, "--management-url", f"https://{arm.host}", *more)


def embedded_url(runner: Sbpair) -> str:
    state = json.loads((runner.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    text = Path(state["namespaces"][0]["connection_string_file"]).read_text(encoding="utf-8")
    return text.partition("sb://")[2].partition(";")[0]


def test_a_subscription_tells_its_namespaces_their_geo_dr_roles_and_their_backlogs(embedded: Sbpair) -> None:
    url = f"https://{embedded_url(embedded)}"
    # What is configured is reached as it is configured; here it is to be found by the list alone.
    ran = embedded(*WORDS, "--management-url", url, "-o", "json", env={"XDG_CONFIG_HOME": "/nowhere"})
    assert ran.code == 0, ran
    first, second = ran.data["namespaces"]
    assert [(one["namespace"], one["geo_dr_role"], one["alias"]) for one in (first, second)] == [
        ("local-primary", "Primary", "contoso"),
        ("local-secondary", "Secondary", "contoso"),
    ]
    assert [(one["primary"], one["indexes"], one["verdict"]) for one in second["transfer"]] == [
        ("local-primary", "0-1", "empty")
    ]
    assert "Geo-DR copies no messages" in ran.stderr


def test_an_empty_list_is_told_as_what_it_is(sbpair: Sbpair, identity: Identity, arm: Web, tls: TlsFiles) -> None:
    ran = ask(sbpair, identity, arm, tls, "--resource-group", "rg")
    assert (ran.code, ran.stdout.count("\n")) == (0, 1), ran
    assert "No Service Bus namespace is listed there; the list shows only what this login may read." in ran.stderr
    assert [urlsplit(path).path for path in arm.asked] == [
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.ServiceBus/namespaces"
    ]


@pytest.mark.parametrize(
    ("status", "code", "says", "exit_code", "advice"),
    [
        (401, "InvalidAuthenticationTokenTenant", "another tenant", 4, "az account set --subscription"),
        (403, "AuthorizationFailed", "does not have authorization", 4, "Reader"),
        (404, "SubscriptionNotFound", "could not be found", 1, "az account list"),
        (429, "TooManyRequests", "rate limit", 1, "requests of a login"),
    ],
)
def test_a_refusal_says_what_was_asked_what_came_back_and_what_helps(
    sbpair: Sbpair,
    identity: Identity,
    arm: Web,
    tls: TlsFiles,
    status: int,
    code: str,
    says: str,
    exit_code: int,
    advice: str,
) -> None:
    headers = {"Retry-After": "0"} if status == 429 else {}
    document = {"error": {"code": code, "message": f"The answer {says} for this request."}}
    arm.answers[f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.ServiceBus/namespaces"] = (
        status,
        headers,
        document,
    )
    ran = ask(sbpair, identity, arm, tls)
    assert (ran.code, ran.stdout) == (exit_code, ""), ran
    assert f"Could not list the Service Bus namespaces of subscription {SUBSCRIPTION}" in ran.stderr
    assert says in ran.stderr
    assert advice in ran.stderr
    assert "Bearer" not in ran.stderr


@pytest.mark.parametrize(
    ("more", "login", "host"),
    [
        (("--cloud", "china"), None, "management.chinacloudapi.cn"),
        ((), "https://login.microsoftonline.us", "management.usgovcloudapi.net"),
        (("--cloud", "public"), "login.microsoftonline.us", "management.azure.com"),
    ],
)
def test_another_cloud_has_its_own_resource_manager(
    sbpair: Sbpair, identity: Identity, more: tuple[str, ...], login: str | None, host: str
) -> None:
    """Everything goes to a proxy of the test, which tells where to, and lets nothing pass."""
    proxy = Web()
    with proxy.running():
        given = {"HTTPS_PROXY": f"http://{proxy.host}", **({} if login is None else {"AZURE_AUTHORITY_HOST": login})}
        ran = signed_in(sbpair, identity)(*WORDS, *more, env=given)
    assert ran.code == 6, ran
    assert set(proxy.asked) == {f"{host}:443"}
    assert identity.resources[-1] == f"https://{host}"


def test_a_host_that_the_list_makes_up_gets_no_token(
    sbpair: Sbpair, identity: Identity, arm: Web, tls: TlsFiles
) -> None:
    resource = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.ServiceBus/namespaces/contoso"
    properties = {"serviceBusEndpoint": "https://contoso.evil.example:443/"}
    arm.answers[f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.ServiceBus/namespaces"] = (
        200,
        {},
        {"value": [{"id": resource, "name": "contoso", "properties": properties}]},
    )
    queue = {"name": "old~x-servicebus-transfer~0", "properties": {}}
    arm.answers[f"{resource}/queues"] = (200, {}, {"value": [queue]})
    before = len(identity.asked)
    ran = ask(sbpair, identity, arm, tls)
    assert ran.code == 2, ran
    assert "contoso.evil.example, which is no host of Azure Service Bus. Nothing was sent." in ran.stderr
    assert not any("servicebus" in resource for resource in identity.resources[before:])


def test_what_is_not_the_id_or_the_address_of_a_subscription_is_refused_before_anything_is_asked(
    sbpair: Sbpair,
) -> None:
    for words, says in (
        (("--subscription", "production"), "is not the id of a subscription"),
        (("--cloud", "china"), "--cloud says where --subscription is"),
        (("--subscription", SUBSCRIPTION, "--auth", "connection-string"), "does not open a subscription"),
        (("--subscription", SUBSCRIPTION, "--management-url", "http://127.0.0.1:1"), "is not https"),
        (("--subscription", SUBSCRIPTION, "--management-url", "https://a@b"), "is not the base URL"),
    ):
        ran = sbpair("discover", *words)
        assert (ran.code, says in ran.stderr) == (2, True), ran
