"""What happened, in order: a digest of all of it, and the last of it as text."""

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any


class Trace:
    """`now` gives the simulated time. With `follow` every note goes there too."""

    def __init__(
        self, now: Callable[[], float], *, keep: int = 400, follow: Callable[[str], None] | None = None
    ) -> None:
        self._now = now
        self._hash = hashlib.sha256()
        self._last: deque[str] = deque(maxlen=keep)
        self._follow = follow
        self.notes = 0

    def note(self, *what: Any) -> None:
        line = f"{self._now():.6f} " + " ".join(map(str, what))
        self._hash.update(line.encode("utf-8", "surrogateescape") + b"\n")
        self.notes += 1
        if what[0] != "packet":
            self._last.append(line)
        if self._follow is not None:
            self._follow(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    @property
    def last(self) -> list[str]:
        return list(self._last)
