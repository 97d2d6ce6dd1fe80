"""Messages that are damaged, or well formed with anything in them: refused when they come, or kept and given out whole.

What was accepted must never fail later: the broker would keep it, and its queue would be dead for everybody.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import Section
from sbpair.amqp.types import Described, Long, Symbol, Timestamp
from sbpair.emulator.broker.messages import BATCH_FORMAT
from sbpair.emulator.entities import CorrelationFilter, QueueDescription, RuleDescription, SqlAction, SqlFilter
from sbpair.engine.errors import BrokerError
from tests.core.test_fuzz import BACKLOG, ODD
from tests.hostile import bounded, damaged, tame

RULES = {
    "sql": RuleDescription(
        filter=SqlFilter(
            expression="x = 1 OR y LIKE '%a%' OR sys.label > 'b' OR EXISTS(z) OR sys.ScheduledEnqueueTimeUtc > 5"
        ),
        action=SqlAction(expression="SET sys.Label = 'x'; SET n = 1; REMOVE x"),
    ),
    "correlation": RuleDescription(filter=CorrelationFilter(label="b", properties={"x": 1})),
}


def through(make_bench: Any, payload: bytes, message_format: int = 0) -> None:
    """The message in a queue, a partitioned one, one that looks for duplicates, one with sessions, and a topic; out of
    each of them in every way there is."""
    bench = make_bench()
    namespace = bench.namespace
    kinds = ("plain", "enable_partitioning", "requires_duplicate_detection", "requires_session")
    for kind in kinds:
        settings = {} if kind == "plain" else {kind: True}
        namespace.create_queue(kind, QueueDescription(max_delivery_count=2, **settings))
    topic = namespace.create_topic("events")
    subscription = namespace.create_subscription("events", "all")
    for name, rule in RULES.items():
        namespace.create_rule("events", "all", name, rule)
    for kind in kinds:
        queue = namespace.get_queue(kind)
        if isinstance(tame(lambda queue=queue: queue.send(payload, message_format), BrokerError), BrokerError):
            continue
        out_of(bench, queue, sessions=kind == "requires_session")
    tame(lambda: topic.send(payload, message_format), BrokerError)
    bench.peek(subscription)
    out_of(bench, subscription, sessions=False)


def out_of(bench: Any, entity: Any, *, sessions: bool) -> None:
    bench.clock.advance(1)
    for message in bench.peek(entity):
        sections.scan(message.render())
    if sessions:
        return
    for settle in ("abandon", "defer", "dead_letter"):
        inbox = bench.receive(entity, 1)
        for message, lock in inbox.got:
            sections.scan(message.render(lock_token=lock.token, locked_until=lock.until))
            if settle == "dead_letter":
                entity.main.dead_letter(lock.token, "why", "because", {})
            else:
                getattr(entity.main, settle)(lock.token, {"tried": "once"})
        entity.main.leave(inbox)
    bench.clock.advance(10**6)
    entity.main.expire_due()


@bounded(150)
@given(damaged(BACKLOG))
async def test_a_damaged_message_is_refused_or_given_out(make_bench: Any, payload: bytes) -> None:
    through(make_bench, payload)


@bounded(60)
@given(damaged(sections.build(data=[BACKLOG, BACKLOG])))
async def test_a_damaged_batch_is_refused_or_given_out(make_bench: Any, payload: bytes) -> None:
    through(make_bench, payload, BATCH_FORMAT)


@bounded(100)
@given(
    header=st.lists(ODD, max_size=5),
    delivery=st.dictionaries(st.sampled_from(["x-opt-lock-token", "x"]).map(Symbol), ODD, max_size=2),
    annotations=st.dictionaries(
        st.sampled_from(["x-opt-partition-key", "x-opt-scheduled-enqueue-time", "x-opt-sequence-number"]).map(Symbol),
        ODD,
        max_size=3,
    ),
    properties=st.lists(ODD, max_size=13),
    application=st.dictionaries(st.sampled_from("xyz"), ODD, max_size=3),
)
async def test_a_message_with_fields_of_any_type_is_refused_or_given_out(
    make_bench: Any, header: Any, delivery: Any, annotations: Any, properties: Any, application: Any
) -> None:
    payload = b"".join(
        sections.section_bytes(section, encode(content))
        for section, content in (
            (Section.HEADER, header),
            (Section.DELIVERY_ANNOTATIONS, delivery),
            (Section.MESSAGE_ANNOTATIONS, annotations),
            (Section.PROPERTIES, properties),
            (Section.APPLICATION_PROPERTIES, application),
            (Section.DATA, b"x"),
        )
    )
    through(make_bench, payload)


@pytest.mark.parametrize(
    "annotations",
    [
        {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(2**63 - 1)},
        {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(-(2**63))},
        {Symbol("x-opt-scheduled-enqueue-time"): float("nan")},
        {Symbol("x-opt-partition-key"): Described(Symbol("x"), [])},
        {Symbol("x-opt-sequence-number"): Long(-1)},
    ],
    ids=range(5),
)
async def test_annotations_beyond_reason_are_refused_or_kept(make_bench: Any, annotations: Any) -> None:
    through(make_bench, sections.build(message_annotations=annotations, properties=["id"], data=b"x"))
