"""JSON Schemas of what commands print with `-o json`: from the dataclasses where there are some, written otherwise.

Fields are added over time, never taken away or changed: the schemas leave objects open, and scripts should too.
"""

from collections.abc import Callable, Mapping

from sbpair.cli import schemas_pipeline, schemas_replicate
from sbpair.cli.schema_parts import (
    ANYTHING,
    BILLED,
    BOOLEAN,
    DRAFT,
    FORECAST,
    MONEY,
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
    from sbpair.core.audit import AuditReport

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
    from sbpair.core.plan import Plan

    outcome = obj(pair=TEXT, queue=TEXT, result=TEXT, detail=TEXT, error=maybe(TEXT))
    plans = listing(derived(Plan))
    return one_of(obj(plans=plans, forecast=FORECAST), obj(plans=plans, outcomes=listing(outcome), used=FORECAST))


def _moved() -> Schema:
    return obj(
        {"forecast": FORECAST, "used": FORECAST},
        pair=TEXT,
        dry_run=BOOLEAN,
        forwarded=WHOLE,
        forwarded_bytes=WHOLE,
        completed=WHOLE,
        already_forwarded=WHOLE,
        uncompleted=WHOLE,
        dead_lettered=WHOLE,
        released=WHOLE,
        pings=WHOLE,
        locks_lost=WHOLE,
        per_destination=mapping(WHOLE),
        dead_letter_reasons=mapping(WHOLE),
        original_faults=mapping(WHOLE),
        left=mapping(WHOLE),
        failures=listing(_FAILURE),
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
        path=maybe(TEXT),
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


def _cost() -> Schema:
    from sbpair.core.cost import Estimate

    line = obj(part=TEXT, what=TEXT, arithmetic=TEXT, operations=maybe(WHOLE), amount=maybe(MONEY), source=TEXT)
    billed = listing(BILLED)
    found = derived(Estimate)
    more = {
        "total": MONEY,
        "operation_count": WHOLE,
        "pair": maybe(TEXT),
        "pairing_adds": MONEY,
        "lines": listing(line),
    }
    estimate = found | {
        "properties": found["properties"] | more | {"billed": billed},
        "required": [*found["required"], *more],
    }
    alternative = obj(
        alternative=TEXT, total=MONEY, above_best=maybe(MONEY), operations=WHOLE, choice=TEXT, problems=TEXT
    )
    swing = obj(input=TEXT, halved=MONEY, now=MONEY, doubled=MONEY, swing=MONEY)
    even = obj(currency=TEXT, premium_operations=maybe(WHOLE), pairing_adds=MONEY, outage_hour_value=maybe(MONEY))
    price = {"meter": TEXT, "unit": TEXT, "from": MONEY, "to": maybe(MONEY), "price": MONEY, "currency": TEXT}
    return one_of(
        estimate,
        obj(currency=TEXT, month=TEXT, alternatives=listing(alternative)),
        obj(
            currency=TEXT,
            swings=listing(swing),
            sizes=listing(obj(size_bytes=WHOLE, steps=WHOLE, total=MONEY)),
            break_even_operations=maybe(WHOLE),
            break_even=even,
        ),
        obj(region=TEXT, dated=TEXT, source=TEXT, query=TEXT, command=TEXT, prices=listing(obj(**price))),
        obj(currency=TEXT, billed=billed),
    )


def _status() -> Schema:
    side = obj(
        side=TEXT,
        host=TEXT,
        state=TEXT,
        tier=maybe(TEXT),
        error_code=maybe(TEXT),
        detail=TEXT,
        hint=TEXT,
        answered_in_ms=maybe(NUMBER),
    )
    queue = obj(
        queue=TEXT,
        active=maybe(WHOLE),
        dead_letter=maybe(WHOLE),
        scheduled=maybe(WHOLE),
        size_in_bytes=maybe(WHOLE),
        oldest_enqueued_at=maybe(NUMBER),
        missing=BOOLEAN,
        detail=TEXT,
        state=TEXT,
    )
    return obj(
        pair=TEXT,
        taken_at=NUMBER,
        primary=side,
        secondary=side,
        queues=listing(queue),
        active=maybe(WHOLE),
        dead_letter=WHOLE,
        oldest_age_seconds=maybe(NUMBER),
        rate_per_second=maybe(NUMBER),
        empty_in_seconds=maybe(NUMBER),
        drain=FORECAST,
    )


def _doctor() -> Schema:
    row = obj(
        result={"enum": ["ok", "warning", "error", "skipped"]}, check=TEXT, subject=TEXT, detail=TEXT, next_step=TEXT
    )
    return obj(pair=maybe(TEXT), checks=listing(row))


def _demo() -> Schema:
    place = obj(
        place=TEXT,
        expected=WHOLE,
        arrived=WHOLE,
        missing=WHOLE,
        doubled=WHOLE,
        altered=WHOLE,
        out_of_order=WHOLE,
        verdict=TEXT,
    )
    return obj(
        proved=BOOLEAN,
        messages=WHOLE,
        accepted_by=mapping(WHOLE),
        backlog=mapping(WHOLE),
        forwarded=WHOLE,
        findings=listing(TEXT),
        bill=mapping(ANYTHING),
        places=listing(place),
        seconds=ANYTHING,
    )


def _config_show() -> Schema:
    setting = obj(key=TEXT, value=ANYTHING, source=TEXT)
    return obj(files=listing(TEXT), settings=listing(setting), environment=mapping(TEXT))


def _config_check() -> Schema:
    return obj(pairs=listing(obj(pair=TEXT, primary=TEXT, secondary=TEXT, auth=TEXT)))


def _help() -> Schema:
    code = obj(code=WHOLE, name=TEXT, when=TEXT)
    right = obj(command=TEXT, side=TEXT, sas_right=TEXT, entra_role=TEXT)
    return one_of(listing(one_of(code, right)), obj(text=TEXT), mapping(TEXT))


def _fault() -> Schema:
    return obj(
        id=TEXT,
        text=TEXT,
        rule=mapping(ANYTHING),
        begins_at=NUMBER,
        ends_at=maybe(NUMBER),
        seen=WHOLE,
        hits=WHOLE,
    )


COMMANDS: Mapping[str, Callable[[], Schema]] = {
    "demo": _demo,
    "emulator": lambda: listing(obj(what=TEXT, instead=TEXT)),
    "emulator fault list": lambda: listing(_fault()),
    "emulator fault add": _fault,
    "emulator fault clear": lambda: obj(namespace=TEXT, id=maybe(TEXT)),
    "provision": _plans,
    "audit": _audit,
    "cleanup": _plans,
    "peek": _peek,
    "drain": _moved,
    "syphon": _moved,
    **schemas_replicate.COMMANDS,
    "send": _send,
    "ping": _ping,
    "cost": _cost,
    "status": _status,
    "doctor": _doctor,
    **schemas_pipeline.COMMANDS,
    "config show": _config_show,
    "config check": _config_check,
    "config schema": lambda: {"type": "object", "description": "A JSON Schema of sbpair.yaml."},
    "config use": lambda: obj(default_pair=TEXT, file=TEXT),
    "completion": lambda: obj(shell=TEXT, script=TEXT),
    "help": _help,
    "schema": lambda: {"type": "object", "description": "A JSON Schema, or the list of commands that have one."},
}
"""Command -> schema of the envelope's `data`."""

WITHOUT_JSON: Mapping[str, str] = {
    "emulator": "While it serves it prints lines, NAMESPACE<TAB>CONNECTION STRING; -o json is for --not-emulated.",
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
