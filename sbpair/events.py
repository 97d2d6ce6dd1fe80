"""What a pairing, its syphon, the drop-in clients and the consumers of active/active announce to an `Observer` or
`on_event`: plain frozen values.

`at` is in UTC epoch seconds.
"""

from sbpair.core.events import (
    BacklogCounted,
    BacklogQueueLeft,
    BacklogQueueReturned,
    DeadLettered,
    Diverted,
    EntityInvalid,
    Event,
    FailedBack,
    FailedOver,
    Forwarded,
    LedElsewhere,
    LockedElsewhere,
    MessageHandled,
    NotIdleYet,
    NotReady,
    PairingNoticed,
    Paused,
    PingSent,
    Polled,
    QueueAppeared,
    Ready,
    ReceiveFailed,
    Restarting,
    Resumed,
    SendFailed,
    SideEnded,
    SideFaulted,
    SideRestored,
    StepDone,
)
from sbpair.ports import Observer

__all__ = [
    "BacklogCounted", "BacklogQueueLeft", "BacklogQueueReturned", "DeadLettered", "Diverted", "EntityInvalid", "Event",
    "FailedBack", "FailedOver", "Forwarded", "LedElsewhere", "LockedElsewhere", "MessageHandled", "NotIdleYet",
    "NotReady", "Observer", "PairingNoticed", "Paused", "PingSent", "Polled", "QueueAppeared", "Ready",
    "ReceiveFailed", "Restarting", "Resumed", "SendFailed", "SideEnded", "SideFaulted", "SideRestored", "StepDone",
]  # fmt: skip
