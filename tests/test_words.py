"""One word for one act and thing: the words' table in the package's docstring, and words that stand nowhere."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import sbpair

ROOT = Path(sbpair.__file__).parent
MOST_WORDS = 50

NOT_IN_NAMES = frozenset(
    [
        "abandoning",
        "anew",
        "audience",
        "chronicle",
        "kept",
        "likes",
        "look",
        "meant",
        "one",
        "overlapped",
        "stoppable",
        "told",
        "unless",
        "wish",
    ]
)
"""Pronouns and metaphors: a name says which thing, in the words of AMQP, Service Bus, asyncio, anyio and Spark."""
LEFT_IN_NAMES = {
    # Words of the protocols, and of Python's: `aud` of a token, an option of `ping`, a line of text.
    *("engine/auth.py:SERVICE_BUS_AUDIENCE", "engine/auth.py:audience", "operations/ping.py:by_look_up"),
    *("core/failover/measured.py:LOOK_UP", "runtime/failover/backlog.py:ONE_KEY"),
    *("core/replication/ownership.py:LookUp", "core/inspection/audit/findings.py:in_one_line"),
    # A field of 1.0's JSON.
    "core/transfer/restored.py:kept_in",
    # The number.
    *(f"emulator/laws/entities.py:{act}_one_partition" for act in ("deferred", "peek", "settle", "transaction")),
    *("cli/replication/replicate.py:one_side", "pipeline/reports.py:one_side"),
    *("cli/transfer/options.py:one_namespace", "emulator/broker/intake.py:in_one_transfer"),
    "operations/drain.py:of_one_process",
}
NOT_IN_SENTENCES = re.compile(r"\b(?:whoever|so many|anew|for good)\b", re.IGNORECASE)
NOT_FOR_USERS = re.compile(
    r"\b(?:(?:is|are|was|were|been?) told|told (?:by|of)|tells? (?:of|nothing)|not tell|unasked|not asked for"
    r"|nobody (?:can be asked|is there|lists|looks|knows|holds)|(?:fall|fell) together|speaks? of"
    r"|(?:knows?|sees?|takes) (?:no|nothing)|takes (?:only )?messages|more like it|the answer was no)\b",
    re.IGNORECASE,
)
"""In pages, help and texts that commands print: messages, queues and commands are not persons."""
SHARED = {"ServiceBusClient", "ServiceBusSender"}
"""Class names that stand twice: the SDK's, of its two ways to call."""
MOST_LINES_OF_ONE = 3
"""A loop over more lines says what it goes over."""


def files() -> Iterator[tuple[str, str]]:
    for file in sorted(ROOT.rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), file.read_text("utf-8")


def public_names(tree: ast.AST) -> Iterator[str]:
    """Classes, functions, their parameters and fields that other modules may use; what functions hold is their own."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_"):
                continue
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from public_names(node)
            else:
                yield from (given.arg for given in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_")


def parts(name: str) -> set[str]:
    return {part.lower() for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)}


def forbidden_names(source: str) -> set[str]:
    return {name for name in public_names(ast.parse(source)) if parts(name) & NOT_IN_NAMES}


def long_loops_over_one(source: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.For | ast.AsyncFor)
        and any(isinstance(name, ast.Name) and name.id == "one" for name in ast.walk(node.target))
        and (node.end_lineno or node.lineno) - node.lineno > MOST_LINES_OF_ONE
    ]


def test_the_table_of_words_is_short_and_each_stands_once() -> None:
    assert sbpair.__doc__ is not None
    table = sbpair.__doc__.split("The words,")[1].split("The public names")[0]
    words = re.findall(r"^    (\S.*?)  +\S", table, re.MULTILINE)
    single = [word for cell in words for word in cell.split(", ")]
    assert 30 < len(words) <= MOST_WORDS
    assert len(set(single)) == len(single)
    verbs = {name for name in __import__("sbpair.operations").operations.__all__ if name.islower() and "_" not in name}
    assert verbs - {"empty"} <= {word for cell in single for word in cell.split()}, "each verb is explained"


def test_no_public_name_has_a_forbidden_word() -> None:
    found = {f"{path}:{name}" for path, source in files() for name in forbidden_names(source)}
    assert found - LEFT_IN_NAMES == set(), "say which thing it is"
    assert LEFT_IN_NAMES - found == set(), "these exceptions are needed no more"


def test_no_docstring_comment_or_help_has_a_forbidden_word() -> None:
    places = (*files(), *((page.name, page.read_text("utf-8")) for page in ROOT.glob("cli/pages/*.md")))
    found = {f"{path}: {match[0]}" for path, text in places for match in NOT_IN_SENTENCES.finditer(text)}
    assert found == set()


def texts(source: str) -> Iterator[str]:
    """What a module may show: its string constants, and the docstrings of commands, which are their help."""
    tree = ast.parse(source)
    hidden = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    hidden |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.value
        elif isinstance(node, ast.FunctionDef) and "Annotated[" in ast.unparse(node.args):
            yield ast.get_docstring(node) or ""


def phrases(text: str) -> list[str]:
    return [match[0] for match in NOT_FOR_USERS.finditer(" ".join(text.split()))]


def test_no_text_for_users_speaks_of_things_as_persons() -> None:
    places = [(path, text) for path, source in files() for text in texts(source)]
    pages = (*ROOT.glob("cli/pages/*.md"), ROOT.parent / "README.md")
    places += [(page.name, page.read_text("utf-8")) for page in pages]
    assert {(path, phrase) for path, text in places for phrase in phrases(text)} == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("""say("The tier is told by ARM")""", ["is told"]),
        ("""say(f"{place} takes" " messages again")""", ["takes messages"]),
        ("""def run(x: Annotated[str, 1]):\n    \'Delete it unasked.\'""", ["unasked"]),
        ("""def run(x):\n    \'Nobody can be asked.\'""", []),
        ("""say("It accepts messages.")""", []),
    ],
)
def test_phrases_are_found_in_what_users_read(source: str, found: list[str]) -> None:
    assert [phrase for text in texts(source) for phrase in phrases(text)] == found


def test_no_long_loop_is_over_one() -> None:
    assert [(path, line) for path, source in files() for line in long_loops_over_one(source)] == []


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for _, source in files()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in names.items() if times > 1} == SHARED


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def told(): ...", {"told"}),
        ("class Likes:\n    kept_here: int", {"Likes", "kept_here"}),
        ("def run(wish): ...", {"wish"}),
        ("def _run(wish):\n    one = 1", set()),
        ("def money(phone): ...", set()),
        ("ONE_TIME = 1", {"ONE_TIME"}),
    ],
)
def test_names_are_found_where_others_see_them(source: str, found: set[str]) -> None:
    assert forbidden_names(source) == found


def test_loops_over_one_are_found_by_their_length() -> None:
    body = "\n    ".join(["print(one)"] * 4)
    assert long_loops_over_one(f"for one in ():\n    {body}") == [1]
    assert long_loops_over_one("for one in ():\n    print(one)") == []
