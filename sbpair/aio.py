"""For asynchronous applications: the drop-in client, and the consumer of active/active.

from sbpair.aio import ServiceBusClient
from sbpair.aio import Consumer
"""

from sbpair.clients.aio import ServiceBusClient, ServiceBusSender
from sbpair.clients.consumer import Consumer, ReplicatedMessage, consume
from sbpair.runtime.replication.consumer import ConsumeReport
from sbpair.runtime.replication.handlers import RetryLater

__all__ = [
    "ConsumeReport",
    "Consumer",
    "ReplicatedMessage",
    "RetryLater",
    "ServiceBusClient",
    "ServiceBusSender",
    "consume",
]
