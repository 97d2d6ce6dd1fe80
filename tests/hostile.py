"""Input nobody meant, for every reader of bytes from outside: valid documents with keys, values and types exchanged,
damaged text, damaged bytes. What a reader may do with it is give a value or raise one of its documented errors.

All runs are the same runs (`derandomize`): a failure in CI is one that anybody can repeat.
"""

import copy
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SECRET = "c2VjcmV0LWtleS1vZi10aGUtdGVzdHM="
"""A key that is put into input wherever a key may stand; no message may ever show it."""
CONNECTION_STRING = (
    f"Endpoint=sb://contoso-weu.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={SECRET}"
)
MEGABYTE = 1_000_000
_THREADS = Path("/proc/self/task")
"""In `schedstat` of each thread: nanoseconds that it ran, nanoseconds that it waited for a processor, turns."""

HUGE = 10**400
"""An integer that no float can hold."""
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    HUGE,
    -HUGE,
    -0.0,
    0.5,
    1e300,
    -1e300,
    "",
    " ",
    "x",
    "\x00",
    "\ud800",
    "\u202e\x1b[31m",
    "x" * 5000,
    "9" * 5000,
    "1e999999999",
    "-1e-999999999",
    "1/0",
    "NaN",
    "Infinity",
    "-1",
    "0",
    "²",
    "٣",
    "P9999999999D",
    "9" * 400 + "d",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "2026-02-30",
    "a/../../b",
    "contoso/x-servicebus-transfer/" + "9" * 5000,
    CONNECTION_STRING,
)
"""What readers trip over: numbers at and beyond every width, texts that look like numbers, times and names."""


def bounded(max_examples: int) -> settings:
    """Settings of a property test here, on a machine that may be slow: a third of so many examples, the same ones in
    each run of the suite; all of them, and others, with `--hypothesis-profile=random`."""
    same = settings.default.derandomize
    return settings(
        max_examples=max_examples // 3 if same else max_examples,
        deadline=None,
        derandomize=same,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def values(scalars: Sequence[Any] = SCALARS) -> st.SearchStrategy[Any]:
    """Any small JSON-like value made of `scalars`."""
    return st.recursive(
        st.sampled_from(scalars),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "a", "name"]), inner, max_size=2)
        ),
        max_leaves=4,
    )


@st.composite
def mutated(draw: st.DrawFn, document: Any, scalars: Sequence[Any] = SCALARS, most: int = 3) -> Any:
    """The JSON-like document with up to `most` things in it replaced, removed, renamed, repeated or wrapped."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(changed))
        if not places:
            return draw(values(scalars))
        holder, key = draw(st.sampled_from(places))
        _change(draw, holder, key, places, scalars)
    return changed


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index) of the document."""
    keys: Sequence[Any] = (
        list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    )
    for key in keys:
        yield document, key
        yield from _places(document[key])


def _change(draw: st.DrawFn, holder: Any, key: Any, places: list[tuple[Any, Any]], scalars: Sequence[Any]) -> None:
    match draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "move", "wrap", "repeat"])):
        case "replace":
            holder[key] = draw(values(scalars))
        case "remove":
            del holder[key]
        case "rename" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "x", "\ud800", f"{key} ", str(key).upper(), "9" * 50]))] = holder.pop(key)
        case "move":
            other, place = draw(st.sampled_from(places))
            holder[key] = copy.deepcopy(other[place])
        case "repeat" if isinstance(holder, list):
            holder.extend(copy.deepcopy([holder[key]] * draw(st.integers(1, 3))))
        case _:
            holder[key] = [holder[key]]


@st.composite
def damaged(draw: st.DrawFn, original: bytes, most: int = 4) -> bytes:
    """The bytes with up to `most` octets or stretches changed, cut out, repeated or put in."""
    changed = bytearray(original)
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, len(changed)))
        end = min(len(changed), start + draw(st.integers(0, 12)))
        match draw(st.sampled_from(["change", "change", "cut", "repeat", "insert", "end"])):
            case "change":
                changed[start:end] = draw(st.binary(min_size=end - start, max_size=end - start))
            case "cut":
                del changed[start:end]
            case "repeat":
                changed[start:start] = changed[start:end] * draw(st.integers(1, 50))
            case "insert":
                changed[start:start] = draw(st.sampled_from(_STRETCHES) | st.binary(max_size=12))
            case "end":
                del changed[start:]
    return bytes(changed)


_STRETCHES = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\t",
    b"\r\n",
    b'"',
    b"'",
    b"[" * 60,
    b"{" * 60,
    b"\n- " * 60,
    b"&a *a",
    b"<<: ",
    b"!!timestamp ",
    b"!!int ",
    b"!!float ",
    b"!!binary ",
    b"!!python/object/apply:os.system ",
    b"0" * 30,
    b"9" * 5000,
    b"1e999999999",
    b"-",
    b"NaN",
    b"2026-99-99",
    b"\\ud800",
    b"%00",
    b";",
    b"=",
    b",",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x92\xa9",
)


def json_bytes(document: Any) -> bytes:
    """The document as a JSON file; a lone surrogate goes as an escape, which is how one gets into a file at all."""
    return json.dumps(document).encode()


Caught = tuple[type[BaseException], ...]


def tame(read: Callable[[], Any], documented: type[BaseException] | Caught) -> Any:
    """What `read` gives, or its documented error, whose words are checked: there, not endless, no secret in them."""
    try:
        return read()
    except documented as error:
        assert_told_well(error)
        return error


def assert_told_well(error: BaseException) -> None:
    """The text a user would be shown."""
    text = f"{error} {getattr(error, 'hint', '') or ''}"
    assert text.strip(), type(error)
    assert SECRET not in text, text
    assert len(text) < 4000, text[:300]
    assert "Traceback" not in text


@contextmanager
def within(*, seconds: float, megabytes: float | None = None) -> Iterator[None]:
    """The block is over in time and, if told, without taking more memory than that.

    What it does and what it waits for counts, but not how long other processes kept it, or a thread that it waits for,
    from a processor.
    """
    if megabytes is not None:
        tracemalloc.start()
    began, kept = time.monotonic(), _kept_waiting()
    try:
        yield
        took = time.monotonic() - began
        took -= sum(seconds - kept.get(thread, 0.0) for thread, seconds in _kept_waiting().items())
        peak = tracemalloc.get_traced_memory()[1] if megabytes is not None else 0
    finally:
        if megabytes is not None:
            tracemalloc.stop()
    assert took < seconds, f"{took:.1f} s"
    assert megabytes is None or peak < megabytes * MEGABYTE, f"{peak / MEGABYTE:.0f} MB"


def kept_waiting_seconds() -> float:
    """How long this thread has been ready to run while others had the processors; Linux alone tells."""
    return _kept_waiting().get(threading.get_native_id(), 0.0)


def _kept_waiting() -> dict[int, float]:
    """The same of every thread of this process by its id."""
    found = {}
    for thread in _THREADS.glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            found[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found
