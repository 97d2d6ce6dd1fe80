"""Backlog queues as they are named on the command line."""

from sbpair.core.errors import UsageError
from sbpair.core.names import backlog_queue_path, parse_backlog_queue_path
from sbpair.core.pairing import Pair


def backlog_path(pair: Pair, text: str) -> str:
    """Path of a backlog queue given by its index, or by the path as findings show it.

    Raises:
        UsageError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return backlog_queue_path(pair.primary.label, int(text))
    name = parse_backlog_queue_path(text)
    if name is None:
        raise UsageError(f"--queue {text!r} is neither the index nor the path of a backlog queue.")
    return name.path
