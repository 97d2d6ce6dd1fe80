"""`doctor`: is everything there that the verbs need of a pair: credentials, ports, both planes, clocks, rights.

A right is tried by what it is for: Manage by reading the namespace, Listen by browsing, Send by attaching a link to
send on. An answer of "not there" proves the right as well as any. Nothing is sent.
"""

import asyncio
import shlex
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sbpair.concurrency import abandon_after, run_until
from sbpair.core.access import AuthMethod, NamespaceAccess, Transport, credential_name, host_name, key_name
from sbpair.core.durations import format_duration
from sbpair.core.entities import NamespaceFacts
from sbpair.core.errors import (
    AccessDeniedError,
    AuthenticationFailedError,
    EntityNotFoundError,
    ServiceError,
    UnauthorizedError,
    for_pair,
)
from sbpair.core.inspection.audit import Thresholds
from sbpair.core.inspection.diagnosis import COMMAND, Diagnoses, Diagnosis, Verdict
from sbpair.ports import Messaging, NamespaceAdmin, Observer, Sides
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.application import connect, fetch_token, verify
from sbpair.runtime.links import closing

__all__ = ["Diagnoses", "DoctorRequest", "doctor"]

AMQP_PORT = 5671
HTTPS_PORT = 443
DEFAULT_TIMEOUT_SECONDS = 10.0
MOST_ENTITIES = 5
"""Entities whose Send right is tried; one credential usually serves them all."""
MANAGE, LISTEN, SEND = "Manage", "Listen", "Send"
_ROLES = {
    MANAGE: "Azure Service Bus Data Owner",
    LISTEN: "Azure Service Bus Data Receiver",
    SEND: "Azure Service Bus Data Sender",
}
NEEDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "provision, cleanup": (("secondary", MANAGE),),
    "audit": (("primary", MANAGE), ("secondary", MANAGE)),
    "status": (("secondary", LISTEN),),
    "peek": (("secondary", LISTEN),),
    "drain, syphon": (("secondary", LISTEN), ("primary", SEND)),
    "send": (("primary", SEND), ("secondary", SEND)),
    "ping": (("primary", SEND), ("secondary", LISTEN)),
}
"""Rights of each command, by side; what more some can do with Manage they say themselves."""

Rights = dict[tuple[str, str], bool]
"""(side, right) -> whether it is there; absent where that could not be found out."""


