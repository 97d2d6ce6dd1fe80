"""An audit through the public call, on embedded namespaces."""

import asyncio
import json
from pathlib import Path

import pytest

import sbpair
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.operations import AuditRequest, ProvisionRequest, append_history, audit, audit_snapshot, provision
from sbpair.ports import Sides
from tests.operations.conftest import QUEUES, World, backlog_queue


def test_a_healthy_pair_from_code_that_is_not_asynchronous(world: World) -> None:
    sbpair.run(provision, world.pair, ProvisionRequest(update=True))
    audited = sbpair.run(audit, world.pair, AuditRequest())
    assert audited.verdict in ("ok", "info")
    assert (audited.waiting, audited.known, len(audited.queues)) == (0, True, QUEUES)
    assert audited.management_calls > 0 and audited.not_read == ()


async def test_what_waits_and_what_is_missing_is_found(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 5)
    await sides.secondary_admin.delete_queue(backlog_queue(2))
    audited = await audit(sides, AuditRequest())
    assert audited.waiting == 5
    missing = [finding for finding in audited.report.findings if finding.subject == backlog_queue(2)]
    assert [finding.code for finding in missing] == ["SBP001"]
    assert audited.verdict == "error"


async def test_a_saved_snapshot_is_judged_alike_and_by_the_chosen_checks_alone(world: World, sides: Sides) -> None:
    await sides.secondary_admin.delete_queue(backlog_queue(0))
    audited = await audit(sides, AuditRequest())
    assert audit_snapshot(audited.snapshot, AuditRequest()).report == audited.report
    chosen = audit_snapshot(audited.snapshot, AuditRequest(checks=["SBP001"])).report
    assert {finding.code for finding in chosen.findings} == {"SBP001"}
    ignored = audit_snapshot(audited.snapshot, AuditRequest(checks=["SBP001"], ignore=["SBP001"])).report
    assert (ignored.findings, ignored.ignored) == ((), len(chosen.findings))


def test_an_unknown_check_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="SBP999"):
        AuditRequest(checks=["SBP999"])
    with pytest.raises(UsageError, match="SBP999"):
        AuditRequest(ignore=["SBP999:*"])


async def test_what_cannot_be_read_is_said_of_the_pair(world: World, sides: Sides) -> None:
    world.emulator.faults("fabrikam").add("fail:operation=http,status=401")
    audited = await audit(sides, AuditRequest())
    assert audited.verdict == "denied"
    assert {entry.subject for entry in audited.not_read} >= {"namespace", "queues"}
    assert not audited.known


async def test_a_stop_ends_the_reading(sides: Sides) -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(InterruptedWorkError):
        await audit(sides, AuditRequest(), stop=stop)


async def test_the_history_grows_by_a_line(sides: Sides, tmp_path: Path) -> None:
    audited = await audit(sides, AuditRequest())
    for _ in range(2):
        append_history(tmp_path / "history", audited)
    lines = (tmp_path / "history" / "embedded.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["pair"] for line in lines] == ["embedded", "embedded"]
    assert len(json.loads(lines[0])["queues"]) == QUEUES
