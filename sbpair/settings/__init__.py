"""Settings: flags > environment > project file > user file > defaults; each value says where it came from.

keys.py         the table of keys: checks, documentation, JSON Schema, and their SBPAIR_... variables
documents.py    JSON and text of unknown origin within bounds
files.py        which files, YAML within bounds, the strict reader with line numbers
state.py        the pair `local` and the remembered default pair
resolve.py      what wins, the `Pair`s that come out, and what is said of a folder's file at its first use

The names are imported when they are first used: who asks where a folder is waits for no table of keys.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.settings.documents import *
    from sbpair.settings.files import *
    from sbpair.settings.keys import *
    from sbpair.settings.resolve import *
    from sbpair.settings.state import *

_MODULES = {
    "documents": ("DocumentError", "parse_json", "read_text"),
    "files": ("parse_yaml", "parse_yaml_with_lines", "read_file", "together"),
    "keys": ("EMULATOR_KEY", "FILE_NAME", "Sourced", "environment_names", "json_schema", "to_environment"),
    "resolve": (
        "BETWEEN",
        "HOW_TO_CONFIGURE",
        "Settings",
        "connection_strings",
        "first_use_notice",
        "load",
        "load_noticed",
    ),
    "state": (
        "LOCAL_NAMESPACES",
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
"""Module -> its names, which are those of its `__all__`."""
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
