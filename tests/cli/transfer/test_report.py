"""`sbpair report`: an incident over all runs of its ledgers, and their lines verified."""

import json
from pathlib import Path

from sbpair.render.output import Format
from tests.cli.process import Sbpair

DIVERT = """
import asyncio
from sbpair import compose, for_backlog, open_sides
from sbpair.settings import load
async def main():
    pair = load().pair("local")
    async with open_sides(pair) as sides:
        payloads = [for_backlog(compose(body="x", message_id=str(n)), "QUEUE") for n in range(3)]
        payloads.append(for_backlog(compose(body="x", message_id="lost"), "no-such-queue"))
        await sides.secondary.sender(pair.backlog_paths()[1]).send(payloads, timeout_seconds=30)
asyncio.run(main())
"""


def an_incident(local: Sbpair, queue: str) -> Path:
    """A ledger of two runs, the first one with a limit."""
    assert local("provision", "local", "--queues", "2").code == 0
    local.make_queue(queue)
    local.python(DIVERT.replace("QUEUE", queue))
    drain = ("drain", "local", "--yes", "--ledger", f"{queue}.jsonl")
    assert local(*drain, "--limit", "1", "--reason", "INC-4711").code == 3
    assert local(*drain, "--on-missing", "dead-letter", env={"SBPAIR_REASON": "the same"}).code == 3
    return local.home / f"{queue}.jsonl"


def test_several_runs_of_one_ledger_are_one_incident(local: Sbpair) -> None:
    ledger = an_incident(local, "orders")
    ran = local("report", "orders.jsonl", "--verify", "-o", "json")
    assert ran.code == 0, ran
    told = ran.data
    assert [(run["command"], run["reason"], run["sent"], run["dead_lettered"]) for run in told["runs"]] == [
        ("drain", "INC-4711", 1, 0),
        ("drain", "the same", 2, 1),
    ]
    assert all("@" in run["who"] and "(" in run["credentials"] and run["ended"] for run in told["runs"])
    assert (told["messages"], told["sent"], told["destinations"]) == (4, 3, {"orders": 3})
    assert told["dead_letter_reasons"] == {"EntityNotFound": 1}
    assert (told["waiting"]["active"], told["waiting"]["dead_letter"] > 0, told["possible_doubles"]) == (0, True, [])
    assert told["first_enqueued_at"] <= told["last_enqueued_at"] <= told["first_sent_at"]
    assert told["ledgers"][0]["not_chained"] == 0
    page = local("report", "orders.jsonl", "-o", Format.HTML.value).stdout
    for text in ("INC-4711", "EntityNotFound", told["ledgers"][0]["sha256"][:16], "ssh-keygen -Y sign"):
        assert text in page
    (local.home / "orders.jsonl.sig").write_text(
        "-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n"
    )
    text = local("report", "orders.jsonl", "-o", "markdown").stdout
    assert "U1NIU0lH" in text
    assert "check-novalidate" in text
    assert json.loads(ledger.read_text().splitlines()[0])["outcome"] == "run-began"


def test_the_report_of_a_continued_drain_tells_of_all_runs(local: Sbpair) -> None:
    an_incident(local, "parcels")
    local.python(DIVERT.replace("QUEUE", "parcels"))
    ran = local("drain", "local", "--yes", "--ledger", "parcels.jsonl", "--report", "all.md")
    assert ran.code == 3, ran
    text = (local.home / "all.md").read_text(encoding="utf-8")
    assert "All runs of the ledger" in text
    assert "INC-4711" in text
    assert "in 3 runs" in text


def test_a_changed_ledger_is_found(local: Sbpair) -> None:
    ledger = an_incident(local, "bills")
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines).replace(b'"bills"', b'"bills2"', 1))
    ran = local("report", "bills.jsonl", "--verify")
    assert ran.code == 5, ran
    assert "not as written" in ran.stderr
    assert local("report", "bills.jsonl").code == 0, "only asked to verify does it judge"
    ledger.write_bytes(b"".join(lines) + lines[-1][:40])
    ran = local("report", "bills.jsonl", "--verify")
    assert ran.code == 0, ran
    assert "cut off by a crash" in ran.stderr
