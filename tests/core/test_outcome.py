"""Exit codes of several outcomes together."""

import pytest

from sbpair.core.outcome import Exit, Outcome, Result, exit_for, exit_of_failures, gravest


@pytest.mark.parametrize(
    ("names", "of_failures", "worst"),
    [
        ([], Exit.FAILED, Exit.OK),
        (["ok"], Exit.FAILED, Exit.OK),
        (["denied", "denied"], Exit.DENIED, Exit.DENIED),
        (["unreachable"], Exit.UNREACHABLE, Exit.UNREACHABLE),
        (["denied", "unreachable"], Exit.FAILED, Exit.UNREACHABLE),
        (["denied", "partial"], Exit.FAILED, Exit.DENIED),
        (["interrupted", "ok"], Exit.FAILED, Exit.PARTIAL),
        (["terminated"], Exit.FAILED, Exit.PARTIAL),
    ],
)
def test_failures_have_the_code_of_the_one_reason_for_all_and_else_of_the_gravest(
    names: list[str], of_failures: Exit, worst: Exit
) -> None:
    assert (exit_of_failures(names), gravest(names)) == (of_failures, worst)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([], Exit.OK),
        ([Result.SKIPPED], Exit.PARTIAL),
        ([Result.FAILED, Result.FAILED], Exit.FAILED),
        ([Result.FAILED, Result.SKIPPED], Exit.PARTIAL),
    ],
)
def test_a_run_fails_where_everything_that_was_tried_failed(results: list[Result], code: Exit) -> None:
    done = [result for result in Result if result not in (Result.FAILED, Result.SKIPPED)]
    assert exit_for([Outcome("x", result) for result in results]) is code
    assert [exit_for([Outcome("x", one), *(Outcome("x", result) for result in results)]) for one in done] == [
        Exit.OK if not results else Exit.PARTIAL
    ] * len(done)
