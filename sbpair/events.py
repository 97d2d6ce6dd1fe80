"""What a pairing and the drop-in clients announce to an `Observer` or `on_event`: plain frozen values.

`at` is in UTC epoch seconds.
"""

from sbpair.core.events import (
    BacklogQueueLeft,
    BacklogQueueReturned,
    Diverted,
    EntityInvalid,
    Event,
    FailedBack,
    FailedOver,
    NotReady,
    PairingNoticed,
    PingSent,
    Ready,
    SendFailed,
    SideEnded,
    SideFaulted,
    SideRestored,
)
from sbpair.ports import Observer

__all__ = [
    "BacklogQueueLeft",
    "BacklogQueueReturned",
    "Diverted",
    "EntityInvalid",
    "Event",
    "FailedBack",
    "FailedOver",
    "NotReady",
    "Observer",
    "PairingNoticed",
    "PingSent",
    "Ready",
    "SendFailed",
    "SideEnded",
    "SideFaulted",
    "SideRestored",
]
