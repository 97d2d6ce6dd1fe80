"""Applications that send from workers, threads and short processes: the primary is dark in the middle, none of their
work fails, and everything is there, as a client of azure-servicebus alone counts it.

Celery and Django are the real ones, from the extra `stories`; one that is not installed is skipped. Airflow and the
host of Azure Functions are not: processes of their shape stand for them. Airflow's worker forks a process for each
task, whose callable opens a client and closes it. A function app that has scaled to zero is a new process that sends at
once and closes nothing.
"""

import http.client
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
from azure.servicebus import ServiceBusMessage

import sbpair
from sbpair.core.failover.machine import State
from tests.clients.conftest import QUEUES, World, state_of, wait_until
from tests.stories.test_applications import OVERLAPPING, PART, QUICK, through_an_outage, world

__all__ = ["world"]

ANSWER_SECONDS = 120
CLIENT = f"""
import os, sys
from azure.servicebus import ServiceBusMessage
import sbpair
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.events import FailedBack, FailedOver
from sbpair.core.pairing import Pair, SendAvailabilityOptions

def access(name):
    text = os.environ[name.upper()]
    return NamespaceAccess(name, host_of(text), AuthMethod.CONNECTION_STRING, Secret(text))

def note(event):
    if isinstance(event, FailedBack | FailedOver):
        with open(os.path.join(os.environ["EVENTS"], str(os.getpid())), "w") as file:
            file.write(type(event).__name__)

def a_client():
    options = SendAvailabilityOptions({QUEUES}, 0.0, False, 1.0)
    pair = Pair("embedded", access("contoso"), access("fabrikam"), options)
    return sbpair.ServiceBusClient.from_connection_string(
        os.environ["CONTOSO"], pair=pair, on_event=note, retry_total=1, retry_backoff_factor=0.05)
"""


