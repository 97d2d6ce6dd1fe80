"""The part of the suite to run while editing: `python -m tests.quick`, with pytest's own options after it.

It has what decides and what is written: the pure rooms, the runtime on virtual time, settings, formats and helps. What
starts namespaces, Spark or other people's clients, and the programs of tests that wait for real time, is left to the
whole suite.
"""

import sys

import pytest

PATHS = (
    "tests/amqp",
    "tests/core",
    "tests/golden",
    "tests/journal",
    "tests/render",
    "tests/settings",
    "tests/sqlfilter",
    "tests/cli/test_advice.py",
    "tests/cli/test_contents.py",
    "tests/cli/test_renamed.py",
    "tests/runtime/inspection/test_backlog.py",
    "tests/runtime/inspection/test_gather.py",
    "tests/runtime/replication/test_handlers.py",
    "tests/test_concurrency.py",
    "tests/runtime/failover/test_sender.py",
    "tests/runtime/failover/test_sender_simulation.py",
    "tests/runtime/transfer/test_service.py",
    "tests/test_public_names.py",
)

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-n", "2", *PATHS, *sys.argv[1:]]))
