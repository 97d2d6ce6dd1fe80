"""Checks of the two namespaces: tier, replication features, roles, rights, clocks and names."""

from collections.abc import Callable, Iterator

from sbpair.core.access import AuthMethod, ControlPlane
from sbpair.core.durations import format_duration
from sbpair.core.inspection.audit.findings import (
    CannotRun,
    Check,
    CheckedSide,
    Found,
    OnlyArmTells,
    Scope,
    Severity,
    View,
)
from sbpair.core.names import BACKLOG_INFIX, same_name
from sbpair.core.replication.settings import problems
from sbpair.core.words import counted
from sbpair.service import Tier

MAX_PARTITIONED_ENTITIES = 100
"""Partitioned queues and topics in a namespace of tier Basic or Standard."""
ROOT_KEY = "RootManageSharedAccessKey"
_READ_ONLY_ROLE = "secondary"
_GOOD_STATES = {"active", "created", "succeeded", "enabled"}


def _sides(view: View) -> tuple[CheckedSide, ...]:
    return (view.primary,) if view.snapshot.alone else (view.primary, view.secondary)


def _on_each_side(look: Callable[[View, CheckedSide], Iterator[Found]]) -> Callable[[View], Iterator[Found]]:
    """A check of one namespace, run on both: what cannot be told of one does not keep it from the other."""

    def run(view: View) -> Iterator[Found]:
        stops = []
        for side in _sides(view):
            try:
                yield from look(view, side)
            except CannotRun as stop:
                stops.append(stop)
        if stops:
            kind = OnlyArmTells if all(isinstance(stop, OnlyArmTells) for stop in stops) else CannotRun
            raise kind("; ".join(map(str, stops)))

    return run


@_on_each_side
def _partitioned_count(view: View, side: CheckedSide) -> Iterator[Found]:
    if side.tier() is Tier.PREMIUM:
        return
    count = sum(queue.facts.settings.enable_partitioning for queue in side.queues())
    count += sum(topic.enable_partitioning for topic in side.topics())
    if count >= view.thresholds.partitioned_entities:
        yield Found(
            side.name,
            f"{count} of at most {MAX_PARTITIONED_ENTITIES} partitioned entities are in use on the {side.role}.",
            Severity.ERROR if count >= MAX_PARTITIONED_ENTITIES else None,
        )


def _secondary_is_primary(view: View) -> Iterator[Found]:
    host = view.pair.secondary.host
    for other in view.others:
        if other.primary.host == host and other.name != view.pair.name:
            yield Found(view.secondary.name, f"Pair {other.name!r} has this secondary as its primary.")
    label = view.pair.secondary.label
    named = view.primary.backlog(label)
    if named:
        yield Found(
            view.secondary.name,
            f"On {view.primary.name}: {counted(len(named), 'backlog queue')} named for this secondary "
            f"({label}/{BACKLOG_INFIX}/...); something pairs the two the other way round as well.",
        )


def _independent(view: View) -> Iterator[Found]:
    """An outage that takes one side should leave the other: not so in one region, or where both are one namespace."""
    primary, secondary = view.primary.facts(), view.secondary.facts()
    subject = view.secondary.name
    if same_name(primary.name, secondary.name):
        message = f"{view.primary.name} and {subject} are one namespace, {primary.name}, under two names."
        yield Found(subject, message, Severity.ERROR)
        return
    if primary.location is None or secondary.location is None:
        raise OnlyArmTells("region unknown: it needs ARM access (`management: arm`)")
    if _region(primary.location) == _region(secondary.location):
        yield Found(subject, f"Both namespaces are in {secondary.location}: an outage of that region affects both.")


def _region(location: str) -> str:
    """`West Europe` and `westeurope` are the same."""
    return location.replace(" ", "").lower()


@_on_each_side
def _geo_dr(view: View, side: CheckedSide) -> Iterator[Found]:
    facts = side.facts()
    if not (facts.alias or facts.geo_dr_role or facts.geo_dr_partner):
        return
    role = facts.geo_dr_role or "role not included in this API"
    partner = f" with {facts.geo_dr_partner}" if facts.geo_dr_partner else ""
    read_only = (facts.geo_dr_role or "").lower() == _READ_ONLY_ROLE
    yield Found(
        side.name,
        f"The {side.role} has Geo-DR alias {facts.alias or '?'}{partner} ({role})."
        + (" In that role no queue can be created or changed." if read_only else ""),
        Severity.ERROR if read_only else None,
    )


