"""`sbpair evacuate` between two embedded namespaces: everything goes, what cannot go is said before anything does."""

import asyncio
import shlex
import signal
import time
from collections.abc import Iterator

import pytest

from sbpair.connect import open_topology
from sbpair.core.entities import EntityKind, EntitySettings, RuleFacts
from sbpair.core.message import Disposition
from sbpair.core.pairing import Side
from sbpair.core.rewrite import as_sent, compose
from sbpair.runtime.transfer.ledger import outcomes_in
from sbpair.settings import load
from tests.cli.conftest import embedded_pair
from tests.cli.process import Ran, Sbpair
from tests.cli.transfer.entities import Entities
from tests.waiting import LIMIT_SECONDS, until

HELD = "evacuated/local-primary"
WORDS = ("evacuate", "local-primary", "local-secondary")


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entities]:
    """A Standard and a Premium namespace with nothing in them."""
    runner = Sbpair(tmp_path_factory.mktemp("home"))
    (runner.home / "seed.yaml").write_text("local-secondary: {tier: Premium}\n", encoding="utf-8")
    with embedded_pair(runner, "--seed", "seed.yaml"):
        yield Entities(runner)


def messages(prefix: str, number: int = 3, **values: object) -> list[bytes]:
    return [compose(body=f"{prefix}{n}", message_id=f"{prefix}{n}", **values) for n in range(number)]  # type: ignore[arg-type]


async def make_topic(made: Entities) -> None:
    access = load(environ=made.runner.variables(), directory=made.runner.home).pair("local").primary
    async with open_topology(access) as topology:
        await topology.create(EntityKind.TOPIC, "news", EntitySettings(user_metadata="ours"))
        await topology.create(EntityKind.SUBSCRIPTION, "news/Subscriptions/all", EntitySettings(max_delivery_count=3))
        german = "news/Subscriptions/german"
        await topology.create(EntityKind.SUBSCRIPTION, german, EntitySettings(user_metadata="de"))
        await topology.create_rule(german, RuleFacts("de", "country = 'DE'"))
        await topology.delete_rule(german, "$Default")


def test_a_standard_namespace_moves_into_a_premium_one_with_all_it_holds(made: Entities) -> None:
    made.queue("orders", enable_partitioning=True, max_delivery_count=4)
    made.queue("strict", requires_duplicate_detection=True)
    made.queue("by/session", requires_session=True)
    asyncio.run(make_topic(made))
    sent = {name: messages(name) for name in ("orders", "strict")}
    sent["by/session"] = messages("s", 6, session_id="one")
    made.dead("orders", messages("dead", 2))
    made.send("orders", *messages("deferred", 1))
    made.settle("orders", [""], Disposition.DEFER)
    for path, payloads in sent.items():
        made.send(path, *payloads)
    made.send("orders", compose(body=b"", message_id="later", scheduled_at=time.time() + 3600))
    news = [*messages("fr", 2), *messages("de", 2, application_properties={"country": "DE"})]
    made.send("news", *news)
    tomorrow = compose(body=b"", message_id="tomorrow", scheduled_at=round(time.time()) + 86_400)
    made.send("news", tomorrow)
    shown = made.runner(*WORDS, "--dry-run", "-o", "json")
    assert (shown.code, shown.data["source_empty"]) == (5, False)
    assert made.runner("entity", "list", "--side", "secondary", "-o", "json").data["entities"] == []
    ran = made.runner(*WORDS, "--yes", "-o", "json")
    assert (ran.code, ran.data["source_empty"], ran.data["left"]) == (0, True, []), ran
    assert "local-primary is empty" in ran.stderr
    for planned, done in zip(shown.data["moves"], ran.data["moves"], strict=True):
        assert (planned["entity"], planned["to"], planned["counted"]) == (done["entity"], done["to"], done["counted"])
        assert done["counted"] == done["moved"] == done["accepted"] == done["there_now"]
    places = {
        "orders": [*messages("deferred", 1), *sent["orders"]],
        "strict": sent["strict"],
        "by/session": sent["by/session"],
        f"{HELD}/queues/orders/dead-letters": messages("dead", 2),
        f"{HELD}/topics/news/all": news,
        f"{HELD}/topics/news/german": news[2:],
    }
    for path, payloads in places.items():
        lies = [as_sent(one.payload) for one in made.lying(path, Side.SECONDARY)]
        assert sorted(one.payload for one in lies if one.message_id != "later") == sorted(payloads), path
    assert "later" in made.ids("orders", Side.SECONDARY)
    assert [as_sent(one.payload).payload for one in made.lying("news", Side.SECONDARY)] == [tomorrow]
    in_order = [as_sent(one.payload).payload for one in made.lying("by/session", Side.SECONDARY)]
    assert in_order == sent["by/session"]
    german = made.runner("entity", "show", "local-secondary:news/Subscriptions/german", "-o", "json").data
    assert [rule["name"] for rule in german["rules"]] == ["de"]
    assert german["settings"]["user_metadata"] == "de"
    orders = made.runner("entity", "show", "local-secondary:orders", "-o", "json").data["settings"]
    assert (orders["enable_partitioning"], orders["max_delivery_count"], orders["user_metadata"]) == (False, 4, None)
    ledger = made.runner.home / "evacuate-local-primary-local-secondary.jsonl"
    assert len(list(outcomes_in(ledger))) == sum(one["moved"] for one in ran.data["moves"])
    again = made.runner(*WORDS, "--yes", "-o", "json")
    assert (again.code, again.data["moves"], again.data["held"]) == (0, [], sorted(ran.data["held"]))
    assert set(ran.data["held"]) == {path for path in places if path.startswith(HELD)}


