"""Archives and streams on Spark, in local mode."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import ROWS, Archive, killing
from pyspark.sql import SparkSession

import ultta.spark

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(scope="module")
def spark():
    # Four attempts for every task: in local mode Spark makes one unless told.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", 4)
    session = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKS).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def rows(frame) -> list:
    return [row.asDict() for row in frame.collect()]


def read(spark, archive: Archive):
    return spark.read.parquet(str(archive.folder))


def test_keyed_streams_are_answered_as_on_one_machine(spark, archive: Archive) -> None:
    # Batches that are smaller than a stream.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 300)
    found = ultta.spark.adapt(read(spark, archive), archive.head, key="camera", time="frame")
    assert "features" not in found.columns
    archive.check(rows(found))
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_without_a_key_answers_have_seen_the_whole_set(spark, archive: Archive) -> None:
    # More partitions than one task merges.
    frame = read(spark, archive).repartition(12)
    archive.check_hindsight(rows(ultta.spark.adapt(frame, archive.head)))


def test_a_killed_worker_does_no_harm(spark, archive: Archive) -> None:
    before: dict[int, float] = {}

    def busy(process) -> bool:
        """A worker that has worked since it was first looked at."""
        parent = process.parent()
        if parent is None or "pyspark.daemon" not in " ".join(parent.cmdline()):
            return False
        spent = process.cpu_times().user
        return spent - before.setdefault(process.pid, spent) > 0.01

    with killing(busy) as killed:
        found = rows(ultta.spark.adapt(read(spark, archive), archive.head, key="camera", time="frame"))
    assert killed
    archive.check(found)


def stream(spark, archive: Archive, source: Path, target: Path) -> None:
    """Answers the files that are there and were not answered before."""
    schema = read(spark, archive).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(source))
    answers = ultta.spark.adapt(frame, archive.head, key="camera", time="frame")
    writer = answers.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(target / "state")).start(str(target / "answers"))
    assert query.awaitTermination(600)


def test_a_streaming_query_goes_on_with_the_state_that_spark_kept(
    spark, archive: Archive, tmp_path: Path
) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    # Files in the order of time, as a camera would write them; the query is started three times.
    frame = read(spark, archive).orderBy("frame").toPandas()
    for part in range(3):
        for half in range(2):
            first = (2 * part + half) * ROWS // 6
            name = f"{part}{half}.parquet"
            piece = frame[first : first + ROWS // 6].sample(frac=1.0, random_state=0)
            spark.createDataFrame(piece, read(spark, archive).schema).coalesce(1).write.parquet(str(tmp_path / name))
            (written,) = (tmp_path / name).glob("*.parquet")
            shutil.move(written, source / name)
        stream(spark, archive, source, target)
    archive.check(rows(spark.read.parquet(str(target / "answers"))))


def test_a_streaming_frame_needs_a_key(spark, archive: Archive) -> None:
    frame = spark.readStream.schema(read(spark, archive).schema).parquet(str(archive.folder))
    with pytest.raises(ValueError, match="a streaming DataFrame needs it"):
        ultta.spark.adapt(frame, archive.head)
