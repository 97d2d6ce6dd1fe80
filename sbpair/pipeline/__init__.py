"""The data pipeline on Spark: backlogs as DataFrames, archives in Parquet, ordered replays, proof that nothing is lost.

A backlog on its way: source or streaming read it, archive keeps it, analysis, replay and reconcile read the archive.

    rows        a message as a row; its columns: the contract between the parts
    source      `spark.read.format("sbpair-backlog")` and `"servicebus"`; options, reader and writer behind them
    streaming   the same as a stream
    executors   how a Python worker gets at a namespace: the credential by name, never by value
    tasks       a line of JSON for each task, in the log of its executor; one pace for all tasks of a machine at a
                throttled namespace
    archive     archiving, by tasks that write `files` and join small ones; manifest; taking (settling)
    delta       an archive that is a Delta table as well
    analysis    what is in an archive: DuckDB in tasks, partial results merged
    replay      from an archive to the primary, in order, with a ledger
    tables      archives, ledgers and queues as named tables, and SQL over them: by Spark, or in this process
    reconcile   every message has exactly one outcome, or is listed
    replication active/active: archives of both sides held against the journal
    follow      archives what comes, round after round; takes in what a drain has kept in files
    runs        where a run stands, and what the last one left
    reports     what archive, replay, reconcile and replication-audit report
    spark       Spark itself: Java, the JVM, the session, progress of jobs

Nothing here imports PySpark or PyArrow before it is used. From another project:

    from sbpair.pipeline import register
    register(spark)
    backlog = spark.read.format("sbpair-backlog").option("pair", "orders").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `sbpair-backlog` and `servicebus` known to a Spark session.

    Raises:
        SparkUnavailableError: PySpark is older than 4.0, or PyArrow is missing.
    """
    from sbpair.pipeline.spark.session import check_installed

    check_installed()
    from sbpair.pipeline.source.datasource import register as register_source

    register_source(spark)
