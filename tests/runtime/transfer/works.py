"""What a process of a drain does in the tests: it gets there pickled, so it lies in a module that imports little."""

import asyncio
import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass

from sbpair.core.errors import ServerBusyError
from sbpair.core.events import BacklogCounted
from sbpair.core.transfer.report import DrainReport, QueueFailure
from sbpair.ports import Observer
from sbpair.runtime.inspection.usage import Usage
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.processes import Share

STOPPED = 99
EXIT_CODE = 3


@dataclass(frozen=True)
class ByName:
    """Does with each queue of its share what is in its name, and tells of each with the number of its queues."""

    async def __call__(
        self, share: Share, observer: Observer, ledger: Recorder | None, stop: asyncio.Event
    ) -> tuple[DrainReport, Usage]:
        queues, failures = share.request.queues, []
        for queue in queues:
            observer.notify(BacklogCounted(0.0, queue, len(queues)))
            if "writes" in queue:
                assert ledger is not None
                await ledger.append([" ".join([*queues, *_sheltered()]).encode()])
            if "fails" in queue:
                raise ServerBusyError("busy")
            if "gone" in queue:
                os._exit(EXIT_CODE)
            if "waits" in queue:
                await stop.wait()
                observer.notify(BacklogCounted(0.0, queue, STOPPED))
                failures.append(QueueFailure(queue, ServerBusyError("stopped")))
        return DrainReport(forwarded=0 if failures else len(queues), failures=tuple(failures)), Usage(1, 2, 3, 4)


def _sheltered() -> list[str]:
    """What keeps this process from what is for the one that began it alone."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = [one.name for one in signals if signal.getsignal(one) is signal.SIG_IGN]
    blocked = [one.name for one in signals if one in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
    assert [one.daemon for one in threading.enumerate() if one.name.endswith("(read)")] == [True], "it could not end"
    return [*ignored, *blocked, *(["daemon"] if multiprocessing.current_process().daemon else [])]
