"""Settings: flags > environment > project file > user file > defaults; each value says where it came from.

keys.py         the table of keys: checks, documentation, JSON Schema
files.py        which files, JSON and YAML of unknown origin within bounds, the strict reader with line numbers
environment.py  SBPAIR_... variables
state.py        the pair `local` and the remembered default pair
resolve.py      what wins, and the `Pair`s that come out
"""

from sbpair.settings.environment import EMULATOR_KEY, environment_names, to_environment
from sbpair.settings.files import (
    DocumentError,
    parse_json,
    parse_yaml,
    parse_yaml_with_lines,
    read_file,
    read_text,
    together,
)
from sbpair.settings.keys import FILE_NAME, Sourced, json_schema
from sbpair.settings.resolve import BETWEEN, HOW_TO_CONFIGURE, Settings, load
from sbpair.settings.state import (
    LOCAL_PAIR,
    data_directory,
    emulator_state,
    first_use,
    local_pair,
    remember_default_pair,
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
    "data_directory",
    "emulator_state",
    "environment_names",
    "first_use",
    "json_schema",
    "load",
    "local_pair",
    "parse_json",
    "parse_yaml",
    "parse_yaml_with_lines",
    "read_file",
    "read_text",
    "remember_default_pair",
    "state_directory",
    "to_environment",
    "together",
]
