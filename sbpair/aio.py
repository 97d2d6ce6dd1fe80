"""For asynchronous applications: the drop-in client, and the consumer and the producer of active/active.

from sbpair.aio import ServiceBusClient
from sbpair.aio import Consumer, Producer
"""

from sbpair.clients.aio import ServiceBusClient, ServiceBusSender
from sbpair.clients.consumer import Consumer, ReplicatedMessage, consume
from sbpair.clients.producer import Producer
from sbpair.core.replication.ownership import Terms
from sbpair.core.replication.status import ConsumeReport
from sbpair.runtime.replication.handlers import RetryLater
from sbpair.runtime.replication.sender import DualResult, DualSent, NeitherSideError

__all__ = [
    "ConsumeReport",
    "Consumer",
    "DualResult",
    "DualSent",
    "NeitherSideError",
    "Producer",
    "ReplicatedMessage",
    "RetryLater",
    "ServiceBusClient",
    "ServiceBusSender",
    "Terms",
    "consume",
]
