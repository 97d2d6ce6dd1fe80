"""Rules of subscriptions: SQL filters and actions, correlation filters, and the view of a message they look at."""

from sbpair.emulator.filters.errors import FilterEvaluationError, FilterSyntaxError
from sbpair.emulator.filters.rules import Rule, compile_action, compile_filter
from sbpair.emulator.filters.view import MessageView

__all__ = [
    "FilterEvaluationError",
    "FilterSyntaxError",
    "MessageView",
    "Rule",
    "compile_action",
    "compile_filter",
]
