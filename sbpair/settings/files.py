"""Which files are read, and the strict reading of one: every complaint has file, line and the nearest known key."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sbpair.core.errors import ConfigurationError, SbpairError, UsageError
from sbpair.core.wording import quoted, shortened
from sbpair.settings.documents import DocumentError, compose_yaml, construct_yaml, read_text, yaml_problem
from sbpair.settings.keys import (
    FILE_NAME,
    FORMAT_VERSION,
    NAMESPACE_KEYS,
    PAIR_KEYS,
    ROOT_KEYS,
    SIDES,
    Key,
    Sourced,
    check_pair_name,
)


def user_file(environ: Mapping[str, str]) -> Path:
    """Path of the user's own file in the XDG configuration folder."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else home_folder(environ) / ".config") / "sbpair" / FILE_NAME


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's home.

    Raises:
        ConfigurationError: HOME is not set and the system knows of none (a container's made-up user id).
    """
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigurationError(
            "This user has no home folder, and HOME is not set.",
            hint="Set HOME, or XDG_CONFIG_HOME and XDG_STATE_HOME.",
        ) from error


def config_files(config: Path | None, environ: Mapping[str, str], directory: Path) -> Iterator[Path]:
    named = config or (Path(environ["SBPAIR_CONFIG"]) if environ.get("SBPAIR_CONFIG") else None)
    if named is not None:
        if not is_file(named):
            raise ConfigurationError(f"There is no configuration file {shortened(str(named))}.")
        yield named
        return
    if is_file(user_file(environ)):
        yield user_file(environ)
    for folder in (directory, *directory.parents):
        if is_file(folder / FILE_NAME):
            yield folder / FILE_NAME
            return
        if (folder / ".git").exists():
            return


def is_file(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        ConfigurationError: it cannot be told: a name no file can have, or a folder that may not be looked into.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {shortened(str(path))}: {error.strerror or error}.") from error


def read_file(path: Path) -> dict[str, Sourced]:
    """Read and check one file strictly.

    Raises:
        ConfigurationError: see `load`.
    """
    try:
        node = compose_yaml(read_text(path))
        return {} if node is None else dict(_Reader(path).root(node))
    except DocumentError as error:
        raise ConfigurationError(f"Cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        problem, line = yaml_problem(error)
        raise ConfigurationError(f"{path}{f':{line}' if line else ''}: not valid YAML: {problem}") from error


class _Reader:
    """Walks the YAML nodes of one file, so that every complaint has a line number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loader = yaml.SafeLoader("")

    def root(self, node: yaml.Node) -> Iterator[tuple[str, Sourced]]:
        for name, key_node, value in self._entries(node, "the file"):
            if name == "pairs":
                for pair, pair_node, body in self._entries(value, "pairs"):
                    self._check_pair_name(pair, pair_node)
                    yield from self._pair(f"pairs.{pair}.", body)
            else:
                yield self._value("", name, key_node, value, ROOT_KEYS, ("pairs",))
        version = self._plain_version(node)
        if version != FORMAT_VERSION:
            raise ConfigurationError(f"{self._path}: `version: {FORMAT_VERSION}` is expected, found {quoted(version)}.")

    def _plain_version(self, node: yaml.Node) -> Any:
        return next((self._plain(value) for name, _, value in self._entries(node, "") if name == "version"), None)

    def _pair(self, prefix: str, node: yaml.Node) -> Iterator[tuple[str, Sourced]]:
        for name, key_node, value in self._entries(node, prefix.rstrip(".")):
            if name in SIDES:
                for inner, inner_node, inner_value in self._entries(value, prefix + name):
                    yield self._value(f"{prefix}{name}.", inner, inner_node, inner_value, NAMESPACE_KEYS)
            else:
                yield self._value(prefix, name, key_node, value, PAIR_KEYS, SIDES)

    def _check_pair_name(self, name: str, node: yaml.Node) -> None:
        try:
            check_pair_name(name)
        except UsageError as error:
            raise ConfigurationError(f"{self._at(node)}: {error.message}") from error

    def _entries(self, node: yaml.Node, where: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise ConfigurationError(f"{self._at(node)}: {where} must be a mapping of keys to values.")
        seen: set[str] = set()
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigurationError(f"{self._at(key_node)}: a key is a name, not a list or mapping.")
            name = key_node.value
            if name in seen:
                raise ConfigurationError(f"{self._at(key_node)}: the key {quoted(name)} is given twice.")
            seen.add(name)
            yield name, key_node, value

    def _value(
        self,
        prefix: str,
        name: str,
        key_node: yaml.Node,
        node: yaml.Node,
        keys: tuple[Key, ...],
        also: tuple[str, ...] = (),
    ) -> tuple[str, Sourced]:
        key = next((candidate for candidate in keys if candidate.name == name), None)
        if key is None:
            known = [candidate.name for candidate in keys] + list(also)
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise ConfigurationError(
                f"{self._at(key_node)}: unknown key {quoted(name)}.",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known keys here: {', '.join(known)}.",
            )
        try:
            value = key.check(self._plain(node))
        except SbpairError as error:
            raise ConfigurationError(f"{self._at(node)}: {prefix}{name} {error.message}") from error
        return prefix + name, Sourced(value, self._at(node))

    def _plain(self, node: yaml.Node) -> Any:
        return construct_yaml(self._loader, node)

    def _at(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"
