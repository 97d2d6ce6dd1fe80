"""The retired library's messages through archive and replay (see `tests.golden.recorded`)."""

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import Section
from sbpair.emulator import Emulator
from sbpair.emulator.entities import QueueDescription
from sbpair.pipeline.spark.session import StartedSpark
from tests.golden.recorded import DIVERTED, GOLDEN, assert_as_sent_directly, under_its_own_id
from tests.pipeline.stage import Stage, backlog

pytestmark = pytest.mark.spark


def test_archive_and_replay_bring_back_what_was_sent_directly(session: StartedSpark, stage: Stage) -> None:
    def prepare(emulator: Emulator) -> None:
        namespace = emulator.namespace("shop-weu")
        namespace.create_queue("ses", QueueDescription(requires_session=True))
        namespace.create_topic("events")
        namespace.create_subscription("events", "all")

    stage.emulator.call(prepare)
    messages = [under_its_own_id(one) for one in GOLDEN]
    for queue in range(2):
        here = [one.forms[DIVERTED] for one in messages if one.backlog_queue.endswith(f"/{queue}")]
        stage.send("secondary", backlog(queue), here)
    stage.archive(session)
    report = stage.replay(session)
    assert (report.forwarded, report.refusals) == (len(messages), {})
    arrived = {}

    def collect(emulator: Emulator) -> None:
        namespace = emulator.namespace("shop-weu")
        queues = [namespace.get_queue("orders"), namespace.get_queue("ses")]
        for place in [*queues, namespace.get_subscription("events", "all")]:
            for message in place.main.log:
                rendered = message.render()
                arrived[sections.read(rendered, sections.scan(rendered), Section.PROPERTIES)[0]] = rendered

    stage.emulator.call(collect)
    assert arrived.keys() == {one.message_id for one in messages}
    for one in messages:
        assert_as_sent_directly(one, arrived[one.message_id])
