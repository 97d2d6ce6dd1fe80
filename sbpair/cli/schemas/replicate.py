"""JSON Schemas of `sbpair replicate`."""

from collections.abc import Callable, Mapping

from sbpair.cli.schemas.parts import BOOLEAN, NUMBER, TEXT, WHOLE, Schema, listing, mapping, maybe, obj


def _send() -> Schema:
    failure = obj(line=WHOLE, accepted=listing(TEXT), error=TEXT, message=TEXT)
    return obj(
        queue=TEXT,
        both=WHOLE,
        one_side=mapping(WHOLE),
        failed=WHOLE,
        unrecorded=WHOLE,
        failures=listing(failure),
        stopped_at=maybe(TEXT),
    )


def _consume() -> Schema:
    return obj(
        pair=TEXT,
        queue=TEXT,
        counts=listing(obj(side=TEXT, result=TEXT, copies=WHOLE)),
        completed=WHOLE,
        failed=WHOLE,
        dead_lettered=WHOLE,
        second_copies_out=maybe(WHOLE),
        not_read=listing(obj(side=TEXT, code=TEXT, message=TEXT, hint=TEXT)),
        seconds=NUMBER,
        ended_by=TEXT,
    )


def _status() -> Schema:
    session = obj(
        destination=TEXT,
        session=TEXT,
        state=TEXT,
        message=maybe(TEXT),
        attempts=maybe(WHOLE),
        owner=maybe(TEXT),
        lease=maybe(TEXT),
        completed=WHOLE,
        failed=WHOLE,
        since=TEXT,
        stuck=maybe(TEXT),
    )
    return obj(
        journal=TEXT,
        by_state=mapping(WHOLE),
        completed_messages=WHOLE,
        failed_messages=WHOLE,
        stuck=WHOLE,
        sessions=listing(session),
    )


def _provision() -> Schema:
    return obj(
        pair=TEXT,
        queue=TEXT,
        dry_run=BOOLEAN,
        outcomes=listing(obj(item=TEXT, result=TEXT, detail=TEXT)),
        problems=listing(obj(side=TEXT, message=TEXT, serious=BOOLEAN)),
        journal=maybe(TEXT),
    )


COMMANDS: Mapping[str, Callable[[], Schema]] = {
    "replicate send": _send,
    "replicate consume": _consume,
    "replicate status": _status,
    "replicate provision": _provision,
}
