"""The likeliest mistakes, each on the real process: one message with what was tried, what happened and what to do."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import certifi
import pytest

from tests.cli.process import Ran, Sbpair
from tests.waiting import LIMIT_SECONDS

QUEUE = "local-primary/x-servicebus-transfer/{}"
SEED = """\
local-primary:
  queues: {orders: {}}
  keys: {listener: [Listen], sender: [Send]}
local-secondary:
  keys: {listener: [Listen], sender: [Send]}
poor-primary: {}
poor-secondary: {tier: Basic}
"""
NAMES = ("local-primary", "local-secondary", "poor-primary", "poor-secondary")
DEAD = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=Root;SharedAccessKey=QUJD;UseDevelopmentEmulator=true"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sbpair]:
    """Four seeded namespaces, and a configuration with a pair for every mistake."""
    runner = Sbpair(tmp_path_factory.mktemp("mistakes"))
    (runner.home / "seed.yaml").write_text(SEED, encoding="utf-8")
    named = [word for name in NAMES for word in ("--namespace", name)]
    process = runner.begin("emulator", "--port", "0", *named, "--seed", "seed.yaml")
    try:
        strings = dict(_next_line(process).split("\t") for _ in range(len(NAMES) + 4))
        state = json.loads((runner.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
        own = runner.home / "config" / "sbpair" / "sbpair.yaml"  # the user's own: a folder's may not name every host
        own.parent.mkdir(parents=True)
        own.write_text(_configuration(state["ca_file"]), encoding="utf-8")
        ready = replace(runner, environ=_secrets(strings))
        assert ready("provision", "right").code == 0
        yield ready
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_SECONDS)


def _next_line(process: object) -> str:
    line = process.stdout.readline()  # type: ignore[attr-defined]
    assert line, process.communicate()  # type: ignore[attr-defined]
    return str(line).rstrip("\n")


def _secrets(strings: dict[str, str]) -> dict[str, str]:
    good = strings["local-secondary"]
    return {
        "CS_PRIMARY": strings["local-primary"],
        "CS_SECONDARY": good,
        "CS_WRONG_KEY": good.replace("SharedAccessKey=", "SharedAccessKey=AAAA"),
        "CS_WRONG_PRIMARY_KEY": strings["local-primary"].replace("SharedAccessKey=", "SharedAccessKey=AAAA"),
        "CS_SEND_ONLY": strings["local-secondary/sender"],
        "CS_LISTEN_ONLY": strings["local-primary/listener"],
        "CS_DEAD": DEAD,
        "CS_TLS": good.replace(";UseDevelopmentEmulator=true", ""),
        "CS_POOR": strings["poor-secondary"],
        "CS_RUINED": "Endpoint=sb://x.example;SharedAccessKeyName",
    }


def _configuration(ca_file: str) -> str:
    primary = (
        f"{{namespace: local-primary, host: localhost, connection_string: {{env: CS_PRIMARY}}, ca_file: {ca_file}}}"
    )

    def side(variable: str, *, name: str = "local-secondary", ca: str = f", ca_file: {ca_file}") -> str:
        return f"{{namespace: {name}, host: localhost, connection_string: {{env: {variable}}}{ca}}}"

    pairs = {
        "right": (primary, side("CS_SECONDARY")),
        "wrong-key": (primary, side("CS_WRONG_KEY")),
        "wrong-primary-key": (side("CS_WRONG_PRIMARY_KEY", name="local-primary"), side("CS_SECONDARY")),
        "no-listen": (primary, side("CS_SEND_ONLY")),
        "no-send": (side("CS_LISTEN_ONLY", name="local-primary"), side("CS_SECONDARY")),
        "dead": (primary, side("CS_DEAD")),
        "untrusted": (primary, side("CS_TLS", ca=f", ca_file: {certifi.where()}")),
        "nowhere": (primary, "{namespace: no-such-name.servicebus.invalid, auth: environment}"),
        "unset": (primary, side("CS_NOT_SET")),
        "ruined": (primary, side("CS_RUINED")),
        "unnamed": (primary, "{connection_string: {env: CS_SECONDARY}}"),
        "basic": (primary, side("CS_POOR", name="poor-secondary")),
        "twice": (primary, primary),
    }
    lines = [
        f"  {name}: {{primary: {one}, secondary: {other}, entities: [orders]}}" for name, (one, other) in pairs.items()
    ]
    return "version: 1\npairs:\n" + "\n".join(lines) + "\n"


def assert_one_message(ran: Ran, code: int, *words: str) -> None:
    """One `Error:`, every word in it or its hint, no traceback, no internals, and not too long to be read."""
    assert ran.code == code, ran
    assert "Traceback" not in ran.stderr + ran.stdout
    assert "defect" not in ran.stderr
    assert ran.stderr.count("Error: ") == 1, ran.stderr
    message = ran.stderr[ran.stderr.index("Error: ") :]
    for word in words:
        assert word in message, (word, message)
    assert len(message.splitlines()) <= 3, message
    assert "object at 0x" not in message
    assert "[Errno" not in message


MISTAKES = [
    ("peek wrong-key", 4, ("browse", "local-secondary", "signature", "sbpair doctor")),
    ("provision wrong-key", 4, ("read the properties", "Nothing was changed.", "sbpair doctor")),
    ("cleanup wrong-key --yes", 4, ("Nothing was changed.", "sbpair doctor")),
    ("drain wrong-key", 4, ("receive", "nothing was moved", "sbpair doctor")),
    ("peek no-listen", 4, ("Listen", "local-secondary", "sbpair help permissions")),
    ("peek dead", 6, ("browse", "connection refused", "sbpair ping")),
    ("provision dead", 6, ("connection refused", "Nothing was changed.")),
    ("drain dead --timeout 1s", 6, ("connection refused", "nothing was moved")),
    ("drain dead --for 2s", 6, ("connection refused", "nothing was moved")),
    ("drain dead --dry-run --timeout 1s", 6, ("connection refused", "nothing was moved")),
    ("peek untrusted", 6, ("not trusted", "ca_file")),
    ("provision untrusted", 6, ("not trusted", "ca_file", "Nothing was changed.")),
    ("peek nowhere", 6, ("no-such-name", "cannot be resolved (DNS)", "spelled")),
    ("provision nowhere", 4, ("`environment`", "AZURE_TENANT_ID", "Nothing was changed.")),
    ("peek unset", 2, ("pairs.unset.secondary", "CS_NOT_SET", "not set")),
    ("peek ruined", 2, ("one part has no `=`",)),
    ("peek unnamed", 2, ("pairs.unnamed.secondary", "namespace: ")),
    ("peek rihgt", 2, ("'rihgt'", "Did you mean 'right'?")),
    ("peek right --timeout soon", 2, ("--timeout", "'soon'", "30s")),
    ("ping right or~ders", 2, ("'or~ders'", "write the path with `/`")),
    ("drill --embedded --fault nothing", 2, ("'nothing'", "send-disabled")),
    ("drill right orders --fault dark", 2, ("--embedded", "SendDisabled")),
    ("drill right orders --embedded", 2, ("a pair of its own",)),
    ("drill right nowhere --yes", 1, ("no queue or topic nowhere", "Nothing was created.")),
    ("send right or~ders --file line", 2, ("'or~ders'",)),
    ("send right orders --file nothing", 2, ("nothing", "No such file")),
    ("restore nothing --pair right --yes", 2, ("There is no file or folder nothing.",)),
    ("audit --snapshot nothing.json", 2, ("nothing.json", "No such file")),
    ("cost --prices nothing.yaml", 2, ("nothing.yaml", "No such file")),
    ("audit right --outfile line/below", 1, ("line/below", "Not a directory", "Nothing was done.")),
    ("audit right --snapshot-out line/below", 1, ("line/below", "Not a directory", "Nothing was done.")),
    ("audit right --history line/below", 1, ("line/below", "Not a directory", "Nothing was done.")),
    ("provision right --plan-out line/below", 1, ("line/below", "Not a directory", "Nothing was done.")),
    ("drain right --ledger line/below", 1, ("line/below", "Not a directory", "Nothing was sent.")),
    ("peek right --entity", 2, ("'--entity' requires an argument", "See: sbpair peek --help")),
    ("drain right --ledger line", 2, ("is not a line of a ledger", "left as it is")),
    ("audit twice", 2, ("same namespace", "two namespaces")),
]


@pytest.mark.parametrize(("line", "code", "words"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_a_mistake_gets_one_message(world: Sbpair, line: str, code: int, words: tuple[str, ...]) -> None:
    (world.home / "line").write_text("hello", encoding="utf-8")
    assert_one_message(world(*line.split()), code, *words)
    assert (world.home / "line").read_text(encoding="utf-8") == "hello"


def test_a_refused_credential_is_never_diverted(world: Sbpair) -> None:
    """UnauthorizedAccess starts no failover ("Asynchronous Messaging Patterns and High Availability")."""
    (world.home / "line").write_text("hello", encoding="utf-8")
    ran = world("send", "wrong-primary-key", "orders", "--file", "line", "--failover-interval", "0")
    assert ran.code == 4, ran
    for words in ("orders on local-primary", "signature", "0 accepted (0 diverted), 1 failed", "sbpair doctor"):
        assert words in ran.stderr, (words, ran)
    assert "Traceback" not in ran.stderr
    assert world("peek", "right", "-o", "jsonl").stdout == ""


def test_a_wrong_key_of_the_secondary_hinders_nothing_while_the_primary_takes_messages(world: Sbpair) -> None:
    (world.home / "line").write_text("hello", encoding="utf-8")
    ran = world("send", "wrong-key", "orders", "--file", "line", "-o", "json")
    assert (ran.code, ran.data["accepted"], ran.data["diverted"]) == (0, 1, 0), ran


def test_talk_about_a_side_that_is_away_is_one_line_a_round(world: Sbpair) -> None:
    ran = world("drain", "dead", "--timeout", "3s")
    rounds = [line for line in ran.stderr.splitlines() if "annot read local-" in line]
    assert 2 <= len(rounds) <= 8, ran.stderr
    assert [line.count("refused") for line in rounds] == [1] + [0] * (len(rounds) - 1), "why is told once"
    assert all("and 9 more" in line for line in rounds[:2]), rounds


def test_no_right_to_send_home_leaves_everything_where_it_is(world: Sbpair) -> None:
    world.python(PUT, QUEUE.format(1))
    ran = world("drain", "no-send", "--timeout", "3s")
    assert ran.code == 4, ran
    assert "lacks the right Send on the primary" in ran.stderr
    assert "sbpair help permissions" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert len(world("peek", "right", "--queue", "1").records) == 1
    assert world("drain", "right").code == 0


PUT = """\
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main(queue):
    async with open_sides(load().pair("right")) as sides:
        sender = sides.secondary.sender(queue)
        await sender.send([for_backlog(compose(message_id="m", body=b"x"), "orders")], timeout_seconds=30)
        await sender.close()

