"""Nouns and rules of the service that the embedded namespace applies and the rest of sbpair relies on, in one place."""

CREDITS_PER_MANAGEMENT_CALL = 10
"""Throttling credits of one create, read, update or delete; a namespace of tier Basic or Standard has 1,000 a second
("Throttling operations on Azure Service Bus")."""
