"""Servers that fork: gunicorn loads the application before its workers (`--preload`), with its client already open, and
Django does so in its settings. Each worker connects by itself, and the outage is nobody's error.

Both come with the extra `stories`; one that is not installed is skipped.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.emulator import EmulatorThread
from tests.clients.conftest import World, wait_until
from tests.waiting import LIMIT_SECONDS

PART = 6
"""Messages before, during and after the outage each."""

CLIENT = """
import os
from azure.servicebus import ServiceBusMessage
from sbpair import AuthMethod, NamespaceAccess, Pair, Secret, SendAvailabilityOptions, ServiceBusClient

def access(name, text):
    host = text.partition("sb://")[2].partition(";")[0].rstrip("/")
    return NamespaceAccess(name, host, AuthMethod.CONNECTION_STRING, Secret(text))

primary, secondary = access("contoso", os.environ["PRIMARY"]), access("fabrikam", os.environ["SECONDARY"])
client = ServiceBusClient.from_connection_string(
    os.environ["PRIMARY"], retry_total=1, retry_backoff_factor=0.05,
    pair=Pair("shop", primary, secondary, SendAvailabilityOptions(1, 0.0, False, 1.0)),
)
sender = client.get_queue_sender("orders")
sender.send_messages(ServiceBusMessage("loaded"))  # connected before the fork

def order(number):
    sender.send_messages(ServiceBusMessage(number))
"""
WSGI = """
import os
from shop import order

def application(environ, start_response):
    path = environ["PATH_INFO"].strip("/")
    if path != "who":
        order(path)
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""
DJANGO = """
import os
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from shop import order

def visit(request, what):
    if what != "who":
        order(what)
    return HttpResponse(str(os.getpid()), status=202)

urlpatterns = [path("<str:what>", visit)]
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="story", DEBUG=False)
application = get_wsgi_application()
"""


@pytest.fixture
def world() -> Iterator[World]:
    with EmulatorThread(["contoso", "fabrikam"]) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        emulator.namespace("fabrikam").create_queue("contoso/x-servicebus-transfer/0")
        yield World(emulator)


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running gunicorn with two workers."""

    def __init__(self, port: int) -> None:
        self._port = port

    def visit(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)
        try:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.visit("who")[0] == 202
        except OSError:
            return False


@contextmanager
def served(world: World, folder: Path, module: str) -> Iterator[Server]:
    (folder / "shop.py").write_text(CLIENT)
    (folder / "site_of_the_shop.py").write_text(module)
    port = a_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}"]
    command += ["--timeout", "120", "--worker-tmp-dir", str(folder), "site_of_the_shop:application"]
    variables = {"PRIMARY": world.connection_string(), "SECONDARY": world.connection_string("fabrikam")}
    variables["PYTHONPATH"] = os.pathsep.join((str(folder), str(Path.cwd())))
    said = (folder / "gunicorn.txt").open("w")
    process = subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdout=said, stderr=said)
    server = Server(port)
    try:
        wait_until(lambda: server.answers() or process.poll() is not None, LIMIT_SECONDS)
        assert process.poll() is None, (folder / "gunicorn.txt").read_text()[-2000:]
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("framework", ["wsgi", "django"])
def test_workers_that_were_forked_from_a_connected_application(world: World, tmp_path: Path, framework: str) -> None:
    pytest.importorskip("gunicorn")
    if framework == "django":
        pytest.importorskip("django")
    numbers = iter(range(10_000))
    served_by: dict[str, str] = {}
    with served(world, tmp_path, DJANGO if framework == "django" else WSGI) as server:

        def visits(wanted: int) -> list[str]:
            """That many, and until both workers had one."""
            sent: list[str] = []
            workers: set[str] = set()
            deadline = time.monotonic() + LIMIT_SECONDS
            while len(sent) < wanted or (len(workers) < 2 and time.monotonic() < deadline):
                number = str(next(numbers))
                status, worker = server.visit(number)
                assert status == 202
                sent.append(number)
                workers.add(worker)
                served_by[number] = worker
            assert len(workers) == 2, "one worker had all the visits"
            return sent

        before = visits(PART)
        world.dark()
        during = visits(PART)
        world.light()
        # Each worker pings for itself: the first visit that reaches the primary shows that its worker is back.
        returned: set[str] = set()

        def both_are_back() -> bool:
            number = str(next(numbers))
            status, worker = server.visit(number)
            assert status == 202
            served_by[number] = worker
            if number in world.bodies("orders"):
                returned.add(worker)
            return len(returned) == 2

        wait_until(both_are_back, 120)
        after = visits(PART)
    on_the_primary = world.bodies("orders")
    assert on_the_primary[0] == "loaded"
    waiting = world.bodies("contoso/x-servicebus-transfer/0", "fabrikam")
    assert set(before) <= set(on_the_primary)
    assert set(after) <= set(on_the_primary)
    assert set(during) <= set(waiting)
    assert sorted(on_the_primary[1:] + waiting, key=int) == sorted(served_by, key=int), "each once, none lost"
    for worker in set(served_by.values()):
        of_worker = [number for number in waiting if served_by[number] == worker]
        assert of_worker == sorted(of_worker, key=int), "what one worker diverted is in order"