def test_what_is_in_the_way_is_said_and_nothing_is_touched(made: Entities) -> None:
    for path in ("orders", "plain"):
        made.queue(path)
        made.send(path, *messages(path, 1))
    made.queue("orders", Side.SECONDARY, requires_session=True)
    made.queue("plain", Side.SECONDARY, requires_duplicate_detection=True)
    shown = made.runner(*WORDS, "--dry-run", "-o", "json")
    assert (shown.code, {step["action"] for step in shown.data["entities"]}) == (5, {"conflict"})
    offered = made.runner(*WORDS, "--plan-out", "plan.json")
    assert (offered.code, "No plan was written" in offered.stderr, "Do it:" in offered.stderr) == (5, True, False)
    assert not (made.runner.home / "plan.json").exists()
    refused = made.runner(*WORDS, "--yes")
    assert (refused.code, "requires sessions there" in refused.stderr) == (2, True)
    assert "Nothing was changed" in refused.stderr
    assert (made.ids("orders"), made.ids("plain")) == (["orders0"], ["plain0"])
    made.dead("plain", messages("dead", 1))
    lines = {one["entity"]: one for one in made.runner(*WORDS, "--except", "orders", "--dry-run", "-o", "tsv").records}
    assert lines["orders"]["left"] == "1"
    assert lines["orders"]["note"] == "excluded"
    assert [lines["plain"][name] for name in ("kind", "action", "counted")] == ["queue", "conflict", "1"]
    assert "it detects duplicates there" in lines["plain"]["note"]
    assert lines["plain/$deadletterqueue"]["to"] == f"{HELD}/queues/plain/dead-letters"
    part = made.runner(*WORDS, "--except", "ORDERS", "--despite-duplicate-detection", "--yes", "-o", "json")
    assert (part.code, part.data["source_empty"]) == (0, False)
    assert [(one["entity"], one["reason"]) for one in part.data["left"]] == [("orders", "excluded")]
    assert (made.ids("orders"), made.ids("plain"), made.ids("plain", Side.SECONDARY)) == (["orders0"], [], ["dead0"])


def test_a_plan_is_written_read_and_refused_once_an_entity_has_changed(made: Entities) -> None:
    for path in ("orders", "test-orders"):
        made.queue(path)
        made.send(path, *messages(path, 2))
    written = made.runner(*WORDS, "--except", "test-*", "--plan-out", "plan.json")
    assert (
        written.code,
        "Do it: sbpair evacuate local-primary local-secondary --plan plan.json" in written.stderr,
    ) == (0, True), written
    assert made.runner("entity", "list", "--side", "secondary", "-o", "json").data["entities"] == []
    made.queue("more")
    refused = made.runner(*WORDS, "--plan", "plan.json", "--yes", "-o", "json")
    assert (refused.code, refused.error["code"]) == (2, "stale-plan"), refused
    assert "about more" in refused.stderr
    assert made.runner("entity", "delete", "more", "--yes").code == 0
    backwards = made.runner("evacuate", "local-secondary", "local-primary", "--plan", "plan.json", "--yes")
    assert (backwards.code, "is a plan from" in backwards.stderr) == (2, True)
    killed_after_its_first_change(made, "--plan", "plan.json", "--rate", "0.01")
    done = made.runner(*WORDS, "--plan", "plan.json", "--yes", "-o", "json")
    assert (done.code, made.ids("orders", Side.SECONDARY)) == (0, ["orders0", "orders1"]), done
    assert [one["reason"] for one in done.data["left"]] == ["excluded"]
    assert len(made.ids("test-orders")) == 2
    again = made.runner(*WORDS, "--plan", "plan.json", "--yes", "-o", "json")
    assert (again.code, again.data["moves"]) == (0, []), "killed on its last step, it would be begun once more"


