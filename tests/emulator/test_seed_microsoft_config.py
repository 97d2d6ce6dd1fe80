"""Microsoft's `Config.json` gives the entities it names; what is wrong in it is told by its place."""

from typing import Any

import pytest

from sbpair.emulator import EmbeddedNamespace
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.seed import SeedError, is_microsoft_config, plant, seed_of

QUEUES = [
    {"Name": "orders/in", "Properties": {"ForwardTo": "orders", "DefaultMessageTimeToLive": "PT1H"}},
    {
        "Name": "orders",
        "Properties": {
            "DeadLetteringOnMessageExpiration": False,
            "DuplicateDetectionHistoryTimeWindow": "PT20S",
            "ForwardDeadLetteredMessagesTo": "",
            "ForwardTo": "",
            "LockDuration": "PT1M",
            "MaxDeliveryCount": 3,
            "RequiresDuplicateDetection": True,
            "RequiresSession": False,
        },
    },
]
BLUE = {"FilterType": "Correlation", "CorrelationFilter": {"Label": "paint", "Properties": {"color": "blue"}}}
LARGE = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "amount > 9"}, "Action": {"SqlExpression": "SET big = 1"}}
TOPICS = [
    {
        "Name": "events",
        "Properties": {"RequiresDuplicateDetection": False},
        "Subscriptions": [
            {"Name": "all", "Properties": {"MaxDeliveryCount": 5}},
            {"Name": "some", "Rules": [{"Name": "blue", "Properties": BLUE}, {"Name": "large", "Properties": LARGE}]},
        ],
    }
]


def config(**namespace: Any) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", **namespace}], "Logging": {"Type": "File"}}}


def test_its_entities_are_there() -> None:
    document = config(Queues=QUEUES, Topics=TOPICS)
    assert is_microsoft_config(document)
    ((name, seed),) = seed_of(document).items()
    assert name == "sbemulatorns"

    def look(namespace: Namespace) -> None:
        plant(namespace, seed)
        orders = namespace.get_queue("orders")
        assert orders is not None
        assert (orders.description.lock_duration_seconds, orders.description.max_delivery_count) == (60, 3)
        assert orders.description.duplicate_detection_history_time_window_seconds == 20
        assert orders.description.forward_to is None
        entrance = namespace.get_queue("orders/in")
        assert entrance is not None
        assert (entrance.description.forward_to, entrance.description.default_message_time_to_live_seconds) == (
            "orders",
            3600,
        )
        assert [rule.name for rule in namespace.rules("events", "all")] == ["$Default"]
        assert [rule.name for rule in namespace.rules("events", "some")] == ["blue", "large"]

    with EmbeddedNamespace() as servicebus:
        servicebus.call(look)
        topic = servicebus.topic("events")
        topic.send("one", subject="paint", properties={"color": "blue"})
        topic.send("two", subject="paint", properties={"color": "red"})
        topic.send("three", properties={"amount": 10})
        some = topic.subscription("some")
        some.assert_sent(count=2)
        some.assert_sent(count=1, body="three", properties={"big": 1})
        assert len(topic.subscription("all").messages) == 3


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (config(Queues=[{"Properties": {}}]), r"sbemulatorns\.Queues\[0\]: `Name` is missing"),
        (config(Queues={"Name": "q"}), r"sbemulatorns\.Queues: a list is expected"),
        (
            config(Queues=[{"Name": "q", "Properties": {"LockDuration": "1 min"}}]),
            r"q\.Properties\.LockDuration: an ISO",
        ),
        (config(Queues=[{"Name": "q", "Properties": {"LockDuration": 60}}]), r"q\.Properties\.LockDuration: an ISO"),
        (config(Topics=[{"Name": "t", "Subscriptions": ["s"]}]), r"t\.Subscriptions\[0\]: a mapping, "),
        ({"UserConfig": []}, "UserConfig: a mapping, "),
        (config(Ques=[]), r"sbemulatorns: unknown key 'Ques'; did you mean 'Queues'"),
        (config(Queues=[{"Name": "q", "Propertys": {}}]), r"q: unknown key 'Propertys'; did you mean 'Properties'"),
        (
            config(Queues=[{"Name": "q", "Properties": {"LockDuraton": "PT1M"}}]),
            r"q\.Properties: unknown key 'LockDuraton'; did you mean 'LockDuration'",
        ),
        (
            config(Queues=[{"Name": "q", "Properties": {"MaxDeliveryCount": "3"}}]),
            r"q\.Properties\.MaxDeliveryCount: a whole number is expected, not a text",
        ),
        (
            config(Topics=[{"Name": "t", "Properties": {"EnablePartitioning": 1}}]),
            r"t\.Properties\.EnablePartitioning: true or false is expected, not a whole number",
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_place(document: dict[str, Any], says: str) -> None:
    with pytest.raises(SeedError, match=says):
        seed_of(document)
