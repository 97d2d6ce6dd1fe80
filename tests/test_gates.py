"""Three gates, one place each: foreign text on its way to a reader, a credential on its way to a host, a file that
holds messages or keys. Nothing goes around them: every other place that could is named here with the reason why it may.

Whoever needs a new one adds it with its reason, or better, uses the gate.
"""

from pathlib import Path

import pytest

import sbpair
from tests.gates import doors, matching

PACKAGE = Path(sbpair.__file__).parent

# --- Foreign text: `core.redact`, carried out by `render.console` ---

TERMINAL = {
    *("print", "input", "breakpoint", "sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__", "os.write"),
    *("typer.echo", "typer.secho", "typer.confirm", "typer.prompt", "rich.print", "rich.console.Console"),
    *("logging.StreamHandler", "logging.FileHandler", "logging.basicConfig", "logging.lastResort", "warnings.warn"),
    *("traceback.print_exc", "traceback.print_exception", "sys.excepthook", "os.system"),
}
TERMINAL_PREFIXES = ("click",)
MAY_WRITE_TO_THE_TERMINAL = {
    "render/console.py": "the gate itself",
    "render/tables.py": "draws for the gate, into a text",
    "render/progress.py": "a bar of numbers, below names made printable",
    "cli/main.py": "stands in for closed streams, before anything else is imported",
    "cli/app.py": "the version",
    "cli/asking.py": "questions, made printable",
    "cli/inspection/plans.py": "a question, made printable",
    "cli/context.py": "log records as JSON, which escapes what must not stand there",
    "cli/emulator.py": "connection strings of the embedded namespaces",
    "cli/failover/gateway.py": "connection strings with the gateway's own keys",
    "cli/demo.py": "asks whether it is a terminal",
    "cli/inspection/status.py": "asks whether it is a terminal",
    "cli/inspection/watching.py": "asks whether it is a terminal; what it draws is made printable",
    "cli/running.py": "asks whether somebody reads",
    "operations/log.py": "no terminal: its file, past the buffer",
    "pipeline/spark/session.py": "Spark's own log, a private file",
}

# --- Credentials: `core.access.check_credential` ---

NETWORK = {
    *("socket.socket", "socket.create_connection", "asyncio.open_connection", "asyncio.open_unix_connection"),
    *("ssl.SSLContext", "ssl.create_default_context", "ssl._create_unverified_context", ".create_connection"),
    ".reveal",
}
NETWORK_PREFIXES = (
    *("aiohttp", "urllib.request", "http.client", "requests", "urllib3", "httpx", "websocket", "ftplib", "smtplib"),
    *("azure.servicebus", "azure.mgmt", "azure.identity", "azure.cosmos"),
)
MAY_HANDLE_CREDENTIALS = {
    "core/access.py": "the gate itself: the host in a connection string, the name of its key",
    "azure/client.py": "gives the SDK the judged parts of a connection string; asks the gate before a client is made",
    "azure/messaging.py": "asks the gate before a messaging client is made",
    "azure/administration.py": "makes its client by `LazyClient`, which asks the gate",
    "azure/management.py": "makes its client by `LazyClient`, which asks the gate",
    "azure/http.py": "the one transport, which goes to the origin that the gate has named",
    "azure/credentials.py": "where tokens come from",
    "azure/wire.py": "works inside the SDK's connection and opens none",
    "clients/": "the SDK's own client, to whose host and credential of the application's nothing is added; its errors",
    "journal/cosmos.py": "an account of its own, named on the command line or in the environment",
    "settings/resolve.py": "the host in a connection string",
    "runtime/inspection/gather.py": "the name of a key",
    "runtime/inspection/application.py": "connects without a credential",
    "render/monitored.py": "listens",
    "cli/emulator.py": "prints the keys of embedded namespaces",
    "gateway/primary.py": "connects; the tokens come from gateway/tokens.py",
    "gateway/tokens.py": "asks the gate before a token is made",
    "gateway/web.py": "goes to the origin that the gate has named; listens; asks a gateway of this machine",
}

CLIENTS = {
    "azure.servicebus.aio.ServiceBusClient",
    "azure.servicebus.aio.management.ServiceBusAdministrationClient",
    "azure.mgmt.servicebus.aio.ServiceBusManagementClient",
}

# --- Files: `files` ---

FILES = {
    *("open", "io.open", "io.FileIO", "os.open", "os.fdopen", "os.mkdir", "os.makedirs", "os.chmod", "os.link"),
    *("os.symlink", "os.mkfifo", "sqlite3.connect", "duckdb.connect", ".open(...)", ".write_text", ".write_bytes"),
    *(".touch", ".mkdir", ".symlink_to", ".hardlink_to", ".chmod", "shutil.copyfile", "shutil.copy", "shutil.move"),
}
FILES_PREFIXES = ("tempfile", "fileinput")
MAY_WRITE_FILES = {
    "files.py": "the gate itself",
    "connect.py": "no file: opens a pairing",
    "gateway/server.py": "no file: opens a pairing",
    "operations/send.py": "no file: opens a pairing",
    "clients/failover.py": "no file: opens a pairing",
    "operations/drill.py": "no file: opens a pairing",
    "runtime/replication/consumer.py": "no file: opens a session store",
    "render/console.py": "what the user names with --outfile; private where it holds messages",
    "render/html.py": "the program's own help, for everybody, in a folder the user names",
    "cli/main.py": "the null device",
    "cli/hooks.py": "no file: typer's help formatter",
    "journal/sqlite.py": "SQLite opens by name what the gate has made",
    "pipeline/analysis/analyze.py": "tables of sums, in a folder the user names",
    "pipeline/analysis/partials.py": "DuckDB in memory; its overflow in a private temporary folder",
    "pipeline/manifest.py": "links files of the gate into their place; Hadoop's file systems have rights of their own",
    "pipeline/replay.py": "a private temporary folder",
    "pipeline/tables.py": "DuckDB in memory; archives and ledgers that are only read",
    "pipeline/source/writer.py": "a report of numbers in a private temporary folder",
    "pipeline/spark/java.py": "a script for its owner; the JVM's start files, in a private temporary folder",
    "pipeline/spark/session.py": "a private temporary folder",
}

