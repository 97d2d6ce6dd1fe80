"""What a promotion did to messages, as far as files prove it: lost, there twice, opened again.

After a forced promotion of a geo-replicated namespace what was not replicated is gone, and what was settled in that
time is back ("Azure Service Bus Geo-Replication"). A Geo-DR failover takes no message along. That a message is gone
does not tell why: a consumer may have taken it, or its time to live may have ended. So "lost" is said only where both
are ruled out.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sbpair.core.durations import format_duration
from sbpair.core.entities import Counts, EntityFacts, EntityKind
from sbpair.core.inspection.contents import Contents, FoundNamespace, compare
from sbpair.core.names import ByName, by_path, dead_letter_path, split_source, subscription_of
from sbpair.core.outcome import Exit
from sbpair.core.serialization import AS_TIME, column, spoken_time
from sbpair.core.transfer.state import Key
from sbpair.core.words import counted, listed


class PromotionClaim(StrEnum):
    LOST = "lost"
    """It was there, nobody can have received it, and it had not expired."""
    UNACCOUNTED = "unaccounted"
    """It was there and is not; whether it was consumed, expired or lost is unknown."""
    TWICE = "twice"
    OPENED_AGAIN = "opened-again"
    """It was settled, and is there again."""
    NOT_COMPLETED = "not-completed"
    """It is there although it was sent on; its run did not end, so it may never have been completed."""
    FEWER = "fewer"
    """An entity holds fewer messages than the snapshot counts; consumed, expired or lost is unknown."""
    CHANGED = "changed"
    """An entity, setting or rule is not as in the snapshot."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """One thing that is said, with the evidence for it and what to do."""

    claim: PromotionClaim = field(metadata=column("Claim", colours=True))
    entity: str = field(metadata=column("Entity"))
    message_id: str | None = field(metadata=column("MessageId"))
    sequence_number: int | None = field(metadata=column("Number"))
    evidence: str = field(metadata=column("Evidence"))
    command: str = field(metadata=column("Next", advice=True))


@dataclass(frozen=True, slots=True)
class SettledMessage:
    """A message that files have as gone from its place. `ended`: the run that settled it ended with nothing left."""

    file: str
    to: str | None
    """Where it went, if that is in the same namespace."""
    ended: bool


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """A message that files have at a place at a time (UTC epoch seconds), and as nowhere else since."""

    place: str
    message_id: str
    at: float
    file: str
    archived: bool
    """The file has the message itself."""
    expires_at: float | None = None
    """By its own time to live; None where it has none, or is not archived."""


@dataclass(frozen=True, slots=True)
class Present:
    """A message that a browse found."""

    place: str
    """Path of the queue, subscription, topic or dead-letter queue."""
    key: Key
    """With its queue in lower case, as that of `SettledMessage`."""
    content: bytes
    """Digest of what its application sent."""


@dataclass(frozen=True, slots=True)
class PromotionEvidence:
    """What files say and what a browse found."""

    settled: Mapping[Key, SettledMessage]
    expected: tuple[ExpectedMessage, ...]
    snapshot: Contents | None
    now: FoundNamespace
    present: tuple[Present, ...]
    unread: Mapping[str, str]
    """Places that could not be browsed, and why."""
    undisturbed: bool
    """Nobody has received since the files were written, as the operator says."""


@dataclass(frozen=True, slots=True)
class PromotionReport:
    """What `promotion report -o json` prints."""

    namespace: str
    taken_at: float | None = field(metadata=AS_TIME)
    claims: tuple[Claimed, ...]
    known: int
    """Messages that the files name."""
    unread: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.claims else Exit.PARTIAL if self.unread else Exit.OK

    @property
    def summary(self) -> str:
        found = Counter(claim.claim.value for claim in self.claims)
        said = ", ".join(f"{number:,} {name}" for name, number in found.items()) or "nothing is missing or doubled"
        return f"{self.namespace}, by {counted(self.known, 'message')} that the files name: {said}."


def promotion_report(seen: PromotionEvidence) -> PromotionReport:
    """Every claim that the evidence allows."""
    claims = (*_back(seen), *_doubles(seen), *_gone(seen), *_counts(seen))
    known = len(seen.settled) + len(seen.expected)
    return PromotionReport(
        seen.now.namespace, seen.now.taken_at, claims, known, seen.unread, tuple(_notes(seen, claims))
    )


def _notes(seen: PromotionEvidence, claims: Sequence[Claimed]) -> Iterator[str]:
    if seen.unread:
        yield f"Not browsed, so messages reported as gone may be there: {listed(seen.unread)}."
    if seen.snapshot is not None and seen.snapshot.namespace != seen.now.namespace:
        old, new = seen.snapshot.namespace, seen.now.namespace
        yield (
            f"The snapshot is of {old}. A Geo-DR failover does not move messages; those of {old} are still there: "
            f"sbpair evacuate {old} {new} --dry-run"
        )
    if not seen.undisturbed and any(one.claim is PromotionClaim.UNACCOUNTED for one in claims):
        yield "A message that is gone may have been consumed. If nobody has received since: --consumers-stopped"


def _claimed(
    seen: PromotionEvidence, claim: PromotionClaim, one: Present, evidence: str, act: str = "complete"
) -> Claimed:
    path, dead = split_source(one.place)
    words = ["sbpair", "message", act, f"{seen.now.namespace}:{path}", str(one.key[1]), *(["--dlq"] if dead else [])]
    command = shlex.join([*words, *(["--archive", "again"] if act == "complete" else [])])
    return Claimed(claim, one.place, one.key[2], one.key[1], evidence, command)


def _back(seen: PromotionEvidence) -> Iterator[Claimed]:
    """What was settled and is there. Where its destination has it no more, it may be the only copy."""
    at = {(one.key[0], one.key[2]) for one in seen.present}
    for message in seen.present:
        if (settled := seen.settled.get(message.key)) is None:
            continue
        where, act = "", "complete"
        claim = PromotionClaim.OPENED_AGAIN if settled.ended else PromotionClaim.NOT_COMPLETED
        if settled.to is not None and (settled.to.lower(), message.key[2]) in at:
            claim, where = PromotionClaim.TWICE, f" to {settled.to}, where it is too"
        elif settled.to is not None:
            where, act = f" to {settled.to}, which does not hold it now: it may be the only copy", "show"
        ended = "its run ended with nothing left" if settled.ended else "no line says that its run ended"
        evidence = f"{settled.file} has it as gone{where}; {ended}; same number, MessageId and time"
        yield _claimed(seen, claim, message, evidence, act)


def _doubles(seen: PromotionEvidence) -> Iterator[Claimed]:
    """Several in one place that are the same, of which files name fewer."""
    named = Counter((one.place.lower(), one.message_id) for one in seen.expected)
    alike: dict[tuple[str, str | None, bytes], list[Present]] = {}
    for one in sorted(seen.present, key=lambda one: one.key[1]):
        if one.key not in seen.settled:
            alike.setdefault((one.key[0], one.key[2], one.content), []).append(one)
    for (place, message_id, _), copies in alike.items():
        known = named[place, message_id or ""]
        for copy in copies[known:] if known else ():
            evidence = f"{len(copies)} with this MessageId and the same bytes, of which the files name {known}"
            yield _claimed(seen, PromotionClaim.TWICE, copy, evidence)


def _gone(seen: PromotionEvidence) -> Iterator[Claimed]:
    """What was there and is not: neither in its entity or among its dead letters, nor anywhere else."""
    entities = by_path(seen.now.entities)
    present = Counter((_entity_of(one.key[0]), one.key[2]) for one in seen.present)
    expected = Counter[tuple[str, str | None]]((_entity_of(one.place), one.message_id) for one in seen.expected)
    known = {message_id for _, message_id in present}
    elsewhere: Counter[str | None] = Counter()
    for (_, message_id), number in (present - expected).items():
        elsewhere[message_id] += number
    for gone in seen.expected:
        place = _entity_of(gone.place), gone.message_id
        if present[place]:
            present[place] -= 1
            continue
        entity = entities.get(place[0])
        if entity is not None and entity.kind is EntityKind.TOPIC:
            if gone.message_id in known:  # in its subscriptions
                continue
        elif elsewhere[gone.message_id]:
            elsewhere[gone.message_id] -= 1
            continue
        why = _why_not_lost(gone, entity, seen)
        evidence = f"{gone.file} has it there at {spoken_time(gone.at)}; "
        evidence += why or "nobody has received since, and its time to live has not ended"
        condition = "sys.MessageId = '" + gone.message_id.replace("'", "''") + "'"
        path = split_source(gone.place)[0]
        topic = (subscription_of(path) or ("",))[0]
        words = ["restore", gone.file, "--namespace", seen.now.namespace, "--to", topic or path, "--where", condition]
        words += ["--although-gone", *(["--dry-run"] if topic else [])]
        evidence += "; sent again, it goes to every subscription" if topic and gone.archived else ""
        command = shlex.join(["sbpair", *words]) if gone.archived else "No file has the message; ask its sender."
        yield Claimed(
            PromotionClaim.UNACCOUNTED if why else PromotionClaim.LOST,
            gone.place,
            gone.message_id,
            None,
            evidence,
            command,
        )


def _entity_of(place: str) -> str:
    return split_source(place)[0].lower()


def _why_not_lost(one: ExpectedMessage, entity: EntityFacts | None, seen: PromotionEvidence) -> str | None:
    """What else may have become of it."""
    if seen.unread or entity is None:
        return "not everything could be browsed" if seen.unread else "its entity does not exist"
    if not seen.undisturbed:
        return "it may have been consumed, expired or lost"
    settings, now = entity.settings, seen.now.taken_at or 0.0
    if entity.kind is EntityKind.TOPIC or settings.forward_to:
        return "no subscription may have taken it" if not settings.forward_to else "it may be on its way elsewhere"
    if settings.dead_lettering_on_message_expiration:
        return None
    lives = settings.default_message_time_to_live_seconds
    ends = min((at for at in (one.expires_at, None if lives is None else one.at + lives) if at), default=None)
    if ends is not None and ends <= now:
        return f"its time to live ended {format_duration(now - ends)} ago"
    return None if one.archived else "its own time to live is not known, and may have ended"


def _counts(seen: PromotionEvidence) -> Iterator[Claimed]:
    """What a snapshot has and the namespace has not."""
    if seen.snapshot is None:
        return
    namespace, old = seen.now.namespace, seen.snapshot.namespace
    for one in compare(seen.snapshot, Contents.of(seen.now)).differences:
        evidence = f"{one.what}: {one.a or 'none'} in the snapshot, {one.b or 'none'} now"
        show = shlex.join(["sbpair", "entity", "show", f"{namespace}:{one.entity}"])
        yield Claimed(PromotionClaim.CHANGED, one.entity, None, None, evidence, show)
    now = ByName((entity.path, entity.counts) for entity in seen.now.entities)
    for entity in seen.snapshot.entities:
        after = now.get(entity.path, Counts())
        for place, kinds in ((entity.path, ("active", "scheduled")), (dead_letter_path(entity.path), ("dead_letter",))):
            before, left = (sum(getattr(counts, kind) for kind in kinds) for counts in (entity.counts, after))
            if before > left:
                evidence = f"{before:,} in the snapshot, {left:,} now; consumed, expired or lost is unknown"
                path = split_source(place)[0]
                words = ["entity", "show", f"{namespace}:{path}"]
                if old != namespace:
                    words = ["move", f"{old}:{path}", f"{namespace}:{path}", "--dry-run"]
                yield Claimed(PromotionClaim.FEWER, place, None, None, evidence, shlex.join(["sbpair", *words]))
