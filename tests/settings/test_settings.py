"""sbpair.yaml: strict, with sources; environment variables; what wins over what."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from sbpair.core.access import AuthMethod, Secret
from sbpair.core.errors import ConfigurationError, PairingError, UsageError
from sbpair.settings import Settings, first_use, json_schema, load, remember_default_pair
from sbpair.settings.keys import check_pair_name, environment_names

GOOD = """\
version: 1
pairs:
  orders:
    primary: {namespace: contoso-weu.servicebus.windows.net}
    secondary: {namespace: contoso-neu, resource_group: rg-neu, subscription: 00000000-0000-0000-0000-000000000000}
    backlog_queues: 5
    failover_interval: 2m
    ping_interval: PT30S
    entities: [orders, invoices/incoming]
    protected: ["*/x-servicebus-transfer/0"]
    environment: production
auth: azure-cli
"""

CONNECTION = "Endpoint=sb://{host}/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0LXZhbHVl"


def write(folder: Path, text: str) -> Path:
    path = folder / "sbpair.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), **more}


def test_reads_the_documented_example(tmp_path: Path) -> None:
    pair = load(config=write(tmp_path, GOOD), environ=environ(tmp_path)).pair()
    assert pair.name == "orders"
    assert pair.primary.label == "contoso-weu"
    assert pair.secondary.host == "contoso-neu.servicebus.windows.net"
    assert pair.secondary.resource_group == "rg-neu"
    assert pair.primary.auth is AuthMethod.AZURE_CLI
    assert (pair.options.backlog_queue_count, pair.options.failover_interval_seconds) == (5, 120.0)
    assert pair.options.ping_interval_seconds == 30.0
    assert pair.entities == ("orders", "invoices/incoming")
    assert pair.backlog_paths()[4] == "contoso-weu/x-servicebus-transfer/4"


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    settings = load(config=path, environ=environ(tmp_path, SBPAIR_AUTH="browser"))
    assert settings.values["pairs.orders.backlog_queues"].source == f"{path}:6"
    assert settings.values["auth"].source == "env SBPAIR_AUTH"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("backlog_queues: 5", "backlog_queue: 5", r":6: unknown key 'backlog_queue'"),
        ("backlog_queues: 5", "backlog_queues: 0", r":6: .*whole number of 1 or more"),
        ("backlog_queues: 5", "backlog_queues: true", r":6: .*whole number"),
        ("failover_interval: 2m", "failover_interval: 2 minutes", r":7: .*not a duration"),
        ("failover_interval: 2m", "failover_interval: 120", r":7: .*not a duration"),
        ("orders, invoices/incoming", "orders, 'bad name'", r":9: .*not an entity path"),
        ("auth: azure-cli", "auth: azcli", r":12: .*none of connection-string.*did you mean azure-cli"),
        ("version: 1", "version: 2", r"`version: 1` is expected"),
        ("version: 1\n", "", r"`version: 1` is expected"),
        ("auth: azure-cli", "auth: azure-cli\nauth: browser", r":13: the key 'auth' is given twice"),
        ("pairs:", "pairs: [", "not valid YAML"),
        ("entities: [orders, invoices/incoming]", "entities: !!python/object:os.system [x]", "not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigurationError, match=message):
        load(config=write(tmp_path, GOOD.replace(old, new)), environ=environ(tmp_path))


def test_an_unknown_key_gets_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(config=write(tmp_path, GOOD.replace("protected", "protectd")), environ=environ(tmp_path))
    assert refused.value.hint == "Did you mean 'protected'?"


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "sbpair.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(config=path, environ=environ(tmp_path)).pair_names() == ("orders",)


def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    text = GOOD.replace(
        "{namespace: contoso-weu.servicebus.windows.net}", "{connection_string: 'SharedAccessKey=hunter2'}"
    )
    with pytest.raises(ConfigurationError) as refused:
        load(config=write(tmp_path, text), environ=environ(tmp_path))
    assert "hunter2" not in str(refused.value)
    assert "{env: NAME}" in refused.value.message


def test_secrets_come_from_a_variable_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secondary.txt"
    secret.write_text(CONNECTION.format(host="contoso-neu.servicebus.windows.net") + "\n")
    text = GOOD.replace("{namespace: contoso-weu.servicebus.windows.net}", "{connection_string: {env: PRIMARY}}")
    text = text.replace("namespace: contoso-neu,", f"connection_string: {{file: {secret}}},")
    variables = environ(tmp_path, PRIMARY=CONNECTION.format(host="contoso-weu.servicebus.windows.net"))
    pair = load(config=write(tmp_path, text), environ=variables).pair()
    assert pair.primary.label == "contoso-weu"
    assert isinstance(pair.secondary.connection_string, Secret)
    assert "c2VjcmV0" not in repr(pair)


def test_a_missing_secret_names_the_variable(tmp_path: Path) -> None:
    text = GOOD.replace("{namespace: contoso-weu.servicebus.windows.net}", "{connection_string: {env: PRIMARY}}")
    with pytest.raises(ConfigurationError, match="environment variable PRIMARY is empty or not set"):
        load(config=write(tmp_path, text), environ=environ(tmp_path)).pair()


@pytest.mark.parametrize(("one", "other"), [("contoso", "CONTOSO"), ("CONTOSO", "contoso")])
def test_the_same_namespace_twice_is_refused(tmp_path: Path, one: str, other: str) -> None:
    text = GOOD.replace("contoso-weu", f"{one}-weu")
    text = text.replace("namespace: contoso-neu,", f"namespace: {other}-weu.servicebus.windows.net,")
    with pytest.raises(PairingError, match="same namespace"):
        load(config=write(tmp_path, text), environ=environ(tmp_path)).pair()


@pytest.mark.parametrize(("key", "value"), [("failover_interval", "61m"), ("ping_interval", "500ms")])
def test_intervals_have_their_documented_limits(tmp_path: Path, key: str, value: str) -> None:
    variables = environ(tmp_path, **{f"SBPAIR_{key.upper()}": value})
    with pytest.raises(UsageError, match="minutes"):
        load(config=write(tmp_path, GOOD), environ=variables).pair()


def test_environment_alone_makes_a_pair(tmp_path: Path) -> None:
    variables = environ(
        tmp_path,
        SBPAIR_PRIMARY_CONNECTION_STRING=CONNECTION.format(host="contoso-weu.servicebus.windows.net"),
        SBPAIR_SECONDARY_NAMESPACE="contoso-neu",
        SBPAIR_BACKLOG_QUEUES="3",
    )
    pair = load(environ=variables, directory=tmp_path).pair()
    assert (pair.name, pair.primary.label, pair.options.backlog_queue_count) == ("environment", "contoso-weu", 3)


def test_a_certificate_in_the_environment_alone_makes_no_pair(tmp_path: Path) -> None:
    sides = "{primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}}"
    text = f"version: 1\npairs:\n  billing: {sides}\n  orders: {sides}\n"
    variables = environ(tmp_path, SBPAIR_PRIMARY_CA_FILE="ca.pem")
    assert load(config=write(tmp_path, text), environ=variables).pair_names() == ("billing", "orders")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".git").mkdir(parents=True)
    assert load(environ=variables, directory=elsewhere).pair_names() == ()


def test_an_unknown_variable_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(environ=environ(tmp_path, SBPAIR_BACKLOG_QUEUE="3"), directory=tmp_path)
    assert refused.value.hint == "Did you mean SBPAIR_BACKLOG_QUEUES?"


def test_the_project_file_wins_over_the_users_and_is_found_upwards(tmp_path: Path) -> None:
    home = tmp_path / "home" / ".config" / "sbpair"
    home.mkdir(parents=True)
    write(home, GOOD.replace("auth: azure-cli", "auth: browser\ndefault_pair: orders"))
    project = tmp_path / "repository"
    (project / "deep" / "er").mkdir(parents=True)
    (project / ".git").mkdir()
    write(project, BILLING)
    settings = load(environ=environ(tmp_path), directory=project / "deep" / "er")
    assert settings.pair("billing").primary.auth is AuthMethod.MANAGED_IDENTITY
    assert settings.get("default_pair") == "billing"
    assert settings.pairs_of_project() == ("billing",)
    assert len(settings.files) == 2


BILLING = """\
version: 1
auth: managed-identity
default_pair: billing
pairs: {billing: {primary: {namespace: billing-weu}, secondary: {namespace: billing-neu, auth: browser}}}
"""


def test_the_search_stops_at_the_repository_root(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    assert load(environ=environ(tmp_path), directory=tmp_path / "repository").pair_names() == ()


def test_with_no_configuration_it_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(environ=environ(tmp_path), directory=tmp_path).pair()
    assert "sbpair demo" in refused.value.hint


def test_a_misspelt_pair_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(config=write(tmp_path, GOOD), environ=environ(tmp_path)).pair("ordres")
    assert refused.value.hint == "Did you mean 'orders'?"


def test_several_pairs_ask_for_a_name(tmp_path: Path) -> None:
    two = GOOD + "  # second\n" + ""
    document = yaml.safe_load(two)
    document["pairs"]["billing"] = document["pairs"]["orders"]
    path = write(tmp_path, yaml.safe_dump(document))
    variables = environ(tmp_path)
    with pytest.raises(ConfigurationError, match="name the one you mean"):
        load(config=path, environ=variables).pair()
    remember_default_pair("billing", variables)
    assert load(config=path, environ=variables).pair().name == "billing"


def test_the_schema_accepts_the_example_and_refuses_what_the_reader_refuses() -> None:
    document = yaml.safe_load(GOOD)
    jsonschema.validate(document, json_schema())
    document["pairs"]["orders"]["backlog_queue"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_every_key_has_a_variable() -> None:
    names = environment_names()
    assert {"SBPAIR_AUTH", "SBPAIR_BACKLOG_QUEUES", "SBPAIR_SECONDARY_CA_FILE", "SBPAIR_CONFIG", "SBPAIR_PAIR"} <= set(
        names
    )
    assert {"SBPAIR_JAVA", "SBPAIR_JOURNAL", "SBPAIR_COSMOS_KEY"} <= set(names), "not keys, but they are told of too"
    assert "{env: NAME}" not in names["SBPAIR_PRIMARY_CONNECTION_STRING"], "the variable holds the string itself"


# A file in a folder, which may be somebody else's ---------------------------------------------------------------------


def in_project(tmp_path: Path, text: str, users: str | None = None) -> Settings:
    """What a command in somebody's folder gets to see."""
    home = tmp_path / "home" / ".config" / "sbpair"
    home.mkdir(parents=True)
    if users is not None:
        write(home, users)
    project = tmp_path / "project"
    project.mkdir()
    write(project, text)
    return load(environ=environ(tmp_path), directory=project)


