"""Auto-forwarding: what arrives (or is dead-lettered) here moves on to another queue or topic of the namespace.

At most 4 hops; one more and the message is dead-lettered here with `MaxTransferHopCountExceeded`. A destination that is
gone or disabled puts it into the transfer dead letters here. A destination that is full, or refuses for another passing
reason, leaves it waiting as "transfer", tried again every few seconds.
"""

from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from sbpair.emulator.broker.mailbox import DEAD_LETTER, TRANSFER_DEAD_LETTER, Mailbox
from sbpair.emulator.broker.messages import Message, MessageStateCode
from sbpair.emulator.entities import TopicDescription, target_path
from sbpair.engine import errors
from sbpair.engine.budgets import finish
from sbpair.engine.clock import Timer
from sbpair.engine.errors import BrokerError

if TYPE_CHECKING:
    from sbpair.emulator.broker.entity import MessageEntity

RETRY_SECONDS = 5.0
PLACE = "transfer"


class Transfers:
    """Messages on their way out of one entity."""

    def __init__(self, entity: "MessageEntity") -> None:
        self._entity = entity
        self._waiting: deque[tuple[Message, str]] = deque()
        self._refused: list[tuple[Message, str]] = []
        self._busy = False
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._refused)

    def send(self, message: Message, target: str) -> None:
        """Pass a message (which is in no mailbox) on, or put it where the rules above say."""
        destination = self._entity.namespace.find(target)
        most = self._entity.namespace.laws.max_forwarding_hops
        if message.hops >= most:
            self._hop_limit(message, most)
        elif destination is not None and isinstance(destination.description, TopicDescription):
            # A topic may have a million rules, which takes minutes; meanwhile the message has a place here.
            self.hold(message, target)
            self.retry()
        elif not finish(self._trying(message, target)):
            self.hold(message, target)

    def hold(self, message: Message, target: str) -> None:
        """Keep a message until its destination has room."""
        self.place_quietly(message, target)
        self._entity.namespace.journal.put_message(self._entity, f"{PLACE}:{target}", message)

    def place_quietly(self, message: Message, target: str) -> None:
        """Keep a message without telling the store: for `hold` and for a restart."""
        self._waiting.append((message, target))
        self._entity.quota.used_bytes += len(message.payload)
        self._arm()

    def retry(self) -> None:
        """Try all that wait, in their order."""
        if not self._busy:
            self._busy = True
            self._entity.namespace.background.do(self._trying_all())

    def _trying_all(self) -> Iterator[None]:
        while self._waiting:
            item = self._waiting[0]
            done = yield from self._trying(*item)
            if not self._waiting or self._waiting[0] is not item:
                break  # closed meanwhile
            self._waiting.popleft()
            self._entity.quota.used_bytes -= len(item[0].payload)
            if not done:
                self._refused.append(item)
            yield
        refused, self._refused = self._refused, []
        self._busy = False
        for item in refused:
            self.hold(*item)

    def pull(self, box: Mailbox) -> None:
        """Forwarding has been switched on: what waits here moves on as well."""
        self._entity.namespace.background.do(self._pulling(box))

    def _pulling(self, box: Mailbox) -> Iterator[None]:
        for message in list(box.log):
            target = self._entity.description.forward_to
            is_here = box.log.get(message.sequence_number) is message
            if target and is_here and message.state is MessageStateCode.ACTIVE and not message.locked:
                box.take_out(message)
                self.send(message, target)
            yield

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._entity.quota.used_bytes -= sum(len(message.payload) for message, _ in self._waiting)
        self._waiting.clear()
        self._refused.clear()

    def _trying(self, message: Message, target: str) -> Generator[None, None, bool]:
        """True when the message has found a place, there or in a sub-queue here."""
        entity = self._entity
        destination = entity.namespace.find(target_path(target))
        if destination is None:
            entity.dead_letter(
                message, "DestinationNotFound", f"'{target}' does not exist.", place=TRANSFER_DEAD_LETTER
            )
            return True
        if not destination.description.status.may_send:
            entity.dead_letter(message, "DestinationDisabled", f"'{target}' is disabled.", place=TRANSFER_DEAD_LETTER)
            return True
        onward = message.copy()
        onward.hops += 1
        if onward.enqueued_sequence_number is None:
            onward.enqueued_sequence_number = message.sequence_number
        try:
            yield from destination.accepting([onward])
        except BrokerError as error:
            if error.condition == errors.QUOTA and entity.namespace.laws.full_target_waits:
                return False
            entity.dead_letter(
                message, *_reason(error), place=DEAD_LETTER if _is_session(error) else TRANSFER_DEAD_LETTER
            )
            return True
        entity.namespace.journal.drop_message(message)
        return True

    def _hop_limit(self, message: Message, most: int) -> None:
        # Straight into the mailbox: forwarding dead letters once more would be the next hop.
        self._entity.dead_letter(
            message,
            "MaxTransferHopCountExceeded",
            f"The message has been forwarded {message.hops} times; the limit is {most}.",
            place=DEAD_LETTER
            if not self._entity.description.forward_dead_lettered_messages_to
            else TRANSFER_DEAD_LETTER,
        )

    def _arm(self) -> None:
        if self._timer is None:
            clock = self._entity.namespace.clock
            self._timer = clock.call_at(clock.now() + RETRY_SECONDS, self._strike)

    def _strike(self) -> None:
        self._timer = None
        self.retry()


def _is_session(error: BrokerError) -> bool:
    return error.condition == errors.NOT_ALLOWED


def _reason(error: BrokerError) -> tuple[str, str]:
    if _is_session(error):
        return "Session ID is null.", error.description
    return "TransferFailed", error.description
