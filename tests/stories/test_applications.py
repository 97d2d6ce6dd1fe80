"""Applications that nobody here wrote, with one import changed: the primary is dark in the middle, and no user sees it.

Flask, FastAPI, taskiq (with taskiq-service-bus) and Celery (with kombu's transport) come with the extra `stories`; one
that is not installed is skipped.
"""

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

import sbpair
import sbpair.aio
from sbpair.core.failover.machine import State
from sbpair.core.pairing import expected_backlog_paths
from sbpair.emulator import EmulatorThread
from tests.clients.conftest import QUEUES, World, backlog_queue, state_of, wait_until
from tests.interop.live_suite.running import SUFFIX, TLS_NAMES, environment, public_connection_string

PART = 5
"""Messages before, during and after the outage each."""
OUTAGE_SECONDS = float(os.environ.get("SBPAIR_STORY_OUTAGE_SECONDS", "0"))
"""How long the primary is dark at least: 60 for the whole story, which the suite has no time for."""
QUICK = {"retry_total": 1, "retry_backoff_factor": 0.05}
SHIM = Path(__file__).parents[1] / "interop" / "live_suite" / "shim"


@pytest.fixture
def world() -> Iterator[World]:
    with EmulatorThread(["contoso", "fabrikam"]) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        for index in range(QUEUES):
            emulator.namespace("fabrikam").create_queue(backlog_queue(index))
        yield World(emulator)


def through_an_outage(world: World, send: Callable[[int], None], is_back: Callable[[], bool]) -> None:
    """Use the application before, during and after: its users see no error, and everything is there, in order."""
    for number in range(PART):
        send(number)
    world.dark()
    for number in range(PART, 2 * PART):
        send(number)
        time.sleep(OUTAGE_SECONDS / PART)
    assert len(world.backlog()) == PART
    world.light()
    wait_until(is_back)
    assert world.drain() == PART
    for number in range(2 * PART, 3 * PART):
        send(number)
    assert world.backlog() == [], "the primary was found failing once more after it was back"


def test_flask(world: World) -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask("shop")
    client = sbpair.ServiceBusClient.from_connection_string(world.connection_string(), pair=world.pair(), **QUICK)
    sender = client.get_queue_sender("orders")

    @app.post("/orders/<number>")
    def order(number: str) -> tuple[str, int]:
        sender.send_messages(ServiceBusMessage(number, message_id=number))
        return "", 202

    def visit(number: int) -> None:
        """Each request in a thread of its own, as a WSGI server has it."""
        statuses: list[int] = []
        request = threading.Thread(
            target=lambda: statuses.append(app.test_client().post(f"/orders/{number}").status_code)
        )
        request.start()
        request.join()
        assert statuses == [202]

    with client, sender:
        through_an_outage(world, visit, lambda: state_of(client.state()) is State.HEALTHY)
    assert world.bodies("orders") == [str(number) for number in range(3 * PART)]


def test_fastapi(world: World) -> None:
    fastapi = pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from fastapi.testclient import TestClient

    app = fastapi.FastAPI()
    client = sbpair.aio.ServiceBusClient.from_connection_string(world.connection_string(), pair=world.pair(), **QUICK)
    sender = client.get_queue_sender("orders")

    @app.post("/orders/{number}", status_code=202)
    async def order(number: str) -> None:
        await sender.send_messages(ServiceBusMessage(number, message_id=number))

    def visit(number: int) -> None:
        assert users.post(f"/orders/{number}").status_code == 202

    with TestClient(app) as users:
        through_an_outage(world, visit, lambda: state_of(client.state()) is State.HEALTHY)
        assert users.portal is not None
        users.portal.call(client.close)
    assert world.bodies("orders") == [str(number) for number in range(3 * PART)]


OVERLAPPING = 20
"""Requests under way at the same time."""


