"""What audit, cost and others share: files of snapshots and plans, and the configured pairs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.core.redact import json_text
from sbpair.render.console import write_file

if TYPE_CHECKING:
    from sbpair.settings import Settings


def read_saved(path: Path, noun: str) -> list[Any]:
    """What a file of snapshots or plans (`noun`: `snapshot`, `plan`) holds.

    Raises:
        UsageError: unreadable, not JSON, or not such a file.
    """
    from sbpair.settings import DocumentError, parse_json, read_text

    try:
        document = parse_json(read_text(path))
    except DocumentError as error:
        raise UsageError(f"Cannot read the {noun} {path}: {error}") from error
    saved = document.get(f"{noun}s") if isinstance(document, dict) else None
    if not isinstance(saved, list):
        raise UsageError(f"{path} is not a {noun} file: an object with a list `{noun}s` is expected.")
    return saved


def read_snapshots(path: Path) -> list[Snapshot]:
    """Snapshots of a file written by `write_snapshots`.

    Raises:
        UsageError: unreadable, not JSON, or not snapshots of this release's format.
    """
    return [Snapshot.from_dict(snapshot) for snapshot in read_saved(path, "snapshot")]


def choose_snapshots(path: Path, names: Sequence[str] | None) -> list[Snapshot]:
    """Snapshots of a file, all of them or those of the named pairs.

    Raises:
        UsageError: see `read_snapshots`; or a named pair is not in the file.
    """
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
