"""The asynchronous drop-in client: `from sbpair.aio import ServiceBusClient`."""

from sbpair.clients.aio import ServiceBusClient, ServiceBusSender

__all__ = ["ServiceBusClient", "ServiceBusSender"]
