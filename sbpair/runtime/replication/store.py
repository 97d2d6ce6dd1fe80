"""The journal in terms of sessions and messages of one destination: entries read and swapped, records kept.

Keys name what is consumed, so one journal serves any number of queues and subscriptions:

    replicated-destination   DESTINATION                      which namespaces it lies in
    replicated-session       DESTINATION/SESSION              the entry that decides (`core.replication.ownership`)
    replicated-message       DESTINATION/SESSION/MESSAGE      the record of a finished message
    replicated-sender        ENTITY/SESSION                   what senders go on from (`core.replication.ordering`)

SESSION is the session's `service.session_key`: the two namespaces may show a session in different spellings. Journals
of earlier builds have it as it was spelled. What they hold is found under that spelling and goes on under the key, so
consumers of such a build are stopped before the first of a later one starts.
"""

from collections.abc import Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from sbpair.core.errors import JournalConflictError, JournalError, UsageError
from sbpair.core.replication import ownership
from sbpair.core.replication.ownership import Finished, MessageRecord, SessionEntry, Terms
from sbpair.ports import Entry, Journal
from sbpair.service import session_key

DESTINATION = "replicated-destination"
SESSION = "replicated-session"
MESSAGE = "replicated-message"
SENDER = "replicated-sender"
FIRST_EDITION = "session"
"""Kind of the entries of journals that knew sessions by their id alone."""
_WITHOUT_CASE = "without case"
"""Of a destination whose sessions have never been known by their spellings."""
_SWAPS = 20


def key_of(*parts: str) -> str:
    """One key of several parts; no two lists of parts give the same."""
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def destination_of(path: str) -> str:
    """What is consumed, as it stands in keys: the service does not tell upper from lower case in paths."""
    return path.strip("/").lower()


async def entries_in(journal: Journal, destination: str | None = None) -> list[SessionEntry]:
    """The sessions of a destination, or of all, each once.

    Raises:
        JournalError: it cannot be read.
    """
    found: dict[str, SessionEntry] = {}
    async with aclosing(journal.scan(SESSION)) as entries:  # type: ignore[type-var]
        async for raw in entries:
            entry = _session(journal, raw)
            if destination is not None and entry.destination != destination_of(destination):
                continue
            # A journal from before sessions were compared without case may have the entry of then beside it.
            key = key_of(entry.destination, session_key(entry.session_id))
            if raw.key == key:
                found[key] = entry
            else:
                found.setdefault(key, entry)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class KnownSession:
    """A session's entry as it was read. `raw` is None while there is none."""

    entry: SessionEntry
    raw: Entry | None


