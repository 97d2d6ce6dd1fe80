"""The suite's share of `python -m tests.fuzz`."""

from pathlib import Path

from tests.fuzz import run


async def test_some_thousand_cases_end_as_they_should(tmp_path: Path) -> None:
    counts = await run(5_200, 1, tmp_path)
    assert min(counts.values()) >= 250
