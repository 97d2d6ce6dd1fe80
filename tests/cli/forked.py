"""Runs `sbpair` in processes that are forked from one that has imported everything already.

A run of the command line is a process of its own, with its own home, environment, folder, streams and exit code; only
the interpreter's start and the imports, most of what a short command takes, are done once for all of them. What a test
wants to know of the start itself, of signals, of other encodings or of closed streams is asked of a process started
the usual way (`Sbpair.start`).
"""

import atexit
import contextlib
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
_MOST_REQUEST_BYTES = 4 * 1024 * 1024

# The side of the tests.


_PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys
words = sys.argv[1:]
if next((one for one in words if not one.startswith("-")), "") in ("pipeline", "demo", "emulator"):
    os.execv({python!r}, [{python!r}, "-m", "sbpair", *words])
door = socket.socket(socket.AF_UNIX)
door.connect({door!r})
said, theirs = socket.socketpair()
text = json.dumps(dict(arguments=words, code=None, env=dict(os.environ), cwd=os.getcwd())).encode()
socket.send_fds(door, [len(text).to_bytes(8, "big")], [0, 1, 2, theirs.fileno()])
door.sendall(text)
theirs.close()
lines = said.makefile("r")
process = int(lines.readline().split()[1])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(process, number))
code = int(lines.readline().split()[1])
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class ForkServer:
    """One server process for this test process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._door = socket.socket(socket.AF_UNIX)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def run(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str | None = None,
        timeout: float,
        code: str | None = None,
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `sbpair ARGUMENTS`, or of `python -c CODE ARGUMENTS`.

        Raises:
            subprocess.TimeoutExpired: it did not end in time, and was killed.
        """
        pipes = [os.pipe() for _ in range(3)]
        (in_read, in_write), (out_read, out_write), (err_read, err_write) = pipes
        try:
            status = self.fork({"arguments": list(arguments), "code": code}, env, cwd, [in_read, out_write, err_write])
        finally:
            for one in (in_read, out_write, err_write):
                os.close(one)
        with status:
            try:
                said = _exchange(in_write, (stdin or "").encode(), (out_read, err_read), timeout)
                status.settimeout(max(timeout, 1.0))
                ended = int(_line(status).removeprefix("ended "))
            except TimeoutError:
                _kill(status)
                raise subprocess.TimeoutExpired(["sbpair", *arguments], timeout) from None
        out, err = (one.decode("utf-8") for one in said)
        return ended, _with_plain_ends(out), _with_plain_ends(err)

    def fork(self, request: dict[str, Any], env: Mapping[str, str], cwd: Path, streams: Sequence[int]) -> socket.socket:
        """Where it is said that the process began and ended."""
        status, theirs = socket.socketpair()
        text = json.dumps({**request, "env": dict(env), "cwd": str(cwd)}).encode()
        with theirs, self._lock:
            socket.send_fds(self._started(), [len(text).to_bytes(8, "big")], [*streams, theirs.fileno()])
            self._started().sendall(text)
        return status

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._folder = tempfile.TemporaryDirectory(prefix="sbpair-")
            atexit.register(self._folder.cleanup)
            place, program = Path(self._folder.name) / "door", Path(self._folder.name) / "sbpair"
            self._door.bind(str(place))
            self._door.listen(100)
            program.write_text(_PROGRAM.format(python=sys.executable, door=str(place)), encoding="utf-8")
            program.chmod(0o700)
            ours, theirs = socket.socketpair()
            given = theirs.fileno(), self._door.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.cli.forked import serve; serve(*{given})"],
                pass_fds=given,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
            )
            theirs.close()
            ours.settimeout(LIMIT_SECONDS)
            self._socket = ours
            atexit.register(self.close)
        return self._socket

    def folder(self) -> Path:
        """A folder for PATH, where `sbpair` is a program that has the server fork one on its own streams, and passes
        signals and the exit code on. A shell starts that in a tenth of the time."""
        with self._lock:
            self._started()
        assert self._folder is not None
        return Path(self._folder.name)

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(LIMIT_SECONDS)
            self._socket = None


