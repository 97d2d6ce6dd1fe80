"""Every check: silent on a healthy pair, loud on exactly what it is for, and skipped where it cannot tell."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.entities import Counts, EntityStatus, QueueFacts, QueueSettings, Tier, TopicFacts
from sbpair.core.errors import UsageError
from sbpair.core.inspection.audit import CHECKS, AuditReport, Finding, Scope, Severity, alike, explain, in_one_line, run
from sbpair.core.inspection.audit.result import AuditedPair, AuditResult, figures
from sbpair.core.inspection.drilled import label_of, mark
from sbpair.core.inspection.snapshot import NamespaceSnapshot, Peeked, QueueSeen, Snapshot, Unread
from sbpair.core.pairing import Pair
from sbpair.core.serialization import to_plain
from tests.core.replication.test_replication import on_both_sides
from tests.core.snapshots import NOW, a_namespace, a_pair, a_queue, a_snapshot, healthy, host, path

HOUR = 3600.0
MEGABYTE = 1024 * 1024


def found(report: AuditReport, code: str) -> list[tuple[str, Severity]]:
    return [(one.subject, one.severity) for one in report.findings if one.code == code]


def only(snapshot: Snapshot, code: str, **options: Any) -> list[tuple[str, Severity]]:
    """Findings of a full audit, which must all be of this code."""
    report = run(snapshot, options.pop("pair", snapshot.pair.to_pair()), **options)
    assert {one.code for one in report.findings} <= {code}
    assert report.skipped == ()
    return found(report, code)


def with_primary(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return replace(snapshot, primary=replace(snapshot.primary, **changes))


def with_secondary(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return replace(snapshot, secondary=replace(snapshot.secondary, **changes))


def with_facts(side: NamespaceSnapshot, **changes: Any) -> NamespaceSnapshot:
    assert side.facts is not None
    return replace(side, facts=replace(side.facts, **changes))


def of_secondary(**changes: Any) -> Snapshot:
    return replace(healthy(), secondary=with_facts(healthy().secondary, **changes))


def of_primary(**changes: Any) -> Snapshot:
    return replace(healthy(), primary=with_facts(healthy().primary, **changes))


def of_both(primary: dict[str, Any], secondary: dict[str, Any]) -> Snapshot:
    return replace(of_primary(**primary), secondary=with_facts(healthy().secondary, **secondary))


@pytest.mark.parametrize("tier", Tier)
def test_a_freshly_provisioned_pair_has_no_findings(tier: Tier) -> None:
    queues = [a_queue(one, tier=tier, peeked=Peeked(False, False)) for one in a_pair().backlog_paths()]
    snapshot = replace(healthy(), secondary=a_namespace("fabrikam", *queues, tier=tier))
    report = run(snapshot, a_pair())
    expected = {"SBP022"} if tier is Tier.BASIC else set()
    assert ({one.code for one in report.findings}, report.skipped) == (expected, ())


def test_codes_are_unique_ordered_and_complete() -> None:
    codes = [check.code for check in CHECKS]
    assert codes == [f"SBP{number:03}" for number in range(1, len(codes) + 1)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_every_check_explains_itself_and_names_a_remedy(check: Any) -> None:
    assert check.title and check.explanation.endswith(".") and check.remedy
    assert check.remedy.format(pair="orders", subject="x")
    assert explain(check.code.lower()) is check


BACKLOG_CASES: list[tuple[str, dict[str, Any], str, Severity]] = [
    ("SBP004", {"max_delivery_count": 10}, "Maximum delivery count is 10, documented 2147483647.", Severity.WARNING),
    ("SBP004", {"auto_delete_on_idle_seconds": 300.0}, "documented never", Severity.ERROR),
    ("SBP004", {"default_message_time_to_live_seconds": 60.0}, "documented never", Severity.ERROR),
    ("SBP007", {"status": EntityStatus.SEND_DISABLED}, "failover cannot use it", Severity.ERROR),
    ("SBP007", {"status": EntityStatus.RECEIVE_DISABLED}, "syphon cannot empty it", Severity.ERROR),
    ("SBP010", {"size_in_bytes": 4200 * MEGABYTE}, "82% of its size", Severity.WARNING),
    ("SBP010", {"size_in_bytes": 5000 * MEGABYTE}, "98% of its size", Severity.CRITICAL),
    ("SBP011", {"forward_to": "elsewhere"}, "never wait here", Severity.CRITICAL),
    ("SBP011", {"forward_dead_lettered_messages_to": "errors"}, "does not find them", Severity.WARNING),
    ("SBP012", {"requires_session": True}, "refused", Severity.CRITICAL),
    ("SBP013", {"requires_duplicate_detection": True}, "silently dropped", Severity.ERROR),
    ("SBP009", {"counts": Counts(dead_letter=2)}, "2 dead letters", Severity.WARNING),
    ("SBP009", {"counts": Counts(transfer_dead_letter=1)}, "1 dead letter:", Severity.WARNING),
    ("SBP009", {"peeked": Peeked(False, True)}, "counts do not show", Severity.WARNING),
    ("SBP008", {"counts": Counts(active=3), "peeked": Peeked(True, False, NOW - 60)}, "waited 1m", Severity.INFO),
    ("SBP008", {"counts": Counts(active=3), "peeked": Peeked(True, False, NOW - HOUR)}, "waited 1h", Severity.WARNING),
    (
        "SBP008",
        {"counts": Counts(3), "peeked": Peeked(True, False, NOW - 25 * HOUR)},
        "no syphon is running",
        Severity.ERROR,
    ),
    ("SBP008", {"counts": Counts(scheduled=1)}, "the queue has been untouched for 1h23m", Severity.WARNING),
    ("SBP008", {"peeked": Peeked(True, False, NOW)}, "messages that the counts do not show", Severity.INFO),
]


@pytest.mark.parametrize(("code", "changes", "said", "severity"), BACKLOG_CASES)
def test_checks_of_a_backlog_queue(code: str, changes: dict[str, Any], said: str, severity: Severity) -> None:
    snapshot = healthy(more=(a_queue(path(1), **changes),))
    assert only(snapshot, code) == [(path(1), severity)]
    assert said in run(snapshot, a_pair()).findings[0].message


def test_a_partitioned_queue_has_room_sixteen_times() -> None:
    full = a_queue(path(1), enable_partitioning=True, size_in_bytes=5000 * MEGABYTE)
    assert only(healthy(more=(full,)), "SBP010") == []


def test_an_age_nobody_knows_is_no_reassurance() -> None:
    queue = a_queue(path(0), counts=Counts(active=1))
    queue = replace(queue, facts=replace(queue.facts, accessed_at=None))
    assert only(healthy(more=(queue,)), "SBP008") == [(path(0), Severity.WARNING)]


def test_missing_queues_and_the_gap_they_leave() -> None:
    report = run(healthy(without=(path(1),)), a_pair())
    assert found(report, "SBP001") == [(path(1), Severity.ERROR)]
    assert found(report, "SBP003") == [("contoso/x-servicebus-transfer", Severity.INFO)]
    assert "no get confirmed that" in report.findings[0].message


def test_a_confirmed_absence_is_said_without_doubt() -> None:
    snapshot = with_secondary(healthy(without=(path(2),)), absent=(path(2),))
    report = run(snapshot, a_pair())
    assert [one.code for one in report.findings] == ["SBP001"]
    assert report.findings[0].message == f"Backlog queue {path(2)} does not exist on {host('fabrikam')}."
    assert report.findings[0].remedy == "sbpair provision orders"


def test_extra_queues_are_worse_with_messages() -> None:
    more = (a_queue(path(3)), a_queue(path(4), counts=Counts(active=1)))
    report = run(healthy(more=more), a_pair())
    assert found(report, "SBP002") == [(path(4), Severity.ERROR), (path(3), Severity.WARNING)]
    assert report.findings[0].remedy.startswith("sbpair drain orders\n")


def test_a_queue_that_another_pair_counts_on_is_not_extra() -> None:
    report = run(healthy(more=(a_queue(path(3)), a_queue(path(4)))), a_pair(), others=[replace(a_pair(4), name="b")])
    assert found(report, "SBP002") == [(path(4), Severity.WARNING)]


def test_gaps_are_told_as_ranges() -> None:
    report = run(healthy(more=(a_queue(path(9)), a_queue(path(5)))), a_pair())
    (gap,) = [one for one in report.findings if one.code == "SBP003"]
    assert "3-4, 6-8 missing below index 9" in gap.message


def test_a_backlog_queue_on_the_primary() -> None:
    orders = QueueSeen(QueueFacts("orders", QueueSettings()))
    empty, full = a_queue(path(0)), a_queue(path(1), counts=Counts(active=4))
    snapshot = with_primary(healthy(), queues=(orders, empty, full))
    assert only(snapshot, "SBP005") == [(path(1), Severity.ERROR), (path(0), Severity.WARNING)]


def test_left_overs_of_an_unknown_primary_are_told_once_per_primary() -> None:
    more = (a_queue(path(0, "adatum")), a_queue(path(1, "adatum"), counts=Counts(2)), a_queue(path(0, "zzz-old")))
    assert only(healthy(more=more), "SBP006") == [
        ("adatum/x-servicebus-transfer", Severity.ERROR),
        ("zzz-old/x-servicebus-transfer", Severity.WARNING),
    ]


def test_queues_of_a_drill_are_left_over_once_its_time_is_over() -> None:
    until = healthy().taken_at + 60
    metadata = {"user_metadata": mark("r1", until)}
    queue = a_queue(path(0, label_of("r1")))
    marked = replace(queue, facts=replace(queue.facts, settings=replace(queue.facts.settings, **metadata)))
    assert only(healthy(more=(marked,)), "SBP006") == []
    assert len(only(replace(healthy(more=(marked,)), taken_at=until + 1), "SBP006")) == 1
    assert len(only(healthy(more=(queue,)), "SBP006")) == 1


def another(name: str, primary: NamespaceAccess, secondary: NamespaceAccess) -> Pair:
    return Pair(name, primary, secondary)


def test_queues_of_another_configured_pair_are_no_left_overs() -> None:
    other = another("b", NamespaceAccess("adatum", host("adatum")), a_pair().secondary)
    elsewhere = another("b", NamespaceAccess("adatum", host("adatum")), NamespaceAccess("far", host("far")))
    snapshot = healthy(more=(a_queue(path(0, "adatum")),))
    assert only(snapshot, "SBP006", others=[other]) == []
    assert len(only(snapshot, "SBP006", others=[elsewhere])) == 1


def test_a_secondary_that_is_a_primary_in_the_configuration() -> None:
    chained = another("next", a_pair().secondary, NamespaceAccess("third", host("third")))
    assert only(healthy(), "SBP015", others=[chained, a_pair()]) == [(host("fabrikam"), Severity.ERROR)]


def test_a_secondary_whose_backlog_is_on_the_primary() -> None:
    orders = QueueSeen(QueueFacts("orders", QueueSettings()))
    snapshot = with_primary(healthy(), queues=(orders, a_queue(path(0, "fabrikam"))))
    assert only(snapshot, "SBP015") == [(host("fabrikam"), Severity.ERROR)]


def test_the_same_label_in_two_clouds() -> None:
    china = NamespaceAccess("contoso", "contoso.servicebus.chinacloudapi.cn")
    clash = another("china", china, a_pair().secondary)
    apart = another("china", china, NamespaceAccess("far", host("far")))
    assert only(healthy(), "SBP023", others=[clash]) == [("contoso/x-servicebus-transfer", Severity.ERROR)]
    assert only(healthy(), "SBP023", others=[apart, a_pair()]) == []


NAMESPACE_CASES: list[tuple[str, Snapshot, Severity]] = [
    ("SBP016", of_secondary(alias="contoso-dr"), Severity.WARNING),
    ("SBP016", of_secondary(geo_dr_role="Secondary", geo_dr_partner="x"), Severity.ERROR),
    ("SBP017", of_secondary(geo_replication_locations=("westeurope", "northeurope")), Severity.WARNING),
    ("SBP021", of_secondary(service_time=NOW - 30), Severity.WARNING),
    ("SBP021", of_secondary(service_time=NOW + 90), Severity.ERROR),
    ("SBP026", of_secondary(status="Removing"), Severity.ERROR),
    ("SBP028", of_both({"location": "West Europe"}, {"location": "westeurope"}), Severity.WARNING),
    ("SBP028", of_both({"name": "Same"}, {"name": "same"}), Severity.ERROR),
]


@pytest.mark.parametrize(("code", "snapshot", "severity"), NAMESPACE_CASES)
def test_checks_of_a_namespace(code: str, snapshot: Snapshot, severity: Severity) -> None:
    assert only(snapshot, code) == [(host("fabrikam"), severity)]


def test_two_regions_are_fine() -> None:
    assert only(of_both({"location": "westeurope"}, {"location": "northeurope"}), "SBP028") == []


def test_the_primary_is_looked_at_as_well() -> None:
    assert only(of_primary(alias="a"), "SBP016") == [(host("contoso"), Severity.WARNING)]
    assert only(of_primary(service_time=NOW + 6), "SBP021") == [(host("contoso"), Severity.WARNING)]
    assert only(of_primary(tier=Tier.BASIC), "SBP022") == [(host("contoso"), Severity.INFO)]


def test_skew_says_which_clock_is_ahead() -> None:
    assert "1m30s behind" in run(of_secondary(service_time=NOW + 90), a_pair()).findings[0].message
    assert "30s ahead of" in run(of_secondary(service_time=NOW - 30), a_pair()).findings[0].message


@pytest.mark.parametrize(
    ("queues", "topics", "severity"), [(60, 29, None), (60, 30, Severity.WARNING), (70, 30, Severity.ERROR)]
)
def test_partitioned_entities_near_the_limit(queues: int, topics: int, severity: Severity | None) -> None:
    many = tuple(a_queue(f"p{number}", enable_partitioning=True) for number in range(queues))
    topic = tuple(TopicFacts(f"t{number}", enable_partitioning=True) for number in range(topics))
    snapshot = with_secondary(healthy(more=many), topics=topic)
    assert [worst for _, worst in only(snapshot, "SBP014")] == ([severity] if severity else [])


class TestEntities:
    def entity(self, **settings: Any) -> Snapshot:
        size = settings.pop("size_in_bytes", 0)
        queue = QueueSeen(QueueFacts("orders", replace(QueueSettings(), **settings), size_in_bytes=size))
        return with_primary(healthy(), queues=(queue,))

    def topic(self, **fields: Any) -> Snapshot:
        return with_primary(healthy(), queues=(), topics=(TopicFacts("Orders", **fields),))

    def test_missing(self) -> None:
        assert only(with_primary(healthy(), queues=()), "SBP018") == [("orders", Severity.ERROR)]

    def test_a_topic_will_do(self) -> None:
        assert only(self.topic(), "SBP018") == []

    def test_disabled(self) -> None:
        assert only(self.entity(status=EntityStatus.SEND_DISABLED), "SBP020") == [("orders", Severity.ERROR)]
        assert only(self.topic(status=EntityStatus.DISABLED), "SBP020") == [("orders", Severity.ERROR)]
        assert only(self.entity(status=EntityStatus.RECEIVE_DISABLED), "SBP020") == []

    def test_message_limits_on_both_sides(self) -> None:
        assert only(self.entity(max_message_size_in_kilobytes=128), "SBP019") == [("orders", Severity.ERROR)]
        assert only(self.topic(max_message_size_in_kilobytes=1024), "SBP019") == [("orders", Severity.WARNING)]

    def test_a_premium_secondary_takes_large_messages(self) -> None:
        snapshot = self.entity(max_message_size_in_kilobytes=1024)
        snapshot = replace(snapshot, secondary=with_facts(snapshot.secondary, tier=Tier.PREMIUM))
        assert only(snapshot, "SBP019") == []

    def test_no_room(self) -> None:
        assert only(self.entity(size_in_bytes=1024 * MEGABYTE - 1), "SBP019") == [("orders", Severity.ERROR)]
        assert only(self.topic(size_in_bytes=1023 * MEGABYTE), "SBP019") == []


class TestCredentials:
    def test_a_right_that_is_lacking(self) -> None:
        denied = tuple(Unread(one, "unauthorized", "lacks Manage", "denied") for one in ("queues", "topics"))
        report = run(with_secondary(healthy(), queues=None, topics=None, unread=denied), a_pair())
        assert [(one.code, one.subject) for one in report.findings] == [("SBP024", host("fabrikam"))]
        assert "'azure-cli' may not read queues, topics of the secondary: lacks Manage" in report.findings[0].message

    def test_the_root_key(self) -> None:
        auth = AuthMethod.CONNECTION_STRING.value
        snapshot = with_secondary(healthy(), auth=auth, key_name="RootManageSharedAccessKey")
        assert only(snapshot, "SBP025") == [(host("fabrikam"), Severity.INFO)]
        assert only(with_secondary(healthy(), auth=auth, key_name="syphon"), "SBP025") == []


class TestSkipped:
    def codes(self, snapshot: Snapshot) -> set[str]:
        return {one.code for one in run(snapshot, a_pair()).skipped}

    def test_without_the_secondarys_queues_its_checks_are_skipped_not_passed(self) -> None:
        unread = (Unread("queues", "timeout", "no answer", "unreachable"),)
        snapshot = with_secondary(healthy(), queues=None, unread=unread)
        report = run(snapshot, a_pair())
        assert report.findings == ()
        expected = {"SBP001", "SBP002", "SBP003", "SBP004", "SBP006", "SBP007", "SBP008", "SBP009", "SBP010"}
        assert {one.code for one in report.skipped} == expected | {"SBP011", "SBP012", "SBP013", "SBP014", "SBP040"}
        assert all("no answer" in one.reason for one in report.skipped)

    def test_without_the_primary_its_checks_are_skipped(self) -> None:
        snapshot = with_primary(healthy(), facts=None, queues=None, topics=None, observed_at=None)
        expected = {"SBP005", "SBP014", "SBP015", "SBP016", "SBP017", "SBP018", "SBP019", "SBP020", "SBP021"}
        assert self.codes(snapshot) == expected | {"SBP022", "SBP026", "SBP027", "SBP028", "SBP040"}

    def test_one_side_untold_does_not_hide_the_other(self) -> None:
        snapshot = with_primary(of_secondary(alias="dr"), facts=None)
        report = run(snapshot, a_pair(), checks=["SBP016"])
        assert len(report.findings) == 1 and len(report.skipped) == 1

    def test_the_data_plane_cannot_tell_everything(self) -> None:
        snapshot = of_secondary(control_plane="data-plane", tier=Tier.PREMIUM, status=None, service_time=None)
        assert self.codes(snapshot) == {"SBP017", "SBP021", "SBP026"}

    def test_only_arm_tells_what_nothing_else_is_missing_for(self) -> None:
        untold = of_both({"status": None}, {"status": None})
        for snapshot, arm_only in ((untold, True), (with_primary(untold, facts=None), False)):
            [skipped] = run(snapshot, a_pair(), checks=["SBP026"]).skipped
            assert (skipped.arm_only, skipped.reason.count("; ")) == (arm_only, 1), skipped.reason

    def test_a_queue_that_could_not_be_browsed(self) -> None:
        unread = (Unread(f"messages of {path(1)}", "timeout", "late", "unreachable"),)
        report = run(with_secondary(healthy(), unread=unread), a_pair())
        assert [(one.code, path(1) in one.reason) for one in report.skipped] == [("SBP008", True), ("SBP009", True)]

    def test_an_unknown_tier(self) -> None:
        assert self.codes(of_secondary(tier=None)) == {"SBP014", "SBP022"}


class TestChoosing:
    spoilt = healthy(without=(path(0),), more=(a_queue(path(1), max_delivery_count=1), a_queue(path(3))))

    def test_only_the_checks_asked_for_run(self) -> None:
        report = run(self.spoilt, a_pair(), checks=["sbp004"])
        assert (report.checks, [one.code for one in report.findings]) == (("SBP004",), ["SBP004"])

    @pytest.mark.parametrize(
        ("ignore", "left"),
        [
            (["SBP001"], {"SBP002", "SBP003", "SBP004"}),
            (["sbp002:CONTOSO/*/3"], {"SBP001", "SBP003", "SBP004"}),
            (["SBP002:*/9"], {"SBP001", "SBP002", "SBP003", "SBP004"}),
        ],
    )
    def test_known_findings_are_left_out_and_counted(self, ignore: list[str], left: set[str]) -> None:
        report = run(self.spoilt, a_pair(), ignore=ignore)
        assert {one.code for one in report.findings} == left
        assert report.ignored == 4 - len(left)

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda: explain("SBP999"),
            lambda: run(healthy(), a_pair(), checks=["nope"]),
            lambda: run(healthy(), a_pair(), ignore=["SBP0:*"]),
        ],
    )
    def test_an_unknown_code_is_refused(self, attempt: Callable[[], object]) -> None:
        with pytest.raises(UsageError, match="no check"):
            attempt()

    def test_worst_first(self) -> None:
        report = run(self.spoilt, a_pair())
        assert [one.severity.rank for one in report.findings] == sorted(
            (one.severity.rank for one in report.findings), reverse=True
        )
        assert report.worst is Severity.ERROR
        assert [one.code for one in report.at_least(Severity.ERROR)] == ["SBP001"]

    def test_a_report_is_plain_data(self) -> None:
        data = to_plain(run(self.spoilt, a_pair()))
        assert data["findings"][0] == {
            "code": "SBP001",
            "severity": "error",
            "subject": path(0),
            "message": data["findings"][0]["message"],
            "remedy": "sbpair provision orders",
            "command": "sbpair provision orders",
            "advice": "",
        }


def test_a_pair_without_entities_has_nothing_to_miss() -> None:
    snapshot = a_snapshot(a_pair(entities=()), a_namespace("contoso"), healthy().secondary)
    assert run(snapshot, a_pair(entities=())).findings == ()


def finding(
    code: str = "SBP001",
    severity: Severity = Severity.ERROR,
    subject: str = "q",
    message: str = "It is missing.",
    remedy: str = "sbpair provision p",
) -> Finding:
    return Finding(code, severity, subject, message, remedy)


def test_findings_of_one_check_are_one_thing_to_do() -> None:
    missing = [
        finding(subject=f"contoso/x-servicebus-transfer/{index}", message=f"{index} is missing.")
        for index in (0, 1, 2, 7, 10, 11)
    ]
    full = finding("SBP009", subject="orders")
    near_full = finding("SBP009", Severity.WARNING, "invoices")
    first, second, third = alike([*missing, full, near_full])
    assert (len(first.findings), first.subject) == (6, "contoso/x-servicebus-transfer/0-2, 7, 10-11")
    assert first.message == "0 is missing. And 5 similar findings."
    assert first.remedy == "sbpair provision p"
    assert (second.subject, second.message) == ("orders", "It is missing.")
    assert third.first.severity is Severity.WARNING


def test_findings_that_differ_in_what_to_do_say_where_the_rest_is_told() -> None:
    some = [finding(subject=name, remedy=f"sbpair cleanup {name}") for name in ("a", "b", "c", "d")]
    (likes,) = alike(some)
    assert (likes.subject, likes.remedy) == ("a, b, c and 1 more", "sbpair cleanup a (the others with -v)")
    assert alike([]) == ()


@pytest.mark.parametrize(
    ("remedy", "line"),
    [
        ("sbpair provision p", "sbpair provision p"),
        ("sbpair config show\nUse Entra ID.\nOr a key.", "sbpair config show  # Use Entra ID. Or a key."),
        ("Use Entra ID.\nOr a key.", "Use Entra ID. Or a key."),
    ],
)
def test_a_remedy_in_one_line_can_be_pasted(remedy: str, line: str) -> None:
    assert in_one_line(remedy) == line


_ORDERS = QueueSeen(QueueFacts("orders", QueueSettings()))
_UNREAD = tuple(Unread(what, "unauthorized", "lacks Manage", "denied") for what in ("queues", "topics"))
_ROOT_KEY = {"auth": AuthMethod.CONNECTION_STRING.value, "key_name": "RootManageSharedAccessKey"}
_MANY = tuple(a_queue(f"p{number}", enable_partitioning=True) for number in range(100))
_CHINA = NamespaceAccess("contoso", "contoso.servicebus.chinacloudapi.cn")
_GONE = with_primary(
    healthy(more=(a_queue(path(1), counts=Counts(1), peeked=Peeked(True, False, NOW, ("Gone", "orders"), 1)),)),
    absent=("gone",),
)
WORLDS: dict[str, tuple[Snapshot, list[Pair]]] = {
    **{code: (healthy(more=(a_queue(path(1), **changes),)), []) for code, changes, _, _ in BACKLOG_CASES},
    **{code: (snapshot, []) for code, snapshot, _ in NAMESPACE_CASES},
    "SBP001": (healthy(without=(path(1),)), []),
    "SBP002": (healthy(more=(a_queue(path(3)),)), []),
    "SBP003": (healthy(without=(path(1),)), []),
    "SBP005": (with_primary(healthy(), queues=(_ORDERS, a_queue(path(0)))), []),
    "SBP006": (healthy(more=(a_queue(path(0, "adatum")),)), []),
    "SBP014": (healthy(more=_MANY), []),
    "SBP015": (with_primary(healthy(), queues=(_ORDERS, a_queue(path(0, "fabrikam")))), []),
    "SBP018": (with_primary(healthy(), queues=()), []),
    "SBP019": (with_primary(healthy(), queues=(QueueSeen(replace(_ORDERS.facts, size_in_bytes=1 << 30)),)), []),
    "SBP020": (with_primary(healthy(), queues=(), topics=(TopicFacts("Orders", status=EntityStatus.DISABLED),)), []),
    "SBP022": (of_primary(tier=Tier.BASIC), []),
    "SBP023": (healthy(), [another("china", _CHINA, a_pair().secondary)]),
    "SBP024": (with_secondary(healthy(), queues=None, topics=None, unread=_UNREAD), []),
    "SBP025": (with_secondary(healthy(), **_ROOT_KEY), []),
    "SBP027": (on_both_sides(requires_session=False), []),
    "SBP040": (_GONE, []),
}
"""What each check of a pair is for. A new check needs its own; `test_audit_namespace.py` has those of a namespace."""


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.scope is not Scope.NAMESPACE], ids=lambda check: check.code
)
def test_every_check_has_a_world_that_raises_it(check: Any) -> None:
    assert check.code in WORLDS, "add what this check finds"
    snapshot, others = WORLDS[check.code]
    assert found(run(snapshot, snapshot.pair.to_pair(), others=others), check.code) != []


def test_destinations_of_waiting_messages_are_looked_for_without_entities() -> None:
    pair = a_pair(entities=())
    (one,) = [one for one in run(_GONE, pair).findings if one.code == "SBP040"]
    assert (one.subject, one.severity) == ("Gone", Severity.ERROR)
    assert "wait in 1 backlog queue, and" in one.message
    unsure = run(with_primary(_GONE, absent=()), pair)
    assert found(unsure, "SBP040") == [], "only what a get has confirmed is gone"


def test_two_pairs_that_share_queues_count_a_message_once() -> None:
    snapshot = healthy(more=(a_queue(path(1), counts=Counts(active=4, dead_letter=1), size_in_bytes=10),))
    twin = replace(snapshot, pair=replace(snapshot.pair, name="twin"))
    pairs = tuple(AuditedPair(run(one, one.pair.to_pair()), one) for one in (snapshot, twin))
    assert AuditResult(pairs).summary().startswith("4 messages and 1 dead letter wait in 1 queue")
    first, second = figures(pairs[0]), figures(pairs[1], pairs[:1])
    assert first.backlog_messages == {"active": 4, "dead-letter": 1, "scheduled": 0}
    assert (sum((second.backlog_messages or {}).values()), second.backlog_size_bytes) == (0, 0)
    assert figures(pairs[1]).backlog_messages == first.backlog_messages, "alone it is told in full"


def test_an_audited_pair_tells_the_age_of_its_oldest_message_and_commands_for_what_was_not_read() -> None:
    seen = healthy(
        more=tuple(
            a_queue(path(number), peeked=Peeked(True, False, oldest_enqueued_at=NOW - age))
            for number, age in ((1, 60.0), (2, 900.0), (3, -5.0))
        )
    )
    unread = Unread("queues", "unauthorized", "no Manage", "denied", "See what is missing: sbpair doctor")
    seen = with_primary(seen, queues=None, unread=(unread,))
    pair = AuditedPair(run(seen, seen.pair.to_pair()), seen)
    assert pair.oldest_seconds == 900.0
    (one,) = pair.not_read
    assert (one.subject, one.code, one.reason) == ("queues", "unauthorized", "no Manage")
    assert one.hint == f"See what is missing: sbpair doctor {seen.pair.name}"
