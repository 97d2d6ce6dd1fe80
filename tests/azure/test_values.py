"""Durations, batches, received facts, browsing and the choice of the control plane."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Int, Long, Symbol, Timestamp, Uint, Ulong
from sbpair.azure import chosen_plane, make_admin, make_messaging
from sbpair.azure.administration import bare_path, configured_size, entity_status
from sbpair.azure.atom import seconds_of
from sbpair.azure.client import a_text
from sbpair.azure.frames import batch, schedule_entry
from sbpair.azure.receiver import Browser, to_received
from sbpair.core.access import AuthMethod, ControlPlane, NamespaceAccess, Secret
from sbpair.core.errors import ConfigurationError
from sbpair.core.message import MessageState, Received
from sbpair.service import NEVER, EntityStatus, duration_text
from tests.azure.support import message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M", 60.0),
        ("PT01M00S", 60.0),
        ("P1DT2H3M4.5S", 93784.5),
        ("P14D", 1209600.0),
        (NEVER, None),
        ("P10675199DT2H48M5.477581S", None),
        (timedelta(days=10675199, seconds=10085, microseconds=477581), None),
        (timedelta(seconds=90), 90.0),
        (None, None),
    ],
)
def test_durations_are_read_in_every_spelling(text: str | timedelta | None, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(60, "PT1M"), (90.5, "PT1M30.5S"), (0, "PT0S"), (86400, "P1D")])
def test_durations_are_written_as_the_documents_write_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@given(st.integers(min_value=0, max_value=10**12))
def test_durations_survive_to_the_millisecond(milliseconds: int) -> None:
    assert seconds_of(duration_text(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, abs=1e-6)


@pytest.mark.parametrize("value", [7, True, ["a"], {"a": 1}, "", None])
def test_a_name_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="name"):
        a_text(value, "name")


@pytest.mark.parametrize("text", ["", "1M", "PT", "P1Y", "PT1X"])
def test_what_is_no_duration_is_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="not an ISO 8601 duration"):
        seconds_of(text)


def test_a_batch_holds_the_messages_and_is_placed_like_the_first() -> None:
    first = sections.build(
        message_annotations={Symbol("x-opt-partition-key"): "pk", Symbol("mine"): Long(1)},
        properties={PropertyField.MESSAGE_ID: Ulong(7), PropertyField.TO: "x", PropertyField.GROUP_ID: "s"},
        data=b"1",
    )
    second = message("b")
    together = batch([first, second])
    spans = sections.scan(together)
    assert sections.read(together, spans, Section.MESSAGE_ANNOTATIONS) == {Symbol("x-opt-partition-key"): "pk"}
    properties = sections.read(together, spans, Section.PROPERTIES)
    assert sections.field(properties, PropertyField.MESSAGE_ID) == Ulong(7)
    assert sections.field(properties, PropertyField.GROUP_ID) == "s"
    assert sections.field(properties, PropertyField.TO) is None
    bodies = [sections.read_span(together, span) for span in sections.body_sections(together, spans)]
    assert bodies == [first, second]


def test_a_batch_of_messages_without_anything_has_no_envelope() -> None:
    plain = sections.build(data=b"x")
    assert batch([plain]) == sections.build(data=[plain])


def test_a_scheduled_message_is_named_to_the_service() -> None:
    entry = schedule_entry(message("id", session_id="s"))
    assert entry == {"message-id": "id", "session-id": "s", "message": bytearray(message("id", session_id="s"))}


def test_received_facts_come_from_the_broker_s_annotations() -> None:
    payload = sections.build(
        header={HeaderField.DELIVERY_COUNT: Uint(3)},
        message_annotations={
            Symbol("x-opt-sequence-number"): Long(2**48 + 5),
            Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_500),
            Symbol("x-opt-locked-until"): Timestamp(1_700_000_060_500),
            Symbol("x-opt-message-state"): Int(1),
            Symbol("x-opt-partition-key"): "pk",
        },
        properties={PropertyField.MESSAGE_ID: b"\xff\x00", PropertyField.GROUP_ID: "s"},
        data=b"x",
    )
    assert to_received(payload, "q", receipt="r") == Received(
        payload=payload,
        sequence_number=2**48 + 5,
        source="q",
        message_id="\\xff\x00",
        session_id="s",
        partition_key="pk",
        enqueued_at=1_700_000_000.5,
        locked_until=1_700_000_060.5,
        delivery_count=3,
        state=MessageState.DEFERRED,
    )
    assert to_received(payload, "q").locked_until is None


def test_long_descriptors_are_read_too() -> None:
    short = sections.build(properties={PropertyField.MESSAGE_ID: "a"}, data=b"x")
    spelled_out = b"\x00\x80" + bytes(7) + b"\x73" + short[3:]
    assert to_received(spelled_out, "q").message_id == "a"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00", b"garbage", b"\x00\x53\x72\xc1\x05\x02", b"\x00\x53\x73\x54\x01", b"\x00\x53\x72\xa1\x01x"],
)
def test_bytes_that_are_no_message_are_not_lost(payload: bytes) -> None:
    received = to_received(payload, "q", receipt="r")
    assert (received.payload, received.sequence_number, received.receipt) == (payload, 0, "r")


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reading(payload: bytes) -> None:
    assert to_received(payload, "q").payload == payload
    assert to_received(b"\x00\x53\x72" + payload, "q").source == "q"


class Entity:
    """Answers each request with a page of one partition; `order` says which partitions answer first, `alone` that only
    the one that is asked does."""

    def __init__(self, numbers: list[int], order: list[int], *, alone: bool = False) -> None:
        self.numbers = sorted(numbers)
        self.order = [] if alone else order
        self.asked: list[int] = []

    async def ask(self, start: int) -> list[Received]:
        """The partition of the number asked for, if it has anything; otherwise the first of `order` that has."""
        self.asked.append(start)
        for partition in [start >> 48, *self.order]:
            page = [n for n in self.numbers if n >= start and n >> 48 == partition]
            if page:
                return [received(n) for n in page[:2]]
        return []


def received(number: int) -> Received:
    return Received(payload=b"", sequence_number=number, source="q")


async def walk(entity: Entity) -> list[int]:
    browser = Browser()
    seen: list[int] = []
    while page := await browser.next_page(entity.ask, seen[-1] + 1 if seen else 0):
        seen += [one.sequence_number for one in page]
        assert len(seen) <= len(entity.numbers)
    return seen


@given(st.sets(st.tuples(st.integers(0, 15), st.integers(1, 9)), max_size=30), st.permutations(range(16)))
def test_browsing_is_complete_and_in_order_whichever_partition_answers(
    places: set[tuple[int, int]], order: list[int]
) -> None:
    numbers = [(partition << 48) + number for partition, number in places]
    assert asyncio.run(walk(Entity(numbers, order))) == sorted(numbers)


async def test_an_empty_page_speaks_for_the_partition_that_was_asked() -> None:
    numbers = [(partition << 48) + 1 for partition in range(1, 4)]
    entity = Entity(numbers, [], alone=True)
    browser = Browser()
    found = await browser.next_page(entity.ask, numbers[0])
    while page := await browser.next_page(entity.ask, found[-1].sequence_number + 1):
        found += page
    assert [one.sequence_number for one in found] == numbers


@pytest.mark.parametrize(("partition", "passed_over"), [(16, 16), (17, 0)])
async def test_numbers_higher_than_an_entity_has_partitions_have_passed_nothing_over(
    partition: int, passed_over: int
) -> None:
    entity = Entity([(partition << 48) + 1], [partition])
    assert [one.sequence_number for one in await Browser().next_page(entity.ask, 1)] == entity.numbers
    assert len(entity.asked) == 1 + passed_over


async def test_browsing_an_ordinary_queue_asks_no_more_than_it_must() -> None:
    entity = Entity(list(range(1, 7)), [0])
    assert await walk(entity) == list(range(1, 7))
    assert len(entity.asked) == 4


def access(**more: object) -> NamespaceAccess:
    return NamespaceAccess("contoso", "contoso.servicebus.windows.net", **more)  # type: ignore[arg-type]


KEY = Secret("Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a2V5")
BY_KEY = {"auth": AuthMethod.CONNECTION_STRING, "connection_string": KEY}
IN_ARM = {"subscription": "s", "resource_group": "g"}


@pytest.mark.parametrize(
    ("given_access", "plane"),
    [
        (access(**BY_KEY), ControlPlane.DATA_PLANE),
        (access(**BY_KEY, **IN_ARM), ControlPlane.DATA_PLANE),
        (access(**IN_ARM), ControlPlane.ARM),
        (access(subscription="s"), ControlPlane.DATA_PLANE),
        (access(), ControlPlane.DATA_PLANE),
        (access(control_plane=ControlPlane.ARM, subscription="s"), ControlPlane.ARM),
        (access(control_plane=ControlPlane.DATA_PLANE, **IN_ARM), ControlPlane.DATA_PLANE),
    ],
)
def test_the_control_plane_is_chosen_as_documented(given_access: NamespaceAccess, plane: ControlPlane) -> None:
    assert chosen_plane(given_access) is plane
    assert make_admin(given_access).control_plane == plane.value


def test_making_messaging_connects_nothing() -> None:
    assert make_messaging(access(**BY_KEY)).host == "contoso.servicebus.windows.net"


def test_the_resource_manager_needs_a_subscription() -> None:
    with pytest.raises(ConfigurationError, match="subscription"):
        make_admin(access(control_plane=ControlPlane.ARM))


def test_forwarding_targets_sizes_and_states_are_normalised() -> None:
    assert bare_path("https://contoso.servicebus.windows.net/a/b") == "a/b"
    assert bare_path("a/b") == "a/b"
    assert bare_path("") is None
    assert configured_size(5120 * 16, partitioned=True) == 5120
    assert configured_size(5120, partitioned=False) == 5120
    assert entity_status("Creating") is EntityStatus.UNKNOWN
    assert entity_status(None) is EntityStatus.ACTIVE
