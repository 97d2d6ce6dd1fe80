"""What the embedded namespace does not do, or does differently from the service, as far as its builders know.

`sbpair emulator --not-emulated` prints the list; what relies on one of these must be tested against a real namespace.
"""

import json
from importlib import resources
from typing import Any

NOT_EMULATED: tuple[tuple[str, str], ...] = (
    (
        "Rules inside a transaction, deletion of many messages, receive-and-delete of deferred ones",
        "refused, and the commit fails; the documents say that management cannot be mixed with messaging there",
    ),
    (
        "Send-via by a link's property (Microsoft.Azure.ServiceBus, `viaEntityPath`)",
        "such a link sends directly; use cross-entity transactions, which have the service's rules",
    ),
    (
        "Scheduled messages that a transaction across entities cancels at another than its first entity",
        "cancelled with the rest; no document says what the service does",
    ),
    (
        "Session ids in rules, partition keys and message ids that differ in case alone",
        "taken for different, as no document says what the service does; elsewhere session ids compare without case",
    ),
    (
        "How session ids with letters beyond ASCII compare",
        "without case, too; of the service it is known for session ids in general, and seen with ASCII letters",
    ),
    (
        "JMS beyond queues, browsers and transactions: durable and shared subscriptions, temporary queues, selectors",
        "refused; consume TOPIC/Subscriptions/NAME as a queue, and give the subscription a rule",
    ),
    ("Geo-replication", "a namespace tells no replicas; no data moves"),
    (
        "Geo-DR: time that passes until entities are replicated, a pairing is made, or a host name leads elsewhere",
        "all at once; an alias has an address (`--alias`) only if the emulator was started with it",
    ),
    (
        "Private endpoints, firewall rules, managed identities, role assignments",
        "a bearer token must be for the service and valid now, but anybody can have signed it; it has all rights",
    ),
    (
        "Any number of clients at any cost",
        "what a connection makes the emulator keep is bounded (128 MB, 512 KB before its first token, 512 MB for all "
        "together), its input is read some milliseconds at a time, and an attach has 16 KB at most",
    ),
    (
        "Filters at any cost",
        "rules that have to look at more than 5,000,000 characters of one message fail to evaluate",
    ),
    (
        "A disk that is never full (`--data-dir`)",
        "server-busy and HTTP 503 for what would change anything, until there is room again; deliveries wait",
    ),
    (
        "Throttling by credits (1,000 a second) or by megabytes (Premium)",
        "only with --throttling: a message costs 1 credit, a management call 10, a settlement nothing; deliveries wait "
        "for the next second",
    ),
    ("Idle timeouts of links (10 minutes) and of connections without links", "links stay as long as the client wants"),
    (
        "5,000 connections per namespace and receivers per entity, 400 GB per namespace",
        "connections and receivers are counted with --throttling, sizes of entities always",
    ),
    (
        "Partitions that are unavailable one by one, cached receives of front ends",
        "only by the fault `partition-down:partition=3`: what is pinned there is refused and waits, counts include it",
    ),
    (
        "Requests to a ReceiveDisabled entity (browse, schedule)",
        "answered; Disabled and SendDisabled entities refuse them, as was seen at the service",
    ),
    ("Which partition answers a peek first", "they take turns; the service gives no rule"),
    ("Which order partitions are received in", "one message from each partition that has any, in turns"),
    (
        "Premium namespaces with partitions",
        "made by a seed (`partitions: 2` or 4); their entities are partitioned whatever is asked for, and one may grow "
        "to its whole size in one partition",
    ),
    ("Express entities", "the flag is kept and has no effect"),
    ("Header fields priority and durable, first-acquirer", "carried, without effect, as in the service"),
    ("Expiry without a receiver", "an expired message stays and counts until somebody receives from its entity"),
    (
        "Ping messages of the retired paired-namespace library",
        "accepted and never delivered; today's service may differ",
    ),
    (
        "Batches to a partitioned entity that mix messages with and without a key",
        "refused as those with distinct keys are, which the service may not do",
    ),
    ("The broker's re-encoding of message sections", "stored bytes stay the sender's, so odd encodings survive"),
    (
        "Message formats other than 0 and batches",
        "accepted, and delivered as format 0; no document says what the service does with them, and none of its own "
        "clients sets or shows one",
    ),
    (
        "A message's own time to live beyond 49.7 days",
        "expiry goes by the header's ttl; creation-time and absolute-expiry-time are carried, not read",
    ),
    (
        "Browsing with links in peek mode (retired library, JMS)",
        "from the first message on, whatever the client asks for; newer clients browse by request",
    ),
    (
        "Clients on other machines",
        "`sbpair emulator` listens on this machine alone unless told otherwise (--host, --tls-name); beyond it bearer "
        "tokens are off (--bearer-tokens)",
    ),
    ("Namespaces made through the resource manager", "404: a namespace exists if the emulator was started with it"),
    ("Diagnostics, metrics, activity logs", "the administration counts are all there is"),
    ("Message sizes over 100 MB, HTTP send and receive", "refused; messages go over AMQP only"),
    ("Locks across a restart of a durable namespace", "all messages are free again, with the delivery count they had"),
    ("The SBMP protocol of the retired .NET Framework library", "only AMQP 1.0 is spoken"),
)


def compatibility() -> list[dict[str, Any]]:
    """The clients that have been asked, unmodified, and how many of their scenarios passed; kept by the run itself."""
    text = (resources.files("sbpair.emulator") / "compatibility.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows
