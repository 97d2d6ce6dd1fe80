"""Dead letters by cause: letters whose texts differ in numbers, ids and values only fall together.

A cause is what a letter says of itself: its entity and reason, the type of an exception and its first frame, in the
description or in a header of NServiceBus, MassTransit and the like, otherwise the words of the description, and the
fields of its body. Only names of fields are kept of a body.
"""

import hashlib
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbpair.core.errors import AccessDeniedError
from sbpair.core.message import Received
from sbpair.core.names import subscription_of
from sbpair.core.outcome import Exit, exit_of_failures
from sbpair.core.serialization import HIDDEN, OMITTED_IF_NONE, Time, column, iso_time
from sbpair.core.summary import MessageSummary
from sbpair.core.transfer.peeked import NotBrowsed, readable_body
from sbpair.core.transfer.verdict import MOST_NAMES, OTHERS, fault_of
from sbpair.core.words import counted


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Dead letters with one reason."""

    reason: str = field(metadata=column("Reason"))
    messages: int = field(metadata=column("Messages", counts=True))
    oldest: Time | None = field(metadata=column("Oldest"))
    newest: Time | None = field(metadata=column("Newest"))
    description: str | None = field(metadata=column("Description"))
    """Of the oldest message."""


@dataclass(frozen=True, slots=True)
class DeadLetterReasons:
    """All dead letters that match, the most frequent reason first, as `dlq list -o json` prints them."""

    namespace: str
    entity: str
    messages: int
    reasons: tuple[DeadLetterReason, ...]


class ReasonCounter:
    """Counts dead letters, which are added oldest first, by reason; beyond a bound of reasons under a common name."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._times: dict[str, tuple[float, float]] = {}
        self._descriptions: dict[str, str | None] = {}

    def add(self, received: Received, summary: MessageSummary) -> None:
        reason = fault_of(summary)
        if reason not in self._numbers and len(self._numbers) >= MOST_NAMES:
            reason = OTHERS
        self._numbers[reason] += 1
        self._descriptions.setdefault(reason, summary.dead_letter_description)
        at = received.enqueued_at
        if at is not None:
            first, last = self._times.get(reason, (at, at))
            self._times[reason] = min(first, at), max(last, at)

    def reasons(self) -> tuple[DeadLetterReason, ...]:
        """All of them, the most frequent one first."""
        found = []
        for reason in sorted(self._numbers, key=lambda reason: (-self._numbers[reason], reason)):
            first, last = self._times.get(reason, (None, None))
            description = self._descriptions[reason]
            found.append(DeadLetterReason(reason, self._numbers[reason], iso_time(first), iso_time(last), description))
        return tuple(found)


MOST_CAUSES = 20_000
"""Different texts that are told apart in one run; the rest fall together."""
MOST_NUMBERS = 1000
MOST_TEXTS = 1000
"""Texts of one cause that are counted, for the most frequent one."""
_MOST_CHARACTERS = 400
_MOST_BODY_BYTES = 64 * 1024
VARIABLE = "*"
_LEAST_VALUES = 6
"""This many words in one place of otherwise equal texts are values of one thing."""

_IDS = (
    re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE),
    re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`"),
    re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"),
    re.compile(r"https?://\S+"),
    re.compile(r"\S*\d\S*"),
)
_TYPE = re.compile(r"\b([A-Za-z_]\w*(?:[.$+][A-Za-z_]\w*)*(?:Exception|Error|Fault))\b(?!\s+(?:in|on)\s+field)")
_FRAMES = (
    re.compile(r"^\s*(?:--->\s*)?at (?:async )?([\w.<>`+$\[\],:]+?)\s*\(", re.MULTILINE),
    re.compile(r"^\s*File \"[^\"]*?([\w.-]+)\", line \d+, in (\S+)", re.MULTILINE),
)
_TYPE_HEADERS = (
    "nservicebus.exceptioninfo.exceptiontype",
    "mt-fault-exceptiontype",
    "rbs2-error-type",
    "exceptiontype",
    "exception-type",
    "exception_type",
    "x-exception-type",
)
_STACK_HEADERS = (
    "nservicebus.exceptioninfo.stacktrace",
    "mt-fault-stacktrace",
    "stacktrace",
    "stack-trace",
    "stack_trace",
    "exception-stacktrace",
    "x-exception-stacktrace",
)


def template_of(text: str) -> str:
    """The words of a text, with its numbers, ids, addresses and quoted values as `*`."""
    text = text[:_MOST_CHARACTERS]
    for pattern in _IDS:
        text = pattern.sub(VARIABLE, text)
    return " ".join(text.split()).lower()