@pytest.fixture
def variables(world: World, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "events").mkdir()
    texts = {name.upper(): world.connection_string(name) for name in ("contoso", "fabrikam")}
    path = os.pathsep.join(filter(None, (str(tmp_path), str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **texts, "EVENTS": str(tmp_path / "events"), "PYTHONPATH": path}


def all_are_back(events: Path) -> bool:
    """No process that failed over is still failed over."""
    return {file.read_text() for file in events.iterdir()} <= {"FailedBack"}


def numbers(count: int) -> list[str]:
    return sorted(map(str, range(count)))


CELERY = (
    CLIENT
    + """
from celery import Celery

folder = os.environ["EVENTS"] + "/../broker"
app = Celery("shop", broker="filesystem://", backend="file://" + folder + "/results")
folders = {name: folder for name in ("data_folder_in", "data_folder_out", "processed_folder", "control_folder")}
app.conf.update(broker_transport_options=folders, worker_prefetch_multiplier=1, task_track_started=False)

# Made before the worker forks its pool, as a module of an application does.
client = a_client()
sender = client.get_queue_sender("orders")

@app.task(name="bill")
def bill(number):
    sender.send_messages(ServiceBusMessage(str(number), message_id=str(number)))
"""
)


def test_celery_worker(world: World, variables: dict[str, str], tmp_path: Path) -> None:
    """A prefork worker of two processes whose tasks send: each task succeeds."""
    celery = pytest.importorskip("celery")
    (tmp_path / "broker" / "results").mkdir(parents=True)
    (tmp_path / "shop.py").write_text(CELERY, encoding="utf-8")
    folder = str(tmp_path / "broker")
    folders = dict.fromkeys(("data_folder_in", "data_folder_out", "processed_folder", "control_folder"), folder)
    app = celery.Celery("shop", broker="filesystem://", backend=f"file://{folder}/results")
    app.conf.update(broker_transport_options=folders)
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "prefork", "-c", "2", "-l", "WARNING"]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen([*command, "--without-mingle"], env=variables, cwd=tmp_path, stdout=log, stderr=log)
    try:
        through_an_outage(
            world,
            lambda number: app.send_task("bill", (number,)).get(timeout=ANSWER_SECONDS),
            lambda: all_are_back(tmp_path / "events"),
        )
    finally:
        worker.terminate()
        worker.wait(ANSWER_SECONDS)
    assert sorted(world.bodies("orders")) == numbers(3 * PART), (tmp_path / "log").read_text()


class ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class Silent(WSGIRequestHandler):
    def log_message(self, format: str, *values: object) -> None:
        """Requests are counted by the test."""


@pytest.fixture
def serve() -> Iterator[Callable[[Any], int]]:
    """Serves a WSGI application, each request in a thread of its own; gives the port."""
    servers: list[ThreadingServer] = []

    def start(application: Any) -> int:
        server = ThreadingServer(("127.0.0.1", 0), Silent)
        server.set_app(application)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_django_view_with_threads(world: World, serve: Callable[[Any], int]) -> None:
    """Views in many threads share a sender: no request fails before, during and after an outage."""
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path

    client = sbpair.ServiceBusClient.from_connection_string(world.connection_string(), pair=world.pair(), **QUICK)
    sender = client.get_queue_sender("orders")

    def order(request: Any, number: str) -> Any:
        sender.send_messages(ServiceBusMessage(number, message_id=number))
        return HttpResponse(status=202)

    urls = type("urls", (), {"urlpatterns": [path("orders/<str:number>", order)]})
    settings.configure(ROOT_URLCONF=urls, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="of a test", MIDDLEWARE=[])
    django.setup()
    port = serve(get_wsgi_application())

    def visit(number: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        connection.request("POST", f"/orders/{number}")
        status = connection.getresponse().status
        connection.close()
        return status

    with client, ThreadPoolExecutor(OVERLAPPING) as users:

        def visits(phase: str) -> Counter[int]:
            return Counter(users.map(visit, [f"{phase}-{number}" for number in range(OVERLAPPING)]))

        assert visits("before") == {202: OVERLAPPING}
        world.dark()
        assert visits("during") == {202: OVERLAPPING}
        world.light()
        wait_until(lambda: state_of(client.state()) is State.HEALTHY)
        assert visits("after") == {202: OVERLAPPING}
    assert len(world.bodies("orders")) == 2 * OVERLAPPING
    assert world.drain() == OVERLAPPING
    phases = ("before", "during", "after")
    expected = {f"{phase}-{number}" for phase in phases for number in range(OVERLAPPING)}
    assert set(world.bodies("orders")) == expected


AIRFLOW = (
    CLIENT
    + """
def export(number):
    with a_client() as client, client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(f"{number}", message_id=f"{number}")])

for line in sys.stdin:
    if (child := os.fork()) == 0:
        try:
            export(line.strip())
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
)


def test_tasks_that_are_forked_as_by_airflow(world: World, variables: dict[str, str]) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", AIRFLOW], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(number: int) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{number}\n")
        worker.stdin.flush()
        assert worker.stdout.readline().strip() == "0"

    try:
        # Each task finds out by itself: there is nothing to wait for when the primary is back.
        through_an_outage(world, run, lambda: True)
    finally:
        worker.kill()
        worker.communicate()
    assert sorted(world.bodies("orders")) == numbers(3 * PART)


FUNCTION = (
    CLIENT
    + """
a_client().get_queue_sender("orders").send_messages(ServiceBusMessage(sys.argv[1], message_id=sys.argv[1]))
"""
)


def test_short_processes_as_of_functions(world: World, variables: dict[str, str]) -> None:
    """Each message from a process of its own, which ends without closing anything, and does not linger."""

    def invoke(number: int) -> None:
        command = [sys.executable, "-c", FUNCTION, str(number)]
        ran = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr

    through_an_outage(world, invoke, lambda: True)
    assert sorted(world.bodies("orders")) == numbers(3 * PART)
