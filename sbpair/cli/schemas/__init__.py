"""JSON Schemas of what commands print with `-o json`: from the dataclasses where there are some, written otherwise.

Fields are added over time, never taken away or changed: the schemas leave objects open, and scripts should too.
"""

from collections.abc import Callable, Mapping

from sbpair.cli.schemas import pipeline, replicate
from sbpair.cli.schemas.parts import (
    ANYTHING,
    BOOLEAN,
    DRAFT,
    FORECAST,
    NUMBER,
    TEXT,
    TIME,
    WHOLE,
    Schema,
    derived,
    listing,
    mapping,
    maybe,
    obj,
    one_of,
)
from sbpair.core.outcome import Exit

_ERROR = obj(code=TEXT, message=TEXT, hint=TEXT)
_FAILURE = obj(queue=TEXT, code=TEXT, message=TEXT)


def _audit() -> Schema:
    from sbpair.core.inspection.audit import AuditReport

    report = derived(AuditReport)
    unread = obj(namespace=TEXT, subject=TEXT, code=TEXT, reason=TEXT, hint=TEXT)
    more = {"taken_at": TIME, "management_calls": WHOLE, "throttling_credits": WHOLE, "not_read": listing(unread)}
    pair = report | {"properties": report["properties"] | more, "required": [*report["required"], *more]}
    failed = obj(pair=TEXT, code=TEXT, message=TEXT, hint=TEXT)
    check = {"code": TEXT, "severity": TEXT, "title": TEXT}
    pair["required"] = list(dict.fromkeys(pair["required"]))
    return one_of(
        obj(pairs=listing(pair), errors=listing(failed), used=FORECAST),
        obj(checks=listing(obj(**check))),
        obj(**check, explanation=TEXT, remedy=TEXT),
    )


def _plans() -> Schema:
    from sbpair.core.inspection.plan import Plan

    outcome = obj(pair=TEXT, queue=TEXT, result=TEXT, detail=TEXT, error=maybe(TEXT))
    plans = listing(derived(Plan))
    return one_of(obj(plans=plans, forecast=FORECAST), obj(plans=plans, outcomes=listing(outcome), used=FORECAST))


def _moved() -> Schema:
    from sbpair.core.transfer.report import Kind, fields_of, numbers

    backlog = obj(**_backlog())
    return obj(
        {"forecast": FORECAST, "used": FORECAST, "backlog": backlog},
        pair=TEXT,
        dry_run=BOOLEAN,
        **{one.name: WHOLE for one in numbers()},
        **{one.name: mapping(WHOLE) for one in fields_of(Kind.BY_NAME)},
        left=mapping(WHOLE),
        failures=listing(_FAILURE),
        unchecked=listing(TEXT),
        locked=listing(obj(queue=TEXT, until=NUMBER)),
        confirmed_empty=BOOLEAN,
        ended_by=TEXT,
        archive=maybe(TEXT),
        seconds=NUMBER,
    )


def _peek() -> Schema:
    message = obj(
        {"body_encoding": {"enum": ["text", "hex", "json"]}, "body": TEXT},
        queue=TEXT,
        sequence_number=WHOLE,
        enqueued_at=maybe(TIME),
        destination=maybe(TEXT),
        session_id=maybe(TEXT),
        message_id=ANYTHING,
        correlation_id=ANYTHING,
        subject=maybe(TEXT),
        content_type=maybe(TEXT),
        partition_key=maybe(TEXT),
        size_bytes=WHOLE,
        ttl_seconds=maybe(NUMBER),
        scheduled_at=maybe(TIME),
        state=TEXT,
        delivery_count=WHOLE,
        reason=maybe(TEXT),
        description=maybe(TEXT),
        unreadable=ANYTHING,
        application_properties=mapping(ANYTHING),
        payload_base64=TEXT,
    )
    group = obj(messages=WHOLE, size_bytes=WHOLE, oldest=maybe(TIME), newest=maybe(TIME)) | {
        "additionalProperties": maybe(TEXT)
    }
    common = {"pair": TEXT, "looked_at": WHOLE, "left_off": BOOLEAN, "not_read": listing(_FAILURE)}
    return one_of(obj(**common, messages=listing(message)), obj(**common, groups=listing(group)))


