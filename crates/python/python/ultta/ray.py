"""Archives on Ray Data: answers for every row of a dataset, stream by stream or with hindsight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ._extras import missing
from ._ultta import Head

try:
    import ray
    import ray.data
except ImportError as error:
    raise missing("adapt", "Ray Data", "ray") from error

import pyarrow as pa

from ._archive import Plan, Streams, merge, runs

__all__ = ["adapt"]

#: States that one task merges.
FAN = 8


def adapt(
    dataset: Any,
    head: Head,
    key: str | None = None,
    time: str | Sequence[str] | None = None,
    features: str = "features",
    *,
    learn: str | None = None,
    seconds: str | None = None,
    keep: Sequence[str] | None = None,
    prefix: str = "",
    partitions: int | None = None,
    normalize: bool = False,
    method: str = "ul_tta",
    preset: str = "default",
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Answers for every row of a ``ray.data.Dataset`` with a column of features, as a dataset.

    With a ``key`` (the camera), each key is one stream in the order of ``time`` (one column or several), answered
    exactly as ``Session.step`` answers it on one machine. Ray sorts the rows into ``partitions`` blocks (as many as
    it sees fit unless told): memory goes by the size of a block, and a stream may be longer than that. The work is
    done before this returns.

    Without a key, one pass learns, a session per block; the evidence of all is merged in a tree; a second pass
    answers with it, as its rows are asked for. Such answers have seen the whole set: ``hindsight`` is true for them.

    ``learn``: a column that tells which rows may teach. ``seconds``: arrival times, for updates by time. ``keep``:
    columns to carry over; all but the features unless told. ``prefix`` goes before the names of the answers.
    ``settings``: those of a ``Session``.
    """
    plan = Plan.of(
        dataset.columns(),
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
    dataset = dataset.select_columns(plan.columns)
    if partitions is not None:
        dataset.context.default_hash_shuffle_parallelism = partitions
    return _streams(dataset, plan) if key is not None else _hindsight(dataset, plan)


def _streams(dataset: Any, plan: Plan) -> Any:
    """Blocks of sorted rows, as they come. A stream that goes on in the next block hands its state over; others run at the same time."""
    _plain(dataset.context)
    shared = ray.put(plan)
    # To look is quick, and waits for no turn.
    look: Any = ray.remote(num_cpus=0)(_ends)
    answer: Any = ray.remote(num_returns=2)(_answer)
    out: list[Any] = []

    def submit(block: Any, ends: Ends, state: Any, leaves: bool) -> Any:
        """Has a block answered. What is left of the stream before waits for its state; what begins here does not."""
        parts = [(0, ends.rows, None)] if state is None else [(0, ends.cut, state), (ends.cut, ends.rows, None)]
        left = None
        for start, end, given in parts:
            if start < end:
                key = None if given is None else ends.first
                answers, left = answer.remote(shared, block, start, end, key, given, leaves and end == ends.rows)
                out.append(answers)
        return left if leaves else None

    waiting: tuple[Any, Ends] | None = None
    state: Any = None
    for bundle in dataset.sort(plan.order).iter_internal_ref_bundles():
        for block in bundle.block_refs:
            ends = ray.get(look.remote(shared, block))
            if ends is None:
                continue
            if waiting is not None:
                before, its = waiting
                state = submit(before, its, state, its.last == ends.first)
            waiting = block, ends
    if waiting is None:
        raise ValueError("dataset: expected at least 1 row, got 0")
    before, its = waiting
    submit(before, its, state, False)
    return ray.data.from_arrow_refs(out)


def _plain(context: Any) -> None:
    """Ray's sort compresses what it moves, a gigabyte in one task. Features have no pattern: that costs time and saves nothing."""
    for name, value in (("shuffle_compression", "none"), ("shuffle_input_batch_bytes", 0)):
        if hasattr(context, name):
            setattr(context, name, value)


class Ends(NamedTuple):
    """The first and the last key of a block, the row after the first key's last, and the number of rows."""

    first: Any
    last: Any
    cut: int
    rows: int


def _ends(plan: Plan, block: Any) -> Ends | None:
    table = _arrow(block)
    found = list(runs(plan.key or "key", table.column(plan.key))) if len(table) else []
    return Ends(found[0][2], found[-1][2], found[0][1], len(table)) if found else None


def _answer(
    plan: Plan, block: Any, start: int, end: int, key: Any, state: bytes | None, leaves: bool
) -> tuple[pa.Table, bytes | None]:
    """Answers of some rows of a block, and the state of the last stream if that goes on. A second attempt answers the same."""
    streams = Streams(plan, key, state)
    answers = streams.answer(_arrow(block).slice(start, end - start))
    left = streams.session.state().to_bytes() if leaves and streams.session is not None else None
    return answers, left


def _arrow(block: Any) -> pa.Table:
    """A block as a table: one that came from pandas is a frame."""
    return block if isinstance(block, pa.Table) else pa.Table.from_pandas(block, preserve_index=False)


def _hindsight(dataset: Any, plan: Plan) -> Any:
    shared = ray.put(plan)

    def learned(block: pa.Table) -> Iterator[pa.Table]:
        if len(block):
            yield _table([ray.get(shared).learned([block])])

    states = dataset.map_batches(learned, batch_format="pyarrow", batch_size=None).to_arrow_refs()
    join: Any = ray.remote(_merge)
    while len(states) > 1:
        states = [join.remote(*states[i : i + FAN]) for i in range(0, len(states), FAN)]
    found = _states(ray.get(states))
    if not found:
        raise ValueError("dataset: expected at least 1 row, got 0")
    state = ray.put(merge(found))

    def answered(block: pa.Table) -> pa.Table:
        everywhere: Plan = ray.get(shared)
        return everywhere.predict(everywhere.session(ray.get(state)), block)

    return dataset.map_batches(answered, batch_format="pyarrow", batch_size=None)


def _merge(*tables: pa.Table) -> pa.Table:
    """One state out of several."""
    found = _states(tables)
    return _table([merge(found)] if found else [])


def _table(states: list[bytes]) -> pa.Table:
    return pa.table({"state": pa.array(states, pa.large_binary())})


def _states(tables: Sequence[pa.Table]) -> list[bytes]:
    # A block without rows has no columns either.
    return [state for table in tables if len(table) for state in table["state"].to_pylist()]
