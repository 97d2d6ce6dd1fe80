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
        self._watched: dict[str, list[tuple[int, Callable[[], None]]]] = {}

    def note(self, *what: Any) -> None:
        line = f"{self._now():.6f} " + " ".join(map(str, what))
        self._hash.update(line.encode("utf-8", "surrogateescape") + b"\n")
        self.notes += 1
        if what[0] != "packet":
            self._last.append(line)
        if self._follow is not None:
            self._follow(line)
        if what[0] in self._watched:
            self._count(what[0])

    def when(self, kind: str, count: int, then: Callable[[], None]) -> None:
        """Call `then` at the so-manieth note of this kind from now on."""
        self._watched.setdefault(kind, []).append((count, then))

    def _count(self, kind: str) -> None:
        left = [(count - 1, then) for count, then in self._watched.pop(kind)]
        if rest := [one for one in left if one[0] > 0]:
            self._watched[kind] = rest
        for count, then in left:
            if count <= 0:
                then()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    @property
    def last(self) -> list[str]:
        return list(self._last)