@pytest.mark.parametrize(
    "key", ["protected: []", "environment: test", "backlog_queues: 1", "secondary: {namespace: evil}"]
)
def test_a_project_file_changes_no_pair_of_the_users(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"`orders` is defined in .*cannot change it"):
        in_project(tmp_path, f"version: 1\npairs:\n  orders:\n    {key}\n", GOOD)


def test_a_project_file_changes_no_credential_of_the_users_pairs(tmp_path: Path) -> None:
    settings = in_project(tmp_path, BILLING, GOOD)
    assert settings.pair("orders").secondary.auth is AuthMethod.AZURE_CLI
    assert settings.pair("billing").primary.auth is AuthMethod.MANAGED_IDENTITY
    assert settings.pair("billing").secondary.auth is AuthMethod.BROWSER
    alone = in_project(tmp_path / "alone", BILLING)
    assert alone.pair("billing").primary.auth is AuthMethod.MANAGED_IDENTITY


def test_a_namespace_that_is_named_is_reached_as_the_users_own_file_says(tmp_path: Path) -> None:
    first = BILLING.replace("billing-weu", "contoso-weu").replace("billing", "a")
    settings = in_project(tmp_path, first, GOOD)
    assert settings.pairs_of_project() == ("a",)
    assert settings.named_namespace("contoso-weu", None).auth is AuthMethod.AZURE_CLI


