"""Looks at what a queue still holds, by browsing, and says why each message is there."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from sbpair.core.errors import Category, ServiceError
from sbpair.core.lanes import Key, key_of
from sbpair.core.message import Received, State
from sbpair.core.retry import SERVER_BUSY_SECONDS, SYPHON
from sbpair.ports import MessageReceiver

PAGE_MESSAGES = 250
"""The service gives no more at once."""
FIRST_SEQUENCE_NUMBER = 1
NO_USE_WAITING = frozenset({Category.UNAUTHORIZED, Category.NOT_FOUND, Category.ARGUMENT, Category.DISABLED})
"""Errors of a queue to be read that do not pass by themselves."""
LOCKED_ELSEWHERE = "locked elsewhere"
NOT_COMPLETED = "forwarded, completion not confirmed"
NOT_VISIBLE = "counted by the service, but not visible to a browse"


@dataclass(slots=True)
class Found:
    """What a browse found in one queue."""

    by_state: Counter[str] = field(default_factory=Counter)
    """Deferred and scheduled messages: they cannot be received."""
    unexplained: frozenset[Key] = frozenset()
    """Active messages that were not to be had, and that nothing here accounts for."""
    explained: int = 0
    """Messages that were left on purpose."""
    not_visible: int = 0
    deferred: list[int] = field(default_factory=list)
    """Sequence numbers of the deferred ones."""

    @property
    def empty(self) -> bool:
        return not (self.by_state or self.unexplained or self.explained or self.not_visible)

    def compare_with(self, counted: int | None) -> None:
        """Hold it against the administration's count of active (and deferred) messages, if there is one.

        Counting less than was seen proves nothing: a namespace that throttles counts 0.
        """
        if counted is not None:
            seen = self.by_state[State.DEFERRED.value] + len(self.unexplained) + self.explained
            self.not_visible = max(0, counted - seen)
            self.by_state = +self.by_state

    def reasons(self, forwarded: Collection[Key]) -> Counter[str]:
        """Why messages are left, besides those that were left on purpose."""
        reasons = Counter(self.by_state)
        done = sum(key in forwarded for key in self.unexplained)
        reasons[NOT_COMPLETED] += done
        reasons[LOCKED_ELSEWHERE] += len(self.unexplained) - done
        reasons[NOT_VISIBLE] += self.not_visible
        return +reasons


async def peek_patiently(
    receiver: MessageReceiver, number: int, *, sleep: Callable[[float], Awaitable[None]], patience_seconds: float
) -> list[Received]:
    """One page from this number on; tried again while it fails in a way that may pass.

    Raises:
        ServiceError: waiting does not help, or did not for `patience_seconds`.
    """
    failures, waited = 0, 0.0
    while True:
        try:
            return await receiver.peek(PAGE_MESSAGES, from_sequence_number=number)
        except ServiceError as error:
            failures += 1
            seconds = SERVER_BUSY_SECONDS if error.category is Category.BUSY else SYPHON.seconds(failures)
            if error.category in NO_USE_WAITING or waited + seconds > patience_seconds:
                raise
            waited += seconds
            await sleep(seconds)


async def survey(
    receiver: MessageReceiver,
    left: Mapping[Key, str],
    *,
    sleep: Callable[[float], Awaitable[None]],
    patience_seconds: float,
    visit: Callable[[Received], None] | None = None,
    visit_deferred: bool = False,
) -> Found:
    """Browse a queue to its end. `left`: what was left on purpose; `visit` is shown every active message, and on wish
    the deferred ones, as if they were active.

    A page that fails is tried again, with pauses, for up to `patience_seconds`.

    Raises:
        ServiceError: the queue cannot be browsed.
    """
    found = Found()
    unexplained: set[Key] = set()
    number = FIRST_SEQUENCE_NUMBER
    while page := await peek_patiently(receiver, number, sleep=sleep, patience_seconds=patience_seconds):
        for received in page:
            if key_of(received) in left:
                found.explained += 1
            elif received.state is not State.ACTIVE and not (visit_deferred and received.state is State.DEFERRED):
                found.by_state[received.state.value] += 1
                if received.state is State.DEFERRED:
                    found.deferred.append(received.sequence_number)
            else:
                unexplained.add(key_of(received))
                if visit is not None:
                    visit(received)
        number = max(received.sequence_number for received in page) + 1
    found.unexplained = frozenset(unexplained)
    return found