@dataclass(slots=True)
class _Side:
    """One namespace being looked at."""

    role: str
    access: NamespaceAccess
    messaging: Messaging
    admin: NamespaceAdmin
    timeout_seconds: float
    rights: Rights
    clock: LoopClock = field(default_factory=LoopClock)

    @property
    def subject(self) -> str:
        return f"{self.role} {host_name(self.access)}"

    async def examine(self, queue: str | None, entities: tuple[str, ...]) -> list[Diagnosis]:
        """All rows of this side. `queue`: a backlog queue to browse; `entities`: where to attach senders."""
        rows = [await self._credential()]
        if rows[0].result is Verdict.ERROR:
            return [*rows, self._skipped("rights", "the credential returned no token")]
        port, management = await asyncio.gather(self._port(), self._management())
        rows += [port, *management]
        if port.result is Verdict.ERROR:
            return [*rows, self._skipped("rights", "its AMQP port does not answer")]
        # Side by side: a side that does not answer takes one time-out, not one for each entity.
        tries = [] if queue is None else [self._right(LISTEN, queue)]
        tries += [self._right(SEND, entity) for entity in entities]
        return [*rows, *await asyncio.gather(*tries)]

    async def _credential(self) -> Diagnosis:
        key = key_name(self.access)
        if self.access.auth is not AuthMethod.CONNECTION_STRING:  # which is at hand: there is nothing to get
            getting = fetch_token(self.access)
            tried = await self._tried(getting, f"Token of {self.access.auth}", max(self.timeout_seconds, 30.0))
        else:
            tried = _Tried(0.0)
        if tried.error is not None:
            return Diagnosis.of_error("credential", self.subject, tried.error)
        got = f"{self.access.auth.value} gave a token" if key is None else f"key {key}"
        return Diagnosis("credential", self.subject, Verdict.OK, got)

    async def _port(self) -> Diagnosis:
        host, port = _address(self.access)
        tried = await self._tried(connect(self.access, host, port), f"Connection to {host}:{port}")
        if tried.error is not None:
            return Diagnosis.of_error("amqp", self.subject, tried.error)
        return Diagnosis("amqp", self.subject, Verdict.OK, f"TLS in {_ms(tried)}, {host}:{port}")

    async def _management(self) -> list[Diagnosis]:
        before = self.clock.now().timestamp()
        tried = await self._tried(self.admin.namespace(), "Properties of the namespace")
        observed_at = (before + self.clock.now().timestamp()) / 2
        if tried.error is not None:
            return self._refused(tried.error)
        facts: NamespaceFacts = tried.answer
        self.rights[self.role, MANAGE] = True
        tier = f", tier {facts.tier}" if facts.tier else ""
        tier += f", geo-replicated ({facts.geo_replication})" if facts.geo_replication else ""
        detail = f"{self.admin.control_plane} API in {_ms(tried)}{tier}"
        return [Diagnosis("https", self.subject, Verdict.OK, detail), self._skew(facts, observed_at)]

    def _refused(self, error: ServiceError) -> list[Diagnosis]:
        """No answer, a credential that is not accepted, or one that lacks Manage, which not everybody needs."""
        clock, denied = self._skipped("clock", "it did not return its time"), isinstance(error, AccessDeniedError)
        if denied:
            self.rights[self.role, MANAGE] = False
        if _lacks(error, MANAGE):
            needs = "Reachable; the credential has no Manage right"
            return [Diagnosis("https", self.subject, Verdict.WARNING, needs, error.hint), clock]
        harmless = denied and not isinstance(error, AuthenticationFailedError)
        verdict = Verdict.WARNING if harmless else Verdict.ERROR
        return [Diagnosis.of_error("https", self.subject, error, verdict=verdict), clock]

    def _skew(self, facts: NamespaceFacts, observed_at: float) -> Diagnosis:
        if facts.service_time is None:
            return self._skipped("clock", f"the {facts.control_plane} API does not include its time")
        skew, limits = observed_at - facts.service_time, Thresholds()
        if abs(skew) < limits.clock_skew_warning_seconds:
            return Diagnosis("clock", self.subject, Verdict.OK, "agrees to a few seconds")
        grave = abs(skew) >= limits.clock_skew_error_seconds
        direction = "ahead of" if skew > 0 else "behind"
        return Diagnosis(
            "clock",
            self.subject,
            Verdict.ERROR if grave else Verdict.WARNING,
            f"this machine's clock is {format_duration(abs(skew))} {direction} the namespace's",
            "Synchronise the clock (chrony, systemd-timesyncd, w32tm): tokens depend on it.",
            "failed",
        )

    async def _right(self, right: str, path: str) -> Diagnosis:
        check, subject = f"right {right}", f"{self.role} {path}"
        if right == LISTEN:
            async with closing(self.messaging.receiver(path)) as receiver:
                tried = await self._tried(receiver.peek(1), f"Browse of {path}")
        else:
            async with closing(self.messaging.sender(path)) as sender:
                tried = await self._tried(sender.max_message_bytes(), f"Link to {path}")
        if isinstance(tried.error, EntityNotFoundError):  # which also says that the credential may ask
            create = f"sbpair entity create {shlex.quote(path)}"
            advice = f"Check `entities:` in the configuration, or create it: {create}"
            advice = "sbpair provision" if self.role == "secondary" else advice
            return Diagnosis(check, subject, Verdict.SKIPPED, "it does not exist", advice)
        if tried.error is None:
            self.rights[self.role, right] = True
            return Diagnosis(check, subject, Verdict.OK, f"there, in {_ms(tried)}")
        if not tried.denied:
            return Diagnosis.of_error(check, subject, tried.error)
        self.rights[self.role, right] = False
        if isinstance(tried.error, AuthenticationFailedError):
            return Diagnosis.of_error(check, subject, tried.error)
        who = credential_name(self.access)
        return Diagnosis(
            check,
            subject,
            Verdict.WARNING,
            f"{who} lacks {right}{f': {tried.error.message}' if not _lacks(tried.error, right) else ''}",
            f"Grant {right} to its shared access rule, or the role {_ROLES[right]}, if the commands below need it.",
        )

    async def _tried(
        self, trying: Coroutine[Any, Any, object], what: str, timeout_seconds: float | None = None
    ) -> "_Tried":
        began = self.clock.monotonic()
        try:
            answer = await abandon_after(timeout_seconds or self.timeout_seconds, trying, what=what)
        except ServiceError as error:
            return _Tried(self.clock.monotonic() - began, error)
        return _Tried(self.clock.monotonic() - began, answer=answer)

    def _skipped(self, check: str, reason: str) -> Diagnosis:
        return Diagnosis(check, self.subject, Verdict.SKIPPED, f"not tried: {reason}")


