"""What a dead-letter reason of a backlog queue means, and what helps.

Known are sbpair's own reasons, the service's, and the texts that the retired paired-namespaces library wrote
(WindowsAzure.ServiceBus).
"""

_RETIRED = "The retired library's syphon put it there: "
_BY_REASON = {
    "Destination queue not indicated in message when fetched from backlog.": _RETIRED
    + "it has no destination (`x-ms-path`), so some other program put it into the backlog queue. No drain can know "
    "where it belongs; keep it with: sbpair drain {pair} --dlq --archive DIR",
    "The message cannot be delivered to the destination.": _RETIRED
    + "the destination refused it, most often because it did not exist. Create the destination, then: "
    "sbpair drain {pair} --dlq",
    "Invalid type in property.": _RETIRED
    + "one of its `x-ms-` properties has a type that the library does not write (the description names it). Keep it "
    "with: sbpair drain {pair} --dlq --archive DIR",
    "TTLExpiredException": "The service put it there: its time to live was over before anybody received it. To deliver "
    "it all the same: sbpair drain {pair} --dlq",
    "MaxDeliveryCountExceeded": "The service put it there: it was received and not settled too often. To try again: "
    "sbpair drain {pair} --dlq",
    "EntityNotFound": "Its destination did not exist. Create the destination, then: sbpair drain {pair} --dlq",
    "MessageTooLarge": "It is larger than its destination takes. Keep it with: sbpair drain {pair} --dlq --archive DIR",
    "ArgumentRefused": "Its destination refuses it as it is, for example without a session id where sessions are "
    "required (see the description). Keep it with: sbpair drain {pair} --dlq --archive DIR",
    "NotABacklogMessage": "It has no destination (`x-ms-path`): another program put it into the backlog queue. Keep it "
    "with: sbpair drain {pair} --dlq --archive DIR",
    "InvalidDestination": "Its destination is not the path of a queue or topic and is never opened. Keep it with: "
    "sbpair drain {pair} --dlq --archive DIR",
}
_MISSING = "MessagingEntityNotFoundException"


def meaning_of(reason: str | None, description: str | None) -> str | None:
    """A sentence with the command that helps (`{pair}`: the pair's name); None for a reason not known here."""
    text = _BY_REASON.get(reason or "")
    if text is not None and text.startswith(_RETIRED) and _MISSING in (description or ""):
        return _RETIRED + "its destination did not exist. Create the destination, then: sbpair drain {pair} --dlq"
    return text
