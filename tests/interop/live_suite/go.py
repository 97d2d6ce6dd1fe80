"""`python -m tests.interop.live_suite.go [--gateway] [--cache DIR] [-k EXPRESSION]`: the live tests of azservicebus.

They know their namespaces by a host name alone and want TLS on the service's ports, so each of the two has an address
of its own on this machine with the ports 5671 and 443, which usually takes the rights of root. Their bearer tokens
come from a stand-in for the endpoint of a managed identity, on this machine as well.
"""

import argparse
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sbpair.emulator import EmulatorThread
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import new_auth_rule
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.auth import ROOT_KEY_NAME, make_bearer_token
from sbpair.service import Tier
from tests.interop.judges.judging import leaves
from tests.interop.through import Gateways, gateway_before, pair_of

from .reporting import Kind, Reason, Summary, Verdict, load_reasons

MODULE = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
VERSION = "v1.11.0"
PACKAGES = {"data": ".", "management": "./admin", "links": "./internal"}
GATEWAY_REASONS = Path(__file__).with_name("reasons-go-gateway.toml")
SECONDARY = "backlog"
STANDARD, PREMIUM = "127.0.0.71", "127.0.0.72"
_TLS_PORT, _HTTPS_PORT = 5671, 443
_MINUTES = 15
_FURTHER_RULES: Mapping[str, frozenset[str]] = {
    "SEND_ONLY": frozenset({"Send"}),
    "LISTEN_ONLY": frozenset({"Listen"}),
    "NO_MANAGE": frozenset({"Send", "Listen"}),
}


