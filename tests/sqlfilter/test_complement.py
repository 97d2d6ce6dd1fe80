"""What no rule takes: each message is taken by the rules or by their complement, never by both."""

import random
import uuid
from collections.abc import Iterator

import pytest

from sbpair.sqlfilter.complement import NOTHING, NotWritable, complement_of, failing_parts, never
from sbpair.sqlfilter.parser import parse_filter
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError

NAMES = ("country", "amount", "urgent", "[order-id]")
TEXTS = ("'DE'", "'FR'", "'it''s'", "'50%'", "''")
NUMBERS = ("0", "7", "-3", "2.5", "1e3")
PATTERNS = ("'D%'", "'_R'", "'%s'", "'50!%' ESCAPE '!'", "'%'")
VALUES = ("DE", "FR", "it's", "50%", "", "Rome", 0, 7, -3, 2.5, 1000, 12, True, False, None, float("nan"))
STRANGE = (uuid.UUID(int=5), b"DE")


class Message:
    def __init__(self, properties: dict[str, object]) -> None:
        self.properties = {name.lower(): value for name, value in properties.items()}

    def user(self, name: str) -> object:
        return self.properties.get(name.lower(), UNKNOWN)

    def system(self, name: str) -> object:
        if name.lower() not in ("label", "messageid"):
            raise FilterEvaluationError(f"There is no system property '{name}'.")
        return self.properties.get(f"sys.{name.lower()}", UNKNOWN)

    def new_id(self) -> uuid.UUID:
        return uuid.uuid4()

    def spend(self, steps: int) -> None:
        pass


def operand(random_: random.Random) -> str:
    return random_.choice((*NAMES, *NAMES, "sys.Label", "user.Country"))


def constant(random_: random.Random) -> str:
    return random_.choice((*TEXTS, *NUMBERS, "TRUE", "FALSE", "NULL", "@when"))


def condition(random_: random.Random, depth: int = 0) -> str:
    if depth < 3 and random_.random() < 0.45:
        parts = [condition(random_, depth + 1) for _ in range(random_.randint(2, 3))]
        text = random_.choice((" AND ", " OR ")).join(f"({part})" if random_.random() < 0.7 else part for part in parts)
        return f"NOT ({text})" if random_.random() < 0.3 else text
    one = operand(random_)
    match random_.randrange(9):
        case 0:
            return f"{one} {random_.choice(('<', '<=', '>', '>='))} {random_.choice((*NUMBERS, *TEXTS))}"
        case 1:
            return f"{one} {random_.choice(('', 'NOT '))}LIKE {random_.choice(PATTERNS)}"
        case 2:
            choices = ", ".join(constant(random_) for _ in range(random_.randint(1, 4)))
            return f"{one} {random_.choice(('', 'NOT '))}IN ({choices})"
        case 3:
            return f"{one} IS {random_.choice(('', 'NOT '))}NULL"
        case 4:
            return f"{random_.choice(('', 'NOT '))}EXISTS({one})"
        case 5:
            return f"{one} {random_.choice(('=', '<>'))} {operand(random_)}"
        case 6:
            return random_.choice(("urgent", "NOT urgent", "1=1", "1=0", "TRUE", "NOT sys.Label = 'DE'"))
        case _:
            left, right = one, constant(random_)
            return " = ".join((right, left) if random_.random() < 0.2 else (left, right))


def messages(random_: random.Random, values: tuple[object, ...]) -> Iterator[Message]:
    for _ in range(4):
        names = [name for name in ("country", "amount", "urgent", "order-id", "sys.label") if random_.random() < 0.7]
        yield Message({name: random_.choice(values) for name in names})


def of_kind(value: object, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)


