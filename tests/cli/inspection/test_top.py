"""`sbpair top`, driven by its keys in a real terminal (tmux)."""

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.process import Sbpair
from tests.cli.screens import show
from tests.waiting import LIMIT_SECONDS, until

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
LOOK_AGAIN_SECONDS = 0.2
"""Each look at the screen starts a process of tmux."""
SCREEN_SECONDS = 180
"""Much more than a key or a start takes on a busy machine, and much less than a whole run should wait for one."""
HOSTILE = r'{"body":"\u001b[31mred \u4f60\u597d\u0000\u202eevil\nsecond","message_id":"\u001b]0;x\u0007\u4f60[b]"}'


class Terminal:
    """A terminal of that size with `sbpair top` in it."""

    def __init__(self, runner: Sbpair, *arguments: str, columns: int = 80, rows: int = 24, **environ: str) -> None:
        self._folder = TemporaryDirectory()
        self._tmux = ["tmux", "-S", f"{self._folder.name}/tmux", "-f", "/dev/null"]
        self._code = Path(self._folder.name) / "code"
        line = shlex.join(runner.command(("top", *arguments)))
        size = ("-x", str(columns), "-y", str(rows))
        script = f"{line}; echo $? > {shlex.quote(str(self._code))}; exec cat"
        self._environ = runner.variables(environ) | {"TERM": "xterm-256color", "TMUX": ""}
        self._do("new-session", "-d", *size, "env", *(f"{n}={v}" for n, v in environ.items()), "sh", "-c", script)
        self._do("set", "-g", "set-clipboard", "on")
        self.pid = int(until(self._child))
        self._tty = self._do("display-message", "-p", "#{pane_tty}").strip()

    def _do(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, encoding="utf-8", env=self._environ, timeout=LIMIT_SECONDS
        )
        assert done.returncode == 0, done
        return done.stdout

    def _child(self) -> str:
        shell = self._do("display-message", "-p", "#{pane_pid}").strip()
        return Path(f"/proc/{shell}/task/{shell}/children").read_text().strip().partition(" ")[0]

    def keys(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Until the program can see it: tmux tells a terminal of a second change only some time after the first."""
        self._do("resize-window", "-x", str(columns), "-y", str(rows))
        with open(self._tty, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NOCTTY)) as tty:
            until(lambda: os.get_terminal_size(tty.fileno()) == (columns, rows), limit_seconds=SCREEN_SECONDS)

    def screen(self, *, styled: bool = False) -> str:
        return self._do("capture-pane", "-p", *(("-e",) if styled else ()))

    def shows(self, *texts: str, but: str = "\0") -> str:
        """The screen, once all of this is on it, and that is not."""
        seen = [""]

        def there() -> bool:
            seen[0] = self.screen()
            return all(text in seen[0] for text in texts) and but not in seen[0]

        try:
            until(there, limit_seconds=SCREEN_SECONDS, look_again_seconds=LOOK_AGAIN_SECONDS)
        except AssertionError:
            raise AssertionError((texts, but, seen[0])) from None
        return seen[0]

    @property
    def copied(self) -> str:
        """What the program has put into the terminal's clipboard."""
        return self._do("show-buffer")

    def ended(self) -> int:
        return int(until(lambda: self._code.exists() and self._code.read_text()))

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=LIMIT_SECONDS)
        self._folder.cleanup()


@contextmanager
def terminal(runner: Sbpair, *arguments: str, columns: int = 80, rows: int = 24, **environ: str) -> Iterator[Terminal]:
    opened = Terminal(runner, *arguments, "--interval", "1s", columns=columns, rows=rows, **environ)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def full(provisioned: Sbpair) -> Sbpair:
    """A queue with messages, one of them hostile, and dead letters of two causes."""
    local = provisioned
    on = ("--namespace", "local-primary")
    for queue in ("orders", "parcels"):
        local.make_queue(queue)
    assert local("send", "orders", *on, stdin="a\nb\nc\n").code == 0
    assert local("send", "orders", *on, stdin=f"{HOSTILE}\n").code == 0
    assert local("message", "dead-letter", "orders", "1", *on, "--reason", "mine", "--yes").code == 0
    assert local("message", "dead-letter", "orders", "2", *on, "--reason", "TTLExpiredException", "--yes").code == 0
    return local


