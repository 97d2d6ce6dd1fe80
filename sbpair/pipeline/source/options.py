"""Options of `sbpair-backlog`, `servicebus` and of the pipeline's internal sources: strict, and none of them a secret.
`sbpair help spark` says what each means; it has all but `ranges`: JSON of exact spans, instead of queues and numbers.
"""

import difflib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from sbpair.concurrency import side_by_side
from sbpair.core.access import HOST, AuthMethod, Transport
from sbpair.core.durations import epoch_seconds, parse_duration
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path, check_source_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.redact import quoted
from sbpair.pipeline.executors import NamespaceByName, PairByName, TaskConnection, first_from
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, NumberRange
from sbpair.runtime.inspection.backlog import index_of
from sbpair.runtime.links import closing

T = TypeVar("T")

MESSAGES_PER_PARTITION = 10_000
LATEST: Final = -1
EARLIEST: Final = -2
"""In JSON as well, as readers of Kafka write it."""
_BACKLOG_OPTIONS = ("pair", "config", "queues", "side")
ENTITY_OPTIONS = (
    *("namespace", "host", "auth", "connectionStringEnv", "connectionStringFile", "caFile", "transport", "entity"),
)
_LOOK_OPTIONS = (
    *("deadLetters", "messagesPerPartition", "includePayload", "includeBody", "startingOffsets", "startingTimestamp"),
)
_BATCH_OPTIONS = (
    *("endingOffsets", "endingTimestamp", "firstSequence", "lastSequence", "ranges", "messagesPerSecond"),
)
_STREAM_OPTIONS = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "failOnDataLoss"),
)
_OTHER_WORDS = {
    **dict.fromkeys(("maxrowsperbatch", "maxrowspertrigger", "maxeventspertrigger"), "maxOffsetsPerTrigger"),
    "maxbytesperbatch": "maxBytesPerTrigger",
    **dict.fromkeys(("queue", "topic", "subscribe", "queuename", "topicname", "subscription"), "entity"),
    **dict.fromkeys(("startingposition", "startingsequence"), "startingOffsets"),
    **dict.fromkeys(("endingposition",), "endingOffsets"),
    **dict.fromkeys(("startingoffsetsbytimestamp", "startingtime"), "startingTimestamp"),
    **dict.fromkeys(("endingoffsetsbytimestamp", "endingtime"), "endingTimestamp"),
    **dict.fromkeys(("includeheaders", "includeproperties"), "includePayload or includeBody; properties always come"),
    **dict.fromkeys(("fullyqualifiednamespace", "servicebus.namespace"), "namespace"),
    "minpartitions": "messagesPerPartition",
    **dict.fromkeys(("badrecordspath", "mode"), "failOnRefused"),
    **dict.fromkeys(("batchsize", "ratelimit"), "rate"),
}
"""What other sources call it, in lower case."""
_SPARKS_OWN = frozenset({"path", "checkpointlocation"})


@dataclass(frozen=True, slots=True)
class BacklogOfPair:
    """The backlog queues of a pair, on its secondary."""

    pair: PairByName
    queues: tuple[str, ...] = ()
    """Indexes or paths; none: all that exist for the pair's primary."""
    side: Side = Side.SECONDARY
    """The primary has no backlog queues: there `queues` are paths of its own."""

    @property
    def made_when_needed(self) -> bool:
        """Backlog queues come into being when a sender fails over to them: one that is not there is empty."""
        return self.side is Side.SECONDARY

    @property
    def name(self) -> str:
        return self.pair.name

    def connect(self) -> TaskConnection:
        return TaskConnection.to(self.pair, self.side)

    def paths(self, connection: TaskConnection) -> tuple[str, ...]:
        """Raises UsageError: an index that no queue has, or a path that cannot be one."""
        if self.side is Side.PRIMARY:
            return tuple(check_source_path(path) for path in self.queues)
        return queue_paths(self.pair.resolve(), self.queues, connection)


