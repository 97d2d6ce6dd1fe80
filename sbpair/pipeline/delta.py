"""An archive that is a Delta table as well: the same Parquet files, named by a Delta log beside the manifest.

    archive/
      _commits/      the manifest: what belongs to the archive, and which numbers are covered
      _delta_log/    what readers of Delta tables read
      data/...       the files, once

Nothing is written twice: each commit of the manifest becomes one commit of the table, with the manifest's number as
the version of an application transaction (`txn`). So the table says itself how far it came, a run that was killed in
between is made up for by the next one, and no commit is in the table twice. Joined small files are no change of data
there.
"""

import json
import time
from typing import TYPE_CHECKING, Any

from sbpair.pipeline.errors import RUN_AGAIN, ArchiveError, SparkUnavailableError
from sbpair.pipeline.manifest import ArchiveFile, Commit, LocalStore, Manifest, Store
from sbpair.pipeline.rows import arrow_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

APPLICATION = "sbpair-archive"
"""Id of the application transaction whose version is the number of the last commit that is in the table."""
LOG = "_delta_log"


def is_delta(store: Store) -> bool:
    """Whether the archive is a Delta table."""
    return isinstance(store, LocalStore) and (store.root / LOG).is_dir()


def check_delta(store: LocalStore, *, wanted: bool) -> None:
    """Make sure that the table can be kept up to date, before anything is archived. `wanted`: it shall become one, if
    it is none. Raises SparkUnavailableError: the package is missing."""
    if not wanted and not is_delta(store):
        return
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise SparkUnavailableError(
            f"{store.uri} is {'to be ' if not is_delta(store) else ''}a Delta table, which needs deltalake, and "
            f"{error.name} is not installed.",
            hint="pip install 'sbpair[delta]'",
        ) from error


def publish(store: Store, *, wanted: bool = False) -> int:
    """Bring the table up to the manifest, if the archive is one or `wanted`; how many commits that were. Raises
    ArchiveError: the log cannot be read or written. The archive is whole; the next run goes on."""
    if not isinstance(store, LocalStore) or not (wanted or is_delta(store)):
        return 0
    from deltalake.exceptions import DeltaError

    version = -1
    while True:
        try:
            return _publish(store)
        except (DeltaError, OSError) as error:
            before, version = version, _known_version(store)
            if version <= before:
                why = str(error).splitlines()[0]
                raise ArchiveError(f"Cannot keep the Delta log of {store.uri}: {why}", hint=RUN_AGAIN) from error
            # Another run publishes as well, and was faster: go on behind it.


def _known_version(store: LocalStore) -> int:
    """-1: there is no table, or none that can be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return _version(DeltaTable(store.uri))
    except (DeltaError, OSError):
        return -1


def _publish(store: LocalStore) -> int:
    manifest = store.manifest()
    if not manifest.commits:
        return 0
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(store.uri):
        _create(store, manifest)
        return len(manifest.commits)
    done = _version(DeltaTable(store.uri))
    known = {file.path: file for commit in manifest.commits for file in commit.added}
    missing = [one for one in manifest.commits if one.number > done and (one.added or one.removed)]
    for commit in missing:
        _append(DeltaTable(store.uri), commit, known)
    return len(missing)


def _version(table: "DeltaTable") -> int:
    """The number of the last commit that is in the table."""
    return table.transaction_version(APPLICATION) or 0


def _create(store: LocalStore, manifest: Manifest) -> None:
    """With the files as they are now: those that were replaced before may be gone."""
    from deltalake import Schema
    from deltalake.transaction import create_table_with_add_actions

    create_table_with_add_actions(
        store.uri,
        Schema.from_arrow(arrow_schema()),
        [_added(file, changes=True) for file in manifest.files],
        mode="error",
        commit_properties=_properties(manifest.next_number - 1),
    )


def _append(table: "DeltaTable", commit: Commit, known: dict[str, ArchiveFile]) -> None:
    """One commit. Others that come at the same time with the same number are refused by the table."""
    from deltalake.transaction import RemoveAction

    changes, now_ms = not commit.removed, round(time.time() * 1000)
    actions: list[Any] = [_added(file, changes=changes) for file in commit.added]
    for path in commit.removed:
        size = known[path].bytes if path in known else 0
        actions.append(
            RemoveAction(path=path, deletion_timestamp=now_ms, data_change=changes, partition_values={}, size=size)
        )
    table.create_write_transaction(
        actions, mode="append", schema=table.schema(), commit_properties=_properties(commit.number)
    )


def _properties(number: int) -> "CommitProperties":
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(APPLICATION, number)])


def _added(file: ArchiveFile, *, changes: bool) -> "AddAction":
    from deltalake.transaction import AddAction

    low = {"pair": file.pair, "queue": file.queue, "sequence_number": file.first}
    high = low | {"sequence_number": file.last}
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
    return AddAction(file.path, file.bytes, {}, round(time.time() * 1000), changes, json.dumps(stats))
