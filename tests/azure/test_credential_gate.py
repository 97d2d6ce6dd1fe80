"""Which host may receive which credential over which transport, seen by servers that note what they get."""

from collections.abc import AsyncIterator

import certifi
import pytest
from aiohttp import web

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.client import authorities
from sbpair.azure.credentials import login_host
from sbpair.azure.management import ArmAdmin
from sbpair.azure.messaging import AzureMessaging, tls_context
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, check_credential
from sbpair.core.errors import ConfigurationError, SbpairError
from tests.azure.support import FixedCredential, message
from tests.azure.test_hostile_answers import Server, arm, authority, certificates, connection_string, data_plane, server

__all__ = ["arm", "certificates", "data_plane", "server"]


@pytest.fixture
async def elsewhere(certificates: object) -> AsyncIterator[Server]:
    """Another host, with a certificate that is trusted: what must never hear of the credential."""
    started = Server(certificates)  # type: ignore[arg-type]
    await started.start()
    yield started
    await started.stop()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_with_the_credential(
    server: Server, elsewhere: Server, arm: ArmAdmin, data_plane: DataPlaneAdmin, status: int
) -> None:
    for location in (f"https://{elsewhere.host}/x", f"http://{elsewhere.host}/x", f"//{elsewhere.host}/x", "/x"):
        server.status, server.headers = status, {"Location": location}
        for admin in (arm, data_plane):
            with pytest.raises(SbpairError, match="redirect"):
                await admin.get_queue("orders")
    assert server.asked > 0
    assert elsewhere.asked == 0


async def test_the_next_page_of_a_list_is_not_fetched_from_another_host(
    server: Server, elsewhere: Server, arm: ArmAdmin
) -> None:
    server.json({"value": [], "nextLink": f"https://{elsewhere.host}/more"})
    with pytest.raises(SbpairError, match="the credential stays here"):
        _ = [queue async for queue in arm.list_queues()]
    assert (server.asked > 0, elsewhere.asked) == (True, 0)


async def test_no_long_running_operation_leads_elsewhere(server: Server, elsewhere: Server, arm: ArmAdmin) -> None:
    async def answer(request: web.Request) -> web.Response:
        headers = dict.fromkeys(("Location", "Azure-AsyncOperation"), f"https://{elsewhere.host}/op")
        return web.json_response({}, status=202, headers=headers)

    server.answer = answer
    with pytest.raises(SbpairError):
        await arm.get_queue("orders")
    assert elsewhere.asked == 0


def access(host: str, **more: object) -> NamespaceAccess:
    return NamespaceAccess(label="n", host=host, **more)  # type: ignore[arg-type]


def with_key(host: str, **more: object) -> NamespaceAccess:
    text = connection_string(host)
    return access(host, auth=AuthMethod.CONNECTION_STRING, connection_string=Secret(text), **more)


@pytest.mark.parametrize("host", ["n.servicebus.windows.net", "10.0.0.7:5672", "localhost.example", "127.example"])
async def test_a_token_in_clear_stays_on_this_machine(host: str) -> None:
    messaging = AzureMessaging(with_key(host))
    with pytest.raises(ConfigurationError, match="in clear"):
        await messaging.sender("orders").send([message("1")], timeout_seconds=5)
    await messaging.close()
    admin = DataPlaneAdmin(with_key(host))
    with pytest.raises(ConfigurationError, match="in clear"):
        await admin.get_queue("orders")
    await admin.close()
    assert check_credential(with_key(host, allow_plaintext=True)) == f"https://{host}"


@pytest.mark.parametrize("host", ["127.0.0.1:5671", "localhost", "[::1]:5", "127.3.4.5"])
def test_this_machine_may_have_it(host: str) -> None:
    assert check_credential(with_key(host, chosen_by_user=False, ca_file="x")) == f"https://{host}"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "servicebus.windows.net",
        "contoso.servicebus.windows.net.evil.example",
        "evilservicebus.windows.net",
        "10.0.0.7",
    ],
)
def test_a_folders_file_sends_no_entra_token_to_a_stranger(host: str) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was sent"):
        check_credential(access(host, chosen_by_user=False))
    assert check_credential(access(host)) == f"https://{host}"


@pytest.mark.parametrize("chosen_by_user", [True, False])
@pytest.mark.parametrize(
    "host",
    [
        "contoso.servicebus.windows.net@evil.example",
        "contoso:443@evil.example:1",
        "contoso.servicebus.windows.net#.evil.example",
        "contoso.servicebus.windows.net?.evil.example",
        "contoso.servicebus.windows.net/.evil.example",
        "contoso.servicebus.windows.net\\.evil.example",
        "",
        "a b",
    ],
)
def test_what_is_no_host_alone_gets_nothing(host: str, chosen_by_user: bool) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was sent"):
        check_credential(access(host, chosen_by_user=chosen_by_user))


