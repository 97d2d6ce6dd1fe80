"""Options of `sbpair-backlog` and of the pipeline's internal sources: strict, and none of them a secret.

pair                  name of a pair of the configuration; default: the default pair
config                path of the configuration file; default: as the command line finds it
queues                indexes or paths of backlog queues, separated by commas; default: all of the pair
deadLetters           false (default), true (only them) or both
firstSequence, lastSequence     numbers to look at; default: all
messagesPerPartition  numbers per Spark partition; default 10000
includePayload        false leaves the column `payload` null: nothing else needs it
ranges                JSON of exact spans instead of queues and numbers (used by `pipeline archive`)
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, Span

MESSAGES_PER_PARTITION = 10_000
_READ_OPTIONS = (
    "pair",
    "config",
    "queues",
    "deadLetters",
    "firstSequence",
    "lastSequence",
    "messagesPerPartition",
    "includePayload",
    "ranges",
)
_SPARKS_OWN = frozenset({"path"})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read."""

    pair: str | None
    config: Path | None
    queues: tuple[str, ...]
    dead_letters: tuple[bool, ...]
    first: int
    last: int
    messages_per_partition: int
    include_payload: bool
    ranges: tuple[Span, ...] | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Raises UsageError: an unknown option, or a value that is none."""
        options = known_options(given, _READ_OPTIONS)
        config = options.get("config")
        ranges = options.get("ranges")
        return cls(
            pair=options.get("pair"),
            config=Path(config) if config else None,
            queues=tuple(part.strip() for part in options.get("queues", "").split(",") if part.strip()),
            dead_letters=_dead_letters(options.get("deadLetters", "false")),
            first=_number(options, "firstSequence", 1),
            last=_number(options, "lastSequence", LAST_SEQUENCE_NUMBER),
            messages_per_partition=max(1, _number(options, "messagesPerPartition", MESSAGES_PER_PARTITION)),
            include_payload=truth(options, "includePayload", True),
            ranges=None if ranges is None else spans_from_json(ranges),
        )

    def sources(self, pair: Pair) -> list[tuple[str, bool]]:
        """Queue paths and whether their dead-letter sub-queues are meant."""
        return [(path, dead) for path in queue_paths(pair, self.queues) for dead in self.dead_letters]


def known_options(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The options under their own spelling; Spark does not keep the case of their names."""
    spelling = {name.lower(): name for name in names}
    for key in given:
        if key.lower() not in spelling and key.lower() not in _SPARKS_OWN:
            near = difflib.get_close_matches(key.lower(), spelling, n=1)
            raise UsageError(
                f"The source has no option {key!r}.",
                hint=f"Did you mean {spelling[near[0]]}?" if near else f"Options are {', '.join(names)}.",
            )
    return {spelling[key.lower()]: value for key, value in given.items() if key.lower() in spelling}


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"The option {name} is a whole number, not {text!r}.") from None


def truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    """A true or false option."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise UsageError(f"The option {name} is true or false, not {text!r}.")
    return text == "true"


def _dead_letters(text: str) -> tuple[bool, ...]:
    kinds = {"false": (False,), "true": (True,), "both": (False, True)}
    if text.lower() not in kinds:
        raise UsageError(f"The option deadLetters is true, false or both, not {text!r}.")
    return kinds[text.lower()]


def queue_paths(pair: Pair, wanted: Sequence[str]) -> tuple[str, ...]:
    """Paths of the queues given as indexes or paths; without any, all backlog queues of the pair.

    Raises:
        UsageError: an index the pair does not have, or a path that cannot be one.
    """
    paths = pair.backlog_paths()
    chosen = []
    for one in wanted:
        if not one.isdecimal():
            chosen.append(check_entity_path(one))
        elif int(one) < len(paths):
            chosen.append(paths[int(one)])
        else:
            raise UsageError(f"Pair {pair.name!r} has backlog queues 0 to {len(paths) - 1}; there is no {one}.")
    return tuple(dict.fromkeys(chosen)) or paths


def spans_to_json(spans: Sequence[Span]) -> str:
    """Spans as the option `ranges` takes them."""
    return json.dumps([[one.queue, one.dead_letter, one.first, one.last] for one in spans])


def spans_from_json(text: str) -> tuple[Span, ...]:
    try:
        return tuple(
            Span(str(queue), bool(dead), int(first), int(last)) for queue, dead, first, last in json.loads(text)
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"The option ranges is not a list of [queue, dead letter, first, last]: {error}.") from error