def killed_after_its_first_change(made: Entities, *more: str) -> None:
    log = made.runner.home / "killed.log"
    with log.open("wb") as err:
        process = made.runner.begin(*WORDS, *more, "--yes", stderr=err)
    until(lambda: b"Created " in log.read_bytes(), process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_what_cannot_be_received_is_left_with_the_reason(made: Entities) -> None:
    made.queue("orders")
    made.send("orders", *messages("a", 1))
    assert made.runner("entity", "set-status", "orders", "ReceiveDisabled", "--yes").code == 0
    ran = made.runner(*WORDS, "--yes", "-o", "json")
    assert (ran.code, ran.data["source_empty"]) == (3, False)
    assert [(one["entity"], one["messages"]) for one in ran.data["left"]] == [("orders", 1)]
    assert "So that such messages are moved as well: sbpair entity set-status local-primary:orders Active" in ran.stderr
    assert "Go on with: sbpair evacuate local-primary local-secondary" in ran.stderr
    assert made.runner("entity", "set-status", "orders", "Active", "--yes").code == 0
    made.queue("shut")
    assert made.runner("entity", "set-status", "shut", "Disabled", "--yes").code == 0
    part = made.runner(*WORDS, "--yes")
    assert (part.code, "Could not browse shut" in part.stderr) == (3, True), part
    without = made.runner(*WORDS, "--except", "shut", "--yes", "-o", "json")
    assert (without.code, without.data["source_empty"]) == (0, False), without
    assert made.ids("orders", Side.SECONDARY) == ["a0"]


def test_an_interrupted_evacuation_says_how_to_go_on_and_the_same_command_does(made: Entities) -> None:
    made.queue("orders")
    sent = [f"a{n}" for n in range(300)]
    made.send_together("orders", messages("a", 300))
    ledger = made.runner.home / "evacuate-local-primary-local-secondary.jsonl"
    process = made.runner.begin(
        *WORDS, "--rate", "10", "--reserve", "400", "--yes", "-o", "json"
    )  # half a minute's work
    try:
        until(lambda: ledger.exists() and ledger.stat().st_size, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    stopped = Ran(process.returncode, stdout, stderr)
    assert stopped.code == 130, stopped
    assert "Interrupted; what was in flight is settled or released." in stderr
    assert "Go on with: sbpair evacuate local-primary local-secondary --rate 10 --reserve 400" in stderr
    moved = stopped.data["moves"][0]["moved"]
    assert 0 < moved < 300
    assert stopped.data["source_empty"] is False
    assert (len(made.ids("orders")), len(made.ids("orders", Side.SECONDARY))) == (300 - moved, moved)
    again = made.runner(*WORDS, "--yes", "-o", "json")
    assert (again.code, again.data["source_empty"], again.data["moves"][0]["accepted"]) == (0, True, 300), again
    assert "Created 1 entity (with earlier runs) on local-secondary" in again.stderr
    assert sorted(made.ids("orders", Side.SECONDARY), key=str) == sorted(sent)


def test_a_namespace_is_not_evacuated_into_itself(made: Entities) -> None:
    ran = made.runner("evacuate", "local-primary", "local-primary", "--yes")
    assert (ran.code, "FROM and TO are both local-primary" in ran.stderr) == (2, True)


def test_a_follower_that_is_killed_goes_on_and_a_cut_over_beside_it_ends_it(made: Entities) -> None:
    made.queue("orders", lock_duration_seconds=5.0)
    made.queue("by/session", requires_session=True, lock_duration_seconds=5.0)
    ledger = made.runner.home / "evacuate-local-primary-local-secondary.jsonl"
    sent = 0

    def send(number: int) -> None:
        nonlocal sent
        named = range(sent, sent + number)
        made.send_together("orders", [compose(body="", message_id=f"o{n}") for n in named])
        made.send_together("by/session", [compose(body="", message_id=f"s{n}", session_id="one") for n in named])
        sent += number

    def there() -> int:
        return len(set(made.ids("orders", Side.SECONDARY))) + len(set(made.ids("by/session", Side.SECONDARY)))

    send(40)
    for _ in range(2):
        process = made.runner.begin(*WORDS, "--follow", "--yes", "-q")
        until(lambda: ledger.exists() and there() >= sent, process)
        send(60)
        process.kill()
        process.communicate()
    refused = made.runner(*WORDS, "--cut-over", "--follow", "--yes")
    assert (refused.code, "--cut-over does it now" in refused.stderr) == (2, True)
    refused = made.runner(*WORDS, "--when-lag", "2s", "--rate", "5", "--yes")
    assert (refused.code, "--rate and --reserve are for what lies there" in refused.stderr) == (2, True)
    process = made.runner.begin(*WORDS, "--follow", "--yes", "-o", "json")
    until(lambda: there() == 2 * sent, process)
    send(30)
    until(lambda: there() == 2 * sent, process)
    shown = made.runner(*WORDS, "--status", "-o", "json")
    assert (shown.code, {one["entity"] for one in shown.data["lag"]}) == (0, {"orders", "by/session"}), shown
    assert "local-primary accepts messages." in shown.stderr
    cut = made.runner(*WORDS, "--cut-over", "--yes", "-o", "json", timeout=LIMIT_SECONDS)
    assert (cut.code, cut.data["source_empty"], cut.data["closed"]) == (0, True, True), cut
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    followed = Ran(process.returncode, stdout, stderr)
    assert (followed.code, followed.data["source_empty"], followed.data["closed"]) == (0, True, True), followed
    arrived = list(dict.fromkeys(made.ids("by/session", Side.SECONDARY)))
    assert arrived == [f"s{n}" for n in range(sent)], "in order, whoever moved them"
    assert set(made.ids("orders", Side.SECONDARY)) == {f"o{n}" for n in range(sent)}
    statuses = made.runner("entity", "list", "--namespace", "local-primary", "-o", "json").data["entities"]
    assert {one["status"] for one in statuses} == {"SendDisabled"}, statuses


def test_a_follower_that_is_interrupted_prints_both_ways_on(made: Entities) -> None:
    made.queue("orders")
    log = made.runner.home / "followed.log"
    with log.open("wb") as err:
        process = made.runner.begin(*WORDS, "--follow", "--yes", stderr=err)
    until(lambda: b"Created " in log.read_bytes(), process)
    made.send("orders", *messages("a", 2))
    until(lambda: len(made.ids("orders", Side.SECONDARY)) == 2, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    said = log.read_text(encoding="utf-8")
    assert process.returncode == 130, said
    assert "Stopped following. local-primary still accepts messages; 0 messages wait there." in said
    assert "Go on with: sbpair evacuate local-primary local-secondary --follow" in said
    assert "Or cut over: sbpair evacuate local-primary local-secondary --cut-over" in said
    assert "The way back is open" in said


async def shorten_locks(made: Entities, path: str) -> None:
    """Of an entity at the secondary: what a killed process holds is waited for."""
    access = load(environ=made.runner.variables(), directory=made.runner.home).pair("local").secondary
    async with open_topology(access) as topology:
        await topology.update(path, {"lock_duration_seconds": 5.0})


def test_what_was_held_for_a_subscription_is_handed_to_it_alone_though_the_first_run_is_killed(made: Entities) -> None:
    asyncio.run(make_topic(made))
    assert made.runner("entity", "delete", "local-primary:news/Subscriptions/all", "--yes").code == 0
    news = messages("de", 60, application_properties={"country": "DE"})
    made.send_together("news", news)
    done = made.runner(*WORDS, "--yes")
    assert done.code == 0, done
    (line,) = (line for line in done.stderr.splitlines() if "to it alone: " in line)
    words = shlex.split(line.partition("alone: sbpair ")[2])
    assert words[-1] == "--delete-empty"
    german, held = "news/Subscriptions/german", f"{HELD}/topics/news/german"
    asyncio.run(shorten_locks(made, held))
    process = made.runner.begin(*words, "--rate", "20", "--yes", "-q")
    until(lambda: len(made.ids(german, Side.SECONDARY)) >= 10, process)
    process.kill()
    process.communicate()
    arrived = made.ids(german, Side.SECONDARY)
    assert len(arrived) + len(made.ids(held, Side.SECONDARY)) == 60, "sent and completed in one transaction"
    ran = made.runner(*words, "--yes", "-o", "json", timeout=LIMIT_SECONDS)
    assert (ran.code, ran.data["to"]) == (0, german), ran
    assert "They were the same afterwards." in ran.stderr
    assert sorted(made.ids(german, Side.SECONDARY)) == sorted(f"de{n}" for n in range(60)), "each once"
    assert sorted(as_sent(one.payload).payload for one in made.lying(german, Side.SECONDARY)) == sorted(news)
    assert made.runner("entity", "show", f"local-secondary:{held}").code != 0
