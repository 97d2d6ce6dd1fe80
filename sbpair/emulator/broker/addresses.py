"""From an address on the wire to a place in the namespace.

`orders`, `topic/Subscriptions/one`, each with `/$DeadLetterQueue`, `/$Transfer/$DeadLetterQueue` and `/$management`
behind it; case never matters, and entity paths may contain slashes themselves.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.mailbox import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Mailbox
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace

_MANAGEMENT = "/$management"
_TRANSFER = "/$transfer/$deadletterqueue"
_DEAD_LETTER = "/$deadletterqueue"
_SUFFIXES = {MAIN: "", DEAD_LETTER: _DEAD_LETTER, TRANSFER_DEAD_LETTER: _TRANSFER}


@dataclass(frozen=True, slots=True)
class Location:
    """What an address means. `mailbox` is None for a topic; `management` for the request node of the place."""

    entity: Queue | Topic | Subscription
    place: str
    management: bool

    @property
    def path(self) -> str:
        """Path of the entity or its sub-queue: what a token has to cover."""
        return self.entity.path + _SUFFIXES[self.place]

    @property
    def mailbox(self) -> Mailbox | None:
        return self.entity.mailbox(self.place) if isinstance(self.entity, MessageEntity) else None


def locate(entities: "Namespace", address: str) -> Location | None:
    """The place an address leads to, None if there is none."""
    path = address.strip("/")
    path, management = _without(path, _MANAGEMENT)
    path, transfer = _without(path, _TRANSFER)
    path, dead_letter = (path, False) if transfer else _without(path, _DEAD_LETTER)
    place = TRANSFER_DEAD_LETTER if transfer else DEAD_LETTER if dead_letter else MAIN
    entity = _entity(entities, path)
    if entity is None or (isinstance(entity, Topic) and place != MAIN):
        return None
    return Location(entity, place, management)


def _without(path: str, suffix: str) -> tuple[str, bool]:
    if path.lower().endswith(suffix):
        return path[: -len(suffix)], True
    return path, False


def _entity(entities: "Namespace", path: str) -> Queue | Topic | Subscription | None:
    found = entities.find(path)
    if found is not None:
        return found
    topic, separator, name = path.lower().rpartition("/subscriptions/")
    return entities.get_subscription(topic, name) if separator else None
