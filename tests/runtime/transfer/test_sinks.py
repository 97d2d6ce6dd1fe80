"""Where archives go."""

import resource
from pathlib import Path

import pytest

from sbpair.core.errors import SbpairError
from sbpair.core.rewrite import compose
from sbpair.core.transfer.state import Item, key_of
from sbpair.runtime.transfer.sinks import ArchiveSink
from tests.fakes import FakeClock, FakeNamespace, virtual_time


async def test_each_run_of_the_same_second_has_an_archive_of_its_own(tmp_path: Path) -> None:
    sinks = [ArchiveSink(tmp_path / "archive", "20261124-080000") for _ in range(3)]
    names = ["backlog-20261124-080000.jsonl", "backlog-20261124-080000-1.jsonl", "backlog-20261124-080000-2.jsonl"]
    assert [sink.path.name for sink in sinks] == names
    for sink in sinks:
        await sink.close()


@virtual_time
async def test_a_disk_that_took_nothing_leaves_no_empty_archive_and_one_that_took_some_keeps_it(tmp_path: Path) -> None:
    namespace = FakeNamespace("secondary", FakeClock())
    namespace.add_queue("backlog")
    namespace.put("backlog", *(compose(body=b"x", message_id=one) for one in "ab"))
    received = await namespace.messaging().receiver("backlog").receive(2, wait_seconds=1.0)
    first, second = (Item(key_of(one), one, 0.0, 0.0, payload=one.payload) for one in received)
    for written in ([], [first]):
        sink = ArchiveSink(tmp_path, "20261124-080000")
        for item in written:
            await sink.send("", [item])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (sink.path.stat().st_size, before[1]))
        try:
            with pytest.raises(SbpairError, match="are still in their queue"):
                await sink.send("", [second])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await sink.close()
        assert [path.read_bytes().count(b"\n") for path in tmp_path.iterdir()] == [1] * len(written)
