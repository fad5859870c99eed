"""Rows of an archive on their way through sessions: what ``ultta.ray`` and ``ultta.spark`` share, on Arrow's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ._ultta import Head, Session, State, Step

#: The columns that answers bring, in this order.
ANSWERS: dict[str, pa.DataType] = {
    "label": pa.int64(),
    "class": pa.string(),
    "prob": pa.float32(),
    "zero_shot_label": pa.int64(),
    "zero_shot_prob": pa.float32(),
    "scene": pa.int64(),
    "admitted": pa.bool_(),
    "unknown": pa.bool_(),
    "garbage": pa.bool_(),
    "hindsight": pa.bool_(),
}


@dataclass(frozen=True)
class Plan:
    """How the rows of an archive are answered. Goes to every worker."""

    head: Head
    key: str | None = None
    time: tuple[str, ...] = ()
    features: str = "features"
    learn: str | None = None
    seconds: str | None = None
    keep: tuple[str, ...] | None = None
    prefix: str = ""
    normalize: bool = False
    method: str = "ul_tta"
    preset: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, columns: Sequence[str], head: Head, *, time: Any, keep: Any, settings: Any, **given: Any
    ) -> Plan:
        """Checks what was asked for against the columns that there are, before any row is read."""
        time = () if time is None else (time,) if isinstance(time, str) else tuple(time)
        named = given["features"], given["key"], *time, given["learn"], given["seconds"], *(keep or ())
        for name in named:
            if name is not None and name not in columns:
                raise ValueError(f"{name}: expected a column of that name, got {', '.join(columns)}")
        if given["key"] is not None and not time:
            raise ValueError("time: expected the column that orders the rows of a key; rows have no order without it")
        if given["key"] is None and time:
            raise ValueError("key: expected the column that tells streams apart, as time orders the rows of each")
        if keep is None:
            keep = tuple(name for name in columns if name != given["features"])
        twice = [name for name in keep if name in {given["prefix"] + answer for answer in ANSWERS}]
        if twice:
            raise ValueError(
                f"{twice[0]}: both an input column and an answer; keep others (keep=[…]) or name the answers "
                'otherwise (prefix="ultta_")'
            )
        plan = cls(head=head, time=time, keep=tuple(keep), settings=dict(settings or {}), **given)
        plan.session()  # settings that do not fit are known now
        return plan

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = (*(self.keep or ()), self.features, self.key, *self.time, self.learn, self.seconds)
        return list(dict.fromkeys(name for name in named if name is not None))

    @property
    def order(self) -> list[str]:
        """What the rows are sorted by."""
        return [name for name in (self.key, *self.time) if name is not None]

    def session(self, state: bytes | None = None) -> Session:
        """A fresh session, or one that goes on from a state."""
        if state is not None:
            return Session.resume(self.head, State.from_bytes(state))
        return Session(self.head, self.method, self.preset, **dict(self.settings))

    def step(self, session: Session, table: pa.Table) -> pa.Table:
        """The rows of a table, answered in their order; they teach."""
        if len(table) == 0:
            return self._beside(table, None)
        learn = None if self.learn is None else _flags(self.learn, table.column(self.learn))
        seconds = None if self.seconds is None else _numbers(self.seconds, table.column(self.seconds))
        rows = matrix(self.features, table.column(self.features))
        step = session.step(rows, learn=learn, times=seconds, normalize=self.normalize, keep_scores=False)
        return self._beside(table, step)

    def predict(self, session: Session, table: pa.Table) -> pa.Table:
        """The rows of a table, answered by a session that has seen them all."""
        if len(table) == 0:
            return self._beside(table, None)
        step = session.predict(matrix(self.features, table.column(self.features)), normalize=self.normalize)
        return self._beside(table, step, hindsight=True)

    def learned(self, tables: Iterable[pa.Table]) -> bytes:
        """The state after the rows of one partition, one session for all of them."""
        session = self.session()
        for table in tables:
            self.step(session, table)
        return session.state().to_bytes()

    def _beside(self, table: pa.Table, step: Step | None, hindsight: bool = False) -> pa.Table:
        """The columns that are kept, and the answers beside them."""
        rows = len(table)
        found: dict[str, Any] = {}
        if step is not None:
            found = {
                "label": step.labels,
                "class": pa.array(self.head.classes).take(pa.array(step.labels)),
                "prob": step.prob,
                "zero_shot_label": step.zero_shot.labels,
                "zero_shot_prob": step.zero_shot.prob,
                # A row that is only answered belongs to no scene, teaches nothing, and is beside no rows of its time.
                "scene": pa.nulls(rows, pa.int64()) if hindsight else step.scenes,
                "admitted": pa.nulls(rows, pa.bool_()) if hindsight else step.admitted,
                "unknown": step.unknown,
                "garbage": pa.nulls(rows, pa.bool_()) if hindsight else step.garbage,
                "hindsight": np.full(rows, hindsight),
            }
        out = table.select(list(self.keep or ()))
        for name, dtype in ANSWERS.items():
            values = pa.array(found[name], dtype) if found else pa.nulls(0, dtype)
            out = out.append_column(pa.field(self.prefix + name, dtype), values)
        return out


class Streams:
    """One session after another over rows that come sorted by key and time, in tables of any size."""

    def __init__(self, plan: Plan, key: Any = None, state: bytes | None = None) -> None:
        self.plan = plan
        self.key = key
        self.session = None if state is None else plan.session(state)

    def answer(self, table: pa.Table) -> pa.Table:
        """The next rows, answered. A key that is not the last one begins a stream."""
        if len(table) == 0:
            return self.plan.step(self.plan.session(), table)
        parts = []
        for start, end, key in runs(self.plan.key or "key", table.column(self.plan.key)):
            if self.session is None or key != self.key:
                self.session, self.key = self.plan.session(), key
            parts.append(self.plan.step(self.session, table.slice(start, end - start)))
        return pa.concat_tables(parts)


class Part(NamedTuple):
    """The rows of one key in a table: from where to where in the order of key and time; the times of the first and the last."""

    key: Any
    start: int
    end: int
    first: tuple[Any, ...]
    last: tuple[Any, ...]

    @property
    def rows(self) -> int:
        return self.end - self.start


class Lot(NamedTuple):
    """Rows of one key that are answered at once: parts of tables, each by the number of the table and its own place there."""

    key: Any
    parts: list[tuple[int, int]]
    #: Whether the parts lie one within the other in time; else each comes after the one before.
    mixed: bool
    #: Whether it is the last of its key.
    last: bool


def lots(tables: Sequence[Sequence[Part]], enough: int, most: int) -> list[Lot] | None:
    """Each key's parts in the order of time, as many together as have enough rows. ``None`` if parts of more rows than ``most`` lie one
    within the other, or rows have no time.

    >>> early, late = Part("a", 0, 2, (1,), (3,)), Part("a", 0, 2, (4,), (5,))
    >>> lots([[late], [early]], 2, 9)
    [Lot(key='a', parts=[(1, 0)], mixed=False, last=False), Lot(key='a', parts=[(0, 0)], mixed=False, last=True)]
    >>> within = Part("a", 0, 1, (2,), (2,))
    >>> lots([[within], [early]], 1, 9)
    [Lot(key='a', parts=[(1, 0), (0, 0)], mixed=True, last=True)]
    >>> lots([[within], [early]], 1, 2) is None
    True
    """
    streams: dict[Any, list[tuple[Part, int, int]]] = {}
    for number, table in enumerate(tables):
        for place, part in enumerate(table):
            if any(time is None or time != time for time in (*part.first, *part.last)):
                return None
            streams.setdefault(part.key, []).append((part, number, place))
    # Tables in the order of time: what is needed first comes first.
    order = sorted((min(part.first for part in table), number) for number, table in enumerate(tables) if table)
    rank = {number: place for place, (_, number) in enumerate(order)}
    found: list[tuple[int, Lot]] = []
    for key, stream in streams.items():
        stream.sort(key=lambda one: (one[0].first, one[0].last))
        needs, rows, mixed = 0, 0, False
        own: list[tuple[int, int]] = []
        last = stream[0][0].first
        for part, number, place in stream:
            if own and rows >= enough and last <= part.first:
                found.append((needs, Lot(key, own, mixed, False)))
                rows, mixed, own = 0, False, []
            mixed = mixed or (bool(own) and not last <= part.first)
            own.append((number, place))
            rows += part.rows
            needs, last = max(needs, rank[number]), max(last, part.last)
            if mixed and rows > most:
                return None
        found.append((needs, Lot(key, own, mixed, True)))
    # A stream's own lots keep their order: each needs what those before it need.
    return [lot for _, lot in sorted(found, key=lambda one: one[0])]


def parts(plan: Plan, table: pa.Table) -> tuple[list[Part], NDArray[np.int64]]:
    """The keys of a table as they first come, and the numbers of its rows in the order of these and of time."""
    codes = _whole(plan.key or "key", table.column(plan.key)).dictionary_encode()
    by = pa.table([codes.indices, *map(table.column, plan.time)], ["key", *map(str, range(len(plan.time)))])
    order = pc.sort_indices(by, [(name, "ascending") for name in by.column_names])

    def time_of(place: int) -> tuple[Any, ...]:
        return tuple(_value(table.column(name)[order[place].as_py()]) for name in plan.time)

    found = []
    for start, end, code in runs("key", pa.chunked_array([codes.indices.take(order)])):
        found.append(Part(codes.dictionary[code].as_py(), start, end, time_of(start), time_of(end - 1)))
    return found, order.to_numpy().astype(np.int64)


def _value(scalar: pa.Scalar) -> Any:
    """A time that can be compared. Days and hours are counted: Python's own have no nanoseconds."""
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def taken(plan: Plan, table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """Rows of a table by their numbers. Features go row by row: Arrow would take the numbers of its lists one by one."""
    if plan.features in (plan.keep or ()):
        return table.take(rows)
    picked = matrix(plan.features, table.column(plan.features))[rows]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(picked.ravel()), picked.shape[1])
    return table.drop_columns([plan.features]).take(rows).append_column(plan.features, lists)


