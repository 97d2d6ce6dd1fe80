"""The data sources `sbpair-backlog` and `servicebus`.

Credentials are looked up where a task runs, by the names that the configuration or the options give them.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.rows import source_columns, spark_schema
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.source.reader import BacklogReader
from sbpair.pipeline.source.writer import ReplayWriter, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamArrowWriter


class BacklogDataSource(DataSource):
    """Reads backlog queues of a pair; writes archived messages to the pair's primary."""

    of_backlog = True

    @classmethod
    def name(cls) -> str:
        return "sbpair-backlog"

    def schema(self) -> StructType:
        return spark_schema(source_columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        with marking_errors():
            return BacklogReader(ReadOptions.parse(self.options, of_backlog=self.of_backlog), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with marking_errors():
            from sbpair.pipeline.spark.session import check_release

            # Before it, a source is not told where its query stands: it can see no loss, and keep to no limit.
            check_release((4, 2), "readStream")
            from sbpair.pipeline.streaming import QueueStreamReader

            return QueueStreamReader(ReadOptions.parse(self.options, of_backlog=self.of_backlog, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with marking_errors():
            return ReplayWriter(self._write_options(overwrite, stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":
        with marking_errors():
            from sbpair.pipeline.spark.session import check_release

            check_release((4, 1), "writeStream")
            from sbpair.pipeline.streaming import ReplayStreamWriter

            return ReplayStreamWriter(self._write_options(overwrite, stream=True), schema)

    def _write_options(self, overwrite: bool, *, stream: bool) -> WriteOptions:
        return WriteOptions.parse(self.options, overwrite=overwrite, of_backlog=self.of_backlog, stream=stream)


class ServiceBusDataSource(BacklogDataSource):
    """Reads queues and subscriptions of a namespace, in the same columns, of which `pair` is the name of the namespace;
    sends such rows, or new messages, to a queue or topic."""

    of_backlog = False

    @classmethod
    def name(cls) -> str:
        return "servicebus"


def register(spark: "SparkSession") -> None:
    """Make the sources known to a session, and have it push filters down to them."""
    register_backlog(spark)
    spark.dataSource.register(ServiceBusDataSource)


def register_backlog(spark: "SparkSession") -> None:
    """Only what our own commands use: each source takes time."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # a reader that takes filters fails without
    spark.dataSource.register(BacklogDataSource)