@_on_each_side
def _geo_replication(view: View, side: CheckedSide) -> Iterator[Found]:
    facts = side.facts()
    if facts.control_plane == ControlPlane.DATA_PLANE:
        if facts.tier in (Tier.BASIC, Tier.STANDARD):
            return  # replication is a feature of Premium
        raise CannotRun(f"geo-replication of {side.name} unknown: the data-plane API does not include it")
    if facts.geo_replication:
        yield Found(side.name, f"The {side.role} is geo-replicated ({facts.geo_replication}).")


@_on_each_side
def _clock_skew(view: View, side: CheckedSide) -> Iterator[Found]:
    facts = side.facts()
    if facts.service_time is None or side.seen.observed_at is None:
        raise CannotRun(f"the {facts.control_plane} API did not return the time of {side.name}")
    skew = side.seen.observed_at - facts.service_time
    if abs(skew) < view.thresholds.clock_skew_warning_seconds:
        return
    direction = "ahead of" if skew > 0 else "behind"
    grave = abs(skew) >= view.thresholds.clock_skew_error_seconds
    yield Found(
        side.name,
        f"This machine's clock is {format_duration(abs(skew))} {direction} {side.name}.",
        Severity.ERROR if grave else None,
    )


@_on_each_side
def _basic_tier(view: View, side: CheckedSide) -> Iterator[Found]:
    if side.tier() is not Tier.BASIC:
        return
    if side is view.secondary:
        yield Found(side.name, "The secondary is Basic: diverted messages expire after 14 days at the latest.")
    else:
        yield Found(side.name, "The primary is Basic: no topics, sessions or duplicate detection.", Severity.INFO)


def _same_label(view: View) -> Iterator[Found]:
    mine, secondary = view.pair.primary, view.pair.secondary.host
    for other in view.others:
        same_place = other.secondary.host == secondary
        same_label = other.primary.label == mine.label
        if same_place and same_label and other.primary.host != mine.host:
            yield Found(
                f"{mine.label}/{BACKLOG_INFIX}",
                f"{mine.host} and {other.primary.host} (pair {other.name!r}) have the same first label and share the "
                "secondary: their messages mix in the same backlog queues and go back to either primary.",
            )


def _rights(view: View) -> Iterator[Found]:
    for side in _sides(view):
        denied: dict[str, list[str]] = {}
        for entry in side.seen.unread:
            if entry.exit_name == "denied":
                denied.setdefault(entry.reason, []).append(entry.subject)
        for reason, subjects in denied.items():
            yield Found(
                side.name, f"Credential {side.seen.auth!r} may not read {_list(subjects)} of the {side.role}: {reason}"
            )


def _list(subjects: list[str], shown: int = 3) -> str:
    more = len(subjects) - shown
    return ", ".join(subjects[:shown]) + (f" and {more} more" if more > 0 else "")


def _more_rights(view: View) -> Iterator[Found]:
    for side in _sides(view):
        if side.seen.auth == AuthMethod.CONNECTION_STRING and side.seen.key_name == ROOT_KEY:
            yield Found(
                side.name,
                f"The {side.role} is reached with {ROOT_KEY}, which may do everything to every entity; changes made "
                "with it leave no trace of who made them.",
            )


@_on_each_side
def _state(view: View, side: CheckedSide) -> Iterator[Found]:
    facts = side.facts()
    if facts.status is None:
        raise OnlyArmTells(f"the {facts.control_plane} API does not include the status of {side.name}")
    if facts.status.lower() not in _GOOD_STATES:
        yield Found(side.name, f"The {side.role}'s status is {facts.status}.")


