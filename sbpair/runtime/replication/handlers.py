"""What processes a replicated message: a callable of the application, or a command.

A handler that returns has done its work. One that raises `RetryLater` asks for the message again later; anything else
it raises is a failed attempt. Of a command the exit code decides: 0 done, 75 (EX_TEMPFAIL of sysexits.h) again later,
anything else failed.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.sections import Section
from sbpair.amqp.types import AmqpError
from sbpair.core.errors import UsageError
from sbpair.core.summary import describe, plain

RETRY_LATER_CODE = 75
MAX_OUTPUT_BYTES = 2_000
_DATA = frozenset({Section.DATA})
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to process, and what is known about this attempt."""

    payload: bytes
    """The encoded message, broker annotations included."""
    session_id: str
    message_id: str
    place: str
    """`stream:number`, its place in the session."""
    region: str
    """The side it was received on."""
    attempt: int
    fence: int
    """Grows with every start in the session: a store that refuses smaller ones is safe from owners left behind."""
    delivery_count: int

    @property
    def body(self) -> bytes:
        """The data sections joined. Of a body of another kind, its encoded sections."""
        try:
            spans = sections.scan(self.payload)
            data = [sections.read_span(self.payload, span) for span in spans if span.section in _DATA]
        except AmqpError as error:
            raise ValueError(f"The message cannot be read: {error}") from error
        if data:
            return b"".join(bytes(part) for part in data)
        return b"".join(
            self.payload[span.start : span.end] for span in spans if span.section in (Section.SEQUENCE, Section.VALUE)
        )

    @property
    def application_properties(self) -> dict[str, Any]:
        return describe(self.payload).application_properties


class RetryLater(Exception):
    """Raised by a handler: not now. No attempt is counted. `seconds`: not before; None leaves it to the consumer."""

    def __init__(self, why: str = "", *, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


class HandlerFailed(Exception):
    """Raised by a handler for a failed attempt; any other exception does as well, with its text as the reason."""


Handler = Callable[[Delivery], Awaitable[None]]


class CommandHandler:
    """Runs a command per message: body on stdin, the rest in environment variables SBPAIR_...

    The command is killed with all its children when it takes too long, when the lease is lost, and on Linux also when
    the consumer itself dies: another region must not find it still at work.

    Raises:
        UsageError: no command, or a time-out of 0 or less.
    """

    def __init__(self, command: Sequence[str], *, timeout_seconds: float, environ: Mapping[str, str]) -> None:
        if not command:
            raise UsageError("There is no command to run.")
        if timeout_seconds <= 0:
            raise UsageError("The handler's time-out is longer than 0 s.")
        self._command = tuple(command)
        self._timeout_seconds = timeout_seconds
        self._environ = dict(environ)
        self._dies_with_parent = _death_signal()

    async def __call__(self, delivery: Delivery) -> None:
        process = await self._start(delivery)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                said, complained = await process.communicate(delivery.body)
        except TimeoutError:
            raise HandlerFailed(f"{self._command[0]} took longer than {self._timeout_seconds:g} s.") from None
        finally:
            await _kill_group(process)
        if process.returncode == 0:
            return
        told = _tail(complained) or _tail(said)
        if process.returncode == RETRY_LATER_CODE:
            raise RetryLater(told)
        raise HandlerFailed(f"{self._command[0]} ended with {process.returncode}. {told}".strip())

    async def _start(self, delivery: Delivery) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ | environment_of(delivery),
                start_new_session=True,
                preexec_fn=self._dies_with_parent,
            )
        except OSError as error:
            raise HandlerFailed(f"{self._command[0]} cannot be run: {error}") from error


def environment_of(delivery: Delivery) -> dict[str, str]:
    """What a command is told beside the body. Application properties come as SBPAIR_PROPERTY_NAME, in JSON's spelling
    of numbers and booleans; letters of the name that a variable cannot have become underscores. No variable can hold a
    null character; it is left out."""
    summary = describe(delivery.payload)
    known = {
        "SBPAIR_SESSION_ID": delivery.session_id,
        "SBPAIR_MESSAGE_ID": delivery.message_id,
        "SBPAIR_PLACE": delivery.place,
        "SBPAIR_REGION": delivery.region,
        "SBPAIR_ATTEMPT": str(delivery.attempt),
        "SBPAIR_FENCE": str(delivery.fence),
        "SBPAIR_DELIVERY_COUNT": str(delivery.delivery_count),
        "SBPAIR_SUBJECT": summary.subject or "",
        "SBPAIR_CONTENT_TYPE": summary.content_type or "",
        "SBPAIR_CORRELATION_ID": summary.correlation_id or "",
    }
    for name, value in summary.application_properties.items():
        letters = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
        shown = plain(value)
        text = {True: "true", False: "false", None: ""}.get(shown) if isinstance(shown, bool | None) else str(shown)
        known[f"SBPAIR_PROPERTY_{letters.upper()}"] = text or ""
    return {name: value.replace("\0", "") for name, value in known.items()}


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Nothing of the command outlives its attempt."""
    with suppress(ProcessLookupError, PermissionError):  # the group is gone with its last process
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _death_signal() -> Callable[[], None] | None:
    """What a child calls to be killed with its parent, on Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between the fork and the wish: nobody would tell us any more
            os._exit(RETRY_LATER_CODE)

    return ask


def _tail(output: bytes) -> str:
    return " ".join(output[-MAX_OUTPUT_BYTES:].decode(errors="replace").split())


# What the command may know of this process.

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR"),
    *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP", "TMP"),
)
"""Of Unix; of Windows."""


def inherited(environ: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """What the command gets of this process' environment: what says who and where it is, and the variables that were
    named. Connection strings and tokens of the others stay here: the command works on what strangers have sent.

    Raises:
        UsageError: a variable was named that is not set.
    """
    for name in named:
        if name not in environ:
            raise UsageError(f"--exec-env {name}: there is no such variable in the environment.")
    wanted = {*INHERITED, *named}
    return {name: value for name, value in environ.items() if name in wanted or name.startswith("LC_")}


def hide_environment() -> None:
    """On Linux, keep other processes of this user, the command among them, from reading this process' environment and
    memory by way of /proc (prctl(2), PR_SET_DUMPABLE). One with CAP_SYS_PTRACE, such as root's, still may."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
