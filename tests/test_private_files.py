"""What holds messages or keys is its owner's alone, follows no link, and takes nothing over from others."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.emulator.store import open_store
from sbpair.engine.errors import StoreError
from sbpair.engine.tls import TlsFiles
from sbpair.files import AppendedFile, make_private_file, make_private_folder, write_private
from sbpair.journal.sqlite import SqliteJournal
from sbpair.operations.log import OperationsLog
from sbpair.pipeline.spark.java import Java, launcher_home
from sbpair.pipeline.spark.session import _new_log
from sbpair.render.console import write_file
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.sinks import ArchiveSink
from sbpair.settings import first_use, remember_default_pair

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """The worst that a shell can have."""
    before = os.umask(0)
    yield
    os.umask(before)


def loose(folder: Path) -> dict[str, str]:
    """What is below the folder and open to others."""
    modes = {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


async def test_all_that_holds_messages_or_keys_is_private(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "ledgers")
    ledger = Ledger(tmp_path / "ledgers" / "l.jsonl")
    await ledger.close()
    archive = ArchiveSink(tmp_path / "archive", "now")
    await archive.close()
    store = open_store(tmp_path / "store")
    store.close()
    TlsFiles(tmp_path / "tls").server_context()
    journal = SqliteJournal(tmp_path / "journal.sqlite3")
    await journal.check()
    await journal.close()
    _new_log(tmp_path / "logs")
    write_file(tmp_path / "plans" / "more" / "plan.json", "{}", private=True)
    variables = {"XDG_STATE_HOME": str(tmp_path / "home" / "state")}
    remember_default_pair("orders", variables)
    assert first_use(tmp_path / "plans" / "more" / "plan.json", variables)
    launcher_home(Java(tmp_path, (17,), "test", has_vector_module=False), tmp_path / "cache" / "java")
    with OperationsLog(tmp_path / "home" / "state" / "operations.jsonl") as operations:
        operations.write({"who": "me"})
    assert len(list(tmp_path.rglob("*"))) > 10
    assert loose(tmp_path) == {}


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine", encoding="utf-8")
    link = tmp_path / "link"
    link.symlink_to(victim)
    for attempt in (
        lambda: AppendedFile(link),
        lambda: AppendedFile(link, "xb"),
        lambda: write_private(link, b"x"),
        lambda: make_private_file(link),
    ):
        with pytest.raises(OSError, match=r"symbolic links|exists"):
            attempt()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "namespace.sqlite3").symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic links"):
        open_store(tmp_path / "store")
    assert victim.read_text(encoding="utf-8") == "mine"


def test_a_ledger_that_everybody_may_write_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"queue": "x"}\n', encoding="utf-8")
    path.chmod(0o646)
    with pytest.raises(PermissionError, match="Every user of this machine may write to it"):
        Ledger(path, resume=True)
    assert path.read_text(encoding="utf-8") == '{"queue": "x"}\n'


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_a_ledger_of_another_user_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.touch(mode=0o600)
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        Ledger(path, resume=True)


def test_sparks_log_has_no_place_that_others_can_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "shared"))
    assert _new_log(None).is_relative_to(tmp_path / "cache")
