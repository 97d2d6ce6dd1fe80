"""Every ledger as one DataFrame (`schemas.OUTCOME_COLUMNS`): files of `runtime.transfer.ledger`, and folders of them.

Ledgers of replays before 0.1 are read too: their folder `folded` holds Parquet, files and whole folders of them, beside
lines with a field `dead_letter`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.core.errors import UsageError
from sbpair.core.names import DEAD_LETTER_SUFFIX
from sbpair.pipeline.paths import spark_path
from sbpair.pipeline.runs import ledger_files
from sbpair.pipeline.schemas import OUTCOME_COLUMNS, struct
from sbpair.runtime.transfer.ledger import BATCH_OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINE_COLUMNS = (
    ("queue", "string"),
    ("dead_letter", "boolean"),
    ("sequence_number", "bigint"),
    ("enqueued_at_ms", "bigint"),
    ("message_id", "string"),
    ("session_id", "string"),
    ("destination", "string"),
    ("digest", "string"),
    ("outcome", "string"),
    ("reason", "string"),
    ("attempts", "int"),
    ("time", "timestamp"),
    ("from_namespace", "string"),
)
LEDGER_KEY = ("queue", "dead_letter", "sequence_number", "enqueued_at_ms")
FOLDED = "folded"


def read_ledgers(spark: "SparkSession", paths: Sequence[str]) -> "DataFrame":
    """All lines of the ledgers; `source` is the ledger's path.

    Raises:
        UsageError: a path that is not there, or a file whose lines are not a ledger's.
    """
    frames = [_one(spark, path) for path in paths]
    if not frames:
        return spark.createDataFrame([], struct(OUTCOME_COLUMNS))
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionByName(other)
    return frame


def _one(spark: "SparkSession", path: str) -> "DataFrame":
    from pyspark.sql import functions as F

    place = Path(path).expanduser().absolute()
    if place.is_dir():
        return ledger_folder(spark, place).withColumn("source", F.lit(path))
    if not place.is_file():
        raise UsageError(f"There is no ledger {path}.")
    lines = _lines(spark, [place])
    if not place.stat().st_size or lines.limit(1).count():
        return _outcomes(lines).withColumn("source", F.lit(path))
    raise UsageError(f"{path} is not a ledger: it has no line with queue, sequence number and outcome.")


def ledger_folder(spark: "SparkSession", folder: Path) -> "DataFrame":
    """The ledgers in a folder, each line once (a crash while folding left some in both forms)."""
    lines, folded = _files_of(folder)
    frames = [_outcomes(_lines(spark, lines))] if lines else []
    if folded:
        frames.append(spark.read.schema(struct(OUTCOME_COLUMNS)).parquet(*(spark_path(path) for path in folded)))
    if len(frames) == 2:
        return frames[0].unionByName(frames[1]).dropDuplicates([*LEDGER_KEY, "outcome", "at"])
    return frames[0] if frames else spark.createDataFrame([], struct(OUTCOME_COLUMNS))


def has_lines(folder: Path) -> bool:
    """Whether anything was written into a folder of ledgers."""
    return any(_files_of(folder))


def _files_of(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of lines, and Parquet that is complete."""
    visible = [path for path in (folder / FOLDED).glob("*") if not path.name.startswith(".")]
    folded = [path for path in visible if path.suffix == ".parquet" or (path / "_SUCCESS").exists()]
    return ledger_files(folder), sorted(folded)


def _lines(spark: "SparkSession", files: Sequence[Path]) -> "DataFrame":
    """The whole lines about messages. One that a crash cut off reads as nothing and goes."""
    read = spark.read.schema(struct(LINE_COLUMNS)).json([spark_path(path) for path in files])
    whole = read.where("queue IS NOT NULL AND sequence_number IS NOT NULL AND outcome IS NOT NULL")
    return whole.where(~whole.outcome.isin(*BATCH_OUTCOMES))


def _outcomes(lines: "DataFrame") -> "DataFrame":
    """Lines in the columns of a ledger. The dead-letter sub-queue is part of the path, or in older ones a field."""
    suffix = f"/{DEAD_LETTER_SUFFIX}"
    is_dead = f"(coalesce(dead_letter, false) OR endswith(lower(queue), '{suffix}'))"
    queue = f"if(endswith(lower(queue), '{suffix}'), substring(queue, 1, length(queue) - {len(suffix)}), queue)"
    return lines.selectExpr(
        f"{queue} queue",
        f"{is_dead} dead_letter",
        "sequence_number",
        "enqueued_at_ms",
        "message_id",
        "session_id",
        "destination",
        "unbase64(digest) digest",
        "outcome",
        "reason",
        "coalesce(attempts, 1) attempts",
        "time at",
        "CAST(NULL AS string) source",
        "from_namespace",
    )
