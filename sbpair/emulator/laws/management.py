"""Administration, protocols, regions (what Geo-Replication keeps, what a promotion does), keys, tokens and rights."""

from sbpair.emulator.laws.law import documented, fixed, inferred, reported, rule

_AMQP = documented("AMQP 1.0 in Azure Service Bus protocol guide")


class ManagementLaws:
    names_without_case = fixed(
        "Paths of entities, and names of subscriptions and rules, compare without case.",
        documented("Naming rules and restrictions for Azure resources"),
        "namespace.py Namespace.find",
    )
    names_of_few_letters = fixed(
        "A path has letters, digits, periods, hyphens, underscores and slashes; a backslash is a slash.",
        documented("Naming rules and restrictions for Azure resources"),
        "validation.py entity_path",
    )
    disabled_entities = fixed(
        "Disabled and SendDisabled entities refuse senders and requests, Disabled and ReceiveDisabled ones receivers.",
        documented("Suspend and reactivate messaging entities"),
        "endpoints.py _check_requests",
        differs="requests to a ReceiveDisabled entity are answered, which was not seen at the service",
    )
    deferred_count_as_active = fixed(
        "Deferred messages count as active.", inferred("Message counters"), "broker/mailbox.py Mailbox.active_count"
    )
    auto_delete_on_idle = fixed(
        "An entity that nobody sends to, receives from or updates for its idle time is deleted.",
        documented("Message expiration (time to live)"),
        "broker/entity.py IdleWatch",
    )
    namespaces_through_arm = fixed(
        "The resource manager makes namespaces.",
        documented("Azure Service Bus resource provider"),
        differs="404: a namespace exists if the emulator was started with it",
    )
    diagnostics = fixed(
        "A namespace has metrics, diagnostics and activity logs.",
        documented("Monitor Azure Service Bus"),
        differs="the administration counts are all there is",
    )
    disk = fixed(
        "A namespace has room for what its quotas allow.",
        documented("Service Bus quotas"),
        "namespace.py Namespace.check_store",
        differs="a full disk (`--data-dir`): server-busy and HTTP 503 for all changes, until there is room",
    )
    geo_recovery = fixed(
        "A Geo-DR pairing copies entities, no messages, and its alias leads to the other namespace after a failover.",
        documented("Azure Service Bus Geo-disaster recovery"),
        "geo.py first_pairing",
        differs="all at once; an alias has an address (`--alias`) only if the emulator was started with it",
    )
    geo_replication = fixed(
        "A namespace with Geo-Replication has its entities and messages in two regions.",
        documented("Azure Service Bus Geo-Replication"),
        differs="a namespace tells no replicas; no data moves",
    )
    jms = fixed(
        "Premium namespaces serve JMS 2.0.",
        documented("Use Java Message Service 2.0 API with Azure Service Bus Premium"),
        "endpoints.py _attach_receiver",
        differs="queues, browsers and transactions; durable and shared subscriptions, temporary queues and selectors "
        "are refused: consume TOPIC/Subscriptions/NAME as a queue, and give the subscription a rule",
    )
    browsing_links = fixed(
        "A link in peek mode browses from a place that its client asks for.",
        inferred("the retired .NET library"),
        "receivers.py BrowsingLink",
        differs="from the first message on; newer clients browse by request",
    )
    idle_links = fixed(
        "A link that is idle for 10 minutes is detached, and a connection without links closed.",
        documented("AMQP errors in Azure Service Bus"),
        differs="links stay as long as the client wants",
    )
    sbmp = fixed("The retired .NET Framework library speaks SBMP.", _AMQP, differs="only AMQP 1.0 is spoken")


_GEO_REPLICATION = documented("Azure Service Bus Geo-Replication")


class RegionLaws:
    planned_promotion_read_only = rule(
        "From the request of a planned promotion to its end the namespace is read only.",
        _GEO_REPLICATION,
        "geo.py GeoReplication.promote",
        differs="the other region has no address of its own; one namespace is promoted in place, and cuts connections",
    )
    forced_promotion_loses_tail = fixed(
        "A forced promotion loses what asynchronous replication has not brought to the secondary yet.",
        _GEO_REPLICATION,
        "geo.py GeoReplication.promote",
    )
    completions_come_back = fixed(
        "Messages whose completion or deferral was not replicated are there again after a forced promotion.",
        _GEO_REPLICATION,
        "geo.py GeoReplication.drop_message",
        differs="dead-letterings and forwardings of that time are not taken back, and states of sessions stay",
    )


_SAS = documented("Service Bus access control with Shared Access Signatures")


class AccessLaws:
    local_auth_disabled = rule(
        "A namespace whose keys are switched off (disableLocalAuth) says so: 401, LocalAuthDisabled.",
        reported("pnp/Microsoft365-Analytics-Insights issue 138, Azure/azure-sdk-for-java issue 37010"),
        "namespace.py SharedAccess.signers",
    )
    rights_of_links = fixed(
        "A sender needs Send, a receiver Listen, a request node one of them.", _SAS, "endpoints.py _check_rights"
    )
    manage_has_all_rights = rule(
        "A rule with Manage has Send and Listen as well.", _SAS, "validation.py authorization_rule"
    )
    tokens_end_links = fixed(
        "A link ends with the newest token for its entity, and with the key that signed it.",
        inferred("AMQP 1.0 in Azure Service Bus protocol guide"),
        "../engine/connection.py Connection",
    )
    identities = fixed(
        "Identities have the rights of their role assignments; private endpoints and firewalls keep others out.",
        documented("Authenticate and authorize an application with Microsoft Entra ID"),
        "../engine/auth.py _check_bearer",
        differs="a bearer token must be for the service and valid now; anybody can have signed it, and it has all "
        "rights",
    )
    other_machines = fixed(
        "A namespace is reached from every network that it allows.",
        documented("Allow access to Azure Service Bus namespaces from specific IP addresses"),
        differs="`sbpair emulator` listens on this machine alone unless told otherwise (--host, --tls-name); beyond it "
        "bearer tokens are off (--bearer-tokens)",
    )
