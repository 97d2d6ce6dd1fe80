"""The README's pictures show what the commands show today."""

import html
import re
from xml.etree import ElementTree

import pytest

from tests.pictures import FOLDER, WAITING, pictures
from tests.readme import README, ROOT

PICTURES = pictures()


def words(svg: str) -> list[str]:
    """Its text, line for line; the frame is rich's own affair and differs from release to release."""
    return [
        html.unescape(text).replace("\N{NO-BREAK SPACE}", " ").rstrip() for text in re.findall(r">([^<>\n]+)<", svg)
    ]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_the_command_draws_it_now(name: str) -> None:
    """If this fails and the new words are right: python -m tests.pictures"""
    assert words((FOLDER / name).read_text(encoding="utf-8")) == words(PICTURES[name])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_stands_alone_and_in_the_readme(name: str) -> None:
    svg = (FOLDER / name).read_text(encoding="utf-8")
    ElementTree.fromstring(svg)
    assert not re.search(r"(?:href|src|url\()\W*(?:https?:)?//", svg), "it fetches something"
    assert f"]({(FOLDER / name).relative_to(ROOT).as_posix()})" in README


def test_the_status_shows_every_queue_and_their_sum() -> None:
    text = " ".join(words(PICTURES["status.svg"]))
    assert all(str(number) in text for number in (*WAITING, sum(WAITING)))
    assert "sbpair drain orders" in text


def test_no_picture_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PICTURES)
