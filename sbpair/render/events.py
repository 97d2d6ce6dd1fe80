"""Events of the runtime as one line each for a person; None for those not worth a line."""

from collections.abc import Sequence

from sbpair.core import events
from sbpair.core.durations import format_duration


def describe(event: events.Event) -> str | None:
    """What happened, in words. Single diverted and forwarded batches are left to the progress display."""
    match event:
        case events.FailedOver(entity=entity, cause=cause, forced=forced):
            return f"FAILED OVER {entity}: {'on request' if forced else cause}. Sends go to the backlog."
        case events.FailedBack(entity=entity, seconds_away=seconds, diverted_messages=count):
            return f"FAILED BACK {entity} after {format_duration(seconds)}: {count} message(s) went to the backlog."
        case events.EntityInvalid(entity=entity, error_code=code):
            return f"{entity} itself is wrong ({code}): sends raise until a ping succeeds."
        case events.BacklogQueueLeft(queue=queue, error_code=code, retry_after_seconds=seconds):
            return f"Backlog queue {queue} left the rotation ({code}); next try in {format_duration(seconds)}."
        case events.BacklogQueueReturned(queue=queue):
            return f"Backlog queue {queue} is back in the rotation."
        case events.DeadLettered(queue=queue, sequence_number=number, reason=reason, description=description):
            return f"Dead-lettered message {number} of {queue}: {reason}. {description}"
        case events.ReceiveFailed():
            return describe_together([event])
        case events.Restarting(error_code=code, message=message, seconds=seconds):
            return f"Broke down ({code}: {message}); starting again in {format_duration(seconds)}."
        case events.Paused(entity=entity, error_code=code, seconds=seconds):
            return f"Holding back {entity or 'everything'} for {format_duration(seconds)} ({code})."
        case events.Resumed(entity=entity):
            return f"Going on with {entity or 'everything'}."
        case events.MessageHandled(side=side, session_id=session, message_id=message, result=result, detail=detail):
            quiet = result in ("completed", "duplicate")
            return None if quiet else f"Message {message} of session {session} ({side}): {result}. {detail}".rstrip()
        case events.StepDone(item=item, result=result, detail=detail):
            return f"{item}: {result}{f' ({detail})' if detail else ''}"
        case _:
            return None


def describe_together(failures: Sequence[events.ReceiveFailed]) -> str:
    """Failed receives of the same cause as one line; the first one's words stand for all."""
    first = failures[0]
    others = len({failure.queue for failure in failures}) - 1
    what = first.queue + (f" and {others} more" if others else "")
    why = f"{first.error_code}: {first.message}" if first.message else first.error_code
    waits = [one.retry_after_seconds for one in failures if one.retry_after_seconds is not None]
    after = f"next try in {format_duration(max(waits))}." if waits else "given up."
    return f"Cannot read {what} ({why}); {after}"
