"""Keys of a gateway, as a command line or a file writes them."""

from pathlib import Path

import pytest

from sbpair.core.errors import ConfigurationError
from sbpair.gateway.keys import Key, KeyRing, parse_key, read_keys


@pytest.mark.parametrize("text", ["checkout", "checkout=fly", "=send"])
def test_a_key_that_is_none_says_where_keys_are_explained_and_not_how_to_check_another_file(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_key(text, {})
    assert refused.value.hint == "How keys are written: sbpair help gateway"


def test_a_key_is_for_its_entities_and_what_is_below_them_in_whatever_case() -> None:
    key = Key("app", "k" * 40, frozenset({"Send"}), ("Orders*", "bills"), pairs=("Embedded",))
    assert key.is_for("orders-1/$management")
    assert key.is_for("/ORDERS/Subscriptions/a")
    assert key.is_for("Bills")
    assert not key.is_for("invoices")
    assert not key.is_for("")
    assert KeyRing((key,)).signers("orders", "EMBEDDED")
    assert not KeyRing((key,)).signers("orders", "other")


def test_so_does_a_file_of_none(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    with pytest.raises(ConfigurationError, match="has no key") as refused:
        read_keys(tmp_path / "keys.yaml", {})
    assert "sbpair help gateway" in refused.value.hint
