"""Judges what the product says of itself: that a send is certain, that a session was held, what a report counts, what
the journal has of a finished message. Reads ledgers, reports and journals as a stranger does, with nothing of the
product.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

MESSAGES, SESSIONS = "replicated-message", "replicated-session"
Lane = tuple[str, str, str]
"""A process that sends, the destination and the session in lower case."""


class Claims:
    """What senders have said of their messages, and what is known of these besides.

    `holds`: senders hold a session whose messages lie in the backlog, and one process at a time moves these.
    """

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self.copies: Counter[str] = Counter()
        """How often a sender has put a message into the backlog,"""
        self.arrived: Counter[str] = Counter()
        """how often it came to its destination,"""
        self.moved: Counter[str] = Counter()
        """and how often somebody who moves messages has sent it there."""
        self._said: dict[Lane, list[str]] = defaultdict(list)
        """The messages of a lane of which is known that they come before the next, in their order."""
        self._lane_of: dict[str, Lane] = {}
        self._place: dict[str, int] = {}
        """Of each message among all, by when it was sent first."""

    def sending(self, keys: Sequence[str], lane: Lane) -> None:
        """A sender begins to send these, all of one session."""
        self._lane_of.update(dict.fromkeys(keys, lane))
        for key in keys:
            self._place.setdefault(key, len(self._place))

    def said(self, keys: Sequence[str], *, accepted: bool, certain: bool) -> Iterator[str]:
        """A sender has said what became of these: what is wrong with that."""
        for key in keys:
            by_senders = self.copies[key] + max(0, self.arrived[key] - self.moved[key])
            if accepted and certain and by_senders > 1:
                yield f"message {key} was accepted for certain, and its sender has stored it {by_senders} times"
            if (accepted or (not certain and self.copies[key])) and (lane := self._lane_of.get(key)) is not None:
                self._said[lane].append(key)

    def came(self, key: str) -> Iterator[str]:
        """A message came to its destination: what has not come, and had to before it."""
        self.arrived[key] += 1
        if not self.holds or self.arrived[key] > 1 or (lane := self._lane_of.get(key)) is None:
            return
        said = self._said[lane]
        is_said = key in said
        for other in said:
            if other == key:
                return
            if not is_said and self._place[other] > self._place[key]:
                continue  # a send that failed, and comes late: before what was sent after it
            if not self.arrived[other]:
                yield f"message {key} of {lane[2]} came before {other}, whose session was held"


def of_drain(
    report: Mapping[str, Any], lines: Sequence[Mapping[str, Any]] | None, *, unsynced: bool = False
) -> Iterator[str]:
    """What a drain's report counts against its ledger's lines of this run (None: it has no ledger). `unsynced`: a sync
    of the ledger failed meanwhile, so it may have lines beyond those that the report counts."""
    by_destination = dict(report["per_destination"])
    if sum(by_destination.values()) != report["forwarded"]:
        yield f"the report says {report['forwarded']} forwarded, and {by_destination} by destination"
    if lines is None:
        return
    for outcome, counted in (("forwarded", report["forwarded"]), ("dead-lettered", report["dead_lettered"])):
        there = sum(line["outcome"] == outcome for line in lines)
        if there < counted or (there > counted and not unsynced):
            yield f"the report says {counted} {outcome}, the ledger of the run has {there}"
    if unsynced:
        return
    of_lines = Counter(str(line["destination"]).lower() for line in lines if line["outcome"] == "forwarded")
    if of_lines != Counter({name.lower(): count for name, count in by_destination.items() if count}):
        yield f"the report says {by_destination} by destination, the ledger of the run {dict(of_lines)}"


def of_consumer(counts: Mapping[str, int], effects: int) -> Iterator[str]:
    """What a consumer's report counts against the effects of its handlers."""
    if counts.get("completed", 0) > effects:
        yield f"the report says {counts['completed']} completed, and the handlers have done {effects}"


def of_record(document: Mapping[str, Any], lying: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """A record of a finished message as it was just written; `lying`: copies by message and side that nobody has
    settled, of messages that were stored once on each side."""
    key = str(document["finished"]["message_id"])
    for side in document.get("settled", ()):
        if lying.get((key, str(side)), 0) > 0:
            yield f"the record of {key} says that its copy on {side} is settled, and it lies there"


def of_journal(path: Path, worked: set[str], failed: set[str], remembered: set[str]) -> Iterator[str]:
    """The journal's file at rest: every finished message is in a record, or in the entry of its session until then.

    `remembered`: the finished ones that the journal still has to know. Of the others it may know.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        rows = file.execute("SELECT kind, document FROM entries WHERE kind IN (?, ?)", (MESSAGES, SESSIONS)).fetchall()
    known: dict[str, str] = {}
    for kind, text in rows:
        document = json.loads(text)
        finished = [document["finished"]] if kind == MESSAGES else document.get("recent", [])
        known |= {str(one["message_id"]): str(one["state"]) for one in finished}
    for key in sorted(worked | failed):
        if key not in known:
            if key in remembered:
                yield f"replicated message {key} is finished, and the journal has neither a record nor an entry of it"
        elif known[key] == "completed" and key not in worked:
            yield f"the journal says that replicated message {key} is completed, and nobody has processed it"
        elif known[key] != "completed" and key not in failed:
            yield f"the journal says that replicated message {key} is {known[key]}, and nowhere is a dead letter of it"
