"""What goes over the wire: bodies, error texts, versions, paths and rights, seen without an SDK."""

import re

import pytest

from sbpair.engine.auth import make_bearer_token

from .conftest import ARM_TOKEN, FAR_FUTURE, AdminServer
from .raw import ENTRY, Answer, sas, send

TRACKING = re.compile(
    r"TrackingId:[0-9a-f-]{36}_G0, SystemTracker:127\.0\.0\.1:\S*, Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"
)


def put(server: AdminServer, target: str, kind: str, body: str = "", **headers: str) -> Answer:
    return send(server, "PUT", target, ENTRY.format(kind=kind, body=body), headers=headers)


def test_an_answer_uses_the_services_own_prefixes(server: AdminServer) -> None:
    created = put(server, "/a%2Fb?api-version=2021-05", "QueueDescription")
    assert created.status == 201
    assert created.headers["content-type"].startswith("application/atom+xml")
    answer = send(server, "GET", "/a/b?api-version=2021-05")
    assert '<entry xmlns="http://www.w3.org/2005/Atom">' in answer.text
    assert '<title type="text">a/b</title>' in answer.text
    assert '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">' in answer.text
    assert "<d2p1:TransferDeadLetterMessageCount>0</d2p1:TransferDeadLetterMessageCount>" in answer.text
    assert "<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>" in answer.text
    assert "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>" in answer.text


def test_a_missing_entity_is_an_empty_feed(server: AdminServer) -> None:
    answer = send(server, "GET", "/missing?api-version=2021-05")
    assert answer.status == 200
    assert "<feed" in answer.text
    assert "Publicly Listed Services" in answer.text
    assert "<entry" not in answer.text


@pytest.mark.parametrize("duration", ["P10675199DT2H48M5.477581S", "P10675200D", "-PT1S", "PT5", "forever"])
def test_durations_above_never_and_nonsense_are_refused(server: AdminServer, duration: str) -> None:
    body = f"<DefaultMessageTimeToLive>{duration}</DefaultMessageTimeToLive>"
    answer = put(server, "/q?api-version=2021-05", "QueueDescription", body)
    assert answer.status == 400
    assert answer.detail.startswith("SubCode=40000. The value")
    assert duration in answer.detail
    assert TRACKING.search(answer.detail)


@pytest.mark.parametrize(
    ("element", "value"),
    [("MaxDeliveryCount", "ten"), ("RequiresSession", "maybe"), ("MaxSizeInMegabytes", "9" * 30), ("Status", "Off")],
)
def test_values_of_the_wrong_kind_are_refused(server: AdminServer, element: str, value: str) -> None:
    answer = put(server, "/q?api-version=2021-05", "QueueDescription", f"<{element}>{value}</{element}>")
    assert (answer.status, element in answer.detail) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no xml",
        "<entry/>",
        "<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>",
        ENTRY.format(kind="EventHubDescription", body=""),
    ],
)
def test_bodies_that_are_no_description_are_refused(server: AdminServer, body: str) -> None:
    answer = send(server, "PUT", "/q?api-version=2021-05", body)
    assert answer.status == 400
    assert "SubCode=40000" in answer.detail


def test_a_body_too_large_is_refused(server: AdminServer) -> None:
    answer = send(server, "PUT", "/q?api-version=2021-05", "x" * (1024 * 1024 + 1))
    assert answer.status == 413


def test_conflicts_and_missing_things(server: AdminServer) -> None:
    assert put(server, "/q?api-version=2021-05", "QueueDescription").status == 201
    taken = put(server, "/Q?api-version=2021-05", "QueueDescription")
    assert (taken.status, "already exists" in taken.detail) == (409, True)
    missing = put(server, "/r?api-version=2021-05", "QueueDescription", **{"If-Match": "*"})
    assert (missing.status, "SubCode=40400" in missing.detail) == (404, True)
    assert put(server, "/q?api-version=2021-05", "QueueDescription", **{"If-Match": "*"}).status == 200
    other_tag = put(server, "/q?api-version=2021-05", "QueueDescription", **{"If-Match": '"1"'})
    assert other_tag.status == 409
    as_topic = put(server, "/q?api-version=2021-05", "TopicDescription", **{"If-Match": "*"})
    assert as_topic.status == 404
    gone = send(server, "DELETE", "/r?api-version=2021-05")
    assert (gone.status, "could not be found" in gone.detail) == (404, True)
    assert send(server, "DELETE", "/q?api-version=2021-05").status == 200


def test_verbs_and_places_that_do_not_exist(server: AdminServer) -> None:
    assert send(server, "PATCH", "/q?api-version=2021-05").status == 405
    assert send(server, "PUT", "/$namespaceinfo?api-version=2021-05").status == 405
    assert send(server, "GET", "/$Resources/hubs?api-version=2021-05").status == 404
    assert send(server, "GET", "/t/subscriptions/s/rules/r/more?api-version=2021-05").status == 404
    assert send(server, "GET", "/?api-version=2021-05").status == 400


