"""SQL filters and actions, correlation filters."""

import pytest

from sbpair.amqp.sections import PropertyField, Section
from sbpair.amqp.types import Int, Long, Uint
from sbpair.emulator.broker.messages import parse
from sbpair.emulator.entities import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from sbpair.emulator.filters import BrokerMessageView, FilterEvaluationError, FilterSyntaxError, Rule, compile_filter
from sbpair.emulator.laws import Laws

PROPERTIES = {
    "color": "red",
    "Size": Int(7),
    "price": 2.5,
    "flag": True,
    "empty": None,
    "name": "50%_off",
    "big": Long(2**62),
    "with space": "x",
}


@pytest.fixture
def view(bench):
    payload = bench.message(
        "body", message_id="id-1", session="s", subject="Hello", properties=PROPERTIES, to="there", correlation_id="c"
    )
    return BrokerMessageView(parse(payload, Laws()))


def holds(view, expression, **parameters):
    return compile_filter(SqlFilter(expression=expression, parameters=parameters))(view)


@pytest.mark.parametrize(
    "expression",
    [
        "1=1",
        "color = 'red'",
        "COLOR = 'red'",
        "user.color = 'red'",
        "[color] = 'red'",
        "\"color\" = 'red'",
        "[with space] = 'x'",
        "color <> 'blue' and color != 'green'",
        "size > 6 AND size >= 7 AND size < 8 AND size <= 7",
        "price = 2.5",
        "price * 2 = 5",
        "size = 7.0",
        "size + 1 = 8",
        "size / 2 = 3",
        "size % 4 = 3",
        "-size = -7",
        "-7 / 2 = -3",
        "2 + 3 * 4 = 14",
        "(2 + 3) * 4 = 20",
        "color + 'dish' = 'reddish'",
        "flag = TRUE",
        "flag",
        "NOT flag = FALSE",
        "color IN ('blue', 'red')",
        "color NOT IN ('blue', 'green')",
        "size IN (1, 7)",
        "color LIKE 'r%'",
        "color LIKE '_ed'",
        "color NOT LIKE 'b%'",
        "name LIKE '50\\%%' ESCAPE '\\'",
        "name LIKE '50!%!_off' ESCAPE '!'",
        "missing IS NULL",
        "empty IS NULL",
        "color IS NOT NULL",
        "EXISTS(color)",
        "EXISTS(user.empty)",
        "NOT EXISTS(missing)",
        "sys.Label = 'Hello'",
        "SYS.messageid = 'id-1'",
        "sys.To = 'there' AND sys.SessionId = 's' AND sys.CorrelationId = 'c'",
        "property('color') = 'red'",
        "p('color') = 'red'",
        "big > 1",
        "1.5e1 = 15",
        "'it''s' = 'it''s'",
        "color = 'red' OR missing = 1",
        "missing = 1 OR TRUE = TRUE",
        "NOT (missing = 1 AND 1 = 2)",
    ],
)
def test_true(view, expression):
    assert holds(view, expression)


@pytest.mark.parametrize(
    "expression",
    [
        "1=0",
        "color = 'RED'",
        "missing = 1",
        "NOT missing = 1",
        "missing <> 1",
        "missing = 1 OR 1 = 2",
        "NOT (missing = 1)",
        "missing IN (1, 2)",
        "missing NOT IN (1, 2)",
        "color IN ('blue', missing)",
        "missing LIKE '%'",
        "missing + 1 > 0",
        "size LIKE '7'",
        "empty = NULL",
        "color = 7",
        "color > 7",
        "flag > FALSE",
        "color LIKE 'R%'",
        "name LIKE '50%off' AND name LIKE 'x'",
        "EXISTS(missing)",
    ],
)
def test_false_or_unknown(view, expression):
    assert not holds(view, expression)


def test_parameters(view):
    assert holds(view, "color = @color AND size > @least", color="red", least=3)
    assert not holds(view, "color = @color", **{"@color": "blue"})


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "color =",
        "= 1",
        "color = 'open",
        "color ! 1",
        "(color = 1",
        "color = 1)",
        "color IN ()",
        "color NOT 1",
        "color IS 1",
        "@missing = 1",
        "nosuchfunction(1) = 1",
        "other.color = 1",
        "99999999999999999999 = 1",
        "color = 1 color = 2",
        "EXISTS(1)",
        "(" * 100 + "1=1" + ")" * 100,
    ],
)
def test_syntax_errors(expression):
    with pytest.raises(FilterSyntaxError):
        compile_filter(SqlFilter(expression=expression))


@pytest.mark.parametrize(
    "expression", ["sys.nonsense = 1", "size / 0 = 1", "size % 0 = 1", "color * 2 = 1", "big * 4 > 0", "price / 0 = 1"]
)
def test_evaluation_errors(view, expression):
    with pytest.raises(FilterEvaluationError):
        holds(view, expression)


def test_correlation_compares_what_is_given(view):
    matching = CorrelationFilter(label="Hello", message_id="id-1", properties={"color": "red", "size": 7})
    assert compile_filter(matching)(view)
    for other in (
        CorrelationFilter(label="hello"),
        CorrelationFilter(reply_to="x"),
        CorrelationFilter(properties={"color": "red", "size": 8}),
        CorrelationFilter(properties={"missing": 1}),
        CorrelationFilter(properties={"size": "7"}),
    ):
        assert not compile_filter(other)(view)


def acted(bench, expression, **parameters):
    message = parse(bench.message("body", subject="old", properties={"color": "red", "size": Int(7)}), Laws())
    action = SqlAction(expression=expression, parameters=parameters)
    return Rule("r", RuleDescription(action=action), 0.0).changed(BrokerMessageView(message))


def test_actions_change_only_what_they_name(bench, property_of):
    message = acted(bench, "SET color = 'blue'; SET next = size + 1; REMOVE size; SET sys.Label = 'new';")
    assert message.section(Section.APPLICATION_PROPERTIES) == {"color": "blue", "next": Long(8), "RuleName": "r"}
    assert property_of(message, PropertyField.SUBJECT) == "new"


def test_later_statements_see_earlier_ones(bench):
    message = acted(bench, "SET a = 1; SET b = a + @more", more=Uint(4))
    assert message.section(Section.APPLICATION_PROPERTIES)["b"] == Long(5)


def test_statements_need_no_semicolon_between_them(bench):
    message = acted(bench, "SET a = 1 SET b = 'x' REMOVE size SET sys.Label = @label", label="new")
    properties = message.section(Section.APPLICATION_PROPERTIES)
    assert (properties["a"], properties["b"], "size" in properties) == (Long(1), "x", False)


def test_setting_the_session_steers_the_message(bench):
    assert acted(bench, "SET sys.SessionId = 'there'").head.session_id == "there"


@pytest.mark.parametrize(
    "expression",
    ["", "color = 1", "SET color", "SET sys.SequenceNumber = 1", "SET a = 1, SET b = 2", "SET a = 1 b = 2"],
)
def test_bad_actions(bench, expression):
    with pytest.raises(FilterSyntaxError):
        acted(bench, expression)


def test_an_action_on_a_missing_value_fails(bench):
    with pytest.raises(FilterEvaluationError):
        acted(bench, "SET a = missing + 1")


@pytest.mark.law("properties-without-case")
@pytest.mark.parametrize(
    ("expression", "after"),
    [
        ("SET COLOR = 'blue'", {"color": "blue", "size": Int(7)}),
        ("REMOVE Size", {"color": "red"}),
        ("SET New = 'x'", {"color": "red", "size": Int(7), "New": "x"}),
        ("SET New = 'x'; SET NEW = 'y'", {"color": "red", "size": Int(7), "New": "y"}),
        ("REMOVE color; SET COLOR = 'blue'", {"size": Int(7), "COLOR": "blue"}),
        ("SET New = 'x'; REMOVE new", {"color": "red", "size": Int(7)}),
    ],
)
def test_actions_find_a_property_whatever_its_case(bench, expression, after):
    assert acted(bench, expression).section(Section.APPLICATION_PROPERTIES) == after | {"RuleName": "r"}


@pytest.mark.law("properties-without-case")
@pytest.mark.parametrize(("expression", "found"), [("COLOR = 'red'", True), ("color = 'RED'", False)])
def test_filters_compare_values_alone_with_case(bench, expression, found):
    view = BrokerMessageView(parse(bench.message("x", properties={"Color": "red"}), Laws()))
    assert holds(view, expression) is found