async def test_fastapi_with_requests_that_overlap(world: World) -> None:
    """One shared sender, as a service has it: no request fails before, during and after two outages."""
    fastapi = pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")

    app = fastapi.FastAPI()
    client = sbpair.aio.ServiceBusClient.from_connection_string(world.connection_string(), pair=world.pair(), **QUICK)
    sender = client.get_queue_sender("orders")

    @app.post("/orders/{number}", status_code=202)
    async def order(number: str) -> None:
        await sender.send_messages(ServiceBusMessage(number, message_id=number))

    async def visits(phase: str) -> Counter[int]:
        answers = await asyncio.gather(*(users.post(f"/orders/{phase}{number}") for number in range(OVERLAPPING)))
        return Counter(answer.status_code for answer in answers)

    transport = httpx.ASGITransport(app=app)
    async with client, httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=120) as users:
        for outage in range(2):
            assert await visits(f"before {outage} ") == {202: OVERLAPPING}
            await asyncio.to_thread(world.dark)
            assert await visits(f"during {outage} ") == {202: OVERLAPPING}
            await asyncio.to_thread(world.light)
            await asyncio.to_thread(wait_until, lambda: state_of(client.state()) is State.HEALTHY)
        assert await visits("after ") == {202: OVERLAPPING}
    assert await asyncio.to_thread(world.drain) == 2 * OVERLAPPING
    assert len(set(await asyncio.to_thread(world.bodies, "orders"))) == 5 * OVERLAPPING


def test_taskiq(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("taskiq_service_bus.broker")
    pair = world.pair()

    paired: Any = type(
        "Paired",
        (),
        {
            "from_connection_string": staticmethod(
                functools.partial(sbpair.aio.ServiceBusClient.from_connection_string, pair=pair, **QUICK)
            )
        },
    )
    monkeypatch.setattr(module, "ServiceBusClient", paired)
    broker = module.ServiceBusBroker(world.connection_string(), "orders")

    @broker.task(task_name="bill")
    async def bill(number: int) -> None: ...

    def kick(number: int) -> None:
        asyncio.run(bill.kiq(number))

    # This broker opens a client for every message: what they know of the outage is the process's, which a health check
    # asks as well.
    with sbpair.ServiceBusClient.from_connection_string(world.connection_string(), pair=pair, **QUICK) as watcher:
        through_an_outage(
            world, kick, lambda: all(entity.state is State.HEALTHY for entity in watcher.state().entities)
        )
    numbers = [number for body in world.bodies("orders") for number in json.loads(body)["args"]]
    assert numbers == list(range(3 * PART))


CELERY = """
import functools, os, socket, sys
import live_suite_plugin
socket.getaddrinfo = live_suite_plugin.route

import kombu.transport.azureservicebus as transport
import sbpair
from sbpair import SendAvailabilityOptions

made = []

def from_connection_string(text, **options):
    secondary = os.environ["SECONDARY"]
    options |= {"retry_total": 1, "retry_backoff_factor": 0.05}
    options |= {"options": SendAvailabilityOptions(1, 0.0, False, 1.0)}
    made.append(sbpair.ServiceBusClient.from_connection_string(text, secondary=secondary, **options))
    return made[-1]

transport.ServiceBusClient = type("Paired", (), {"from_connection_string": staticmethod(from_connection_string)})

from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.task_default_queue = "tasks"

@app.task
def bill(number): ...

for line in sys.stdin:
    word = line.strip()
    if word == "state":
        (entity,) = made[0].state().entities
        print(entity.state, flush=True)
        continue
    bill.apply_async((int(word),), retry=False)
    print("sent", flush=True)
"""


def test_celery() -> None:
    """Kombu's transport insists on the service's host names, so that its process resolves them as the live suite's."""
    pytest.importorskip("celery")
    with EmulatorThread(["contoso", "fabrikam"], tls_names=TLS_NAMES) as emulator:
        for path in expected_backlog_paths("contoso", QUEUES):
            emulator.namespace("fabrikam").create_queue(path)
        world = World(emulator)
        fields = dict(part.partition("=")[::2] for part in emulator.connection_string("contoso").split(";"))
        broker = f"azureservicebus://{fields['SharedAccessKeyName']}:{fields['SharedAccessKey']}@contoso{SUFFIX}"
        variables = environment(emulator, emulator, "contoso", SHIM.parent)
        variables = {**variables, "PYTHONPATH": os.pathsep.join((str(SHIM), str(Path.cwd())))}
        variables |= {"BROKER": broker, "SECONDARY": public_connection_string(emulator, "fabrikam")}
        process = subprocess.Popen(
            [sys.executable, "-c", CELERY],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        def ask(word: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
            assert answer, process.communicate()[1][-2000:]
            return answer

        def delay(number: int) -> None:
            assert ask(str(number)) == "sent"

        try:
            through_an_outage(world, delay, lambda: ask("state") == State.HEALTHY)
            found = world.bodies("tasks")
        finally:
            process.kill()
            process.communicate()
    assert [json.loads(body)["headers"]["argsrepr"] for body in found] == [f"({number},)" for number in range(3 * PART)]
