"""Scheduled messages of a topic: they wait in the topic itself and are published when their time comes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.emulator import errors
from sbpair.emulator.broker.log import MessageLog
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.clock import Timer
from sbpair.emulator.errors import BrokerError

if TYPE_CHECKING:
    from sbpair.emulator.broker.topics import Topic

PLACE = "scheduled"


class Scheduled:
    """The waiting messages by sequence number; `publish` is called with each when it is due."""

    def __init__(self, topic: "Topic", publish: Callable[[Message], None]) -> None:
        self._topic = topic
        self._publish = publish
        self.log = MessageLog()
        self._timers: dict[int, Timer] = {}

    def add(self, message: Message) -> None:
        """Keep a message until its time."""
        self.place_quietly(message)
        self._topic.namespace.journal.put_message(self._topic, PLACE, message)

    def place_quietly(self, message: Message) -> None:
        """Keep a message without telling the store: for `add` and for a restart."""
        clock = self._topic.namespace.clock
        self.log.add(message)
        self._topic.quota.used_bytes += len(message.payload)
        due = message.head.scheduled_at or clock.now()
        self._timers[message.sequence_number] = clock.call_at(due, lambda: self._strike(message))

    def cancel(self, numbers: list[int]) -> None:
        """Delete messages by number, all or none (BrokerError message-not-found)."""
        chosen = []
        for number in dict.fromkeys(numbers):
            message = self.log.get(number)
            if message is None:
                raise BrokerError(errors.MESSAGE_NOT_FOUND, f"There is no scheduled message with the number {number}.")
            chosen.append(message)
        for message in chosen:
            self._take_out(message)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _take_out(self, message: Message) -> None:
        self._timers.pop(message.sequence_number).cancel()
        self.log.remove(message)
        self._topic.quota.used_bytes -= len(message.payload)
        self._topic.namespace.journal.drop_message(message)

    def _strike(self, message: Message) -> None:
        self._take_out(message)
        self._publish(message)