def merge(states: Sequence[bytes]) -> bytes:
    """The evidence of several states in one."""
    first, *others = (State.from_bytes(state) for state in states)
    for other in others:
        first = first.merge(other)
    return first.to_bytes()


def runs(name: str, column: pa.ChunkedArray) -> Iterator[tuple[int, int, Any]]:
    """First row, row after the last, and value of every run of equal values.

    >>> list(runs("camera", pa.chunked_array([["a", "a"], ["b"]])))
    [(0, 2, 'a'), (2, 3, 'b')]
    """
    array = _whole(name, column)
    start = 0
    found = pc.run_end_encode(array)
    for end, key in zip(found.run_ends.to_pylist(), found.values.to_pylist()):
        yield start, end, key
        start = end


def matrix(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """A column of lists of numbers as rows, without a copy where it is in one piece.

    >>> matrix("features", pa.chunked_array([[[0.6, 0.8], [1.0, 0.0]]])).shape
    (2, 2)
    >>> matrix("features", pa.chunked_array([[[0.6, 0.8], [1.0]]]))
    Traceback (most recent call last):
    ...
    ValueError: features: expected rows of one length, got 1 to 2 numbers
    """
    array = _whole(name, column)
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        dim = kind.list_size
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.min_max(pc.list_value_length(array))
        low, dim = lengths["min"].as_py(), lengths["max"].as_py()
        if low != dim:
            raise ValueError(f"{name}: expected rows of one length, got {low} to {dim} numbers")
    else:
        raise ValueError(f"{name}: expected a column of lists of numbers, got {kind}")
    values = array.flatten()
    if not pa.types.is_floating(values.type):
        raise ValueError(f"{name}: expected lists of float16, float32 or float64, got {kind}")
    if values.null_count:
        raise ValueError(f"{name}: expected numbers, got a list with an empty place (null)")
    rows: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(array), dim)
    return rows


def _whole(name: str, column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece, with a value in every row."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # what combine_chunks makes of no or very large pieces
        array = pa.concat_arrays(array.chunks)
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise ValueError(f"{name}: row {row} of the piece at hand has no value (null)")
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _flags(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    array = _whole(name, column)
    if not pa.types.is_boolean(array.type):
        raise ValueError(f"{name}: expected true or false, got {array.type}")
    flags: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return flags


def _numbers(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    array = _whole(name, column)
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        raise ValueError(f"{name}: expected seconds as numbers, got {array.type}")
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers
