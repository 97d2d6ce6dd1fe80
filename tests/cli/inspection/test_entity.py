"""`sbpair entity` on embedded namespaces: made, shown, disabled and deleted, and what is refused."""

import base64
import itertools
import json
from pathlib import Path

import pytest
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

NUMBERS = itertools.count()
EVERY_SETTING = (
    *("--max-size", "2048", "--ttl", "14d", "--lock", "2m", "--max-deliveries", "20", "--sessions"),
    *("--duplicate-detection", "20m", "--dead-letter-expired", "--auto-delete", "30d", "--metadata", "of a test"),
    *("--unbatched", "--partitioned"),
)
AS_SHOWN = {
    "max_size_in_megabytes": 2048,
    "default_message_time_to_live_seconds": 14 * 86400.0,
    "lock_duration_seconds": 120.0,
    "max_delivery_count": 20,
    "requires_session": True,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window_seconds": 1200.0,
    "dead_lettering_on_message_expiration": True,
    "auto_delete_on_idle_seconds": 30 * 86400.0,
    "user_metadata": "of a test",
    "enable_batched_operations": False,
    "enable_partitioning": True,
}


@pytest.fixture
def made(local: Sbpair) -> Entities:
    return Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def test_a_queue_is_created_with_every_setting_shown_disabled_and_deleted(local: Sbpair) -> None:
    queue = named("strict")
    shown = local("entity", "create", queue, *EVERY_SETTING, "--dry-run", "-o", "json")
    assert (shown.code, shown.data["changed"]) == (5, True)
    assert local("entity", "show", queue).code == 1, "a dry run creates nothing"
    assert local("entity", "create", queue, *EVERY_SETTING, "--yes").code == 0
    again = local("entity", "create", queue, "--yes")
    assert (again.code, "already" in again.stderr, "entity show" in again.stderr) == (1, True, True)
    settings = local("entity", "show", queue, "-o", "json").data["settings"]
    assert {name: settings[name] for name in AS_SHOWN} == AS_SHOWN
    changed = local("entity", "set-status", queue, "senddisabled", "--yes", "-o", "json")
    assert (changed.code, changed.data["detail"]) == (0, "Active -> SendDisabled")
    assert not local("entity", "set-status", queue, "SendDisabled", "--yes", "-o", "json").data["changed"]
    (listed,) = local("entity", "list", queue.upper(), "-o", "json").data["entities"]
    assert (listed["kind"], listed["status"]) == ("queue", "SendDisabled")
    assert {name: settings[name] for name in AS_SHOWN} == AS_SHOWN, "nothing else changed"
    refused = local("entity", "delete", queue, "--yes")  # what takes nothing cannot be browsed either
    assert (refused.code, "Set it to Active" in refused.stderr) == (2, True), refused.stderr
    assert local("entity", "set-status", queue, "Active", "--yes").code == 0
    assert local("entity", "delete", queue, "--yes").code == 0
    none = local("entity", "list", queue, "-o", "json")
    assert (none.data["entities"], f"0 entities with a path like '{queue}' on" in none.stderr) == ([], True), none
    actions = [line["action"] for line in local.operations if line.get("entity") == queue]
    assert actions == ["create", "set-status", "set-status", "delete"]


def test_a_topic_with_a_subscription_and_its_rules(local: Sbpair) -> None:
    topic = named("news")
    subscription = f"{topic}/Subscriptions/audit"
    for words in (
        (topic, "--topic"),
        (subscription, "--forward-to", topic),
        (f"{subscription}/Rules/german", "--filter", "country = 'DE'", "--action", "SET seen = 1"),
        (f"{subscription}/Rules/invoices", "--correlation", "label=invoice", "--correlation", "user.country=FR"),
    ):
        assert local("entity", "create", *words, "--yes").code == 0
    assert local("entity", "delete", f"{subscription}/Rules/$Default", "--yes").code == 0
    shown = local("entity", "show", subscription, "-o", "json").data
    assert shown["settings"]["forward_to"] == topic
    assert shown["rules"] == [
        {"name": "german", "filter": "country = 'DE'", "action": "SET seen = 1"},
        {"name": "invoices", "filter": "label = 'invoice' AND user.country = 'FR'", "action": None},
    ]
    one = local("entity", "show", f"{subscription}/Rules/GERMAN", "-o", "json")
    assert [rule["name"] for rule in one.data["rules"]] == ["german"]
    gone = local("entity", "delete", f"{subscription}/Rules/other", "--yes")
    assert (gone.code, "no rule other" in gone.stderr) == (1, True)