asyncio.run(main(sys.argv[1]))
"""


def test_the_entity_is_gone_or_the_message_too_large(world: Sbpair) -> None:
    (world.home / "big").write_bytes(b"x" * 300_000)
    for entity, file, words in (
        ("deleted", "line", ("could not be found",)),
        ("orders", "big", ("too-large", "262144")),
    ):
        (world.home / "line").write_text("hello", encoding="utf-8")
        ran = world("send", "right", entity, "--file", file, "--failover-interval", "10m", "--timeout", "5s")
        assert ran.code == 1, ran
        assert "0 accepted" in ran.stderr
        assert "Traceback" not in ran.stderr
        for word in words:
            assert word in ran.stderr.lower(), ran.stderr


def test_basic_tier_is_said_to_be_too_low(world: Sbpair) -> None:
    ran = world("audit", "basic", "-o", "json")
    assert ran.code == 5, ran
    assert "Basic" in ran.stdout


CLEAN = (
    "version: 1\npairs:\n  orders:\n    primary: {namespace: contoso-weu}\n    secondary: {namespace: contoso-neu}\n"
)


@pytest.mark.parametrize("text", ["\ufeff" + CLEAN, CLEAN.replace("\n", "\r\n")], ids=["BOM", "CRLF"])
def test_what_a_windows_editor_leaves_behind_is_read(sbpair: Sbpair, text: str) -> None:
    (sbpair.home / "sbpair.yaml").write_bytes(text.encode("utf-8"))
    ran = sbpair("config", "check")
    assert ran.code == 0, ran
    assert "orders" in ran.stdout


def test_utf_16_is_named_for_what_it_is(sbpair: Sbpair) -> None:
    (sbpair.home / "sbpair.yaml").write_bytes("version: 1\n".encode("utf-16"))
    assert_one_message(sbpair("config", "check"), 2, "sbpair.yaml", "is not UTF-8")


def test_tabs_in_the_configuration_have_a_line_number(sbpair: Sbpair) -> None:
    (sbpair.home / "sbpair.yaml").write_text("version: 1\npairs:\n\torders: {}\n", encoding="utf-8")
    assert_one_message(sbpair("config", "check"), 2, "sbpair.yaml:3", "not valid YAML")


def test_a_secret_file_that_is_not_there(sbpair: Sbpair) -> None:
    (sbpair.home / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  a: {primary: {connection_string: {file: gone}}, secondary: {namespace: contoso-neu}}\n",
        encoding="utf-8",
    )
    assert_one_message(sbpair("peek", "a"), 2, "gone", "No such file")


def test_a_port_in_use_is_named(sbpair: Sbpair) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_one_message(
            sbpair("emulator", "--port", str(port)), 2, "cannot start", "Address already in use", "--port 0"
        )


def test_a_second_emulator_says_that_local_means_the_first(world: Sbpair) -> None:
    process = world.begin("emulator", "--port", "0")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("local-primary\t")
    finally:
        process.terminate()
        _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert "another sbpair emulator" in err
    assert "The pair `local` is these namespaces" not in err
    assert (world.home / "state" / "sbpair" / "emulator.json").exists()


def test_the_clock_of_this_machine_is_suspected_of_an_expired_token(
    local: Sbpair, fault: Callable[[str, str], None]
) -> None:
    assert local("provision", "local").code == 0
    fault(
        "local-secondary",
        "fail:operation=attach,condition=amqp:unauthorized-access,description=ExpiredToken: The token is expired.",
    )
    ran = local("peek", "local", "--timeout", "5s")
    assert_one_message(ran, 4, "ExpiredToken", "clock", "sbpair doctor")
