"""Sanitizers clean recordings; there are none."""

from typing import Any


def add_remove_header_sanitizer(**kwargs: Any) -> None:
    """Nothing is recorded."""


def add_general_regex_sanitizer(**kwargs: Any) -> None:
    """Nothing is recorded."""


def add_oauth_response_sanitizer(**kwargs: Any) -> None:
    """Nothing is recorded."""
