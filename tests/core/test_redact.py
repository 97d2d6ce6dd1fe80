"""The gate for foreign text: what is masked, what is escaped, and what a sentence ends with."""

import base64
import json
import os

import pytest

from sbpair.core.editing import as_document, document_text
from sbpair.core.errors import UsageError
from sbpair.core.redact import json_text, scrub
from sbpair.core.rewrite import compose

INVISIBLE = "\xad\u180e\u200b\u200c\u200d\u200e\u202e\u2028\u2060\u2064\u2069\ufeff\x9b"


def test_a_bare_key_is_masked_wherever_it_stands() -> None:
    key = base64.b64encode(os.urandom(32)).decode()
    for text in (key, f"There is no pair named '{key}'.", f"No such command '{key}'.", f"a={key};b"):
        assert scrub(text) == text.replace(key, "***")
    assert key not in UsageError(f"no pair named {key}", hint=key).hint


@pytest.mark.parametrize(
    "text", ["orders", "contoso-weu.servicebus.windows.net", "x" * 44, base64.b64encode(b"x" * 48).decode(), "a" * 43]
)
def test_what_is_no_key_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize("char", INVISIBLE)
def test_what_cannot_be_seen_is_escaped_in_json_and_not_lost(char: str) -> None:
    text = json_text({"subject": f"a{char}b"})
    assert char not in text
    assert json.loads(text) == {"subject": f"a{char}b"}


def test_an_editor_is_shown_what_cannot_be_seen() -> None:
    text = document_text(as_document(compose(body="x", message_id="m", subject=f"pay{INVISIBLE}")))
    assert not set(text) & set(INVISIBLE)
    assert json.loads(text)["subject"] == f"pay{INVISIBLE}"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Not sent: it is closed..", "Not sent: it is closed."),
        ("It is closed.. Nothing was sent.", "It is closed. Nothing was sent."),
        ("Cannot read ../x: gone.", "Cannot read ../x: gone."),
        ("cut ...", "cut ..."),
        ("a..b", "a..b"),
    ],
)
def test_a_sentence_ends_with_one_full_stop(said: str, shown: str) -> None:
    assert UsageError(said).message == shown
