"""Drop-in clients: azure-servicebus' `ServiceBusClient`, synchronous and asynchronous, that divert while the primary is
away.

They are subclasses of the SDK's clients. While all is well the SDK's own sender is called and nothing else happens: no
thread, no connection, no state per message. What the SDK's retries do not cure comes to `failover`, which keeps the
failover machine, the pings and the backlog's links on one event loop in a thread of its own, so that the same code
serves both clients, from any thread and from one `asyncio.run` after another.
"""
