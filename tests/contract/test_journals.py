"""The journal port, implemented twice: SQLite with several processes, Cosmos DB over its protocol.

The Cosmos side is the npm package @vercel/cosmosdb-server, a server implementation by others, driven by azure-cosmos.
It needs Node.js; the package is installed into a cache folder at test time.
"""

import asyncio
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sbpair.core.errors import JournalConflictError, JournalError, JournalUnavailableError, UsageError
from sbpair.journal import open_journal
from sbpair.journal.cosmos import CosmosJournal
from sbpair.journal.sqlite import FORGET_AT_ONCE, FORGET_EVERY_WRITES, SqliteJournal, documents, key_ranges
from sbpair.ports import Journal
from tests.forks import begun, ended

KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
"""The well-known key of every Cosmos DB emulator."""
SERVER = "@vercel/cosmosdb-server@1.0.1"
INSTALL_SECONDS = 300
HOUR = 3600.0
_LISTEN = """
// Version 1.0.1 answers 500, not the service's 404, when an item that is read is not there.
const reading = require("@vercel/cosmosdb-server/lib/handler/read-document");
const read = reading.default;
reading.default = async (account, request, response, names) => {
  try {
    return await read(account, request, response, names);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    response.statusCode = 404;
    return { code: "NotFound", message: "Entity with the specified id does not exist in the system." };
  }
};
const { createHttpServer } = require("@vercel/cosmosdb-server");
const server = createHttpServer();
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 60)


@pytest.fixture(scope="session")
def cosmos_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node.js with npm is not installed")
    pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed (extra cosmos)")
    folder = Path(os.environ.get("SBPAIR_TEST_COSMOS_SERVER") or tmp_path_factory.mktemp("cosmos"))
    if not (folder / "node_modules").exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", SERVER]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    process = subprocess.Popen([node, "-e", _LISTEN], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["sqlite", pytest.param("cosmos", marks=pytest.mark.node)])
async def journals(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Journal, Journal]]:
    """Two clients of one empty journal."""
    if request.param == "sqlite":
        address, key = f"sqlite:{tmp_path / 'journal.db'}", None
    else:
        address, key = f"cosmos:{request.getfixturevalue('cosmos_url')}/sbpair/{tmp_path.name}", KEY
    first, second = open_journal(address, cosmos_key=key), open_journal(address, cosmos_key=key)
    await first.check()
    yield first, second
    await asyncio.gather(first.close(), second.close())


async def test_what_was_created_is_read_by_others(journals: tuple[Journal, Journal]) -> None:
    first, second = journals
    document = {"text": "Grüße ✓", "number": 7, "list": [1, {"deep": None}], "yes": True, "real": 1.5}
    created = await first.create("session", "parcel-1", document, ttl_seconds=HOUR)
    read = await second.read("session", "parcel-1")
    assert read is not None
    assert (read.kind, read.key, read.document, read.version) == ("session", "parcel-1", document, created.version)
    assert await second.read("session", "parcel-2") is None
    assert await second.read("message", "parcel-1") is None


async def test_creating_what_exists_is_a_conflict(journals: tuple[Journal, Journal]) -> None:
    first, second = journals
    await first.create("session", "a", {"n": 1}, ttl_seconds=HOUR)
    with pytest.raises(JournalConflictError):
        await second.create("session", "a", {"n": 2}, ttl_seconds=HOUR)
    read = await first.read("session", "a")
    assert read is not None
    assert read.document == {"n": 1}


async def test_of_two_swaps_from_one_version_one_wins(journals: tuple[Journal, Journal]) -> None:
    first, second = journals
    entry = await first.create("session", "a", {"n": 1}, ttl_seconds=HOUR)
    won = await second.replace(entry, {"n": 2}, ttl_seconds=HOUR)
    with pytest.raises(JournalConflictError):
        await first.replace(entry, {"n": 3}, ttl_seconds=HOUR)
    assert won.version != entry.version
    again = await first.replace(won, {"n": 4}, ttl_seconds=HOUR)
    read = await second.read("session", "a")
    assert read is not None
    assert (read.document, read.version) == ({"n": 4}, again.version)


async def test_swapping_what_is_not_there_is_a_conflict(journals: tuple[Journal, Journal]) -> None:
    first, _ = journals
    entry = await first.create("session", "a", {"n": 1}, ttl_seconds=HOUR)
    missing = type(entry)("session", "b", {}, entry.version)
    with pytest.raises(JournalConflictError):
        await first.replace(missing, {"n": 2}, ttl_seconds=HOUR)


async def test_concurrent_increments_are_all_counted(journals: tuple[Journal, Journal]) -> None:
    await journals[0].create("session", "a", {"n": 0}, ttl_seconds=HOUR)
    await asyncio.gather(*(_increment(journal, 10) for journal in journals for _ in range(2)))
    read = await journals[0].read("session", "a")
    assert read is not None
    assert read.document == {"n": 40}


async def _increment(journal: Journal, times: int) -> None:
    done = 0
    while done < times:
        entry = await journal.read("session", "a")
        assert entry is not None
        try:
            await journal.replace(entry, {"n": entry.document["n"] + 1}, ttl_seconds=HOUR)
        except JournalConflictError:
            continue
        done += 1


@pytest.mark.parametrize("key", ["a/b", "a\\b?#c", "~2f", "Köln ✓", "with blank", "%2F", "x" * 128])
async def test_any_session_id_is_a_key(journals: tuple[Journal, Journal], key: str) -> None:
    first, second = journals
    entry = await first.create("session", key, {"n": 1}, ttl_seconds=HOUR)
    await second.replace(entry, {"n": 2}, ttl_seconds=HOUR)
    read = await first.read("session", key)
    assert read is not None
    assert (read.key, read.document) == (key, {"n": 2})


async def test_a_scan_finds_all_of_a_kind_and_nothing_else(journals: tuple[Journal, Journal]) -> None:
    first, second = journals
    for number in range(30):
        await first.create("session", f"s{number}", {"n": number}, ttl_seconds=HOUR)
        await first.create("sender", f"s{number}", {}, ttl_seconds=HOUR)
    found = {entry.key: entry.document["n"] async for entry in second.scan("session")}
    assert found == {f"s{number}": number for number in range(30)}


# What only one of them can show


async def test_sqlite_forgets_in_time_and_never_gives_a_version_twice(tmp_path: Path) -> None:
    now = [1000.0]
    journal = SqliteJournal(tmp_path / "journal.db", now=lambda: now[0])
    old = await journal.create("session", "a", {"n": 1}, ttl_seconds=10)
    now[0] += 9
    kept = await journal.replace(old, {"n": 2}, ttl_seconds=10)
    now[0] += 9
    assert await journal.read("session", "a") is not None
    now[0] += 2
    assert await journal.read("session", "a") is None
    assert [entry async for entry in journal.scan("session")] == []
    with pytest.raises(JournalConflictError):
        await journal.replace(kept, {"n": 3}, ttl_seconds=10)
    again = await journal.create("session", "a", {"n": 4}, ttl_seconds=10)
    assert again.version not in (old.version, kept.version)
    await journal.close()


async def test_what_sqlite_forgets_is_forgotten_in_portions(tmp_path: Path) -> None:
    """One deletion of everything would keep other consumers from writing for as long as it takes."""
    now = [1000.0]
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, now=lambda: now[0])
    await journal.create("session", "first", {}, ttl_seconds=HOUR)
    with sqlite3.connect(path) as other:
        other.executemany(
            "INSERT INTO entries VALUES ('message', ?, '{}', 1, 1001)",
            ((f"{n:05}",) for n in range(FORGET_AT_ONCE * 3)),
        )
    other.close()
    now[0] += 2

    def stored() -> int:
        with sqlite3.connect(path) as reading:
            (count,) = reading.execute("SELECT count(*) FROM entries WHERE kind = 'message'").fetchone()
        reading.close()
        return int(count)

    left, after = [stored()], []
    for number in range(FORGET_EVERY_WRITES * 4):
        await journal.create("session", f"{number:05}", {}, ttl_seconds=HOUR)
        if stored() != left[-1]:
            left.append(stored())
            after.append(number)
    assert left[-1] == 0
    assert {later - before for before, later in itertools.pairwise(after)} == {FORGET_EVERY_WRITES}
    assert max(before - after for before, after in itertools.pairwise(left)) <= FORGET_AT_ONCE
    await journal.close()


async def test_sqlite_scans_more_than_a_page(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    for number in range(1_003):
        await journal.create("session", f"{number:05}", {}, ttl_seconds=HOUR)
    keys = [entry.key async for entry in journal.scan("session")]
    assert keys == sorted(set(keys))
    assert len(keys) == 1_003
    await journal.close()


@pytest.mark.parametrize(("documents_there", "stretches"), [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (9, [4, 4, 1])])
async def test_sqlite_hands_out_a_kind_in_stretches_that_several_readers_take(
    tmp_path: Path, documents_there: int, stretches: list[int]
) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    for number in range(documents_there):
        await journal.create("message", f"{number:03}", {"n": number}, ttl_seconds=HOUR)
    await journal.create("message", "forgotten", {}, ttl_seconds=-1)
    await journal.create("session", "005", {"é": [1, 2]}, ttl_seconds=HOUR)
    ranges = key_ranges(path, "message", 4)
    assert [one.rows for one in ranges] == stretches
    read = [[json.loads(text)["n"] for text in documents(path, "message", one)] for one in ranges]
    assert [len(one) for one in read] == stretches
    assert list(itertools.chain(*read)) == list(range(documents_there))
    assert [json.loads(text)["n"] for text in documents(path, "message")] == list(range(documents_there))
    assert [*documents(path, "session")] == ['{"é":[1,2]}'], "as short as it can be said"
    await journal.close()


async def test_a_file_that_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, however long one looks at it" * 100)
    with pytest.raises(JournalError, match="is not a journal"):
        await open_journal(f"sqlite:{tmp_path / 'text'}").read("session", "a")
    with pytest.raises(JournalUnavailableError):
        await open_journal(f"sqlite:{tmp_path / 'missing' / 'journal.db'}").read("session", "a")


def test_processes_that_increment_and_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Four processes count up; each line they print was swapped in before, also when kill -9 comes right after."""
    address = f"sqlite:{tmp_path / 'journal.db'}"
    command = [sys.executable, "-c", _COUNT_UP, address]
    counters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for counter in counters:
        assert counter.stdout is not None
        counter.stdout.readline()
    time.sleep(0.5)
    for counter in counters:
        counter.kill()
    printed = [int(line) for counter in counters for line in counter.communicate()[0].splitlines() if line.isdigit()]
    assert len(printed) == len(set(printed)), "two processes won the same swap"
    entry = asyncio.run(_read(address))
    assert max(printed) <= entry, "what was promised is not in the file"
    assert len(printed) > 20