@dataclass(frozen=True, slots=True)
class FailureOrigin:
    """Where the code of a consumer says that it failed. `where`: a filter that selects letters of this type."""

    exception: str | None = None
    frame: str | None = None
    where: str | None = None


def origin_of(summary: MessageSummary) -> FailureOrigin:
    """What headers say, otherwise the description and the reason."""
    headers = {name.lower(): name for name in summary.application_properties}
    named = next((headers[name] for name in _TYPE_HEADERS if name in headers), None)
    stack = next((str(summary.application_properties[headers[name]]) for name in _STACK_HEADERS if name in headers), "")
    said = "\n".join(filter(None, (summary.dead_letter_description, summary.dead_letter_reason)))
    exception, where = None, None
    if named is not None:
        exception = str(summary.application_properties[named]).partition(",")[0].strip()[:200]
        where = f"user.[{named}] LIKE {_sql(exception)}" if exception else None
    elif found := _TYPE.search(said):
        exception = found[1]
        where = f"sys.DeadLetterErrorDescription LIKE {_sql('%' + exception + '%')}"
    frame = _frame(stack) or _frame(said)
    return FailureOrigin(exception, frame, where)


def _sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _frame(text: str) -> str | None:
    """The place where it was raised: the first one, of Python the last one."""
    if found := _FRAMES[0].search(text):
        return re.sub(r"\d+", "", found[1])[:200]
    python = _FRAMES[1].findall(text)
    return f"{python[-1][0]} {python[-1][1]}"[:200] if python else None


def fields_of_body(payload: bytes) -> frozenset[str]:
    """The names of a JSON object's fields, or what kind of body it is."""
    if len(payload) > _MOST_BODY_BYTES:
        return frozenset({"<large>"})
    kind, text = readable_body(payload)
    if kind == "hex" or not text.strip():
        return frozenset({"<binary>" if text else "<empty>"})
    stripped = text.lstrip("\ufeff \t\r\n")
    if stripped[:1] == "<" and (tag := re.match(r"(?:<\?.*?\?>\s*)?<([\w:.-]+)", stripped, re.DOTALL)):
        return frozenset({f"<{tag[1]}>"})
    try:
        value: Any = json.loads(stripped)
    except (ValueError, RecursionError):
        return frozenset({"<text>"})
    while isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return frozenset({f"<{type(value).__name__}>"})
    return frozenset(name for name in value if not re.search(r"\d", name)) or frozenset({"<object>"})


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters of one cause."""

    key: str
    """The same in every run."""
    entity: str = field(metadata=column("Entity"))
    reason: str = field(metadata=column("Reason"))
    exception: str | None
    frame: str | None
    text: str = field(metadata=column("Cause"))
    """What they say, with `*` where they differ."""
    fields: tuple[str, ...]
    """Of their bodies."""
    messages: int = field(metadata=column("Letters", counts=True))
    before: int | None
    """How many there were at the last look; None: nobody has looked, 0: none."""
    trend: str | None = field(metadata=column("Trend"))
    """`new`, `growing`, `steady` or `shrinking` since the last look."""
    oldest: Time | None = field(metadata=column("Oldest"))
    newest: Time | None = field(metadata=column("Newest"))
    numbers: tuple[int, ...]
    """Sequence numbers of the first `MOST_NUMBERS` of them."""
    command: str = field(metadata=column("Command", advice=True))
    """Deals with all of them; shows those of the entity by reason, where they are of many causes."""
    parts: Mapping[str, int] = field(default_factory=dict, metadata=HIDDEN)
    """How many there are of each text, as a digest: what the next look is compared with."""
    body: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    """Of the first one, where it was asked for."""


@dataclass(frozen=True, slots=True)
class Triage:
    """The dead letters of a namespace by cause, the most frequent one first, as `dlq list -o json` prints them."""

    namespace: str
    messages: int
    entities: int
    """That were browsed."""
    causes: tuple[Cause, ...]
    not_read: tuple[NotBrowsed, ...] = ()
    left_off: bool = False
    """More different texts than are told apart."""
    since_last: bool = field(default=False, metadata=HIDDEN)
    """Only what is new or grows is shown, and is a finding."""

    @property
    def exit(self) -> Exit:
        """Partial if an entity could not be browsed, and as they failed if none could; findings if there are any."""
        if self.not_read and len(self.not_read) == self.entities:
            return exit_of_failures({one.error.exit_name for one in self.not_read})
        if self.not_read:
            return Exit.PARTIAL
        return Exit.FINDINGS if self.shown else Exit.OK

    @property
    def shown(self) -> tuple[Cause, ...]:
        """What is told: all causes, or those that are new or grow."""
        return tuple(one for one in self.causes if not self.since_last or one.trend in ("new", "growing"))

    @property
    def closing(self) -> str:
        """The last sentence."""
        more = f" {counted(len(self.not_read), 'entity', 'entities')} could not be read." if self.not_read else ""
        if self.not_read and not self.messages:
            denied = any(isinstance(one.error, AccessDeniedError) for one in self.not_read)
            needed = " What it needs: sbpair help permissions" if denied else ""
            return f"No dead letter of {self.namespace} was seen.{more}{needed}"
        causes = f" of {counted(len(self.causes), 'cause')}" if self.causes else ""
        since = f", {len(self.shown):,} new or growing" if self.since_last else ""
        return f"{self.namespace} has {counted(self.messages, 'dead letter')}{causes}{since}.{more}"


DeadLetterList = DeadLetterReasons | Triage
"""What `dlq list` shows: one entity's dead letters by reason, or a namespace's by cause."""


@dataclass(slots=True)
class _Group:
    """Letters of one cause, as they are counted."""

    origin: FailureOrigin
    reason: str
    fields: set[str]
    mark: str
    texts: Counter[str] = field(default_factory=Counter)
    parts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By the texts that they were grouped by, before any were merged, and a field that tells their bodies apart."""
    messages: int = 0
    oldest: float | None = None
    newest: float | None = None
    numbers: list[int] = field(default_factory=list)
    example: bytes = b""

    def add(self, received: Received, text: str, part: tuple[str, ...]) -> None:
        self.parts[part] += 1
        if not self.messages:
            self.example = received.payload
        self.messages += 1
        if len(self.numbers) < MOST_NUMBERS:
            self.numbers.append(received.sequence_number)
        if text in self.texts or len(self.texts) < MOST_TEXTS:
            self.texts[text] += 1
        if (at := received.enqueued_at) is not None:
            self.oldest = at if self.oldest is None else min(self.oldest, at)
            self.newest = at if self.newest is None else max(self.newest, at)

    def take(self, other: "_Group") -> None:
        self.messages += other.messages
        self.texts += other.texts
        self.parts += other.parts
        self.fields &= other.fields
        times = [at for at in (self.oldest, other.oldest) if at is not None]
        self.oldest = min(times, default=None)
        self.newest = max((at for at in (self.newest, other.newest) if at is not None), default=None)
        self.numbers = sorted(self.numbers + other.numbers)[:MOST_NUMBERS]


