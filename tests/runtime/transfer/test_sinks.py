"""Where archives go."""

from pathlib import Path

from sbpair.runtime.transfer.sinks import ArchiveSink


async def test_each_run_of_the_same_second_has_an_archive_of_its_own(tmp_path: Path) -> None:
    sinks = [ArchiveSink(tmp_path / "archive", "20261124-080000") for _ in range(3)]
    names = ["backlog-20261124-080000.jsonl", "backlog-20261124-080000-1.jsonl", "backlog-20261124-080000-2.jsonl"]
    assert [sink.path.name for sink in sinks] == names
    for sink in sinks:
        await sink.close()
