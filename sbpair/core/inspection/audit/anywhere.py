"""Checks of any namespace, of a pair or not: what loses messages, or will."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from sbpair.core.durations import format_duration
from sbpair.core.entities import EntityFacts, EntityKind, used_share
from sbpair.core.inspection.audit.findings import CannotRun, Check, Found, Scope, Severity, Thresholds, View
from sbpair.core.inspection.snapshot import EntitySeen, describe_counts
from sbpair.core.names import ByName, Names, by_path, subscription_of
from sbpair.core.rules import CATCH_ALL_RULE, catch_all_of, condition_of, is_catch_all
from sbpair.core.words import counted
from sbpair.service import EntityStatus, Tier
from sbpair.sqlfilter.complement import never
from sbpair.sqlfilter.values import FilterSyntaxError

MOST_HOPS = 4
"""Of a message that is forwarded ("Chaining Service Bus entities with autoforwarding")."""
MOST_ENTITIES = 10_000
MOST_ENTITIES_OF_A_UNIT = 1_000
MOST_PARTITIONED = 100
MOST_SUBSCRIPTIONS = 2_000
MOST_SQL_FILTERS = 2_000
MOST_ACCESS_RULES = 12
"""Of a namespace of tier Basic or Standard; of a Premium messaging unit; of a topic; of an entity ("Service Bus
quotas")."""


def _receivers(view: View) -> Iterator[EntitySeen]:
    """Queues and subscriptions: what messages wait in. What forwards holds none for long."""
    for seen in view.entities():
        if seen.facts.kind is not EntityKind.TOPIC and not seen.facts.settings.forward_to:
            yield seen


def _complete(view: View, prefix: str) -> None:
    """What could not be read leaves a check incomplete: that is said, and is no pass.

    Raises:
        CannotRun: some of it could not be read.
    """
    failed = [entry for entry in view.primary.seen.unread if entry.subject.startswith(prefix)]
    if failed:
        raise CannotRun(
            f"{counted(len(failed), 'entity', 'entities')} could not be read, first {failed[0].subject}: "
            f"{failed[0].reason}"
        )


def _below(view: View) -> dict[str, list[EntityFacts]]:
    """The subscriptions of each topic, by its path."""
    found: dict[str, list[EntityFacts]] = {
        seen.facts.path: [] for seen in view.entities() if seen.facts.kind is EntityKind.TOPIC
    }
    topics = ByName((path, path) for path in found)
    for seen in view.entities():
        if (parts := subscription_of(seen.facts.path)) is not None:
            found.setdefault(topics.get(parts[0], parts[0]), []).append(seen.facts)
    return found


def _perishing(view: View) -> Iterator[tuple[EntitySeen, float]]:
    """Those whose messages expire, with the shorter time to live of its own and its topic's. Without any, messages live
    as long as their senders say."""
    known = ByName((seen.facts.path, seen.facts.settings) for seen in view.entities())
    for seen in _receivers(view):
        topic, *_ = subscription_of(seen.facts.path) or ("",)
        both = (seen.facts.settings, known.get(topic))
        lives = [one.default_message_time_to_live_seconds for one in both if one is not None]
        if (shorter := min((one for one in lives if one is not None), default=None)) is not None:
            yield seen, shorter


def _expire_unseen(view: View) -> Iterator[Found]:
    for seen, lives in _perishing(view):
        if not seen.facts.settings.dead_lettering_on_message_expiration:
            yield Found(
                seen.facts.path,
                f"A message that waits for {format_duration(lives)} is deleted without a trace: expired ones are not "
                "dead-lettered.",
            )


def _near_expiry(view: View) -> Iterator[Found]:
    for seen, lives in _perishing(view):
        if seen.oldest_enqueued_at is None:
            continue
        waited = max(0.0, view.snapshot.taken_at - seen.oldest_enqueued_at)
        if waited >= view.thresholds.near_time_to_live_share * lives:
            kept = seen.facts.settings.dead_lettering_on_message_expiration
            yield Found(
                seen.facts.path,
                f"Its oldest message has waited {format_duration(waited)}, and messages live {format_duration(lives)}: "
                f"they are {'dead-lettered' if kept else 'deleted'} before anybody receives them.",
                None if kept else Severity.ERROR,
            )
    _complete(view, "messages of ")


def _idle(view: View) -> Iterator[Found]:
    for seen in view.entities():
        idle = seen.facts.settings.auto_delete_on_idle_seconds
        if idle is not None:
            holds = seen.facts.counts.total
            what = f" It holds {describe_counts(seen.facts.counts)}, which go with it." if holds else ""
            yield Found(
                seen.facts.path,
                f"It is deleted when it was idle for {format_duration(idle)}.{what}",
                Severity.ERROR if holds else None,
            )


def _hops(view: View) -> Iterator[Found]:
    below = ByName(_below(view).items())
    following = ByName((seen.facts.path, seen.facts.settings.forward_to) for seen in view.entities())

    def onward(path: str) -> list[str]:
        """Where a message goes from there, one hop on; from a topic, where its subscriptions forward."""
        own = following.get(path)
        forwards = [own] if own else [one.settings.forward_to for one in below.get(path, [])]
        return [one.lower() for one in forwards if one]

    def longest(path: str, walked: tuple[str, ...]) -> tuple[str, ...]:
        """The longest way from there, up to where it closes a circle or has one hop too many."""
        if path in walked or len(walked) > MOST_HOPS:
            return (*walked, path)
        ways = [longest(one, (*walked, path)) for one in onward(path)]
        circles = [way for way in ways if way[-1] in way[:-1]]
        return max(circles or ways, key=len, default=(*walked, path))

    known: set[frozenset[str]] = set()
    for seen in view.entities():
        if not seen.facts.settings.forward_to:
            continue
        way = longest(seen.facts.path.lower(), ())
        if way[-1] in way[:-1]:
            circle = frozenset(way[way.index(way[-1]) :])
            if circle not in known:
                known.add(circle)
                yield Found(seen.facts.path, f"It forwards in a circle: {' -> '.join(way)}.")
        elif len(way) - 1 > MOST_HOPS:
            yield Found(seen.facts.path, f"Its messages are forwarded more than {MOST_HOPS} times: {' -> '.join(way)}.")


def _forwarding_to_nothing(view: View) -> Iterator[Found]:
    known = by_path(seen.facts for seen in view.entities())
    for seen in view.entities():
        settings = seen.facts.settings
        for what, target in (
            ("messages", settings.forward_to),
            ("dead letters", settings.forward_dead_lettered_messages_to),
        ):
            if not target:
                continue
            there = known.get(target)
            if there is None:
                yield Found(seen.facts.path, f"It forwards {what} to {target}, which does not exist.")
            elif not there.settings.status.may_send:
                yield Found(seen.facts.path, f"It forwards {what} to {target}, which is {there.settings.status}.")


def _never_matching(view: View) -> Iterator[Found]:
    _complete(view, "rules of ")
    for subscriptions in _below(view).values():
        for facts in subscriptions:
            if not facts.rules:
                yield Found(facts.path, "It has no rule, so it gets no messages.")
            for rule in facts.rules:
                if rule.name.startswith(CATCH_ALL_RULE):
                    continue  # nothing may be left for it
                try:
                    impossible = never(condition_of(rule))
                except FilterSyntaxError as error:
                    text = f"The filter of rule {rule.name} cannot be parsed here: {error}"
                    yield Found(facts.path, text, Severity.INFO)
                    continue
                if impossible:
                    yield Found(facts.path, f"Rule {rule.name} can never match: {rule.sql or 'its values'}.")


def _unread_by_anybody(view: View) -> Iterator[Found]:
    for seen in _receivers(view):
        facts, since = seen.facts, seen.oldest_enqueued_at
        if since is None or facts.settings.status is EntityStatus.DISABLED:
            continue
        waited = max(0.0, view.snapshot.taken_at - since)
        if waited < view.thresholds.stranded_warning_seconds:
            continue
        untouched = facts.accessed_at is not None and facts.accessed_at <= since
        touched = (
            "and nobody has touched it since"
            if untouched
            else "and the service does not report whether a receiver is connected"
        )
        grave = untouched or waited >= view.thresholds.stranded_error_seconds
        yield Found(
            facts.path,
            f"{counted(facts.counts.active, 'message')} in it, the oldest for {format_duration(waited)}, {touched}.",
            None if grave else Severity.INFO,
        )
    _complete(view, "messages of ")


def _full(view: View) -> Iterator[Found]:
    for seen in view.entities():
        if seen.facts.kind is EntityKind.SUBSCRIPTION:
            continue  # its messages count for its topic
        share = used_share(seen.facts)
        if share >= view.thresholds.near_full_share:
            full = share >= view.thresholds.full_share
            yield Found(seen.facts.path, f"{share:.0%} of its size is used.", Severity.CRITICAL if full else None)


def _quotas(view: View) -> Iterator[Found]:
    facts, below = view.primary.facts(), _below(view)
    own = [seen.facts for seen in view.entities() if seen.facts.kind is not EntityKind.SUBSCRIPTION]
    premium = facts.tier is Tier.PREMIUM
    most = MOST_ENTITIES_OF_A_UNIT * (facts.messaging_units or 1) if premium else MOST_ENTITIES
    uses: list[tuple[str, int, int, str]] = [(view.primary.name, len(own), most, "queues and topics")]
    if not premium:
        partitioned = sum(one.settings.enable_partitioning for one in own)
        uses.append((view.primary.name, partitioned, MOST_PARTITIONED, "partitioned queues and topics"))
    for topic, subscriptions in below.items():
        filters = sum(rule.sql is not None for one in subscriptions for rule in one.rules)
        uses.append((topic, len(subscriptions), MOST_SUBSCRIPTIONS, "subscriptions"))
        uses.append((topic, filters, MOST_SQL_FILTERS, "SQL filters"))
    uses += [(one.path, len(one.access_rules), MOST_ACCESS_RULES, "shared access rules") for one in own]
    for subject, used, limit, what in uses:
        if used >= view.thresholds.near_quota_share * limit:
            full = Severity.ERROR if used >= limit else None
            yield Found(subject, f"{used:,} of at most {limit:,} {what} are in use.", full)


def _short_window(view: View) -> Iterator[Found]:
    for seen in view.entities():
        settings = seen.facts.settings
        window = settings.duplicate_detection_history_time_window_seconds
        if settings.requires_duplicate_detection and window < view.thresholds.short_duplicate_window_seconds:
            yield Found(
                seen.facts.path,
                f"It remembers message ids for {format_duration(window)}: a sender that tries again later makes a "
                "duplicate.",
            )


def _keys(view: View) -> Iterator[Found]:
    for seen in view.entities():
        accessed = seen.facts.accessed_at
        idle = None if accessed is None else view.snapshot.taken_at - accessed
        for rule in seen.facts.access_rules:
            if idle is not None and idle >= view.thresholds.unused_key_seconds:
                text = f"Nobody has used the entity for {format_duration(idle)}, and {rule} still opens it."
                yield Found(seen.facts.path, text)
            elif {"Send", "Listen"} <= set(rule.rights):
                yield Found(seen.facts.path, f"{rule}: senders and receivers share a key.")


def _catch_alls(view: View) -> Iterator[Found]:
    _complete(view, "rules of ")
    for topic, subscriptions in _below(view).items():
        wanted = catch_all_of(subscriptions)
        for facts in filter(is_catch_all, subscriptions):
            name = subscription_of(facts.path)
            remedy = f"sbpair rules unmatched {{pair}}:{topic} --create {name[1] if name else ''}"
            if wanted.rule is None:
                yield Found(facts.path, f"It takes what other subscriptions once left. {wanted.problem}", None, remedy)
            elif wanted.rule.name not in [rule.name for rule in facts.rules]:
                text = f"Other subscriptions have changed: it should take {wanted.rule.sql}."
                yield Found(facts.path, text, None, remedy)
            elif (other := len(facts.rules) - 1) > 0:
                text = f"It has {counted(other, 'more rule')}, and takes what others take as well."
                yield Found(facts.path, text, None, remedy)


def _destinations_gone(view: View) -> Iterator[Found]:
    view.primary.topics()
    absent, configured = Names(view.primary.seen.absent), Names(view.pair.entities)
    gone: Counter[str] = Counter()
    for _, queue in view.own_backlog():
        for path in queue.peeked.destinations if queue.peeked is not None else ():
            if path in absent and view.primary.queue(path) is None and view.primary.topic(path) is None:
                gone[path] += 1
    for path, queues in sorted(gone.items()):
        if path not in configured:  # those have a check of their own
            yield Found(
                path,
                f"Messages for it wait in {counted(queues, 'backlog queue')}, and {view.primary.name} has no queue or "
                "topic of that name.",
            )


_LIMITS = Thresholds()
_check = partial(Check, scope=Scope.NAMESPACE)
_LOOK = "sbpair entity show {pair}:{subject}\n"
CHECKS = (
    _check(
        "SBP029",
        "Expired messages are deleted",
        Severity.WARNING,
        "A queue or subscription with a time to live deletes what expires, unless it dead-letters expired messages "
        "(Service Bus message expiration). A consumer that stands still for so long loses messages unnoticed.",
        _LOOK + "Turn on dead-lettering on expiration.",
        _expire_unseen,
    ),
    _check(
        "SBP030",
        "Messages wait nearly as long as they live",
        Severity.WARNING,
        f"The oldest message has waited {_LIMITS.near_time_to_live_share:.0%} of the time to live or more: what comes "
        "behind it expires before it is received (Service Bus message expiration).",
        "sbpair entity peek {pair}:{subject}\nAdd consumers, or raise the time to live.",
        _near_expiry,
    ),
    _check(
        "SBP031",
        "Entity deletes itself",
        Severity.WARNING,
        "An entity with AutoDeleteOnIdle is deleted with its messages when it was idle for that time (Service Bus "
        "queues, topics and subscriptions). That suits only what a consumer makes for itself.",
        _LOOK + "Set AutoDeleteOnIdle to never, unless a consumer makes the entity for itself.",
        _idle,
    ),
    _check(
        "SBP032",
        "Forwarding in a circle, or too often",
        Severity.ERROR,
        f"A message is forwarded at most {MOST_HOPS} times and then dead-lettered (Chaining Service Bus entities with "
        "autoforwarding).",
        _LOOK + "Shorten the chain.",
        _hops,
    ),
    _check(
        "SBP033",
        "Forwarding to a missing or disabled entity",
        Severity.ERROR,
        "Messages that an entity forwards to one that is gone or disabled become transfer dead letters at their "
        "source, where they are easily missed (Chaining Service Bus entities with autoforwarding).",
        _LOOK + "Create or enable the target, or end the forwarding.",
        _forwarding_to_nothing,
    ),
    _check(
        "SBP034",
        "Rule that can never match",
        Severity.WARNING,
        "A filter that asks for two values of one property, compares with NULL or says FALSE is true for no message "
        "(Subscription Rule SQL Filter Syntax); one without rules gets no messages (Topic filters and actions).",
        _LOOK + "Correct the rule, or delete it.",
        _never_matching,
    ),
    _check(
        "SBP035",
        "Nobody receives",
        Severity.WARNING,
        f"Messages have waited {format_duration(_LIMITS.stranded_error_seconds)} or more, or as long as nobody touched "
        "the entity. The service does not report whether a receiver is connected; its AccessedAt changes with sends as "
        "well as receives (Message counters; Service Bus REST API).",
        "sbpair entity peek {pair}:{subject}\nStart the consumer, or delete the subscription that nobody needs.",
        _unread_by_anybody,
    ),
    _check(
        "SBP036",
        "Queue or topic nearly full",
        Severity.WARNING,
        "An entity that is as large as it may be refuses what is sent to it, a topic with all its subscriptions "
        "(Service Bus quotas).",
        _LOOK + "Receive or purge messages, or raise the size.",
        _full,
    ),
    _check(
        "SBP037",
        "Quota nearly used up",
        Severity.WARNING,
        "The numbers of queues and topics of a namespace, of subscriptions and SQL filters of a topic, and of shared "
        "access rules of an entity are limited; more are refused (Service Bus quotas).",
        "sbpair entity list --namespace {pair}\nDelete what nobody needs.",
        _quotas,
    ),
    _check(
        "SBP038",
        "Short memory of message ids",
        Severity.WARNING,
        "Duplicate detection drops a message whose id came within its window (Duplicate detection). A sender tries "
        "again for a minute and more, so a window below "
        f"{format_duration(_LIMITS.short_duplicate_window_seconds)} lets duplicates through.",
        _LOOK + "Raise the window to ten minutes, the default.",
        _short_window,
    ),
    _check(
        "SBP039",
        "Keys that are unused or shared",
        Severity.INFO,
        "A shared access rule with Send and Listen is one key for senders and receivers; one of an entity that nobody "
        "uses is a way in that nobody watches (Service Bus access control with Shared Access Signatures). The "
        "service does not report which client uses which key.",
        _LOOK + "Give senders and receivers a rule each, or Entra ID; delete rules that nobody uses.",
        _keys,
    ),
    Check(
        "SBP040",
        "Destination of waiting messages is gone",
        Severity.ERROR,
        "The first messages of the backlog queues name destinations that the primary does not have, configured or not. "
        "A drain dead-letters them (Asynchronous Messaging Patterns and High Availability).",
        "sbpair peek {pair} --group-by destination\nCreate {subject} on the primary before the drain.",
        _destinations_gone,
    ),
    _check(
        "SBP041",
        "Catch-all subscription out of date",
        Severity.WARNING,
        "A catch-all takes what the rules of the other subscriptions left when it was made. Rules that changed since "
        "leave messages that nobody takes, or that are taken twice (Topic filters and actions).",
        "sbpair rules unmatched {pair}:{subject} --create NAME",
        _catch_alls,
    ),
)
