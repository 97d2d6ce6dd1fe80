"""Makes the backlog queues of a pairing when it opens (seed 000): list, create what is missing, three tries each."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import (
    AccessDeniedError,
    ArgumentRefusedError,
    EntityExistsError,
    PairingError,
    ServiceError,
)
from sbpair.core.events import StepDone
from sbpair.core.outcome import Result
from sbpair.core.pairing import Pair, backlog_settings
from sbpair.ports import Clock, NamespaceAdmin, Observer
from sbpair.runtime.bounded import abandoning

TRIES = 3
PAUSE_SECONDS = 30.0
"""Between two tries; no longer than a call may take."""
CALL_SECONDS = 120.0

T = TypeVar("T")


async def ensure_backlog_queues(
    pair: Pair, *, admin: NamespaceAdmin, clock: Clock, observer: Observer
) -> tuple[str, ...]:
    """Paths of the usable backlog queues, index 0 first.

    A queue that exists is used as it is, whatever its settings. A queue that cannot be made is left out. Queues beyond
    the wanted ones are neither used nor deleted.

    Raises:
        AccessDeniedError: the credential is wrong or lacks the Manage right.
        PairingError: no queue is usable.
        ServiceError: the secondary cannot be asked.
    """
    wanted = pair.backlog_paths()
    retry = _Retry(clock, min(PAUSE_SECONDS, pair.secondary.call_seconds))
    existing = await retry.result(lambda: _list(pair, admin))
    missing = [path for path in wanted if path.lower() not in existing]
    if not missing:
        return wanted
    facts = await retry.result(admin.namespace)
    settings = backlog_settings(facts.tier)
    errors = await asyncio.gather(*(_create(path, settings, admin, retry, observer) for path in missing))
    failed = {path: error for path, error in zip(missing, errors, strict=True) if error is not None}
    usable = tuple(path for path in wanted if path not in failed)
    if not usable:
        raise _none_usable(pair, next(iter(failed.values())))
    return usable


def _none_usable(pair: Pair, error: ServiceError) -> PairingError | ServiceError:
    if isinstance(error, AccessDeniedError):
        return error
    failure = PairingError(
        f"None of the {pair.options.backlog_queue_count} backlog queues on {pair.secondary.host} could be created: "
        f"{error.message}",
        hint=error.hint or "See what is missing with: sbpair provision --dry-run",
    )
    failure.__cause__ = error
    return failure


async def _list(pair: Pair, admin: NamespaceAdmin) -> frozenset[str]:
    prefix = pair.backlog_paths()[0].rpartition("/")[0] + "/"
    return frozenset([queue.path.lower() async for queue in admin.list_queues(prefix)])


async def _create(
    path: str, settings: QueueSettings, admin: NamespaceAdmin, retry: "_Retry", observer: Observer
) -> ServiceError | None:
    """Create one queue; the error if it cannot be made."""
    clock = retry.clock
    try:
        await retry.result(lambda: admin.create_queue(path, settings))
    except EntityExistsError:
        outcome, detail = Result.UNCHANGED, "was made by somebody else meanwhile"
    except ServiceError as error:
        observer.notify(StepDone(clock.now().timestamp(), path, Result.FAILED, error.message))
        return error
    else:
        outcome, detail = Result.DONE, "created"
    observer.notify(StepDone(clock.now().timestamp(), path, outcome, detail))
    return None


@dataclass(frozen=True, slots=True)
class _Retry:
    """Tries up to three times unless trying again cannot help."""

    clock: Clock
    pause_seconds: float

    async def result(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for _ in range(TRIES - 1):
            try:
                return await _bounded(call())
            except (AccessDeniedError, ArgumentRefusedError, EntityExistsError):
                raise
            except ServiceError:
                await self.clock.sleep(self.pause_seconds)
        return await _bounded(call())


async def _bounded(call: Coroutine[Any, Any, T]) -> T:
    return await abandoning(CALL_SECONDS, call, what="Preparing the backlog queues")
