"""The lossless wire: the one file that touches private parts of azure-servicebus (7.14 and later releases of 7).

The SDK makes the connection: DNS, TLS or WebSocket, SASL, claims, token refresh, the attach of the link, the request
and response of `$management`. Then this file takes over what crosses the connection, by attributes of these instances
only; nothing is patched for other users of the SDK in the process:

* `connection.listen` no longer reads the socket; it waits for news from the one task here that does. The SDK's own
  reader holds the lock that its writer needs, for up to 0.2 seconds at a time, which is why its concurrent settlements
  crawl. Its other code keeps working, several calls at once.
* `link._incoming_transfer` keeps the payload bytes of a message as they are. Nothing is decoded, so a message that the
  SDK cannot decode (char, decimal32, ...) is received like any other and cannot poison the receiver.
* `session._incoming_disposition` asks whose deliveries a disposition is about. The SDK shows it to the links of both
  directions, which count their deliveries apart: a refused settlement would refuse the request to `$management` that
  happens to have the same number.
* `link._incoming_flow` and `link._incoming_disposition` resolve futures. Sends and settlements are pipelined: written
  as fast as credit allows, confirmed in any order.

`self_test` proves on synthetic bytes that these hooks still take; a release that moved them is refused with a clear
message instead of altering messages, whatever its number. What only some features stand on is asked for by FEATURES:
where it is missing they are, each with a sentence, and the rest works.
"""

import asyncio
import copy
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from sbpair.amqp.encoding import encode
from sbpair.amqp.frames import FrameBuffer, FramingError, Outbox, ids_between, transfers, whole_transfer
from sbpair.amqp.performatives import (
    COORDINATOR,
    DECLARE,
    DISCHARGE,
    FLOW,
    TRANSACTIONAL_STATE,
    TRANSFER,
    accepted,
    perform,
    released,
    whole,
)
from sbpair.amqp.sections import PropertyField, Section
from sbpair.amqp.types import Described, Uint
from sbpair.azure import frames
from sbpair.azure.errors import WireError, translate
from sbpair.concurrency import end
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import (
    AuthenticationFailedError,
    Category,
    IncompatibleSdkError,
    ServiceError,
    UnknownServiceError,
)

IDLE_TIMEOUT_SECONDS = 60
"""Asked of the peer in the open frame: it sends an empty frame at half of this, so that silence means loss."""

DEFAULT_MAX_MESSAGE_BYTES = 256 * 1024
"""What every tier takes at least: for a link that names no limit."""

_SILENCE_SECONDS = 1.5 * IDLE_TIMEOUT_SECONDS
_HOUSEKEEPING_SECONDS = 2.0
_LISTEN_SECONDS = 1.0
"""A wait for frames ends with them and with a failure. Its own time limit it checks as often as this: the SDK
asks five times a second, which hundreds of receivers that wait for a session would feel."""
_GREETING_SECONDS = 15.0
"""Longest silence before the link is asked for; the answer to that may take long (the next available session)."""
_READ_BYTES = 1 << 18
_WRITE_BYTES = 1 << 18
_GOODBYE_SECONDS = 2.0
_ATTACHED = 3
_MAJOR_RELEASE = "7."
_HANDLE, _DELIVERY_ID, _DELIVERY_TAG, _SETTLED, _MORE, _ABORTED, _PAYLOAD = 0, 1, 2, 4, 5, 9, 11
_MAX_SERIAL = 1 << 32
_DECLARED, _COORDINATOR_CREDIT = "declared", 1000
_MOST_TRANSACTION_ID_BYTES = 64
"""The service's are 16 bytes; with a longer one there might be no room for a message in its frame."""
_UNSETTLED, _FIRST = 0, 0
_PROTOCOL_HEADER = ord("A")
_MAX_MESSAGE_BYTES = 1 << 27
"""Above the largest message of any tier (100 MB in Premium): one without end is not collected."""


@dataclass(slots=True, eq=False)
class WireDelivery:
    """One message as it came: its bytes and what settles it."""

    payload: bytes
    delivery_id: int
    tag: bytes


class Settling:
    """Deliveries that are being settled together; their answers are taken as they come.

    Args:
        delivery_ids: all of one link, and none of them being settled already.
    """

    def __init__(self, delivery_ids: Sequence[int]) -> None:
        self.open = set(delivery_ids)
        """Ids of those without an answer."""
        self.answered: list[tuple[int, Exception | None]] = []
        """Delivery id and error of those whose answer nobody has taken yet."""
        self._news = asyncio.Event()

    def answer(self, delivery_ids: Sequence[int], error: Exception | None) -> None:
        """The peer, or the end of the connection, decided about these of them."""
        self.open.difference_update(delivery_ids)
        self.answered += [(delivery_id, error) for delivery_id in delivery_ids]
        self._news.set()

    async def answers(self, until: float) -> list[tuple[int, Exception | None]]:
        """Take what was answered since the last call; waits until there is something. At `until`, of the loop's clock,
        whatever has no answer gets a TimeoutError: each delivery is answered once, also if both come together."""
        late: list[tuple[int, Exception | None]] = []
        try:
            async with asyncio.timeout_at(until):
                await self._news.wait()
        except TimeoutError:
            error = TimeoutError("the settlement was not confirmed in time")
            late = [(number, error) for number in sorted(self.open)]
        self._news.clear()
        answered, self.answered = self.answered, []
        return answered + late


@dataclass(slots=True, eq=False)
class Outgoing:
    """One transfer to be sent; `confirmed` is resolved by the peer's disposition."""

    payload: bytes
    message_format: int
    confirmed: "asyncio.Future[None]"
    state: Described | None = None
    """The delivery state that goes with it."""
    expected: str = "accepted"
    """The outcome that confirms it."""
    answer: Any = None
    """The delivery state that came back, as the SDK reads it."""
    written: bool = False
    answered: bool = False
    """The peer said what became of it; without that a written transfer may have arrived or not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of a `$management` request."""

    status: int
    value: Any
    condition: str | None
    description: str


