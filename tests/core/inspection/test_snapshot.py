"""The snapshot's file form: exact round trip, strict reading, and what it tells at a glance."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.entities import Counts, EntityStatus, NamespaceFacts, QueueFacts, QueueSettings
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import Calls, How, Peeked, QueueSeen, Snapshot
from sbpair.core.serialization import json_schema
from tests.core.snapshots import a_pair, a_queue, healthy, path


def through_json(snapshot: Snapshot) -> Any:
    return json.loads(json.dumps(snapshot.to_dict()))


def test_a_snapshot_survives_json_exactly() -> None:
    queue = a_queue(path(7), counts=Counts(3, 1), peeked=Peeked(True, False, 1.5), forward_to="x")
    snapshot = healthy(more=(queue,))
    assert Snapshot.from_dict(through_json(snapshot)) == snapshot


settings = st.builds(
    QueueSettings,
    lock_duration_seconds=st.floats(5, 300),
    default_message_time_to_live_seconds=st.none() | st.floats(1, 1e12),
    status=st.sampled_from(EntityStatus),
    forward_to=st.none() | st.text(),
)
facts = st.builds(
    QueueFacts,
    path=st.text(min_size=1),
    settings=settings,
    counts=st.builds(Counts, st.integers(0, 10**9), st.integers(0, 10**9)),
    authorization_rules=st.lists(st.tuples(st.text(), st.lists(st.text()).map(tuple))).map(tuple),
)


@given(st.lists(st.builds(QueueSeen, facts=facts, how=st.sampled_from(How), peeked=st.none()), max_size=4))
def test_whatever_queues_hold_survives_json(queues: list[QueueSeen]) -> None:
    snapshot = healthy()
    snapshot = replace(snapshot, secondary=replace(snapshot.secondary, queues=tuple(queues)))
    assert Snapshot.from_dict(through_json(snapshot)) == snapshot


def test_the_schema_accepts_what_is_written() -> None:
    jsonschema.validate(through_json(healthy()), json_schema(Snapshot))


def test_the_schema_refuses_an_unknown_key() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**through_json(healthy()), "colour": "red"}, json_schema(Snapshot))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data.update(format_version=2), "format version 2"),
        (lambda data: data.update(format_version=True), "format version True"),
        (lambda data: data.update(extra=1), "unknown key 'extra'"),
        (lambda data: data.pop("primary"), "'primary' is missing"),
        (lambda data: data["secondary"]["queues"][1]["facts"].update(path=3), r"secondary.queues\[1\].facts.path: '3'"),
        (lambda data: data["pair"].update(backlog_queue_count=True), "count: 'True' is not of type integer"),
        (lambda data: data["pair"].update(entities="orders"), "entities: 'orders' is not a list"),
        (lambda data: data["primary"].update(queues=[[]]), r"primary.queues\[0\]: '\[\]' is not an object"),
        (lambda data: data["secondary"]["queues"][0].update(how="guessed"), "how: 'guessed' is not one of listed"),
    ],
)
def test_a_spoilt_file_is_refused_and_the_place_named(spoil: Any, said: str) -> None:
    data = through_json(healthy())
    spoil(data)
    with pytest.raises(UsageError, match=said):
        Snapshot.from_dict(data)


def test_something_else_is_no_snapshot() -> None:
    with pytest.raises(UsageError, match="not a snapshot"):
        Snapshot.from_dict([1, 2])


def test_the_digest_tells_snapshots_apart() -> None:
    assert healthy().digest() == healthy().digest()
    assert healthy().digest() != healthy(without=(path(0),)).digest()


def test_the_pair_comes_back_without_credentials() -> None:
    pair = a_pair(5, protected=("*/0",))
    restored = healthy(pair).pair.to_pair()
    assert (restored.backlog_paths(), restored.protected) == (pair.backlog_paths(), ("*/0",))
    assert restored.primary.connection_string is None


def test_backlog_queues_come_in_order_of_primary_and_index() -> None:
    snapshot = healthy(a_pair(11), more=(a_queue(path(2, "adatum")),))
    order = [(name.primary_label, name.index) for name, _ in snapshot.secondary.backlog()]
    assert order == [("adatum", 2), *(("contoso", index) for index in range(11))]


def test_entities_are_found_in_any_case() -> None:
    found = healthy().secondary.queue("CONTOSO/X-ServiceBus-Transfer/1")
    assert found is not None and found.path == path(1)


@pytest.mark.parametrize(
    ("counts", "peeked", "empty", "contents"),
    [
        (Counts(), None, True, "nothing"),
        (Counts(), Peeked(False, False), True, "nothing"),
        (Counts(), Peeked(True, False), False, "messages that the counts do not show"),
        (Counts(scheduled=1200), None, False, "1,200 scheduled"),
        (Counts(2, 1), Peeked(True, True), False, "2 active, 1 dead-letter"),
        (Counts(transfer_dead_letter=1), None, False, "1 transfer dead-letter"),
    ],
)
def test_emptiness_needs_counts_and_browse_to_agree(
    counts: Counts, peeked: Peeked | None, empty: bool, contents: str
) -> None:
    queue = a_queue(path(0), counts=counts, peeked=peeked)
    assert (queue.empty, queue.contents) == (empty, contents)


def test_calls_add_up_to_credits() -> None:
    calls = Calls(namespace_reads=1, list_pages=30) + Calls(gets=9, peeks=4)
    assert (calls.management, calls.throttling_credits) == (40, 404)


def test_facts_not_read_stay_apart_from_none_there() -> None:
    snapshot = healthy()
    unread = replace(snapshot, secondary=replace(snapshot.secondary, queues=None, facts=None))
    assert Snapshot.from_dict(through_json(unread)).secondary.queues is None
    assert isinstance(snapshot.secondary.facts, NamespaceFacts)
