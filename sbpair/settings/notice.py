"""What is said of a folder's file, once and again after each change: it decides where messages go."""

import logging
from contextlib import suppress
from pathlib import Path

from sbpair.core.access import shown_name
from sbpair.core.errors import ConfigurationError
from sbpair.core.pairing import Side
from sbpair.settings.resolve import Settings, load
from sbpair.settings.state import first_use

__all__ = ["first_use_notice", "load_noticed"]


def first_use_notice(settings: Settings) -> str | None:
    """The file with its pairs and their hosts, if these contents of it are used for the first time."""
    file = settings.project_file
    if file is None:
        return None
    try:
        if not first_use(file, settings.environ):
            return None
    except (OSError, ConfigurationError):
        pass  # it cannot be written down: then it is said every time
    pairs = ", ".join(f"{name} ({_hosts(settings, name)})" for name in settings.pairs_of_project())
    return f"First use of {file}, as it is now; it defines {pairs or 'no pair'}."


def load_noticed(config: Path | None = None) -> Settings:
    """As `load`, for callers of the library: a folder's file is logged as a warning when it is used for the first time.

    Raises:
        ConfigurationError: as `load`.
    """
    settings = load(config=config)
    if (notice := first_use_notice(settings)) is not None:
        logging.getLogger("sbpair").warning(notice)
    return settings


def _hosts(settings: Settings, pair: str) -> str:
    def place(side: Side) -> str:
        with suppress(ConfigurationError):  # the caller that uses it gets the error
            access = settings.side(pair, side)
            if access is not None:
                return shown_name(access)
        reference = settings.get(f"pairs.{pair}.{side}.connection_string") or {}
        named = [f"connection string of {kind} {name}" for kind, name in reference.items()]
        return settings.get(f"pairs.{pair}.{side}.namespace") or "".join(named) or "no namespace"

    return " with ".join(map(place, Side))