SERVERS = ("emulator/", "engine/")
"""A server with keys and ports of its own, and what it shares with the gateway's door; `tests/emulator`, `tests/engine`
and `tests/test_private_files.py` are about them."""


def around(found: dict[str, set[str]], allowed: dict[str, str]) -> dict[str, set[str]]:
    """What is met in files that neither have a reason nor lie in a room that has one."""
    rooms = tuple(name for name in (*SERVERS, *allowed) if name.endswith("/"))
    return {file: met for file, met in found.items() if file not in allowed and not file.startswith(rooms)}


def test_nothing_writes_to_the_terminal_around_the_gate() -> None:
    assert around(doors(PACKAGE, TERMINAL, TERMINAL_PREFIXES), MAY_WRITE_TO_THE_TERMINAL) == {}


def test_no_credential_leaves_around_the_gate() -> None:
    assert around(doors(PACKAGE, NETWORK, NETWORK_PREFIXES), MAY_HANDLE_CREDENTIALS) == {}


def test_every_client_with_a_credential_asks_the_gate() -> None:
    makers = {file for file in doors(PACKAGE, CLIENTS) if file.startswith("azure/")}
    asking = doors(PACKAGE, {"sbpair.core.access.check_credential", "sbpair.azure.client.LazyClient"})
    assert makers == {"azure/messaging.py", "azure/administration.py", "azure/management.py"}
    assert makers <= set(asking)


def test_no_file_is_written_around_the_gate() -> None:
    assert around(doors(PACKAGE, FILES, FILES_PREFIXES), MAY_WRITE_FILES) == {}


@pytest.mark.parametrize(
    ("names", "prefixes", "source"),
    [
        (TERMINAL, TERMINAL_PREFIXES, source)
        for source in (
            "print('x')",
            "p = print",
            "import sys\nsys.stderr.write('x')",
            "import sys as s\nw = s.stderr\nw.write('x')",
            "from sys import stdout as out\nout.write('x')",
            "def f():\n    import sys\n    getattr(sys, 'stderr').write('x')",
            "import os\nos.write(2, b'x')",
            "from os import write as w\nw(2, b'x')",
            "import typer\ntyper.echo('x')",
            "from typer import secho\nsecho('x')",
            "import click\nclick.echo('x')",
            "from rich.console import Console\nConsole().print('x')",
            "import rich\nrich.print('x')",
            "import logging\nlogging.getLogger().addHandler(logging.StreamHandler())",
            "import warnings\nwarnings.warn('x')",
            "import traceback\ntraceback.print_exc()",
        )
    ]
    + [
        (NETWORK, NETWORK_PREFIXES, source)
        for source in (
            "import aiohttp\naiohttp.ClientSession()",
            "from aiohttp import ClientSession as S\nS()",
            "import urllib.request\nurllib.request.urlopen('http://h')",
            "from urllib import request\nrequest.urlopen('http://h')",
            "from urllib.request import urlopen as u\nu('http://h')",
            "import http.client as h\nh.HTTPSConnection('h')",
            "import socket\nsocket.create_connection(('h', 1))",
            "async def f(loop):\n    await loop.create_connection(None, 'h', 1)",
            "def f(access):\n    return access.connection_string.reveal()",
            "def f(access):\n    return getattr(access.connection_string, 'reveal')()",
            "from azure.servicebus.aio import ServiceBusClient\nServiceBusClient('h', None)",
            "from azure.identity.aio import DefaultAzureCredential\nDefaultAzureCredential()",
            "import requests",
        )
    ]
    + [
        (FILES, FILES_PREFIXES, source)
        for source in (
            "open('x', 'w')",
            "o = open\no('x', 'w')",
            "from io import open as o\no('x', 'w')",
            "import os\nos.open('x', 1)",
            "from pathlib import Path\nPath('x').write_text('x')",
            "def f(path):\n    path.open('ab')",
            "def f(path):\n    path.open(mode='w')",
            "def f(path, mode):\n    path.open(mode)",
            "def f(path, options):\n    path.open(**options)",
            "def f(path):\n    path.open('r+b')",
            "def f(path):\n    path.mkdir()",
            "import tempfile as t\nt.mkstemp()",
            "from tempfile import NamedTemporaryFile",
            "import sqlite3\nsqlite3.connect('x')",
            "from builtins import open as o\no('x', 'w')",
            "import builtins\nbuiltins.open('x', 'w')",
        )
    ],
)
def test_the_finder_sees_through_aliases(names: set[str], prefixes: tuple[str, ...], source: str) -> None:
    assert matching(source, names, prefixes) != set()


@pytest.mark.parametrize(
    "source",
    [
        "def f(path):\n    return path.open('rb').read(), path.open()",
        "text = 'open print sys.stderr'",
        "class Finding:\n    open: bool",
    ],
)
def test_reading_and_mere_words_are_no_doors(source: str) -> None:
    prefixes = (*TERMINAL_PREFIXES, *NETWORK_PREFIXES, *FILES_PREFIXES)
    assert matching(source, TERMINAL | NETWORK | FILES, prefixes) == set()