CHECKS = (
    Check(
        "SBP014",
        "Partitioned entities near the limit",
        Severity.WARNING,
        "A namespace of tier Basic or Standard holds at most 100 partitioned queues and topics; at the limit no "
        "partitioned backlog queue can be created.",
        "sbpair provision {pair}\nProvision without --partitioned, or remove partitioned entities from {subject}.",
        _partitioned_count,
    ),
    Check(
        "SBP015",
        "The secondary is itself a primary",
        Severity.ERROR,
        "A secondary must not be paired itself: when it fails, messages diverted to it would have to be diverted "
        "again. The retired library refused such pairings.",
        "sbpair config show\nGive one of the two pairs another secondary.",
        _secondary_is_primary,
    ),
    Check(
        "SBP016",
        "Geo-DR on a namespace of the pair",
        Severity.WARNING,
        "A Geo-DR alias moves a host name to another namespace, without the messages. After such a failover the pair "
        "points elsewhere, and in the role Secondary a namespace refuses every change of its entities.",
        "az servicebus georecovery-alias list --namespace-name ... --resource-group ...\nPair namespaces without "
        "Geo-DR.",
        _geo_dr,
    ),
    Check(
        "SBP017",
        "Geo-replication on a namespace of the pair",
        Severity.WARNING,
        "Geo-Replication copies a namespace to another region and switches over under the same host name. Where it is "
        "asynchronous, a forced promotion loses messages that were not replicated and brings settled ones again, and "
        "until a promotion ends the namespace is read-only. Two mechanisms that act on the same outage need a plan for "
        "who acts first.",
        "az servicebus namespace show --name ... --resource-group ...\nDecide which of the two mechanisms is to act. "
        "After a promotion: sbpair promotion report --namespace ...",
        _geo_replication,
    ),
    Check(
        "SBP021",
        "Clock skew",
        Severity.WARNING,
        "Tokens, lock expiry and message ages are computed from this machine's clock. A minute of skew makes fresh "
        "tokens invalid or ages nonsense.",
        "sbpair doctor {pair}\nSynchronise the clock (chrony, systemd-timesyncd, w32tm).",
        _clock_skew,
        Scope.BOTH,
    ),
    Check(
        "SBP022",
        "Limits of tier Basic",
        Severity.WARNING,
        "Tier Basic fixes the time to live at 14 days at most and has no topics, sessions or duplicate detection: an "
        "outage or a missing syphon longer than that loses messages.",
        "sbpair cost {pair} --compare\nUpgrade {subject} to Standard.",
        _basic_tier,
    ),
    Check(
        "SBP023",
        "Two primaries with the same label",
        Severity.ERROR,
        "Backlog queues are named for the first label of the primary's host only. Namespaces of two clouds can have "
        "the same label; on one secondary their messages cannot be distinguished.",
        "sbpair config show\nGive one of the two pairs another secondary.",
        _same_label,
    ),
    Check(
        "SBP024",
        "Credential with too few rights",
        Severity.ERROR,
        "Something could not be read for want of a right, so other checks were skipped. Reading entities needs Manage "
        "(shared access rule) or Azure Service Bus Data Owner; reading the namespace through ARM needs Reader.",
        "sbpair doctor {pair}",
        _rights,
        Scope.BOTH,
    ),
    Check(
        "SBP025",
        "Credential with more rights than needed",
        Severity.INFO,
        "The root key of a namespace may do everything. Sending needs Send, draining needs Listen and Send, only "
        "provisioning and cleanup need Manage.",
        "sbpair config show\nUse Entra ID (auth: azure-cli) or a rule with the rights needed.",
        _more_rights,
        Scope.BOTH,
    ),
    Check(
        "SBP026",
        "Namespace not active",
        Severity.ERROR,
        "A namespace that is being created, removed or is disabled does not serve messages.",
        "az servicebus namespace show --name ... --resource-group ...",
        _state,
        Scope.BOTH,
    ),
    Check(
        "SBP028",
        "Both sides share a region",
        Severity.WARNING,
        "The two namespaces of a pair are best in two data centres (Asynchronous Messaging Patterns and High "
        "Availability). Two in one region, or one under two names, go away together, and then nothing is left to "
        "divert to.",
        "sbpair config show\nChoose a secondary in another region.",
        _independent,
    ),
)


# Checks of queues that are replicated: a configured entity with sessions that exists on both sides ("Azure Service
# Bus active/active with guaranteed order").
#
# The journal is no part of a snapshot: whether it answers, and which sessions are stuck, says `sbpair replicate
# status`.


def _replicated(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        primary = view.primary.queue(path)
        if primary is None or not primary.facts.settings.requires_session:
            continue
        secondary = view.secondary.queue(path)
        if secondary is None:
            continue
        for problem in problems(primary.facts.settings, secondary.facts.settings):
            yield Found(
                path, f"{problem.side.capitalize()}: {problem.message}", Severity.ERROR if problem.serious else None
            )


REPLICATION_CHECKS = (
    Check(
        "SBP027",
        "Replicated queue not alike or not safe",
        Severity.WARNING,
        "A queue that exists on both sides with sessions is taken for a replicated one. Both need sessions, messages "
        "that do not expire, and a delivery count that never runs out, because copies wait for each other.",
        "sbpair replicate provision {pair} {subject} --dry-run\nBring the queue to what it says on the side named.",
        _replicated,
    ),
)
