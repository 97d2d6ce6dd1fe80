"""The site of all pages: its links lead somewhere, and its search finds in a real browser, without a network."""

import json
import re
from pathlib import Path

import pytest

from sbpair.cli.app import COMMANDS
from sbpair.cli.help import HelpTopic
from sbpair.render.html import SitePage, write_site
from tests.cli.process import Sbpair
from tests.render.chromium import browser, executable


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "home").mkdir()
    ran = Sbpair(folder / "home")("help", "--html", str(folder / "site"))
    assert ran.code == 0, ran.stderr
    assert "index.html" in ran.stdout
    return folder / "site"


def test_every_page_and_command_is_there_and_every_link_leads_somewhere(site: Path) -> None:
    for name in (*HelpTopic, *(name for name in COMMANDS if name not in set(map(str, HelpTopic)))):
        assert (site / f"{name}.html").is_file(), name
    for file in site.glob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert "&lt;!--" not in text, file
        for link in re.findall(r'(?:href|src)="([^"#]+)', text):
            assert not link.startswith("http") or "://" in link
            if "://" not in link:
                assert (site / link).is_file(), (file.name, link)


def test_every_answer_of_the_search_leads_to_a_page(site: Path) -> None:
    text = (site / "search.js").read_text(encoding="utf-8")
    entries = json.loads(text.partition("const entries = ")[2].partition(";\n//")[0])
    assert {entry["page"].partition("#")[0] for entry in entries} == {file.name for file in site.glob("*.html")}


def test_programs_find_each_page_as_markdown(site: Path) -> None:
    listed = re.findall(
        r"^- \[.+\]\(([^)]+)\): sbpair (?:help|\S+ --help)\b",
        (site / "llms.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {site / name for name in listed} == set(site.glob("*.md"))
    assert (site / "recovery.md").read_text(encoding="utf-8").startswith("# Bring stranded messages back\n")


def test_what_a_page_says_is_text(tmp_path: Path) -> None:
    """A page is our own, but what it quotes may hold anything."""
    write_site(
        tmp_path, [SitePage("one", "Start", "# One\n\n<script>alert(1)</script> `</script>`\n", "sbpair help", "index")]
    )
    assert "<script>alert" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    ran = Sbpair(tmp_path)("help", "--html", str(tmp_path / "file"))
    assert (ran.code, ran.stdout) == (2, "")
    assert "The site cannot be written to" in ran.stderr


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed")
async def test_a_browser_shows_and_searches_it_without_a_network(site: Path) -> None:
    async with browser(str(executable())) as tab:
        for name in ("index", "recovery", "security"):
            for width in (400, 1280):
                for scheme in ("light", "dark"):
                    visit = await tab.visit(site / f"{name}.html", width=width, scheme=scheme)
                    assert visit.complaints == []
                    assert all(url.startswith(site.as_uri()) for url in visit.requests)
                    assert visit.content_width <= width, (name, width)
        search = "query.value = {!r}; query.dispatchEvent(new Event('input')); found.textContent"
        assert "Drain continuously" in await tab.evaluate(search.format("syphon continuously"))
        assert await tab.evaluate(search.format("zzzzz")) == "Nothing found."
        assert await tab.evaluate(search.format("") + " + found.hidden") == "true"