def _send() -> Schema:
    return obj(
        entity=TEXT,
        accepted=WHOLE,
        diverted=WHOLE,
        uncertain=WHOLE,
        failed=WHOLE,
        failures=listing(mapping(ANYTHING)),
        stopped_at=ANYTHING,
    )


def _ping() -> Schema:
    times = {f"{name}_ms": maybe(NUMBER) for name in ("min", "mean", "p50", "p90", "p99", "max")}
    row = obj(
        side=TEXT,
        namespace=TEXT,
        entity=TEXT,
        by=TEXT,
        result=TEXT,
        sent=WHOLE,
        accepted=WHOLE,
        **times,
        right=maybe(TEXT),
        credential=TEXT,
        error_code=maybe(TEXT),
        detail=TEXT,
    )
    return obj(pair=TEXT, pinged_at=TIME, entities=listing(row))


def _status() -> Schema:
    from sbpair.core.inspection.status import SideStatus

    side = derived(SideStatus)
    del side["properties"]["answered_in_seconds"]
    side["properties"]["answered_in_ms"] = maybe(NUMBER)
    return obj(
        pair=TEXT,
        environment=maybe(TEXT),
        taken_at=NUMBER,
        primary=side,
        secondary=side,
        **_backlog(),
        rate_per_second=maybe(NUMBER),
        empty_in_seconds=maybe(NUMBER),
        drain=FORECAST,
    )


def _backlog() -> dict[str, Schema]:
    """What every command says of a backlog: `core.inspection.status.backlog_data`."""
    from sbpair.core.inspection.backlog import FoundBy, QueueContents, Verdict

    queue = derived(QueueContents)
    queue["properties"]["state"] = TEXT
    return {
        "queues": listing(queue),
        "queues_found_by": {"enum": [one.value for one in FoundBy]},
        "verdict": {"enum": [one.value for one in Verdict]},
        "confirmed_empty": BOOLEAN,
        "active": maybe(WHOLE),
        "dead_letter": WHOLE,
        "deferred": WHOLE,
        "scheduled": WHOLE,
        "at_least": BOOLEAN,
        "oldest_age_seconds": maybe(NUMBER),
        "next_commands": listing(TEXT),
    }


def _doctor() -> Schema:
    row = obj(
        result={"enum": ["ok", "warning", "error", "skipped"]}, check=TEXT, subject=TEXT, detail=TEXT, next_step=TEXT
    )
    return obj(pair=maybe(TEXT), checks=listing(row))


COMMANDS: Mapping[str, Callable[[], Schema]] = {
    "provision": _plans,
    "audit": _audit,
    "cleanup": _plans,
    "peek": _peek,
    "drain": _moved,
    "syphon": _moved,
    **replicate.COMMANDS,
    "send": _send,
    "ping": _ping,
    "status": _status,
    "doctor": _doctor,
    **pipeline.COMMANDS,
}
"""Command -> schema of the envelope's `data`."""

WITHOUT_JSON: Mapping[str, str] = {
    "status": "With --watch it prints lines, or records with -o jsonl.",
}
"""Command -> what of its output is no JSON."""


def envelope_schema(command: str) -> Schema:
    """The schema of all that the command prints with `-o json`, also when it fails."""
    note = {"description": WITHOUT_JSON[command]} if command in WITHOUT_JSON else {}
    return {
        "$schema": DRAFT,
        "title": f"sbpair {command} -o json",
        **note,
        "type": "object",
        "properties": {
            "command": {"enum": [command, ""], "description": "Empty where the command line could not be read."},
            "version": TEXT,
            "exit_code": {"enum": [int(code) for code in Exit]},
            "exit_name": {"enum": sorted({code.label for code in Exit})},
            "data": COMMANDS[command](),
            "error": _ERROR,
        },
        "required": ["command", "version", "exit_code", "exit_name"],
        "oneOf": [{"required": ["data"]}, {"required": ["error"]}],
    }
