"""The open namespaces that a verb works on: `Sides` of a pair, `Ends` of anything else.

`sbpair.open_sides` and `sbpair.open_ends` open them. A verb opens and closes no namespace itself, so several verbs can
use the same connections one after another.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from sbpair.core.pairing import Pair
from sbpair.ports import Ends, Messaging, NamespaceAdmin

__all__ = ["Ends", "Sides"]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both namespaces of a pair, connected on first use and closed together."""

    pair: Pair
    primary: Messaging
    secondary: Messaging
    primary_admin: NamespaceAdmin
    secondary_admin: NamespaceAdmin
    reopen: "Callable[[], AbstractAsyncContextManager[Sides]] | None" = None
    """Opens the same sides once more: after a breakdown, or in another process, if it can be pickled to get there. With
    None they are used as they are, by one process."""
