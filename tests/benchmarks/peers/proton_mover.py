"""Moves a backlog with qpid-proton: an order as JSON on stdin, what it cost as JSON on stdout. Imports nothing of ours:
the Python that has `proton` may have nothing else."""

import json
import sys
import time
from collections import deque

from proton import Message, SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container

OURS = ("x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc")


class Mover(MessagingHandler):
    def __init__(self, order):
        super().__init__(prefetch=0, auto_accept=False, auto_settle=True)
        self.order = order
        self.left = order["messages"]
        self.waiting = deque()
        self.sent = {}
        self.tokens = {}
        self.receivers = {}
        self.sender = None
        self.wrong = None

    def on_start(self, event):
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(self.order["ca_file"])
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        for name in ("primary", "secondary"):
            side = self.order[name]
            connection = event.container.connect(
                f"amqps://{side['host']}:{side['port']}",
                ssl_domain=domain,
                allowed_mechs="ANONYMOUS",
                reconnect=False,
                virtual_host=side["host"],
            )
            answers = event.container.create_receiver(connection, "$cbs", name=f"cbs-answers-{name}")
            answers.flow(50)
            asks = event.container.create_sender(connection, "$cbs", name=f"cbs-{name}")
            self.tokens[asks.name] = (connection, name, deque(side["tokens"].items()))
            self.tokens[answers.name] = asks

    def put_token(self, asks):
        connection, name, tokens = self.tokens[asks.name]
        if not tokens:
            self.authorized(connection, name)
            return
        path, token = tokens.popleft()
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": f"amqps://{self.order[name]['host']}/{path}",
        }
        asks.send(Message(id=path, reply_to="answers", properties=properties, body=token))

    def authorized(self, connection, name):
        container = self.container
        if name == "primary":
            self.sender = container.create_sender(connection, self.order["destination"])
            return
        for path in self.order["queues"]:
            receiver = container.create_receiver(connection, path)
            receiver.flow(self.order["window"])
            self.receivers[receiver.name] = self.order["window"]

    def on_sendable(self, event):
        if event.link.name in self.tokens:
            _, name, tokens = self.tokens[event.link.name]
            if len(tokens) == len(self.order[name]["tokens"]):
                self.put_token(event.link)
            return
        self.send()

    def on_message(self, event):
        if event.link.name in self.tokens:
            status = event.message.properties["status-code"]
            if not 200 <= status <= 299:
                self.fail(event, f"the token was refused with {status}")
                return
            self.accept(event.delivery)
            self.put_token(self.tokens[event.link.name])
            return
        self.waiting.append((event.message, event.delivery))
        left = self.receivers[event.link.name] - 1
        if left <= self.order["window"] // 2:
            event.link.flow(self.order["window"] - left)
            left = self.order["window"]
        self.receivers[event.link.name] = left
        self.send()

    def send(self):
        while self.waiting and self.sender is not None and self.sender.credit:
            message, delivery = self.waiting.popleft()
            for name in OURS:
                message.properties.pop(name, None)
            moved = Message(
                id=message.id,
                subject=message.subject,
                content_type=message.content_type,
                correlation_id=message.correlation_id,
                properties=message.properties,
                body=message.body,
            )
            moved.inferred = True
            self.sent[self.sender.send(moved).tag] = delivery

    def on_accepted(self, event):
        if event.link.name in self.tokens:
            return
        self.accept(self.sent.pop(event.delivery.tag))
        self.left -= 1
        if self.left == 0:
            self.close(event.container)

    def on_rejected(self, event):
        self.fail(event, "a message was rejected")

    def on_transport_error(self, event):
        self.fail(event, str(event.transport.condition))

    def on_link_error(self, event):
        self.fail(event, str(event.link.remote_condition))

    def fail(self, event, wrong):
        self.wrong = self.wrong or wrong
        event.container.stop()

    def close(self, container):
        for connection in {entry[0] for entry in self.tokens.values() if isinstance(entry, tuple)}:
            connection.close()


def main():
    mover = Mover(json.load(sys.stdin))
    began = time.process_time()
    mover.container = Container(mover)
    mover.container.run()
    if mover.wrong or mover.left:
        sys.exit(f"{mover.wrong}; {mover.left} messages are left")
    print(json.dumps({"cpu_seconds": time.process_time() - began}))


if __name__ == "__main__":
    main()
