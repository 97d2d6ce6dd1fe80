"""The data source `sbpair-backlog`.

    sbpair.pipeline.register(spark)
    backlog = spark.read.format("sbpair-backlog").option("pair", "orders").option("queues", "0,3").load()
    frame.write.format("sbpair-backlog").mode("append").option("pair", "orders").option("ledger", "/data/ledger").save()

Options of the read: `source_options`; of the write: `writer`. Credentials are looked up where a task runs, by the names
the configuration gives them.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructType

from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.reader import BacklogReader
from sbpair.pipeline.schemas import message_schema
from sbpair.pipeline.source_options import ReadOptions
from sbpair.pipeline.writer import ReplayWriter, WriteOptions

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

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with marking_errors():
            return ReplayWriter(WriteOptions.parse(self.options, overwrite=overwrite), schema.names)


def register(spark: "SparkSession") -> None:
    """Make the source known to a session."""
    spark.dataSource.register(BacklogDataSource)