def test_api_versions(server: AdminServer) -> None:
    assert put(server, "/q?api-version=2017-04", "QueueDescription").status == 201
    unknown = send(server, "GET", "/q?api-version=1999-01")
    assert (unknown.status, "api-version" in unknown.detail) == (400, True)
    without = send(server, "GET", "/q")
    assert without.status == 200
    assert "MaxMessageSizeInKilobytes" not in without.text


def test_subscription_paths_are_found_behind_topics_with_slashes(server: AdminServer) -> None:
    assert put(server, "/a/b?api-version=2021-05", "TopicDescription").status == 201
    assert put(server, "/a/b/Subscriptions/s?api-version=2021-05", "SubscriptionDescription").status == 201
    assert "<SqlExpression>1=1</SqlExpression>" in send(server, "GET", "/a/b/subscriptions/s/rules").text
    assert send(server, "GET", "/a/b/subscriptions/s/Rules/$Default").status == 200


def test_a_subscription_may_bring_its_first_rule(server: AdminServer) -> None:
    put(server, "/t?api-version=2021-05", "TopicDescription")
    rule = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>x = 1</SqlExpression></Filter>'
        "<Name>first</Name></DefaultRuleDescription>"
    )
    assert put(server, "/t/subscriptions/s?api-version=2021-05", "SubscriptionDescription", rule).status == 201
    listed = send(server, "GET", "/t/subscriptions/s/rules?api-version=2021-05").text
    assert ("first" in listed, "$Default" in listed) == (True, False)


def test_rules_with_unknown_types_are_refused(server: AdminServer) -> None:
    put(server, "/t?api-version=2021-05", "TopicDescription")
    put(server, "/t/subscriptions/s?api-version=2021-05", "SubscriptionDescription")
    target = "/t/subscriptions/s/rules/r?api-version=2021-05"
    value = '<Value xmlns:x="http://www.w3.org/2001/XMLSchema" i:type="x:{}">{}</Value>'
    properties = (
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
        "{}</KeyValueOfstringanyType></Properties></Filter>"
    )
    bodies = [
        '<Filter i:type="MagicFilter"/>',
        '<Filter i:type="SqlFilter"/>',
        '<Action i:type="MagicAction"/>',
        properties.format(""),
        properties.format(value.format("base64Binary", "AA==")),
        properties.format(value.format("int", "many")),
        properties.format(value.format("dateTime", "tomorrow")),
        properties.format(value.format("boolean", "2")),
    ]
    for body in bodies:
        assert put(server, target, "RuleDescription", body).status == 400, body
    assert '<title type="text">r</title>' not in send(server, "GET", "/t/subscriptions/s/rules").text


def test_tokens_that_are_refused(server: AdminServer) -> None:
    missing = send(server, "GET", "/q", token=None)
    assert (missing.status, missing.detail.startswith("MissingToken")) == (401, True)
    wrong = send(server, "GET", "/q", token=sas(server, key="other"))
    assert (wrong.status, wrong.detail.startswith("InvalidSignature")) == (401, True)
    unknown = send(server, "GET", "/q", token=sas(server, name="nobody"))
    assert (unknown.status, unknown.detail.startswith("InvalidSignature")) == (401, True)
    expired = send(server, "GET", "/q", token=sas(server, age=7200))
    assert (expired.status, expired.detail.startswith("ExpiredToken")) == (401, True)
    elsewhere = send(server, "GET", "/q", token=sas(server, "another"))
    assert elsewhere.status == 401
    assert TRACKING.search(elsewhere.detail)
    nonsense = send(server, "GET", "/q", token="SharedAccessSignature what")
    assert nonsense.status == 401
    assert send(server, "GET", "/q", token="Bearer made-up").status == 401
    assert send(server, "GET", "/q", token=f"Bearer {ARM_TOKEN}").status == 401
    assert send(server, "GET", "/q", token=f"Bearer {make_bearer_token(FAR_FUTURE)}").status == 200


