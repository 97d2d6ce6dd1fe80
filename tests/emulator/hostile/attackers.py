"""Clients that want others to wait, or the emulator to grow. Run as processes of their own, so that what they do costs
the measured client nothing but what it costs the emulator:

    python -m tests.emulator.hostile.attackers ATTACK HOST PORT KEY

It says "ready" when the attack begins, and attacks until its standard input ends.
"""

import asyncio
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import aiohttp

from sbpair.amqp.encoding import encode
from sbpair.amqp.performatives import (
    ATTACH,
    DECLARED,
    DISPOSITION,
    FLOW,
    SOURCE,
    TARGET,
    TRANSACTIONAL_STATE,
    TRANSFER,
    released,
)
from sbpair.amqp.sections import build
from sbpair.amqp.types import Described, Int, Long, Symbol, Ubyte, Uint, Ulong
from sbpair.emulator.broker.messages import BATCH_FORMAT
from sbpair.engine.auth import ROOT_KEY_NAME, make_sas_token
from tests.engine.wire_client import Client, modified

DELIVERIES = 20_000
RULES = 200
HANDSHAKES = 3_000


class Attacker:
    """Where the namespace is, and a key of it for those who have one."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self.host, self.port, self.key = host, port, key

    async def connect(self, *, token: bool = False) -> Client:
        """A connection with a session and perhaps a token for the namespace."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        client = Client(reader, writer)
        await client.session(window=2**31 - 1)
        if token:
            resource_uri = f"sb://{self.host}:{self.port}/"
            status, text = await client.put_token(resource_uri, ROOT_KEY_NAME, self.key, time.time() + 3600)
            assert status == 202, text
        return client

    # -- E5: many deliveries

    async def dispositions(self) -> None:
        """A few bytes about 20,000 unsettled deliveries, again and again: far ranges, and all of them at once."""
        client = await self._with_deliveries()
        far = client.dialect.written(DISPOSITION, [True, Uint(2**20), Uint(2**32 - 1), False, released()])
        print("ready", flush=True)
        reading = asyncio.create_task(discard(client))
        while not reading.done():
            for _ in range(300):
                client.send(DISPOSITION, far)
            client.settle(1, 2**31 - 2, modified(delivery_failed=False))
            await client.writer.drain()
            await asyncio.sleep(0)

    async def _with_deliveries(self) -> Client:
        client = await self.connect(token=True)
        await client.sender("theirs", 0)
        for number in range(DELIVERIES):
            client.transfer(number, build(data=b"x"), 0, settled=True)
            if number % 500 == 0:
                await client.writer.drain()
        await client.receiver("theirs", 1)
        client.send(FLOW, [Uint(1), Uint(2**31 - 1), Uint(0), Uint(2048), Uint(1), Uint(0), Uint(2 * DELIVERIES)])
        for _ in range(DELIVERIES):
            await client.until(TRANSFER)
        return client

    async def flows(self) -> None:
        """Flows that want an answer, on as many sessions as there may be."""
        client = await self.connect(token=True)
        for channel in range(1, 100):
            await client.begin(channel=channel)
        print("ready", flush=True)
        reading = asyncio.create_task(discard(client))
        fields = client.dialect.written(
            FLOW, [Uint(1), Uint(100), Uint(0), Uint(100), None, None, None, None, None, True]
        )
        while not reading.done():
            for channel in range(100):
                for _ in range(20):
                    client.send(FLOW, fields, channel=channel)
            await client.writer.drain()
            await asyncio.sleep(0)

    async def tiny_messages(self) -> None:
        """Batches of 20,000 messages of a byte each, for a topic whose subscription takes none of them."""
        client = await self.connect(token=True)
        address = "events/Subscriptions/all/$management"
        await client.sender(address, 2)
        await client.receiver(address, 3, credit=1)
        request = build(
            properties=["id", None, None, None, "reply-3"],
            application_properties={"operation": "com.microsoft:remove-rule"},
            value={"rule-name": "$Default"},
        )
        client.transfer(1, request, 2)
        await client.until(TRANSFER)
        await client.sender("events", 4)
        batch = build(data=[build(data=b"x")] * 20_000)
        parts = [batch[start : start + 60_000] for start in range(0, len(batch), 60_000)]
        print("ready", flush=True)
        reading = asyncio.create_task(discard(client))
        number = 10
        while not reading.done():
            number += 1
            for part in parts:
                fields = [Uint(4), Uint(number), b"t", Uint(BATCH_FORMAT), False, part is not parts[-1]]
                client.send(TRANSFER, fields, part)
            await client.writer.drain()
            await asyncio.sleep(0.1)

    # -- E6: rules

    async def rules(self) -> None:
        """200 rules that look through 50 KB each."""
        await self._filtered("p LIKE '%a%b%c{}d%'", b"a" * 50_000)

    async def wild_rules(self) -> None:
        """200 rules whose patterns have to be tried at every character."""
        await self._filtered("p LIKE '%a" + "_" * 400 + "b{}%'", b"a" * 50_000)

    async def _filtered(self, expression: str, text: bytes) -> None:
        client = await self.connect(token=True)
        await self._add_rules(client, lambda number: {"sql-filter": {"expression": expression.format(number)}})
        await client.sender("events", 4)
        message = build(application_properties={"p": text.decode()}, data=b"x")
        print("ready", flush=True)
        reading = asyncio.create_task(discard(client))
        number = 10_000
        while not reading.done():
            number += 1
            client.transfer(number, message, 4)
            await client.writer.drain()
            await asyncio.sleep(0.001)

    @staticmethod
    async def _add_rules(client: Client, described: Callable[[int], dict[str, Any]]) -> None:
        """200 rules of a subscription."""
        address = "events/Subscriptions/all/$management"
        await client.sender(address, 2)
        await client.receiver(address, 3, credit=RULES)
        for number in range(RULES):
            rule = {"rule-name": f"r{number}", "rule-description": described(number)}
            request = build(
                properties=[f"id{number}", None, None, None, "reply-3"],
                application_properties={"operation": "com.microsoft:add-rule"},
                value=rule,
            )
            client.transfer(number, request, 2)
            await client.until(TRANSFER)

    async def actions(self) -> None:
        """200 rules whose actions have 126 statements each, for messages with 50 KB of properties."""
        client = await self.connect(token=True)
        await self._add_rules(
            client, lambda _: {"true-filter": {}, "sql-rule-action": {"expression": "SET b=1;" * 126}}
        )
        await client.sender("events", 4)
        message = build(application_properties={"p": "a" * 50_000}, data=b"x")
        print("ready", flush=True)
        for number in range(10):
            client.transfer(number, message, 4)
            await client.until(DISPOSITION)
        await asyncio.Event().wait()

    # -- administration

    async def nested_xml(self) -> None:
        """Descriptions of nearly 500 KB with a hundred thousand elements, from somebody who may change everything."""
        depth = 70_000
        body = b'<entry xmlns="http://www.w3.org/2005/Atom"><content><b>' + b"<a>" * depth + b"</a>" * depth
        await self._put(body + b"</b></content></entry>", "application/atom+xml")

    async def wide_xml(self) -> None:
        """The most elements that a description may have, in rules that everybody may list."""
        entries = "".join(
            f"<KeyValueOfstringanyType><Key>{n}</Key><Value i:type='d:int'>1</Value></KeyValueOfstringanyType>"
            for n in range(270)
        )
        body = (
            "<entry xmlns='http://www.w3.org/2005/Atom'><content><RuleDescription "
            "xmlns='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect' "
            "xmlns:i='http://www.w3.org/2001/XMLSchema-instance' xmlns:d='http://www.w3.org/2001/XMLSchema'>"
            f"<Filter i:type='CorrelationFilter'><Properties>{entries}</Properties></Filter>"
            "</RuleDescription></content></entry>"
        )
        await self._put(body.encode(), "application/atom+xml", listed=True)

    async def _put(self, body: bytes, content_type: str, *, listed: bool = False) -> None:
        address = f"{self.host}:{self.port}"
        token = make_sas_token(f"http://{address}/", ROOT_KEY_NAME, self.key, time.time() + 3600)
        headers = {"Authorization": token, "Content-Type": content_type}
        rules = f"http://{address}/events/subscriptions/all/rules"
        async with aiohttp.ClientSession(headers=headers) as session:
            if listed:
                for number in range(100):
                    async with session.put(f"{rules}/x{number}?api-version=2021-05", data=body) as answer:
                        assert answer.status == 201, await answer.text()
            print("ready", flush=True)

            async def ask() -> None:
                while True:
                    verb = session.get(f"{rules}/?api-version=2021-05") if listed else session.put(rules, data=body)
                    async with verb as answer:
                        await answer.read()

            await asyncio.gather(*(ask() for _ in range(20)))

    # -- transactions

    async def transactions_without_token(self) -> None:
        """Transactions for everybody who can connect."""
        client = await self.connect()
        client.attach(9, "x", sends=True, target=Described(Ulong(0x30), [None]))
        await client.until(ATTACH)
        declaration = build(value=Described(Ulong(0x31), []))
        print("ready", flush=True)
        reading = asyncio.create_task(discard(client))
        number = 0
        while not reading.done():
            number += 1
            client.transfer(number, declaration, 9)
            await client.writer.drain()
            await asyncio.sleep(0.001)

    async def open_transactions(self) -> None:
        """40 transactions with 100 messages of 200 KB each, none of them committed, on one connection after another."""
        message = build(data=b"x" * 200_000)
        parts = [message[start : start + 60_000] for start in range(0, len(message), 60_000)]
        declaration = build(value=Described(Ulong(0x31), []))
        print("ready", flush=True)
        clients = []
        while True:
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                client = await self.connect(token=True)
                clients.append(client)
                client.attach(9, "x", sends=True, target=Described(Ulong(0x30), [None]))
                await client.until(ATTACH)
                await client.sender("theirs", 0)
                for opened in range(40):
                    client.transfer(opened, declaration, 9)
                    while (outcome := (await client.until(DISPOSITION)).field(4)).descriptor == TRANSACTIONAL_STATE:
                        continue
                    if outcome.descriptor != DECLARED:
                        break  # no more on this connection, which stays open
                    state = Described(Ulong(0x34), [outcome.value[0], None])
                    for number in range(1000 * opened, 1000 * opened + 100):
                        for part in parts:
                            more = part is not parts[-1]
                            fields = [Uint(0), Uint(number), b"t", Uint(0), False, more, None, state]
                            client.send(TRANSFER, fields, part)
                        await client.writer.drain()

    # -- E7: memory, most of it without a token

    async def unfinished(self) -> None:
        """Messages without an end, on one connection after the other."""
        part = b"x" * 60_000
        print("ready", flush=True)
        clients = []
        while True:
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                client = await self.connect()
                clients.append(client)
                for handle in range(20):
                    await client.sender(f"$cbs/{handle}", handle)
                for number in range(2_000):
                    client.transfer(number % 20, part, number % 20, more=True)
                    await client.writer.drain()

    async def empty_lists(self) -> None:
        """Attaches full of empty lists, one byte each on the wire and a hundred in a program."""
        lists = Described(Ulong(SOURCE), ["$cbs", *[None] * 6, {Symbol(f"f{n}"): [[]] * 15_000 for n in range(4)}])
        target = Described(Ulong(TARGET), ["$cbs"])
        fields = [False, Ubyte(0), Ubyte(0), lists, target, None, None, Uint(0)]
        assert len(encode(lists)) < 65_000
        print("ready", flush=True)
        clients = []
        while True:
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                client = await self.connect()
                clients.append(client)
                for handle in range(150):
                    client.send(ATTACH, ["l", Uint(handle), *fields])
                    await client.writer.drain()

    async def half_handshakes(self) -> None:
        """The beginning of a TLS handshake, and nothing more, on thousands of connections."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        print("ready", flush=True)
        opened = []
        for _ in range(min(HANDSHAKES, most - 100)):
            _, writer = await asyncio.open_connection(self.host, self.port)
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            opened.append(writer)
        await asyncio.Event().wait()

    async def untaken_answers(self) -> None:
        """Peeks at large messages whose answers are never taken."""
        client = await self.connect(token=True)
        await client.sender("theirs", 0)
        message = build(data=b"x" * 200_000)
        parts = [message[start : start + 60_000] for start in range(0, len(message), 60_000)]
        for part in parts:
            client.transfer(0, part, 0, more=part is not parts[-1])
        await client.until(DISPOSITION)
        request = build(
            properties=["id", None, None, None, "reply-3"],
            application_properties={"operation": "com.microsoft:peek-message"},
            value={"from-sequence-number": Long(0), "message-count": Int(250)},
        )
        print("ready", flush=True)
        while True:
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                client = await self.connect(token=True)
                await client.sender("theirs/$management", 2)
                await client.receiver("theirs/$management", 3, credit=0)
                reading = asyncio.create_task(discard(client))
                for number in range(2_000):
                    client.transfer(number, request, 2)
                    await client.writer.drain()
                    if reading.done():
                        break


async def discard(client: Client) -> None:
    """Read and forget until the connection ends."""
    with suppress(ConnectionError):
        while await client.reader.read(1 << 20):
            continue


ATTACKS: dict[str, Callable[[Attacker], Coroutine[None, None, None]]] = {
    "dispositions": Attacker.dispositions,
    "flows": Attacker.flows,
    "tiny-messages": Attacker.tiny_messages,
    "rules": Attacker.rules,
    "wild-rules": Attacker.wild_rules,
    "unfinished": Attacker.unfinished,
    "empty-lists": Attacker.empty_lists,
    "half-handshakes": Attacker.half_handshakes,
    "untaken-answers": Attacker.untaken_answers,
    "actions": Attacker.actions,
    "nested-xml": Attacker.nested_xml,
    "wide-xml": Attacker.wide_xml,
    "transactions-without-token": Attacker.transactions_without_token,
    "open-transactions": Attacker.open_transactions,
}


def end_with_standard_input() -> None:
    """The test that started the attack is gone, or has had enough of it."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    attack, host, port, key = sys.argv[1:]
    threading.Thread(target=end_with_standard_input, daemon=True).start()
    asyncio.run(ATTACKS[attack](Attacker(host, int(port), key)))
