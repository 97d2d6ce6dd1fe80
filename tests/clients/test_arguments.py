"""What the drop-in clients are given: every argument has an effect or is refused, and the embedded namespaces' own
connection strings are enough."""

import inspect
from dataclasses import replace
from typing import Any

import azure.servicebus as sdk
import pytest
from azure.servicebus import ServiceBusMessage

import sbpair
import sbpair.aio
from sbpair import SendAvailabilityOptions, pair_options
from sbpair.clients.failover import budget_of
from sbpair.core.errors import UsageError
from sbpair.core.pairing import PAIR_OPTIONS
from tests.clients.conftest import FAST, QUEUES, World, backlog_queue

KEY = "Endpoint=sb://{}.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
PRIMARY, SECONDARY = KEY.format("contoso-weu"), KEY.format("contoso-neu")
CLIENTS = (sbpair.ServiceBusClient, sbpair.aio.ServiceBusClient)


@pytest.mark.parametrize("client_class", CLIENTS)
@pytest.mark.parametrize(
    ("keyword", "suggestion"),
    [
        ("failover_intervall", "failover_interval"),
        ("ping_interval_seconds", "ping_interval"),
        ("backlog_queue", "backlog_queues"),
        ("retry_totals", "retry_total"),
        ("secondry", "secondary"),
        ("nonsense", None),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest_one(
    client_class: type[sbpair.ServiceBusClient], keyword: str, suggestion: str | None
) -> None:
    with pytest.raises(TypeError, match=keyword) as raised:
        client_class.from_connection_string(PRIMARY, secondary=SECONDARY, **{keyword: 1})
    assert str(raised.value).endswith(f"Did you mean {suggestion!r}?") is (suggestion is not None)


@pytest.mark.parametrize("client_class", CLIENTS)
def test_every_option_is_a_keyword_and_adds_to_options(client_class: type[sbpair.ServiceBusClient]) -> None:
    client = client_class.from_connection_string(
        PRIMARY,
        secondary=SECONDARY,
        options=SendAvailabilityOptions(4, hold_sessions=True),
        failover_interval=0,
        ping_interval="30s",
        policy="sdk",
        verify="off",
        verify_interval="PT1M",
        create_missing=False,
    )
    assert client._failover.pair.options == SendAvailabilityOptions(
        4, 0, False, 30.0, "sdk", True, verify="off", verify_interval_seconds=60.0
    )


@pytest.mark.parametrize("client_class", CLIENTS)
def test_whatever_the_sdk_documents_is_taken(client_class: type[sbpair.ServiceBusClient]) -> None:
    client = client_class.from_connection_string(
        PRIMARY,
        secondary=SECONDARY,
        logging_enable=False,
        user_agent="shop",
        retry_total=1,
        retry_mode="fixed",
        http_proxy=None,
        connection_verify=None,
    )
    assert client._config.user_agent == "shop"
    assert client.get_queue_sender("orders", client_identifier="one").client_identifier == "one"
    with pytest.raises(TypeError, match="Did you mean 'client_identifier'"):
        client.get_queue_sender("orders", client_identifer="one")
    with pytest.raises(TypeError, match="get_topic_sender"):
        client.get_topic_sender("orders", nonsense=1)


@pytest.mark.parametrize("client_class", CLIENTS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pair": 5}, "`pair` is the name of a configured pair, or a Pair, not of type int"),
        ({"pair": True}, "not of type bool"),
        ({"secondary": b"Endpoint=sb://h/;SharedAccessKey=c2VjcmV0"}, "`secondary` is a connection string, or a host"),
        ({"secondary": SECONDARY, "options": {"ping_interval": 5}}, r"pair_options\(\)` returns, not of type dict"),
        ({"secondary": SECONDARY, "on_event": "told"}, "`on_event` is a function of one event, not of type str"),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_repeated(
    client_class: type[sbpair.ServiceBusClient], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said) as raised:
        client_class.from_connection_string(PRIMARY, **given)
    assert "c2VjcmV0" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": 5}, {"pair": None}, {"journal": None}, {"journal": 5}, {"terms": 5}, {"sessions": "5"},
        {"concurrency": None}, {"until_idle_seconds": "3"}, {"max_messages": 1.5}, {"on_event": "told"},
    ],
)  # fmt: skip
def test_a_consumer_refuses_them_as_well(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"source": "orders", "pair": "p", "journal": "sqlite:j", "until_idle_seconds": 3}
    sbpair.aio.Consumer(**right)
    with pytest.raises(TypeError, match=f"`{next(iter(wrong))}` is .*, not of type"):
        sbpair.aio.Consumer(**right | wrong)


@pytest.mark.parametrize("wrong", [{"entity": 5}, {"pair": 5}, {"journal": 5}, {"terms": 5}, {"delay_seconds": "3"}])
def test_so_does_a_producer(wrong: dict[str, Any]) -> None:
    sbpair.aio.Producer("orders", pair="p", journal=None)
    with pytest.raises(TypeError, match=f"`{next(iter(wrong))}` is .*, not of type"):
        sbpair.aio.Producer(**{"entity": "orders", "pair": "p"} | wrong)


def test_the_signature_names_every_argument() -> None:
    for client_class in CLIENTS:
        names = inspect.signature(client_class).parameters
        assert {*PAIR_OPTIONS, "secondary", "pair", "options", "on_event", "retry_total"} <= set(names)
        assert set(inspect.signature(sdk.ServiceBusClient).parameters) - {"kwargs"} <= set(names)


def test_options_by_the_names_of_the_file() -> None:
    assert pair_options() == SendAvailabilityOptions()
    assert pair_options(SendAvailabilityOptions(3), failover_interval="1m30s") == SendAvailabilityOptions(3, 90.0)
    with pytest.raises(TypeError, match="Did you mean 'failover_interval'"):
        pair_options(failover_intervals=1)
    with pytest.raises(UsageError, match="not a duration"):
        pair_options(failover_interval="soon")
    for wrong in ({"verify": "maybe"}, {"verify_interval": -1}, {"create_missing": "yes"}, {"backlog_queues": 0}):
        with pytest.raises(UsageError):
            pair_options(**wrong)


def test_the_embedded_namespaces_own_connection_strings_are_enough(world: World) -> None:
    client = sbpair.ServiceBusClient.from_connection_string(
        world.connection_string(),
        secondary=world.connection_string("fabrikam"),
        backlog_queues=QUEUES,
        failover_interval=0,
        **FAST,
    )
    assert client._failover.pair.backlog_paths() == tuple(map(backlog_queue, range(QUEUES)))
    with client, client.get_queue_sender("orders") as sender:
        world.dark()
        sender.send_messages(ServiceBusMessage("diverted"))
    assert world.backlog() == ["diverted"]


def test_an_address_without_a_name_is_refused() -> None:
    primary = PRIMARY.replace("contoso-weu.servicebus.windows.net", "192.0.2.7")
    with pytest.raises(ValueError, match="give pair= instead of secondary="):
        sbpair.ServiceBusClient.from_connection_string(primary, secondary=SECONDARY)


def test_a_pairs_primary_is_the_clients_in_whatever_case(world: World) -> None:
    pair = world.pair()
    pair = replace(pair, primary=replace(pair.primary, host="Contoso.ServiceBus.windows.net"))
    text = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a2V5"
    sbpair.ServiceBusClient.from_connection_string(text, pair=pair).close()
    with pytest.raises(ValueError, match="primary"):
        sbpair.ServiceBusClient.from_connection_string(text.replace("contoso", "other"), pair=pair)


def test_a_call_has_the_time_that_it_was_given() -> None:
    """However short: what a partitioned entity needs is not known of a client's call."""
    assert [budget_of(seconds, 0.0).total_seconds for seconds in (None, 2.0, 90.0)] == [60.0, 2.0, 90.0]
