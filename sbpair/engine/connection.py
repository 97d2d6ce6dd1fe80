"""One AMQP connection: headers, SASL, open and close, heartbeats, and the way of each frame to its session.

Bytes come in by `receive`, and are read a slice of time at a stretch (`budgets`); bytes go out through a `Transport`,
one write per turn of the loop. Tolerant on purpose where the Python SDK needs it: frames on unknown channels and for
links that are gone are ignored, transfers are never refused for want of credit, delivery-ids may come in any order.
"""

import asyncio
import hmac
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.frames import AMQP_FRAME, MIN_MAX_FRAME_SIZE, SASL_FRAME, FramingError, Outbox, read_header
from sbpair.amqp.performatives import (
    BEGIN,
    CLOSE,
    END,
    OPEN,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    Fields,
    perform,
    read_performative,
)
from sbpair.amqp.types import AmqpDecodeError, AmqpError, Array, Symbol, Ubyte, Uint, Ushort
from sbpair.engine.auth import LISTEN, SEND, Claims, claims_for, rights_for
from sbpair.engine.budgets import (
    BUSY_SECONDS,
    MAX_LINKS_BEFORE_TOKEN,
    MAX_LINKS_PER_CONNECTION,
    MAX_PERFORMATIVE_BYTES,
    MAX_PERFORMATIVE_BYTES_BEFORE_TOKEN,
    MAX_SESSIONS_BEFORE_TOKEN,
    MAX_TOKENS_PER_CONNECTION,
    ClientBudget,
    Memory,
    Turns,
)
from sbpair.engine.clock import Timer
from sbpair.engine.errors import error
from sbpair.engine.link import AttachService, Link, LinkState, NamespaceView
from sbpair.engine.replies import CbsNode
from sbpair.engine.session import Session, SessionError

if TYPE_CHECKING:
    from sbpair.engine.wire import ServerWire

# SASL mechanisms as the service offers them (AMQP 1.0 §5.3).
#
# ANONYMOUS, EXTERNAL and MSSBCBS let everybody in; what they may do is decided by tokens put to `$cbs`. PLAIN brings a
# key's name and the key itself, which must be one of the namespace's.

MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")


def sasl_claims(namespace: NamespaceView, mechanism: str, response: bytes) -> list[Claims] | None:
    """What the client may do by its SASL login alone; None when the login fails."""
    if mechanism == "PLAIN":
        return _plain_claims(namespace, response)
    return [] if mechanism in MECHANISMS else None


def _plain_claims(namespace: NamespaceView, response: bytes) -> list[Claims] | None:
    parts = response.split(b"\x00")
    if len(parts) != 3:
        return None
    key_name = parts[1].decode("utf-8", "replace")
    for signer in namespace.signers(""):
        matches = [key for key in signer.keys if hmac.compare_digest(key.encode(), parts[2])]
        if signer.rule.name == key_name and matches:
            return [Claims("", signer.rights, float("inf"), key_name, signer.entity, matches[0])]
    return None


MAX_FRAME_SIZE: Final = 65536
CHANNEL_MAX: Final = 4999
IDLE_TIMEOUT_SECONDS: Final = 240.0
HANDSHAKE_SECONDS: Final = 60.0
MANAGEMENT_SUFFIX: Final = "/$management"
CLOSE_GRACE_SECONDS: Final = 5.0
FLUSH_BYTES: Final = 256 * 1024
"""So much is not kept until the end of the turn: the transport has to get the chance to say that it is full."""

_SYMBOL_8: Final = 0xA3

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"


