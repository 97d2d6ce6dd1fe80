"""`--plan-out` and `--plan` for messages: one user plans, another applies it; what has changed is refused."""

import json

import pytest

from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.transfer.message_plan import MessagePlan
from sbpair.core.transfer.state import Key
from tests.cli.process import Sbpair

STRAND = """
import asyncio
from sbpair import compose, for_backlog, open_sides
from sbpair.settings import load
async def main():
    pair = load().pair("local")
    async with open_sides(pair) as sides:
        payloads = [for_backlog(compose(body="x", message_id=f"NAME{n}"), "QUEUE") for n in range(COUNT)]
        await sides.secondary.sender(pair.backlog_paths()[0]).send(payloads, timeout_seconds=30)
asyncio.run(main())
"""
PUT = """
import asyncio
from sbpair import compose, open_sides
from sbpair.settings import load
async def main():
    pair = load().pair("local")
    async with open_sides(pair) as sides:
        payloads = [compose(body="x", message_id=f"NAME{n}") for n in range(COUNT)]
        await sides.primary.sender("QUEUE").send(payloads, timeout_seconds=30)
asyncio.run(main())
"""
KEYS: list[Key] = [("orders", number, f"m{number}", 1000 + number) for number in (1, 2, 3, 7)]


def run(local: Sbpair, script: str, queue: str, name: str, count: int) -> None:
    local.python(script.replace("QUEUE", queue).replace("NAME", name).replace("COUNT", str(count)))


def a_plan() -> MessagePlan:
    return MessagePlan.of(KEYS, command="sbpair purge orders", hosts=["a"], left={}, undo="It cannot be undone.")


def read(data: object, command: str = "sbpair purge orders", host: str = "a") -> MessagePlan:
    return MessagePlan.parse("plan.json", [data], command=command, hosts=[host])


def test_a_plan_is_read_as_it_was_written_and_chooses_its_messages_only() -> None:
    plan = read(json.loads(json.dumps(a_plan().to_dict())))
    assert plan == a_plan()
    assert plan.queues[0].numbers == ((1, 3), (7, 7))
    later = ("orders", 9, "m9", 2000)
    assert plan.chosen("plan.json", [later, *reversed(KEYS)]) == tuple(reversed(KEYS))


def test_what_has_changed_is_named() -> None:
    with pytest.raises(StalePlanError, match="2 of 4 messages are gone, or would be left now: 2, 7 of orders"):
        a_plan().chosen("plan.json", [KEYS[0], KEYS[2]])
    again = [(queue, number, message_id, at + 5) for queue, number, message_id, at in KEYS]
    with pytest.raises(StalePlanError, match="its numbers mean other messages now"):
        a_plan().chosen("plan.json", again)


def test_a_plan_for_something_else_is_refused() -> None:
    data = a_plan().to_dict()
    with pytest.raises(UsageError, match="another command line"):
        read(data, command="sbpair purge other")
    with pytest.raises(UsageError, match="is a plan for a, not b"):
        read(data, host="b")
    with pytest.raises(UsageError):
        read({"format_version": 1})


def test_a_drain_is_planned_by_one_and_applied_by_another(local: Sbpair) -> None:
    assert local("provision", "local", "--queues", "2").code == 0
    local.make_queue("orders")
    run(local, STRAND, "orders", "first-", 5)
    planned = local("drain", "local", "--plan-out", "plan.json")
    assert planned.code == 0, planned
    assert "Plan for 5 messages written to plan.json" in planned.stderr
    assert local("status", "local").code != 2
    run(local, STRAND, "orders", "later-", 2)
    other = local("drain", "local", "--dlq", "--plan", "plan.json", "--yes")
    assert (other.code, "another command line" in other.stderr) == (2, True), other
    applied = local("drain", "local", "--plan", "plan.json", "--yes", "-o", "json")
    assert applied.data["forwarded"] == 5, applied
    assert applied.code == 3, "what came later waits"
    again = local("drain", "local", "--plan", "plan.json", "--yes")
    assert (again.code, "5 of 5 messages are gone" in again.stderr) == (2, True), again


def test_a_purge_and_a_move_are_held_to_their_plans(local: Sbpair) -> None:
    local.make_queue("bills")
    local.make_queue("parked")
    run(local, PUT, "bills", "a-", 4)
    move = ("move", "bills", "parked", "--pair", "local")
    full = local(*move, "--plan-out", "/dev/full")
    assert (full.code, "No space left on device. Nothing was changed." in full.stderr) == (1, True), full
    assert local(*move, "--plan-out", "move.json", "-n", "2").code == 0
    file = json.loads((local.home / "move.json").read_text())
    plan = file["plans"][0]
    assert (plan["messages"], [one["message_id"] for one in plan["first"]]) == (2, ["a-0", "a-1"])
    run(local, PUT, "bills", "b-", 1)
    done = local(*move, "--plan", "move.json", "--yes", "-o", "json")
    assert (done.code, done.data["forwarded"]) == (0, 2), "what the plan does not have was not asked for"
    purge = ("purge", "bills", "--pair", "local", "--no-archive")
    assert local(*purge, "--plan-out", "purge.json").code == 0
    run(local, PUT, "bills", "c-", 3)
    deleted = local(*purge, "--plan", "purge.json", "--yes", "-o", "json")
    assert deleted.data["purged"] == 3, deleted
    ids = {
        one["message_id"] for one in local("entity", "peek", "bills", "--pair", "local", "-o", "json").data["messages"]
    }
    assert ids == {"c-0", "c-1", "c-2"}
    assert local(*purge, "--plan", "purge.json", "--yes").code == 2
    gone = local(*purge, "--plan", "none.json", "--yes")
    assert gone.code == 2
    assert "No such file or directory. Nothing was changed.\nWrite it with --plan-out." in gone.stderr, gone
    assert file["expires_at"] - file["made_at"] == 24 * 3600
