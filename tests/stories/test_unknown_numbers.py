"""What cannot be counted is unknown, not none: null in JSON, and a word where people read."""

from sbpair.core.names import backlog_queue_path
from tests.stories.world import PRIMARY, SECONDARY, World

KINDS = ("active", "dead_letter", "deferred", "scheduled")
CLOSED = 3


def test_numbers_of_a_queue_that_nobody_may_read_are_unknown(world: World) -> None:
    """Without Manage numbers come from browsing, which one queue refuses."""
    world.backlog_queues(range(10))
    world.destination("orders")
    ids = world.strand("orders", 6)
    world.dead_letter(0, 2, reason="Broken")
    refused = f"unauthorized:entity={backlog_queue_path(PRIMARY, CLOSED)}"
    assert world.runner("emulator", "fault", "add", SECONDARY, refused).code == 0
    world.restrict()

    status = world("sbpair status restricted --interval 0 -o json")
    assert [status.data[kind] for kind in KINDS] == [None] * 4
    (closed,) = (one for one in status.data["queues"] if one["queue"].endswith(f"/{CLOSED}"))
    assert [closed[kind] for kind in KINDS] == [None] * 4
    assert (status.data["verdict"], status.data["confirmed_empty"]) == ("waiting", False)
    assert "At least 4 messages are waiting in 1 queue" in status.stderr
    assert "At least 2 dead letters remain in 1 queue" in status.stderr
    watched = world("sbpair status restricted --watch --count 1 -o tsv")
    assert "messages=unknown dead=unknown" in watched.stdout
    metrics = world("sbpair status restricted --interval 0 -o prometheus").stdout
    assert "sbpair_backlog_queues" in metrics and "sbpair_backlog_dead_letter_messages" not in metrics

    drained = world("sbpair drain restricted -o json", timeout=200)
    assert (drained.code, drained.data["forwarded"], drained.data["confirmed_empty"]) == (4, 4, False)
    assert [drained.data["backlog"][kind] for kind in KINDS] == [None] * 4
    assert "empty" not in drained.stderr.replace("emptied", "")
    assert f"/{CLOSED}" in drained.stderr
    assert len(world.ids("orders")) == len(ids) - 2

    page = world("sbpair audit restricted -o html")
    assert page.code == 4
    assert page.stdout.count("unknown") >= 2
