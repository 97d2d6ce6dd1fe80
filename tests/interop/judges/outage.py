"""A client sends through a gateway, and the primary goes dark in the middle."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sbpair.amqp.sections import Section, read, scan
from sbpair.emulator import Emulator, EmulatorThread
from tests.interop.judges.judging import (
    NAMESPACE,
    RUN_SECONDS,
    SECONDARY,
    Judge,
    Verdict,
    environment,
    folder_of,
    make_entities,
)
from tests.interop.through import BACKLOG_QUEUES, Gateways, gateway_before, pair_of

MESSAGES = 150
"""To each of four sessions."""
QUEUE = "sessions"


def through_an_outage(judge: Judge, cache: Path) -> Verdict:
    """Four senders of a client, one for each session; the primary goes dark after a third of their messages.

    What was accepted then lies at the primary or in the backlog, and comes home by `sbpair drain` in order.
    """
    if judge.missing is not None:
        return Verdict(judge, {}, not_asked=judge.missing)
    folder = folder_of(judge, cache)
    command = [*judge.prepare(judge, folder).stream, str(MESSAGES)]
    with EmulatorThread([NAMESPACE, SECONDARY]) as running, tempfile.TemporaryDirectory() as scratch:
        running.call(make_entities)
        gateways, pair = Gateways(running.ca_path), pair_of(running, NAMESPACE, SECONDARY, interval_seconds=0.0)
        with gateway_before(running, pair, gateways):
            accepted = _stream(command, folder, running, gateways)
        at_primary = running.call(lambda emulator: _names(emulator, NAMESPACE, [QUEUE]))
        in_backlog = running.call(lambda emulator: _names(emulator, SECONDARY, pair.backlog_paths()))
        running.start(NAMESPACE)
        said = _drain(running, Path(scratch))
        home = running.call(lambda emulator: _names(emulator, NAMESPACE, [QUEUE]))
        left = running.call(lambda emulator: _names(emulator, SECONDARY, pair.backlog_paths()))
    lost = sorted(set(accepted) - {*at_primary, *in_backlog})
    missing = sorted(set(accepted) - set(home))
    doubled = sum(count - 1 for count in Counter(home).values())
    found = {
        f"{len(set(at_primary))} before and {len(set(in_backlog))} during the outage accepted": None
        if len(accepted) == 4 * MESSAGES and at_primary and in_backlog
        else f"{len(accepted)} of {4 * MESSAGES} accepted",
        "each is at the primary or in the backlog": f"lost: {lost[:5]}" if lost else None,
        "drain brings each home": f"missing: {missing[:5]}, left: {left[:5]}; {said}" if missing or left else None,
        f"sessions in order, {doubled} sent twice": _disorder(home),
    }
    return Verdict(judge, found)


def _stream(command: Sequence[str], folder: Path, running: EmulatorThread, gateways: Gateways) -> list[str]:
    """What the client was told to be accepted."""
    accepted: list[str] = []
    errors = folder / "stream.errors"
    with errors.open("w") as stderr:
        environ = environment(command, folder, gateways)
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                accepted.append(json.loads(line)["accepted"])
                if len(accepted) == 4 * MESSAGES // 3:
                    running.stop(NAMESPACE)
            process.wait(RUN_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return accepted


def _names(emulator: Emulator, namespace: str, queues: Sequence[str]) -> list[str]:
    """The message ids in these queues, in their order."""
    found = []
    for path in queues:
        queue = emulator.namespace(namespace).get_queue(path)
        assert queue is not None
        for message in queue.main.log:
            properties = read(message.payload, scan(message.payload), Section.PROPERTIES)
            found.append(str(properties[0]))
    return found


def _drain(running: EmulatorThread, scratch: Path) -> str:
    """By the command; what it said."""
    file = scratch / "sbpair.yaml"
    sides = "".join(
        f"    {side}: {{namespace: {name}, connection_string: {{env: {side.upper()}}}, host: 127.0.0.1}}\n"
        for side, name in (("primary", NAMESPACE), ("secondary", SECONDARY))
    )
    file.write_text(
        f"version: 1\nauth: connection-string\npairs:\n  {NAMESPACE}:\n{sides}    backlog_queues: {BACKLOG_QUEUES}\n"
    )
    texts = {"PRIMARY": running.connection_string(NAMESPACE), "SECONDARY": running.connection_string(SECONDARY)}
    environ = {**os.environ, **texts, "SBPAIR_CONFIG": str(file), "XDG_STATE_HOME": str(scratch / "state")}
    command = [sys.executable, "-m", "sbpair", "drain", NAMESPACE, "--yes"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RUN_SECONDS)
    return f"drain ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}"


def _disorder(names: Sequence[str]) -> str | None:
    """The first message that came home before an earlier one of its session; a copy of an earlier one is none."""
    seen: dict[str, int] = {}
    for name in names:
        session, _, number = name.partition("-")
        if int(number) > seen.get(session, -1) + 1:
            return f"{name} came after {session}-{seen.get(session)}"
        seen[session] = max(seen.get(session, -1), int(number))
    return None
