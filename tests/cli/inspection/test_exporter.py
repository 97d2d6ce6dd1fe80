"""`sbpair exporter`: figures of all entities and pairs, as they are now or not at all."""

import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS, until


@contextmanager
def exporting(runner: Sbpair, *arguments: str, code: int = 143) -> Iterator[Callable[..., str]]:
    """A running exporter; what it yields gets a page of it, `/metrics` once every source was read or found dark."""
    log = runner.home / "exporter.log"
    with log.open("w") as stderr:
        process = runner.begin("exporter", *arguments, "--listen", "127.0.0.1:0", "--interval", "1s", stderr=stderr)
    try:
        url = until(lambda: (found := re.search(r"http://[\d.:]+", log.read_text())) and found[0], process)

        def get(path: str = "/metrics") -> str:
            try:
                with urllib.request.urlopen(url + path, timeout=LIMIT_SECONDS) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                return error.read().decode()

        if "--pair" in arguments or not arguments:
            until(lambda: 'command="audit"' in get() and 'command="status"' in get(), process)
        until(lambda: "sbpair_entities_up" in get(), process)
        yield get
        process.send_signal(signal.SIGTERM if code == 143 else signal.SIGINT)
        process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == code, log.read_text()
    finally:
        process.kill()
        process.communicate()


def sample(text: str, name: str, **labels: str) -> float | None:
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and wanted <= set(head.partition("{")[2].rstrip("}").split(",")):
            return float(value)
    return None


def test_it_serves_figures_of_what_can_be_read(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    assert local("provision", "local").code == 0
    local.make_queue("orders")
    assert local("send", "orders", "--namespace", "local-primary", stdin="a\nb\nc\n").code == 0
    with exporting(local, code=143) as get:
        text = get()
        of_orders = {"namespace": "local-primary", "entity": "orders"}
        assert sample(text, "sbpair_entity_active_messages", **of_orders) == 3
        assert sample(text, "sbpair_entity_enabled", **of_orders) == 1
        age = sample(text, "sbpair_entity_oldest_age_seconds", **of_orders)
        assert age is not None and 0 <= age < LIMIT_SECONDS * 10
        assert sample(text, "sbpair_backlog_queues", pair="local") == 10
        assert sample(text, "sbpair_backlog_queue_active_messages", pair="local", index="9") == 0
        used = {"namespace": "local-primary"}
        calls, credits = (
            sample(text, f"sbpair_exporter_{name}_total", **used) for name in ("management_calls", "credits")
        )
        assert calls is not None and credits is not None
        assert calls >= 2
        assert credits > 10 * calls, "calls and browses"
        assert sample(text, "sbpair_namespace_up", pair="local", side="primary") == 1
        assert sample(text, "sbpair_entities", namespace="local-secondary") == 10
        assert get("/healthz") == '{"healthy": true, "troubles": []}'
        fault("local-primary", "dark")
        until(lambda: sample(get(), "sbpair_entities_up", namespace="local-primary") == 0)
        dark = get()
        assert sample(dark, "sbpair_entity_active_messages", **of_orders) is None, (
            "no figure of before is shown as of now"
        )
        assert sample(dark, "sbpair_entities_up", namespace="local-secondary") == 1
        assert "The namespace local-primary" in get("/healthz")
        assert local("emulator", "fault", "clear", "local-primary").code == 0
        until(lambda: sample(get(), "sbpair_entity_active_messages", **of_orders) == 3)


def test_dead_letters_by_cause_and_sessions(local: Sbpair) -> None:
    local.make_queue("refused")
    created = local("entity", "create", "rides", "--namespace", "local-primary", "--sessions", "--yes")
    assert created.code == 0, created
    assert local("send", "rides", "--namespace", "local-primary", "--session-id", "s1", stdin="a\n").code == 0
    assert local("send", "refused", "--namespace", "local-primary", stdin="a\nb\n").code == 0
    for number in ("1", "2"):
        done = local("message", "dead-letter", "local-primary:refused", number, "--reason", "mine", "--yes")
        assert done.code == 0, done
    with exporting(local, "local-primary") as get:
        text = get()
        of_entity = {"namespace": "local-primary", "entity": "refused"}
        cause = "sbpair_entity_dead_letter_cause_messages"
        assert sample(text, cause, **of_entity, cause="consumer-rejected") == 2
        assert sample(text, "sbpair_entity_sessions", namespace="local-primary", entity="rides") == 1
        assert sample(text, "sbpair_entities_sessions_not_read", namespace="local-primary") == 0
        assert local("dlq", "purge", "local-primary:refused", "--yes", "--no-archive").code == 0
        until(lambda: sample(get(), "sbpair_entity_dead_letter_messages", **of_entity) == 0)
        assert sample(get(), cause, **of_entity) is None


def test_what_is_beyond_the_most_entities_is_counted(local: Sbpair) -> None:
    for name in ("a", "b", "c"):
        local.make_queue(name)
    with exporting(local, "local-primary", "--most-entities", "2", "--no-browse", code=130) as get:
        text = get()
    left = sample(text, "sbpair_entities_left_out", namespace="local-primary")
    assert left is not None and left >= 1
    assert sample(text, "sbpair_entities", namespace="local-primary") == left + 2
    assert text.count("sbpair_entity_active_messages{") == 2
    assert "oldest_age" not in text
    assert "sbpair_namespace_up" not in text, "no pair was asked for"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "nowhere"), "HOST:PORT"),
        (("--interval", "10ms"), "one second or more"),
        (("--audit-interval", "soon", "--browse"), "soon"),
        (("--pair", "nobody"), "There is no pair named 'nobody'"),
        (("--listen", "127.0.0.1:99999"), "HOST:PORT"),
    ],
)
def test_what_makes_no_sense_is_refused(local: Sbpair, arguments: tuple[str, ...], said: str) -> None:
    ran = local("exporter", "local-primary", *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert said in ran.stderr


def test_entity_list_writes_the_same_samples(local: Sbpair) -> None:
    local.make_queue("letters")
    text = local("entity", "list", "letters", "--namespace", "local-primary", "-o", "prometheus").stdout
    assert sample(text, "sbpair_entity_dead_letter_messages", namespace="local-primary", entity="letters") == 0
