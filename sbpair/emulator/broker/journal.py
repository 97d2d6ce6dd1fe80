"""What the broker tells a durable store."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.emulator.broker.intake import Identity
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.sessions import Session

if TYPE_CHECKING:
    from sbpair.emulator.broker.entity import Entity


class Journal:
    """Notes of changes, in order. Nothing is safe before `after_commit` has called back.

    As it stands it keeps nothing: everything lives in memory alone, and counts as safe at once. A store overrides all
    of it.
    """

    failure: str | None = None
    """Why nothing can be kept at present (a full disk); None while all is well."""

    def put_entity(self, entity: "Entity") -> None:
        """An entity is new or its description (or rules) changed."""

    def drop_entity(self, entity: "Entity") -> None:
        """An entity is gone, with all messages and sessions in it."""

    def put_message(self, entity: "Entity", place: str, message: Message) -> None:
        """A message is new in `place` of an entity, has moved there, or has changed."""

    def drop_message(self, message: Message) -> None:
        """A message is gone."""

    def put_numbers(self, entity: "Entity") -> None:
        """An entity has given a number to a message that it does not keep itself."""

    def put_session(self, entity: "Entity", session: Session) -> None:
        """A session's state has changed; None means there is nothing to keep."""

    def put_duplicate(self, entity: "Entity", identity: Identity, until: float) -> None:
        """A message id is known to duplicate detection until then."""

    def put_settings(self) -> None:
        """Keys or aliases of the namespace may have changed."""

    def after_commit(self, action: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Call back once everything noted so far is safe; at once when it already is. Calls keep their order.

        When it cannot be made safe for the time being, `otherwise` is called instead, if there is one; what was noted
        is still tried, so nobody knows then whether it will be safe.
        """
        action()

    def close(self) -> None:
        """Nothing more will come."""
