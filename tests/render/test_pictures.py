"""The README's pictures show what the commands show today."""

import base64
import html
import json
import re
from functools import cache
from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console

from sbpair.render.tables import as_renderable
from tests.pictures import FOLDER, PHOTOGRAPH, WAITING, analysis, photographed, pictures, status
from tests.readme import README, ROOT
from tests.render.chromium import browser, executable

NAMES = sorted(path.name for path in FOLDER.glob("*.svg"))
drawings = cache(pictures)
"""Drawn by the first test that asks: who only collects the tests need not wait for it."""


def words(svg: str) -> list[str]:
    """Its text, line for line; the frame is rich's own affair and differs from release to release."""
    return [
        html.unescape(text).replace("\N{NO-BREAK SPACE}", " ").rstrip() for text in re.findall(r">([^<>\n]+)<", svg)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_as_the_command_draws_it_now(name: str) -> None:
    """If this fails and the new words are right: python -m tests.pictures"""
    assert words((FOLDER / name).read_text(encoding="utf-8")) == words(drawings()[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_stands_alone_and_in_the_readme(name: str) -> None:
    svg = (FOLDER / name).read_text(encoding="utf-8")
    ElementTree.fromstring(svg)
    assert not re.search(r"(?:href|src|url\()\W*(?:https?:)?//", svg), "it fetches something"
    assert f"]({(FOLDER / name).relative_to(ROOT).as_posix()})" in README


def test_the_status_shows_every_queue_and_their_sum() -> None:
    text = " ".join(words(drawings()["status.svg"]))
    assert all(f"{number:,}" in text for number in (*WAITING, sum(WAITING)))
    assert "sbpair drain orders" in text
    assert len(status_lines()) < 24, "with the prompt they are one screen"


def test_no_picture_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*drawings(), PHOTOGRAPH}


def status_lines() -> list[str]:
    console = Console(file=StringIO(), width=80)
    console.print(as_renderable(status()))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


ALIKE = 0.03
"""Other fonts move words by a few pixels; a card, a chart or a colour that is gone differs by more."""
_DIFFERENCE = """
(async () => {
    const shades = [];
    for (const picture of %s) {
        const image = new Image();
        image.src = "data:image/png;base64," + picture;
        await image.decode();
        const canvas = new OffscreenCanvas(50, 45);
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0, 50, 45);
        shades.push(context.getImageData(0, 0, 50, 45).data);
    }
    const [one, other] = shades;
    return one.reduce((sum, shade, at) => sum + Math.abs(shade - other[at]), 0) / one.length / 255;
})()
"""


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed")
async def test_the_photograph_is_what_the_page_looks_like_now() -> None:
    """If this fails and the new looks are right: python -m tests.pictures"""
    chromium = executable()
    assert chromium is not None
    kept, now = (FOLDER / PHOTOGRAPH).read_bytes(), await photographed(analysis(), chromium)
    shown = json.dumps([base64.b64encode(picture).decode() for picture in (kept, now)])
    async with browser(chromium) as tab:
        answer = await tab.call(
            "Runtime.evaluate", expression=_DIFFERENCE % shown, awaitPromise=True, returnByValue=True
        )
    assert answer["result"]["value"] < ALIKE, answer


def test_the_photograph_is_in_the_readme() -> None:
    assert f"]({(FOLDER / PHOTOGRAPH).relative_to(ROOT).as_posix()})" in README
