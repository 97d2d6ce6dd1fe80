"""Before a command writes: which pairs it may change, and the question on a terminal.

One convention for all: a command shows what it is going to do, asks on a terminal, and does it with `--yes`, with
`--no-input` or without a terminal as far as it is safe. Nothing is written to a pair that nobody named.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.options import PAIR, Options
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.errors import UsageError
from sbpair.core.pairing import Pair, Side
from sbpair.core.redact import printable
from sbpair.render.console import say

if TYPE_CHECKING:
    from sbpair.settings import Settings

LOCAL_PAIR = "local"
ENVIRONMENT_PAIR = "environment"
AllPairsOption = Annotated[bool, typer.Option(help="Every configured pair.")]


def can_ask(options: Options) -> bool:
    """Whether somebody sits there who can answer."""
    return not options.no_input and sys.stdin.isatty()


def will_ask(options: Options) -> bool:
    """Whether a question is put: somebody can answer it, and has not done so with `--yes`."""
    return not options.yes and can_ask(options)


def agreed(options: Options, question: str) -> bool:
    """Whether to go on: asked on a terminal, taken for granted with `--yes` or where nobody can answer."""
    return not will_ask(options) or _confirmed(question)


def _confirmed(question: str) -> bool:
    """The answer to a question, asked again until it is yes or no."""
    from sbpair.render.prose import laid_out, terminal_columns

    forget_typed_ahead()
    # The answers stand behind the last words of the question, never on a line of their own.
    *before, last = laid_out(printable(question), terminal_columns(sys.stderr) - len(_ANSWERS))
    for line in before:
        say(line)
    while True:
        answer = typer.prompt(f"{last} [y/N]", default="", show_default=False, err=True).strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        last = "Answer y or n."


def forget_typed_ahead() -> None:
    """What was typed before a question was put is no answer to it."""
    if find_spec("termios") is not None:
        import termios

        with suppress(termios.error, OSError, ValueError):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


_ANSWERS = " [y/N]: "
"""What typer puts after a question."""


def named(access: NamespaceAccess, environment: str | None) -> str:
    """`contoso-neu [production]`: a namespace as sentences call it."""
    return f"{shown_name(access)} [{environment}]" if environment else shown_name(access)


def named_in(settings: "Settings", access: NamespaceAccess) -> str:
    """The same, with the environment that is configured for it."""
    return named(access, settings.environment_of(access))


def side_named(pair: Pair, side: Side = Side.SECONDARY) -> str:
    """The namespace that is written to, as configured."""
    return named(pair.secondary if side is Side.SECONDARY else pair.primary, pair.environment)


def go_ahead(options: Options, doing: str, *, state: str) -> bool:
    """Ask on a terminal whether to do what `doing` says; taken for granted with `--yes` or where nobody can answer.
    `state`: how things stand if the answer is no. Whether somebody was asked, and so has read what begins.

    Raises:
        UsageError: the answer was no.
    """
    if not agreed(options, f"{doing}?"):
        raise UsageError(f"Cancelled. {state}", hint="--yes does it without asking.")
    return will_ask(options)


def go_ahead_by_name(options: Options, doing: str, name: str, *, state: str) -> None:
    """As `go_ahead`, for what cannot be taken back: the answer is the name, and only `--yes` takes it for granted.

    Raises:
        UsageError: another answer, or nobody can answer.
    """
    if options.yes:
        return
    if not can_ask(options):
        raise UsageError(
            f"Not deleted: there is no terminal to confirm on. {state}", hint="Add --yes to delete without a question."
        )
    forget_typed_ahead()
    say(f"{doing}.")
    if typer.prompt(printable(f"Type {name} to go on"), default="", show_default=False, err=True).strip() != name:
        raise UsageError(f"Cancelled: the answer was not {name}. {state}", hint="--yes does it without asking.")


def tell_that_it_reads(options: Options) -> None:
    """Somebody who typed a command without its input sees nothing else, and would wait."""
    if can_ask(options) and not options.quiet:
        say("Reading lines from the keyboard; end with Ctrl-D.")


def pair_to_write(options: Options, settings: "Settings", name: str | None, doing: str, *, named_by: str = "") -> Pair:
    """The pair that a writing command is for: the named or the default one. One that nobody named is asked for, unless
    it is that of the embedded namespaces, or in a dry run. `named_by`: the option that names it, if no argument does.

    Raises:
        UsageError: none was named, and nobody can be asked or the answer was no.
    """
    pair = settings.pair(name)
    named = name is not None or settings.get("default_pair") is not None or pair.name == LOCAL_PAIR
    named = named or (options.yes and pair.name == ENVIRONMENT_PAIR)  # the variables of this run name it
    question = f"{doing} {pair.name} ({side_named(pair)})?"
    if not (named or options.dry_run or (will_ask(options) and _confirmed(question))):
        name = f"{named_by} {pair.name}".lstrip()
        raise UsageError("No pair was named, and this command writes. Nothing was done.", hint=f"Name it: {name}")
    PAIR.set(pair.name)
    return pair


def pairs_to_write(
    options: Options, settings: "Settings", names: Sequence[str] | None, *, all_pairs: bool, doing: str
) -> list[Pair]:
    """As `pair_to_write`, for commands that take several pairs.

    Raises:
        UsageError: see `pair_to_write`; or names together with --all-pairs.
    """
    if all_pairs:
        if names:
            raise UsageError("--all-pairs means every configured pair; name none beside it.")
        configured = [name for name in settings.pair_names() if name != LOCAL_PAIR]
        return [settings.pair(name) for name in configured or settings.pair_names()]
    if names:
        return [settings.pair(name) for name in names]
    return [pair_to_write(options, settings, None, doing)]
