"""`sbpair rules` on embedded namespaces: rules take what the namespace delivers, the catch-all takes the rest."""

import json
from pathlib import Path

import pytest

from tests.cli.process import Sbpair

TOPIC = "asked"
RULES = {
    "german": {"sql": "country = 'DE' OR country = 'AT'", "action": "SET lang = 'de'; REMOVE draft"},
    "large": {"sql": "amount > 100"},
    "invoices": {"sql": None, "correlation": [["label", "invoice"]], "properties": [["kind", "new"]]},
    "all-but-off": {"sql": "1=1"},
}
MESSAGES = {
    "a": {"application_properties": {"country": "DE", "draft": True}},
    "b": {"application_properties": {"country": "FR", "amount": 101}},
    "c": {"subject": "invoice", "application_properties": {"kind": "new"}},
    "d": {"subject": "invoice"},
    "e": {"application_properties": {"country": "FR"}},
    "f": {},
}
NOBODY = ["d", "e", "f"]


MAKE = """\
import asyncio, json, sys
from sbpair.connect import open_topology
from sbpair.core.entities import EntityKind, EntitySettings, RuleFacts
from sbpair.settings import load

async def main(topic, rules):
    async with open_topology(load().pair("local").primary) as topology:
        if await topology.entity(topic) is not None:
            await topology.delete(topic)
        await topology.create(EntityKind.TOPIC, topic, EntitySettings())
        for name, rule in rules.items():
            path = f"{topic}/Subscriptions/{name}"
            await topology.create(EntityKind.SUBSCRIPTION, path, EntitySettings())
            await topology.create_rule(path, RuleFacts("own", **rule))
            await topology.delete_rule(path, "$Default")

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


@pytest.fixture
def topic(local: Sbpair) -> str:
    """One process makes what sixteen commands would make; those of `sbpair entity` have tests of their own."""
    local.python(MAKE, TOPIC, json.dumps(RULES))
    assert local("entity", "set-status", f"{TOPIC}/Subscriptions/all-but-off", "Disabled", "--yes").code == 0
    return TOPIC


def send(local: Sbpair, target: str = TOPIC) -> None:
    lines = "".join(json.dumps({"message_id": name, **message}) + "\n" for name, message in MESSAGES.items())
    assert local("send", "local", target, stdin=lines).code == 0


def held(local: Sbpair, subscription: str) -> list[str]:
    peeked = local("entity", "peek", f"{TOPIC}/Subscriptions/{subscription}", "-o", "json").data["messages"]
    return sorted(message["message_id"] for message in peeked)


def test_what_the_rules_say_is_what_the_namespace_delivers(local: Sbpair, topic: str, tmp_path: Path) -> None:
    send(local)
    assert local("entity", "set-status", f"{topic}/Subscriptions/all-but-off", "Active", "--yes").code == 0
    delivered = {one: held(local, one) for one in RULES}
    assert local("entity", "set-status", f"{topic}/Subscriptions/all-but-off", "Disabled", "--yes").code == 0
    for name, message in MESSAGES.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"message_id": name, **message}))
        asked = local("rules", "test", topic, "--message", str(file), "-o", "json")
        taken = [one for one in RULES if name in delivered[one]]
        assert (asked.data["taken_by"], asked.code) == (taken, 0 if taken else 5), name


def test_why_a_rule_does_not_take_a_message_and_what_its_action_changes(local: Sbpair, topic: str) -> None:
    asked = local("rules", "test", topic, "--property", "country=AT", "--property", "sys.Label=invoice", "--property",
                  "draft=true", "-o", "json")  # fmt: skip
    rules = {rule["subscription"]: rule for rule in asked.data["rules"]}
    assert rules["german"]["changes"] == ["lang: not set -> 'de'", "draft is removed"]
    assert rules["large"]["because"] == ["amount > 100 is unknown: amount is not set"]
    assert rules["invoices"]["because"] == ["kind = 'new' is unknown: kind is not set"]
    assert "Disabled, and gets no messages" in rules["all-but-off"]["because"][0]
    mistake = local("rules", "test", topic, "--property", "sys.Nothing=1")
    assert (mistake.code, "sys.subject" in mistake.stderr) == (2, True)
    assert local("rules", "test", "orders", "--property", "a=1").code == 1


def test_a_property_is_what_the_language_of_rules_writes_or_else_a_text(
    local: Sbpair, topic: str, tmp_path: Path
) -> None:
    written = {"101": "101", "-1.5e0": "-1.5", "'it''s'": "'it''s'", "TRUE": "TRUE"}
    texts = {one: f"'{one}'" for one in ("nan", "inf", "1_000", "2026-11-24", "NULL", "a=b", "")}
    for given, shown in (written | texts).items():
        asked = local("rules", "test", topic, "--property", f"country={given}", "-o", "json")
        german = next(rule for rule in asked.data["rules"] if rule["subscription"] == "german")
        assert german["because"][0] == f"country = 'DE' is false: country is {shown}", given
    odd = tmp_path / "odd.json"
    for text, said in (('{"application_properties": "x"}', "not an object"), ("[" * 20_000, "JSON"), ("7", "object")):
        odd.write_text(text)
        refused = local("rules", "test", topic, "--message", str(odd), "--property", "a=1")
        assert (refused.code, said in refused.stderr) == (2, True), refused.stderr


def test_a_rule_that_fails_is_told_from_one_that_does_not_match(local: Sbpair, topic: str) -> None:
    path = f"{topic}/Subscriptions/large/Rules/odd"
    assert local("entity", "create", path, "--filter", "amount + 1 = 2", "--yes").code == 0
    asked = local("rules", "test", topic, "--property", "amount=x", "-o", "json")
    (odd,) = [rule for rule in asked.data["rules"] if rule["rule"] == "odd"]
    assert (odd["takes"], "dead-lettered" in odd["because"][0]) == ("fails", True)
    assert "may fail" in local("rules", "unmatched", topic).stderr


def test_the_catch_all_takes_the_rest_and_is_brought_up_to_date(local: Sbpair, topic: str) -> None:
    shown = local("rules", "unmatched", topic, "--create", "nobody", "--dry-run", "-o", "json")
    assert (shown.code, shown.data["dry_run"], "Disabled" in shown.stderr) == (5, True, True)
    assert local("rules", "unmatched", topic, "--create", "nobody", "--yes").code == 0
    again = local("rules", "unmatched", topic, "--create", "nobody", "--yes", "-o", "json")
    assert (again.code, again.data["changed"]) == (0, False)
    send(local)
    assert held(local, "nobody") == NOBODY
    assert local("entity", "create", f"{topic}/Subscriptions/french", "--yes").code == 0
    assert local("rules", "unmatched", topic, "-o", "json").data["filter"] == "1 = 0"
    needless = local("rules", "unmatched", topic, "--create", "needless", "--yes", "-o", "json")
    assert (needless.code, needless.data["changed"]) == (0, False)
    assert f"The rules of {topic} take every message. Nothing was changed." in needless.stderr
    assert local("entity", "show", f"{topic}/Subscriptions/needless").code == 1
    assert local("entity", "delete", f"{topic}/Subscriptions/french/Rules/$Default", "--yes").code == 0
    assert local(
        "entity", "create", f"{topic}/Subscriptions/french/Rules/fr", "--filter", "country = 'FR'", "--yes"
    ).code == 0  # fmt: skip
    updated = local("rules", "unmatched", topic, "--create", "nobody", "--yes", "-o", "json")
    assert updated.data["changed"]
    rules = local("entity", "show", f"{topic}/Subscriptions/nobody", "-o", "json").data["rules"]
    assert len(rules) == 1 and "'FR'" in rules[0]["filter"]
    taken = local("rules", "unmatched", topic, "--create", "german", "--yes")
    assert (taken.code, "is no catch-all" in taken.stderr) == (1, True)


def test_messages_of_an_entity_and_of_an_archive_are_looked_through(local: Sbpair, topic: str, tmp_path: Path) -> None:
    if local("entity", "show", "copies").code:
        assert local("entity", "create", "copies", "--yes").code == 0
    send(local, "copies")
    found = local("rules", "unmatched", topic, "--browse", "copies", "-o", "json")
    assert (found.code, found.data["looked_at"]) == (5, len(MESSAGES))
    assert sorted(message["message_id"] for message in found.data["messages"]) == NOBODY
    few = local("rules", "unmatched", topic, "--browse", "copies", "--limit", "2", "-o", "json")
    assert (few.code, few.data["looked_at"], few.data["whole"]) == (0, 2, False)
    archive = tmp_path / "archive"
    assert local("purge", "copies", "--archive", str(archive), "--yes", stdin="copies\n").code == 0
    other = local("rules", "unmatched", topic, "--archive", str(archive), "-o", "json")
    assert (other.code, other.data["looked_at"]) == (0, 0), "they were for another entity"


def test_what_does_not_fit_is_said_and_nothing_is_created(local: Sbpair, topic: str) -> None:
    for number in range(12):
        path = f"{topic}/Subscriptions/large/Rules/n{number}"
        condition = f"property_{number} = 'a rather long value' AND another_property_{number} LIKE 'x%'"
        assert local("entity", "create", path, "--filter", condition, "--yes").code == 0
    said = local("rules", "unmatched", topic)
    assert (said.code, "1,024" in said.stderr, "one filter" in said.stderr) == (0, True, True)
    refused = local("rules", "unmatched", topic, "--create", "nobody", "--yes")
    assert (refused.code, "Nothing was changed" in refused.stderr) == (2, True)
    assert local("entity", "show", f"{topic}/Subscriptions/nobody").code == 1
