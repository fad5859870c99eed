"""Archives and streams on Spark: answers for every row of a DataFrame, stream by stream or with hindsight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._extras import missing
from ._ultta import Head

try:
    from pyspark.sql import DataFrame, functions
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DataType,
        FloatType,
        LongType,
        StringType,
        StructField,
        StructType,
    )
except ImportError as error:
    raise missing("adapt", "PySpark 4 or later", "spark") from error

import pyarrow as pa

from ._archive import ANSWERS, Plan, Streams, merge

__all__ = ["adapt"]

#: States that one task merges.
FAN = 8

#: The types of the answers, in Spark's words.
_TYPES: dict[pa.DataType, DataType] = {
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.float32(): FloatType(),
    pa.bool_(): BooleanType(),
}

_STATE = StructType([StructField("node", LongType()), StructField("state", BinaryType())])


def adapt(
    dataframe: DataFrame,
    head: Head,
    key: str | None = None,
    time: str | Sequence[str] | None = None,
    features: str = "features",
    *,
    learn: str | None = None,
    seconds: str | None = None,
    keep: Sequence[str] | None = None,
    prefix: str = "",
    normalize: bool = False,
    method: str = "ul_tta",
    preset: str = "default",
    settings: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Answers for every row of a DataFrame with a column of features, as a DataFrame.

    With a ``key`` (the camera), each key is one stream in the order of ``time`` (one column or several), answered
    exactly as ``Session.step`` answers it on one machine.

    Of a streaming DataFrame (Structured Streaming) the rows of every micro-batch are answered in the order of
    ``time``, and Spark keeps the state of every key. It needs a key, and Spark's RocksDB state store.

    Without a key, one pass learns, a session per partition (before this returns); the evidence of all is merged in a
    tree; a second pass answers with it. Such answers have seen the whole set: ``hindsight`` is true for them.

    ``learn``: a column that tells which rows may teach. ``seconds``: arrival times, for updates by time. ``keep``:
    columns to carry over; all but the features unless told. ``prefix`` goes before the names of the answers.
    ``settings``: those of a ``Session``.
    """
    plan = Plan.of(
        dataframe.columns,
        head,
        key=key,
        time=time,
        features=features,
        learn=learn,
        seconds=seconds,
        keep=keep,
        prefix=prefix,
        normalize=normalize,
        method=method,
        preset=preset,
        settings=settings,
    )
    dataframe = dataframe.select(*plan.columns)
    fields = [dataframe.schema[name] for name in plan.keep or ()]
    schema = StructType(fields + [StructField(prefix + name, _TYPES[kind]) for name, kind in ANSWERS.items()])
    if dataframe.isStreaming:
        if key is None:
            raise ValueError("key: expected the column that tells streams apart; a streaming DataFrame needs it")
        rows = dataframe.groupBy(key)
        return rows.transformWithStateInPandas(_Processor(plan), schema, outputMode="Append", timeMode="None")
    if key is not None:
        return dataframe.repartition(key).sortWithinPartitions(*plan.order).mapInArrow(_streams(plan), schema)
    return dataframe.mapInArrow(_answered(plan, _merged(dataframe, plan)), schema)


def _streams(plan: Plan) -> Any:
    """Answers the rows of a partition, which holds whole streams, one after another."""

    def answered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        streams = Streams(plan)
        for batch in batches:
            yield from streams.answer(pa.Table.from_batches([batch])).to_batches()

    return answered


def _answered(plan: Plan, state: bytes) -> Any:
    def answered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        session = plan.session(state)
        for batch in batches:
            yield from plan.predict(session, pa.Table.from_batches([batch])).to_batches()

    return answered


def _merged(dataframe: DataFrame, plan: Plan) -> bytes:
    """The evidence of all partitions."""
    number = "__partition"

    def learned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        node: list[int] = []

        def tables() -> Iterator[pa.Table]:
            for batch in batches:
                if len(batch):
                    node[:] = node or [batch.column(number)[0].as_py()]
                    yield pa.Table.from_batches([batch]).drop_columns([number])

        state = plan.learned(tables())
        if node:
            yield _batch(node[0], state)

    def merged(table: pa.Table) -> pa.Table:
        table = table.sort_by("node")
        states = table["state"].to_pylist()
        return pa.Table.from_batches([_batch(table["node"][0].as_py() // FAN, merge(states))])

    states = dataframe.withColumn(number, functions.spark_partition_id()).mapInArrow(learned, _STATE).persist()
    try:
        level, count = states, states.agg(functions.max("node")).collect()[0][0]
        if count is None:
            raise ValueError("dataframe: expected at least 1 row, got 0")
        while count > 0:
            level = level.groupBy(functions.floor(level["node"] / FAN)).applyInArrow(merged, _STATE)
            count //= FAN
        return bytes(level.collect()[0]["state"])
    finally:
        states.unpersist()


def _batch(node: int, state: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([node], pa.int64()), pa.array([state], pa.binary())], names=["node", "state"]
    )


class _Processor(StatefulProcessor):  # type: ignore[misc, unused-ignore]
    """Answers the rows of a key in a micro-batch, and leaves the session's state with Spark."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("session", StructType([StructField("state", BinaryType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        # Spark hands the rows over in pieces without an order.
        table = pa.concat_tables([pa.Table.from_pandas(part, preserve_index=False) for part in rows])
        table = table.sort_by([(name, "ascending") for name in self.plan.time])
        found = self.kept.get() if self.kept.exists() else None
        session = self.plan.session(None if found is None else bytes(found[0]))
        answers = self.plan.step(session, table)
        self.kept.update((session.state().to_bytes(),))
        yield answers.to_pandas()

    def close(self) -> None:
        pass