@pytest.mark.parametrize("host", ["127.0.0.1:5671", "localhost", "[::1]:5"])
def test_a_folders_file_sends_no_entra_token_to_a_port_here_where_anybody_may_listen(host: str) -> None:
    for more in ({}, {"ca_file": "x"}):
        with pytest.raises(ConfigurationError, match="another user may listen"):
            check_credential(access(host, chosen_by_user=False, **more))
    with pytest.raises(ConfigurationError, match="Nothing was sent"):
        check_credential(access("h", management_url=f"https://{host}", chosen_by_user=False), resource_manager=True)
    assert check_credential(access(host)) == f"https://{host}"


@pytest.mark.parametrize("cloud", ["windows.net", "chinacloudapi.cn", "usgovcloudapi.net"])
def test_the_known_clouds_are_fine(cloud: str) -> None:
    host = f"contoso.servicebus.{cloud}"
    assert check_credential(access(host, chosen_by_user=False)) == f"https://{host}"
    with pytest.raises(ConfigurationError, match="certificate authority"):
        check_credential(access(host, chosen_by_user=False, ca_file="/tmp/ca.pem"))


def test_a_namespace_of_another_cloud_has_that_clouds_resource_manager_and_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AZURE_AUTHORITY_HOST", raising=False)
    china = access("contoso.servicebus.chinacloudapi.cn")
    assert check_credential(china, resource_manager=True) == "https://management.chinacloudapi.cn"
    assert login_host(china) == "login.chinacloudapi.cn"
    assert login_host(access("contoso.servicebus.windows.net")) is None
    lists_only = access("", management_url="https://management.usgovcloudapi.net/")
    assert login_host(lists_only) == "login.microsoftonline.us"
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "login.example")
    assert login_host(china) is None, "what the environment says goes to azure-identity"


def test_a_host_that_a_list_tells_is_azures_own_or_beside_a_resource_manager_here() -> None:
    here = "https://127.0.0.1:5680"
    assert check_credential(access("contoso.servicebus.windows.net", host_from_list=True))
    assert check_credential(access("127.0.0.1:5681", host_from_list=True, management_url=here))
    for host, url in (
        ("evil.example", here),
        ("127.0.0.1:5681", None),
        ("127.0.0.1:1", "https://management.azure.com"),
    ):
        with pytest.raises(ConfigurationError, match="Nothing was sent"):
            check_credential(access(host, host_from_list=True, management_url=url))


@pytest.mark.parametrize("url", ["http://management.azure.com", "http://127.0.0.1:1", "ftp://x"])
def test_the_resource_manager_gets_its_token_over_tls_only(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not https"):
        check_credential(access("h", management_url=url), resource_manager=True)


def test_a_folders_file_names_no_resource_manager_of_its_own() -> None:
    stranger = access("contoso.servicebus.windows.net", management_url="https://evil.example", chosen_by_user=False)
    with pytest.raises(ConfigurationError, match="Nothing was sent"):
        check_credential(stranger, resource_manager=True)


async def test_what_was_refused_never_reached_the_server(server: Server) -> None:
    """The same clients do reach it where the user has chosen it: the refusals above are the gate's."""
    server.atom("")
    chosen = access(server.host, auth=AuthMethod.AZURE_CLI, ca_file=authority(server))
    admin = DataPlaneAdmin(chosen, credential=FixedCredential())
    with pytest.raises(SbpairError):
        await admin.get_queue("orders")
    await admin.close()
    assert server.asked > 0


async def test_both_protocols_trust_the_same_authorities(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SSL_CERT_FILE names for other programs counts for HTTP and AMQP; a configured authority comes before it."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    server.atom("")
    asked: list[int] = []
    for variable, configured in ((None, None), (authority(server), None), (certifi.where(), authority(server))):
        if variable is not None:
            monkeypatch.setenv("SSL_CERT_FILE", variable)
        admin = DataPlaneAdmin(access(server.host, ca_file=configured), credential=FixedCredential())
        with pytest.raises(SbpairError):
            await admin.get_queue("orders")
        await admin.close()
        asked.append(server.asked)
        serials = {one["serialNumber"] for one in tls_context(authorities(configured)).get_ca_certs()}
        assert (len(serials) > 20) is (variable is None)
    assert asked[0] == 0
    assert 0 < asked[1] < asked[2]
