"""Stands in for certifi, whose bundle clients trust by default: here it is the emulator's authority alone."""

import os
from pathlib import Path


def where() -> str:
    """The file with the certificates to trust."""
    return os.environ["SSL_CERT_FILE"]


def contents() -> str:
    """The certificates to trust."""
    return Path(where()).read_text(encoding="ascii")