async def _read(address: str) -> int:
    journal = open_journal(address)
    entry = await journal.read("session", "a")
    await journal.close()
    assert entry is not None
    return int(entry.document["n"])


_COUNT_UP = """
import asyncio, sys
from sbpair.core.errors import JournalConflictError
from sbpair.journal import open_journal

async def main():
    journal = open_journal(sys.argv[1])
    try:
        await journal.create("session", "a", {"n": 0}, ttl_seconds=3600)
    except JournalConflictError:
        pass
    print("begin", flush=True)
    while True:
        entry = await journal.read("session", "a")
        try:
            swapped = await journal.replace(entry, {"n": entry.document["n"] + 1}, ttl_seconds=3600)
        except JournalConflictError:
            continue
        print(swapped.document["n"], flush=True)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_children_of_a_process_that_has_used_the_journal_use_it_as_well(tmp_path: Path) -> None:
    """As a gunicorn worker or a Celery pool does with a journal that was opened before. The connection and the thread
    are the parent's: a child that asked them would wait for ever, and one that closed them would close the parent's."""
    journal = SqliteJournal(tmp_path / "journal.db")

    async def count_up(times: int) -> None:
        for _ in range(times):
            while True:
                entry = await journal.read("session", "a")
                assert entry is not None
                with suppress(JournalConflictError):
                    await journal.replace(entry, {"n": entry.document["n"] + 1}, ttl_seconds=HOUR)
                    break

    asyncio.run(journal.create("session", "a", {"n": 0}, ttl_seconds=HOUR))
    children = [begun(lambda: asyncio.run(count_up(25))) for _ in range(3)]
    children.append(begun(lambda: asyncio.run(journal.close())))
    asyncio.run(count_up(25))
    assert [ended(child) for child in children] == [0, 0, 0, 0]
    asyncio.run(count_up(1))
    asyncio.run(journal.close())
    assert asyncio.run(_read(f"sqlite:{tmp_path / 'journal.db'}")) == 4 * 25 + 1


@pytest.mark.node
async def test_cosmos_items_carry_their_partition_and_time_to_live(cosmos_url: str) -> None:
    from azure.cosmos.aio import CosmosClient

    journal = open_journal(f"cosmos:{cosmos_url}/sbpair/items", cosmos_key=KEY)
    said = await journal.check()
    assert "consistency" in said
    await journal.create("session", "a/b", {"n": 1}, ttl_seconds=90.4)
    async with CosmosClient(cosmos_url, KEY, enable_endpoint_discovery=False) as client:
        container = client.get_database_client("sbpair").get_container_client("items")
        item = await container.read_item("session:a~2fb", partition_key="a/b")
        assert (await container.read())["partitionKey"]["paths"] == ["/pk"]
    assert (item["ttl"], item["document"]) == (90, {"n": 1})
    await journal.close()


@pytest.mark.node
async def test_a_cosmos_container_that_is_missing_is_no_empty_journal(cosmos_url: str) -> None:
    journal = open_journal(f"cosmos:{cosmos_url}/nowhere/nothing", cosmos_key=KEY)
    with pytest.raises(JournalError, match="404"):
        await journal.create("session", "a", {}, ttl_seconds=HOUR)
    await journal.close()


async def test_a_cosmos_account_that_does_not_answer_is_unavailable() -> None:
    pytest.importorskip("azure.cosmos")
    journal = CosmosJournal("http://127.0.0.1:9", "d", "c", key=KEY)
    with pytest.raises(JournalUnavailableError):
        await journal.read("session", "a")
    await journal.close()


@pytest.mark.parametrize(
    "address",
    ["", "sqlite:", "redis:host", "cosmos:", "cosmos:https://host", "cosmos:https://host/one",
     "cosmos:http://far.example.com/d/c", "cosmos:https://host/d/c/more"],
)  # fmt: skip
def test_addresses_of_no_known_form_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is no journal"):
        open_journal(address)


def test_an_address_without_scheme_is_https() -> None:
    pytest.importorskip("azure.cosmos")
    assert open_journal("cosmos:x.documents.azure.com/d/c").name == "cosmos:https://x.documents.azure.com/d/c"