def test_from_the_pairs_down_to_a_message_and_back(full: Sbpair) -> None:
    with terminal(full) as top:
        top.shows("sbpair top  pairs 1", "local", "reachable  reachable", "$ sbpair status local")
        top.keys("e")
        top.shows("entities 12", "local-primary:orders", "$ sbpair dlq list local-primary:orders")
        top.keys("d")
        top.shows("dead letters 2", "consumer-rejected", "expired")
        top.keys("/")
        top.keys("-l", "expired")
        top.keys("Enter")
        top.shows('dead letters 1  with "expired"', but="consumer-rejected")
        top.keys("Enter")
        top.shows("dead letters of local-primary:orders 2", "mine", "TTLExpiredException")
        top.keys("j", "c")
        command = "sbpair explain local-primary:orders 2 --dlq"
        top.shows(f"Copied: {command}")
        assert top.copied == command
        top.keys("Enter")
        page = top.shows("dead letter 2 of local-primary:orders", "reason       TTLExpiredException")
        assert "DeadLetterReason" not in page, "properties are hidden until they are asked for"
        top.keys("b")
        top.shows("DeadLetterReason = TTLExpiredException")
        top.keys("x")
        top.shows("Because its time to live ended before a consumer completed it.", "$ sbpair dlq resubmit")
        top.keys("Escape")
        top.shows("dead letters of local-primary:orders 2")
        top.keys("d")
        top.shows("messages of local-primary:orders 2", "active", but="mine")
        top.keys("Escape")
        top.shows("top  dead letters 2")
        top.keys("p", "Enter")
        top.shows("backlog queues of local 10", "local-primary/x-servicebus-transfer/0", "$ sbpair peek local --queue")
        top.keys("?")
        top.shows("Nothing here changes")
        top.keys("q")
        assert top.ended() == 0


def test_hostile_messages_are_shown_escaped_and_bodies_when_asked_for(full: Sbpair) -> None:
    with terminal(full, "local-primary") as top:
        top.shows("entities 2")
        top.keys("/")
        top.keys("-l", "orders")
        top.keys("Enter", "Enter")
        top.shows("messages of local-primary:orders 2", r"\x1b]0;x\x07\u4f60[b]".replace("\\u4f60", "\u4f60"))
        top.keys("G", "Enter")
        assert "red" not in top.shows("message 4 of local-primary:orders", "b shows the body")
        top.keys("b")
        top.shows(r"\x1b[31mred " + "\u4f60\u597d" + r"\x00\u202eevil", "\nsecond")
        assert "x\n" not in top._do("display-message", "-p", "#{pane_title}")


def test_sorted_and_moved_like_in_less(full: Sbpair) -> None:
    with terminal(full, "local-primary", "local-secondary") as top:
        first = top.shows("Active v", "entities 12", "$ sbpair dlq list local-primary:orders")
        assert first.index("local-primary:orders") < first.index("local-primary:parcels")
        top.keys("G")
        top.shows("$ sbpair entity show local-secondary:local-primary/x-servicebus-transfer/9")
        top.keys("g", "j")
        top.shows("$ sbpair entity show local-primary:parcels")
        top.keys("n", "n", "N")
        top.shows("$ sbpair entity show local-secondary:local-primary/x-servicebus-transfer/0")
        for title in ("Per s v", "Dead v", "Sched. v", "Oldest v", "Entity ^"):
            top.keys("s")
            top.shows(title)
        top.keys("S")
        top.shows("Entity v")


def test_a_dark_namespace_leaves_stale_rows_with_a_mark(full: Sbpair, fault: Callable[[str, str], None]) -> None:
    with terminal(full, "--pair", "local") as top:
        top.shows("reachable  reachable")
        top.keys("e")
        top.shows(" local-primary:orders", but="!")
        fault("local-primary", "dark")
        top.shows("! The namespace local-primary cannot be read, read ", "! local-primary:orders", "\n local-seco")
        top.keys("p")
        top.shows("unreachable", "$ sbpair doctor local")
        assert full("emulator", "fault", "clear", "local-primary").code == 0
        top.keys("r")
        top.shows("reachable  reachable", but="! The namespace")


def test_an_entity_that_goes_while_it_is_looked_at(full: Sbpair) -> None:
    full.make_queue("gone")
    with terminal(full, "local-primary") as top:
        top.shows("entities 3")
        top.keys("/")
        top.keys("-l", "gone")
        top.keys("Enter", "Enter")
        top.shows("messages of local-primary:gone 0", but="Browsing")
        assert full("entity", "delete", "gone", "--namespace", "local-primary", "--yes").code == 0
        top.keys("r")
        top.shows("! Could not browse gone on local-primary", "could not be found")
        top.keys("Escape")
        top.shows("entities 2", but="gone")


