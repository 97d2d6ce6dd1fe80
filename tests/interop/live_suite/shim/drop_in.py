"""Puts the drop-in clients in the place of the SDK's, in the suite's processes.

LIVE_SUITE_CLIENT is `drop-in` (the primary serves) or `diverting` (every sender's entity has failed over, so that each
message goes through the backlog; a syphon outside brings it to the primary).
"""

import os
from typing import Any

import azure.servicebus
import azure.servicebus.aio

import sbpair
import sbpair.aio
from sbpair.core.pairing import SendAvailabilityOptions

DIVERTING = os.environ.get("LIVE_SUITE_CLIENT") == "diverting"
SECONDARY = os.environ.get("LIVE_SUITE_SECONDARY", "")
OPTIONS = SendAvailabilityOptions(backlog_queue_count=2)


class _Paired:
    """Adds the argument that an application adds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, secondary=SECONDARY, options=OPTIONS, **kwargs)

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> Any:
        return self._checked(super().get_queue_sender(queue_name, **kwargs))  # type: ignore[misc]

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> Any:
        return self._checked(super().get_topic_sender(topic_name, **kwargs))  # type: ignore[misc]

    def _checked(self, sender: Any) -> Any:
        assert isinstance(sender, sbpair.ServiceBusSender | sbpair.aio.ServiceBusSender)
        if DIVERTING:
            self.force_failover(sender.entity_name)  # type: ignore[attr-defined]
        return sender


class ServiceBusClient(_Paired, sbpair.ServiceBusClient):
    pass


class AsyncServiceBusClient(_Paired, sbpair.aio.ServiceBusClient):
    pass


def install() -> None:
    azure.servicebus.ServiceBusClient = ServiceBusClient  # type: ignore[misc]
    azure.servicebus.aio.ServiceBusClient = AsyncServiceBusClient  # type: ignore[misc]
