"""Opens and closes the ledger that a request names."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sbpair.core.errors import SbpairError, unwritable
from sbpair.runtime.transfer.ledger import Ledger, Way


@asynccontextmanager
async def open_ledger(
    path: Path | None, way: Way, *, new: bool = False, to: Mapping[str, str] | None = None
) -> AsyncIterator[Ledger | None]:
    """The ledger, continued if the file is there, and closed at the end. None without a path.

    Args:
        way: between which namespaces the run moves messages.
        new: the old file is renamed to the first free FILE.N.
        to: as for `Ledger`.

    Raises:
        UsageError: see `Ledger`.
        SbpairError: the file cannot be opened or written.
    """
    if path is None:
        yield None
        return
    ledger = _opened(path, way, to or {}, new=new)
    with ledger_errors(path):
        try:
            yield ledger
        finally:
            await ledger.close()


def _opened(path: Path, way: Way, to: Mapping[str, str], *, new: bool) -> Ledger:
    try:
        if new and path.is_file() and path.stat().st_size:
            path.rename(_free_name(path))
        return Ledger(path, resume=True, way=way, to=to)
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was moved.") from error


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


@contextmanager
def ledger_errors(path: Path) -> Iterator[None]:
    """A ledger that cannot be read or written is an `SbpairError`."""
    try:
        yield
    except OSError as error:
        raise SbpairError(
            f"Cannot write the ledger {path}: {error.strerror or error}. What was sent, but not recorded, is still in "
            "the backlog: the next run sends it a second time, with the same MessageId.",
            hint="Make room, or name another file with --ledger, and drain again.",
        ) from error