def test_each_message_is_in_exactly_one_of_matched_and_unmatched() -> None:
    random_ = random.Random(39)
    seen = {"matched": 0, "unmatched": 0, "gap": 0}
    for number in range(1_000):
        rules = [condition(random_) for _ in range(random_.randint(1, 6))]
        parsed = [parse_filter(rule, {"@when": uuid.UUID(int=5)}) for rule in rules]
        complement = complement_of(parsed)
        again = parse_filter(complement.sql, complement.parameters)
        for message in messages(random_, VALUES if number % 4 else (*VALUES, *STRANGE)):
            matched = any(rule(message) is True for rule in parsed)
            unmatched = again(message) is True
            assert unmatched is (complement.condition(message) is True), complement.sql
            if matched or unmatched:
                assert matched is not unmatched, (rules, complement.sql, message.properties)
                seen["matched" if matched else "unmatched"] += 1
                continue
            named = [
                gap
                for gap in complement.gaps
                if (value := parse_filter(gap.property, {})(message)) is not UNKNOWN
                and value is not None
                and not of_kind(value, gap.kind)
            ]
            assert named, (rules, complement.sql, message.properties)
            seen["gap"] += 1
    assert min(seen.values()) > 50, seen
    assert seen["gap"] < 0.2 * sum(seen.values()), seen


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["1=1", "country = 'DE'"], "1=0"),
        (["1=0"], "1=1"),
        (["country = NULL"], "1=1"),
        (["country = 'DE'"], "country <> 'DE' OR country IS NULL"),
        (["country = 'DE'", "country IN ('FR', 'DE')"], "country NOT IN ('DE', 'FR') OR country IS NULL"),
        (["urgent"], "urgent <> TRUE OR urgent IS NULL"),
        (["NOT urgent"], "urgent <> FALSE OR urgent IS NULL"),
        (["EXISTS(urgent)"], "NOT EXISTS(urgent)"),
        (["NOT (amount < 5)"], "amount < 5 OR amount IS NULL"),
        (["a = 1 AND b = 2", "a = 1"], "a <> 1 OR a IS NULL"),
        (["[order-id] = 1 OR sys.Label LIKE 'x%'"], "([order-id] <> 1 OR [order-id] IS NULL) AND "
         "(sys.Label NOT LIKE 'x%' OR sys.Label IS NULL)"),
    ],
)  # fmt: skip
def test_the_text_of_a_complement(rules: list[str], expected: str) -> None:
    text = complement_of(parse_filter(rule, {}) for rule in rules).sql
    assert text.replace("1 = ", "1=") == expected


@pytest.mark.parametrize("rule", ["id = newid()", "property('a') = 1", "(a = 1) = TRUE", "p(a) = 2", "1/0 = 1"])
def test_what_the_language_cannot_say_is_refused(rule: str) -> None:
    with pytest.raises(NotWritable):
        complement_of([parse_filter(rule, {})])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("1=0", True),
        ("FALSE", True),
        ("a = NULL", True),
        ("a = 1 AND a = 2", True),
        ("a = 1 AND a IN (2, 3)", True),
        ("a > 5 AND a < 5", True),
        ("a IS NULL AND a = 1", True),
        ("1=0 OR (b = 1 AND B = 'x')", True),
        ("'a' LIKE 'b!' ESCAPE '!'", True),
        ("a > 1e17", False),
        ("a < -1e300", False),
        ("a > 1e308 AND a < 1.7e308", False),
        ("a > 1e17 AND a < 100000000000000016", False),
        ("a > 5 AND a < 6", False),
        ("a > 'x' AND a < 'x'", False),
        ("a = 1 OR a = 2", False),
        ("a = 'x' AND b = 'y'", False),
        ("a + 1 = 2", False),
        ("a", False),
        ("1=1", False),
        ("a >= 5 AND a <= 5", False),
        ("a <> 1 AND a <> 2", False),
    ],
)
def test_whether_a_rule_can_match(rule: str, expected: bool) -> None:
    assert never(parse_filter(rule, {})) is expected


def test_a_rule_that_is_said_never_to_match_matches_nothing() -> None:
    random_ = random.Random(7)
    said = 0
    for _ in range(3_000):
        text = condition(random_)
        rule = parse_filter(text, {"@when": 1})
        if never(rule):
            said += 1
            assert not any(rule(message) is True for message in messages(random_, (*VALUES, *STRANGE))), text
    assert said > 100


def test_the_parts_that_fail_are_named_with_what_the_message_has() -> None:
    rule = parse_filter("(country = 'DE' OR country = 'AT') AND amount > 5 AND urgent AND sys.Label = 'a'", {})
    message = Message({"country": "FR", "urgent": True, "sys.label": "a"})
    assert [str(part) for part in failing_parts(rule, message)] == [
        "country = 'DE' is false: country is 'FR'",
        "country = 'AT' is false: country is 'FR'",
        "amount > 5 is unknown: amount is not set",
    ]
    assert complement_of([]).condition != NOTHING
