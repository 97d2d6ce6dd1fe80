"""`pipeline reconcile`: every archived message has exactly one outcome in the ledgers given, or is listed.

    unaccounted   no ledger says what became of it (or only that its destination refused it)
    waiting       the same, and it lies in its backlog queue (or that queue's dead-letter queue): it was not drained yet
    arrived       the same, and a message with its id lies at its destination
    taken         the same, archive or ledger say that it was taken out of its queue, and it is in none of these places:
                  the archive alone has it, until it is replayed
    altered       a ledger or a second archive knows it with another id or content
    doubled       it has more than one final outcome: it was sent twice

Waiting, arrived and taken are only said when a pair is given, whose queues are then looked into. A destination that
cannot be browsed (a topic, a missing right) leaves its messages unaccounted.

Beside these: messages that were sent with an unacknowledged first try (`perhaps_doubled`; they carry the same message
id) and ledger lines of messages that no given archive has (`not_archived`). Neither is a finding.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any

from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.names import is_destination
from sbpair.core.words import merge_spellings
from sbpair.pipeline.archive import Tell
from sbpair.pipeline.executors import PairByName, TaskConnection
from sbpair.pipeline.manifest import Manifest
from sbpair.pipeline.reports import FINDINGS, ReconcileFinding, ReconcileReport
from sbpair.pipeline.source.reader import find_spans
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, NumberRange, merged
from sbpair.pipeline.tables import KEY, Tables, same

FINAL_OUTCOMES = ("forwarded", "dead-lettered", "ping", "duplicate")
LISTED = 1_000
_key = itemgetter(*KEY.split(", "))
_FINAL = ", ".join(f"'{one}'" for one in FINAL_OUTCOMES)

_ARCHIVED_ONCE = f"""
    select {KEY}, true as in_archive, min(pair) as pair, min(queue) as queue, min(destination) as destination,
        min(message_id) as message_id, min(session_id) as session_id, min(content) as content,
        min(content) <> max(content) as copies_differ
    from archived group by {KEY}"""

_OUTCOMES_ONCE = f"""
    select {KEY},
        greatest(sum(case when outcome in ({_FINAL}) then 1 else 0 end),
            max(case when outcome = 'already-forwarded' then 1 else 0 end)) as finals,
        max(case when outcome in ({_FINAL}, 'already-forwarded') then outcome end) as outcome,
        max(case when outcome = 'refused' then reason end) as refused,
        max(attempts) as attempts,
        max(case when outcome = 'taken' then 1 else 0 end) as taken,
        min(case when outcome in ('forwarded', 'already-forwarded') then message_id end) as sent_id,
        max(case when outcome in ('forwarded', 'already-forwarded') then message_id end) as sent_id_last,
        min(case when outcome in ('forwarded', 'already-forwarded') then session_id end) as sent_session_id,
        min(content) as sent_content, max(content) as sent_content_last
    from ledgers group by {KEY}"""
"""A drain that finds its message sent by an earlier run says so; that counts where the earlier line is gone."""

_ALTERED = """coalesce(a.copies_differ, false) or coalesce(a.message_id <> o.sent_id, false)
    or coalesce(a.message_id <> o.sent_id_last, false)
    or coalesce(lower(a.session_id) <> lower(o.sent_session_id), false)
    or coalesce(a.content <> o.sent_content, false) or coalesce(a.content <> o.sent_content_last, false)"""

_VERDICTS = f"""
    select {", ".join(f"coalesce(a.{name}, o.{name}) as {name}" for name in KEY.split(", "))},
        a.pair, a.queue, a.destination, a.message_id, a.session_id,
        coalesce(o.finals, 0) as finals, o.outcome, o.refused, o.attempts, coalesce(o.taken, 0) as taken,
        case when a.in_archive is null then 'not archived'
            when coalesce(o.finals, 0) = 0 then 'unaccounted'
            when {_ALTERED} then 'altered'
            when o.finals > 1 then 'doubled'
            else 'ok' end as verdict
    from archived_once a full outer join outcomes_once o on {same("a", "o")}"""


def verdicts(tables: Tables) -> None:
    """The table `judged`: one row per message of `archived` (copies included) or `ledgers`, with its verdict."""
    tables.define("archived_once", _ARCHIVED_ONCE)
    tables.define("outcomes_once", _OUTCOMES_ONCE)
    tables.define("judged", _VERDICTS, keep=True)


def reconcile(
    tables: Tables,
    archives: Sequence[str],
    ledgers: Sequence[str],
    *,
    searched_pair: PairByName | None = None,
    tell: Tell | None = None,
    listed: int = LISTED,
) -> ReconcileReport:
    """Hold archives against ledgers. `searched_pair`: the one whose queues are searched for what no ledger knows.

    Raises:
        UsageError: one of them is not there or not what it is said to be.
    """
    tables.tell = tell
    not_looked_at: dict[str, str] = {}
    manifests = tables.archived(archives, once=False)
    tables.ledgers("ledgers", ledgers)
    verdicts(tables)
    judged = "judged"
    if searched_pair is not None and search(tables, searched_pair, manifests, not_looked_at):
        judged = "searched"
    try:
        groups = tables.query(
            f"select verdict, outcome, count(*) as messages, sum(case when attempts > 1 then 1 else 0 end) as resent "
            f"from {judged} group by verdict, outcome",
            "Reconciling",
        )
        kinds = ", ".join(f"'{one}'" for one in FINDINGS)
        tables.define(
            "found", f"select * from {judged} where verdict in ({kinds}) order by {KEY} limit {listed}", keep=True
        )
        found = tables.query(f"select * from found order by {KEY}", "Listing")
        known = tables.query(
            f"select distinct {', '.join('f.' + name for name in KEY.split(', '))}, l.source "
            f"from found f join ledgers l on {same('f', 'l')}",
            "Listing",
        )
    finally:
        tables.close()
    return _report(groups, found, known, ledgers, not_looked_at, searched=searched_pair is not None)


def search(tables: Tables, pair: PairByName, manifests: Sequence[Manifest], not_looked_at: dict[str, str]) -> bool:
    """The table `searched`: `judged` with the verdicts on the pair's unaccounted messages that a look into backlog
    queues and destinations allows. False if there are none."""
    tables.rows("of_pair", (("name", "string"),), [(pair.name,)])
    mine = "coalesce(j.verdict = 'unaccounted' and j.pair = p.name, false)"
    tables.define("told_apart", f"select j.*, {mine} as mine from judged j cross join of_pair p")
    of_mine = "select destination, count(*) as n from told_apart where mine group by destination"
    rows = tables.query(of_mine, "Looking")
    if not rows:
        return False
    queues = {one.queue for manifest in manifests for one in manifest.files if one.pair == pair.name}
    browse_backlog(tables, pair, queues)
    destinations = merge_spellings({row["destination"]: row["n"] for row in rows if row["destination"] is not None})
    ids = _at_destinations(pair, destinations, not_looked_at)
    tables.rows("at_destination", (("name", "string"), ("id", "string")), ids)
    tables.rows("unseen", (("name", "string"),), [(one.lower(),) for one in not_looked_at])
    taken = (one for manifest in manifests for commit in manifest.commits for one in commit.taken)
    stretches(tables, "taken_of", (one.span for one in taken if one.pair == pair.name))
    tables.define("open_ones", "select * from told_apart where mine")
    tables.define(
        "looked_for",
        f"""select m.*, case when w.place is not null then 'waiting' when d.id is not null then 'arrived'
            when (t.first_number is not null or m.taken = 1) and m.destination is not null and u.name is null
            then 'taken' else 'unaccounted' end as looked
        from open_ones m left join ({waiting("open_ones")}) w on {same("m", "w")}
            left join at_destination d on d.name = lower(m.destination) and d.id = m.message_id
            left join unseen u on u.name = lower(m.destination) left join taken_of t on {inside("m", "t")}""",
    )
    columns = f"{KEY}, pair, queue, destination, message_id, session_id, finals, outcome, refused, attempts, taken"
    others = f"select {columns}, verdict from told_apart where not mine"
    tables.define("searched", f"{others} union all select {columns}, looked as verdict from looked_for", keep=True)
    return True


def stretches(tables: Tables, name: str, spans: Iterable[NumberRange]) -> None:
    """A table of these numbers."""
    columns = ("place", "string"), ("dead_letter", "boolean"), ("first_number", "bigint"), ("last_number", "bigint")
    tables.rows(name, columns, [(*one.place, one.first, one.last) for one in merged(spans)])


def inside(message: str, stretch: str) -> str:
    """SQL: a message lies in one of the stretches of numbers."""
    return (
        f"{message}.place = {stretch}.place and {message}.dead_letter = {stretch}.dead_letter "
        f"and {message}.sequence_number between {stretch}.first_number and {stretch}.last_number"
    )


def browse_backlog(tables: Tables, pair: PairByName, queues: Iterable[str]) -> None:
    """The table `there`: what lies in these backlog queues now, and in their dead-letter queues, into which an archived
    message may have expired since. Raises ServiceError: one of them cannot be browsed."""
    with TaskConnection.to(pair, "secondary") as connection:
        spans = find_spans(connection, [(queue, dead) for queue in sorted(queues) for dead in (False, True)])
    tables.in_queues("there", pair, spans)


def waiting(messages: str) -> str:
    """SQL: the keys of messages that lie in their queue, at the same place or with the same id at another."""
    keys = ", ".join(f"m.{name}" for name in KEY.split(", "))
    return (
        f"select {keys} from {messages} m join there q on {same('m', 'q')} "
        f"union select {keys} from {messages} m join there q on m.place = q.place and m.message_id = q.message_id"
    )


def _at_destinations(
    pair: PairByName, destinations: Iterable[str], not_looked_at: dict[str, str]
) -> list[tuple[str, str]]:
    """Destination, in lower case, and id of the messages that lie there now; why a destination could not be browsed is
    added to `not_looked_at`."""
    rows: set[tuple[str, str]] = set()
    with TaskConnection.to(pair, "primary") as connection:
        for destination in destinations:
            try:
                if not is_destination(destination.strip("/")):
                    raise UsageError("not the path of a queue")
                pages = connection.browse(NumberRange(destination, False, 1, LAST_SEQUENCE_NUMBER))
                ids = {one.message_id for page in pages for one in page if one.message_id is not None}
                rows |= {(destination.lower(), one) for one in ids}
            except (ServiceError, UsageError) as error:
                not_looked_at[destination] = error.message
    return sorted(rows)


def _report(
    rows: Sequence[dict[str, Any]],
    found: Sequence[dict[str, Any]],
    known: Sequence[dict[str, Any]],
    ledgers: Sequence[str],
    not_looked_at: dict[str, str],
    *,
    searched: bool,
) -> ReconcileReport:
    sources: dict[tuple[Any, ...], set[str]] = {}
    for row in known:
        sources.setdefault(_key(row), set()).add(ledgers[row["source"]])
    counts, outcomes = Counter[str](), Counter[str]()
    for row in rows:
        counts[row["verdict"]] += row["messages"]
        if row["verdict"] in ("ok", "arrived"):
            outcomes[row["outcome"] or "arrived"] += row["messages"]
    not_archived = counts.pop("not archived", 0)
    return ReconcileReport(
        messages=sum(counts.values()),
        verdicts=counts,
        outcomes=outcomes,
        perhaps_doubled=sum(row["resent"] or 0 for row in rows if row["verdict"] == "ok"),
        not_archived=not_archived,
        not_looked_at=not_looked_at,
        listed=tuple(_listed(row, tuple(sorted(sources.get(_key(row), ())))) for row in found),
        searched=searched,
    )


def _listed(row: dict[str, Any], ledgers: tuple[str, ...]) -> ReconcileFinding:
    unknown = f"refused: {row['refused']}" if row["refused"] else "it is in no ledger"
    why = {
        "taken": f"{unknown}; taken out of its queue and not at its destination: the archive has it",
        "unaccounted": unknown,
        "waiting": f"{unknown}; still in the backlog",
        "altered": "another id, session or content than in the archive",
        "doubled": f"{row['finals']} final outcomes",
    }[row["verdict"]]
    said = {one.name: row[one.name] for one in fields(ReconcileFinding) if one.name not in ("why", "ledgers")}
    return ReconcileFinding(**said, why=why, ledgers=ledgers)
