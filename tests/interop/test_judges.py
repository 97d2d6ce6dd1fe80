"""A sample of the judges: a client of each language always, the large ones if asked for.

`python -m tests.interop.judges` asks all of them. Go and Java each have a small client that is built in seconds; theirs
for Service Bus take minutes, so these are skipped unless SBPAIR_JUDGES is set. All are skipped where the toolchain is
missing or the packages cannot be fetched. JavaScript has tests of its own besides.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.interop.judges.__main__ import row, table
from tests.interop.judges.corpus import COUNT, canonical, corpus, encoded
from tests.interop.judges.judging import (
    INSTALL_SECONDS,
    JUDGES,
    RUN_SECONDS,
    Judge,
    NotFetchedError,
    Verdict,
    ask,
    folder_of,
    python_programs,
)
from tests.interop.judges.passing import OURS, Passage, Speaker, passage, speaker

SMALL = {"azure-servicebus 7.12.3", "go-amqp 1.4.0", "qpid-jms-client 2.10.0"}
LARGE = {"@azure/service-bus 7.9.5", "azservicebus 1.11.0", "azure-messaging-servicebus 7.17.20"}
SAMPLE = SMALL | LARGE
ASKED = bool(os.environ.get("SBPAIR_JUDGES"))

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)


@pytest.mark.parametrize("judge", [one for one in JUDGES if one.name in SAMPLE], ids=lambda one: one.name)
def test_a_client_of_each_language_passes_every_scenario(
    judge: Judge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if judge.missing is not None:
        pytest.skip(judge.missing)
    if judge.name in LARGE and not ASKED:
        pytest.skip("it is built for minutes; SBPAIR_JUDGES=1 asks it")
    try:
        verdict = ask(judge, tmp_path_factory.mktemp("judges"))
    except NotFetchedError as error:
        pytest.skip(str(error))
    assert {name: error for name, error in verdict.scenarios.items() if error is not None} == {}


def test_every_sample_is_a_judge() -> None:
    assert {one.name for one in JUDGES} >= SAMPLE


def test_the_table_keeps_what_was_not_asked_again() -> None:
    first, second, third = JUDGES[:3]
    old = [row(Verdict(one, {"a": "wrong"})) for one in (second, first)]
    found = table(old, [Verdict(second, {"a": None}), Verdict(third, {}, not_asked="no compiler")])
    assert [(one["version"], one["passed"]) for one in found] == [(first.version, 0), (second.version, 1)]


def test_the_corpus_has_two_hundred_different_messages() -> None:
    messages = [canonical(encoded(one)) for one in corpus()]
    assert len(messages) == len({name for name, _ in messages}) == COUNT
    assert len({parts for _, parts in messages}) > COUNT - 5


def differences(found: Passage) -> dict[str, list[str]]:
    """What is not as it should be, by who sent and who read."""
    pairs = {f"{sender} to {reader}": ids for (sender, reader), ids in found.differing.items()}
    return {name: ids for name, ids in (found.stored | pairs).items() if ids}


def test_typed_messages_pass_between_the_official_client_and_us(tmp_path: Path) -> None:
    found = passage([Speaker("azure-servicebus", python_programs(sys.executable), tmp_path)], tmp_path)
    assert differences(found) == {}
    assert len(found.differing) == 4
    assert set(found.cannot["azure-servicebus"].values()) == {"char", "binary property"}


def test_typed_messages_pass_between_any_two_languages(tmp_path: Path) -> None:
    speaking = [one for one in JUDGES if one.speaks_for_its_language]
    missing = [f"{one.client}: {one.missing}" for one in speaking if one.missing is not None]
    if missing or not ASKED:
        pytest.skip("; ".join(missing) or "their programs are built for minutes; SBPAIR_JUDGES=1 asks them")
    found = passage([speaker(one, folder_of(one, tmp_path)) for one in speaking], tmp_path)
    assert differences(found) == {}
    assert set(found.stored) == {OURS, *(one.name for one in speaking)}