def test_rights_that_do_not_suffice(server: AdminServer) -> None:
    server.add_key("listener", "Listen")
    server.add_key("sender", "Send")
    put(server, "/t?api-version=2021-05", "TopicDescription")
    put(server, "/t/subscriptions/s?api-version=2021-05", "SubscriptionDescription")
    listen = sas(server, name="listener", key="listener-1")
    refused = send(server, "GET", "/t", token=listen)
    assert refused.status == 401
    assert refused.detail.startswith("Manage,EntityRead claims required for this operation.")
    deletion = send(server, "DELETE", "/t", token=listen).detail
    assert deletion.startswith("Authorization failed for specified action: Manage,EntityDelete.")
    of_subscriptions = {
        ("GET", "/t/subscriptions"): "EnumerateSubscriptions",
        ("GET", "/t/subscriptions/s"): "GetSubscription",
        ("DELETE", "/t/subscriptions/s"): "DeleteSubscription",
    }
    for (method, target), operation in of_subscriptions.items():
        detail = send(server, method, target, token=listen).detail
        assert detail.startswith(f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation")
    # Whoever has any key is told what is not there.
    missing = send(server, "GET", "/nothing", token=listen)
    assert (missing.status, "<entry" in missing.text) == (200, False)
    assert send(server, "GET", "/nothing", token="Bearer made-up").status == 401
    for target in ("/$namespaceinfo", "/$Resources/queues", "/t/subscriptions", "/t/subscriptions/s"):
        assert send(server, "GET", target, token=listen).status == 401
    assert send(server, "GET", "/t/subscriptions/s/rules", token=listen).status == 200
    sender = sas(server, name="sender", key="sender-1")
    assert send(server, "GET", "/t/subscriptions/s/rules", token=sender).status == 401


def test_a_key_of_the_entity_manages_that_entity_only(server: AdminServer) -> None:
    rule = (
        "<AuthorizationRules><AuthorizationRule i:type='SharedAccessAuthorizationRule'><Rights>"
        "<AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights>"
        "</Rights><KeyName>own</KeyName><PrimaryKey>own-1</PrimaryKey></AuthorizationRule></AuthorizationRules>"
    )
    assert put(server, "/mine?api-version=2021-05", "QueueDescription", rule).status == 201
    put(server, "/other?api-version=2021-05", "QueueDescription")
    token = sas(server, "mine", name="own", key="own-1")
    assert send(server, "GET", "/mine", token=token).status == 200
    assert send(server, "GET", "/other", token=token).status == 401
    assert send(server, "GET", "/$Resources/queues", token=token).status == 401


def test_forwarding_needs_a_token_for_the_target(server: AdminServer) -> None:
    put(server, "/target?api-version=2021-05", "QueueDescription")
    body = "<ForwardTo>target</ForwardTo>"
    bad = {"ServiceBusSupplementaryAuthorization": sas(server, "elsewhere")}
    assert put(server, "/q?api-version=2021-05", "QueueDescription", body, **bad).status == 401
    good = {"ServiceBusSupplementaryAuthorization": sas(server, "target")}
    assert put(server, "/q?api-version=2021-05", "QueueDescription", body, **good).status == 201


@pytest.mark.parametrize("query", ["$skip=-1", "$top=-5", "$skip=x", "$top=99999999999999"])
def test_pages_that_make_no_sense(server: AdminServer, query: str) -> None:
    answer = send(server, "GET", f"/$Resources/queues?api-version=2021-05&{query}")
    assert answer.status == 400


def test_a_path_of_the_retired_library_may_end_with_a_slash(server: AdminServer) -> None:
    assert put(server, "/t?api-version=2017-04", "TopicDescription").status == 201
    made = put(server, "/t/Subscriptions/s/?api-version=2017-04", "SubscriptionDescription")
    assert made.status == 201
    rule = "<Filter i:type='SqlFilter'><SqlExpression>a = 1</SqlExpression></Filter><Name>r</Name>"
    assert put(server, "/t/Subscriptions/s/Rules/r/?api-version=2017-04", "RuleDescription", rule).status == 201
    for target in ("/t/Subscriptions/s/", "/t/Subscriptions/s/Rules/r/"):
        assert "<entry" in send(server, "GET", f"{target}?api-version=2017-04").text
    listed = send(server, "GET", "/t/Subscriptions/s/Rules/?api-version=2017-04").text
    assert listed.count("<entry") == 2


@pytest.mark.parametrize("path", ["q/$DeadLetterQueue", "t/Subscriptions/s/$DeadLetterQueue", "q/$deadletterqueue/"])
def test_sub_queues_are_not_administered(server: AdminServer, path: str) -> None:
    assert send(server, "GET", f"/{path}?api-version=2021-05").status == 400


def test_what_would_be_ignored_is_refused(server: AdminServer) -> None:
    put(server, "/q?api-version=2021-05", "QueueDescription")
    query = "$filter=startswith(path,%20%27a%27)%20eq%20true"
    assert send(server, "GET", f"/$Resources/queues?api-version=2021-05&{query}").status == 400
    renamed = put(server, "/q?api-version=2021-05", "QueueDescription", "<NewPath>r</NewPath>", **{"If-Match": "*"})
    assert (renamed.status, "was not renamed" in renamed.detail) == (400, True)


def test_what_a_queue_says_of_its_message_size_may_be_sent_back(server: AdminServer) -> None:
    put(server, "/q?api-version=2021-05", "QueueDescription")
    said = "<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes>"
    assert said in send(server, "GET", "/q?api-version=2021-05").text
    assert put(server, "/clone?api-version=2021-05", "QueueDescription", said).status == 201
    assert put(server, "/large?api-version=2021-05", "QueueDescription", said.replace("256", "1024")).status == 400
