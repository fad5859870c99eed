"""Archives: what Ray and Spark share, and Parquet through the command line. Files are pyarrow's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultta
from conftest import Stream

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from ultta._archive import ANSWERS, Plan, Streams, matrix, merge  # noqa: E402


def cameras(stream: Stream, count: int = 3) -> Any:
    """A table in which the frames of several cameras come in turns."""
    rows = len(stream.features)
    return pa.table(
        {
            "camera": [f"camera {row % count}" for row in range(rows)],
            "frame": np.arange(rows),
            "learn": np.arange(rows) % 5 != 0,
            "features": pa.array(list(stream.features), pa.list_(pa.float32())),
        }
    )


def plan(table: Any, head: ultta.Head, **given: Any) -> Plan:
    options: dict[str, Any] = dict(
        key=None, time=None, features="features", learn=None, seconds=None, keep=None, prefix="",
        normalize=False, method="ul_tta", preset="default", settings=None,
    )  # fmt: skip
    return Plan.of(table.column_names, head, **{**options, **given})


def test_sorted_rows_are_answered_as_one_session_per_key_would(stream: Stream) -> None:
    table = cameras(stream).sort_by([("camera", "ascending"), ("frame", "ascending")])
    made = plan(table, stream.head, key="camera", time="frame", learn="learn")
    streams = Streams(made)
    found = pa.concat_tables([streams.answer(table.slice(start, 77)) for start in range(0, len(table), 77)])
    assert found.column_names == ["camera", "frame", "learn", *ANSWERS]
    for camera in range(3):
        own = np.arange(camera, len(stream.features), 3)
        step = ultta.Session(stream.head).step(stream.features[own], learn=own % 5 != 0)
        rows = found.filter(pa.compute.equal(found["camera"], f"camera {camera}"))
        for name, wanted in (
            ("frame", own), ("label", step.labels), ("class", step.names), ("prob", step.prob),
            ("zero_shot_label", step.zero_shot.labels), ("scene", step.scenes), ("admitted", step.admitted),
        ):  # fmt: skip
            np.testing.assert_array_equal(rows[name].to_numpy(), wanted, err_msg=name)
    assert not any(found["hindsight"].to_pylist())


def test_a_stream_goes_on_from_its_state(stream: Stream) -> None:
    table = cameras(stream, count=1)
    made = plan(table, stream.head, key="camera", time="frame")
    first = Streams(made)
    begun = first.answer(table.slice(0, 250))
    assert first.session is not None
    rest = Streams(made, "camera 0", first.session.state().to_bytes()).answer(table.slice(250))
    assert pa.concat_tables([begun, rest]).equals(Streams(made).answer(table))


def test_without_a_key_the_evidence_of_all_answers(stream: Stream) -> None:
    table = cameras(stream)
    made = plan(table, stream.head)
    states = [made.learned([table.slice(start, 100), table.slice(start + 100, 100)]) for start in (0, 200, 400)]
    state = merge(states)
    assert state == merge([merge(states[:2]), states[2]])
    found = made.predict(made.session(state), table)
    wanted = ultta.Session.resume(stream.head, ultta.State.from_bytes(state)).predict(stream.features)
    np.testing.assert_array_equal(found["label"].to_numpy(), wanted.labels)
    assert all(found["hindsight"].to_pylist())
    assert found["scene"].null_count == found["admitted"].null_count == len(table)


def test_no_rows_have_no_answers(stream: Stream) -> None:
    table = cameras(stream)
    made = plan(table, stream.head, key="camera", time="frame", prefix="ultta_")
    found, filled = (Streams(made).answer(table.slice(0, rows)) for rows in (0, 1))
    assert len(found) == 0 and found.schema == filled.schema


@pytest.mark.parametrize(
    "given, words",
    [
        (dict(features="vectors"), "vectors: expected a column of that name, got camera, frame"),
        (dict(key="camera"), "time: expected the column that orders"),
        (dict(time="frame"), "key: expected the column that tells streams apart"),
        (dict(keep=["frames"]), "frames: expected a column"),
        (dict(settings={"gate__keep": 3.0}), "gate.keep"),
    ],
)
def test_mistakes_are_known_before_any_row_is_read(stream: Stream, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(cameras(stream), stream.head, **given)


def test_an_answer_does_not_replace_a_column(stream: Stream) -> None:
    table = cameras(stream).rename_columns(["camera", "label", "learn", "features"])
    with pytest.raises(ValueError, match="label: both an input column and an answer"):
        plan(table, stream.head)
    made = plan(table, stream.head, prefix="ultta_")
    assert "ultta_label" in made.step(made.session(), table.slice(0, 3)).column_names
    assert plan(table, stream.head, keep=["camera"]).columns == ["camera", "features"]


@pytest.mark.parametrize(
    "column, words",
    [
        (pa.array([[1.0], None]), "row 1 of the piece at hand has no value"),
        (pa.array([[1.0], [None]]), "a list with an empty place"),
        (pa.array([[1.0], [1.0, 2.0]]), "rows of one length, got 1 to 2"),
        (pa.array([1.0, 2.0]), "a column of lists of numbers, got double"),
        (pa.array([[1], [2]]), "float16, float32 or float64"),
    ],
)
def test_columns_that_are_no_features_are_refused(column: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        matrix("features", pa.chunked_array([column]))


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ultta", "run", "--quiet", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("kind", ["list", "fixed", "half"])
def test_run_reads_and_writes_parquet(stream: Stream, tmp_path: Path, kind: str) -> None:
    dim = stream.features.shape[1]
    rows = stream.features.astype(np.float16 if kind == "half" else np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), dim)
    if kind == "list":
        column = column.cast(pa.list_(pa.float32()))
    learn = np.arange(len(rows)) % 4 != 0
    times = np.arange(len(rows)) / 2
    beside = {"camera": ["a"] * len(rows), "labels": stream.labels, "learn": learn, "times": times}
    table = pa.table({"features": column, **beside})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=256)
    stream.head.save(tmp_path / "head.safetensors")
    files = "--features", tmp_path / "rows.parquet", "--head", tmp_path / "head.safetensors"
    done = run(*files, "--out", tmp_path / "p.parquet")
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "p.parquet")
    step = ultta.Session(stream.head).step(rows, learn=learn, times=times)
    for name, wanted in (
        ("label", step.labels), ("class", step.names), ("prob", step.prob), ("admitted", step.admitted),
        ("scene", step.scenes),
    ):  # fmt: skip
        np.testing.assert_array_equal(found[name].to_numpy(), wanted, err_msg=name)


def test_run_names_what_is_wrong_with_a_parquet_file(stream: Stream, tmp_path: Path) -> None:
    stream.head.save(tmp_path / "head.safetensors")
    pq.write_table(pa.table({"vectors": [[1.0]]}), tmp_path / "rows.parquet")
    done = run("--features", tmp_path / "rows.parquet", "--head", tmp_path / "head.safetensors")
    assert done.returncode != 0 and "no tensor named `features`" in done.stderr, done.stderr
