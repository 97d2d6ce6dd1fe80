"""Scenarios of python-qpid-proton against a namespace. Prints one JSON line each."""

import json
import os
from collections.abc import Callable

from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container
from where import address, connected, credentials


def send(queue: str, *bodies: str) -> None:
    connection = connected()
    sender = connection.create_sender(queue)
    for body in bodies:
        sender.send(Message(body=body))
    connection.close()


def settle() -> None:
    send("orders", "accept", "release")
    connection = connected()
    receiver = connection.create_receiver("orders", credit=1)
    assert receiver.receive().body == "accept"
    receiver.accept()
    assert receiver.receive().body == "release"
    receiver.release(delivered=False)
    again = receiver.receive()
    assert (again.body, again.delivery_count) == ("release", 0), again
    receiver.accept()
    send("orders", "reject")
    assert receiver.receive().body == "reject"
    receiver.reject()
    connection.close()


def dead_letters() -> None:
    connection = connected()
    receiver = connection.create_receiver("orders/$DeadLetterQueue", credit=1)
    assert receiver.receive().body == "reject"
    receiver.accept()
    connection.close()


def topic() -> None:
    send("events", "t")
    connection = connected()
    receiver = connection.create_receiver("events/Subscriptions/all", credit=1)
    assert receiver.receive().body == "t"
    receiver.accept()
    connection.close()


class Transacting(MessagingHandler, TransactionHandler):
    """Sends a message in a transaction that it takes back, and one in another that it commits."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    def on_start(self, event) -> None:
        self.connection = event.container.connect(address(), allowed_mechs="PLAIN", reconnect=False, **credentials())
        self.sender = event.container.create_sender(self.connection, "orders")
        event.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event) -> None:
        event.transaction.send(self.sender, Message(body="committed" if self.ended else "taken back"))
        if self.ended:
            event.transaction.commit()
        else:
            event.transaction.abort()

    def on_transaction_aborted(self, event) -> None:
        self.ended.append("aborted")
        event.container.declare_transaction(self.connection, handler=self)

    def on_transaction_committed(self, event) -> None:
        self.ended.append("committed")
        self.connection.close()


def transactions() -> None:
    handler = Transacting()
    Container(handler).run()
    assert handler.ended == ["aborted", "committed"], handler.ended
    connection = connected()
    receiver = connection.create_receiver("orders", credit=1)
    assert receiver.receive().body == "committed"
    receiver.accept()
    connection.close()


SCENARIOS: dict[str, Callable[[], None]] = {
    "send, receive and settle": settle,
    "dead letters": dead_letters,
    "topic": topic,
    "transactions": transactions,
}


def main() -> None:
    assert os.environ["CONNECTION"]
    for name, scenario in SCENARIOS.items():
        error = None
        try:
            scenario()
        except Exception as failure:  # noqa: BLE001 - whatever goes wrong is the finding
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps({"scenario": name, "error": error}), flush=True)


main()
