"""What audit, cost and others share: files of snapshots and plans, and the configured pairs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.context import system_clock
from sbpair.core.errors import SbpairError, StalePlanError, UsageError, unchanged
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.core.redact import json_text
from sbpair.core.serialization import spoken_time
from sbpair.render.console import write_file

if TYPE_CHECKING:
    from sbpair.settings import Settings


PLAN_SECONDS = 24 * 3600.0
"""After this time a plan is refused: what was decided on may long be another situation."""


def write_plans(path: Path, plans: Iterable[Mapping[str, Any]], *, valid_seconds: float | None = PLAN_SECONDS) -> str:
    """Write plans to a file that `read_plans` reads again, with who made them and a digest; without `valid_seconds` for
    ever, since the run that it is for takes as long as it takes. Returns the end of a sentence: where the plan is, and
    until when it is valid."""
    from sbpair.operations.log import who

    now = system_clock().now().timestamp()
    expires_at = None if valid_seconds is None else now + valid_seconds
    document = {"plans": [*plans], "made_by": who(), "made_at": now, "expires_at": expires_at}
    try:
        write_file(path, json_text({**document, "sha256": digest_of(document)}, indent=2) + "\n", private=True)
    except SbpairError as error:
        raise error.with_state("Nothing was changed.") from error
    return f"written to {path}" + ("" if expires_at is None else f", valid until {spoken_time(expires_at)}")


def read_plans(path: Path) -> list[Any]:
    """The plans of a file that `write_plans` wrote. Raises StalePlanError where it was changed, or has expired."""
    with unchanged():
        document = dict(_document(path, "plan"))
    if document.pop("sha256", None) != digest_of(document):
        raise StalePlanError(f"{path} is not as it was written. Nothing was changed.")
    if (expires_at := document.get("expires_at")) is not None and system_clock().now().timestamp() > expires_at:
        raise StalePlanError(f"{path} has expired at {spoken_time(expires_at)}. Nothing was changed.")
    return list(document["plans"])


def digest_of(document: Mapping[str, Any]) -> str:
    """What a plan file says of all of itself: it keeps slips apart, not somebody who can write the file."""
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _document(path: Path, noun: str) -> Mapping[str, Any]:
    """A file of snapshots or plans (`noun`: `snapshot`, `plan`)."""
    from sbpair.settings import DocumentError, parse_json, read_text

    try:
        document = parse_json(read_text(path))
    except DocumentError as error:
        raise UsageError(f"Cannot read the {noun} {path}: {error}", hint=f"Write it with --{noun}-out.") from error
    if not isinstance(document, dict) or not isinstance(document.get(f"{noun}s"), list):
        raise UsageError(f"{path} is not a {noun} file: an object with a list `{noun}s` is expected.")
    return document


def read_snapshots(path: Path) -> list[Snapshot]:
    """Snapshots of a file written by `write_snapshots`."""
    return [Snapshot.from_dict(snapshot) for snapshot in _document(path, "snapshot")["snapshots"]]


def choose_snapshots(path: Path, names: Sequence[str] | None) -> list[Snapshot]:
    """Snapshots of a file, all of them or those of the named pairs, which are all in it."""
    snapshots = read_snapshots(path)
    known = [snapshot.pair.name for snapshot in snapshots]
    for name in names or ():
        if name not in known:
            raise UsageError(f"{path} has no snapshot of pair {name!r}; it has: {', '.join(known) or 'none'}.")
    return [snapshot for snapshot in snapshots if not names or snapshot.pair.name in names]


def write_snapshots(path: Path, snapshots: Iterable[Snapshot]) -> None:
    """Write snapshots to a file that `--snapshot` reads. They hold no keys."""
    document = {"snapshots": [snapshot.to_dict() for snapshot in snapshots]}
    write_file(path, json_text(document, indent=1) + "\n", private=True)


def configured_pairs(settings: "Settings", affected: str = "") -> tuple[list[Pair], list[str]]:
    """Every pair that is configured completely, for what looks across pairs, and why the others are left out of what is
    `affected`."""
    pairs, notes = [], []
    for name in settings.pair_names():
        try:
            pairs.append(settings.pair(name))
        except SbpairError as error:
            notes.append(f"Pair {name} is left out of {affected}: {error.message}")
    return pairs, notes
