"""Archives on Ray Data: answers for every row of a dataset, stream by stream or with hindsight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ._extras import missing
from ._ultta import Head

try:
    import ray
    import ray.data
except ImportError as error:
    raise missing("adapt", "Ray Data", "ray") from error

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ._archive import Part, Plan, Streams, lots, merge, parts, runs, taken

__all__ = ["adapt"]

#: States that one task merges.
FAN = 8
#: Keys that blocks are dealt out among; of more, Ray sorts the rows.
KEYS = 128
#: Rows of a key that are worth a task, and a state that is handed on.
ENOUGH = 8192
#: Rows of a key that one task puts in order; beyond that, Ray sorts them.
MOST = 1 << 17


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
    exactly as ``Session.step`` answers it on one machine. Of few keys, each one's rows are handed to tasks of its own;
    of more than 128, or of long streams in no order at all, Ray sorts the rows into ``partitions`` blocks (as many as it
    sees fit unless told). Memory goes by the size of a block, and a stream may be longer than that. The work is done
    before this returns.

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
    shared = ray.put(plan)
    found = _dealt(dataset, plan, shared)
    if found is None:
        found = _sorted(dataset, plan, shared)
    if not found:
        raise ValueError("dataset: expected at least 1 row, got 0")
    return ray.data.from_arrow_refs(found)


class _Block(NamedTuple):
    """A block, the numbers of its rows by key and time, its keys, its bytes, and whether it is rows of one key in the order of time."""

    block: Any
    order: Any
    parts: list[Part]
    size: int
    whole: bool


def _dealt(dataset: Any, plan: Plan, shared: Any) -> list[Any] | None:
    """Answers without a sort. Blocks are dealt out among the keys, and each key is a chain of tasks that hand its state on: features are
    copied once. ``None`` for many keys, or streams that are long and in no order at all."""
    # To look is quick, and waits for no turn.
    look: Any = ray.remote(num_cpus=0, num_returns=2)(_look)
    deal: Any = ray.remote(_deal)
    answer: Any = ray.remote(num_returns=2)(_answer)
    blocks: list[_Block] = []
    keys: set[Any] = set()
    for bundle in dataset.iter_internal_ref_bundles():
        for block in bundle.block_refs:
            told, order = look.remote(shared, block)
            blocks.append(_Block(block, order, *ray.get(told)))
            keys.update(part.key for part in blocks[-1].parts)
            if len(keys) > KEYS:
                return None
    found = lots([block.parts for block in blocks], ENOUGH, MOST)
    if found is None:
        return None
    answers: dict[Any, list[Any]] = {key: [] for key in keys}
    states: dict[Any, Any] = {}
    pieces: dict[int, list[Any]] = {}
    under_way: deque[tuple[int, Any]] = deque()
    room = _room()
    for lot in found:
        size = 0
        for number, place in lot.parts:
            block, part = blocks[number], blocks[number].parts[place]
            size += block.size * part.rows // block.parts[-1].end
            if number not in pieces:
                spans = [(part.start, part.end) for part in block.parts]
                dealing = deal.options(num_returns=len(spans) + 1)
                pieces[number] = [block.block] if block.whole else dealing.remote(shared, block.block, block.order, spans)
                blocks[number] = block._replace(block=None, order=None)
        rows = [pieces[number][place] for number, place in lot.parts]
        for number, place in lot.parts:
            pieces[number][place] = None
        answered, states[lot.key] = answer.remote(shared, lot.key, states.get(lot.key), not lot.last, lot.mixed, *rows)
        answers[lot.key].append(answered)
        under_way.append((size, answered))
        # What was dealt out is a second copy: no more of it than there is room for.
        while sum(size for size, _ in under_way) > room:
            ray.wait([under_way.popleft()[1]], fetch_local=False)
    return [answered for stream in answers.values() for answered in stream]


def _room() -> int:
    """Bytes of rows that may be on their way to an answer: a quarter of the object store."""
    resources: Any = ray.cluster_resources
    return int(resources().get("object_store_memory", 0)) // 4


def _look(plan: Plan, block: Any) -> tuple[tuple[list[Part], int, bool], NDArray[np.int64]]:
    table = _arrow(block)
    found, order = parts(plan, table)
    whole = len(found) == 1 and bool(np.all(np.diff(order) > 0))
    return (found, table.nbytes, whole), order


def _deal(plan: Plan, block: Any, order: NDArray[np.int64], spans: list[tuple[int, int]]) -> list[pa.Table | None]:
    """A table for each key of a block. Nothing behind them: Ray makes of a list of one another thing than of a longer one."""
    table = _arrow(block)
    return [*(taken(plan, table, order[start:end]) for start, end in spans), None]


def _answer(
    plan: Plan, key: Any, state: bytes | None, leaves: bool, mixed: bool, *pieces: Any
) -> tuple[pa.Table, bytes | None]:
    """Answers of rows of one key, and its state behind them if it goes on. A second attempt answers the same."""
    tables = [_arrow(piece) for piece in pieces]
    if mixed:
        table = pa.concat_tables(tables)
        tables = [taken(plan, table, parts(plan, table)[1])]
    return _answered(plan, key, state, leaves, tables)


def _sorted(dataset: Any, plan: Plan, shared: Any) -> list[Any]:
    """Answers of blocks that Ray sorted, as they come. A stream that goes on in the next block hands its state over; others run at the
    same time."""
    _plain(dataset.context)
    # To look is quick, and waits for no turn.
    look: Any = ray.remote(num_cpus=0)(_ends)
    answer: Any = ray.remote(num_returns=2)(_answer_some)
    out: list[Any] = []

    def submit(block: Any, ends: Ends, state: Any, leaves: bool) -> Any:
        """Has a block answered. What is left of the stream before waits for its state; what begins here does not."""
        pieces = [(0, ends.rows, None)] if state is None else [(0, ends.cut, state), (ends.cut, ends.rows, None)]
        left = None
        for start, end, given in pieces:
            if start < end:
                key = None if given is None else ends.first
                answers, left = answer.remote(shared, key, given, leaves and end == ends.rows, start, end, block)
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
    if waiting is not None:
        before, its = waiting
        submit(before, its, state, False)
    return out


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


def _answer_some(
    plan: Plan, key: Any, state: bytes | None, leaves: bool, start: int, end: int, block: Any
) -> tuple[pa.Table, bytes | None]:
    """Answers of some rows of a sorted block, and the state of the last stream if that goes on."""
    return _answered(plan, key, state, leaves, [_arrow(block).slice(start, end - start)])


def _answered(
    plan: Plan, key: Any, state: bytes | None, leaves: bool, tables: list[pa.Table]
) -> tuple[pa.Table, bytes | None]:
    streams = Streams(plan, key, state)
    answers = pa.concat_tables([streams.answer(table) for table in tables])
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