@pytest.mark.parametrize("place", ["queue", "dead letters", "subscription of a topic"])
def test_what_holds_messages_is_not_deleted_unless_told(made: Entities, place: str) -> None:
    if place == "subscription of a topic":
        entity = named("news")
        made.subscription(entity, "audit")
        made.send(entity, compose(body=b"", message_id="a"))
    else:
        entity = made.queue(named("orders"))
        made.send(entity, compose(body=b"", message_id="a"))
        if place == "dead letters":
            made.settle(entity, ["Broken"], Disposition.DEAD_LETTER)
    for words in (("--yes",), ("--dry-run",)):
        refused = made.runner("entity", "delete", entity, *words)
        assert (refused.code, "Nothing was deleted" in refused.stderr) == (2, True)
        assert "1 active" in refused.stderr or "1 dead-letter" in refused.stderr
        assert "Nothing was changed" not in refused.stderr, "it is said once, of what was asked"
        source = "local-primary:" + (f"{entity}/Subscriptions/audit" if place == "subscription of a topic" else entity)
        command = "dlq purge" if place == "dead letters" else "purge"
        assert f"Keep them first: sbpair {command} {source} --archive DIR; or" in refused.stderr, refused
    told = made.runner("entity", "delete", entity, "--with-messages", "--dry-run", "-o", "json")
    assert (told.code, "with 1" in told.data["detail"]) == (5, True)
    assert made.runner("entity", "delete", entity, "--with-messages", "--yes").code == 0
    assert made.runner("entity", "show", entity).code == 1


def test_what_cannot_be_is_refused_before_anything_is_changed(local: Sbpair) -> None:
    assert local("provision", "local").code == 0
    for words, said in (
        (("create", "a", "--filter", "x = 1"), "of a rule"),
        (("create", "a", "--topic", "--sessions"), "A topic has no --sessions"),
        (("create", "a/Subscriptions/b", "--max-size", "1024"), "A subscription has no --max-size"),
        (("create", "a/Subscriptions/b/Rules/c", "--ttl", "1d"), "A rule has no --ttl"),
        (("create", "a/Subscriptions/b/Rules/c", "--filter", "x", "--correlation", "label=y"), "not both"),
        (("create", "a/Subscriptions/b/Rules/c", "--correlation", "nonsense=y"), "no 'nonsense'"),
        (("create", "a", "--ttl", "soon"), "--ttl"),
        (("set-status", "a/Subscriptions/b/Rules/c", "Active"), "has no status"),
        (("delete", "local-secondary:local-primary/x-servicebus-transfer/0"), "sbpair cleanup local"),
    ):
        ran = local("entity", *words, "--yes")
        assert (ran.code, said in ran.stderr, "Nothing was" in ran.stderr) == (2, True, True), ran
    nobody = local("entity", "delete", "orders-that-nobody-made")
    assert (nobody.code, "There is no entity" in nobody.stderr) == (1, True)


def test_a_delete_without_a_yes_asks_and_nobody_is_there(made: Entities) -> None:
    queue = made.queue(named("orders"))
    ran = made.runner("entity", "delete", queue)
    assert (ran.code, "--yes" in ran.stderr) == (2, True)
    assert made.runner("entity", "show", queue).code == 0


def test_own_access_rules_are_shown_with_their_rights_and_without_keys(local: Sbpair) -> None:
    queue, key = named("keyed"), base64.b64encode(b"no secret of anybody's, 32 bytes").decode()
    state = json.loads((local.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    text = Path(state["namespaces"][0]["connection_string_file"]).read_text(encoding="utf-8").strip()
    rule = AuthorizationRule(
        key_name="shop",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        primary_key=key,
        secondary_key=key,
        claim_type="SharedAccessKey",
        claim_value="None",
        type="SharedAccessAuthorizationRule",
    )
    with ServiceBusAdministrationClient.from_connection_string(text, connection_verify=state["ca_file"]) as client:
        client.create_queue(queue, authorization_rules=[rule])
    shown = local("entity", "show", queue, "-o", "json")
    (access,) = shown.data["access_rules"]
    assert (access["name"], sorted(access["rights"])) == ("shop", ["Listen", "Send"])
    table = local("entity", "show", queue, "-o", "markdown")
    assert "Shared access rules" in table.stdout
    assert key not in shown.stdout + shown.stderr + table.stdout + table.stderr
