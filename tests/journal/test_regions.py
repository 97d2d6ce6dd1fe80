"""A Cosmos DB account that settles conflicts by last writer wins, or reads what is old for everybody, is no journal."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed (extra cosmos)")

from sbpair.core.errors import JournalConflictError, JournalError, JournalUnavailableError
from sbpair.journal.cosmos import CosmosJournal, _translated

KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="


@contextmanager
def account(regions: list[str], consistency: str) -> Iterator[tuple[str, list[str]]]:
    """An account's endpoint that tells its properties and refuses everything else, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, document: object) -> None:
            asked.append(f"{self.command} {self.path}")
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path != "/":
                self.answer(403, {"code": "Forbidden", "message": "Nothing but the account is here."})
                return
            here = f"http://127.0.0.1:{server.server_port}/"
            places = [{"name": region, "databaseAccountEndpoint": here} for region in regions]
            self.answer(
                200,
                {
                    "id": "account",
                    "_dbs": "//dbs/",
                    "writableLocations": places,
                    "readableLocations": places,
                    "enableMultipleWriteLocations": len(regions) > 1,
                    "userConsistencyPolicy": {"defaultConsistencyLevel": consistency},
                },
            )

        def do_POST(self) -> None:
            self.answer(403, {"code": "Forbidden", "message": "Nothing is made here."})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("regions", "consistency", "says"),
    [
        (["West Europe", "North Europe"], "Session", "accepts writes in 2 regions (West Europe, North Europe)"),
        (["West Europe"], "Eventual", "has Eventual consistency"),
        (["West Europe"], "ConsistentPrefix", "has ConsistentPrefix consistency"),
    ],
)
async def test_an_account_whose_swaps_are_not_safe_is_refused_before_anything_is_made(
    regions: list[str], consistency: str, says: str
) -> None:
    with account(regions, consistency) as (url, asked):
        journal = CosmosJournal(url, "sbpair", "journal", key=KEY)
        with pytest.raises(JournalError) as refused:
            await journal.check()
        await journal.close()
    assert says in refused.value.message
    assert refused.value.hint
    assert {line.split()[0] for line in asked} == {"GET"}


async def test_a_host_without_a_login_says_that_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients, the one that asks for the account and the one for the items, sign in without a key."""
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    for variable in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID"):
        monkeypatch.delenv(variable, raising=False)
    journal = CosmosJournal("https://127.0.0.1:9", "sbpair", "journal", key=None)
    for asked in (journal.check, lambda: journal.read("session", "a")):
        with pytest.raises(JournalUnavailableError, match="EnvironmentCredential authentication unavailable"):
            await asked()
    await journal.close()


@pytest.mark.parametrize(
    ("status", "kind", "next_step"),
    [
        (409, JournalConflictError, ""),
        (412, JournalConflictError, ""),
        (404, JournalError, "sbpair replicate provision"),
        (403, JournalError, ""),
        (429, JournalUnavailableError, ""),
        (503, JournalUnavailableError, ""),
        (None, JournalUnavailableError, ""),
    ],
)
def test_what_an_answer_of_cosmos_means(status: int | None, kind: type[JournalError], next_step: str) -> None:
    from azure.cosmos.exceptions import CosmosHttpResponseError

    found = _translated("cosmos:here", CosmosHttpResponseError(status_code=status, message="said  so"))
    assert type(found) is kind
    assert isinstance(found, JournalError)
    assert (next_step in found.hint) if next_step else "provision" not in found.hint


async def test_a_call_that_was_answered_in_time_ends_nothing_later() -> None:
    journal = CosmosJournal("https://127.0.0.1:9", "sbpair", "journal", key=None)
    async with journal._answering(seconds=0.01):
        pass
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.05, later.set_result, "undisturbed")
    assert await later == "undisturbed"