class Forked(subprocess.Popen[str]):
    """`sbpair ARGUMENTS`, forked and going on beside the test; its end is told by the server, whose child it is."""

    def _execute_child(  # type: ignore[override]
        self,
        arguments: Sequence[str],
        _executable: Any,
        _preexec: Any,
        _close: Any,
        _pass: Any,
        cwd: Path,
        env: Mapping[str, str],
        _startup: Any,
        _flags: Any,
        _shell: Any,
        *pipes_and_more: Any,
    ) -> None:
        pipes = pipes_and_more[:6]
        streams = pipes[0], pipes[3], pipes[5]
        assert -1 not in streams, "each stream is a pipe, a file or DEVNULL"
        self._status = SERVER.fork({"arguments": list(arguments), "code": None}, env, cwd, streams)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._said = ""
        self._hear()
        self.pid = int(self._said.splitlines()[0].removeprefix("began "))
        self._child_created = True

    def __del__(self, *_: Any, **__: Any) -> None:
        """The server reaps it. Nothing of it may stand among the processes that `subprocess` asks again at every start:
        its socket may be closed by then, and each start would fail."""

    def _hear(self) -> None:
        part = self._status.recv(4096).decode()
        if not part:
            raise RuntimeError(f"The fork server has gone: {self._said!r}")
        self._said += part
        _, *ended = self._said.splitlines()
        if ended:
            self._status.close()
            self.returncode = int(ended[0].removeprefix("ended "))

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._hear()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self._hear()
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


