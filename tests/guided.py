"""The fuzzer's targets steered by the branches that they reach: `python -m tests.guided TARGET --minutes N`.

Needs atheris (`pip install atheris`), whose libFuzzer changes the bytes from which a case takes its decisions and keeps
what reaches something new. It begins with `tests/corpus/TARGET`, if there is one.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="see tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args()
    try:
        import atheris
    except ModuleNotFoundError:
        raise SystemExit("This needs atheris: pip install atheris") from None
    with atheris.instrument_imports(include=["sbpair"]):
        from tests import fuzz
    folder = Path(tempfile.mkdtemp(prefix="sbpair-guided-"))
    found = folder / "found"
    found.mkdir()
    case = fuzz.targets_in(folder)[options.target]

    loop = asyncio.new_event_loop()

    async def one_case(data: bytes) -> None:
        case(fuzz.Decisions(data))

    def one_input(data: bytes) -> None:
        loop.run_until_complete(one_case(data))  # a connection wants a running loop, as `fuzz.run` has one

    flags = [f"-max_total_time={max(1, round(options.minutes * 60))}", "-timeout=10", f"-artifact_prefix={folder}/"]
    # What is new goes to the first folder; the other, which few targets have, is read.
    folders = [str(one) for one in (found, CORPUS / options.target) if one.is_dir()]
    atheris.Setup([sys.argv[0], *flags, *folders], one_input)
    print(f"What reaches something new, and an input that fails, are in {folder}.")
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
