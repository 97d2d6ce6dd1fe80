"""What can go wrong with a rule: when it is made, and when it meets a message."""


class FilterSyntaxError(ValueError):
    """The text of a filter or action cannot be parsed; the message says where and what was expected."""


class FilterEvaluationError(Exception):
    """A filter or action cannot be evaluated for a message: unknown system property, division by zero, wrong type."""
