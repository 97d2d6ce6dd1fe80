"""Seeds and faults from careless hands: planted or in force, or refused with the place named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.emulator.namespace import Namespace
from sbpair.emulator.seed import SeedError, plant
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import EntityError
from sbpair.engine.faults import FaultError, Faults, fault_to_json, parse_json, parse_text, rule_to_text
from sbpair.service import Tier
from tests.hostile import SCALARS, bounded, damaged, mutated, tame

SEED: dict[str, Any] = {
    "tier": "Standard",
    "queues": {
        "orders": {},
        "invoices": {
            "requires_session": True,
            "lock_duration_seconds": 30,
            "status": "Disabled",
            "forward_to": "orders",
        },
    },
    "topics": {
        "events": {
            "max_size_in_megabytes": 1024,
            "subscriptions": {
                "all": {},
                "big": {"rules": {"large": {"sql": "amount > 1000", "action": "SET a = 1"}}},
                "one": {"rules": {"mine": {"correlation": {"label": "x", "properties": {"a": 1}}}}},
            },
        }
    },
    "keys": {"sender": ["Send"], "all": ["Manage"]},
}


def namespace(tier: Tier = Tier.STANDARD) -> Namespace:
    clock = ManualClock()
    return Namespace("primary", tier=tier, clock=clock, faults=Faults(clock))


@bounded(250)
@given(mutated(SEED, (*SCALARS, float("inf"), float("nan"), b"\xff")), st.sampled_from(Tier))
def test_a_seed_with_anything_exchanged_is_planted_or_refused(seed: Any, tier: Tier) -> None:
    tame(lambda: plant(namespace(tier), seed), (SeedError, EntityError))


def test_what_is_no_text_where_a_name_is_expected_is_refused() -> None:
    for seed in ({"queues": {3: {}}}, {"topics": {True: {}}}, {"keys": {None: ["Send"]}}, {1: {}}):
        with pytest.raises(SeedError, match="a name is a text"):
            plant(namespace(), seed)  # type: ignore[arg-type]


FAULTS = (
    "throttle:entity=orders,for=30s,after=3",
    "dark:for=2m,at=1s",
    "delay:rtt=250ms",
    "http-status:status=503,p=0.5",
)


def in_force(rule: Any) -> None:
    faults = Faults(ManualClock())
    faults.add(rule)
    for fault in faults.list():
        json.dumps(fault_to_json(fault), allow_nan=False)
    faults.check("send", "orders")
    faults.check("http", "")


@bounded(300)
@given(
    st.sampled_from(FAULTS)
    .flatmap(lambda text: damaged(text.encode()))
    .map(lambda data: data.decode("utf-8", "replace"))
    | st.text(max_size=30)
)
def test_a_fault_in_text_is_in_force_or_refused(text: str) -> None:
    def use() -> None:
        rule = parse_text(text)
        assert parse_text(rule_to_text(rule)).kind is rule.kind
        in_force(rule)

    tame(use, FaultError)


@bounded(200)
@given(mutated({"kind": "throttle", "entity": "orders", "for": 30, "after": 3, "count": 2, "probability": 0.5}))
def test_a_fault_in_json_is_in_force_or_refused(document: Any) -> None:
    tame(lambda: in_force(parse_json(document)), FaultError)


@pytest.mark.parametrize(
    "text", ["dark:for=" + "9" * 400, "throttle:nth=" + "9" * 40, "delay:rtt=" + "9" * 20 + "h", "x" * 5000]
)
def test_numbers_beyond_any_use_are_refused_shortly(text: str) -> None:
    with pytest.raises(FaultError) as refused:
        parse_text(text)
    assert len(str(refused.value)) < 500