def test_rates_come_from_two_reads(full: Sbpair) -> None:
    with terminal(full, "local-primary") as top:
        top.shows("local-primary:parcels")
        assert full("send", "parcels", "--namespace", "local-primary", stdin="x\n" * 50).code == 0
        growing = re.compile(r"local-primary:parcels +queue +50 +\+[\d.]+ ")
        text = until(lambda: growing.search(top.screen()), look_again_seconds=LOOK_AGAIN_SECONDS)
        assert text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((120, 40), " local-secondary:local-primary/x-servicebus-transfer/9 "),
        ((60, 12), "\nsort  c copy  q leave"),
        ((20, 4), "\nentities 12  every"),
        ((20, 4), ""),
    ],
)
def test_it_fits_what_the_terminal_becomes(full: Sbpair, size: tuple[int, int], text: str) -> None:
    """Without a text: the terminal is as large as before when the program gets round to looking at it. A shell may have
    exported the size that it had."""
    with terminal(full, LINES="24", COLUMNS="80") as top:
        top.shows("pairs 1")
        top.keys("e")
        top.shows("entities 12", "? help")
        if not text:
            os.kill(top.pid, signal.SIGSTOP)
        top.resize(*size)
        if text:
            top.shows("sbpair top", text)
        top.resize(80, 24)
        os.kill(top.pid, signal.SIGCONT)
        top.shows("entities 12", "? help")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_gives_the_terminal_back(full: Sbpair, number: signal.Signals, code: int) -> None:
    with terminal(full) as top:
        top.shows("pairs 1")
        subprocess.run(["kill", f"-{number.name.removeprefix('SIG')}", str(top.pid)], check=True)
        assert top.ended() == code
        assert "Traceback" not in top.shows("settled or")
        top.keys("-l", "typed again")
        top.shows("typed again", but="pairs 1")


@pytest.mark.parametrize("goes", [False, True])
def test_it_ends_soon_where_its_terminal_takes_no_output(full: Sbpair, goes: bool) -> None:
    """A signal ends it; where the terminal itself goes, it needs none (`trap '' HUP`)."""
    controller, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    process = full.start("top", "--interval", "1s", env=full.variables({"TERM": "xterm"}), **streams)
    stat, idle, seen = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat"), [""], b""
    while b"reachable" not in seen:
        seen += os.read(controller, 65_536)

    def waits() -> bool:
        """Whether the loop did nothing for many keys. Nobody reads what they have it draw."""
        os.write(controller, b"p" if len(idle) % 2 else b"e")
        did = stat.read_text()
        idle[:] = [*idle, did] if did == idle[-1] else [did]
        return len(idle) > 50

    try:
        until(waits, process, limit_seconds=SCREEN_SECONDS)
        if goes:
            os.close(controller)
            os.close(terminal)
        else:
            process.terminate()
        assert process.wait(SCREEN_SECONDS) == 143
        if not goes:
            assert termios.tcgetattr(terminal) == before
            os.close(controller)
            os.close(terminal)
    finally:
        process.kill()
        process.communicate()


def test_colours_are_for_those_who_want_them(full: Sbpair) -> None:
    for environ, arguments in (({"NO_COLOR": "1"}, ()), ({}, ("--no-color",))):
        with terminal(full, *arguments, **environ) as top:
            top.shows("pairs 1", "reachable")
            codes = {
                code for found in re.findall(r"\x1b\[([\d;]*)m", top.screen(styled=True)) for code in found.split(";")
            }
            assert not codes & {str(code) for code in (*range(30, 39), *range(40, 49), *range(90, 108))}, codes


def test_what_is_no_terminal_or_makes_no_sense_is_refused(full: Sbpair) -> None:
    piped = full("top", "local-primary")
    assert (piped.code, piped.stdout) == (2, "")
    assert "draws on a terminal" in piped.stderr
    assert "sbpair status --watch" in piped.stderr
    dumb = show(full, "top", environ={"TERM": "dumb"})
    assert (dumb.code, "TERM is dumb" in dumb.talk) == (2, True)
    assert "one second or more" in full("top", "--interval", "10ms").stderr
    assert "There is no pair named 'nobody'" in full("top", "--pair", "nobody").stderr


def test_without_textual_it_names_what_installs_it(full: Sbpair) -> None:
    (full.home / "without").mkdir(exist_ok=True)
    hiding = "import sys; sys.modules['textual'] = None"
    (full.home / "without" / "sitecustomize.py").write_text(hiding, encoding="utf-8")
    path = f"{full.home / 'without'}:{full.variables()['PYTHONPATH']}"
    with terminal(full, PYTHONPATH=path) as top:
        assert top.ended() == 2
        top.shows("needs the package textual", "pip install 'sbpair[top]'")
