"""A verb is called with what it works on, or says what that is."""

import asyncio
from typing import Any

import pytest

import sbpair
from sbpair import NamespaceAccess, Pair
from sbpair.operations import DrainRequest, ListEntitiesRequest, drain, list_entities

SIDES = NamespaceAccess("contoso-weu", "contoso-weu.example"), NamespaceAccess("contoso-neu", "contoso-neu.example")
PAIR = Pair("orders", *SIDES)


@pytest.mark.parametrize("where", [SIDES[0], SIDES])
def test_a_verb_for_a_pair_refuses_namespaces(where: NamespaceAccess | tuple[NamespaceAccess, NamespaceAccess]) -> None:
    with pytest.raises(TypeError, match="drain works on a pair: give its name, or a Pair"):
        sbpair.run(drain, where, DrainRequest())


@pytest.mark.parametrize("where", [PAIR, "orders"])
def test_a_verb_for_namespaces_refuses_a_pair(where: Pair | str) -> None:
    with pytest.raises(TypeError, match="list_entities works on namespaces: give a NamespaceAccess or two"):
        sbpair.run(list_entities, where, ListEntitiesRequest())


@pytest.mark.parametrize("open_it", [sbpair.open_sides, sbpair.open_pairing, sbpair.open_ends])
@pytest.mark.parametrize("what", ["orders", 5, None])
async def test_what_is_opened_is_said_where_something_else_is_given(open_it: Any, what: object) -> None:
    with pytest.raises(TypeError, match=f"is a (Pair|NamespaceAccess), not of type {type(what).__name__}"):
        async with open_it(what):
            pass


@pytest.mark.filterwarnings("error")
def test_in_a_running_event_loop_the_way_out_is_named_and_nothing_is_left_over() -> None:
    async def within() -> None:
        sbpair.run(drain, PAIR, DrainRequest())

    with pytest.raises(RuntimeError, match="await the verb, in a block of open_sides or open_ends"):
        asyncio.run(within())
