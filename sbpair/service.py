"""Nouns and rules of the service that the embedded namespace applies and the rest of sbpair relies on, in one place."""

CREDITS_PER_MANAGEMENT_CALL = 10
"""Throttling credits of one create, read, update or delete; a namespace of tier Basic or Standard has 1,000 a second
("Throttling operations on Azure Service Bus")."""


def session_key(session_id: str) -> str:
    """What two spellings of one session have in common; for comparing, never for showing or sending.

    The service does not distinguish `Order-7` from `ORDER-7`, and may deliver a session under another spelling than the
    sender's after an upgrade or a failover. Source: the service's team in azure-sdk-for-java (pull request 48759) and
    in Azure/durabletask (pull request 1334), and azure-sdk-for-net's live test CancelingDoesNotLoseSessionMessages.

    Strength: stated for ids as such and shown with ASCII letters. How letters beyond ASCII compare is unknown. They
    fold here as well: sbpair then treats at worst two sessions as one, which costs concurrency, never order. The
    embedded namespace can be told to fold ASCII letters alone (`ascii_session_key`); the simulation runs with either.

    Not covered, because no source says how the service compares them: message ids (duplicate detection, too), partition
    keys, and session ids within rules of subscriptions. They are compared with case. Names of namespaces, entities,
    rules and application properties in filters are compared without; header names of HTTP as well.
    """
    return session_id.lower()


def ascii_session_key(session_id: str) -> str:
    """The other form that the service's comparison may have: letters beyond ASCII keep their case."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in session_id)


EMBEDDED_NAMES: dict[str, str] = {}
"""The embedded namespaces of this process: names by `host:port`, since a connection string of theirs tells the address
alone and the paths of backlog queues contain the name."""
