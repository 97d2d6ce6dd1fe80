"""What the trace of a connection has of the frames that went over it."""

from sbpair.amqp.frames import Outbox, transfer_head
from sbpair.engine.wire import Trace


def test_a_frame_of_more_than_16_mib_is_traced_with_all_of_its_bytes() -> None:
    trace, outbox, payload = Trace(), Outbox(), bytes(17 << 20)
    outbox.raw(b"AMQP\x00\x01\x00\x00")
    outbox.frame(1, transfer_head(0, 7, b"tag", 0, settled=False, more=False), payload)
    outbox.frame(1, transfer_head(0, 8, b"tag", 0, settled=False, more=False), b"next")
    trace.of_connection().went(outbox.take())
    assert [(one.came, one.channel, one.payload_bytes) for one in trace.frames] == [
        (False, 1, len(payload)),
        (False, 1, len(b"next")),
    ]
