"""The typed corpus on its way from every language to every other, and what differs."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpair.azure.messaging import AzureMessaging
from sbpair.emulator import Emulator, EmulatorThread
from tests.contract.conftest import access_to
from tests.interop.judges.corpus import canonical, corpus, encoded
from tests.interop.judges.judging import NAMESPACE, Judge, Programs, Verdict, run

OURS = "sbpair"
_WAIT_SECONDS = 20.0
_SHOWN = 5


@dataclass(frozen=True)
class Speaker:
    """A client that takes part: its name, its commands and where they run."""

    name: str
    programs: Programs
    folder: Path


@dataclass
class Passage:
    """What became of the corpus. `cannot`: reasons by speaker and message; `differing`: ids by sender and reader.

    The pair of a sender with itself stands for what lies in the namespace after its sending.
    """

    cannot: dict[str, dict[str, str]] = field(default_factory=dict)
    stored: dict[str, list[str]] = field(default_factory=dict)
    differing: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def verdict(self, verdict: Verdict) -> Verdict:
        """A judge's verdict with what the corpus says about its client."""
        name, total = verdict.judge.name, len(corpus())
        if name not in self.stored:
            return verdict
        missing = self.cannot[name]
        found = {f"{total - len(missing)} typed messages sent": _told(self.stored[name])}
        found |= {
            f"typed messages of {sender} read": _told(ids)
            for (sender, reader), ids in self.differing.items()
            if reader == name
        }
        reasons = ", ".join(sorted(set(missing.values())))
        return verdict.with_more(found, (f"{len(missing)} of {total} typed messages: {reasons}",) if missing else ())


def _told(ids: Sequence[str]) -> str | None:
    return f"{len(ids)} differ or are missing: {', '.join(ids[:_SHOWN])}" if ids else None


def passage(speakers: Sequence[Speaker], scratch: Path) -> Passage:
    """Send the corpus with each speaker and with our own stack, and read what each has sent with each."""
    messages, found = corpus(), Passage()
    wanted = dict(canonical(encoded(one)) for one in messages)
    path = scratch / "corpus.json"
    path.write_text(json.dumps(messages), encoding="utf-8")
    with EmulatorThread([NAMESPACE]) as running:
        sent = {OURS: _sent_by_us(running, messages)}
        found.cannot[OURS] = {}
        for one in speakers:
            running.call(lambda emulator: emulator.namespace(NAMESPACE).create_queue("out"))
            lines = run([*one.programs.corpus, "send", "out", str(path)], one.folder, running)
            found.cannot[one.name] = {line["id"]: line["cannot"] for line in lines}
            sent[one.name] = running.call(_taken)
        for name, payloads in sent.items():
            stored = dict(map(canonical, payloads))
            expected = {key: parts for key, parts in wanted.items() if key not in found.cannot[name]}
            found.stored[name] = _differences(expected, stored)
        for reader in speakers:
            _read(reader, sent, found, running)
        for name, payloads in sent.items():
            received = dict(map(canonical, _read_by_us(running, payloads)))
            found.differing[name, OURS] = _differences(dict(map(canonical, payloads)), received)
    return found


def _read(reader: Speaker, sent: Mapping[str, list[bytes]], found: Passage, running: EmulatorThread) -> None:
    """Let a client read what everybody has sent; it has to see the same as in our own messages."""
    queues = {f"{index}": name for index, name in enumerate(sent)}
    unread = found.cannot[reader.name].keys()

    def fill(emulator: Emulator) -> None:
        namespace = emulator.namespace(NAMESPACE)
        for path, name in queues.items():
            queue = namespace.create_queue(path)
            for payload in sent[name]:
                if canonical(payload)[0] not in unread:
                    queue.send(payload)

    running.call(fill)
    counts = {path: sum(canonical(one)[0] not in unread for one in sent[name]) for path, name in queues.items()}
    views: dict[str, dict[str, Any]] = {}
    for path, name in queues.items():
        lines = run([*reader.programs.corpus, "read", str(counts[path]), path], reader.folder, running)
        views[name] = {line["id"]: line["view"] for line in lines}
    running.call(lambda emulator: [emulator.namespace(NAMESPACE).delete_queue(path) for path in queues])
    for name in sent:
        # Of our own messages: that every one is shown, and no two that differ in value look the same by accident.
        left_out = {**found.cannot[name], **found.cannot[reader.name]}
        expected = {key: view for key, view in views[OURS].items() if key not in left_out}
        missing = [key for key in sorted(one["id"] for one in corpus()) if key not in left_out and key not in expected]
        found.differing[name, reader.name] = missing + _differences(expected, views[name])


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The ids that are on one side alone, or not the same."""
    either = sorted(expected.keys() | found.keys())
    return [key for key in either if key not in found or key not in expected or found[key] != expected[key]]


def _taken(emulator: Emulator) -> list[bytes]:
    """The payloads in the queue `out`, which goes."""
    queue = emulator.namespace(NAMESPACE).get_queue("out")
    assert queue is not None
    payloads = [message.payload for message in queue.main.log]
    emulator.namespace(NAMESPACE).delete_queue("out")
    return payloads


def _sent_by_us(running: EmulatorThread, messages: Sequence[dict[str, Any]]) -> list[bytes]:
    async def work() -> None:
        messaging = AzureMessaging(access_to(running, NAMESPACE))
        for one in messages:
            await messaging.sender("out").send([encoded(one)], timeout_seconds=_WAIT_SECONDS)
        await messaging.close()

    running.call(lambda emulator: emulator.namespace(NAMESPACE).create_queue("out"))
    asyncio.run(work())
    return running.call(_taken)


def _read_by_us(running: EmulatorThread, payloads: Sequence[bytes]) -> list[bytes]:
    async def work() -> list[bytes]:
        messaging = AzureMessaging(access_to(running, NAMESPACE))
        received: list[bytes] = []
        receiver = messaging.receiver("ours")
        while len(received) < len(payloads):
            more = await receiver.receive(len(payloads) - len(received), wait_seconds=_WAIT_SECONDS)
            if not more:
                break
            received += [one.payload for one in more]
        await messaging.close()
        return received

    def fill(emulator: Emulator) -> None:
        queue = emulator.namespace(NAMESPACE).create_queue("ours")
        for payload in payloads:
            queue.send(payload)

    running.call(fill)
    received = asyncio.run(work())
    running.call(lambda emulator: emulator.namespace(NAMESPACE).delete_queue("ours"))
    return received


def speaker(judge: Judge, folder: Path) -> Speaker:
    """A judge, installed."""
    return Speaker(judge.name, judge.prepare(judge, folder), folder)
