"""Tries what an application will need when its primary is away, with its own credentials. No message is written.

A link is attached for sending to each backlog queue and to each entity of the primary: that takes the Send right,
proves name, route, key and right, and tells how large a message may be. Name, route and credential can be tried alone.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from sbpair.concurrency import abandon_after, side_by_side
from sbpair.core.access import NamespaceAccess
from sbpair.core.errors import ConnectionLostError, ServiceError
from sbpair.core.failover.machine import DOCUMENTED, ErrorAction
from sbpair.core.inspection.diagnosis import Diagnosis, Verdict, Verification
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.ports import Messaging, RuntimeClock
from sbpair.runtime.links import closing

LINK_SECONDS = 10.0
AT_ONCE = 4
"""Links that are attached at the same time; each is a connection."""

OnQueue = Callable[[str, ServiceError | None], None]
OnEntity = Callable[[str, int], None]


async def verify(
    pair: Pair,
    *,
    primary: Messaging,
    secondary: Messaging,
    entities: Sequence[str],
    clock: RuntimeClock,
    on_queue: OnQueue = lambda queue, error: None,
    on_entity: OnEntity = lambda entity, max_message_bytes: None,
    link_seconds: float = LINK_SECONDS,
) -> Verification:
    """Whether messages could be diverted now, and what does not fit.

    Args:
        entities: queues and topics of the primary that the application sends to.
        on_queue: gets each backlog queue, and the error if there was one.
        on_entity: gets each entity that answered, and how many bytes a message for it may have.
        link_seconds: bound of one link.
    """

    async def limit_of(messaging: Messaging, path: str) -> int | ServiceError:
        try:
            async with closing(messaging.sender(path)) as sender:
                return await abandon_after(
                    link_seconds, sender.max_message_bytes(), what=f"Link to {path}", entity=path
                )
        except ServiceError as error:
            return error

    queues = pair.backlog_paths()
    theirs = await side_by_side(lambda path: limit_of(secondary, path), queues, at_once=AT_ONCE)
    for queue, found in zip(queues, theirs, strict=True):
        on_queue(queue, found if isinstance(found, ServiceError) else None)
    ours = await side_by_side(lambda path: limit_of(primary, path), entities, at_once=AT_ONCE)
    for entity, found in zip(entities, ours, strict=True):
        if isinstance(found, int):
            on_entity(entity, found)
    checks = [
        *_of_backlog(pair, dict(zip(queues, theirs, strict=True))),
        *(_of_entity(entity, found) for entity, found in zip(entities, ours, strict=True)),
        *_of_sizes(theirs, ours),
    ]
    usable = tuple(queue for queue, found in zip(queues, theirs, strict=True) if isinstance(found, int))
    return Verification(clock.now().timestamp(), tuple(checks), usable)


def _of_backlog(pair: Pair, found: dict[str, int | ServiceError]) -> Iterator[Diagnosis]:
    """One line for all queues that are well, and one for each kind of error."""
    usable = sum(isinstance(one, int) for one in found.values())
    verdict = Verdict.WARNING if usable else Verdict.ERROR
    errors = {queue: one for queue, one in found.items() if isinstance(one, ServiceError)}
    kinds = Counter(error.code for error in errors.values())
    if usable:
        yield Diagnosis("backlog", "secondary", Verdict.OK, f"{counted(usable, 'backlog queue')} would take messages.")
    for code, count in kinds.items():
        queue, error = next((queue, error) for queue, error in errors.items() if error.code == code)
        more = f" ({counted(count - 1, 'other queue')} as well)" if count > 1 else ""
        detail = f"The backlog queue {queue} on {pair.secondary.host} cannot take messages{more}: {error.message}"
        yield Diagnosis("backlog", "secondary", verdict, detail, error.hint or _NEXT, error.exit_name)


_NEXT = "Run: sbpair provision --dry-run"


def _of_entity(entity: str, found: int | ServiceError) -> Diagnosis:
    """A primary that is away is no reason not to divert, and no problem that would still be told when it is back."""
    if isinstance(found, int):
        return Diagnosis("entity", entity, Verdict.OK, f"{entity} accepts messages up to {found} bytes.")
    away = DOCUMENTED.action(found.category) is not ErrorAction.RAISE
    return Diagnosis.of_error("entity", entity, found, verdict=Verdict.SKIPPED if away else Verdict.WARNING)


def _of_sizes(theirs: Sequence[int | ServiceError], ours: Sequence[int | ServiceError]) -> Iterator[Diagnosis]:
    backlog = min((one for one in theirs if isinstance(one, int)), default=None)
    largest = max((one for one in ours if isinstance(one, int)), default=None)
    if backlog is not None and largest is not None and backlog < largest:
        yield Diagnosis(
            "size",
            "secondary",
            Verdict.WARNING,
            f"The primary accepts {largest} bytes a message, backlog queues {backlog}: larger ones cannot be diverted.",
            "Raise the limit of the backlog queues, or use a secondary of the primary's tier.",
        )


SERVICE_BUS_SCOPE = "https://servicebus.azure.net/.default"


async def connect(access: NamespaceAccess, host: str, port: int) -> None:
    """Open a connection by TLS, which proves name, route and port, and close it.

    Raises:
        ConnectionLostError: there is none; says what to do.
    """
    from sbpair.azure.client import authorities

    context = ssl.create_default_context(cafile=authorities(access.ca_file))
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except socket.gaierror as error:
        raise ConnectionLostError(f"The name {host} is not known: {error.strerror}.", hint=_NAME) from error
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLostError(f"TLS of {host}:{port}: {error.verify_message}.", hint=_TLS) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise ConnectionLostError(f"No connection to {host}:{port}: {reason}.", hint=_PORT) from error
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


_NAME = "Check the namespace's name and DNS: nslookup it, and look whether it has a private endpoint."
_TLS = "Name the authority of your proxy with `ca_file:`, or take the proxy out of the way."
_PORT = "Open port 5671 to the namespace, or use port 443: `transport: websocket` in the configuration."


async def fetch_token(access: NamespaceAccess) -> None:
    """Get one token for Service Bus with the credential that `access` names, and throw it away.

    Raises:
        CredentialError: it gave none; the message names it.
    """
    from sbpair.azure.credentials import token_credential

    credential = token_credential(access)
    try:
        await credential.get_token(SERVICE_BUS_SCOPE)
    finally:
        await credential.close()
