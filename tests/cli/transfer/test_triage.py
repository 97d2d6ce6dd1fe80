"""`sbpair dlq list` over a whole namespace, and what helps after a wrong name, a pasted key or a refused login."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from sbpair.core.entities import EntityStatus
from sbpair.core.rewrite import compose
from sbpair.settings import load
from tests.cli.process import Sbpair
from tests.cli.transfer.entities import Entities

NUMBERS = itertools.count()


@pytest.fixture
def made(local: Sbpair) -> Iterator[Entities]:
    yield Entities(local)


def named(prefix: str) -> str:
    return f"{prefix}-{next(NUMBERS)}"


def letters(*ids: str, **more: object) -> list[bytes]:
    return [compose(body='{"a": 1}', message_id=one, application_properties={"country": "DE", **more}) for one in ids]


def test_a_namespace_is_told_by_cause_and_a_second_look_tells_what_is_new(made: Entities) -> None:
    first, second = made.queue(named("triage")), made.queue(named("triage"))
    made.dead(first, letters("a", "b"), "Timeout")
    made.dead(second, letters("c"), "ValidationError")
    words = ("dlq", "list", "--pair", "local")
    ran = made.runner(*words, "-o", "json")
    assert ran.code == 5, ran
    causes = {one["entity"]: one for one in ran.data["causes"]}
    assert (causes[first]["messages"], causes[first]["fields"], causes[first]["trend"]) == (2, ["a"], None)
    assert causes[second]["command"] == f"sbpair edit local-primary:{second} --dlq --reason ValidationError"
    assert "body" not in causes[first]
    with_body = made.runner(*words, "--body", "-o", "json").data["causes"]
    assert next(one["body"] for one in with_body if one["entity"] == first) == '{"a": 1}'
    assert made.runner(*words, "--since-last", "-o", "nagios").code == 1
    quiet = made.runner(*words, "--since-last", "-o", "nagios")
    assert (quiet.code, "SBPAIR OK" in quiet.stdout) == (0, True), quiet
    made.dead(first, letters("d"), "Timeout")
    grown = made.runner(*words, "--since-last", "-o", "tsv")
    assert (grown.code, len(grown.records)) == (5, 1), grown
    assert (grown.records[0]["entity"], grown.records[0]["trend"]) == (first, "growing")
    page = made.runner(*words, "-o", "html")
    assert (page.code, f"{first}" in page.stdout, "<table" in page.stdout) == (5, True, True)
    assert made.runner("dlq", "list", first, "--since-last").code == 2


def test_the_command_of_a_cause_runs_as_it_is_printed(made: Entities) -> None:
    queue = made.queue(named("triage"))
    made.dead(queue, letters("a", "b"), "TTLExpiredException")
    causes = made.runner("dlq", "list", "--pair", "local", "-o", "json").data["causes"]
    command = next(one["command"] for one in causes if one["entity"] == queue)
    ran = made.runner(*command.split()[1:], "--yes")
    assert (ran.code, made.ids(queue, dead_letter=True)) == (0, []), ran


def test_a_reason_or_property_that_no_message_has_is_told_with_the_one_that_was_meant(made: Entities) -> None:
    queue = made.queue(named("names"))
    made.dead(queue, letters("a", "b", contry="x"), "ValidationError")
    for words in (("dlq", "list", queue), ("dlq", "peek", queue), ("dlq", "resubmit", queue, "--yes")):
        ran = made.runner(*words, "--reason", "ValidationEror", "-o", "json")
        said = "has the reason 'validationeror'. Did you mean 'ValidationError'? There are: ValidationError (2)."
        assert said in ran.stderr or said in ran.stdout, ran
    ran = made.runner("dlq", "peek", queue, "--where", "countri = 'DE'")
    assert "No message there has the application property 'countri'. Did you mean 'country'?" in ran.stderr, ran
    ran = made.runner("dlq", "peek", queue, "--where", "subjekt = 'DE'")
    assert "Did you mean 'sys.Subject'?" in ran.stderr, ran
    found = made.runner("dlq", "peek", queue, "--where", "country = 'DE'")
    assert "No message there" not in found.stderr


def test_an_entity_that_does_not_exist_is_compared_with_those_that_do(made: Entities) -> None:
    queue = made.queue("invoicing-west")
    made.dead(queue, letters("a"))
    for words in (
        ("dlq", "list", "invoicing-wset", "--pair", "local"),
        ("dlq", "resubmit", "invoicing-wset", "--yes", "--pair", "local"),
        ("dlq", "resubmit", queue, "--to", "invoicing-wset", "--yes", "--pair", "local"),
    ):
        ran = made.runner(*words)
        assert (ran.code, "Did you mean 'invoicing-west'?" in ran.stderr) == (1, True), ran
    topic = "invoicing-news"
    made.subscription(topic, "all")
    for words, said in (
        (("dlq", "list", "local-primary"), "That is the name of a namespace: --namespace local-primary"),
        (("dlq", "peek", topic), f"It is a topic. Name one of its subscriptions: {topic}/Subscriptions/NAME"),
        (("entity", "peek", topic), f"{topic} is a topic: only its scheduled messages lie in it."),
        (("entity", "peek", topic), f"sbpair entity list '{topic}/*' --namespace local-primary"),
        (("peek", "--entity", topic, "--side", "primary"), f"sbpair entity list '{topic}/*' --namespace local-primary"),
    ):
        pair = ("local",) if words[0] == "peek" else ("--pair", "local")
        ran = made.runner(*words, *pair)
        assert said in ran.stderr, ran
    shut = made.queue("invoicing-shut", status=EntityStatus.DISABLED)
    for words in (("entity", "peek", shut), ("copy", shut, queue, "--yes"), ("copy", queue, shut, "--yes")):
        ran = made.runner(*words, "--pair", "local")
        assert (ran.code, f"sbpair entity set-status local-primary:{shut} Active" in ran.stderr) == (1, True), ran


def test_a_connection_string_is_read_from_stdin_a_file_or_the_environment_and_never_from_an_argument(
    made: Entities,
) -> None:
    queue = made.queue(named("keys"))
    made.dead(queue, letters("a"))
    settings = load(environ=made.runner.variables(), directory=made.runner.home)
    secret = settings.pair("local").primary.connection_string
    assert secret is not None
    found = secret.reveal()
    line = f"contoso-weu {found}"
    nobody = Sbpair(made.runner.home / named("nobody"), {"XDG_STATE_HOME": str(made.runner.home / "state")})
    nobody.home.mkdir()
    ran = nobody("dlq", "list", queue, "--connection-string-file", "-", "-o", "json", stdin=line)
    assert (ran.code, ran.data["namespace"].split()[0], ran.data["messages"]) == (0, "contoso-weu", 1), ran
    (nobody.home / "keys").write_text(f"# all of them\n{line}\nanother {found.replace('127.0.0.1', 'localhost')}\n")
    ran = nobody("dlq", "list", f"contoso-weu:{queue}", "--connection-string-file", "keys", "-o", "json")
    assert (ran.code, ran.data["messages"]) == (0, 1), ran
    ran = nobody("dlq", "list", queue, "-o", "json", env={"SBPAIR_CONNECTION_STRING": line})
    assert (ran.code, ran.data["messages"]) == (0, 1), ran
    for words in (("dlq", "list", found), ("status", found), ("discover", found), ("move", found, "b")):
        ran = nobody(*words)
        assert (ran.code, "given as an argument" in ran.stderr, "SharedAccessKey=" in ran.stderr) == (2, True, False), (
            ran
        )
        assert f"sbpair {words[0]}" in ran.stderr
    key = found.partition("SharedAccessKey=")[2].partition(";")[0]
    for bad in ("nonsense", f"fabrikam Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKey={key}"):
        ran = nobody("dlq", "list", queue, "--connection-string-file", "-", stdin=bad)
        assert (ran.code, key in ran.stderr) == (2, False), ran


def test_yes_asks_nothing_for_the_pair_that_the_environment_names(sbpair: Sbpair) -> None:
    key = "SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    sides = {f"SBPAIR_{side}_CONNECTION_STRING": f"Endpoint=sb://127.0.0.1:{port};{key}" for side, port in SIDES}
    names = {f"SBPAIR_{side}_NAMESPACE": f"contoso-{side.lower()}" for side, _ in SIDES}
    hosts = {f"SBPAIR_{side}_HOST": f"127.0.0.1:{port}" for side, port in SIDES}
    environment = sides | names | hosts
    ran = sbpair("drain", "--yes", "--timeout", "1s", "--give-up-after", "1s", env=environment)
    assert ("No pair was named" in ran.stderr, ran.code) == (False, 6), ran
    refused = sbpair("drain", env=environment)
    assert ("No pair was named" in refused.stderr, refused.code) == (True, 2), refused


SIDES = (("PRIMARY", 9), ("SECONDARY", 10))
"""Ports of this machine where nobody listens."""


@pytest.mark.parametrize(("pattern", "code"), [("*", 4), ("triage-denied-*", 3)])
def test_entities_without_rights_are_named_and_the_code_says_if_none_was_read(
    made: Entities, fault: Callable[[str, str], None], pattern: str, code: int
) -> None:
    for queue in (made.queue(named("triage-denied")), made.queue(named("triage"))):
        made.dead(queue, letters("a"), "Timeout")
    fault("local-primary", f"unauthorized:entity={pattern},operation=management")
    ran = made.runner("dlq", "list", "--pair", "local", "-o", "json")
    assert (ran.code, "sbpair help permissions" in ran.stderr) == (code, code == 4), ran
    assert "triage-denied" in ran.data["not_read"][0]["queue"] or code == 4
