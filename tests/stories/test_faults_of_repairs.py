"""Commands that repair queues meet missing rights, throttling, partitions: nothing is lost, and nothing false told."""

import json
import re
import subprocess
import time
from pathlib import Path

from sbpair.core.message import Disposition, MessageState
from sbpair.core.names import backlog_queue_path
from sbpair.core.rewrite import compose
from sbpair.ports import Sides
from tests.stories.world import PRIMARY, SECONDARY, World
from tests.waiting import LIMIT_SECONDS, until

QUEUE = backlog_queue_path(PRIMARY, 0)


def put(world: World, path: str, number: int, **more: object) -> None:
    async def work(sides: Sides) -> None:
        sender = (sides.secondary if path == QUEUE else sides.primary).sender(path)
        messages = [compose(body=b"x", message_id=f"m{one}", **more) for one in range(number)]  # type: ignore[arg-type]
        await sender.send(messages, timeout_seconds=30)
        await sender.close()

    world.do(work)


def defer_all(world: World, number: int) -> None:
    async def defer(sides: Sides) -> None:
        receiver = sides.primary.receiver("orders")
        done = 0
        while done < number:
            for one in await receiver.receive(number - done, wait_seconds=5):
                await receiver.settle(one, Disposition.DEFER)
                done += 1
        await receiver.close()

    world.do(defer)


def test_a_purge_that_may_not_cancel_names_the_right(world: World) -> None:
    world.backlog_queues([0])
    put(world, QUEUE, 2, scheduled_at=time.time() + 3600)
    world.restrict()
    purge = f"sbpair purge {QUEUE} --pair restricted --side secondary --no-archive --yes"
    ran = world(purge)
    assert (ran.code, "no Send right there" in ran.stderr, "sbpair help permissions" in ran.stderr) == (
        4,
        True,
        True,
    ), ran
    world.strand("orders", 3)
    ran = world(purge)
    assert (ran.code, "3 messages of" in ran.stderr, "2 are left: scheduled." in ran.stderr) == (4, True, True), ran


def test_a_queue_that_refuses_after_its_messages_were_deleted_does_not_hide_that(world: World) -> None:
    world.destination("orders")
    put(world, "orders", 5)
    assert world(f"sbpair emulator fault add {PRIMARY} unauthorized:entity=orders,operation=attach,after=6").code == 0
    ran = world("sbpair purge orders --no-archive --yes")
    assert (ran.code, "5 messages of orders were deleted." in ran.stderr) == (4, True), ran
    assert "nothing was moved" not in ran.stderr, ran
    assert world(f"sbpair emulator fault clear {PRIMARY}").code == 0
    assert world.ids("orders") == []


def test_a_source_that_refuses_to_complete_is_not_told_as_the_destination(world: World) -> None:
    for path in ("from", "to"):
        world.destination(path, lock_duration_seconds=5.0)
    put(world, "from", 5)
    fault = "disabled:entity=from,operation=settle"
    assert world(f"sbpair emulator fault add {PRIMARY} {fault}").code == 0
    ran = world("sbpair move from to --give-up-after 1s --yes -o json")
    reasons = list(ran.data["left"])
    assert (ran.code, reasons) == (3, ["source unavailable: from (entity-disabled)"]), ran
    assert (len(world.ids("from")), world.ids("to")) == (5, []), "a transaction that failed leaves all where it was"
    assert world(f"sbpair emulator fault clear {PRIMARY}").code == 0
    assert world("sbpair move from to --yes").code == 0
    assert (world.ids("from"), len(world.ids("to"))) == ([], 5)


def test_what_is_archived_while_the_source_is_throttled_is_archived_once(world: World) -> None:
    world.destination("orders", lock_duration_seconds=5.0)
    put(world, "orders", 20)
    fault = "throttle:entity=orders,operation=settle,for=3s"
    assert world(f"sbpair emulator fault add {PRIMARY} {fault}").code == 0
    ran = world("sbpair purge orders --archive kept --yes")
    assert (ran.code, "sent before" in ran.stdout + ran.stderr) == (0, False), ran
    assert "20 messages of orders were archived" in ran.stderr, ran
    lines = [json.loads(line) for file in (world.home / "kept").iterdir() for line in file.read_text().splitlines()]
    assert sorted(line["message_id"] for line in lines if "message_id" in line) == sorted(
        f"m{one}" for one in range(20)
    )
    assert world.ids("orders") == []


