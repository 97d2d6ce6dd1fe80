"""What a connection over TLS trusts: one context for all connections of the process."""

import ssl
from functools import lru_cache

import certifi


@lru_cache(maxsize=16)
def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the authorities in `ca_file` (PEM), else those that the SDK trusts, certifi's.

    Kept, because to read the authorities takes longer than to connect, and the SDK reads them for every connection.

    Raises:
        OSError: the file cannot be read, or holds no certificate (ssl.SSLError).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file or certifi.where())
    return context


@lru_cache(maxsize=1)
def no_tls_context() -> ssl.SSLContext:
    """For the SDK, which wants a context also where it does not encrypt (the emulator's plain AMQP); trusts nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