class Input:
    """What has come of a client: read a slice of time at a stretch, with the work that its frames begin."""

    def __init__(
        self,
        connection: "Connection",
        transport: "ServerWire",
        turns: Turns,
        on_header: Callable[[bytes], None],
        on_frame: Callable[[int, int, bytes], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.last_received = self._loop.time()
        self.header_due = True
        self.work: Iterator[None] | None = None
        self.work_channel = 0
        self._connection = connection
        self._transport = transport
        self._turns = turns
        self._on_header = on_header
        self._on_frame = on_frame
        self._rest = b""
        self._over = self._ended = self._in_line = False
        self._busy_until = 0.0

    def receive(self, data: bytes) -> None:
        """Bytes from the client, cut anywhere."""
        now = self.last_received = self._loop.time()
        if self._over:
            return
        if self._in_line or now < self._busy_until:
            self._keep(self._rest + data if self._rest else data)
            self._line_up()
        elif self._read_slice(self._rest + data if self._rest else data):
            self._line_up()

    def read_on(self) -> bool:
        """Its turn has come: read for another slice. Whether there is still more."""
        if not self._over and self._read_slice(self._rest):
            return True
        self._in_line = False
        if self._ended:
            self._connection.lost()
        elif not self._over:
            self._transport.resume_reading()
        return False

    def end(self) -> None:
        """The client has gone. What has come of it before is still read."""
        if self._in_line:
            self._ended = True
        else:
            self._connection.lost()

    def stop(self) -> None:
        """Read nothing more."""
        self._over = True
        self.work = None
        self._rest = b""

    def _line_up(self) -> None:
        self._busy_until = self._loop.time() + BUSY_SECONDS
        if not self._in_line:
            self._in_line = True
            self._transport.pause_reading()
            self._turns.add(self)

    def _read_slice(self, buffer: bytes) -> bool:
        """Read for one slice of time; whether there is more that could be read at once."""
        connection = self._connection
        connection.gather_answers()
        try:
            return self._read(buffer, self._loop.time() + connection.budget.slice_seconds)
        except FramingError as failure:
            connection.fail("amqp:connection:framing-error", str(failure))
        except AmqpError as failure:
            connection.fail("amqp:decode-error", str(failure))
        except BaseException:
            connection.abort()
            raise
        finally:
            connection.write_answers()
        return False

    def _read(self, buffer: bytes, until: float) -> bool:
        offset, end, time = 0, len(buffer), self._loop.time
        more = False
        while not self._over:
            if self.work is not None and not self._finish_work(until):
                more = True
                break
            if end - offset < 8:
                break
            if self.header_due:
                self.header_due = False
                self._on_header(buffer[offset : offset + 8])
                offset += 8
                continue
            size, start, kind, channel = read_header(buffer, offset, MAX_FRAME_SIZE)
            if end - offset < size:
                break
            if time() >= until:
                more = True
                break
            if size > start:
                self._on_frame(kind, channel, buffer[offset + start : offset + size])
            offset += size
        if not self._over:
            self._keep(buffer[offset:] if offset < end else b"")
        return more

    def _finish_work(self, until: float) -> bool:
        """Go on with what a frame has begun; whether it is finished."""
        time = self._loop.time
        try:
            for _ in self.work or () if self._connection.has_session(self.work_channel) else ():
                if time() >= until:
                    return False
        except SessionError as failure:
            self._connection.end_session(self.work_channel, failure)
        self.work = None
        return True

    def _keep(self, rest: bytes) -> None:
        """Keep what has come of the client and cannot be read yet."""
        more = len(rest) - len(self._rest)
        self._rest = rest
        if more < 0:
            self._connection.budget.release(-more)
        elif more:
            self._connection.budget.hold(more)


class TokenWatch:
    """What the tokens of a client allow, by lower-case entity path; the newest for a path counts. Links outlive their
    token only by a renewed one, and the key that it was signed with not at all."""

    def __init__(self, namespace: NamespaceView, links: Callable[[], list[Link]]) -> None:
        self.namespace = namespace
        self.claims: dict[str, Claims] = {}
        self._links = links
        self._expiry: Timer | None = None
        self._watched_until = float("inf")
        """When the first of them runs out, if it is not renewed until then."""
        namespace.key_watchers.add(self._keys_changed)

    def add(self, claims: Claims) -> None:
        """A token was accepted."""
        self.claims[claims.path] = claims
        # What the others have is not looked at, so that a token costs the same, however many there are.
        if self.namespace.clock.client_now() < claims.expires_at < self._watched_until:
            self._watch(claims.expires_at)

    def close(self) -> None:
        """The connection is gone."""
        self.namespace.key_watchers.discard(self._keys_changed)
        if self._expiry is not None:
            self._expiry.cancel()

    def _watch(self, until: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._watched_until, clock = until, self.namespace.clock
        if until < float("inf"):
            self._expiry = clock.call_at(clock.now() + until - clock.client_now(), self._expire)

    def _keys_changed(self) -> None:
        """A rule or a key has changed: links that stood on one that is gone go, as at the end of a token."""
        for link in self._links() if any(claims.key for claims in self.claims.values()) else ():
            if link.is_cbs or link.state is LinkState.DETACHING:
                continue
            own = {SEND} if link.client_sends else {LISTEN}
            needed = {SEND, LISTEN} if link.address.lower().endswith(MANAGEMENT_SUFFIX) else own
            if not rights_for(self, link.address) & needed:
                link.force_off("amqp:unauthorized-access", "InvalidSignature: The key of the token is gone.")

    def _expire(self) -> None:
        """A token has run out: its links go, as the service sends them away."""
        self._expiry = None
        now = self.namespace.clock.client_now()
        for link in self._links():
            claims = None if link.is_cbs else claims_for(self, link.address)
            if claims is not None and claims.expires_at <= now and link.state is not LinkState.DETACHING:
                link.force_off("amqp:unauthorized-access", "ExpiredToken: The token is expired.")
        due = (claims.expires_at for claims in self.claims.values() if claims.expires_at > now)
        self._watch(min(due, default=float("inf")))


class Connection:
    """One client's connection to one namespace. `claims` are what its tokens allow, by lower-case entity path; `budget`
    is what it may hold and compute."""

    product = "sbpair"

    def __init__(
        self,
        namespace: NamespaceView,
        service: AttachService,
        transport: "ServerWire",
        *,
        memory: Memory | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`memory` and `turns` are those of all connections of an emulator; by default it has its own."""
        self.namespace = namespace
        self.id = uuid.uuid4().hex
        self.tokens = TokenWatch(namespace, self.links)
        self.claims = self.tokens.claims
        self.write_paused = False
        self.budget = ClientBudget(self, Memory() if memory is None else memory)
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self.outbox = Outbox()
        self._service = service
        self._transport = transport
        self._link_count = 0
        self._cbs = CbsNode(self)
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[int, Session] = {}
        self._addresses: tuple[str, ...] | None = None
        self._sasl = False
        self._opened = False
        self._close_sent = False
        self._shut = False
        self._lost = False
        self._flush_due = False
        self._input = Input(self, transport, Turns() if turns is None else turns, self._on_header, self._on_frame)
        self._watch: asyncio.TimerHandle | None = self._loop.call_later(HANDSHAKE_SECONDS, self._check_alive)
        self._heartbeat: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._trace = None if namespace.trace is None else namespace.trace.of_connection()

    # -- from the transport

    def receive(self, data: bytes) -> None:
        """Bytes from the client, cut anywhere."""
        self._input.receive(data)

    def ended(self) -> None:
        """The client has gone. What has come of it before is still read."""
        self._input.end()

    def lost(self) -> None:
        """The transport is gone, and everything with it."""
        if self._lost:
            return
        self._lost = True
        self.tokens.close()
        if self.namespace.throttling is not None:
            self.namespace.throttling.disconnected(self.id)
        for timer in (self._watch, self._heartbeat, self._closing):
            if timer is not None:
                timer.cancel()
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            session.end(True)
        self._input.stop()
        self.budget.end()

    def pause(self) -> None:
        """The transport is full: no more deliveries for now."""
        self.write_paused = True

    def resume(self) -> None:
        """The transport takes bytes again."""
        self.write_paused = False
        for session in list(self._sessions.values()):
            session.wake_links()

    # -- for sessions and the server

    @property
    def addresses(self) -> tuple[str, ...]:
        """The entity paths of all links."""
        if self._addresses is None:
            self._addresses = tuple({link.address for link in self.links()})
        return self._addresses

    def links(self) -> list[Link]:
        return [link for session in self._sessions.values() for link in session.links.values()]

    @property
    def links_left(self) -> int:
        """How many more links the client may open."""
        most = MAX_LINKS_PER_CONNECTION if self.budget.has_right else MAX_LINKS_BEFORE_TOKEN
        return most - self._link_count

    def links_changed(self, by: int) -> None:
        """There are that many links more (or less) than before."""
        self._link_count += by
        self._addresses = None

    @property
    def is_closing(self) -> bool:
        """Whether nothing of the client is served any more."""
        return self._close_sent or self._shut or self._lost

    def has_session(self, channel: int) -> bool:
        return channel in self._sessions

    def gather_answers(self) -> None:
        """What is answered from now on waits for `write_answers`, which follows in the same turn of the loop."""
        self._flush_due = True

    def write_answers(self) -> None:
        self._flush_due = False
        self._flush()

    def schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.write_answers)
        if self.outbox.size_bytes > FLUSH_BYTES:
            self._flush()

    def attach(self, link: Link) -> None:
        """Find who answers for a new link's address."""
        if link.is_dynamic:
            link.reject("amqp:not-implemented", "Dynamic nodes are not supported.")
        elif link.is_cbs:
            link.handler = self._cbs.attach(link)
        elif not self._fails_to_attach(link):
            link.handler = self._service.attach(link)

    def add_claims(self, claims: Claims) -> None:
        """A token was accepted."""
        if claims.path not in self.claims and len(self.claims) >= MAX_TOKENS_PER_CONNECTION:
            text = f"This connection has tokens for {MAX_TOKENS_PER_CONNECTION} addresses, as many as it may have."
            self.close("amqp:resource-limit-exceeded", text)
            return
        self.tokens.add(claims)
        self.budget.has_right = self.budget.has_right or bool(claims.rights)

    def close(self, condition: str | None = None, description: str | None = None) -> None:
        """End the connection from our side; it is cut if the client does not agree within a few seconds."""
        if self._close_sent or self._lost:
            return
        self._end_sessions()
        if not self._opened:
            self._shut_down()
            return
        self._close_sent = True
        reason = None if condition is None else error(condition, description)
        self.outbox.frame(0, perform(CLOSE, [reason]))
        self.schedule_flush()
        self._closing = self._loop.call_later(CLOSE_GRACE_SECONDS, self.abort)

    def abort(self) -> None:
        """Cut the connection without a word."""
        if not self._lost:
            self._transport.abort()
            self.lost()

    # -- reading

    def _on_header(self, header: bytes) -> None:
        if header == SASL_HEADER and not self._sasl:
            self._sasl = True
            self.outbox.raw(SASL_HEADER)
            mechanisms = Array(0xA3, tuple(Symbol(name) for name in MECHANISMS))
            self.outbox.frame(0, perform(SASL_MECHANISMS, [mechanisms]), kind=SASL_FRAME)
        elif header == AMQP_HEADER:
            self._sasl = False
            self.outbox.raw(AMQP_HEADER)
        else:
            self.outbox.raw(SASL_HEADER)  # what we would have liked (§2.2)
            self._shut_down()

    def _on_frame(self, kind: int, channel: int, body: bytes) -> None:
        most = MAX_PERFORMATIVE_BYTES if self.budget.has_right else MAX_PERFORMATIVE_BYTES_BEFORE_TOKEN
        code, fields, payload_start = read_performative(body, most)
        if self._trace is not None:
            self._trace.came(channel, code, fields, len(body) - payload_start)
        if self._sasl:
            if kind != SASL_FRAME:
                raise FramingError("a SASL frame was expected")
            self._on_sasl(code, Fields(fields))
        elif kind != AMQP_FRAME:
            raise FramingError(f"frame type {kind} is not allowed")
        elif code == OPEN:
            self._on_open(Fields(fields))
        elif code == CLOSE:
            self._on_close()
        elif self._close_sent:
            return
        elif not self._opened:
            self.close("amqp:illegal-state", "the first frame must be an open")
        elif code == BEGIN:
            self._on_begin(channel, Fields(fields))
        else:
            self._to_session(channel, code, fields, body[payload_start:])

    def _to_session(self, channel: int, code: int, fields: list[Any], payload: bytes) -> None:
        session = self._sessions.get(channel)
        if session is None:
            return
        if code == END:
            del self._sessions[channel]
            session.end(False)
            self.outbox.frame(channel, perform(END, []))
            return
        try:
            self._input.work, self._input.work_channel = session.on_frame(code, fields, payload), channel
        except SessionError as failure:
            self.end_session(channel, failure)

    def _on_sasl(self, code: int, init: Fields) -> None:
        if code != SASL_INIT:
            raise AmqpDecodeError("a SASL init was expected")
        claims = sasl_claims(self.namespace, init.text(0) or "", init.binary(1) or b"")
        self.outbox.frame(0, perform(SASL_OUTCOME, [Ubyte(1 if claims is None else 0)]), kind=SASL_FRAME)
        if claims is None:
            self._shut_down()
            return
        for claim in claims:
            self.add_claims(claim)
        self._input.header_due = True

    def _on_open(self, fields: Fields) -> None:
        if self._opened:
            self.close("amqp:illegal-state", "the connection is open already")
            return
        frame_size, idle = fields.number(2), fields.number(4)
        self._opened = True
        self.remote_max_frame_size = 0xFFFFFFFF if frame_size is None else max(frame_size, MIN_MAX_FRAME_SIZE)
        wanted = fields.get(8)
        asked = wanted.items if isinstance(wanted, Array) else (wanted,)
        offered = tuple(Symbol(name) for name in self.namespace.capabilities if name in asked)
        self.outbox.frame(0, perform(OPEN, self._open_fields(Array(_SYMBOL_8, offered) if offered else None)))
        if frame_size is not None and frame_size < MIN_MAX_FRAME_SIZE:
            self.close("amqp:invalid-field", f"max-frame-size must be at least {MIN_MAX_FRAME_SIZE}")
        elif self.namespace.throttling is not None and not self.namespace.throttling.connected(self.id):
            self.close("amqp:resource-limit-exceeded", "The namespace has as many connections as it can have.")
        elif idle:
            self._beat(max(idle / 2000.0, 0.05))

    def _open_fields(self, offered: Array | None) -> list[Any]:
        product = {Symbol("product"): self.product}
        idle = Uint(int(IDLE_TIMEOUT_SECONDS * 1000))
        return [
            f"{self.namespace.name}_{self.id}",
            None,
            Uint(MAX_FRAME_SIZE),
            Ushort(CHANNEL_MAX),
            idle,
            None,
            None,
            offered,
            None,
            product,
        ]

    def _on_begin(self, channel: int, fields: Fields) -> None:
        if channel > CHANNEL_MAX:
            self.close("amqp:connection:framing-error", f"channel {channel} is above {CHANNEL_MAX}")
            return
        if channel in self._sessions:
            self.close("amqp:illegal-state", f"channel {channel} is in use")
            return
        if not self.budget.has_right and len(self._sessions) >= MAX_SESSIONS_BEFORE_TOKEN:
            self.close("amqp:resource-limit-exceeded", "The connection has too many sessions without a token.")
            return
        self._sessions[channel] = self._make_session(channel, fields)

    def _make_session(self, channel: int, begin: Fields) -> Session:
        return Session(self, channel, begin)

    def _on_close(self) -> None:
        self._end_sessions()
        if not self._close_sent:
            self._close_sent = True
            self.outbox.frame(0, perform(CLOSE, []))
        self._shut_down()

    def fail(self, condition: str, description: str) -> None:
        """The bytes make no sense: say so and close; what follows them cannot be understood any more."""
        self.close(condition, description)
        self._shut_down()

    def _shut_down(self) -> None:
        self._shut = True
        self._input.stop()
        self._flush()
        self._transport.close()

    def _end_sessions(self) -> None:
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            session.end(False)

    def end_session(self, channel: int, failure: SessionError) -> None:
        """The client has done what a session does not allow."""
        if channel in self._sessions:
            self._sessions.pop(channel).end_with(failure)

    def _fails_to_attach(self, link: Link) -> bool:
        action = link.fault("attach")
        if action is None:
            return False
        if action.fails:
            link.reject(action.condition or "amqp:internal-error", action.description)
        return action.fails or action.cuts

    # -- writing and time

    def _flush(self) -> None:
        data = self.outbox.take()
        if data and not self._lost:
            if self._trace is not None:
                self._trace.went(data)
            self._transport.write(data)

    def _beat(self, interval_seconds: float) -> None:
        """Send an empty frame, and the next one an interval later: half the idle time-out the client asked for."""
        self.outbox.empty_frame()
        self._flush()
        self._heartbeat = self._loop.call_later(interval_seconds, self._beat, interval_seconds)

    def _check_alive(self) -> None:
        """Cut a client that has not opened in time, or has been quiet for longer than our idle time-out."""
        quiet = self._loop.time() - self._input.last_received
        if not self._opened:
            self.abort()
        elif quiet >= IDLE_TIMEOUT_SECONDS:
            allowed = f"{IDLE_TIMEOUT_SECONDS * 1000:.0f} milliseconds"
            self.close("amqp:connection:forced", f"The connection was inactive for more than the allowed {allowed}.")
        else:
            self._watch = self._loop.call_later(IDLE_TIMEOUT_SECONDS - quiet, self._check_alive)
