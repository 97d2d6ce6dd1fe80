"""Messages of every AMQP type on every way that a command can send them: the bytes stay those of the application."""

import itertools
from collections.abc import Iterator

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField
from sbpair.amqp.types import Long, Symbol, Ubyte, Ulong
from sbpair.core.message import Disposition
from sbpair.core.pairing import Side
from sbpair.core.rewrite import as_sent
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities
from tests.contract.test_messaging import AWKWARD, BODIES

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def typed() -> list[bytes]:
    return [
        sections.build(
            header=[True, Ubyte(7)],
            properties={PropertyField.MESSAGE_ID: Ulong(number), PropertyField.USER_ID: b"\x00\xff"},
            application_properties=AWKWARD,
            footer={Symbol("f"): Long(1)},
            **body,  # type: ignore[arg-type]
        )
        for number, body in enumerate((*BODIES, {"value": dict(AWKWARD)}))
    ]


def test_every_type_passes_move_resubmit_archive_and_restore_unchanged(made: Entities) -> None:
    first, second, third = (made.queue(f"typed-{next(NUMBERS)}") for _ in range(3))
    made.queue(third, Side.SECONDARY)
    sent = typed()

    def run(*arguments: str) -> None:
        ran = made.runner(*arguments)
        assert ran.code == 0, ran

    def as_they_lie(queue: str, side: Side = Side.PRIMARY) -> list[bytes]:
        return sorted(as_sent(one.payload).payload for one in made.lying(queue, side))

    made.send(first, *sent)
    original = as_they_lie(first)
    assert [_senders(one) for one in original] == sorted(_senders(one) for one in sent)

    run("move", first, second, "--yes")
    assert (made.ids(first), as_they_lie(second)) == ([], original)

    made.settle(second, ["Broken"] * len(sent), Disposition.DEAD_LETTER)
    run("dlq", "resubmit", second, "--to", third, "--yes")
    assert (made.ids(second, dead_letter=True), as_they_lie(third)) == ([], original)

    archive = made.runner.home / f"archive-{third}"
    run("purge", third, "--archive", str(archive), "--yes")
    assert made.ids(third) == []
    run("restore", str(archive), "--yes")
    assert as_they_lie(third) == original

    run("move", third, f"local-secondary:{third}", "--yes")
    assert (made.ids(third), as_they_lie(third, Side.SECONDARY)) == ([], original)


def _senders(payload: bytes) -> bytes:
    """The sections that are the sender's alone."""
    return b"".join(
        payload[span.start : span.end] for span in sections.scan(payload) if span.section >= sections.Section.PROPERTIES
    )
