"""Injected faults as administration clients meet them, and the control endpoint that injects them."""

import json
import time

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

from .conftest import GROUP, AdminServer
from .raw import sas, send


def inject(server: AdminServer, text: str) -> str:
    return server.run(lambda: server.namespace.faults.add(text))


def test_throttling_asks_to_come_back(server: AdminServer) -> None:
    inject(server, "throttle:op=http")
    answer = send(server, "GET", "/q?api-version=2021-05")
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert "SubCode=50004" in answer.detail
    assert "50009" in answer.detail
    with pytest.raises(HttpResponseError) as caught:
        server.arm().queues.get(GROUP, "primary", "q")
    assert caught.value.status_code == 429
    assert caught.value.error is not None
    assert caught.value.error.code == "TooManyRequests"
    assert "SubCode=50004" in str(caught.value)


def test_a_client_that_waits_gets_through(server: AdminServer) -> None:
    inject(server, "throttle:op=http,status=503,count=1")
    started = time.monotonic()
    server.admin(retry_total=2).create_queue("q")
    assert 1.9 < time.monotonic() - started < 60


def test_any_status_can_be_injected_for_one_entity(server: AdminServer) -> None:
    inject(server, "http-status:entity=bad*,status=500")
    admin = server.admin()
    admin.create_queue("good")
    with pytest.raises(HttpResponseError) as caught:
        admin.create_queue("bad/one")
    assert caught.value.status_code == 500
    assert [queue.name for queue in admin.list_queues()] == ["good"]


def test_unauthorized_can_be_injected(server: AdminServer) -> None:
    inject(server, "unauthorized:op=http")
    with pytest.raises(ClientAuthenticationError):
        server.admin().get_queue("q")
    with pytest.raises(ClientAuthenticationError):
        server.arm().queues.get(GROUP, "primary", "q")


def test_a_list_may_lack_an_entry(server: AdminServer) -> None:
    admin = server.admin()
    for number in range(5):
        admin.create_queue(f"q{number}")
    inject(server, "list-gap:count=1")
    assert len(list(admin.list_queues())) == 4
    assert len(list(admin.list_queues())) == 5
    inject(server, "list-gap:count=1")
    assert len(list(server.arm().queues.list_by_namespace(GROUP, "primary"))) == 4


def test_counts_may_be_reported_as_zero(server: AdminServer) -> None:
    admin = server.admin()
    admin.create_queue("q")
    server.run(lambda: fill(server))
    assert admin.get_queue_runtime_properties("q").active_message_count == 1
    assert server.arm().queues.get(GROUP, "primary", "q").properties.message_count == 1
    fault = inject(server, "zero-counts")
    assert admin.get_queue_runtime_properties("q").active_message_count == 0
    assert server.arm().queues.get(GROUP, "primary", "q").properties.message_count == 0
    server.run(lambda: server.namespace.faults.remove(fault))
    assert admin.get_queue_runtime_properties("q").active_message_count == 1


def fill(server: AdminServer) -> None:
    """Put one message into the queue `q`: a data section around `x`."""
    queue = server.namespace.get_queue("q")
    assert queue is not None
    queue.send(b"\x00\x53\x75\xa0\x01x")


def test_a_connection_may_be_cut(server: AdminServer) -> None:
    inject(server, "drop:op=http,count=1")
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        server.admin().get_queue("q")


def test_faults_are_controlled_over_http(server: AdminServer) -> None:
    added = send(server, "POST", "/$emulator/faults", json.dumps({"text": "throttle:op=http,status=503"}))
    assert added.status == 201
    fault_id = json.loads(added.text)["id"]
    assert send(server, "GET", "/q").status == 503
    other = send(server, "POST", "/$emulator/faults", json.dumps({"kind": "zero-counts", "for": 30}))
    assert other.status == 201
    (first, second) = json.loads(send(server, "GET", "/$emulator/faults").text)["value"]
    assert (first["id"], first["hits"], first["rule"]["kind"]) == (fault_id, 1, "throttle")
    assert second["rule"]["kind"] == "zero-counts"
    assert send(server, "DELETE", f"/$emulator/faults/{fault_id}").status == 204
    assert send(server, "DELETE", f"/$emulator/faults/{fault_id}").status == 404
    assert send(server, "GET", "/q").status == 200
    assert send(server, "DELETE", "/$emulator/faults").status == 204
    assert json.loads(send(server, "GET", "/$emulator/faults").text) == {"value": []}


@pytest.mark.parametrize("body", ["no json", "[]", "{}", '{"kind": "magic"}', '{"text": "throttle:after=x"}'])
def test_faults_that_make_no_sense(server: AdminServer, body: str) -> None:
    answer = send(server, "POST", "/$emulator/faults", body)
    assert answer.status == 400
    assert json.loads(answer.text)["error"]["code"] == "BadRequest"
    assert server.run(lambda: server.namespace.faults.list()) == []


def test_the_control_needs_manage(server: AdminServer) -> None:
    server.add_key("sender", "Send")
    body = json.dumps({"kind": "zero-counts"})
    for token in (None, sas(server, name="sender", key="sender-1"), sas(server, key="wrong")):
        assert send(server, "POST", "/$emulator/faults", body, token=token).status == 401
    assert send(server, "PATCH", "/$emulator/faults").status == 405
    assert send(server, "GET", "/$emulator/other").status == 404