class SessionStore:
    """Entries and records of one destination. Every method raises JournalError for what cannot be read."""

    def __init__(self, journal: Journal, destination: str, terms: Terms) -> None:
        """`destination`: path of a queue or `topic/Subscriptions/name`."""
        self.destination = destination_of(destination)
        self._journal = journal
        self._terms = terms
        self._has_spelled_keys = True

    async def open(self, hosts: Iterable[str]) -> None:
        """Make sure that this journal may be used for this destination in these namespaces.

        Raises:
            JournalError: it is of the first edition, or knows the destination in other namespaces.
        """
        async with aclosing(self._journal.scan(FIRST_EDITION)) as old:  # type: ignore[type-var]
            async for _ in old:
                raise JournalError(
                    f"{self._journal.name} was written by an older sbpair and identifies sessions by their id alone, "
                    "not by queue.",
                    hint="Let the older version process what waits, then go on with a new journal.",
                )
        namespaces = sorted({_host_name(host) for host in hosts})
        raw = await self._journal.read(DESTINATION, self.destination)
        if raw is None:
            try:
                document = {"destination": self.destination, "namespaces": namespaces, "sessions": _WITHOUT_CASE}
                await self._journal.create(
                    DESTINATION, self.destination, document, ttl_seconds=self._terms.retention_seconds
                )
                self._has_spelled_keys = False
                return
            except JournalConflictError:
                raw = await self._journal.read(DESTINATION, self.destination)
        known = None if raw is None else raw.document.get("namespaces")
        if known != namespaces:
            told = " and ".join(str(one) for one in known) if isinstance(known, list) else "other namespaces"
            raise JournalError(
                f"{self._journal.name} belongs to {self.destination} in {told}, not in {' and '.join(namespaces)}: "
                "messages with the same ids would be taken for each other's copies.",
                hint="Use a journal of its own for each pair of namespaces.",
            )
        if raw is not None:
            self._has_spelled_keys = raw.document.get("sessions") != _WITHOUT_CASE
            await self._renew(raw)

    async def _renew(self, raw: Entry) -> None:
        try:
            await self._journal.replace(raw, raw.document, ttl_seconds=self._terms.retention_seconds)
        except JournalConflictError:
            return  # another consumer has just done it

    async def read(self, session_id: str) -> KnownSession:
        raw = await self._journal.read(SESSION, key_of(self.destination, session_key(session_id)))
        found = raw if raw is not None else await self._spelled(SESSION, session_id)
        if found is None:
            return KnownSession(SessionEntry(self.destination, session_id), None)
        # One of an earlier build stays as it is; the next version of the entry is made under the key.
        return KnownSession(_session(self._journal, found), raw)

    async def swap(self, known: KnownSession, entry: SessionEntry) -> KnownSession:
        """Raises JournalConflictError if somebody wrote since `known` was read."""
        seconds = ownership.forget_after_seconds(entry, self._terms)
        if known.raw is None:
            key = key_of(self.destination, session_key(entry.session_id))
            raw = await self._journal.create(SESSION, key, entry.to_dict(), ttl_seconds=seconds)
        else:
            raw = await self._journal.replace(known.raw, entry.to_dict(), ttl_seconds=seconds)
        return KnownSession(entry, raw)

    # Records of finished messages

    async def finished(self, session_id: str, message_id: str) -> Finished | None:
        """What the record says of a message; None if there is none. To be asked after the entry was read."""
        raw = await self._message(session_id, message_id)
        return None if raw is None else self._record(raw).finished

    async def settled(self, session_id: str, message_id: str) -> tuple[str, ...]:
        """The sides on which the copy of a finished message is settled, as its record says."""
        raw = await self._message(session_id, message_id)
        return () if raw is None else self._record(raw).settled

    async def record(
        self, session_id: str, finished: Finished, settled: Collection[str] = (), *, is_new: bool = False
    ) -> None:
        """Write what became of a message, and of which sides the copy is settled for certain.

        `is_new`: there was no record a moment ago, so none is read before the first attempt.
        """
        key = key_of(self.destination, session_key(session_id), finished.message_id)
        for attempt in range(_SWAPS):
            try:
                raw = None if is_new and not attempt else await self._journal.read(MESSAGE, key)
                if raw is None:
                    record = MessageRecord(self.destination, session_id, finished).also_settled(settled)
                    seconds = record.forget_after_seconds(self._terms)
                    await self._journal.create(MESSAGE, key, record.to_dict(), ttl_seconds=seconds)
                    return
                known = self._record(raw)
                record = known.also_settled(settled)
                if record != known:
                    seconds = record.forget_after_seconds(self._terms)
                    await self._journal.replace(raw, record.to_dict(), ttl_seconds=seconds)
                return
            except JournalConflictError:
                continue  # the other copy was settled at the same time
        raise JournalError(f"{self._journal.name}, message {finished.message_id!r}: its record changes all the time.")

    async def _message(self, session_id: str, message_id: str) -> Entry | None:
        raw = await self._journal.read(MESSAGE, key_of(self.destination, session_key(session_id), message_id))
        return raw if raw is not None else await self._spelled(MESSAGE, session_id, message_id)

    async def _spelled(self, kind: str, session_id: str, *rest: str) -> Entry | None:
        """What an earlier build has left under the session's spelling, if there is anything."""
        if not self._has_spelled_keys or session_id == session_key(session_id):
            return None
        return await self._journal.read(kind, key_of(self.destination, session_id, *rest))

    def _record(self, raw: Entry) -> MessageRecord:
        try:
            return MessageRecord.from_dict(raw.document)
        except UsageError as error:
            raise JournalError(f"{self._journal.name}, message record {raw.key!r}: {error.message}") from error


def _session(journal: Journal, raw: Entry) -> SessionEntry:
    try:
        return SessionEntry.from_dict(raw.document)
    except UsageError as error:
        raise JournalError(f"{journal.name}, session {raw.key!r}: {error.message}") from error


def _host_name(host: str) -> str:
    """Without the port, which says nothing of which namespace it is."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
