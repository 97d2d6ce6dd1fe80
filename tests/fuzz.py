"""Random and damaged input against everything that reads what strangers wrote: `python -m tests.fuzz --cases N`.

Every case must end in a value or in the error its reader is documented to raise, within a second. The seed is printed;
with `--seed` the same cases come again. A small share of it runs in the suite.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sbpair.amqp.sections import build, read, scan
from sbpair.amqp.types import AmqpError, Symbol, Uint
from sbpair.core.errors import SbpairError
from sbpair.core.redact import defused, printable, scrub
from sbpair.emulator.admin.calls import Call
from sbpair.emulator.auth import AuthError, authenticate, make_bearer_token, make_sas_token
from sbpair.emulator.engine.connection import Connection
from sbpair.emulator.engine.frames import FramingError
from sbpair.emulator.engine.performatives import ATTACH, BEGIN, DISPOSITION, FLOW, OPEN, TRANSFER, perform
from sbpair.emulator.errors import EntityError
from sbpair.settings.files import DocumentError, parse_json, read_file
from sbpair.sqlfilter.lexer import FilterEvaluationError
from sbpair.sqlfilter.values import like

SLOWEST_SECONDS = 1.0
Case = Callable[[random.Random], None]


class FuzzFailure(AssertionError):
    """A case that ended in anything but a value or its reader's own error; the text has the seed and the number."""


def damaged(random_: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, taken out, doubled or put in."""
    result = bytearray(data)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(result) + 1)
        match random_.randrange(4):
            case 0:
                result[at : at + 1] = random_.randbytes(1)
            case 1:
                del result[at : at + random_.randint(1, 8)]
            case 2:
                result[at:at] = result[at : at + random_.randint(1, 16)]
            case _:
                result[at:at] = random_.choice((b"\xff" * 4, b"\x00", b"\xc0\x00", b"\xd1\xff\xff\xff\xff", b"%", b"&"))
    return bytes(result)


_MESSAGE = build(
    properties=["id", None, "to", "subject", None, "7"],
    application_properties={"x-ms-path": "orders", "n": Uint(1), "f": 2.5},
    data=b"body",
)


def message(random_: random.Random) -> None:
    payload = damaged(random_, _MESSAGE)
    try:
        spans = scan(payload)
        for span in spans:
            read(payload, spans, span.section)
    except AmqpError:
        return


class _Nowhere:
    def write(self, data: bytes) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


_DIALOGUE = b"AMQP\x00\x01\x00\x00" + b"".join(
    (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body
    for body in (
        perform(OPEN, ["c", "h"]),
        perform(BEGIN, [None, Uint(0), Uint(100), Uint(100)]),
        perform(ATTACH, ["l", Uint(0), True, None, None, None, None, {Symbol("a"): Uint(1)}]),
        perform(FLOW, [Uint(1), Uint(9), Uint(0), Uint(9), Uint(0), Uint(0), Uint(5)]),
        perform(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), False, True]) + b"\x00Sw\xa1\x01x",
        perform(DISPOSITION, [True, Uint(0), Uint(99), True]),
    )
)


def dialogue(random_: random.Random) -> None:
    from tests.emulator.engine.conftest import PlainNamespace, Service

    connection = Connection(PlainNamespace(), Service(), _Nowhere())
    data = damaged(random_, _DIALOGUE)
    try:
        cut = random_.randrange(len(data))
        connection.receive(data[:cut])
        connection.receive(data[cut:])
    except (AmqpError, FramingError):
        return
    finally:
        connection.lost()


_TOKENS = (
    make_bearer_token(4102444800, oid="me").encode(),
    make_sas_token("sb://h/orders", "root", "key", 4102444800).encode(),
)


def token(random_: random.Random) -> None:
    text = damaged(random_, random_.choice(_TOKENS)).decode("utf-8", "replace")
    try:
        authenticate((), text, "sb://h/orders", 0.0)
    except AuthError:
        return


_JSON = b'{"properties": {"sqlFilter": {"sqlExpression": "a = 1"}, "n": [1, 2.5e3, "\\u00e9", null, true]}}'


def http_body(random_: random.Random) -> None:
    body = damaged(random_, _JSON)
    with suppress(EntityError):
        Call("PUT", ("x",), {}, {}, body, "http://h", 0.0).json_object()
    with suppress(DocumentError):
        parse_json(body)


_CONFIGURATION = b"""version: 1
pairs:
  orders: {primary: {namespace: a}, secondary: {namespace: b, connection_string: {env: X}}, protected: ["*"]}
auth: azure-cli
"""


def configuration(random_: random.Random, path: Path) -> None:
    path.write_bytes(damaged(random_, _CONFIGURATION))
    try:
        read_file(path)
    except SbpairError as error:
        assert "Traceback" not in str(error)


def pattern(random_: random.Random) -> None:
    def text(size: int) -> str:
        return "".join(random_.choice("ab%_\\\n") for _ in range(random_.randrange(size)))

    try:
        like(text(400), text(60), random_.choice((None, "\\")))
    except FilterEvaluationError:
        return


def text(random_: random.Random) -> None:
    value = "".join(chr(random_.choice((random_.randrange(128), random_.randrange(0xD800)))) for _ in range(40))
    line = defused(printable(scrub(value)))
    assert line.isprintable()
    assert "##[" not in line
    assert not line.lstrip().startswith("::")


async def run(cases: int, seed: int, folder: Path) -> dict[str, int]:
    """The number of cases of each kind that were run.

    Raises:
        FuzzFailure: one ended in something else than a value or its reader's error, or took too long.
    """
    kinds: dict[str, Case] = {
        "message": message,
        "dialogue": dialogue,
        "token": token,
        "http_body": http_body,
        "configuration": lambda random_: configuration(random_, folder / "sbpair.yaml"),
        "pattern": pattern,
        "text": text,
    }
    counts = dict.fromkeys(kinds, 0)
    names = list(kinds)
    for number in range(cases):
        name = names[number % len(names)]
        random_ = random.Random(f"{seed}:{number}")
        begun = time.process_time()
        try:
            kinds[name](random_)
        except Exception as error:
            raise FuzzFailure(f"seed {seed}, case {number} ({name}): {type(error).__name__}: {error}") from error
        if time.process_time() - begun > SLOWEST_SECONDS:
            raise FuzzFailure(f"seed {seed}, case {number} ({name}) took more than {SLOWEST_SECONDS} s of CPU time")
        counts[name] += 1
        if number % 500 == 0:
            await asyncio.sleep(0)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    import tempfile

    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = asyncio.run(run(options.cases, options.seed, Path(folder)))
    seconds = time.monotonic() - begun
    print(
        f"seed {options.seed}: {options.cases:,} cases in {seconds:.1f} s ({options.cases / seconds:,.0f}/s): {counts}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
