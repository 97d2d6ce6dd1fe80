"""Settings: flags > environment > project file > user file > defaults; each value says where it came from.

keys.py         the table of keys: checks, documentation, JSON Schema
documents.py    JSON and text of unknown origin within bounds
files.py        which files, YAML within bounds, the strict reader with line numbers
environment.py  SBPAIR_... variables
state.py        the pair `local` and the remembered default pair
resolve.py      what wins, and the `Pair`s that come out
notice.py       what is said of a folder's file at its first use

The names are imported when they are first used: who asks where a folder is waits for no table of keys.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.settings.documents import DocumentError, parse_json, read_text
    from sbpair.settings.environment import environment_names, to_environment
    from sbpair.settings.files import parse_yaml, parse_yaml_with_lines, read_file, together
    from sbpair.settings.keys import FILE_NAME, Sourced, json_schema
    from sbpair.settings.notice import first_use_notice, load_noticed
    from sbpair.settings.resolve import BETWEEN, HOW_TO_CONFIGURE, Settings, connection_strings, load
    from sbpair.settings.state import (
        EMULATOR_KEY,
        LOCAL_PAIR,
        data_directory,
        emulator_state,
        first_use,
        local_pair,
        remember_causes,
        remember_default_pair,
        remembered_causes,
        state_directory,
    )

__all__ = [
    "BETWEEN",
    "EMULATOR_KEY",
    "FILE_NAME",
    "HOW_TO_CONFIGURE",
    "LOCAL_PAIR",
    "DocumentError",
    "Settings",
    "Sourced",
    "connection_strings",
    "data_directory",
    "emulator_state",
    "environment_names",
    "first_use",
    "first_use_notice",
    "json_schema",
    "load",
    "load_noticed",
    "local_pair",
    "parse_json",
    "parse_yaml",
    "parse_yaml_with_lines",
    "read_file",
    "read_text",
    "remember_causes",
    "remember_default_pair",
    "remembered_causes",
    "state_directory",
    "to_environment",
    "together",
]

_MODULES = {
    "documents": ("DocumentError", "parse_json", "read_text"),
    "environment": ("environment_names", "to_environment"),
    "files": ("parse_yaml", "parse_yaml_with_lines", "read_file", "together"),
    "keys": ("FILE_NAME", "Sourced", "json_schema"),
    "notice": ("first_use_notice", "load_noticed"),
    "resolve": ("BETWEEN", "HOW_TO_CONFIGURE", "Settings", "connection_strings", "load"),
    "state": (
        "EMULATOR_KEY",
        "LOCAL_PAIR",
        "data_directory",
        "emulator_state",
        "first_use",
        "local_pair",
        "remember_causes",
        "remembered_causes",
        "remember_default_pair",
        "state_directory",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
