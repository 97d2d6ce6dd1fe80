"""`sbpair pipeline replication-audit` on what peeks and consumers left: its tables, exit codes and mistakes."""

import json
from pathlib import Path

import pytest

from tests.cli.process import Ran, Sbpair
from tests.cli.schema_checks import check_document
from tests.pipeline.replication.replicated import DESTINATION, Archives, done, journal_of, story

COMMAND = ("pipeline", "replication-audit", "--engine", "local", "--remember", "3650d", "--retention", "3650d")


def given(folder: Path, archives: Archives) -> tuple[str, ...]:
    written = archives.as_lines(folder)
    sides = ("--primary-archive", *written["primary"], "--secondary-archive", *written["secondary"])
    return (*sides, "--journal", f"sqlite:{folder / 'journal.db'}")


def test_findings_end_with_5_and_none_with_0(sbpair: Sbpair, tmp_path: Path) -> None:
    archives, records, entries, expected = story()
    journal_of(tmp_path / "journal.db", records, entries)
    asked = (*COMMAND, *given(tmp_path, archives))
    found = sbpair(*asked, "-o", "json")
    data = check_document("pipeline replication-audit", found.stdout)["data"]
    assert found.code == 5, found
    listed = {(one["session_id"], one["message_id"], one["verdict"]) for one in data["listed"]}
    assert {(*key, verdict) for key, said in expected.items() for verdict in said} <= listed
    assert sum(data["counts"].values()) == data["findings"] == len(data["listed"])
    assert [one["destination"] for one in data["destinations"]] == [DESTINATION]
    assert "w2 names it (st:1) as accepted before" in data["listed"][0]["why"]
    assert "1 missing" in found.stderr

    well = Archives()
    well.put("s", "m1", (1, 1))
    journal_of(tmp_path / "well.db", [done("s", "m1", 1)], [])
    quiet = sbpair(*COMMAND, *given(tmp_path, well)[:4], "--journal", f"sqlite:{tmp_path / 'well.db'}", "-o", "json")
    assert (quiet.code, quiet.data["findings"], quiet.data["completed"]) == (0, 0, 1), quiet


@pytest.mark.parametrize(
    ("instead", "code", "said"),
    [
        ({"--journal": "sqlite:nowhere.db"}, 2, "There is no journal nowhere.db"),
        ({"--journal": "sqlite:text.jsonl"}, 1, "is not a journal"),
        ({"--journal": "cosmos:http://127.0.0.1:9/db/c"}, 6, "cannot be reached"),
        ({"--primary-archive": "text.jsonl"}, 2, "text.jsonl is not an archive"),
    ],
)
def test_what_cannot_be_read_is_told(
    sbpair: Sbpair, tmp_path: Path, instead: dict[str, str], code: int, said: str
) -> None:
    archives = Archives()
    archives.put("s", "m1", (1, 1))
    journal_of(tmp_path / "journal.db", [done("s", "m1", 1)], [])
    (sbpair.home / "text.jsonl").write_text(json.dumps({"no": "message"}) + "\n")
    words = given(tmp_path, archives)
    options = dict(zip(words[::2], words[1::2], strict=True)) | instead
    ran: Ran = sbpair(*COMMAND, *(word for pair in options.items() for word in pair))
    assert ran.code == code, ran
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
