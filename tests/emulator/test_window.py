"""The page of `sbpair emulator --ui`: for whoever has its address, from this machine, and no text in it ever acts."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from sbpair.emulator import Emulator
from sbpair.emulator.seed import plant
from sbpair.emulator.window import EmulatorWindow, open_window
from sbpair.engine.clock import AdvancingClock
from tests.render.chromium import browser, executable

FOREIGN = "<img src=x onerror=document.title='stolen'><script>document.title='stolen'</script>"
SEED = {
    "queues": {
        "orders": {
            "messages": [
                {"body": FOREIGN, "properties": {FOREIGN: FOREIGN}, "message_id": "m-1"},
                {"body": "broken", "subject": "s", "dead_letter": {"reason": FOREIGN, "description": "d"}},
            ]
        }
    },
    "topics": {
        "events": {"subscriptions": {"all": {"messages": [{"body": "b", "dead_letter": {"reason": "r"}}]}}},
        "t" * 200: {"subscriptions": {}},
    },
}


@pytest.fixture
async def window() -> AsyncIterator[EmulatorWindow]:
    clock = AdvancingClock()
    async with Emulator(["contoso", "fabrikam"], clock=clock) as emulator:
        plant(emulator.namespace("contoso"), SEED)
        async with open_window(emulator) as opened:
            yield opened
    clock.close()


async def call(window: EmulatorWindow, **asked: Any) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        url, headers = window.url.replace("/?", "/call?"), {"X-Window-Token": window.token}
        async with session.post(url, json={"namespace": "contoso", **asked}, headers=headers) as answer:
            return answer.status, await answer.json()


async def peek(window: EmulatorWindow, **asked: Any) -> list[dict[str, Any]]:
    status, told = await call(window, action="peek", **{"entity": "orders", **asked})
    assert status == 200, told
    return list(told["messages"])


def counts(window: EmulatorWindow) -> dict[str, tuple[int, int, int]]:
    entities = window.state()["namespaces"][0]["entities"]
    return {
        one["path"]: (one["active"], one["scheduled"], one["dead_letter"]) for one in entities if one["kind"] != "topic"
    }


async def test_what_the_page_can_do(window: EmulatorWindow) -> None:
    assert counts(window) == {"orders": (1, 0, 1), "events/Subscriptions/all": (0, 0, 1)}
    (first,) = await peek(window)
    assert (first["body"], first["message_id"], first["properties"]) == (FOREIGN, "m-1", {FOREIGN: FOREIGN})
    typed = {"amount": 12, "part": 0.5, "paid": True, "number": "12", "large": 2**60}
    assert (await call(window, action="send", entity="orders", body="late", scheduled_in_seconds=3600))[0] == 200
    assert (await call(window, action="send", entity="events", body="seen", properties=typed))[0] == 200
    (seen,) = await peek(window, entity="events/Subscriptions/all")
    assert seen["properties"] == typed | {"large": str(2**60)}
    assert (seen["sequence_number"], seen["delivery_count"]) == ("2", 0)
    assert counts(window) == {"orders": (1, 1, 1), "events/Subscriptions/all": (1, 0, 1)}
    assert (await call(window, action="advance", seconds=3600))[0] == 200
    assert window.state()["ahead_seconds"] == 3600
    assert [one["body"] for one in await peek(window)] == [FOREIGN, "late"]
    for entity in ("orders", "events/Subscriptions/all"):
        (dead,) = await peek(window, entity=entity, dead_letter=True)
        assert "DeadLetterReason" in dead["properties"]
        again = {"action": "resubmit", "entity": entity, "sequence_number": dead["sequence_number"]}
        assert (await call(window, **again))[0] == 200
        assert (await call(window, **again)) == (400, {"error": "The dead letter is gone."})
    last = (await peek(window))[-1]
    assert (last["body"], last["subject"], last["properties"]) == ("broken", "s", {})
    assert counts(window) == {"orders": (3, 0, 0), "events/Subscriptions/all": (2, 0, 0)}
    _, added = await call(window, action="add-fault", text="throttle:entity=orders")
    assert [one["text"] for one in window.state()["namespaces"][0]["faults"]] == ["throttle:entity=orders"]
    assert (await call(window, action="remove-fault", id=added["id"]))[0] == 200
    assert window.state()["namespaces"][0]["faults"] == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"action": "shutdown"}, "There is no action 'shutdown'."),
        ({"action": "peek", "entity": "nobody"}, "There is no such queue or subscription any more."),
        ({"action": "send", "entity": "orders", "body": 7}, "`body` is a text."),
        ({"action": "send", "entity": "orders", "body": "x" * 300_000}, "262144"),
        ({"action": "send", "entity": "orders", "body": "x", "properties": {"a": []}}, "Properties are an object"),
        ({"action": "advance", "seconds": -1}, "`seconds` is between"),
        ({"action": "add-fault", "text": "nonsense"}, "unknown fault"),
        ({"action": "peek", "namespace": "nobody", "entity": "orders"}, "there is no namespace"),
        ({"action": "resubmit", "entity": "orders", "sequence_number": "x"}, "The dead letter is gone."),
    ],
)
async def test_what_cannot_be_done_is_said(window: EmulatorWindow, asked: dict[str, Any], said: str) -> None:
    status, told = await call(window, **asked)
    assert (status, said in told["error"]) == (400, True), told


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 403),
        ("/?token=guessed", {}, 403),
        ("/events?token=", {}, 403),
        ("/?token={token}", {"Host": "rebound.example"}, 421),
        ("/?token={token}", {"Origin": "https://evil.example"}, 403),
        ("/events?token={token}", {"Origin": "null"}, 403),
        ("/?token={token}", {}, 200),
    ],
)
async def test_others_do_not_get_in(window: EmulatorWindow, path: str, headers: dict[str, str], status: int) -> None:
    base = window.url.partition("/?")[0]
    async with aiohttp.ClientSession() as session:
        async with session.get(base + path.format(token=window.token), headers=headers) as answer:
            assert answer.status == status
            if status == 200:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "{nonce}" not in await answer.text()
        # A form of another page can post, but not with this header; the address alone is not enough.
        async with session.post(f"{base}/call?token={window.token}", data='{"action": "advance"}') as answer:
            assert answer.status == 403


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed")
async def test_in_a_real_browser(window: EmulatorWindow) -> None:
    chromium = executable()
    assert chromium is not None
    async with browser(chromium) as tab:
        for domain in ("Page", "Network", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        await tab.call("Page.navigate", url=window.url)
        await until(tab, "document.querySelectorAll('main section').length === 2")
        for width in (1280, 400):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            await tab.call("Emulation.setDeviceMetricsOverride", **size)
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        await tab.evaluate(
            "[...document.querySelectorAll('button.link')].find(one => one.textContent === 'orders').click()"
        )
        await until(tab, "document.querySelectorAll('#dead button').length === 1")
        assert await tab.evaluate("document.querySelector('#messages td:last-child').textContent") == FOREIGN
        await tab.evaluate("document.querySelector('#dead button').click()")
        await until(tab, "document.querySelectorAll('#messages tr').length === 3")
        await tab.evaluate("document.getElementById('properties').value = '{bad'")
        await tab.evaluate("document.getElementById('send').requestSubmit()")
        await until(tab, "document.querySelector('dialog .said').textContent.includes('JSON')")
        fields = {"body": "from \u202ethe page", "properties": json.dumps({"amount": 12})}
        for name, value in fields.items():
            await tab.evaluate(f"document.getElementById({name!r}).value = {json.dumps(value)}")
        await tab.evaluate("document.getElementById('send').requestSubmit()")
        await until(tab, "document.querySelectorAll('#messages tr').length === 4")
        assert [one["body"] for one in await peek(window)] == [FOREIGN, "broken", "from \u202ethe page"]
        last = await tab.evaluate("document.querySelector('#messages tr:last-child td:last-child').textContent")
        assert last == "from \\u202ethe page", "what would turn the text around it is seen"
        await until(tab, "document.querySelector('main td.number').textContent === '3'")
        await tab.evaluate("document.getElementById('clock').requestSubmit()")
        await until(tab, "document.getElementById('ahead').textContent === '1.0 h ahead'")
        assert await tab.evaluate("document.title") == "sbpair emulator"
        assert await tab.evaluate("document.querySelectorAll('img, main script, dialog script').length") == 0
        base = window.url.partition("?")[0]
        assert all(one.startswith(base) for one in tab.seen.requests), tab.seen.requests
        assert tab.seen.complaints == []


async def until(tab: Any, expression: str) -> None:
    promise = (
        "new Promise((resolve, reject) => { const end = Date.now() + 600000; const look = () => "
        f"({expression}) ? resolve(true) : Date.now() > end ? reject(new Error('late')) : setTimeout(look, 50); "
        "look(); })"
    )
    answer = await tab.call("Runtime.evaluate", expression=promise, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in answer, (expression, answer, tab.seen.complaints)
