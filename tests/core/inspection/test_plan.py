"""Plans: what is created, changed, deleted, and above all what is left alone."""

import json
from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import Counts
from sbpair.core.errors import SbpairError, StalePlanError, UsageError
from sbpair.core.inspection.plan import (
    Expected,
    Plan,
    Risk,
    StepKind,
    as_confirmed,
    check_target,
    differences,
    plan_cleanup,
    plan_provision,
    user_of,
)
from sbpair.core.inspection.snapshot import Peeked, Unread
from sbpair.core.pairing import DOCUMENTED_SETTINGS, backlog_settings
from sbpair.service import NEVER_DAYS, EntityStatus, QueueSettings, Tier
from tests.core.snapshots import a_pair, a_queue, healthy, host, path

NEVER_SECONDS = NEVER_DAYS * 86_400 + 10_085.477581


def kinds(plan: Plan) -> list[tuple[StepKind, str]]:
    return [(step.kind, step.queue) for step in plan.steps]


class TestProvision:
    def test_nothing_to_do_is_an_empty_plan(self) -> None:
        plan = plan_provision(healthy(), a_pair())
        assert not plan.steps and not plan.has_changes
        assert [one.queue for one in plan.unchanged] == [path(0), path(1), path(2)]

    def test_missing_queues_are_created_as_documented(self) -> None:
        plan = plan_provision(healthy(without=(path(0), path(2))), a_pair())
        assert kinds(plan) == [(StepKind.CREATE, path(0)), (StepKind.CREATE, path(2))]
        assert plan.steps[0].settings == DOCUMENTED_SETTINGS
        assert plan.steps[0].settings.max_delivery_count == 2_147_483_647
        assert plan.has_changes

    def test_partitioned_is_for_new_queues(self) -> None:
        plan = plan_provision(healthy(without=(path(0),)), a_pair(), partitioned=True)
        created = plan.steps[0].settings
        assert created is not None and created.enable_partitioning

    def test_partitioned_shows_existing_ones_as_to_be_recreated_only_with_update(self) -> None:
        assert not plan_provision(healthy(), a_pair(), partitioned=True).steps
        plan = plan_provision(healthy(), a_pair(), partitioned=True, update=True)
        assert {step.kind for step in plan.steps} == {StepKind.RECREATE}
        assert not plan.has_changes

    def test_existing_partitioned_queues_are_taken_as_they_are(self) -> None:
        snapshot = healthy(more=(a_queue(path(0), enable_partitioning=True),))
        assert not plan_provision(snapshot, a_pair(), update=True).steps

    def test_a_different_queue_is_used_as_it_is_and_said_to_be_different(self) -> None:
        plan = plan_provision(healthy(more=(a_queue(path(1), max_delivery_count=10),)), a_pair())
        assert not plan.steps
        assert plan.unchanged[1].note == "used as it is; maximum delivery count is 10, documented 2147483647"

    def test_update_changes_only_what_differs(self) -> None:
        odd = a_queue(path(1), max_delivery_count=10, lock_duration_seconds=30.0, user_metadata="keep me")
        plan = plan_provision(healthy(more=(odd,)), a_pair(), update=True)
        assert kinds(plan) == [(StepKind.UPDATE, path(1))]
        (step,) = plan.steps
        assert step.settings == replace(DOCUMENTED_SETTINGS, user_metadata="keep me")
        assert {change.field for change in step.changes} == {"max_delivery_count", "lock_duration_seconds"}
        assert step.expected == Expected(odd.facts.settings, odd.facts.updated_at, messages=0)

    def test_what_is_set_at_creation_needs_a_person(self) -> None:
        odd = a_queue(path(1), requires_session=True, max_delivery_count=10)
        plan = plan_provision(healthy(more=(odd,)), a_pair(), update=True)
        assert kinds(plan) == [(StepKind.UPDATE, path(1)), (StepKind.RECREATE, path(1))]
        update, recreate = plan.steps
        assert update.settings is not None and update.settings.requires_session
        assert "drain it, delete it and create it again" in recreate.reason
        assert recreate.risk is Risk.HIGH

    def test_a_disabled_queue_is_not_switched_on(self) -> None:
        snapshot = healthy(more=(a_queue(path(0), status=EntityStatus.DISABLED),))
        assert not plan_provision(snapshot, a_pair(), update=True).steps

    def test_without_the_list_there_is_no_plan(self) -> None:
        snapshot = healthy()
        unread = (Unread("queues", "unauthorized", "lacks Manage", "denied"),)
        snapshot = replace(snapshot, secondary=replace(snapshot.secondary, queues=None, unread=unread))
        with pytest.raises(SbpairError, match="lacks Manage"):
            plan_provision(snapshot, a_pair())
        with pytest.raises(SbpairError, match="lacks Manage"):
            plan_cleanup(snapshot, a_pair())