def _lacks(error: ServiceError, right: str) -> bool:
    """Whether nothing but this right is missing."""
    return isinstance(error, UnauthorizedError) and error.lacks == right


@dataclass(frozen=True, slots=True)
class _Tried:
    """What became of one trial. `seconds`: how long it took; `error`: why it failed; `answer`: what came of it."""

    seconds: float
    error: ServiceError | None = None
    answer: Any = None

    @property
    def denied(self) -> bool:
        return isinstance(self.error, AccessDeniedError)


def _address(access: NamespaceAccess) -> tuple[str, int]:
    """Host and port that AMQP uses; a port in the host's name wins (the embedded namespaces)."""
    host, _, port = access.host.partition(":")
    usual = HTTPS_PORT if access.transport is Transport.WEBSOCKET else AMQP_PORT
    return host, int(port) if port else usual


def _ms(tried: _Tried) -> str:
    return f"{tried.seconds * 1000:.0f} ms"


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """How a pair is examined."""

    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of one trial."""
    for_application: bool = False
    """Try only what an application needs that is to divert while the primary is away."""


async def doctor(
    sides: Sides, request: DoctorRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Diagnoses:
    """Try what the verbs need of both namespaces, and say what each of them may do. Sends nothing, changes nothing.

    A right is tried by what it is for: Manage by reading the namespace, Listen by a browse of a backlog queue, Send by
    a link to an entity. With `for_application` a link to each backlog queue and to each entity of the pair is tried, as
    an application does with `verify=`: that takes the Send right alone.

    Raises:
        InterruptedWorkError: `stop` was set before the end.
    """
    examining = _of_application if request.for_application else _examine
    rows = await run_until(stop or asyncio.Event(), examining(sides, request.timeout_seconds))
    name = sides.pair.name
    return Diagnoses(name, tuple(replace(row, next_step=for_pair(row.next_step, name)) for row in rows))


async def _examine(sides: Sides, timeout_seconds: float) -> list[Diagnosis]:
    """Rows of both namespaces, then of what each command may do."""
    pair = sides.pair
    rights: Rights = {}
    primary = _Side("primary", pair.primary, sides.primary, sides.primary_admin, timeout_seconds, rights)
    secondary = _Side("secondary", pair.secondary, sides.secondary, sides.secondary_admin, timeout_seconds, rights)
    queue = pair.backlog_paths()[0]
    first, second = await asyncio.gather(
        primary.examine(None, pair.entities[:MOST_ENTITIES]), secondary.examine(queue, (queue,))
    )
    rows = [*first]
    if not pair.entities:
        advice = "Name the queues and topics you send to under `entities:`."
        rows.append(Diagnosis("right Send", primary.subject, Verdict.SKIPPED, "no entity known", advice))
    return [*rows, *second, *_commands(rights)]


async def _of_application(sides: Sides, timeout_seconds: float) -> list[Diagnosis]:
    verification = await verify(
        sides.pair,
        primary=sides.primary,
        secondary=sides.secondary,
        entities=sides.pair.entities,
        clock=LoopClock(),
        link_seconds=timeout_seconds,
    )
    return [*verification.checks]


def _commands(rights: Rights) -> Iterator[Diagnosis]:
    for command, needs in NEEDS.items():
        lacking = [f"{right} on the {side}" for side, right in needs if rights.get((side, right)) is False]
        unknown = [f"{right} on the {side}" for side, right in needs if (side, right) not in rights]
        if lacking:
            advice = "sbpair help permissions"
            yield Diagnosis(COMMAND, command, Verdict.WARNING, f"lacks {' and '.join(lacking)}", advice)
        elif unknown:
            yield Diagnosis(COMMAND, command, Verdict.SKIPPED, f"not known: {' and '.join(unknown)}")
        else:
            yield Diagnosis(COMMAND, command, Verdict.OK, "has the rights it needs")
