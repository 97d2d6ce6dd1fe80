"""Auto-forwarding: where messages go by themselves."""

from sbpair.emulator.laws.law import ANY_NUMBER, Law, documented, fixed, limit, rule

_FORWARDING = documented("Chaining Service Bus entities with autoforwarding")


class ForwardingLaws:
    max_forwarding_hops = limit(
        "A message is forwarded 4 times at most, and dead-lettered then.",
        _FORWARDING,
        "broker/forwarding.py Transfers.send",
        4,
        ANY_NUMBER,
    )
    forwarding_target_exists = rule(
        "An entity forwards to a queue or topic that exists when it is set.",
        _FORWARDING,
        "namespace.py Admission._target",
    )
    full_target_waits = Law[bool](
        "What a full destination does not take waits at its source until there is room.",
        _FORWARDING,
        "broker/forwarding.py Transfers._trying",
        strict=True,
        other=False,
        differs="counted as transfer messages; the document's dead-letter queue, where they wait, is the other form",
    )
    missing_target_dead_letters = fixed(
        "What a destination that is gone or disabled does not take is a transfer dead letter at its source.",
        _FORWARDING,
        "broker/forwarding.py Transfers._trying",
        differs="so it is here; users see the Premium tier deliver into SendDisabled queues (Azure/azure-service-bus "
        "issue 743)",
    )
    forwarded_entity_has_no_receiver = fixed(
        "An entity that forwards has no receivers.", _FORWARDING, "endpoints.py _attach_receiver"
    )
    sessions_do_not_forward = fixed(
        "Entities with sessions do not forward.", _FORWARDING, differs="they forward as others do"
    )