class TestDrift:
    @pytest.mark.parametrize("tier", [*Tier, None])
    def test_what_provision_creates_never_differs(self, tier: Tier | None) -> None:
        assert differences(backlog_settings(tier), tier) == ()

    @pytest.mark.parametrize(
        "changes",
        [
            {"default_message_time_to_live_seconds": NEVER_SECONDS},
            {"auto_delete_on_idle_seconds": NEVER_SECONDS},
            {"enable_partitioning": True, "max_size_in_megabytes": 5120 * 16},
            {"duplicate_detection_history_time_window_seconds": 60.0},
            {"user_metadata": "owner: us"},
            {"forward_to": ""},
            {"lock_duration_seconds": 60.0000001},
            {"max_message_size_in_kilobytes": 1024},
        ],
    )
    def test_other_spellings_are_no_drift(self, changes: dict[str, Any]) -> None:
        assert differences(replace(DOCUMENTED_SETTINGS, **changes), Tier.STANDARD) == ()

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"max_size_in_megabytes": 1024}, "maximum size is 1024 MB, documented 5120 MB"),
            ({"max_size_in_megabytes": 5120 * 16}, "maximum size is 81920 MB, documented 5120 MB"),
            ({"default_message_time_to_live_seconds": 1_209_600.0}, "default time to live is 14d, documented never"),
            ({"auto_delete_on_idle_seconds": 300.0}, "auto-delete on idle is 5m, documented never"),
            ({"lock_duration_seconds": 30.0}, "lock duration is 30s, documented 1m"),
            ({"dead_lettering_on_message_expiration": False}, "dead-lettering on expiration is off, documented on"),
            ({"enable_batched_operations": False}, "batched operations is off, documented on"),
            ({"forward_to": "elsewhere"}, "forward to is elsewhere, documented none"),
            ({"enable_express": True}, "express is on, documented off"),
        ],
    )
    def test_each_property_is_compared(self, changes: dict[str, Any], said: str) -> None:
        assert [str(one) for one in differences(replace(DOCUMENTED_SETTINGS, **changes), Tier.STANDARD)] == [said]

    def test_the_service_defaults_differ_in_three_properties(self) -> None:
        fields = {one.field for one in differences(QueueSettings(), Tier.STANDARD)}
        assert fields == {"max_size_in_megabytes", "max_delivery_count", "dead_lettering_on_message_expiration"}

    def test_basic_is_not_asked_for_what_it_cannot(self) -> None:
        settings = replace(DOCUMENTED_SETTINGS, default_message_time_to_live_seconds=3600.0)
        assert differences(settings, Tier.BASIC) == ()
        assert len(differences(settings, Tier.STANDARD)) == 1


class TestCleanup:
    def test_only_extra_queues_are_touched(self) -> None:
        others = (a_queue(path(3)), a_queue(path(0, "adatum")), a_queue("contoso/x-servicebus-transfer/old"))
        plan = plan_cleanup(healthy(more=others), a_pair())
        assert kinds(plan) == [(StepKind.DELETE, path(3))]
        assert plan.steps[0].expected is not None and not plan.steps[0].with_messages

    @pytest.mark.parametrize("kind", ["active", "dead_letter", "scheduled", "transfer", "transfer_dead_letter"])
    def test_any_kind_of_message_keeps_a_queue(self, kind: str) -> None:
        plan = plan_cleanup(healthy(more=(a_queue(path(3), counts=Counts(**{kind: 1})),)), a_pair())
        assert kinds(plan) == [(StepKind.SKIP, path(3))]
        assert "drain it first" in plan.steps[0].reason

    def test_a_browse_overrules_a_zero_count(self) -> None:
        plan = plan_cleanup(healthy(more=(a_queue(path(3), peeked=Peeked(False, True)),)), a_pair())
        assert kinds(plan) == [(StepKind.SKIP, path(3))]

    def test_a_name_confirms_one_queue_only(self) -> None:
        full = tuple(a_queue(path(index), counts=Counts(active=2)) for index in (3, 4))
        plan = plan_cleanup(healthy(more=full), a_pair(), confirmed=[path(3).upper()])
        assert kinds(plan) == [(StepKind.DELETE, path(3)), (StepKind.SKIP, path(4))]
        assert plan.steps[0].with_messages and plan.steps[0].risk is Risk.HIGH

    def test_what_a_plan_says_was_confirmed_is_confirmed_again_and_nothing_else_becomes_a_deletion(self) -> None:
        full = tuple(a_queue(path(index), counts=Counts(active=2)) for index in (3, 4))
        cleanup = plan_cleanup(healthy(more=full), a_pair(), confirmed=[path(3)])
        assert kinds(as_confirmed(cleanup, [path(4).upper()])) == [(StepKind.SKIP, path(3)), (StepKind.DELETE, path(4))]
        odd = a_queue(path(1), requires_duplicate_detection=True)
        recreate = plan_provision(healthy(more=(odd,)), a_pair(), update=True)
        assert kinds(as_confirmed(recreate, [path(1)])) == [(StepKind.RECREATE, path(1))]

    def test_a_queue_that_another_pair_counts_on_is_not_extra(self) -> None:
        more = (a_queue(path(3)), a_queue(path(4)), a_queue(path(5)))
        other = replace(a_pair(5), name="other")
        plan = plan_cleanup(healthy(more=more), a_pair(), others=[other], confirmed=[path(3)])
        assert kinds(plan) == [(StepKind.DELETE, path(5))]
        assert [(one.queue, one.note) for one in plan.unchanged] == [
            (path(3), "pair 'other' counts on it"),
            (path(4), "pair 'other' counts on it"),
        ]
        elsewhere = replace(other, secondary=NamespaceAccess("adatum", host("adatum")))
        assert len(plan_cleanup(healthy(more=more), a_pair(), others=[elsewhere]).steps) == 3

    def test_a_queue_is_counted_on_in_every_spelling(self) -> None:
        pairs = [a_pair(3)]
        assert user_of(path(2).upper(), host("fabrikam").upper(), pairs) == a_pair().name
        assert user_of(path(3).upper(), host("fabrikam").upper(), pairs) is None
        assert user_of(path(2), host("adatum"), pairs) is None
        more = a_queue(path(3).upper())
        plan = plan_cleanup(healthy(more=(more,)), a_pair(), others=[replace(a_pair(4), name="other")])
        assert not plan.has_changes

    def test_a_name_confirms_no_queue_in_use(self) -> None:
        assert not plan_cleanup(healthy(), a_pair(), confirmed=[path(0)]).steps

    def test_protection_wins_over_everything(self) -> None:
        pair = a_pair(protected=("CONTOSO/*/3",))
        plan = plan_cleanup(healthy(pair, more=(a_queue(path(3)),)), pair, confirmed=[path(3)])
        assert kinds(plan) == [(StepKind.SKIP, path(3))]
        assert "protected" in plan.steps[0].reason

    def test_left_overs_of_a_named_primary(self) -> None:
        more = (a_queue(path(0, "adatum")), a_queue(path(0, "fourth")))
        plan = plan_cleanup(healthy(more=more), a_pair(), also_primaries=["Adatum"])
        assert kinds(plan) == [(StepKind.DELETE, path(0, "adatum"))]


