"""What a search through namespaces concludes: whose a backlog is, and the configuration for what nobody covers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sbpair.core.backlog import Backlog, BacklogVerdict, FoundBy, QueueContents
from sbpair.core.inspection.discovery import Discovery, NamespaceSearched, proposed_pairs, sentences, transfer_queues
from tests.core.snapshots import a_pair, host


def contents(primary: str, index: int, active: int = 0, at: float | None = None) -> QueueContents:
    path = f"{primary}/x-servicebus-transfer/{index}"
    return QueueContents(
        path, active=active, deferred=0, scheduled=0, dead_letter=0, oldest_enqueued_at=at if active else None
    )


def found(primary: str, *queues: QueueContents, on: str = "fabrikam") -> NamespaceSearched:
    one = transfer_queues(Backlog(primary, 100.0, queues), primary, [a_pair(3)], host(on))
    return NamespaceSearched(on, host(on), FoundBy.LISTED, transfer=(one,))


def test_a_backlog_of_a_configured_pair_is_called_its() -> None:
    (one,) = found("contoso", contents("contoso", 0), contents("contoso", 12, 7, 90.0)).transfer
    assert (one.pair, one.configured_queues, one.backlog_queues, one.indexes) == ("orders", 3, 13, "0, 12")
    assert (one.active, one.oldest_enqueued_at, one.verdict) == (7, 90.0, BacklogVerdict.WAITING)


@pytest.mark.parametrize("spelled", [str.upper, str.lower, str.title])
def test_names_of_a_pair_are_known_in_every_spelling(spelled: Callable[[str], str]) -> None:
    pair = a_pair(3)
    configured = replace(
        pair,
        primary=replace(pair.primary, label=spelled(pair.primary.label)),
        secondary=replace(pair.secondary, host=spelled(pair.secondary.host)),
    )
    for primary, secondary in (("contoso", host("fabrikam")), ("CONTOSO", host("fabrikam").upper())):
        found = transfer_queues(Backlog(primary, 100.0, ()), primary, [configured], secondary)
        assert found.pair == "orders"


def test_the_same_primary_on_another_namespace_is_another_backlog() -> None:
    (one,) = found("contoso", contents("contoso", 0), on="northwind").transfer
    assert one.pair is None


def test_what_no_pair_covers_becomes_a_pair_of_the_configuration() -> None:
    namespaces = [
        found("legacy", contents("legacy", 0), contents("legacy", 3)),
        found("legacy", contents("legacy", 0), on="northwind"),
        found("contoso", contents("contoso", 0)),
    ]
    known = {host("fabrikam"): {"namespace": "fabrikam", "auth": "azure-cli"}}
    assert proposed_pairs(namespaces, known, ["orders"]) == {
        "legacy": {
            "primary": {"namespace": host("legacy")},
            "secondary": {"namespace": "fabrikam", "auth": "azure-cli"},
            "backlog_queues": 4,
        },
        "legacy-on-northwind": {
            "primary": {"namespace": host("legacy")},
            "secondary": {"namespace": host("northwind")},
            "backlog_queues": 1,
        },
    }


def test_a_primary_that_is_configured_is_reached_as_it_is_configured() -> None:
    known = {"127.0.0.1:5671": {"namespace": "x"}, host("contoso"): {"namespace": "contoso", "auth": "browser"}}
    pairs = proposed_pairs([found("contoso", contents("contoso", 0), on="northwind")], known, ())
    assert pairs["contoso"]["primary"] == {"namespace": "contoso", "auth": "browser"}


def test_messages_that_nobody_covers_are_said_first() -> None:
    waiting = found("legacy", contents("legacy", 0, 5, 1.0), on="northwind")
    beyond = found("contoso", *(contents("contoso", index) for index in range(5)))
    said = list(sentences(Discovery((beyond, waiting), {})))
    assert said == [
        "northwind holds messages of legacy, and no configured pair covers them.",
        "The pair orders counts on 3 backlog queues, and 0-4 exist: set `backlog_queues: 5`.",
    ]


@pytest.mark.parametrize(
    ("namespaces", "said"),
    [
        ((), "No Service Bus namespace is listed there; the list shows only what this login may read."),
        ((NamespaceSearched("a", "a.b"),), "1 namespace could not be read, so there may be a backlog."),
        ((NamespaceSearched("a", "a.b", FoundBy.LISTED),), "1 namespace read: no backlog queue found."),
        (
            (NamespaceSearched("a", "a.b", FoundBy.LISTED), NamespaceSearched("c", "c.d")),
            "1 namespace read: no backlog queue found; 1 namespace could not be read.",
        ),
        ((found("x1", contents("x1", 0, 1, 1.0)),), "1 namespace read: 1 backlog found, 1 with messages."),
    ],
)
def test_the_last_line_says_no_more_than_was_read(namespaces: tuple[NamespaceSearched, ...], said: str) -> None:
    assert Discovery(namespaces, {}).summary() == said


def test_the_role_in_an_alias_is_said_only_where_the_resource_manager_told_it() -> None:
    partner = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso-neu"
    told = NamespaceSearched("contoso-weu", "h", alias="contoso", geo_dr_role="Primary", geo_dr_partner=partner)
    (known,) = sentences(Discovery((told,), {}))
    assert known.startswith("contoso-weu is the Primary of the Geo-DR alias contoso, with contoso-neu; ")
    member, role = sentences(Discovery((NamespaceSearched("contoso-weu", "h", alias="contoso"),), {}))
    assert member.startswith("contoso-weu is a member of the Geo-DR alias contoso; ")
    assert role == "Only the resource manager returns its role: configure `subscription` for contoso-weu."
