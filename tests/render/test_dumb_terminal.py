"""A terminal that cannot go back over what it has shown gets lines."""

import os
from contextlib import redirect_stderr

import pytest

from sbpair.core.events import Forwarded
from sbpair.render.progress import LINE_EVERY_SECONDS, MoveProgress


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
@pytest.mark.parametrize(("term", "shown"), [("dumb", b"drain: 40 messages, 4/s\r\n"), ("xterm", b"\x1b[?25l")])
def test_progress_is_a_bar_where_it_can_be_drawn(monkeypatch: pytest.MonkeyPatch, term: str, shown: bytes) -> None:
    controller, terminal = os.openpty()
    monkeypatch.setenv("TERM", term)
    elapsed = [0.0]
    with os.fdopen(terminal, "w") as stream:
        with redirect_stderr(stream), MoveProgress("drain", now=lambda: elapsed[0]) as progress:
            elapsed[0] = LINE_EVERY_SECONDS
            progress.notify(Forwarded(at=0.0, queue="q", entity="orders", messages=40, size_bytes=100))
        assert os.read(controller, 1000).startswith(shown)
    os.close(controller)
