"""Our own bounds, which keep one client from using up the emulator. The service's are laws: `emulator.laws`."""

MAX_FILTER_STEPS_PER_MESSAGE = 5_000_000
"""Our own bound on what the rules of all subscriptions may look at of one message: some 20 ms."""
MAX_FILTER_STEPS_PER_RULE = 1_250_000
"""The same for a single rule, which is gone through at a stretch: some 5 ms."""
MAX_REQUEST_ITEMS = 65_536
"""Items in a management request: some thousand messages to schedule, or as many lock tokens."""
MAX_BODY_ITEMS = 2000
"""Tags, attributes and lines, or entries, in the body of an administration request: some 5 ms to read or to write."""
MAX_REQUEST_NUMBERS = 2000
"""Messages that a management request cancels or receives by their numbers, all or none: our own bound."""
MAX_PARTS_PER_TRANSACTION = 2000
"""Messages, settlements and cancellations, which a commit does all at once: our own bound."""
