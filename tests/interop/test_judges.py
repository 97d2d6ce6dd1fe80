"""A sample of the judges: an old release of the Python client always; one client each of Go and Java if asked for.

`python -m tests.interop.judges` asks all of them. Building those of Go and Java takes minutes, so they are skipped
unless SBPAIR_JUDGES is set, and where their toolchain is missing.
"""

import os
from pathlib import Path

import pytest

from tests.interop.judges.judging import INSTALL_SECONDS, JUDGES, RUN_SECONDS, Judge, ask

SAMPLE = {"azure-servicebus 7.12.3", "azservicebus 1.10.0", "azure-messaging-servicebus 7.17.10"}

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)


@pytest.mark.parametrize("judge", [one for one in JUDGES if one.name in SAMPLE], ids=lambda one: one.name)
def test_a_client_of_each_language_passes_every_scenario(
    judge: Judge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if judge.missing is not None:
        pytest.skip(judge.missing)
    if judge.language != "Python" and not os.environ.get("SBPAIR_JUDGES"):
        pytest.skip("it is built for minutes; SBPAIR_JUDGES=1 asks it")
    cache: Path = tmp_path_factory.mktemp("judges")
    verdict = ask(judge, cache)
    assert {name: error for name, error in verdict.scenarios.items() if error is not None} == {}


def test_every_sample_is_a_judge() -> None:
    assert {one.name for one in JUDGES} >= SAMPLE
