"""Queues made from the exported templates are the documented ones: a provision finds nothing to correct in them."""

import json
import re
from typing import Any

from azure.mgmt.servicebus import ServiceBusManagementClient

from sbpair.azure.management import _queue
from sbpair.core.entities import Tier
from sbpair.core.inspection.plan import differences
from sbpair.core.pairing import expected_backlog_paths
from sbpair.render.export import TERRAFORM_NAMES, ExportedPair, ExportKind, written

from .conftest import GROUP

PAIR = ExportedPair("orders", "contoso-weu", "primary", queues=2, keys=(), environment={})


def texts(kind: ExportKind) -> str:
    return "\n".join(written(kind, PAIR, image="sbpair").values())


def check(arm: ServiceBusManagementClient, name: str, properties: dict[str, Any]) -> None:
    assert len(properties) > 5
    # Values that somebody has set otherwise before: the template has to say all that counts.
    other = {"maxDeliveryCount": 3, "defaultMessageTimeToLive": "P1D", "autoDeleteOnIdle": "PT10M"}
    arm.queues.create_or_update(GROUP, "primary", name, {"properties": properties | other})
    arm.queues.create_or_update(GROUP, "primary", name, {"properties": properties})
    facts = _queue(arm.queues.get(GROUP, "primary", name).as_dict())
    assert differences(facts.settings, Tier.STANDARD) == ()
    assert facts.path in expected_backlog_paths(PAIR.primary, PAIR.queues)


def test_bicep(arm: ServiceBusManagementClient) -> None:
    text = texts(ExportKind.BICEP)
    body = re.search(r"properties: \{\n(.*?)\n  \}", text, re.DOTALL)
    assert body is not None
    properties = dict(re.findall(r"(\w+): (.*)", body[1]))
    name = re.search(r"name: '(\$.*)'", text)
    assert name is not None
    given = name[1].replace("${primaryName}", PAIR.primary).replace("${index}", "1")
    check(arm, given, {key: json.loads(value.replace("'", '"')) for key, value in properties.items()})


def test_terraform(arm: ServiceBusManagementClient) -> None:
    text = texts(ExportKind.TERRAFORM)
    body = re.search(r"\.id\n\n(.*?)\n\n  lifecycle", text, re.DOTALL)
    assert body is not None
    attributes = dict(re.findall(r"(\w+) += (.*)", body[1]))
    names = {theirs: name for name, theirs in TERRAFORM_NAMES.items()}
    name = re.search(r': "(.*)"\]', text)
    assert name is not None
    given = name[1].replace("${index}", "0")
    check(arm, given, {names[key]: json.loads(value) for key, value in attributes.items()})
