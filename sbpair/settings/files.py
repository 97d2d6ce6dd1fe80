"""Which files are read, and the strict reading of one: every complaint has file, line and the nearest known key."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sbpair.core.documents import DocumentError, check_texts
from sbpair.core.errors import ConfigurationError, SbpairError, UsageError
from sbpair.core.redact import quoted, scrub, shortened
from sbpair.core.words import did_you_mean
from sbpair.files import LinedList, LinedMapping
from sbpair.settings.documents import home_folder, is_file, read_text
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

__all__ = ["parse_yaml", "parse_yaml_with_lines", "read_file", "together"]

# YAML of unknown origin, read within bounds: size, depth, and what its aliases expand to.

MOST_YAML_BYTES = 1024 * 1024
MOST_YAML_NODES = 50_000
MOST_YAML_DEPTH = 50


class _BoundedLoader(yaml.SafeLoader):
    """Stops at the bounds instead of looking at them afterwards: what is beyond is not even scanned."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > MOST_YAML_DEPTH + 1:
            raise DocumentError("it is nested too deeply")
        if self._nodes > MOST_YAML_NODES:
            raise DocumentError(f"it has more than {MOST_YAML_NODES:,} values")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def compose_yaml(text: str) -> yaml.Node | None:
    """Nodes of a YAML document whose aliases expand to a bounded size.

    Raises:
        DocumentError: too large, or nested or aliased beyond the bounds. yaml.YAMLError: not YAML.
    """
    if len(text) > MOST_YAML_BYTES:
        raise DocumentError(f"it is larger than {MOST_YAML_BYTES // (1024 * 1024)} MB")
    node: yaml.Node | None = yaml.compose(text, Loader=_BoundedLoader)
    if node is not None and _expanded(node, {}, 0) > MOST_YAML_NODES:
        raise DocumentError("its aliases expand to too much")
    return node


def parse_yaml(text: str) -> Any:
    """Value of a YAML document, made of plain types only.

    Raises:
        DocumentError: see `compose_yaml`, and what is not YAML.
    """
    return _parsed(text, construct_yaml)


def parse_yaml_with_lines(text: str) -> Any:
    """The same value as from `parse_yaml`; its mappings and lists know the lines of what is in them.

    Raises:
        DocumentError: see `parse_yaml`.
    """
    return _parsed(text, _lined)


def _parsed(text: str, construct: Callable[[yaml.SafeLoader, yaml.Node], Any]) -> Any:
    try:
        node = compose_yaml(text)
        return None if node is None else construct(yaml.SafeLoader(""), node)
    except yaml.YAMLError as error:
        problem, line = yaml_problem(error)
        raise DocumentError(f"not valid YAML: {problem}" + (f" (line {line})" if line else "")) from error


