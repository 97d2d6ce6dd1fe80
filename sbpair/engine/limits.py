"""What one connection may take, and all of them together."""

MAX_HELD_BYTES = 128 * 1024 * 1024
"""What one connection may make us hold of unfinished messages, or of answers that it does not read: more than the
largest message the service knows, which has 100 MB."""
MAX_HELD_BYTES_BEFORE_TOKEN = 512 * 1024
"""The same for a connection that has not shown a token yet: requests to `$cbs`, which have a few KB each."""
TRANSACTION_HEADROOM_BYTES = 8 * 1024 * 1024
"""Of the same: so much is left for messages that are still coming when open transactions hold as much as they may."""
MAX_HELD_BYTES_TOGETHER = 384 * 1024 * 1024
"""The same for all connections of an emulator together."""
MAX_LINKS_PER_CONNECTION = 5000
MAX_LINKS_BEFORE_TOKEN = 64
MAX_PERFORMATIVE_BYTES = 16 * 1024
MAX_PERFORMATIVE_BYTES_BEFORE_TOKEN = 8 * 1024
"""Frames have up to 64 KB, but all of that is for messages: an attach with a session filter has some 500 bytes."""
MAX_SESSIONS_BEFORE_TOKEN = 64
MAX_OPEN_TRANSACTIONS_BEFORE_TOKEN = 8
"""A client of .NET that begins inside a TransactionScope declares before it has put its first token."""
MAX_OPEN_TRANSACTIONS = 1000
"""Of a connection: our own bound."""
