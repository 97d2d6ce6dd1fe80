"""The data sources `sbpair-backlog` and `servicebus`.

    sbpair.pipeline.register(spark)
    backlog = spark.read.format("sbpair-backlog").option("pair", "orders").option("queues", "0,3").load()
    coming = spark.readStream.format("sbpair-backlog").option("pair", "orders").option("maxRowsPerBatch", 10000).load()
    frame.write.format("sbpair-backlog").mode("append").option("pair", "orders").option("ledger", "/data/ledger").save()
    events.write.format("servicebus").mode("append").option("namespace", "contoso").option("entity", "orders").save()

Options of a read: `options`; of a write: `writer`. Credentials are looked up where a task runs, by the names
that the configuration or the options give them.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.schemas import message_schema
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.source.reader import BacklogReader
from sbpair.pipeline.source.writer import ReplayWriter, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BacklogDataSource(DataSource):
    """Reads backlog queues of a pair; writes archived messages to the pair's primary."""

    @classmethod
    def name(cls) -> str:
        return "sbpair-backlog"

    def schema(self) -> StructType:
        return message_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        with marking_errors():
            return BacklogReader(ReadOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from sbpair.pipeline.streaming.reader import QueueStreamReader

        with marking_errors():
            return QueueStreamReader(ReadOptions.parse(self.options, stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with marking_errors():
            return ReplayWriter(WriteOptions.parse(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from sbpair.pipeline.streaming.writer import ReplayStreamWriter

        with marking_errors():
            options = WriteOptions.parse(self.options, overwrite=overwrite, stream=True)
            return ReplayStreamWriter(options, schema)


class ServiceBusDataSource(DataSource):
    """Reads queues and subscriptions of a namespace, in the same columns, of which `pair` is the name of the namespace;
    sends such rows, or new messages, to a queue or topic."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        return message_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        with marking_errors():
            return BacklogReader(ReadOptions.parse(self.options, of_backlog=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from sbpair.pipeline.streaming.reader import QueueStreamReader

        with marking_errors():
            return QueueStreamReader(ReadOptions.parse(self.options, of_backlog=False, stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with marking_errors():
            return ReplayWriter(WriteOptions.parse(self.options, overwrite=overwrite, of_backlog=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from sbpair.pipeline.streaming.writer import ReplayStreamWriter

        with marking_errors():
            options = WriteOptions.parse(self.options, overwrite=overwrite, of_backlog=False, stream=True)
            return ReplayStreamWriter(options, schema)


def register(spark: "SparkSession") -> None:
    """Make the sources known to a session."""
    for source in (BacklogDataSource, ServiceBusDataSource):
        spark.dataSource.register(source)


def register_backlog(spark: "SparkSession") -> None:
    """Only what our own commands use: each source takes time."""
    spark.dataSource.register(BacklogDataSource)
