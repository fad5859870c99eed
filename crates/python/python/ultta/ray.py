"""Archives on Ray Data: answers for every row of a dataset, stream by stream or with hindsight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    """Blocks of sorted rows. A stream that goes on in the next block hands its state over; others run at the same time."""
    blocks = dataset.sort(plan.order).to_arrow_refs()
    shared = ray.put(plan)
    look: Any = ray.remote(_ends)
    answer: Any = ray.remote(num_returns=2)(_answer)
    found = zip(blocks, ray.get([look.remote(shared, block) for block in blocks]))
    filled = [(block, *ends) for block, ends in found if ends is not None]
    if not filled:
        raise ValueError("dataset: expected at least 1 row, got 0")
    out, before, state = [], None, None
    for i, (block, first, last) in enumerate(filled):
        goes_on = i + 1 < len(filled) and filled[i + 1][1] == last
        answers, state = answer.remote(shared, block, before, state if before == first else None, goes_on)
        out.append(answers)
        before = last
    return ray.data.from_arrow_refs(out)


def _ends(plan: Plan, block: pa.Table) -> tuple[Any, Any] | None:
    """The first and the last key of a block."""
    found = list(runs(plan.key or "key", block.column(plan.key)))
    return (found[0][2], found[-1][2]) if found else None


def _answer(
    plan: Plan, block: pa.Table, key: Any, state: bytes | None, goes_on: bool
) -> tuple[pa.Table, bytes | None]:
    """Answers of a block, and the state of its last stream if that goes on. A second attempt answers the same."""
    streams = Streams(plan, key, state)
    answers = streams.answer(block)
    left = streams.session.state().to_bytes() if goes_on and streams.session is not None else None
    return answers, left


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
