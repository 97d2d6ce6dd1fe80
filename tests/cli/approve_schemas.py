"""`python -m tests.cli.approve_schemas`: write the JSON Schemas of all commands to tests/approved/schemas.

What Git then shows is the change of the contract: fields may come, none may go or change.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbpair.cli.schema import envelope_schema, outputs

FOLDER = Path(__file__).parent.parent / "approved" / "schemas"


def approved_file(command: str) -> Path:
    return FOLDER / f"{command.replace(' ', '-')}.json"


def written(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def main() -> None:
    files = {approved_file(command): written(envelope_schema(command, output)) for command, output in outputs().items()}
    for gone in set(FOLDER.glob("*.json")) - set(files):
        gone.unlink()
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
