"""Messages in the order of their sequence numbers, with access by number and reading from any number onwards."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from sbpair.emulator.broker.messages import Message


class MessageLog:
    """A mapping of sequence number to message that can be read in order from any point.

    Removing leaves a hole in the order, and the order is rebuilt when holes outnumber messages: adding at the end,
    removing and looking up take constant time on average.
    """

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return self.since(0)

    def get(self, sequence_number: int) -> Message | None:
        return self._messages.get(sequence_number)

    def add(self, message: Message) -> None:
        number = message.sequence_number
        if self._order and number <= self._order[-1]:
            self._insert(number)
        else:
            self._order.append(number)
        self._messages[number] = message

    def remove(self, message: Message) -> bool:
        """Take the message out; False if it was not (or no longer) here."""
        if self._messages.get(message.sequence_number) is not message:
            return False
        del self._messages[message.sequence_number]
        if len(self._order) > 2 * len(self._messages) + 64:
            self._order = [number for number in self._order if number in self._messages]
        return True

    def since(self, sequence_number: int) -> Iterator[Message]:
        """Messages with at least this number, ascending. The log must not change while the iterator is used."""
        order, messages = self._order, self._messages
        for index in range(bisect_left(order, sequence_number), len(order)):
            message = messages.get(order[index])
            if message is not None:
                yield message

    def first(self) -> Message | None:
        """The message with the lowest number."""
        return next(iter(self), None)

    def _insert(self, number: int) -> None:
        position = bisect_left(self._order, number)
        if position == len(self._order) or self._order[position] != number:
            insort(self._order, number)
