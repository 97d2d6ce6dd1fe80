"""A journal in Azure Cosmos DB (API for NoSQL): for consumers in two regions.

One item per document: id `kind:key`, partition key `/pk` (the key), the item's own `ttl`; swaps by ETag and If-Match.
Cosmos evaluates If-Match in the region that takes the writes, so a swap is safe as long as there is *one* such region:
an account that accepts writes in several settles conflicts by last writer wins and is refused. A read that lags behind
can only say "not finished yet", which the swap then corrects; still at least session consistency is asked for, so
that a consumer sees its own writes and does not go round in circles.

Needs the package azure-cosmos (`pip install 'sbpair[cosmos]'`). Credential: the account's key, or Entra ID.
"""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sbpair.core.errors import JournalConflictError, JournalError, JournalUnavailableError
from sbpair.ports import Entry, checked_entry

CALL_SECONDS = 10.0
PARTITION_PATH = "/pk"
ITEM_TTL_ONLY = -1
"""Container setting: items live as long as their own ttl says."""
_ENOUGH = ("Strong", "BoundedStaleness", "Session")
_UNSAFE_IN_IDS = frozenset("/\\?#~")
_AGAIN = frozenset({408, 410, 429, 449, 500, 502, 503, 504})
_NO_CONTAINER = 1003


class CosmosJournal:
    """`sbpair.ports.Journal` in one container.

    Raises:
        JournalError: azure-cosmos is not installed.
    """

    def __init__(self, url: str, database: str, container: str, *, key: str | None) -> None:
        """`key`: the account's; None means Entra ID (environment, managed identity, Azure CLI, ...)."""
        if importlib.util.find_spec("azure.cosmos") is None:
            raise JournalError(
                "A journal in Cosmos DB needs the package azure-cosmos.", hint="pip install 'sbpair[cosmos]'"
            )
        self._url = url
        self._database = database
        self._container = container
        self._key = key
        self._credential: Any = None
        self._client: Any = None
        self._items: Any = None

    @property
    def name(self) -> str:
        return f"cosmos:{self._url}/{self._database}/{self._container}"

    async def read(self, kind: str, key: str) -> Entry | None:
        from azure.cosmos.exceptions import CosmosResourceNotFoundError

        async with self._answering():
            try:
                return _entry(self.name, await (await self._open()).read_item(_id(kind, key), partition_key=key))
            except CosmosResourceNotFoundError as error:
                if _substatus(error) == _NO_CONTAINER:
                    raise
                return None

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        async with self._answering():
            item = await (await self._open()).create_item(_item(kind, key, document, ttl_seconds))
            return Entry(kind, key, document, item["_etag"])

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        from azure.core import MatchConditions
        from azure.cosmos.exceptions import CosmosResourceNotFoundError

        async with self._answering():
            try:
                item = await (await self._open()).replace_item(
                    _id(entry.kind, entry.key),
                    _item(entry.kind, entry.key, document, ttl_seconds),
                    etag=entry.version,
                    match_condition=MatchConditions.IfNotModified,
                )
            except CosmosResourceNotFoundError as error:
                if _substatus(error) == _NO_CONTAINER:
                    raise
                raise JournalConflictError(f"{entry.kind} {entry.key!r} is gone.") from error
            return Entry(entry.kind, entry.key, document, item["_etag"])

    async def scan(self, kind: str) -> AsyncIterator[Entry]:
        async with self._answering(seconds=None):
            items = (await self._open()).query_items(
                query="SELECT * FROM c WHERE c.kind = @kind", parameters=[{"name": "@kind", "value": kind}]
            )
            async for item in items:
                yield _entry(self.name, item)

    async def check(self) -> str:
        """Look at the account and make the database and container if they are missing and the credential may."""
        from azure.cosmos import PartitionKey

        account = await self._account()
        regions = [place["name"] for place in account.WritableLocations]
        if len(regions) > 1:
            raise JournalError(
                f"{self._url} accepts writes in {len(regions)} regions ({', '.join(regions)}): two consumers could win "
                "the same swap.",
                hint="Use an account with a single write region; reads may be in several.",
            )
        level = str((account.ConsistencyPolicy or {}).get("defaultConsistencyLevel", "unknown"))
        if level not in _ENOUGH:
            raise JournalError(
                f"{self._url} has {level} consistency; the journal needs Session or stronger.",
                hint="Set the account's default consistency to Strong, BoundedStaleness or Session.",
            )
        async with self._answering(seconds=3 * CALL_SECONDS):
            await self._open()
            database = await self._client.create_database_if_not_exists(self._database)
            await database.create_container_if_not_exists(
                self._container, partition_key=PartitionKey(PARTITION_PATH), default_ttl=ITEM_TTL_ONLY
            )
        return f"Cosmos DB, {level} consistency, writes in {regions[0] if regions else 'one region'}, {self.name}."

    async def _account(self) -> Any:
        """The account's properties: only the synchronous client tells them without a private call."""

        def ask() -> Any:
            from azure.cosmos import CosmosClient

            credential = self._key if self._key is not None else _entra(asynchronous=False)
            options: dict[str, Any] = {"connection_timeout": CALL_SECONDS, "enable_endpoint_discovery": False}
            with CosmosClient(self._url, credential, **options) as client:
                return client.get_database_account()

        async with self._answering(seconds=3 * CALL_SECONDS):
            return await asyncio.to_thread(ask)

    async def close(self) -> None:
        client, self._client, self._items = self._client, None, None
        if client is not None:
            await client.close()
        credential, self._credential = self._credential, None
        if credential is not None:
            await credential.close()

    async def _open(self) -> Any:
        if self._items is None:
            from azure.cosmos.aio import CosmosClient

            if self._key is None and self._credential is None:
                self._credential = _entra(asynchronous=True)
            if self._client is None:
                self._client = CosmosClient(
                    self._url,
                    self._key if self._key is not None else self._credential,
                    connection_timeout=CALL_SECONDS,
                    # A stand-in on this host says of itself that it is elsewhere.
                    enable_endpoint_discovery=not self._url.startswith("http:"),
                )
            self._items = self._client.get_database_client(self._database).get_container_client(self._container)
        return self._items

    def _answering(self, *, seconds: float | None = CALL_SECONDS) -> "_Answering":
        return _Answering(self.name, seconds)