class TestFile:
    def plan(self) -> Plan:
        odd = a_queue(path(1), max_delivery_count=10, requires_session=True)
        return plan_provision(healthy(without=(path(0),), more=(odd,)), a_pair(), update=True)

    def test_a_plan_survives_json_exactly(self) -> None:
        assert Plan.from_dict(json.loads(json.dumps(self.plan().to_dict()))) == self.plan()

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"queue": "orders"}, "is not a backlog queue"),
            ({"settings": None}, "needs 'settings'"),
            ({"kind": "delete"}, "needs 'expected'"),
            ({"kind": "drop"}, "is not one of create"),
            ({"force": True}, "unknown key 'force'"),
        ],
    )
    def test_an_edited_plan_is_refused(self, change: dict[str, Any], said: str) -> None:
        data = self.plan().to_dict()
        data["steps"][0].update(change)
        with pytest.raises(UsageError, match=said):
            Plan.from_dict(data)

    def test_an_update_that_would_do_something_else_than_it_says_is_refused(self) -> None:
        odd = a_queue(path(1), max_delivery_count=10)
        data = plan_provision(healthy(more=(odd,)), a_pair(), update=True).to_dict()
        assert Plan.from_dict(data).steps
        for change in ({"max_delivery_count": 5}, {"lock_duration_seconds": 30.0}):
            step = data["steps"][0]
            edited = {**data, "steps": [{**step, "settings": {**step["settings"], **change}}]}
            with pytest.raises(UsageError, match="would do something else than its reason says"):
                Plan.from_dict(edited)

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(UsageError, match="format version 9"):
            Plan.from_dict({**self.plan().to_dict(), "format_version": 9})

    def test_a_plan_is_for_its_pair_only(self) -> None:
        check_target(self.plan(), a_pair())
        other = replace(a_pair(), secondary=replace(a_pair().secondary, host=host("elsewhere")))
        with pytest.raises(StalePlanError, match="elsewhere"):
            check_target(self.plan(), other)
        planned = self.plan()
        check_target(replace(planned, secondary_host=planned.secondary_host.upper()), a_pair())
        shouted = replace(a_pair(), secondary=replace(a_pair().secondary, host=planned.secondary_host.upper()))
        check_target(planned, shouted)


class TestExpected:
    facts = a_queue(path(0)).facts

    def test_another_setting_is_a_change_whatever_the_time_says(self) -> None:
        changed = replace(self.facts, settings=replace(self.facts.settings, max_delivery_count=3))
        assert not Expected.of(self.facts).matches(changed)
        assert not Expected(self.facts.settings).matches(changed)

    def test_another_time_is_a_change_whatever_the_settings_say(self) -> None:
        written = replace(self.facts, updated_at=(self.facts.updated_at or 0) + 0.004)
        assert not Expected.of(self.facts).matches(written)

    def test_the_same_time_with_other_decimals_is_none(self) -> None:
        cut = replace(self.facts, updated_at=(self.facts.updated_at or 0) + 0.0004)
        assert Expected.of(self.facts).matches(cut)

    def test_a_time_that_one_side_does_not_tell_is_no_change(self) -> None:
        assert Expected(self.facts.settings).matches(self.facts)
        assert Expected.of(self.facts).matches(replace(self.facts, updated_at=None))