def test_a_project_file_does_not_choose_among_the_users_pairs(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"default_pair is 'orders', a pair of your own file"):
        in_project(tmp_path, "version: 1\ndefault_pair: orders\n", GOOD)


def test_a_file_is_used_for_the_first_time_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    variables, path = environ(tmp_path), write(tmp_path, GOOD)
    other = tmp_path / "other.yaml"
    other.write_text(GOOD, encoding="utf-8")

    def first(file: Path) -> bool:
        return first_use(file, variables)

    assert [first(path), first(path), first(other), first(path)] == [True, False, True, False]
    write(tmp_path, GOOD.replace("backlog_queues: 5", "backlog_queues: 6"))
    assert [first(path), first(path), first(other)] == [True, False, False]


STRANGE = """\
version: 1
pairs:
  orders:
    primary: {namespace: contoso-weu%s}
    secondary: {namespace: contoso-neu}
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (".evil.example", "Entra ID token to contoso-weu.evil.example"),
        (", ca_file: ./ca.pem", "certificate authority"),
        (", management_url: 'https://evil.example'", "Entra ID token to evil.example"),
        (", management_url: 'http://management.azure.com'", "not https"),
    ],
)
def test_a_project_file_sends_no_credential_to_a_stranger(tmp_path: Path, more: str, message: str) -> None:
    settings = in_project(tmp_path, STRANGE % more)
    with pytest.raises(ConfigurationError, match=message):
        settings.pair("orders")


@pytest.mark.parametrize("more", [".evil.example", ", ca_file: ./ca.pem", ", management_url: 'https://other.example'"])
def test_the_users_own_file_may(tmp_path: Path, more: str) -> None:
    path = write(tmp_path, STRANGE % more)
    assert load(config=path, environ=environ(tmp_path)).pair().primary.chosen_by_user
    assert load(environ=environ(tmp_path, SBPAIR_CONFIG=str(path)), directory=tmp_path).pair().primary.chosen_by_user
    home = tmp_path / "home" / ".config" / "sbpair"
    home.mkdir(parents=True)
    write(home, STRANGE % more)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".git").mkdir()
    assert load(environ=environ(tmp_path), directory=elsewhere).pair().primary.chosen_by_user


def test_a_project_file_cannot_let_a_token_out_in_clear(tmp_path: Path) -> None:
    text = STRANGE % ", host: 10.0.0.7, connection_string: {env: KEY}, allow_plaintext: true"
    (tmp_path / "project").mkdir()
    write(tmp_path / "project", text)
    variables = environ(tmp_path, KEY=CONNECTION.format(host="10.0.0.7") + ";UseDevelopmentEmulator=true")
    with pytest.raises(
        ConfigurationError,
        match=r"a file in a folder does not say that a namespace is at|no host of Azure|not a host of Azure",
    ):
        load(environ=variables, directory=tmp_path / "project").pair()
    assert load(environ=variables, config=tmp_path / "project" / "sbpair.yaml").pair().primary.allow_plaintext


@pytest.mark.parametrize("name", ["x\\$(touch here)", "`id`", "a b", "a;b", "$x", "a'b", "-x", "", "é", "a.b", "a\nb"])
def test_a_pair_is_called_by_letters_and_digits(name: str) -> None:
    with pytest.raises(UsageError, match="no name for a pair"):
        check_pair_name(name)


def test_two_namespaces_make_a_pair_that_no_file_names(tmp_path: Path) -> None:
    settings = load(config=write(tmp_path, GOOD), environ=environ(tmp_path))
    pair = settings.pair("contoso-frc:contoso-neu")
    assert (pair.name, pair.primary.host, pair.primary.auth) == (
        "contoso-frc:contoso-neu",
        "contoso-frc.servicebus.windows.net",
        AuthMethod.AZURE_CLI,
    )
    assert pair.secondary.resource_group == "rg-neu", "as the configuration reaches it"
    assert (pair.environment, pair.protected) == ("production", ("*/x-servicebus-transfer/0",))
    assert pair.options.backlog_queue_count == 10, "what another pair counts on is not this one's"
    assert settings.pair("contoso-weu:contoso-neu").name == "orders"
    named = settings.between("contoso-frc", "contoso-neu")
    assert (named.pair().name, named.pair_names()) == ("contoso-frc:contoso-neu", ("orders",))
    assert settings.between("contoso-frc", None).side_in_use(None, "primary")[1].label == "contoso-frc"
    with pytest.raises(ConfigurationError, match="No secondary was named"):
        settings.between("contoso-frc", None).pair()
    for wrong in ("contoso-weu:contoso-weu", "no name:contoso-neu", "a:b:c", ":contoso-neu"):
        with pytest.raises((ConfigurationError, PairingError, UsageError)):
            settings.pair(wrong)


OWN = """\
version: 1
pairs:
  orders-prod:
    primary: {namespace: contoso-weu}
    secondary: {namespace: contoso-neu}
    protected: ["*/0"]
    environment: production
