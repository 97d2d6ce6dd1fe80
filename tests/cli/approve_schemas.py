"""`python -m tests.cli.approve_schemas`: write down what commands print with `-o json`, in tests/approved/schemas.txt.

It names each difference. What is additive, a new field say, is accepted; for what breaks scripts it ends with 1 and
writes nothing, unless `--breaking` says that this is meant.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from sbpair.cli.help import envelope_schema, outputs
from tests.cli.schema_digest import Change, Kind, Reader, changes, kinds_of, written

APPROVED = Path(__file__).parent.parent / "approved" / "schemas.txt"
EVERY_COMMAND = "every command"
_ACCEPT = "--breaking"


def current() -> dict[str, tuple[Kind, ...]]:
    """What each command writes as `data`, and what is around it in all of them."""
    places, around = {}, set()
    for command, output in outputs().items():
        envelope = envelope_schema(command, output)
        assert envelope.pop("oneOf") == [{"required": ["data"]}, {"required": ["error"]}]
        assert envelope["properties"]["command"].pop("enum") == [command, ""]
        places[command] = kinds_of(envelope["properties"].pop("data"))
        around.add(kinds_of(envelope))
    (places[EVERY_COMMAND],) = around
    return places


def differences(approved: Path = APPROVED) -> list[Change]:
    return changes(Reader(approved.read_text(encoding="utf-8")).places(), current())


def main(arguments: Sequence[str], approved: Path = APPROVED) -> int:
    found = differences(approved)
    for change in found:
        print(change)
    if any(change.breaking for change in found) and _ACCEPT not in arguments:
        print(f"Not written. If scripts are to break: python -m tests.cli.approve_schemas {_ACCEPT}", file=sys.stderr)
        return 1
    approved.write_text(written(current()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
