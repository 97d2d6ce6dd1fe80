"""Configuration, environment and state from careless or hostile hands: a setting or a sentence, never anything else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.access import host_of, parse_connection_string
from sbpair.core.errors import SbpairError
from sbpair.settings import (
    DocumentError,
    environment_names,
    json_schema,
    load,
    local_pair,
    parse_json,
    parse_yaml,
    read_file,
)
from tests.hostile import (
    CONNECTION_STRING,
    SCALARS,
    SECRET,
    bounded,
    damaged,
    json_bytes,
    mutated,
    tame,
    values,
    within,
)

VALID: dict[str, Any] = {
    "version": 1,
    "auth": "azure-cli",
    "default_pair": "orders",
    "pairs": {
        "orders": {
            "primary": {"namespace": "contoso-weu", "connection_string": {"env": "KEY"}, "transport": "websocket"},
            "secondary": {"namespace": "contoso-neu.servicebus.windows.net", "ca_file": "ca.pem", "management": "arm"},
            "backlog_queues": 10,
            "failover_interval": "1m",
            "ping_interval": "PT1M",
            "entities": ["orders", "invoices/incoming"],
            "protected": ["*/x-servicebus-transfer/0"],
            "environment": "production",
        }
    },
}
YAML_SCALARS = tuple(value for value in SCALARS if not (isinstance(value, str) and not value.isprintable()))


def used(path: Path, home: Path, **variables: str) -> None:
    """Read the file as every command does, and use every pair in it."""
    settings = load(config=path, environ={"HOME": str(home), "KEY": CONNECTION_STRING, **variables}, directory=home)
    json_schema()
    for name in settings.pair_names():
        tame(lambda name=name: settings.pair(name).backlog_paths()[:1], SbpairError)
    tame(settings.pair, SbpairError)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@bounded(150)
@given(mutated(VALID, YAML_SCALARS))
def test_a_configuration_with_anything_exchanged_is_read_or_refused(home: Path, document: Any) -> None:
    path = home / "mutated.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    with within(seconds=5):
        tame(lambda: used(path, home), SbpairError)


@bounded(150)
@given(damaged(yaml.safe_dump(VALID, sort_keys=False).encode()))
def test_a_configuration_with_damaged_bytes_is_read_or_refused(home: Path, data: bytes) -> None:
    path = home / "damaged.yaml"
    path.write_bytes(data)
    with within(seconds=5):
        tame(lambda: used(path, home), SbpairError)


@bounded(100)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_configuration_or_refused(home: Path, data: bytes) -> None:
    path = home / "any.yaml"
    path.write_bytes(data)
    tame(lambda: read_file(path), SbpairError)


SENTENCES = {
    "a date that is none": "version: 2026-13-45\n",
    "a time that is none": "version: 2026-01-01T99:99:99Z\n",
    "an integer of 5,000 digits": f"version: {'9' * 5000}\n",
    "a tag that does not fit": "version: !!int nine\n",
    "a float that is none": "version: !!float nine\n",
    "broken base64": "version: !!binary '*'\n",
    "a sexagesimal of many parts": f"version: 1{':59' * 500}\n",
    "not a number": "version: .nan\n",
    "infinity": "version: 1\npairs: {a: {backlog_queues: .inf}}\n",
    "tabs": "version: 1\n\tpairs: {}\n",
    "a key twice": "version: 1\nversion: 1\n",
    "a key that is a list": "version: 1\n? [a, b]\n: c\n",
    "a key that is a mapping": "version: 1\n? {a: b}\n: c\n",
    "a merge": "version: 1\npairs: {<<: {orders: {}}}\n",
    "depth": "version: " + "[" * 2000,
    "block depth": "version:\n" + "".join(" " * (n + 1) + "-\n" for n in range(500)),
    "indicator depth": "version: " + "- " * 5000,
    "question marks": "? " * 5000,
    "many aliases": "version: &v [1, 1, 1, 1]\nauth: [" + "*v, " * 15_000 + "*v]\n",
    "two documents": "version: 1\n---\nversion: 1\n",
    "a pair with a dot": "version: 1\npairs: {a.b: {primary: {namespace: contoso-weu}}}\n",
    "too many queues": "version: 1\npairs: {a: {backlog_queues: 100000000000}}\n",
    "UTF-16": "version: 1\n".encode("utf-16").decode("latin-1"),
    "a lone surrogate": 'version: "\\ud800"\n',
}


@pytest.mark.parametrize("text", SENTENCES.values(), ids=SENTENCES)
def test_what_yaml_can_hide_ends_in_a_sentence(home: Path, text: str) -> None:
    path = home / "hidden.yaml"
    path.write_bytes(text.encode("latin-1"))
    with within(seconds=10), pytest.raises(SbpairError) as refused:
        read_file(path)
    assert str(path) in refused.value.message


def test_a_byte_order_mark_is_no_part_of_the_first_key(home: Path) -> None:
    path = home / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(VALID).encode())
    assert read_file(path)["version"].value == 1


def test_a_large_file_of_one_thing_is_read_or_refused_soon(home: Path) -> None:
    path = home / "large.yaml"
    for filling in (b"a", b"[", b"'", b"&a ", b"? ", b"!", b"%", b"- a\n"):
        path.write_bytes(b"version: 1\n" + filling * (250_000 // len(filling)))
        with within(seconds=20):
            tame(lambda: read_file(path), SbpairError)


@bounded(150)
@given(damaged(yaml.safe_dump(VALID, sort_keys=False).encode()))
def test_yaml_of_unknown_origin_is_plain_or_refused(data: bytes) -> None:
    document = tame(lambda: parse_yaml(data.decode("utf-8", "surrogateescape")), DocumentError)
    assert isinstance(document, (DocumentError, dict, list, str, int, float, bytes, type(None))) or hasattr(
        document, "isoformat"
    )


@bounded(150)
@given(damaged(json_bytes(VALID)), st.booleans())
def test_json_of_unknown_origin_is_plain_or_refused(data: bytes, exact: bool) -> None:
    tame(lambda: parse_json(data.decode("utf-8", "surrogateescape"), exact=exact), DocumentError)


# Environment ----------------------------------------------------------------------------------------------------------

NAMES = sorted(environment_names())
TEXTS = st.sampled_from([value for value in SCALARS if isinstance(value, str)]) | st.text(max_size=20)


@bounded(200)
@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=9).map("SBPAIR_{}".format), TEXTS, max_size=4))
def test_any_environment_is_settings_or_refused(home: Path, variables: dict[str, str]) -> None:
    environ = {"HOME": str(home), **variables}

    def build() -> None:
        settings = load(environ=environ, directory=home)
        for name in settings.pair_names():
            tame(lambda name=name: settings.pair(name), SbpairError)

    with within(seconds=5):
        tame(build, SbpairError)


@pytest.mark.parametrize("variable", NAMES)
def test_a_secret_in_the_wrong_variable_is_not_repeated(home: Path, variable: str) -> None:
    environ = {"HOME": str(home), variable: CONNECTION_STRING}
    told = tame(lambda: load(environ=environ, directory=home).pair(), SbpairError)
    assert isinstance(told, SbpairError)


# Connection strings ---------------------------------------------------------------------------------------------------

SAS = (
    "Endpoint=sb://contoso-weu.servicebus.windows.net/;SharedAccessSignature=SharedAccessSignature "
    f"sr=sb%3A%2F%2Fcontoso&sig={SECRET}&se=1790000000&skn=Root;EntityPath=orders"
)


@bounded(150)
@given(damaged(CONNECTION_STRING.encode()) | damaged(SAS.encode()) | st.binary(max_size=60))
def test_a_damaged_connection_string_is_taken_or_refused_without_being_repeated(home: Path, data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    tame(lambda: parse_connection_string(text), SbpairError)
    tame(lambda: host_of(text), SbpairError)
    path = home / "secret"
    path.write_bytes(data)
    one = {"namespace": "contoso-weu", "connection_string": {"file": str(path)}}
    config = home / "one.yaml"
    config.write_text(
        yaml.safe_dump({"version": 1, "pairs": {"a": {"primary": one, "secondary": {"namespace": "contoso-neu"}}}}),
        encoding="utf-8",
    )
    tame(lambda: used(config, home), SbpairError)


# State ----------------------------------------------------------------------------------------------------------------

STATE = {
    "pid": 1,
    "ca_file": "/ca.pem",
    "control": "127.0.0.1:1",
    "namespaces": [
        {"name": "local-primary", "connection_string_file": "/one"},
        {"name": "local-secondary", "connection_string_file": "/other"},
    ],
}


def state_file(home: Path, name: str) -> Path:
    path = home / ".local" / "state" / "sbpair" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


@bounded(100)
@given(mutated(STATE).map(json_bytes) | damaged(json_bytes(STATE)) | st.binary(max_size=40))
def test_a_ruined_state_file_of_the_emulator_is_named_and_refused(fresh: Path, data: bytes) -> None:
    state_file(fresh, "emulator.json").write_bytes(data)
    environ = {"HOME": str(fresh)}
    tame(lambda: local_pair(environ), SbpairError)

    def build() -> None:
        settings = load(environ=environ, directory=fresh)
        tame(lambda: settings.pair("local"), SbpairError)

    tame(build, SbpairError)


@bounded(60)
@given(st.binary(max_size=40) | values().map(json.dumps).map(str.encode))
def test_any_remembered_pair_is_used_or_left_out(fresh: Path, data: bytes) -> None:
    state_file(fresh, "emulator.json").unlink(missing_ok=True)
    state_file(fresh, "default-pair").write_bytes(data)
    tame(lambda: load(environ={"HOME": str(fresh)}, directory=fresh).pair(), SbpairError)


def test_reading_a_small_file_takes_little_memory(home: Path) -> None:
    path = home / "small.yaml"
    path.write_text("version: 1\n", encoding="utf-8")
    with within(seconds=5, megabytes=5):
        read_file(path)


@pytest.mark.parametrize("variable", ["SBPAIR_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"])
@pytest.mark.parametrize("path", ["x" * 5000, "a\x00b", "~nobody-of-that-name", "/dev/null", "/proc/1"])
def test_a_folder_that_cannot_be_is_a_sentence(tmp_path: Path, variable: str, path: str) -> None:
    environ = {"HOME": str(tmp_path), variable: path}
    told = tame(lambda: load(environ=environ, directory=tmp_path).pair(), SbpairError)
    assert isinstance(told, SbpairError)
