"""What an application sends through the drop-in client lies in the backlog as the retired library left it there (see
`recorded`)."""

import asyncio
import datetime
import uuid
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from sbpair import ServiceBusClient
from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import (
    Byte,
    Char,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
)
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.emulator import EmulatorThread
from sbpair.emulator.entities import QueueDescription
from tests.golden.recorded import DIRECTLY, GOLDEN, WRAPPED_BY_THE_LIBRARY, Golden, assert_as_diverted, values

NAMES = {Byte: "BYTE", Float: "FLOAT", Int: "INT", Long: "LONG", Short: "SHORT", Timestamp: "TIMESTAMP"}
NAMES |= {Ubyte: "UBYTE", Uint: "UINT", Ulong: "ULONG", Ushort: "USHORT", Symbol: "SYMBOL"}
"""How the SDK is told the type of a value."""
NOT_WRITABLE = (Char, Decimal128)
"""The SDK writes no char, and no decimal as .NET does."""
NO_BODY = b""
"""The SDK writes no message without a body."""


def for_the_sdk(value: Any) -> Any:
    if isinstance(value, Described):
        return (for_the_sdk(value.descriptor), for_the_sdk(value.value))
    if type(value) in NAMES:
        plain: Any = bytes(str(value), "ascii") if isinstance(value, Symbol) else value
        return {"TYPE": NAMES[type(value)], "VALUE": plain}
    assert value is None or type(value) in (str, bool, float, bytes, uuid.UUID), type(value)
    return value


def message_of(golden: Golden) -> tuple[AmqpAnnotatedMessage, list[str]]:
    """The message as an application of the SDK writes it, and the application properties that it cannot write."""
    found = values(golden.forms[DIRECTLY])
    application = dict(found.get(Section.APPLICATION_PROPERTIES) or {})
    left_out = [name for name, value in application.items() if isinstance(value, NOT_WRITABLE)]
    fields = found[Section.PROPERTIES]
    names = ("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding")
    properties = {name: fields[index] for index, name in enumerate(names)}
    properties["group_id"] = fields[PropertyField.GROUP_ID]
    properties["reply_to_group_id"] = fields[PropertyField.REPLY_TO_GROUP_ID]
    if Section.VALUE in found:
        value = found[Section.VALUE]
        if isinstance(value, Timestamp):
            value = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        body: dict[str, Any] = {"value_body": value}
    else:
        body = {"data_body": [found.get(Section.DATA, NO_BODY)]}
    message = AmqpAnnotatedMessage(
        header=AmqpMessageHeader(time_to_live=found[Section.HEADER][HeaderField.TTL]),
        annotations={key: for_the_sdk(value) for key, value in found[Section.MESSAGE_ANNOTATIONS].items()},
        properties=AmqpMessageProperties(**{name: value for name, value in properties.items() if value is not None}),
        application_properties={name: for_the_sdk(application[name]) for name in application if name not in left_out},
        **body,
    )
    return message, left_out


def access(emulator: EmulatorThread, name: str) -> NamespaceAccess:
    text = Secret(emulator.connection_string(name))
    return NamespaceAccess(name, host_of(text.reveal()), AuthMethod.CONNECTION_STRING, text)


async def browsed(where: NamespaceAccess, queue: str) -> dict[str, bytes]:
    messaging = AzureMessaging(where)
    try:
        page = await messaging.receiver(queue).peek(250)
    finally:
        await messaging.close()
    return {str(one.message_id): one.payload for one in page}


@pytest.mark.parametrize("library", ["5.0.0", "2.7.5"])
def test_the_clients_leave_what_the_library_left(library: str) -> None:
    goldens = [one for one in GOLDEN if one.library == library]
    with EmulatorThread(["contoso", "fabrikam"]) as emulator:
        primary = emulator.namespace("contoso")
        primary.create_queue("orders")
        primary.create_queue("ses", QueueDescription(requires_session=True))
        primary.create_topic("events")
        queue = "contoso/x-servicebus-transfer/0"
        emulator.namespace("fabrikam").create_queue(queue)
        pair = Pair("pair", access(emulator, "contoso"), access(emulator, "fabrikam"), SendAvailabilityOptions(1, 0.0))
        left_out: dict[str, list[str]] = {}
        client = ServiceBusClient.from_connection_string(emulator.connection_string("contoso"), pair=pair)
        with client:
            for entity in ("orders", "ses", "events"):
                client.force_failover(entity)
            for golden in goldens:
                message, left_out[golden.message_id] = message_of(golden)
                with client.get_queue_sender(golden.destination) as sender:
                    sender.send_messages(message)
        payloads = asyncio.run(browsed(access(emulator, "fabrikam"), queue))
    assert payloads.keys() == {one.message_id for one in goldens}
    for golden in goldens:
        if golden.message_id == WRAPPED_BY_THE_LIBRARY:
            continue
        payload = payloads[golden.message_id]
        if not values(golden.forms[DIRECTLY]).keys() & {Section.DATA, Section.VALUE}:
            assert values(payload)[Section.DATA] == NO_BODY
            payload = sections.edit(payload, {Section.DATA: None})
        assert_as_diverted(golden, payload, leaving_out=left_out[golden.message_id])