class Wire:
    """One sender or receiver of the SDK whose connection is read and written by tasks of ours."""

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._client: Any = None
        self._connection: Any = None
        self._link: Any = None
        self._failure: Exception | None = None
        self._ready = False
        self._closing = False
        self._news = asyncio.Event()
        self._seen = 0
        self._told = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._heard_at = 0.0
        self._more_tokens: list[Any] = []
        """Of the entities of further links; the entity's own is the client's."""

    @property
    def failed(self) -> bool:
        """The link or its connection is gone; nothing more will come of this wire."""
        return self._failure is not None or self._closing

    def silent_for(self) -> float:
        """Seconds since the peer was last heard."""
        return time.monotonic() - self._heard_at

    def raise_if_failed(self) -> None:
        """Raise what ended the wire, if it has ended."""
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise WireError("amqp:socket-error", "The connection was closed.")

    async def open(self) -> None:
        """Connect, authenticate and attach. The caller bounds the time; cancellation leaves nothing behind.

        Raises:
            WireError, and what the operating system or the credential raises.
        """
        try:
            await self._open()
        except BaseException as error:
            await self.abort()
            if isinstance(error, Exception):
                raise _plain(error) from error
            raise
        self._ready = True

    async def _open(self) -> None:
        from azure.servicebus.aio import _async_utils

        authenticate: Any = _async_utils.create_authentication
        self._make_client(await authenticate(self._sdk))
        client = self._client = self._sdk._handler
        client._idle_timeout = IDLE_TIMEOUT_SECONDS
        await client.open_async()
        self._take_over(client)
        await self._before_the_link(client._session)
        while not await client.client_ready_async():
            self._raise_failure()
            if self._link is None and self.silent_for() > _GREETING_SECONDS:
                raise TimeoutError(f"The peer said nothing for {_GREETING_SECONDS:.0f} seconds.")
        self._raise_failure()
        if self._link is not None and self._link.get_state().value != _ATTACHED:
            raise WireError("amqp:link:detach-forced", "The link was not attached.")
        self._sdk._running = True

    def _make_client(self, authentication: Any) -> None:
        self._sdk._create_handler(authentication)

    def _take_over(self, client: Any) -> None:
        self._connection = client._connection
        self._connection.listen = self._listen
        _keep_status(client._cbs_authenticator)
        _part_dispositions(client._session)
        self._hook_next_link(client._session)
        self._heard_at = time.monotonic()
        for work in (self._read_loop(), self._write_loop(), self._keep_house()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    def _hook_next_link(self, session: Any) -> None:
        """The next link the SDK makes on the session is the entity's own; later ones are those of `$management`."""
        for maker in ("create_sender_link", "create_receiver_link"):
            setattr(session, maker, self._hooking(session, maker))

    def _hooking(self, session: Any, maker: str) -> Any:
        # An attribute of the instance hides the class's method. The first call takes both away again, so that the
        # links of `$cbs` and `$management`, which the SDK makes on the same session later, stay its own.
        def make(*arguments: Any, **options: Any) -> Any:
            for name in ("create_sender_link", "create_receiver_link"):
                delattr(session, name)
            self._link = getattr(session, maker)(*arguments, **options)
            self._hook(self._link)
            return self._link

        return make

    async def _before_the_link(self, session: Any) -> None:
        """What has to be on the session before the entity's link."""

    def _hook(self, link: Any) -> None:
        """Take over what comes in on the entity's link."""

    def _compose(self) -> bytes:
        """What is to be written now; empty when there is nothing or no leave to write it."""
        return b""

    def _give_up(self, error: Exception) -> None:
        """Fail everything that waits for the peer."""

    async def _read_loop(self) -> None:
        source = _Source(self._connection._transport)
        buffer = FrameBuffer(source.left_over())
        chunk = b""
        while True:
            for channel, body in buffer.feed(chunk):
                if not self._took(channel, body):
                    await self._process(channel, body)
            self._tell()
            chunk = await source.read()

    def _took(self, channel: int, body: memoryview) -> bool:
        """Whether a frame is dealt with here already: most are, on a link that receives."""
        return False

    async def _process(self, channel: int, body: memoryview) -> None:
        self._seen += 1
        if not body:
            return
        frame = (0, bytes(body)) if body[0] == _PROTOCOL_HEADER else _read_frame(body)
        await self._connection._process_incoming_frame(channel, frame)

    def _tell(self) -> None:
        """Frames were processed: check what became of connection and link, wake everybody who listens."""
        self._heard_at = time.monotonic()
        self._connection._last_frame_received_time = time.time()
        if not self._closing:
            self._check_alive()
        self._wake_listeners()

    def _wake_listeners(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _check_alive(self) -> None:
        connection = self._connection
        if connection._error is not None or not connection._can_read():
            self._fail(connection._error or WireError("amqp:connection:forced", "The peer closed the connection."))
        elif self._ready and self._link is not None and self._link.state.value != _ATTACHED:
            self._fail(self._link._error or WireError("amqp:link:detach-forced", "The link was detached."))

    async def _listen(self, wait: float | bool = False, batch: int = 1, **_: Any) -> None:
        """Stands in for the connection's `listen`: returns when frames came since the last call, or after a while."""
        self._raise_failure()
        if self._told == self._seen:
            news = self._news
            try:
                async with asyncio.timeout(_LISTEN_SECONDS):
                    await news.wait()
            except TimeoutError:
                return
        self._told = self._seen
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _write_loop(self) -> None:
        connection = self._connection
        while True:
            await self._wake.wait()
            self._wake.clear()
            while data := self._compose():
                connection._last_frame_sent_time = time.time()
                await connection._transport.write(data)

    async def _keep_house(self) -> None:
        """Heartbeats, token refresh, and the verdict on a silent peer."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            if time.monotonic() - self._heard_at > _SILENCE_SECONDS:
                raise WireError("amqp:socket-error", f"Nothing was heard for {_SILENCE_SECONDS:.0f} seconds.")
            await self._connection._get_remote_timeout(time.time())
            for authenticator in (self._client._cbs_authenticator, *self._more_tokens):
                if authenticator is not None:
                    await authenticator.handle_token()

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = _plain(error)
            self._give_up(self._failure)
            self._wake_listeners()

    async def request(self, operation: bytes, body: dict[str, Any], *, timeout_seconds: float) -> Answer:
        """One `$management` request on this connection.

        Raises:
            WireError: the link to `$management` was refused, or the connection is lost.
        """
        self.raise_if_failed()
        try:
            answer: Answer = await self._sdk._mgmt_request_response(
                operation, body, _as_answer, timeout=timeout_seconds
            )
        except Exception as error:
            raise self._management_error(error) from error
        return answer

    def _management_error(self, error: Exception) -> Exception:
        """The SDK reports a refused management link without its cause, and would keep the dead link: mend both. It also
        keeps the error of a refused request, and would raise it at every later one."""
        links = self._client._mgmt_links if self._client is not None else {}
        for operation in links.values():
            operation._mgmt_error = None
        for node, operation in list(links.items()):
            pair = operation._mgmt_link
            for link in (pair._request_link, pair._response_link):
                if link._error is not None:
                    del links[node]
                    return _plain(link._error)
        return _plain(error)

    def integer(self, value: int, width: str) -> Any:
        """An integer for a management body in the width the service wants: `long`, `uint` or `int`."""
        return _typed(width, value)

    def timestamp(self, milliseconds: int) -> Any:
        """A time for a management body, in milliseconds since 1970."""
        return _typed("timestamp", milliseconds)

    def array(self, items: Sequence[Any]) -> Any:
        return _typed("array", list(items))

    async def close(self) -> None:
        """Detach, wait for the peer to have seen everything sent so far, disconnect; bounded, never raises."""
        alive = self._ready and not self.failed
        self._closing = True
        try:
            if alive:
                # Whatever goes wrong in a farewell ends in the same place: the connection is dropped below.
                with suppress(Exception):
                    async with asyncio.timeout(_GOODBYE_SECONDS):
                        await self._say_goodbye()
                        await self._stop_tasks()
                        del self._connection.listen
                        await self._client.close_async()
        finally:
            await self.abort()

    async def _say_goodbye(self) -> None:
        while data := self._compose():
            await self._connection._transport.write(data)
        if self._link is None:
            return
        await self._link.detach(close=True)
        while self._link.state.name == "DETACH_SENT" and self._failure is None:
            await self._listen()

    async def _stop_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end(*tasks)

    async def abort(self) -> None:
        """Drop the connection at once."""
        self._closing = True
        await self._stop_tasks()
        self._give_up(self._failure or WireError("amqp:socket-error", "The connection was closed."))
        await _abort_transport(self._connection or getattr(self._client, "_connection", None))
        self._sdk._running = False


_CONNECTION_OPTIONS = (
    "custom_endpoint_address", "connection_verify", "ssl_context", "transport_type", "http_proxy", "socket_timeout",
    "use_tls",
)  # fmt: skip


class ManagementWire(Wire):
    """A connection without a link, for requests to `$management` alone: browsing needs no receiver, and an entity
    with sessions refuses one that names no session."""

    def _make_client(self, authentication: Any) -> None:
        if (lack := lacks(Feature.BROWSING)) is not None:
            raise WireError("amqp:not-implemented", lack)
        from azure.servicebus._pyamqp import aio

        make: Any = aio.AMQPClientAsync
        sdk, config = self._sdk, self._sdk._config
        sdk._handler = make(
            config.hostname,
            **{name: getattr(config, name) for name in _CONNECTION_OPTIONS},
            network_trace=config.logging_enable,
            keep_alive_interval=config.keep_alive,
            auth=authentication,
            properties=sdk._properties,
            retry_policy=sdk._error_policy,
            client_name=sdk._name,
        )

    def _hook_next_link(self, session: Any) -> None:
        """There is no link of the entity: what the SDK makes here are those of `$management`, which it minds itself."""


class SendingLink:
    """One link on which encoded messages are sent, many at once: credit, what waits for it, what waits for an answer.

    Args:
        post: says that there is something to be written.
    """

    def __init__(self, link: Any, connection: Any, post: Callable[[], None]) -> None:
        self._link = link
        self._connection = connection
        self._post = post
        self._credit = 0
        self._queue: deque[Outgoing] = deque()
        self._unconfirmed: dict[int, Outgoing] = {}
        link._incoming_flow = self._on_flow
        link._incoming_disposition = self._on_disposition

    @property
    def max_message_bytes(self) -> int:
        """What the link said it takes; if it said nothing, what every tier takes."""
        return self._link.remote_max_message_size or DEFAULT_MAX_MESSAGE_BYTES

    @property
    def max_batch_bytes(self) -> int | None:
        """The vendor's separate limit for batches, where the link names one."""
        told = (self._link.remote_properties or {}).get(b"com.microsoft:max-message-batch-size")
        return int(told) if told else None

    @property
    def ended(self) -> Exception | None:
        """Why the link is there no more; None as long as it is."""
        if self._link.state.value == _ATTACHED:
            return None
        error = self._link._error
        return WireError("amqp:link:detach-forced", "The link was detached.") if error is None else _plain(error)

    def send(
        self, payload: bytes, message_format: int, state: Described | None = None, *, expected: str = "accepted"
    ) -> Outgoing:
        """Queue one transfer; await its `confirmed`. Cancel that future to take it back if it is not written yet.

        Args:
            state: a delivery state to go with it: the transaction it belongs to.
            expected: the outcome that confirms it.
        """
        outgoing = Outgoing(payload, message_format, asyncio.get_running_loop().create_future(), state, expected)
        self._queue.append(outgoing)
        self._post()
        return outgoing

    async def _on_flow(self, frame: Sequence[Any]) -> None:
        # The peer's credit counts from the last delivery it has seen; what we have sent since is used up (AMQP 1.0
        # §2.6.7). A flow without a handle speaks of the session alone, and still may have opened its window.
        _, _, _, _, handle, delivery_count, link_credit, *_ = frame
        if handle is not None and link_credit is not None:
            self._credit = (delivery_count or 0) + link_credit - self._link.delivery_count
        self._post()

    def compose(self) -> bytes:
        """What is to be written now; empty when there is nothing or no leave to write it."""
        session, outbox = self._link._session, Outbox()
        while self._queue and outbox.size_bytes < _WRITE_BYTES:
            outgoing = self._queue[0]
            if outgoing.confirmed.done():
                self._queue.popleft()
                continue
            if self._credit <= 0 or session.remote_incoming_window <= 0:
                break
            self._queue.popleft()
            self._transfer(session, outbox, outgoing)
        return outbox.take()

    def _transfer(self, session: Any, outbox: Outbox, outgoing: Outgoing) -> None:
        link, payload, message_format = self._link, outgoing.payload, outgoing.message_format
        delivery_id, most = session.next_outgoing_id, self._connection._remote_max_frame_size - 8
        link.delivery_count = (link.delivery_count + 1) % _MAX_SERIAL
        tag, state = link.delivery_count.to_bytes(4), encode(outgoing.state)
        for head, part in transfers(
            link.handle, delivery_id, tag, message_format, payload, most, settled=False, state=state
        ):
            outbox.frame(session.channel, head, part)
            # The SDK gives deliveries the numbers of their first transfers.
            session.next_outgoing_id = (session.next_outgoing_id + 1) % _MAX_SERIAL
            session.remote_incoming_window -= 1
        self._credit -= 1
        outgoing.written = True
        self._unconfirmed[delivery_id] = outgoing

    async def _on_disposition(self, frame: Sequence[Any]) -> None:
        role_is_receiver, first, last, _, state, *_ = frame
        if not role_is_receiver:
            return
        for delivery_id in ids_between(self._unconfirmed, first, last):
            outgoing = self._unconfirmed.pop(delivery_id)
            outgoing.answered, outgoing.answer = True, state
            _resolve(outgoing.confirmed, _refusal(state, outgoing.expected))

    def give_up(self, error: Exception) -> None:
        """Fail everything that waits for the peer."""
        waiting = [*self._unconfirmed.values(), *self._queue]
        self._unconfirmed.clear()
        self._queue.clear()
        for outgoing in waiting:
            _resolve(outgoing.confirmed, error)


class SenderWire(Wire):
    """Sends encoded messages on one link."""

    def __init__(self, sdk: Any) -> None:
        super().__init__(sdk)
        self._sending: SendingLink | None = None

    @property
    def max_message_bytes(self) -> int:
        """As `SendingLink.max_message_bytes`."""
        return DEFAULT_MAX_MESSAGE_BYTES if self._sending is None else self._sending.max_message_bytes

    @property
    def max_batch_bytes(self) -> int | None:
        """The vendor's separate limit for batches, where the link names one."""
        return None if self._sending is None else self._sending.max_batch_bytes

    def send(self, payload: bytes, message_format: int) -> Outgoing:
        """As `SendingLink.send`."""
        self.raise_if_failed()
        if self._sending is None:
            raise WireError("amqp:link:detach-forced", "The link is not open.")
        return self._sending.send(payload, message_format)

    def _hook(self, link: Any) -> None:
        self._sending = SendingLink(link, self._connection, self._wake.set)

    def _compose(self) -> bytes:
        return b"" if self._sending is None else self._sending.compose()

    def _give_up(self, error: Exception) -> None:
        if self._sending is not None:
            self._sending.give_up(error)


@dataclass(slots=True)
class _Assembly:
    """Transfer frames of one delivery until the last has come."""

    delivery_id: int = 0
    tag: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    held_bytes: int = 0

    def add(self, part: bytes) -> None:
        self.held_bytes += len(part)
        if self.held_bytes > _MAX_MESSAGE_BYTES:
            raise WireError("amqp:link:message-size-exceeded", f"A message above {_MAX_MESSAGE_BYTES:,} bytes came in.")
        self.parts.append(part)


def _begun(delivery_id: Any, tag: Any) -> _Assembly:
    if not isinstance(delivery_id, int) or not isinstance(tag, bytes | None):
        raise WireError("amqp:connection:framing-error", "A transfer came in without the id or tag of its delivery.")
    return _Assembly(delivery_id, tag or b"")


_Told = Callable[[Sequence[int], Exception | None], None]
"""Told the ids of deliveries and the error, if there is one, with which the peer answered their settlement."""


class ReceiverWire(Wire):
    """Receives the bytes of messages under peek-lock and settles them, many at once."""

    def __init__(self, sdk: Any) -> None:
        super().__init__(sdk)
        self.arrived: deque[WireDelivery] = deque()
        self.arrival = asyncio.Event()
        self._assembly: _Assembly | None = None
        self._unsettled: dict[int, tuple[str, _Told]] = {}
        """By delivery id: the outcome that is expected, and who is told. What is settled together shares one entry."""
        self._outbox = Outbox()
        """Dispositions to be written."""
        self._credit_posted = False
        """The link's credit is to be told."""
        self._drained = asyncio.Event()
        self.session_renewed_until: float | None = None
        """Until when a renewal has prolonged the session's lock, UTC epoch seconds."""

    @property
    def session_id(self) -> str | None:
        """The session whose lock the link holds."""
        found = self._sdk._session_id
        return found if isinstance(found, str) else None

    @property
    def session_locked_until(self) -> float | None:
        """UTC epoch seconds."""
        if self.session_renewed_until is not None:
            return self.session_renewed_until
        session = self._sdk._session
        until = session.locked_until_utc if session is not None else None
        return until.timestamp() if until is not None else None

    @property
    def credit(self) -> int:
        """Messages the peer may still send unasked."""
        return int(self._link.current_link_credit)

    def grant(self, credit: int) -> None:
        """Let the peer send up to `credit` more messages from now on."""
        self._link.current_link_credit = credit
        self._credit_posted = True
        self._wake.set()

    async def drain(self, *, timeout_seconds: float) -> None:
        """Take the credit back and wait until the peer has sent what was under way."""
        if self.credit <= 0:
            return
        self._drained.clear()
        self._credit_posted = False  # what follows says it
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._link.flow(link_credit=0, drain=True, echo=True)
                await self._drained.wait()
        except TimeoutError:
            return

    def settle(self, delivery: WireDelivery, outcome: Described, expected: str) -> "asyncio.Future[None]":
        """Settle one delivery; the future is resolved by the peer's confirmation of the `expected` outcome. `outcome`
        may be one in a transaction (`amqp.performatives.in_transaction`)."""
        self.raise_if_failed()
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (before := self._unsettled.get(delivery.delivery_id)) is not None:
            _, answer = before
            answer([delivery.delivery_id], TimeoutError("its delivery is settled once more"))
        self._unsettled[delivery.delivery_id] = (expected, partial(_answered, confirmed))
        self._post(delivery.delivery_id, outcome, settled=False)
        return confirmed

    def settle_all(self, delivery_ids: Sequence[int], outcome: Described, expected: str) -> Settling:
        """Settle several in the same way."""
        self.raise_if_failed()
        settling = Settling(delivery_ids)
        self._unsettled |= dict.fromkeys(delivery_ids, (expected, settling.answer))
        for delivery_id in delivery_ids:
            self._post(delivery_id, outcome, settled=False)
        return settling

    def forget(self, settling: Settling) -> None:
        """No answer is waited for any more."""
        for delivery_id in settling.open:
            self._unsettled.pop(delivery_id, None)

    def release(self, deliveries: Sequence[WireDelivery]) -> None:
        """Give deliveries back without a failed delivery. Settled at once: the service does not confirm it, and a
        lock that is already gone comes to the same."""
        for delivery in deliveries:
            self._post(delivery.delivery_id, released(), settled=True)

    def _post(self, delivery_id: int, outcome: Described, *, settled: bool) -> None:
        self._outbox.disposition(self._link._session.channel, True, delivery_id, outcome, settled=settled)
        self._wake.set()

    def _hook(self, link: Any) -> None:
        link._incoming_transfer = self._on_transfer
        link._incoming_disposition = self._on_disposition
        link._incoming_flow = self._on_flow

    def _took(self, channel: int, body: memoryview) -> bool:
        """A message in one frame, on the entity's link: what the SDK's connection, session and this link's hook would
        do, in a fourth of the time. Whatever is not as usual is left to them."""
        link = self._link
        if link is None or self._assembly is not None or (found := whole_transfer(body)) is None:
            return False
        handle, delivery_id, tag, payload = found
        session = link._session
        if self._connection._incoming_endpoints.get(channel) is not session or session.incoming_window <= 1:
            return False
        if session._input_handles.get(handle) is not link:
            return False
        self._seen += 1
        session.next_incoming_id += 1
        session.remote_outgoing_window -= 1
        session.incoming_window -= 1
        self._take_in(WireDelivery(payload, delivery_id, tag))
        return True

    def _take_in(self, delivery: WireDelivery | None) -> None:
        """A delivery is complete, or None: was aborted, which has used up its credit like any other."""
        # The SDK's own handler would count these two; in its place we have to, or its next flow grants too little.
        self._link.delivery_count = (self._link.delivery_count + 1) % _MAX_SERIAL
        self._link.current_link_credit -= 1
        if delivery is not None:
            self.arrived.append(delivery)
            self.arrival.set()

    async def _on_transfer(self, frame: Sequence[Any]) -> None:
        if self._assembly is None:
            self._assembly = _begun(frame[_DELIVERY_ID], frame[_DELIVERY_TAG])
        assembly = self._assembly
        assembly.add(bytes(frame[_PAYLOAD]))
        if frame[_MORE] and not frame[_ABORTED]:
            return
        self._assembly = None
        payload = assembly.parts[0] if len(assembly.parts) == 1 else b"".join(assembly.parts)
        self._take_in(None if frame[_ABORTED] else WireDelivery(payload, assembly.delivery_id, assembly.tag))

    async def _on_flow(self, frame: Sequence[Any]) -> None:
        self._drained.set()

    async def _on_disposition(self, frame: Sequence[Any]) -> None:
        # The role is that of who writes. Without `settled` it is an outcome that the service has not decided yet; the
        # one that counts follows.
        # In a transaction the outcome is provisional until the commit, whatever is said of `settled`.
        role_is_receiver, first, last, settled, state, *_ = frame
        if role_is_receiver or not (settled or isinstance(state, list)):
            return
        together: dict[tuple[str, _Told], list[int]] = {}
        for delivery_id in ids_between(self._unsettled, first, last):
            together.setdefault(self._unsettled.pop(delivery_id), []).append(delivery_id)
        for (expected, answer), delivery_ids in together.items():
            if _refusal(state, expected) is None:
                answer(delivery_ids, None)
                continue
            for delivery_id in delivery_ids:
                answer([delivery_id], _refusal(state, expected))  # one for each, since each is raised

    def _compose(self) -> bytes:
        if self._credit_posted:
            self._credit_posted = False
            link, session = self._link, self._link._session
            numbers = (
                session.next_incoming_id,
                session.incoming_window,
                session.next_outgoing_id,
                session.outgoing_window,
            )
            values = (*numbers, link.handle, link.delivery_count, link.current_link_credit)
            # The SDK lets its serial numbers outgrow their 32 bits.
            self._outbox.frame(session.channel, perform(FLOW, [Uint(value % _MAX_SERIAL) for value in values]))
        return self._outbox.take()

    def _give_up(self, error: Exception) -> None:
        waiting = [(delivery_id, answer) for delivery_id, (_, answer) in self._unsettled.items()]
        self._unsettled.clear()
        for delivery_id, answer in waiting:
            answer([delivery_id], error)
        self.arrival.set()
        self._drained.set()


class CoordinatorLink:
    """The link to the transaction coordinator of a namespace (AMQP 1.0 §4.5)."""

    def __init__(self, link: SendingLink) -> None:
        self.link = link

    async def declare(self) -> bytes:
        """Begin a transaction; its id. The service ends it after 2 minutes, and when the link goes.

        Raises:
            WireError: the namespace begins none, or the connection is lost.
        """
        begun = self.link.send(frames.request_of(DECLARE, None), frames.MESSAGE_FORMAT, expected=_DECLARED)
        await begun.confirmed
        transaction_id = bytes(begun.answer[0])
        if len(transaction_id) > _MOST_TRANSACTION_ID_BYTES:
            raise WireError("amqp:decode-error", f"A transaction id of {len(transaction_id)} bytes came in.")
        return transaction_id

    def discharge(self, transaction_id: bytes, *, fail: bool) -> Outgoing:
        """Ask for the commit, or, with `fail`, for the roll-back; await its `confirmed`."""
        return self.link.send(frames.request_of(DISCHARGE, transaction_id, fail), frames.MESSAGE_FORMAT)


class Within(dict[str, Any]):
    """The body of a `$management` request that belongs to a transaction (`SendingWithin.request`)."""

    def __init__(self, transaction_id: bytes, body: dict[str, Any]) -> None:
        super().__init__(body)
        self.transaction_id = transaction_id


class _Transacting(Wire):
    """A connection with a link to the transaction coordinator.

    As the vendor's clients do it for transactions across entities: `$cbs` has a session of its own, everything else is
    on one other session, and the coordinator is attached before anything else there. The entity of the next link then
    is the one by which the service sends.
    """

    def __init__(self, sdk: Any) -> None:
        super().__init__(sdk)
        self._coordinator: CoordinatorLink | None = None

    @property
    def coordinator(self) -> CoordinatorLink:
        """There once the wire is open."""
        if self._coordinator is None:
            raise WireError("amqp:link:detach-forced", "The link to the transaction coordinator is not open.")
        return self._coordinator

    def _take_over(self, client: Any) -> None:
        if (lack := lacks(Feature.TRANSACTIONS)) is not None:
            raise WireError("amqp:not-implemented", lack)
        session = client._session = client._connection.create_session(
            incoming_window=client._incoming_window, outgoing_window=client._outgoing_window
        )
        session._outgoing_transfer = self._putting_into_transactions(session)
        super()._take_over(client)

    def _putting_into_transactions(self, session: Any) -> Any:
        """The session's own way to send requests to `$management`, with the transaction of a `Within`."""

        async def outgoing_transfer(delivery: Any, trace: Any) -> None:
            body = delivery.message.value
            if isinstance(body, Within):
                delivery.frame["state"] = _transactional_state(body.transaction_id)
            await type(session)._outgoing_transfer(session, delivery, trace)

        return outgoing_transfer

    async def _before_the_link(self, session: Any) -> None:
        await session.begin()
        target = _coordinator_target()
        self._coordinator = CoordinatorLink(await self._attach(session, None, target, _COORDINATOR_CREDIT))

    async def _attach(self, session: Any, address: Any, target: Any = None, credit: int | None = None) -> SendingLink:
        """Attach a further link for sending, and wait for the answer.

        Raises:
            WireError: it was refused.
        """
        # The hook that waits for the entity's own link sits on the instance: the class makes this one.
        link = type(session).create_sender_link(
            session, address, send_settle_mode=_UNSETTLED, rcv_settle_mode=_FIRST, link_credit=credit
        )
        link.target = link.target if target is None else target
        sending = SendingLink(link, self._connection, self._wake.set)
        await link.attach()
        while link.state.value != _ATTACHED:
            if link._error is not None:
                raise _plain(link._error)
            await self._listen()
        return sending

    def _compose(self) -> bytes:
        return super()._compose() + (b"" if self._coordinator is None else self._coordinator.link.compose())

    def _check_alive(self) -> None:
        super()._check_alive()
        if self._coordinator is not None and (ended := self._coordinator.link.ended) is not None:
            self._fail(ended)

    def _give_up(self, error: Exception) -> None:
        super()._give_up(error)
        if self._coordinator is not None:
            self._coordinator.link.give_up(error)


def _coordinator_target() -> Any:
    """The target of a link to the coordinator, in the form in which the SDK encodes targets."""
    from azure.servicebus._pyamqp.constants import FIELD
    from azure.servicebus._pyamqp.types import AMQPTypes

    class Target(NamedTuple):
        capabilities: list[bytes] | None = None

    target: Any = Target
    target._code = COORDINATOR
    target._definition = (FIELD("capabilities", AMQPTypes.symbol, False, None, True),)
    return target()


def _transactional_state(transaction_id: bytes) -> Any:
    """The state of a transfer in a transaction, in the form in which the SDK encodes states."""
    from azure.servicebus._pyamqp.constants import FIELD
    from azure.servicebus._pyamqp.types import AMQPTypes

    class DeclaredTransaction(NamedTuple):
        transaction_id: bytes

    state: Any = DeclaredTransaction
    state._code = TRANSACTIONAL_STATE
    state._definition = (FIELD("transaction_id", AMQPTypes.binary, True, None, False),)
    return state(transaction_id)


class CoordinatorWire(_Transacting, ManagementWire):
    """A connection that shows whether there are transactions, without a link to an entity."""


class SendingWithin(_Transacting):
    """A connection that also sends to other entities of the namespace, on the same session, so that a transaction can
    hold that and what else is done here.

    Args:
        make_sender: gives the SDK's sender for an entity, whose address and claims are used; it is never opened.
    """

    def __init__(self, sdk: Any, make_sender: Callable[[str], Any]) -> None:
        super().__init__(sdk)
        self._make_sender = make_sender
        self._outgoing: dict[str, SendingLink] = {}
        self._attaching = asyncio.Lock()

    async def sending_to(self, entity: str) -> SendingLink:
        """The link to an entity, opened at its first use and when it is gone.

        Raises:
            WireError: it was refused, or the connection is lost.
        """
        key = entity.lower()
        async with self._attaching:
            self.raise_if_failed()
            if (found := self._outgoing.get(key)) is None:
                sdk = self._make_sender(entity)
                try:
                    await self._claim(sdk)
                    found = self._outgoing[key] = await self._attach(self._client._session, sdk._entity_uri)
                except Exception as error:
                    raise _plain(error) from error
        return found

    async def _claim(self, sdk: Any) -> None:
        """Put the token for another entity, by the links to `$cbs` that are there."""
        from azure.servicebus.aio import _async_utils

        first = self._client._cbs_authenticator
        if first is None:
            return
        authenticate: Any = _async_utils.create_authentication
        authenticator = copy.copy(first)
        authenticator._auth = await authenticate(sdk)
        authenticator.auth_state = type(first.auth_state).IDLE
        _keep_status(authenticator)
        while not await authenticator.handle_token():
            await self._listen()
        self._more_tokens.append(authenticator)

    def _compose(self) -> bytes:
        return super()._compose() + b"".join(link.compose() for link in self._outgoing.values())

    def _check_alive(self) -> None:
        super()._check_alive()
        for entity, link in list(self._outgoing.items()):
            if (ended := link.ended) is not None:
                del self._outgoing[entity]
                link.give_up(ended)

    def _give_up(self, error: Exception) -> None:
        super()._give_up(error)
        for link in self._outgoing.values():
            link.give_up(error)


class TransactedWire(SendingWithin, ReceiverWire):
    """Receives messages, and sends to other entities."""


class RequestingWire(SendingWithin, ManagementWire):
    """Makes requests to `$management` of an entity, and sends to others."""


def _read_frame(body: memoryview) -> tuple[int, list[Any]]:
    """A performative's code and fields, as the SDK reads them; the payload of a transfer is the last field."""
    from azure.servicebus._pyamqp._decode import decode_frame

    end = frames.performative_end(body)
    code, fields = decode_frame(body[:end])
    fields = whole(code, fields)  # before 7.15 the SDK reads past the end where the last are left out
    if code == TRANSFER:
        fields[_PAYLOAD:] = [body[end:]]
    return code, fields


class _Source:
    """Reads what has arrived from the SDK's transport, whichever of its two kinds it is."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._reader = getattr(transport, "reader", None)

    def left_over(self) -> bytes:
        """Bytes the SDK read before it was interrupted in the middle of a frame."""
        data: bytes = self._transport._read_buffer.read()
        return data

    async def read(self) -> bytes:
        """Some bytes. Raises ConnectionError at the end of the stream."""
        if self._reader is not None:
            chunk: bytes = await self._reader.read(_READ_BYTES)
        else:
            try:
                chunk = await self._transport.sock.receive_bytes()
            except TypeError as error:
                raise ConnectionResetError("The peer closed the WebSocket.") from error
        if not chunk:
            raise ConnectionResetError("The peer closed the connection.")
        return chunk


async def _abort_transport(connection: Any) -> None:
    """Drop the socket under an SDK connection, whichever of its two transports it has."""
    transport = getattr(connection, "_transport", None)
    writer = getattr(transport, "writer", None)
    if writer is not None:
        writer.transport.abort()
    session = getattr(transport, "session", None)
    if session is not None and not session.closed:
        await session.close()


def _resolve(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()


def _answered(future: "asyncio.Future[None]", _: Sequence[int], error: Exception | None) -> None:
    _resolve(future, error)


def _refusal(state: Any, expected: str) -> Exception | None:
    """None if the peer applied the expected outcome, otherwise its error."""
    if isinstance(state, list):
        # The SDK has no names for the states of transactions and shows their fields: declared has the id alone,
        # a transactional state the id and an outcome (AMQP 1.0 §4.5).
        state = state[1] if len(state) > 1 else {_DECLARED: state}
    outcome = next(iter(state), None) if isinstance(state, dict) else None
    details = state.get("rejected") if isinstance(state, dict) else None
    error = details[0] if details else None
    if error:
        return WireError(_text(error[0]), _text(error[1]) if len(error) > 1 else "")
    if outcome == expected:
        return None
    return WireError("amqp:internal-error", f"The service answered `{outcome}` where `{expected}` was expected.")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value or "")


def _plain(error: Exception) -> Exception:
    """An exception of the SDK's AMQP layer as a WireError; any other as it is."""
    from azure.servicebus._pyamqp.error import AMQPException, TokenAuthFailure

    if isinstance(error, FramingError):
        return WireError("amqp:connection:framing-error", f"The answer is not AMQP: {error}")
    if isinstance(error, TokenAuthFailure):
        return WireError(None, _text(error.status_description), status=int(error.status_code or 401))
    if isinstance(error, AMQPException):
        condition = getattr(error.condition, "value", error.condition)
        cause = error.inner_error
        text = _text(error.description or error.message or (cause and str(cause)))
        return WireError(_text(condition), text)
    return error


def _keep_status(authenticator: Any) -> None:
    """Have the SDK keep the status of a refused token also where the peer names a condition beside it. It drops both
    then, and an entity that does not exist could not be told from a wrong key."""
    if authenticator is None or lacks(Feature.REFUSALS) is not None:
        return
    complete: Any = type(authenticator)._on_execute_operation_complete  # not that of one it was copied from

    async def completed(result: Any, status: int, description: str, answer: Any, _condition: str | None = None) -> None:
        await complete(authenticator, result, status, description, answer)

    authenticator._on_execute_operation_complete = completed


def _part_dispositions(session: Any) -> None:
    """Show a disposition only to links of the direction that it is about: the peer's role is the other one."""

    async def incoming(frame: Sequence[Any]) -> None:
        for link in list(session._input_handles.values()):
            if link.role is not frame[0]:
                await link._incoming_disposition(frame)

    session._incoming_disposition = incoming


def _typed(kind: str, value: Any) -> Any:
    """A value with its AMQP type, in the form in which the SDK encodes it."""
    from azure.servicebus._pyamqp.types import AMQPTypes

    return {"TYPE": getattr(AMQPTypes, kind), "VALUE": value}


def _as_answer(status: Any, response: Any, description: Any, **_: Any) -> Answer:
    properties = response.application_properties or {}
    condition = properties.get(b"errorCondition")
    return Answer(int(status), response.value, _text(condition) if condition else None, _text(description))


def make_sdk_sender(client: Any, entity: str) -> Any:
    """The SDK's sender for a queue or topic, without its keep-alive task (which would delay every close)."""
    return client.get_queue_sender(entity, keep_alive=0)


def make_sdk_receiver(
    client: Any, path: str, *, dead_letter: bool, session_id: str | None, next_session_seconds: float | None
) -> Any:
    """The SDK's receiver under peek-lock. `next_session_seconds` asks for the next available session."""
    from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue

    options: dict[str, Any] = {"prefetch_count": 1, "keep_alive": 0}
    if dead_letter:
        options["sub_queue"] = ServiceBusSubQueue.DEAD_LETTER
    if next_session_seconds is not None:
        options |= {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": next_session_seconds}
    elif session_id is not None:
        options["session_id"] = session_id
    topic, separator, subscription = path.partition("/Subscriptions/")
    if separator:
        return client.get_subscription_receiver(topic, subscription, **options)
    return client.get_queue_receiver(path, **options)


_tested = False


def self_test() -> None:
    """Prove once per process that the hooks above still take, on synthetic bytes.

    Raises:
        IncompatibleSdkError: the installed azure-servicebus has another major number, or its inside moved.
    """
    global _tested
    if _tested:
        return
    from azure.servicebus import __version__

    try:
        _test_release(__version__)
        _test_private_names()
        _run(_test_hooks())
    except (AttributeError, ImportError, TypeError, KeyError, IndexError, ValueError, AssertionError) as error:
        raise IncompatibleSdkError(
            f"azure-servicebus {__version__} does not let messages pass unaltered: {error}"
        ) from error
    _tested = True


def _test_release(version: str) -> None:
    if not version.startswith(_MAJOR_RELEASE):
        raise ValueError(f"this release of sbpair was made for azure-servicebus {_MAJOR_RELEASE}x")


def _test_private_names() -> None:
    from azure.servicebus._pyamqp.aio import ReceiveClientAsync, SendClientAsync
    from azure.servicebus._pyamqp.aio._connection_async import Connection
    from azure.servicebus._pyamqp.aio._session_async import Session
    from azure.servicebus._pyamqp.aio._transport_async import AsyncTransport
    from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
    from azure.servicebus.aio._async_utils import create_authentication

    wanted: list[tuple[Any, tuple[str, ...]]] = [
        (ServiceBusSender, ("_create_handler", "_mgmt_request_response")),
        (ServiceBusReceiver, ("_create_handler", "_mgmt_request_response")),
        (SendClientAsync, ("open_async", "client_ready_async", "close_async")),
        (ReceiveClientAsync, ("open_async", "client_ready_async", "close_async")),
        (Session, ("create_sender_link", "create_receiver_link")),
        (Connection, ("listen", "_process_incoming_frame", "_can_read", "_get_remote_timeout")),
        (AsyncTransport, ("write",)),
    ]
    _want(wanted)
    if not callable(create_authentication):
        raise AttributeError("it has no create_authentication")


def _want(wanted: Sequence[tuple[Any, tuple[str, ...]]]) -> None:
    missing = [f"{owner.__name__}.{name}" for owner, names in wanted for name in names if not hasattr(owner, name)]
    if missing:
        raise AttributeError(f"it has no {', '.join(missing)}")


async def _test_hooks() -> None:
    """A transfer with a char in it and a settlement, through the SDK's frame decoder and session, into the hooks."""
    from azure.servicebus._pyamqp.aio import _session_async

    make_session: Any = _session_async.Session
    session = make_session(None, 0, network_trace=False, network_trace_params={})
    session.next_incoming_id = 0
    session.incoming_window = 2
    receiver = ReceiverWire(None)
    _part_dispositions(session)
    receiver._hook_next_link(session)
    link = session.create_receiver_link("q", on_transfer=None, link_credit=1)
    session._input_handles[7] = link
    poison = b"\x00\x53\x77\x73\x00\x00\x00\x41"
    for head, payload in transfers(7, 5, b"tag!", frames.MESSAGE_FORMAT, poison, 4096, settled=False):
        body = memoryview(head + payload)
        performative, fields = _read_frame(body)
        if performative != TRANSFER or fields[_HANDLE] != 7 or fields[_SETTLED]:
            raise ValueError("its frame decoder reads a transfer differently")
        await session._incoming_transfer(fields)
    if [(one.payload, one.delivery_id, one.tag) for one in receiver.arrived] != [(poison, 5, b"tag!")]:
        raise ValueError("a received payload does not arrive as it was sent")
    _test_short_way(session, receiver, link, body)
    await _test_settlement(session, receiver)


def _test_short_way(session: Any, receiver: ReceiverWire, link: Any, body: memoryview) -> None:
    """The same frame once more, past the SDK: what it counts has to be counted alike."""
    receiver._connection = SimpleNamespace(_incoming_endpoints={0: session})
    before = session.next_incoming_id, link.delivery_count, link.current_link_credit
    session.incoming_window = 2
    if not receiver._took(0, body) or receiver.arrived[1].payload != receiver.arrived[0].payload:
        raise ValueError("a transfer in one frame is not what it was")
    after = session.next_incoming_id, link.delivery_count, link.current_link_credit
    if (session.incoming_window, *after) != (1, before[0] + 1, before[1] + 1, before[2] - 1):
        raise ValueError("its session counts transfers differently")
    receiver._connection = None


async def _test_settlement(session: Any, receiver: ReceiverWire) -> None:
    confirmed = receiver.settle(receiver.arrived[0], accepted(), "accepted")
    _, fields = _read_frame(next(FrameBuffer().feed(receiver._compose()))[1])
    fields[0] = False
    fields[3] = True
    await session._incoming_disposition(fields)
    if not confirmed.done() or confirmed.exception() is not None:
        raise ValueError("a settlement is not confirmed")


def _run(test: Coroutine[Any, Any, None]) -> None:
    """Drive a coroutine that never really waits, inside or outside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(test)
        return
    try:
        test.send(None)
    except StopIteration:
        return
    test.close()
    raise ValueError("it waits for the network where it did not before")


# What only some features stand on.


class Feature(StrEnum):
    """What works without the lossless passage, or on top of it. The value is the sentence for where it is missing."""

    FAILOVER = "the drop-in clients send without failover"
    TIME_LIMITS = "a drop-in client that connects to a silent primary may take longer than the timeout of its call"
    TRANSACTIONS = "messages move without transactions"
    BROWSING = "messages are browsed only where a link can be opened"
    REFUSALS = "an entity that does not exist may be reported as a refused key"


@cache
def lacks(feature: Feature) -> str | None:
    """What the installed azure-servicebus cannot do, and why, as a sentence; None: it can. Tried once per process."""
    from azure.servicebus import __version__

    try:
        _TESTS[feature]()
    except (AttributeError, ImportError, TypeError, KeyError, IndexError, ValueError) as error:
        return f"With azure-servicebus {__version__} {feature}: {error}."
    return None


def missing_features() -> tuple[str, ...]:
    """A sentence for each feature that the installed azure-servicebus has no parts for."""
    return tuple(lack for feature in Feature if (lack := lacks(feature)) is not None)


def _test_senders() -> None:
    """The senders that the drop-in clients stand before, and a message on its way through the SDK's encoding."""
    from azure.core.credentials import AzureNamedKeyCredential
    from azure.servicebus import ServiceBusMessage, ServiceBusSender
    from azure.servicebus.aio import ServiceBusSender as AsyncSender

    _want([(one, ("_do_retryable_operation", "_open", "_check_live")) for one in (ServiceBusSender, AsyncSender)])
    sender = ServiceBusSender("host", AzureNamedKeyCredential("name", "key"), queue_name="q")
    limits = ("_max_message_size_on_link", "_max_batch_size_on_link")
    for name in ("_handler", "_running", "_shutdown", "_amqp_transport", *limits):
        getattr(sender, name)
    batch = empty_batch(sender, None)
    batch.add_message(ServiceBusMessage(b"body", message_id="id"))
    for encoded in (encode_outgoing(ServiceBusMessage(b"body", message_id="id")), encode_outgoing(batch)):
        if len(encoded) != 1 or EncodedMessage(encoded[0]).field(Section.PROPERTIES, PropertyField.MESSAGE_ID) != "id":
            raise ValueError("its messages are encoded differently")


def _test_time_limits() -> None:
    if not _opens_within():
        raise ValueError("its senders open without a time limit")


def _test_transactions() -> None:
    from azure.servicebus._pyamqp.aio._connection_async import Connection
    from azure.servicebus._pyamqp.aio._session_async import Session

    _want([(Session, ("begin", "_outgoing_transfer")), (Connection, ("create_session",))])
    if _coordinator_target()._code != COORDINATOR or _transactional_state(b"1").transaction_id != b"1":
        raise ValueError("its states are made differently")


def _test_browsing() -> None:
    from azure.servicebus._pyamqp.aio import AMQPClientAsync

    _want([(AMQPClientAsync, ("open_async", "client_ready_async", "close_async", "mgmt_request_async"))])


def _test_refusals() -> None:
    from azure.servicebus._pyamqp.aio._cbs_async import CBSAuthenticator

    _want([(CBSAuthenticator, ("handle_token", "_on_execute_operation_complete"))])


_TESTS: dict[Feature, Callable[[], None]] = {
    Feature.FAILOVER: _test_senders,
    Feature.TIME_LIMITS: _test_time_limits,
    Feature.TRANSACTIONS: _test_transactions,
    Feature.BROWSING: _test_browsing,
    Feature.REFUSALS: _test_refusals,
}


# The inside of the SDK's own senders, for the clients that stand in for them (sbpair.clients).


def encode_outgoing(message: Any, sender: Any = None) -> list[bytes]:
    """The bytes of each message as the SDK's sender would send it: whatever `send_messages` takes, a batch included.

    Raises:
        TypeError, ValueError: what is no message for the SDK either.
        MessageSizeExceededError: a list that does not fit one batch of what is known of the `sender`'s link.
    """
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
    from azure.servicebus._common.utils import transform_outbound_messages
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    if isinstance(message, ServiceBusMessageBatch):
        # Its messages were encoded when they were added; what became of the objects since then is not sent.
        return [bytes(one) for one in message._message[_BATCH_DATA]]
    found = transform_outbound_messages(message, ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message)
    if isinstance(found, list) and sender is not None and knows_limits(sender):
        batch = empty_batch(sender, None)
        batch._from_list(found)
        return encode_outgoing(batch)
    return [bytes(PyamqpTransport.encode_message(one)) for one in (found if isinstance(found, list) else [found])]


_BATCH_DATA = 5


def encode_scheduled(messages: Any, schedule_time_utc: Any) -> list[bytes]:
    """The bytes of each message as the SDK's sender would schedule it.

    Raises:
        TypeError, ValueError: what is no message for the SDK either.
    """
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus._common.utils import transform_outbound_messages
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    found = transform_outbound_messages(messages, ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message)
    scheduled = found if isinstance(found, list) else [found]
    for one in scheduled:
        one.scheduled_enqueue_time_utc = schedule_time_utc
    return encode_outgoing(scheduled)


def knows_limits(sender: Any) -> int:
    """How many bytes a message may have on the sender's link; 0 if it has had none."""
    return int(sender._max_message_size_on_link or 0)


def open_within(sender: Any, seconds: float) -> None:
    """Open the sender's link as its context manager does, but in a bounded time. Raises what the SDK raises."""
    if not _opens_within():
        sender._do_retryable_operation(sender._open)
        return
    sender._do_retryable_operation(
        sender._open, timeout=seconds, operation_requires_timeout=True, apply_try_timeout=True
    )


def open_in_time(opening: Callable[[Any], None], sender: Any, seconds: float | None) -> None:
    """Open a synchronous sender's link in a thread, which works on a copy of the sender and is left behind once the
    time is over. The SDK waits without a limit for the first bytes of a peer that accepts connections and is silent.

    Raises:
        OperationTimeoutError: that of the SDK; and what the SDK raises.
    """
    from azure.servicebus.exceptions import OperationTimeoutError

    own, outcome = copy.copy(sender), Future[None]()
    forget_connection(sender)

    def run() -> None:
        error: BaseException | None = None
        try:
            opening(own)
        except BaseException as raised:  # noqa: BLE001 - raised where it is waited for
            error = raised
        if not outcome.set_running_or_notify_cancel():
            _close_quietly(own._handler)
        elif error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    threading.Thread(target=run, name="sbpair-open", daemon=True).start()
    try:
        wait([outcome], seconds)
    finally:
        late = outcome.cancel()
    if late:
        raise OperationTimeoutError(message=f"The link was not open within {seconds:.1f} seconds.")
    vars(sender).update(vars(own))
    outcome.result()


async def open_within_async(sender: Any, seconds: float) -> None:
    """The same for an asynchronous sender."""
    if not _opens_within():
        await _open_bounded(sender, seconds)
        return
    await sender._do_retryable_operation(
        sender._open, timeout=seconds, operation_requires_timeout=True, apply_try_timeout=True
    )


def _opens_within() -> bool:
    """The SDK's senders take a time limit for opening their links (7.15's do)."""
    from azure.servicebus import ServiceBusSender

    return "timeout" in inspect.signature(ServiceBusSender._open).parameters


async def _open_bounded(sender: Any, seconds: float) -> None:
    from azure.servicebus.exceptions import OperationTimeoutError

    try:
        async with asyncio.timeout(seconds):
            await sender._do_retryable_operation(sender._open)
    except TimeoutError as error:
        raise OperationTimeoutError(message=f"The link was not open within {seconds:.1f} seconds.") from error


def empty_batch(sender: Any, max_size_in_bytes: int | None) -> Any:
    """A batch of the size that a namespace of the Standard tier takes, without asking the service for its limit.

    Raises:
        ValueError: a wish above that.
    """
    from azure.servicebus import ServiceBusMessageBatch
    from azure.servicebus._common.constants import MAX_BATCH_SIZE_STANDARD

    limit = sender._max_batch_size_on_link or MAX_BATCH_SIZE_STANDARD
    if max_size_in_bytes and max_size_in_bytes > limit:
        raise ValueError(
            f"Max message size: {max_size_in_bytes} is too large, acceptable max batch size is: {limit} bytes."
        )
    return ServiceBusMessageBatch(max_size_in_bytes or limit, amqp_transport=sender._amqp_transport)


_SECRETS = ("named_key", "signature", "policy", "key", "token")


def secrets_of(credential: Any) -> tuple[Any, ...]:
    """What tells one credential of the SDK from another: its kind, and the key or signature that it holds. Those of
    Entra ID hold none that they would show."""
    return (type(credential).__qualname__, *(str(getattr(credential, name, None)) for name in _SECRETS))


def check_live(sender: Any) -> None:
    """Raise as the SDK's sender does once it was closed (ValueError)."""
    sender._check_live()


def is_closed(sender: Any) -> bool:
    """Whether the SDK's sender was closed, maybe while a call was under way."""
    try:
        sender._check_live()
    except ValueError:
        return True
    return False


def begin_close(sender: Any) -> None:
    """Have the SDK's sender refuse calls from now on. Its own `close` does so once the connection is closed."""
    sender._shutdown.set()


def forget_connection(sender: Any) -> object:
    """Make the SDK's sender connect again at its next call; gives what it had, which nobody may close.

    A child process keeps it: the connection belongs to the parent, and to close it here would end it there. Anyone
    else hands it to `close_forgotten`.
    """
    connection, sender._handler, sender._running = sender._handler, None, False
    return connection


def close_forgotten(connection: Any) -> None:
    """Close what `forget_connection` gave, in a thread, as the peer may be silent."""
    if connection is not None:
        threading.Thread(target=_close_quietly, args=(connection,), name="sbpair-close", daemon=True).start()


def _close_quietly(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


async def close_forgotten_async(connection: Any) -> None:
    """The same for an asynchronous sender; bounded."""
    amqp, keeps_alive = connection._connection, connection._keep_alive_thread
    with suppress(Exception):
        async with asyncio.timeout(_GOODBYE_SECONDS):
            await connection.close_async()
    await _abort_transport(amqp)
    if keeps_alive is not None:
        await end(keeps_alive)


_LINK_STAYS = frozenset({Category.ARGUMENT, Category.TOO_LARGE, Category.BUSY, Category.QUOTA})


def leaves_link(error: BaseException) -> bool:
    """Whether a sender's link is good for the next call after this one ended so: the service answered on it, or the
    call never came to use it. A cancelled call may have left half a frame behind."""
    if isinstance(error, TypeError | ValueError):
        return True
    return isinstance(error, Exception) and translate_sdk_error(error, "send", "").category in _LINK_STAYS


_CLIENT_SIDE = "amqp:client-error"
"""What the SDK's AMQP layer says of a transfer that its own side ended: the connection was not there, or went."""


def translate_sdk_error(error: BaseException, tried: str, entity: str) -> ServiceError:
    """The ServiceError for what an SDK's sender raised, which says less in its class than in what it was made from."""
    translated = translate(error, tried, entity)
    if isinstance(translated, UnknownServiceError | AuthenticationFailedError):
        # A link to an entity that does not exist fails with its token, and an AMQP error without a class of the SDK's
        # own comes as the base of all: what either was made from says more.
        inner = getattr(error, "inner_exception", None) or error.__cause__
        condition = _text(getattr(error, "_condition", None)) or None
        if condition == _CLIENT_SIDE and isinstance(translated, UnknownServiceError):
            condition = "amqp:socket-error"
        candidates = [_plain(inner)] if isinstance(inner, Exception) else []
        candidates += [WireError(condition, str(error))] if condition else []
        if isinstance(inner, LookupError | AttributeError | TypeError):  # its own link was no longer there
            candidates.append(WireError("amqp:socket-error", str(error)))
        said = (translate(one, tried, entity) for one in candidates)
        translated = next((one for one in said if not isinstance(one, UnknownServiceError)), translated)
    translated.__cause__ = error
    return translated