def _exchange(to: int, text: bytes, sources: Sequence[int], timeout: float) -> list[bytes]:
    """Write the text, read what comes from the sources until they end; all descriptors are closed.

    Raises:
        TimeoutError: not in time.
    """
    deadline = time.monotonic() + timeout
    said: dict[int, list[bytes]] = {source: [] for source in sources}
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        os.set_blocking(to, False)
        selector.register(to, selectors.EVENT_WRITE)
        try:
            while selector.get_map():
                if not (ready := selector.select(deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd == to:
                        with contextlib.suppress(BrokenPipeError):  # nobody reads what was given
                            text = text[os.write(to, text[:65536]) :] if text else b""
                            if text:
                                continue
                    elif chunk := os.read(key.fd, 65536):
                        said[key.fd].append(chunk)
                        continue
                    selector.unregister(key.fd)
                    os.close(key.fd)
        finally:
            for key in list(selector.get_map().values()):
                os.close(key.fd)
    return [b"".join(said[source]) for source in sources]


def _line(status: socket.socket) -> str:
    """The next line; a first one, `began PID`, is told apart from the last one, `ended CODE`."""
    text = ""
    while "ended" not in text or not text.endswith("\n"):
        part = status.recv(4096).decode()
        if not part:
            raise RuntimeError(f"The fork server has gone: {text!r}")
        text += part
    return text.strip().splitlines()[-1]


def _kill(status: socket.socket) -> None:
    status.settimeout(LIMIT_SECONDS)
    began = status.recv(4096).decode().splitlines()[0]
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(began.removeprefix("began ")), signal.SIGKILL)


def _with_plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# The side of the server: one thread, so that its copies begin in order.


def serve(descriptor: int, door_descriptor: int) -> None:
    """Fork a process for every request, until the other side has gone."""
    _import_everything()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the tests' terminal is theirs
    requests, door = socket.socket(fileno=descriptor), socket.socket(fileno=door_descriptor)
    callers: dict[socket.socket, int] = {}
    """Programs of `folder`, each with its process; one that is killed takes that along."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(door, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is door:
                    caller, _ = door.accept()
                    callers[caller] = 0
                    selector.register(caller, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    asks = key.fileobj
                    head, given, _, _ = socket.recv_fds(asks, 8, 4)
                    if not head and asks is requests:
                        return
                    if not head:
                        process = callers.pop(asks)
                        if any(process == one for one, _ in running.values()):
                            os.kill(process, signal.SIGKILL)
                        selector.unregister(asks)
                        asks.close()
                        continue
                    request = json.loads(_exactly(asks, int.from_bytes(head, "big")))
                    *streams, status_fd = given
                    foreign = [requests.fileno(), door.fileno(), *(one.fileno() for one in callers), *running]
                    process = _forked(request, streams, [*foreign, status_fd])
                    if asks in callers:
                        callers[asks] = process
                    status = socket.socket(fileno=status_fd)
                    with contextlib.suppress(OSError):
                        status.sendall(f"began {process}\n".encode())
                    watched = os.pidfd_open(process)
                    running[watched] = process, status
                    selector.register(watched, selectors.EVENT_READ)
                else:
                    process, status = running.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _, ended = os.waitpid(process, 0)
                    with status, contextlib.suppress(OSError):
                        status.sendall(f"ended {os.waitstatus_to_exitcode(ended)}\n".encode())


def _exactly(connection: socket.socket, size: int) -> bytes:
    assert size <= _MOST_REQUEST_BYTES, size
    parts = bytearray()
    while len(parts) < size:
        parts += connection.recv(size - len(parts))
    return bytes(parts)


_LATER = (
    "azure.core.rest._aiohttp",
    "azure.core.rest._http_response_impl_async",
    "azure.core.tracing.decorator_async",
    "azure.servicebus.aio.management",
    "encodings.utf_8_sig",
    "jinja2",
    "rich._emoji_codes",
    "typer._adapters",
    "typer._click.decorators",
)
"""What a command would import when it first needs it."""


def _import_everything() -> None:
    import gc
    import importlib
    import pkgutil

    import sbpair

    for name in _LATER:
        importlib.import_module(name)
    for one in pkgutil.walk_packages(sbpair.__path__, "sbpair."):
        if not one.name.startswith(("sbpair.pipeline", "sbpair.__main__")):
            importlib.import_module(one.name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def _forked(request: Any, streams: Sequence[int], foreign: Sequence[int]) -> int:
    """The id of a copy of this process that runs a command line on these streams."""
    process = os.fork()
    if process:
        for one in streams:
            os.close(one)
        return process
    try:
        for target, source in enumerate(streams):
            os.dup2(source, target)
        for one in (*streams, *foreign):
            os.close(one)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin, sys.stdout, sys.stderr = (_stream(number) for number in range(3))
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        sys.argv = ["sbpair", *request["arguments"]]
        if request["code"] is not None:
            exec(request["code"], {"__name__": "__main__"})
            _leave(0)
        from sbpair.cli.main import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        _leave(code)
    except BaseException:  # noqa: BLE001 - the copy must never go on as a second server
        import traceback

        traceback.print_exc()
        _leave(1)
    return 0


def _leave(code: int) -> None:
    """End as the interpreter would: threads end, what was registered for the end runs, what is buffered is written."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _stream(number: int) -> io.TextIOWrapper:
    mode = "rb" if number == 0 else "wb"
    buffer = open(number, mode, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(buffer, encoding="utf-8", line_buffering=number == 2)


SERVER = ForkServer()
FORKS = hasattr(os, "pidfd_open")
"""Elsewhere than on Linux every process starts the usual way."""


def can_fork(arguments: Sequence[str], more: Mapping[str, str]) -> bool:
    """Whether a forked process is as good as a fresh one for this command line: nothing is asked of the interpreter's
    own start, and no JVM, other namespace or demo has to be a child of it."""
    first = next((word for word in arguments if not word.startswith("-")), "")
    return (
        FORKS
        and first not in ("pipeline", "demo")
        and (first != "emulator" or "fault" in arguments)
        and not any(name.startswith(("PYTHON", "LC_", "LANG", "TERM", "COLUMNS", "PATH", "TZ")) for name in more)
    )
