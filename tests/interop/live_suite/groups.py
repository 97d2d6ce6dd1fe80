"""The suite's tests, by what they need."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that run together: pytest's arguments for what to collect, and whether several processes may share them."""

    name: str
    selection: tuple[str, ...]
    parallel: bool
    timeout_seconds: int


_DATA_FILES = ("queues", "sessions", "subscriptions", "topic", "list_sessions", "sb_client")

UNIT = Group(
    "unit",
    (
        "unittests",
        *(
            f"test_{name}.py"
            for name in (
                "batch_sizing",
                "connection_string_parser",
                "dictmixin_amqp",
                "message",
                "mgmt_client_kwargs",
                "tracing",
            )
        ),
    ),
    parallel=False,
    timeout_seconds=60,
)
# Its tests empty the namespace first, so they take turns.
MANAGEMENT = Group("management", ("mgmt_tests",), parallel=False, timeout_seconds=60)
# Some of these wait for minutes on purpose.
DATA = Group(
    "data",
    (*(f"test_{name}.py" for name in _DATA_FILES), *(f"async_tests/test_{name}_async.py" for name in _DATA_FILES)),
    parallel=True,
    timeout_seconds=900,
)
GROUPS = {group.name: group for group in (UNIT, MANAGEMENT, DATA)}
SENDING = ("unit", "data")
"""What there is to say about clients that send."""