def test_deferred_messages_that_were_sent_do_not_count_as_left(world: World) -> None:
    world.destination("orders")
    put(world, "orders", 5)
    defer_all(world, 5)
    ran = world("sbpair undefer orders --limit 2 --yes -o json")
    assert (ran.data["forwarded"], ran.data["left"]) == (2, {}), ran
    assert len(world.ids("orders")) == 5


def test_an_undefer_that_was_killed_says_who_has_the_rest_and_its_own_advice_ends_it(world: World) -> None:
    world.destination("orders", lock_duration_seconds=20.0)
    put(world, "orders", 300)
    defer_all(world, 300)
    assert world(f"sbpair emulator fault add {PRIMARY} delay:rtt=50ms").code == 0
    undefer = ("undefer", "orders", "--pair", "local", "--yes", "--concurrency", "1", "--ledger", "undeferred.jsonl")
    process = world.runner.start(*undefer)
    until_recorded(world.home / "undeferred.jsonl", process)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    assert world(f"sbpair emulator fault clear {PRIMARY}").code == 0
    ran = world("sbpair undefer orders --pair local --yes")
    said = re.search(
        r"cannot be received: another receiver has locked them, or a run that was killed.*ends by", ran.stderr
    )
    assert (ran.code, said is not None) == (3, True), ran
    deadline = time.monotonic() + LIMIT_SECONDS
    while ran.code == 3 and time.monotonic() < deadline:
        (command,) = re.findall(r"Go on with: (sbpair .+)$", ran.stderr, re.MULTILINE)
        ran = world(f"{command} --yes")
    assert ran.code == 0, ran
    assert world.ids("orders") == sorted(f"m{one}" for one in range(300)), "each once"
    assert world("sbpair undefer orders --pair local --dry-run").code == 0


def test_a_move_whose_source_is_deleted_says_so_and_does_not_advise_to_go_on(world: World) -> None:
    world.destination("from")
    world.destination("to")
    put(world, "from", 300)
    process = world.runner.start(
        "move", "from", "to", "--pair", "local", "--yes", "--rate", "60", "--ledger", "m.jsonl"
    )
    until_recorded(world.home / "m.jsonl", process)
    world.delete("from")
    _, said = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, "Go on with" in said, "destination unavailable" in said) == (3, False, False), said
    assert "from was deleted meanwhile, and with it what was not moved." in said


def test_an_incident_says_which_step_the_rights_were_not_enough_for(world: World) -> None:
    world.destination("orders")
    world.backlog_queues([0])
    world.strand("orders", 2)
    world.restrict()
    ran = world("sbpair incident restricted --yes")
    assert (ran.code, world.ids("orders") != []) == (0, True), ran
    (command,) = re.findall(r"done, but not complete: step 7 \(denied\), (sbpair .+)\.$", ran.stderr, re.MULTILINE)
    assert world(command).code == 4


def test_what_was_not_seen_is_not_said_to_be_none(world: World) -> None:
    world.destination("orders")
    put(world, "orders", 1)
    listed = world("sbpair session list orders --pair local")
    assert (listed.code, "orders on local-primary has no sessions" in listed.stderr) == (2, True), listed
    assert world(listed.stderr.strip().rpartition("See its messages: ")[2]).code == 0
    (number,) = [one["sequence_number"] for one in world("sbpair entity peek orders -o json").data["messages"]]
    assert world(f"sbpair message dead-letter orders {number} --pair local --yes").code == 0
    assert world(f"sbpair emulator fault add {PRIMARY} unauthorized:operation=attach").code == 0
    ran = world("sbpair dlq list --pair local")
    assert (ran.code, "No dead letter of local-primary was seen. 1 entity could not be read." in ran.stderr) == (
        4,
        True,
    )


def until_recorded(ledger: Path, process: "subprocess.Popen[str]") -> None:
    """Wait for the first line about a message that was sent."""
    until(lambda: ledger.exists() and b'"forwarded"' in ledger.read_bytes(), process)


def test_a_message_of_a_partitioned_queue_is_rescheduled_without_advice_for_a_ledger(world: World) -> None:
    world.destination("parts", enable_partitioning=True)
    put(world, "parts", 1, scheduled_at=time.time() + 3600)
    listed = world("sbpair entity peek parts --pair local -o json").data["messages"]
    ran = world(f"sbpair message reschedule parts {listed[0]['sequence_number']} 2h --pair local --yes")
    assert (ran.code, "At least once" in ran.stderr, "--ledger" in ran.stderr) == (0, True, False), ran
    again = world("sbpair entity peek parts --pair local -o json").data["messages"]
    assert [one["state"] for one in again] == [MessageState.SCHEDULED.value]
    assert SECONDARY not in ran.stderr