@dataclass(frozen=True, slots=True)
class Entities:
    """Queues and subscriptions of a namespace."""

    namespace: NamespaceByName
    entities: tuple[str, ...]

    made_when_needed: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.namespace.resolve().label

    def connect(self) -> TaskConnection:
        return TaskConnection(self.namespace.resolve())

    def paths(self, connection: TaskConnection) -> tuple[str, ...]:
        return self.entities


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every queue: a number, EARLIEST, LATEST, or the first message from a time on."""

    everywhere: int
    of_queues: Mapping[str, int | Mapping[str, int]] = field(default_factory=dict)
    """By path in lower case: a number, or numbers by partition."""
    at_ms: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], which: str, default: int) -> "Position":
        """By the options `{which}Offsets` and `{which}Timestamp`; raises UsageError."""
        offsets, timestamp = options.get(f"{which}Offsets"), options.get(f"{which}Timestamp")
        if timestamp is not None:
            if offsets is not None:
                raise UsageError(f"Give {which}Offsets or {which}Timestamp, not both.")
            return cls(default, at_ms=_moment_ms(f"{which}Timestamp", timestamp))
        words = {"earliest": EARLIEST, "latest": LATEST}
        if offsets is None or offsets.strip().lower() in words:
            return cls(default if offsets is None else words[offsets.strip().lower()])
        try:
            read = json.loads(offsets)
            return cls(default, {str(path).lower(): _numbers_of(value) for path, value in read.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"The option {which}Offsets is earliest, latest or JSON by queue, not {quoted(offsets)}.",
                hint=f'For example {{"orders": 1017}}; {EARLIEST} is earliest, {LATEST} is latest.',
            ) from error

    def found(self, connection: TaskConnection, present: Sequence[NumberRange]) -> list[int]:
        """The number in each of the stretches that hold messages: from its first to the one behind its last. Raises
        ServiceError: a queue cannot be browsed."""
        if self.at_ms is not None:
            at_ms = self.at_ms
            return connection.run(side_by_side(lambda span: number_at(connection, span, at_ms), present))
        return [self._in(span) for span in present]

    def _in(self, span: NumberRange) -> int:
        given = self.of_queues.get(span.queue.lower(), self.everywhere)
        number = given if isinstance(given, int) else given.get(str(span.partition), self.everywhere)
        if number < 0:
            return span.first if number == EARLIEST else span.last + 1
        return min(max(number, span.first), span.last + 1)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read, and where it reads."""

    place: BacklogOfPair | Entities
    dead_letters: tuple[bool, ...]
    messages_per_partition: int | None
    include_payload: bool
    first: int = 1
    last: int = LAST_SEQUENCE_NUMBER
    ranges: tuple[NumberRange, ...] | None = None
    begin: Position = Position(EARLIEST)
    end: Position = Position(LATEST)
    include_body: bool = True
    most_per_second: int | None = None
    """What one task may read."""
    most_rows: int | None = None
    most_bytes: int | None = None
    least_rows: int | None = None
    most_delay_seconds: float = 900.0
    fails_on_data_loss: bool | None = None
    since: Position = Position(EARLIEST)
    """From here on what filters of the query ask for: messages enqueued from then on, and before then."""
    until: Position = Position(LATEST)
    only: Set[str] | None = None
    """Paths in lower case."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, of_backlog: bool = True, stream: bool = False) -> "ReadOptions":
        """Looks the place up in the configuration, if it is there.

        Raises:
            UsageError: an unknown option, or a value that is none.
            ConfigurationError: the pair or the namespace is not known.
        """
        places = _BACKLOG_OPTIONS if of_backlog else ENTITY_OPTIONS
        kinds = _STREAM_OPTIONS if stream else _BATCH_OPTIONS
        options = known_options(given, (*places, *_LOOK_OPTIONS, *kinds))
        dead_letters = {"true": (True,), "false": (False,), "both": (False, True)}
        return cls(
            dead_letters=_chosen(options, "deadLetters", dead_letters, default="false"),
            messages_per_partition=_number(options, "messagesPerPartition"),
            include_payload=truth(options, "includePayload", True),
            first=_number(options, "firstSequence") or 1,
            last=_number(options, "lastSequence") or LAST_SEQUENCE_NUMBER,
            ranges=spans_from_json(options["ranges"]) if "ranges" in options else None,
            begin=Position.parse(options, "starting", EARLIEST),
            end=Position.parse(options, "ending", LATEST),
            include_body=truth(options, "includeBody", True),
            most_per_second=_number(options, "messagesPerSecond"),
            most_rows=_number(options, "maxOffsetsPerTrigger"),
            most_bytes=_number(options, "maxBytesPerTrigger"),
            least_rows=_number(options, "minOffsetsPerTrigger"),
            most_delay_seconds=parse_duration(options.get("maxTriggerDelay", "15m")),
            fails_on_data_loss=truth(options, "failOnDataLoss", True) if "failOnDataLoss" in options else None,
            place=backlog_in(options) if of_backlog else entities_in(options),
        )

    def sources(self, connection: TaskConnection) -> list[tuple[str, bool]]:
        """Paths of the entities and whether their dead-letter sub-queues are meant."""
        paths = (path for path in self.place.paths(connection) if self.only is None or path.lower() in self.only)
        return [(path, dead) for path in paths for dead in self.dead_letters]


def _numbers_of(value: Any) -> int | dict[str, int]:
    if isinstance(value, dict):
        return {str(partition): _whole(number) for partition, number in value.items()}
    return _whole(value)


def _whole(number: Any) -> int:
    if type(number) is not int or number < EARLIEST:
        raise ValueError(f"not a sequence number: {number!r}")
    return number


def _moment_ms(option: str, text: str) -> int:
    if text.strip().isdecimal():
        return int(text)
    try:
        return round(epoch_seconds(text.strip()) * 1000)
    except ValueError:
        raise UsageError(f"The option {option} is ISO 8601 or epoch milliseconds, not {quoted(text)}.") from None


async def number_at(connection: TaskConnection, span: NumberRange, at_ms: int) -> int:
    """The number of the first message of a stretch that was enqueued at a time or later; the one behind its last if
    there is none. Times rise with numbers, so that a few dozen looks find it."""
    low, high = span.first, span.last + 1
    async with closing(connection.receiver(span.queue, dead_letter=span.dead_letter)) as receiver:
        while low < high:
            middle = (low + high) // 2
            found = await first_from(receiver, middle)
            if found is None or found.sequence_number >= high or round((found.enqueued_at or 0) * 1000) >= at_ms:
                high = middle
            else:
                low = found.sequence_number + 1
    return low


def backlog_in(options: Mapping[str, str]) -> BacklogOfPair:
    """The pair that options name. Raises UsageError: a side that is none, or queues of the primary that are not named;
    ConfigurationError: it is not configured."""
    config, queues = options.get("config"), _listed(options, "queues")
    side = _chosen(options, "side", {one.value: one for one in Side}, default=Side.SECONDARY)
    if side is Side.PRIMARY and not queues and "ranges" not in options:
        raise UsageError(
            "The backlog queues are on the secondary; on the primary the option queues selects what is read."
        )
    return BacklogOfPair(PairByName.load(options.get("pair"), Path(config) if config else None), queues, side)


def entities_in(options: Mapping[str, str]) -> Entities:
    """The namespace and entities that options name. Raises UsageError: no entity, or a path that cannot be one;
    ConfigurationError: no namespace, or a credential that is not there."""
    entities = tuple(check_entity_path(path) for path in _listed(options, "entity"))
    if not entities:
        raise UsageError("The option entity is missing: a queue, or topic/Subscriptions/name.")
    return Entities(namespace_in(options), entities)


def namespace_in(options: Mapping[str, str]) -> NamespaceByName:
    """The namespace that options name, as a configuration file would say it; raises as `entities_in`."""
    settings: dict[str, Any] = {}
    if (name := options.get("namespace")) is not None:
        if not HOST.fullmatch(name.strip()):  # a connection string is easily put here, so it is not repeated
            raise UsageError("The option namespace is the name or the host of a namespace, such as contoso-weu.")
        settings["namespace"] = name.strip()
    references = {
        kind: options[option]
        for option, kind in (("connectionStringEnv", "env"), ("connectionStringFile", "file"))
        if option in options
    }
    if len(references) > 1:
        raise UsageError("Give connectionStringEnv or connectionStringFile, not both.")
    if references:
        settings["connection_string"] = references
    for option, known in (("auth", AuthMethod), ("transport", Transport)):
        if option in options:
            settings[option] = _chosen(options, option, {str(one): one for one in known}, default="")
    if "host" in options:
        settings["host"] = options["host"].strip()
    if "caFile" in options:
        settings["ca_file"] = options["caFile"]
    return NamespaceByName(settings)


def _chosen(options: Mapping[str, str], name: str, choices: Mapping[str, T], *, default: str) -> T:
    text = options.get(name, default)
    if (word := text.strip().lower()) not in choices:
        *others, last = choices
        raise UsageError(f"The option {name} is {', '.join(others)} or {last}, not {text!r}.")
    return choices[word]


def _listed(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


def known_options(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The options under their own spelling; Spark does not keep the case of their names. Raises UsageError: an unknown
    one, or a secret, which would travel in plans and lie in logs. Its value is not repeated."""
    spelling = {name.lower(): name for name in names}
    for key in given:
        name = key.lower()
        if name == "connectionstring":
            raise UsageError(
                "A connection string is a secret, and options of a source are shown in plans.",
                hint="Name where it is: connectionStringEnv (an environment variable) or connectionStringFile.",
            )
        if name not in spelling and name not in _SPARKS_OWN:
            near = difflib.get_close_matches(name, spelling, n=1)
            hint = f"Did you mean {spelling[near[0]]}?" if near else f"Options are {', '.join(names)}."
            hint = f"Here it is {_OTHER_WORDS[name]}." if name in _OTHER_WORDS else hint
            raise UsageError(f"The source has no option {key!r}.", hint=hint)
    return {spelling[key.lower()]: value for key, value in given.items() if key.lower() in spelling}


