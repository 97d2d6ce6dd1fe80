"""Replicated queues: what both sides should have, the audit's check of it, and what everything twice costs."""

from dataclasses import replace

import pytest

from sbpair.core.cost.model import Flow, Kind, Workload, active_active, estimate
from sbpair.core.entities import EntityStatus, Tier
from sbpair.core.inspection.audit import Severity, run
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Side
from sbpair.core.prices import Meter, built_in
from sbpair.core.replication.settings import REPLICATED_SETTINGS, problems, replicated_settings
from tests.core.cost.sums import by_kind
from tests.core.snapshots import a_namespace, a_pair, a_queue, healthy

GOOD = REPLICATED_SETTINGS


def test_what_is_provisioned_has_no_problem() -> None:
    assert list(problems(GOOD, GOOD)) == []
    assert replicated_settings(Tier.STANDARD) == replicated_settings(None) == GOOD
    assert replicated_settings(Tier.BASIC) is None, "Basic has no sessions"


@pytest.mark.parametrize(
    ("changes", "said", "serious"),
    [
        ({"requires_session": False}, "Sessions are off", True),
        ({"default_message_time_to_live_seconds": 60.0}, "Messages expire", True),
        ({"auto_delete_on_idle_seconds": 300.0}, "deletes itself", True),
        ({"max_delivery_count": 10}, "After 10 deliveries", True),
        ({"status": EntityStatus.SEND_DISABLED}, "SendDisabled", True),
        (
            {"requires_duplicate_detection": True, "duplicate_detection_history_time_window_seconds": 604_800.0},
            "Duplicate detection drops what is sent twice for 7 days",
            False,
        ),
    ],
)
def test_every_problem_is_told_with_its_side(changes: dict[str, object], said: str, serious: bool) -> None:
    (problem,) = problems(GOOD, replace(GOOD, **changes))  # type: ignore[arg-type]
    assert (problem.side, problem.serious) == ("secondary", serious)
    assert said in problem.message


def test_sides_that_differ_or_are_missing_are_told() -> None:
    (unlike,) = problems(GOOD, replace(GOOD, lock_duration_seconds=30.0))
    assert (unlike.side, unlike.serious) == ("both", False)
    assert "lock duration seconds (60.0 and 30.0)" in unlike.message
    (missing,) = problems(None, GOOD)
    assert (missing.side, missing.serious) == ("primary", True)


def on_both_sides(**secondary: object) -> Snapshot:
    """The healthy pair, `orders` replicated, with changes on the secondary."""
    base = healthy()
    backlog = base.secondary.queues or ()
    ours = a_queue("orders", requires_session=True)
    theirs = a_queue("orders", **{"requires_session": True} | secondary)  # type: ignore[arg-type]
    return replace(base, primary=a_namespace("contoso", ours), secondary=a_namespace("fabrikam", *backlog, theirs))


def test_the_audit_looks_at_queues_that_exist_on_both_sides_with_sessions() -> None:
    assert run(healthy(), a_pair(), checks=["SBP027"]).findings == ()
    assert run(on_both_sides(), a_pair(), checks=["SBP027"]).findings == ()
    (finding,) = run(on_both_sides(requires_session=False), a_pair(), checks=["SBP027"]).findings
    assert (finding.subject, finding.severity) == ("orders", Severity.ERROR)
    assert finding.message.startswith("Secondary: Sessions are off")
    assert finding.remedy.startswith("sbpair replicate provision orders orders")


def test_active_active_costs_everything_twice_and_no_backlog() -> None:
    """1,000 messages of 1 KB: sent, received and completed on each side, and one copy crosses to the other region."""
    single = Workload(flows=(Flow("orders", 1_000, 1_024),), outage_seconds=3_600)
    found = estimate(active_active(single), built_in())
    idle = {Kind.SESSION_REQUEST: 2 * 60 * 720}
    assert by_kind(found) == {Kind.SEND: 2_000, Kind.RECEIVE: 2_000, Kind.COMPLETE: 2_000} | idle
    assert {line.side for line in found.operations} == {Side.PRIMARY, Side.SECONDARY}
    egress = next(line for line in found.charges if line.meter is Meter.EGRESS)
    assert egress.quantity * 1_000_000_000 == 1_000 * 1_024
    assert any("journal" in one for one in found.assumptions)