def main() -> int:
    """0 if no test failed for an unknown reason, 1 if one did, 2 if they could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.live_suite.go", description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "sbpair-live-suite-go")
    parser.add_argument("-k", metavar="EXPRESSION", default="", help="only tests that match, as -run of go test")
    parser.add_argument("--gateway", action="store_true", help="through a gateway in front of each namespace")
    given = parser.parse_args()
    if shutil.which("go") is None:
        print("Go is not installed.", file=sys.stderr)
        return 2
    folder = _sources(given.cache)
    reasons = load_reasons(GATEWAY_REASONS) if given.gateway else []
    failures = 0
    try:
        with _namespaces(given.gateway) as environment:
            for name, package in PACKAGES.items():
                program = _built(folder, package, given.cache / f"{name}.test")
                summary = _run(name, program, folder / package, environment, given.k, reasons)
                failures += summary.failures
                print(f"\n{summary.text()}")
    except OSError as error:
        print(f"The ports {_TLS_PORT} and {_HTTPS_PORT} of {STANDARD} are not to be had: {error}", file=sys.stderr)
        return 2
    return 1 if failures else 0


def judged(group: str, output: Iterable[str], ended_well: bool, reasons: Iterable[Reason]) -> Summary:
    """What the lines of `go test -v` say. A test with tests inside is counted by those."""
    found = leaves(output)
    known = {reason.pattern: reason for reason in reasons}
    verdicts = []
    for name, outcome in found.items():
        reason = known.get(name)
        if outcome == "SKIP":
            verdicts.append(Verdict(name, Kind.SKIPPED, "the suite skips it"))
        elif outcome == "FAIL" and reason is not None:
            verdicts.append(Verdict(name, reason.kind, reason.sentence))
        elif outcome == "FAIL":
            verdicts.append(Verdict(name, Kind.UNKNOWN, "it failed"))
    passed = len(found) - len(verdicts)
    if not found or not ended_well:
        verdicts.append(Verdict(group, Kind.UNKNOWN, "the program ended before its tests"))
    return Summary(group, passed, tuple(verdicts))


def _sources(cache: Path) -> Path:
    """The module as it was released, in a folder that can be written."""
    folder = cache / VERSION
    if not folder.exists():
        told = _go(["mod", "download", "-json", f"{MODULE}@{VERSION}"], Path(tempfile.gettempdir()))
        shutil.copytree(json.loads(told)["Dir"], folder, copy_function=shutil.copyfile)
    return folder


def _built(folder: Path, package: str, program: Path) -> Path:
    if not program.exists():
        _go(["test", "-c", "-o", str(program), package], folder)
    return program


def _go(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(["go", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go {arguments[0]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def _run(
    name: str, program: Path, folder: Path, environment: Mapping[str, str], expression: str, reasons: list[Reason]
) -> Summary:
    command = [str(program), "-test.v", f"-test.timeout={_MINUTES}m", f"-test.run={expression}"]
    log = program.with_suffix(".log")
    with log.open("w") as output:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output, check=False)
    print(f"{name}: what the tests say is in {log}")
    return judged(name, log.read_text(errors="replace").splitlines(), done.returncode in (0, 1), reasons)


@contextmanager
def _namespaces(gateway: bool) -> Iterator[dict[str, str]]:
    """Both namespaces while the block runs, or gateways in their place; the environment that leads the tests there."""
    ports = {} if gateway else {"port": _TLS_PORT, "further_ports": (_HTTPS_PORT,)}
    configs = [
        NamespaceConfig("live", host=None if gateway else STANDARD, **ports),
        NamespaceConfig("premium", Tier.PREMIUM, host=None if gateway else PREMIUM, **ports),
        NamespaceConfig(SECONDARY, Tier.PREMIUM),
    ]
    with ExitStack() as stack:
        running = stack.enter_context(EmulatorThread(configs, tls_names=(STANDARD, PREMIUM)))
        endpoint = stack.enter_context(_identity_endpoint())
        keys = running.call(_furnish)
        if gateway:
            gateways = Gateways(running.ca_path)
            for name, host in (("live", STANDARD), ("premium", PREMIUM)):
                pair = pair_of(running, name, SECONDARY)
                there = gateway_before(running, pair, gateways, host=host, ports=(_TLS_PORT, _HTTPS_PORT))
                stack.enter_context(there)
        yield os.environ | {
            "AZURE_RECORD_MODE": "live",
            "SERVICEBUS_ENDPOINT": STANDARD,
            "SERVICEBUS_ENDPOINT_PREMIUM": PREMIUM,
            **{f"SERVICEBUS_CONNECTION_STRING{name}": text for name, text in keys.items()},
            "IDENTITY_ENDPOINT": endpoint,
            "IDENTITY_HEADER": "unused",
            "SSL_CERT_FILE": str(running.ca_path),
            "SSL_CERT_DIR": os.devnull,
        }


def _furnish(emulator: Emulator) -> dict[str, str]:
    """The entities that the tests expect, and connection strings by what their variables end with."""
    live, premium = emulator.namespace("live"), emulator.namespace("premium")
    live.create_queue("testQueue")
    live.create_queue("testQueueWithSessions", QueueDescription(requires_session=True))
    for name, rights in _FURTHER_RULES.items():
        live.set_auth_rule(new_auth_rule(name, rights))
    texts = {f"_{name}": _text(STANDARD, name, live.auth_rules[name].primary_key) for name in _FURTHER_RULES}
    texts[""] = _text(STANDARD, ROOT_KEY_NAME, live.auth_rules[ROOT_KEY_NAME].primary_key)
    texts["_PREMIUM"] = _text(PREMIUM, ROOT_KEY_NAME, premium.auth_rules[ROOT_KEY_NAME].primary_key)
    return texts


def _text(host: str, name: str, key: str) -> str:
    return f"Endpoint=sb://{host}/;SharedAccessKeyName={name};SharedAccessKey={key}"


class _Identity(http.server.BaseHTTPRequestHandler):
    """Answers as the endpoint of a managed identity does."""

    def do_GET(self) -> None:
        expires_at = int(time.time()) + 2 * 3600
        token = {"access_token": make_bearer_token(expires_at), "expires_on": str(expires_at), "token_type": "Bearer"}
        body = json.dumps(token).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests' own log is enough."""


@contextmanager
def _identity_endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Identity)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main())
