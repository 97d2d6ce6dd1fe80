"""JSON Schemas of `sbpair pipeline`."""

from collections.abc import Callable, Mapping

from sbpair.cli.schemas.parts import (
    BOOLEAN,
    MONEY,
    NUMBER,
    TEXT,
    TIME,
    WHOLE,
    Schema,
    listing,
    mapping,
    maybe,
    obj,
    one_of,
)

PLAN = obj(plan=TEXT)
"""Of --explain: Spark's plan."""
_PLACE = {"pair": TEXT, "destination": maybe(TEXT)}
_AMOUNT = {"messages": WHOLE, "bytes": WHOLE}
_UNITS = {**_AMOUNT, "units": WHOLE}
_WHEN = {"oldest_at": maybe(TIME), "newest_at": maybe(TIME)}


def _archive() -> Schema:
    span = obj(queue=TEXT, dead_letter=BOOLEAN, first=WHOLE, last=WHOLE)
    report = obj(
        pair=TEXT,
        archive=TEXT,
        run=TEXT,
        dry_run=BOOLEAN,
        rows=WHOLE,
        bytes=WHOLE,
        files=WHOLE,
        retried=WHOLE,
        settled=WHOLE,
        gone=WHOLE,
        left=mapping(WHOLE),
        compacted=WHOLE,
        per_queue=mapping(WHOLE),
        total_rows=WHOLE,
        not_archived_before=listing(span),
        seconds=NUMBER,
    )
    return one_of(report, obj(archive=TEXT, imported=TEXT, rows=WHOLE, files=WHOLE))


def _replay() -> Schema:
    report = obj(
        pair=TEXT,
        run=TEXT,
        ledger=TEXT,
        dry_run=BOOLEAN,
        matched=WHOLE,
        already_done=WHOLE,
        duplicates=WHOLE,
        waiting=maybe(WHOLE),
        outcomes=mapping(WHOLE),
        refusals=mapping(WHOLE),
        per_destination=mapping(WHOLE),
        resent=WHOLE,
        skipped_by_retry=WHOLE,
        seconds=NUMBER,
    )
    return one_of(report, PLAN)


def _reconcile() -> Schema:
    finding = obj(
        verdict=TEXT,
        pair=TEXT,
        queue=TEXT,
        dead_letter=BOOLEAN,
        sequence_number=WHOLE,
        message_id=maybe(TEXT),
        session_id=maybe(TEXT),
        destination=maybe(TEXT),
        why=TEXT,
        ledgers=listing(TEXT),
    )
    return obj(
        messages=WHOLE,
        findings=WHOLE,
        counts=obj(lost=WHOLE, unaccounted=WHOLE, waiting=WHOLE, altered=WHOLE, doubled=WHOLE),
        outcomes=mapping(WHOLE),
        perhaps_doubled=WHOLE,
        not_archived=WHOLE,
        not_looked_at=mapping(TEXT),
        listed=listing(finding),
    )


def _analyze() -> Schema:
    tables = {
        "destinations": _destination(),
        "hours": obj(**_PLACE, hour=TIME, **_UNITS),
        "queues": obj(pair=TEXT, queue=TEXT, dead_letter=BOOLEAN, **_UNITS, **_WHEN),
        "outages": obj(
            **_PLACE,
            **_AMOUNT,
            began_at=TIME,
            ended_at=TIME,
            seconds=NUMBER,
            lasted=TEXT,
            busiest_minute=WHOLE,
            going_on=BOOLEAN,
        ),
        "time_to_live": obj(**_PLACE, lives_seconds=NUMBER, lives=TEXT, messages=WHOLE, expired=WHOLE, expiring=WHOLE),
        "dead_letters": obj(**_PLACE, reason=maybe(TEXT), **_AMOUNT, queues=WHOLE, **_WHEN),
        "sessions": obj(
            **_PLACE,
            session_id=maybe(TEXT),
            **_AMOUNT,
            queues=WHOLE,
            inversions=WHOLE,
            interleaved=BOOLEAN,
            **_WHEN,
        ),
        "duplicates": obj(
            **_PLACE,
            message_id=TEXT,
            copies=WHOLE,
            queues=listing(TEXT),
            dead_letters=WHOLE,
            first_at=TIME,
            last_at=TIME,
        ),
        "size_histogram": obj(pair=TEXT, from_bytes=WHOLE, to_bytes=WHOLE, **_AMOUNT),
        "totals": obj(pair=TEXT, **_UNITS, dead_letters=WHOLE),
        "forecast": obj(
            pair=TEXT,
            **_AMOUNT,
            operations=WHOLE,
            messages_per_second=NUMBER,
            seconds=NUMBER,
            lasts=TEXT,
            ends_at=TIME,
            cost_at_most=MONEY,
            currency=TEXT,
        ),
    }
    return obj(
        archives=listing(TEXT),
        as_of=TIME,
        sessions_in_trouble=WHOLE,
        duplicate_ids=WHOLE,
        **{name: listing(row) for name, row in tables.items()},
    )


def _destination() -> Schema:
    return obj(
        **_PLACE,
        **_UNITS,
        dead_letters=WHOLE,
        pings=WHOLE,
        sessions=WHOLE,
        **_WHEN,
        age_p50_seconds=NUMBER,
        age_p95_seconds=NUMBER,
        age_max_seconds=NUMBER,
        age_p50=TEXT,
        age_p95=TEXT,
        size_p50=WHOLE,
        size_p95=WHOLE,
        size_p99=WHOLE,
        size_max=WHOLE,
        near_limit=WHOLE,
        expired=WHOLE,
        expiring=WHOLE,
        exists=maybe(BOOLEAN),
    )


def _trend() -> Schema:
    reading = obj(pair=TEXT, at=TIME, active=WHOLE, dead_letter=WHOLE, scheduled=WHOLE, size_bytes=WHOLE)
    queue = obj(
        pair=TEXT,
        queue=TEXT,
        readings=WHOLE,
        first_at=TIME,
        last_at=TIME,
        active_first=WHOLE,
        active=WHOLE,
        dead_letter=WHOLE,
        size_bytes=WHOLE,
        messages_per_hour=NUMBER,
        bytes_per_hour=WHOLE,
        seconds_until_full=maybe(NUMBER),
        full_in=maybe(TEXT),
    )
    finding = obj(
        pair=TEXT,
        code=TEXT,
        title=TEXT,
        state={"enum": ["open", "gone", "flapping"]},
        latest=WHOLE,
        most=WHOLE,
        seen=TEXT,
        first_seen=TIME,
        last_seen=TIME,
        changes=WHOLE,
    )
    return obj(readings=listing(reading), queues=listing(queue), findings=listing(finding))


COMMANDS: Mapping[str, Callable[[], Schema]] = {
    "pipeline archive": _archive,
    "pipeline analyze": _analyze,
    "pipeline replay": _replay,
    "pipeline reconcile": _reconcile,
    "pipeline trend": _trend,
}