"""
FOLDERS = """\
version: 1
pairs:
  aaa:
    primary: {namespace: contoso-weu}
    secondary: {namespace: %s}
    entities: [x]
    environment: test
"""


@pytest.mark.parametrize("secondary", ["contoso-neu", "fabrikam-neu"])
@pytest.mark.parametrize("named", ["contoso-weu:contoso-neu", "contoso-weu:fabrikam-neu", "fabrikam-weu:contoso-neu"])
def test_a_folders_pair_does_not_stand_for_ones_own_namespaces(tmp_path: Path, secondary: str, named: str) -> None:
    home, project = tmp_path / "home" / ".config" / "sbpair", tmp_path / "project"
    for folder in (home, project):
        folder.mkdir(parents=True)
    write(home, OWN)
    write(project, FOLDERS % secondary)
    pair = load(environ=environ(tmp_path), directory=project).pair(named)
    assert (pair.environment, pair.entities) == ("production", ())
    assert "*/0" in pair.protected


@pytest.mark.parametrize(
    "host",
    [
        "contoso-weu.servicebus.windows.net:5671",
        "contoso-weu.servicebus.windows.net:443",
        "contoso-weu.servicebus.windows.net.",
    ],
)
def test_a_port_of_the_service_is_no_other_host(tmp_path: Path, host: str) -> None:
    text = STRANGE % ", connection_string: {env: KEY}"
    settings = load(config=write(tmp_path, text), environ=environ(tmp_path, KEY=CONNECTION.format(host=host)))
    assert settings.pair().primary.host == host
    elsewhere = environ(tmp_path, KEY=CONNECTION.format(host=host.replace("contoso", "fabrikam")))
    with pytest.raises(ConfigurationError, match="leads to 'fabrikam"):
        load(config=write(tmp_path, text), environ=elsewhere).pair()


@pytest.mark.parametrize("more", [";Endpoint=sb://evil.example/", ";HostName=sb://evil.example", ";SharedAccessKey=x"])
def test_a_connection_string_that_names_its_host_or_key_twice_is_refused(tmp_path: Path, more: str) -> None:
    text = STRANGE % ", connection_string: {env: KEY}"
    key = CONNECTION.format(host="contoso-weu.servicebus.windows.net") + more
    with pytest.raises(ConfigurationError, match="twice"):
        load(config=write(tmp_path, text), environ=environ(tmp_path, KEY=key)).pair()