_Where = tuple[str, str, str | None, str | None]
"""Entity, reason, exception type, first frame."""


class CauseCounter:
    """Groups dead letters by cause as they come, in bounded memory. `most_causes`: texts that are told apart."""

    def __init__(self, most_causes: int = MOST_CAUSES) -> None:
        self._most = most_causes
        self._groups: dict[_Where, dict[str, list[_Group]]] = defaultdict(lambda: defaultdict(list))
        self._texts = 0
        self.messages = 0
        self.left_off = False

    def add(self, entity: str, received: Received, summary: MessageSummary) -> None:
        self.messages += 1
        origin = origin_of(summary)
        where = entity, template_of(fault_of(summary)), origin.exception, origin.frame
        said = summary.dead_letter_description or ""
        text = template_of(said.partition("\n")[0]) if origin.frame is None else ""
        fields = fields_of_body(received.payload)
        there = self._groups.get(where, {}).get(text, ())
        group = next((one for one in there if _alike(one.fields, fields)), None)
        if group is None and self._texts >= self._most:
            self.left_off = True
            where, text = (entity, OTHERS, None, None), OTHERS
            group = next(iter(self._groups[where][text]), None)
        if group is None:
            self._texts += 1
            origin, reason = (FailureOrigin(), OTHERS) if text == OTHERS else (origin, fault_of(summary))
            group = _Group(origin, reason, set(fields), mark=min(fields))
            self._groups[where][text].append(group)
        group.add(received, template_of(said.partition("\n")[0]), (text, group.mark))

    def causes(self, namespace: str, before: Mapping[str, int] | None, *, with_body: bool = False) -> tuple[Cause, ...]:
        """All of them, the most frequent one first. `before`: letters by key at the last look."""
        found = [(where, text, group) for where, by_text in self._groups.items() for text, group in _merged(by_text)]
        texts = Counter((where, text) for where, text, _ in found)
        alone = Counter((where[0], where[1]) for where, _, _ in found)
        causes = [
            _cause(
                (*where, text, *(sorted(group.fields)[:1] if texts[where, text] > 1 else ())),
                group,
                _command(namespace, where[0], group, alone[where[0], where[1]] == 1),
                before,
                with_body=with_body,
            )
            for where, text, group in found
        ]
        return tuple(sorted(causes, key=lambda one: (-one.messages, one.entity, one.key)))


def _alike(one: set[str], other: Iterable[str]) -> bool:
    """Whether bodies have most of their fields in common."""
    other = set(other)
    return len(one & other) * 2 >= len(one | other)


def _merged(by_text: Mapping[str, Sequence[_Group]]) -> Iterator[tuple[str, _Group]]:
    """Texts that differ in one or two adjacent words only, of which there are many values, are one."""
    left: dict[tuple[str, ...], list[_Group]] = {tuple(text.split()): list(groups) for text, groups in by_text.items()}
    for width in (1, 2):
        masks: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
        for words in left:
            for place in range(len(words) - width + 1):
                if VARIABLE not in words[place : place + width]:
                    masks[(*words[:place], *[VARIABLE] * width, *words[place + width :])].add(words)
        for mask, several in sorted(masks.items(), key=lambda item: -len(item[1])):
            several &= left.keys()
            fixed = len(mask) - mask.count(VARIABLE)
            if len(several) < _LEAST_VALUES or fixed < 2:
                continue
            groups = left.setdefault(mask, [])
            for words in sorted(several):
                for group in left.pop(words):
                    same = next((one for one in groups if _alike(one.fields, group.fields)), None)
                    if same is None:
                        groups.append(group)
                    else:
                        same.take(group)
    for words, groups in left.items():
        for group in groups:
            yield " ".join(words), group


def _cause(
    identity: tuple[str | None, ...], group: _Group, command: str, before: Mapping[str, int] | None, *, with_body: bool
) -> Cause:
    entity, _, exception, frame, text, *_ = identity
    parts = {_digest((*identity[:4], *part)): number for part, number in group.parts.items()}
    earlier = None if before is None else sum(before.get(part, 0) for part in parts)
    said = text or group.texts.most_common(1)[0][0]
    known = " ".join(dict.fromkeys(filter(None, (exception, said, f"at {frame}" if frame else None))))
    return Cause(
        _digest(identity),
        entity or "",
        group.reason,
        exception,
        frame,
        known[:_MOST_CHARACTERS] or group.reason,
        tuple(sorted(group.fields)),
        group.messages,
        earlier,
        None if earlier is None else _trend(earlier, group.messages),
        iso_time(group.oldest),
        iso_time(group.newest),
        tuple(group.numbers),
        command,
        parts,
        readable_body(group.example)[1] if with_body else None,
    )


def _digest(identity: Iterable[str | None]) -> str:
    return hashlib.sha256("\x00".join(part or "" for part in identity).lower().encode()).hexdigest()[:12]


def _trend(before: int, now: int) -> str:
    if before == 0:
        return "new"
    return "growing" if now > before else "shrinking" if now < before else "steady"


_MENDED = re.compile(r"valid|format|serializ|deserializ|schema|parse|json|null|argument|key\s*not|missing|required")
"""Of texts about a message itself: sent again as it is, it fails again."""
_MOST_EDITED = 50
_EXPIRED = "ttlexpiredexception"


def _command(namespace: str, entity: str, group: _Group, alone: bool) -> str:
    place = f"{namespace}:{entity}"
    if group.reason == OTHERS:
        return shlex.join(["sbpair", "dlq", "list", place])
    said = group.texts.most_common(1)[0][0]
    reason = ["--reason", group.reason] if group.reason else []
    chosen = [*reason, *(["--where", group.origin.where] if not alone and group.origin.where else [])]
    text = f"{(group.origin.exception or '').lower()} {said} {group.reason.lower()}"
    if group.reason.lower() == _EXPIRED:
        return shlex.join(["sbpair", "dlq", "purge", place, *chosen, "--archive", "purged"])
    to = [] if subscription_of(entity) is None else ["--to", "QUEUE"]
    if _MENDED.search(text) and group.messages <= _MOST_EDITED:
        return shlex.join(["sbpair", "edit", place, "--dlq", *to, *chosen])
    if _MENDED.search(text):
        change = ("--set", "NAME=VALUE", "--archive", "originals")
        return shlex.join(["sbpair", "dlq", "resubmit", place, *to, *chosen, *change])
    return shlex.join(["sbpair", "dlq", "resubmit", place, *to, *chosen, "--grow", "1,2,5,20,100"])