def _lined(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
        listed = LinedList(_lined(loader, one) for one in node.value)
        listed.lines = [one.start_mark.line + 1 for one in node.value]
        return listed
    if not isinstance(node, yaml.MappingNode) or not node.tag.endswith(":map"):
        return construct_yaml(loader, node)
    given: set[str] = set()
    for key_node, _ in node.value:
        if isinstance(key_node.value, str) and key_node.value in given:
            raise yaml.constructor.ConstructorError(None, None, "a name is given twice", key_node.start_mark)
        given.add(str(key_node.value))
    loader.flatten_mapping(node)
    mapping = LinedMapping()
    lines: dict[Any, int] = {}
    for key_node, value in node.value:
        key = construct_yaml(loader, key_node)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a name here is no plain value", key_node.start_mark)
        mapping[key] = _lined(loader, value)
        lines[key] = key_node.start_mark.line + 1
    mapping.lines = lines
    return mapping


def construct_yaml(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """The plain value of a node.

    Raises:
        yaml.YAMLError: the node is not of the type that its tag or its looks say (`2026-13-45`, `!!int nine`).
    """
    try:
        return loader.construct_object(node, deep=True)
    except yaml.YAMLError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        kind = node.tag.rpartition(":")[2]
        raise yaml.constructor.ConstructorError(
            None, None, f"a value here is not the {kind} it looks like; quote it if it is a text", node.start_mark
        ) from error


def yaml_problem(error: yaml.YAMLError) -> tuple[str, int | None]:
    """What is wrong, and in which line if that is known. The line is not repeated: it may hold anything."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    mark = getattr(error, "problem_mark", None)
    return str(problem), None if mark is None else mark.line + 1


def _check_scalar(node: yaml.ScalarNode) -> None:
    try:
        check_texts((node.value,))
    except ValueError as error:
        raise DocumentError(f"line {node.start_mark.line + 1}: {error}") from error


def _expanded(node: yaml.Node, known: dict[int, int | None], depth: int) -> int:
    """Nodes below and including this one, as if every alias were written out."""
    if depth > MOST_YAML_DEPTH:
        raise DocumentError("it is nested too deeply")
    if id(node) in known:
        size = known[id(node)]
        if size is None:
            raise DocumentError("an alias refers to what contains it")
        return size
    known[id(node)] = None
    children = (
        [child for pair in node.value for child in pair]
        if isinstance(node, yaml.MappingNode)
        else node.value
        if isinstance(node, yaml.SequenceNode)
        else []
    )
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node)
    total = 1 + sum(_expanded(child, known, depth + 1) for child in children)
    known[id(node)] = total
    return total


def user_file(environ: Mapping[str, str]) -> Path:
    """Path of the user's own file in the XDG configuration folder."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else home_folder(environ) / ".config") / "sbpair" / FILE_NAME


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


def read_file(path: Path) -> dict[str, Sourced]:
    """Read and check one file strictly.

    Raises:
        ConfigurationError: see `load`.
    """
    try:
        node = compose_yaml(read_text(path))
        if node is None:
            return {}
        reader = _Reader(path)
        values = dict(reader.root(node))
        if reader.problems:
            raise together(reader.problems)
        return values
    except DocumentError as error:
        raise ConfigurationError(f"Cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        problem, line = yaml_problem(error)
        raise ConfigurationError(f"{path}{f':{line}' if line else ''}: not valid YAML: {problem}") from error


def together(problems: Sequence[ConfigurationError]) -> ConfigurationError:
    """One error that names all the problems, each with its own hint."""
    if len(problems) == 1:
        return problems[0]
    lines = [one.message if one.hint == ConfigurationError.hint else f"{one.message} {one.hint}" for one in problems]
    error = ConfigurationError(f"{len(lines)} problems in the configuration: {'; '.join(lines)}")
    error.problems = tuple(map(scrub, lines))
    return error


class _Reader:
    """Walks the YAML nodes of one file, so that every problem has a line number, and goes on after it: who corrects
    a file wants to see all that is wrong."""

    def __init__(self, path: Path) -> None:
        self.problems: list[ConfigurationError] = []
        self._path = path
        self._loader = yaml.SafeLoader("")

    def root(self, node: yaml.Node) -> Iterator[tuple[str, Sourced]]:
        """Keys with their values; what is wrong is in `problems` afterwards."""
        for name, key_node, value in self._entries(node, "the file"):
            if name == "pairs":
                for pair, pair_node, body in self._entries(value, "pairs"):
                    self._check_pair_name(pair, pair_node)
                    yield from self._pair(f"pairs.{pair}.", body)
            else:
                yield from self._value("", name, key_node, value, ROOT_KEYS, ("pairs",))
        if not isinstance(node, yaml.MappingNode):
            return
        version = next((value for key, value in node.value if getattr(key, "value", None) == "version"), None)
        found = None if version is None else self._plain(version)
        if found != FORMAT_VERSION:
            text = f"{self._path}: `version: {FORMAT_VERSION}` is expected, found {quoted(found)}."
            self.problems.append(ConfigurationError(text))

    def _pair(self, prefix: str, node: yaml.Node) -> Iterator[tuple[str, Sourced]]:
        for name, key_node, value in self._entries(node, prefix.rstrip(".")):
            if name in SIDES:
                for inner, inner_node, inner_value in self._entries(value, prefix + name):
                    yield from self._value(f"{prefix}{name}.", inner, inner_node, inner_value, NAMESPACE_KEYS)
            else:
                yield from self._value(prefix, name, key_node, value, PAIR_KEYS, SIDES)

    def _check_pair_name(self, name: str, node: yaml.Node) -> None:
        try:
            check_pair_name(name)
        except UsageError as error:
            self._wrong(node, error.message)

    def _entries(self, node: yaml.Node, where: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, f"{where} must be a mapping of keys to values.")
            return
        seen: set[str] = set()
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong(key_node, "a key is a name, not a list or mapping.")
                continue
            name = key_node.value
            if name in seen:
                self._wrong(key_node, f"the key {quoted(name)} is given twice.")
                continue
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
    ) -> Iterator[tuple[str, Sourced]]:
        key = next((candidate for candidate in keys if candidate.name == name), None)
        if key is None:
            known = [candidate.name for candidate in keys] + list(also)
            hint = did_you_mean(name, known, f"Known keys here: {', '.join(known)}.", cutoff=0.5)
            self._wrong(key_node, f"unknown key {quoted(name)}.", hint)
            return
        try:
            value = key.check(self._plain(node))
        except SbpairError as error:
            self._wrong(node, f"{prefix}{name} {error.message}")
            return
        yield prefix + name, Sourced(value, self._at(node))

    def _wrong(self, node: yaml.Node, text: str, hint: str | None = None) -> None:
        self.problems.append(ConfigurationError(f"{self._at(node)}: {text}", hint=hint))

    def _plain(self, node: yaml.Node) -> Any:
        return construct_yaml(self._loader, node)

    def _at(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"