def _number(options: Mapping[str, str], name: str) -> int | None:
    if (text := options.get(name)) is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"The option {name} is a whole number, not {text!r}.") from None
    if number < 1:
        raise UsageError(f"The option {name} is at least 1, not {number}.")
    return number


def truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    """A true or false option."""
    return _chosen(options, name, {"true": True, "false": False}, default=str(default))


def queue_paths(pair: Pair, wanted: Sequence[str], connection: TaskConnection) -> tuple[str, ...]:
    """Paths of the queues given as indexes or paths; without any, the configured backlog queues of the pair and those
    beyond them that exist: an application with more queues than the file says has put messages there. Raises
    UsageError: an index that no queue has, or a path that cannot be one."""
    own = pair.backlog_paths()
    indexed = dict(enumerate(own))
    if not wanted or any(one.isdecimal() and int(one) >= len(own) for one in wanted):
        indexed |= {index_of(path): path for path in connection.backlog_queues(pair)}
    chosen = []
    for text in wanted:
        if not text.isdecimal():
            chosen.append(check_entity_path(text))
        elif int(text) in indexed:
            chosen.append(indexed[int(text)])
        else:
            raise UsageError(f"Pair {pair.name!r} has backlog queues 0 to {max(indexed)}; there is no {text}.")
    return tuple(dict.fromkeys(chosen)) or tuple(indexed.values())


def spans_to_json(spans: Sequence[NumberRange]) -> str:
    """Spans as the option `ranges` takes them."""
    return json.dumps([[one.queue, one.dead_letter, one.first, one.last] for one in spans])


def spans_from_json(text: str) -> tuple[NumberRange, ...]:
    try:
        return tuple(
            NumberRange(str(queue), bool(dead), int(first), int(last)) for queue, dead, first, last in json.loads(text)
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"The option ranges is not a list of [queue, dead letter, first, last]: {error}.") from error
