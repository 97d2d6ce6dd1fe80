"""The releases of clients that were run, unmodified, against the emulator."""

import json
from importlib import resources
from typing import Any


def compatibility() -> list[dict[str, Any]]:
    """The clients that have been asked, unmodified, and how many of their scenarios passed; kept by the run itself."""
    text = (resources.files("sbpair.emulator") / "compatibility.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows
