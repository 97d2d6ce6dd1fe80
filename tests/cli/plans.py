"""Plan files as somebody leaves them who knows how they are made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbpair.cli.inspection.saved import digest_of


def rewritten(path: Path, change: Callable[[Any], object]) -> None:
    """Change the document of a plan file, and let it say of itself what it says of an unchanged one."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    del document["sha256"]
    path.write_text(json.dumps({**document, "sha256": digest_of(document)}), encoding="utf-8")
