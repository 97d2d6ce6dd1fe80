"""Names of namespaces, entities and backlog queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core import names
from sbpair.core.entities import QueueFacts, QueueSettings
from sbpair.core.errors import InvalidNameError

segments = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
paths = st.lists(segments, min_size=1, max_size=5).map("/".join)


def test_the_documented_example() -> None:
    assert names.backlog_queue_path("contoso", 0) == "contoso/x-servicebus-transfer/0"


@given(st.from_regex(r"[a-z][a-z0-9-]{4,20}[a-z0-9]", fullmatch=True), st.integers(0, 10**6))
def test_a_backlog_path_can_be_taken_apart_again(label: str, index: int) -> None:
    taken = names.parse_backlog_queue_path(names.backlog_queue_path(label, index))
    assert taken == names.BacklogName(label, index)


@pytest.mark.parametrize(
    "path",
    ["orders", "contoso/x-servicebus-transfer/", "contoso/x-servicebus-transfer/01", "a/b/x-servicebus-transfer/1"],
)
def test_other_paths_are_not_backlog_queues(path: str) -> None:
    assert names.parse_backlog_queue_path(path) is None


def test_entity_names_have_no_case() -> None:
    assert names.parse_backlog_queue_path("Contoso/X-ServiceBus-Transfer/7") == names.BacklogName("contoso", 7)


@given(paths)
def test_arm_names_are_reversible(path: str) -> None:
    assert "/" not in names.to_arm_name(path)
    assert names.from_arm_name(names.to_arm_name(path)) == path


@given(paths)
def test_legal_paths_pass_unchanged(path: str) -> None:
    assert names.check_entity_path(path) == path


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "a b", "a~b", "a?b", "a#b", "a@b", "ü", "x" * 261])
def test_illegal_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidNameError):
        names.check_entity_path(path)


def test_backslashes_become_slashes() -> None:
    assert names.check_entity_path("a\\b") == "a/b"


def test_a_tilde_gets_the_hint_about_arm() -> None:
    with pytest.raises(InvalidNameError) as refused:
        names.check_entity_path("contoso~x-servicebus-transfer~0")
    assert "`~` for `/`" in refused.value.hint


@pytest.mark.parametrize("label", ["contoso", "a12345", "contoso-weu", "x" * 50])
def test_namespace_names_the_service_takes(label: str) -> None:
    assert names.check_namespace_label(label) == label


@pytest.mark.parametrize("label", ["short", "x" * 51, "1abcdef", "contoso-", "contoso-sb", "contoso-mgmt", "con_toso"])
def test_namespace_names_the_service_refuses(label: str) -> None:
    with pytest.raises(InvalidNameError):
        names.check_namespace_label(label)


@pytest.mark.parametrize(
    "host", ["Contoso.servicebus.windows.net", "sb://contoso.servicebus.windows.net/", "contoso", "contoso:5671"]
)
def test_the_label_is_the_first_dns_label(host: str) -> None:
    assert names.namespace_label(host) == "contoso"


@pytest.mark.parametrize("label", ["x$(id)", "a b", "a;b", "\x1b[31m", "a\nb", "a'b", "\u202ex"])
def test_a_backlog_queue_has_a_name_that_the_service_allows(label: str) -> None:
    """Names of pairs and commands to copy are made of it."""
    assert names.parse_backlog_queue_path(f"{label}/x-servicebus-transfer/0") is None


@pytest.mark.parametrize("path", ["events/Subscriptions/all/Rules/red", "events/subscriptions/all/RULES/red"])
def test_a_rule_has_a_subscription_and_a_name_in_every_spelling(path: str) -> None:
    assert names.rule_of(path) == (path.rsplit("/", 2)[0], "red")
    for other in (path.rpartition("/")[0], f"{path}/", "events/Rules/red", "events/Subscriptions/all/Filters/red"):
        assert names.rule_of(other) is None


def test_values_by_names_are_found_in_any_case_and_keep_their_order() -> None:
    found = names.ByName([("Orders", 1), ("billing", 2)])
    assert (found["ORDERS"], found.get("oRders"), "Billing" in found, found.get("events")) == (1, 1, True, None)
    found["ORDERS"] = 3
    found["Events"] = 4
    assert list(found.items()) == [("orders", 3), ("billing", 2), ("events", 4)]
    del found["BILLING"]
    assert (found.pop("eVents"), list(found), len(found)) == (4, ["orders"], 1)
    with pytest.raises(KeyError):
        found["billing"]


def test_names_are_the_same_in_any_case() -> None:
    known = names.Names(["Orders", "ORDERS", "events"])
    assert (len(known), sorted(known), "oRDERS" in known, "billing" in known, None in known) == (
        2,
        ["events", "orders"],
        True,
        False,
        False,
    )
    assert names.Names(["ORDERS"]) <= known
    assert known - names.Names(["Events"]) == names.Names(["orders"])
    assert names.same_name("Orders", "oRDERS")
    assert not names.same_name("Orders", "Order")


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [("Orders", "ord*", True), ("orders", "ORD*", True), ("orders", "order", False), ("a/B", "A/?", True)],
)
def test_a_pattern_is_of_a_name_in_any_case(name: str, pattern: str, matches: bool) -> None:
    assert names.name_matches(name, pattern) is matches


def test_entities_by_their_paths() -> None:
    queues = [QueueFacts("Orders", QueueSettings()), QueueFacts("events", QueueSettings())]
    assert names.by_path(queues)["ORDERS"] is queues[0]
    assert list(names.by_path(queues)) == ["orders", "events"]
