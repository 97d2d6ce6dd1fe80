"""Long lists through the official clients, page by page."""

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.emulator.entities import QueueDescription
from tests.hostile import within

from .conftest import GROUP, AdminServer
from .raw import send

NAMES = sorted(f"many/q{number:03}" for number in range(250))


@pytest.fixture
def many(server: AdminServer) -> AdminServer:
    server.run(lambda: [server.namespace.create_queue(name, QueueDescription()) for name in NAMES])
    return server


def test_the_data_plane_lists_all_of_250_queues(many: AdminServer) -> None:
    admin = many.admin()
    with within(seconds=20):
        assert [queue.name for queue in admin.list_queues()] == NAMES
    assert [queue.name for queue in admin.list_queues_runtime_properties()] == NAMES


def test_the_second_link_of_a_page_leads_to_the_next(many: AdminServer) -> None:
    first = send(many, "GET", "/$Resources/queues?api-version=2021-05").text
    assert first.count("<entry") == 100
    assert first.index('rel="self"') < first.index('rel="next"')
    assert "$skip=100&amp;$top=100" in first
    last = send(many, "GET", "/$Resources/queues?api-version=2021-05&$skip=200&$top=100").text
    assert last.count("<entry") == 50
    assert 'rel="next"' not in last
    greedy = send(many, "GET", "/$Resources/queues?api-version=2021-05&$top=1000").text
    assert greedy.count("<entry") == 100
    beyond = send(many, "GET", "/$Resources/queues?api-version=2021-05&$skip=900").text
    assert beyond.count("<entry") == 0
    none = send(many, "GET", "/$Resources/queues?api-version=2021-05&$top=0").text
    assert (none.count("<entry"), 'rel="next"' in none) == (0, False)


def test_the_resource_manager_lists_all_of_250_queues(many: AdminServer) -> None:
    listed = [queue.name for queue in many.arm().queues.list_by_namespace(GROUP, "primary")]
    assert listed == [name.replace("/", "~") for name in NAMES]
    some = many.arm().queues.list_by_namespace(GROUP, "primary", skip=240, top=5)
    assert [queue.name for queue in next(some.by_page())] == [name.replace("/", "~") for name in NAMES[240:245]]


def test_rules_and_subscriptions_are_paged_too(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("t")
    for number in range(101):
        admin.create_subscription("t", f"s{number:03}")
    assert len(list(admin.list_subscriptions("t"))) == 101
    for number in range(100):
        admin.create_rule("t", "s000", f"r{number:03}")
    assert [rule.name for rule in admin.list_rules("t", "s000")] == ["$Default"] + [f"r{n:03}" for n in range(100)]