class _Answering:
    """Around one call: an answer in time, and the SDK's errors as ours."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self._name = name
        self._time = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._time.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            await self._time.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            raise JournalUnavailableError(f"The journal {self._name} did not answer in time.") from late
        if isinstance(error, Exception) and not isinstance(error, JournalError):
            raise _translated(self._name, error) from error


def _translated(name: str, error: Exception) -> Exception:
    from azure.core.exceptions import AzureError
    from azure.cosmos.exceptions import CosmosHttpResponseError

    if isinstance(error, CosmosHttpResponseError):
        status = error.status_code
        text = " ".join(str(error.message).split())[:300]
        if status in (409, 412):
            return JournalConflictError(f"The journal {name} was changed by somebody else.")
        if not status or status in _AGAIN:  # the SDK makes 0 of an error without an answer
            return JournalUnavailableError(f"The journal {name} does not answer: {status} {text}")
        hint = "Make database and container with: sbpair replicate provision" if status == 404 else None
        return JournalError(f"The journal {name} refused: {status} {text}", hint=hint)
    if isinstance(error, (AzureError, OSError, TimeoutError)):
        return JournalUnavailableError(f"The journal {name} cannot be reached: {error}")
    return error


def _entra(*, asynchronous: bool) -> Any:
    if asynchronous:
        from azure.identity.aio import DefaultAzureCredential as Asynchronous

        return Asynchronous()
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _substatus(error: Any) -> int:
    return int(getattr(error, "sub_status", None) or 0)


def _id(kind: str, key: str) -> str:
    """An item id may not contain some characters; those, and the tilde that stands for them, are written in hex."""
    return f"{kind}:" + "".join(f"~{ord(one):02x}" if one in _UNSAFE_IN_IDS else one for one in key)


def _item(kind: str, key: str, document: Mapping[str, Any], ttl_seconds: float) -> dict[str, Any]:
    return {
        "id": _id(kind, key),
        "pk": key,
        "kind": kind,
        "document": dict(document),
        "ttl": max(1, round(ttl_seconds)),
    }


def _entry(journal: str, item: Mapping[str, Any]) -> Entry:
    return checked_entry(journal, *(item.get(name) for name in ("kind", "pk", "document", "_etag")))
