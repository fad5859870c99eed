"""Archives on Ray, in local mode."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from conftest import CAMERAS, ROWS, Archive, killing

import ultta.ray


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


def read(archive: Archive):
    return ray.data.read_parquet(str(archive.folder))


def blocks(folder: Path):
    """A block for every file, in the order of their names."""
    return ray.data.from_arrow([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])


def none_sorted(*_: object) -> list:
    raise AssertionError("Ray was to sort")


def test_keyed_streams_are_answered_as_on_one_machine(archive: Archive) -> None:
    found = ultta.ray.adapt(read(archive), archive.head, key="camera", time="frame")
    assert "features" not in found.columns()
    archive.check(found.take_all())


@pytest.mark.parametrize("room", [None, 1])
def test_blocks_are_dealt_out_among_few_keys(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    monkeypatch.setattr(ultta.ray, "_sorted", none_sorted)
    monkeypatch.setattr(ultta.ray, "ENOUGH", 300)
    if room is not None:
        monkeypatch.setattr(ultta.ray, "_room", lambda: room)
    found = ultta.ray.adapt(blocks(archive.ordered), archive.head, key="camera", time="frame").take_all()
    archive.check(found)
    # One camera after another, each in the order of time.
    cameras = list(dict.fromkeys(row["camera"] for row in found))
    assert found == sorted(found, key=lambda row: (cameras.index(row["camera"]), row["frame"]))


def test_files_of_one_camera_each(archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ultta.ray, "_sorted", none_sorted)
    table = pq.read_table(archive.ordered).to_pandas()
    for number, camera in enumerate(sorted(set(archive.camera))):
        own = table[table["camera"] == camera].sort_values("frame")
        # Within a file rows may come in any order.
        own = own.sample(frac=1.0, random_state=0) if number % 2 else own
        own.to_parquet(tmp_path / f"{number}.parquet", index=False)
    archive.check(ultta.ray.adapt(blocks(tmp_path), archive.head, key="camera", time="frame").take_all())


def test_a_stream_in_no_order_is_put_in_order_by_one_task(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ultta.ray, "_sorted", none_sorted)
    archive.check(ultta.ray.adapt(blocks(archive.folder), archive.head, key="camera", time="frame").take_all())


@pytest.mark.parametrize(("limit", "value"), [("KEYS", CAMERAS - 1), ("MOST", 100)])
def test_many_keys_and_long_streams_in_no_order_are_sorted(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(ultta.ray, limit, value)
    times = []
    before = ultta.ray._sorted
    monkeypatch.setattr(ultta.ray, "_sorted", lambda *given: times.append(1) or before(*given))
    found = ultta.ray.adapt(blocks(archive.folder), archive.head, key="camera", time="frame", partitions=8)
    assert times
    archive.check(found.take_all())


def test_frames_of_pandas_are_answered_alike(archive: Archive) -> None:
    frames = ray.data.from_pandas(read(archive).to_pandas())
    found = ultta.ray.adapt(frames, archive.head, key="camera", time="frame")
    archive.check(found.take_all())


def test_a_stream_that_begins_in_a_block_waits_for_no_other(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(plan, key, state, leaves, start, end, block):
        rows = block.column("camera").slice(start, end - start)
        found = {"waits": [key is not None], "streams": [len(rows.unique())], "rows": [len(rows)]}
        return pa.table(found), b"state" if leaves else None

    monkeypatch.setattr(ultta.ray, "KEYS", 0)
    monkeypatch.setattr(ultta.ray, "_answer_some", noted)
    parts = ultta.ray.adapt(read(archive), archive.head, key="camera", time="frame", partitions=8).take_all()
    assert sum(part["rows"] for part in parts) == ROWS
    # Blocks end where Ray likes, most of them in the middle of a stream: its rest waits, and nothing else with it.
    assert any(part["waits"] for part in parts)
    assert all(part["streams"] == 1 for part in parts if part["waits"])


def test_without_a_key_answers_have_seen_the_whole_set(archive: Archive) -> None:
    archive.check_hindsight(ultta.ray.adapt(read(archive), archive.head).take_all())


@pytest.mark.parametrize("keys", [0, CAMERAS])
def test_a_killed_worker_does_no_harm(archive: Archive, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    # Few rows at a time, so that there is time to meet one; sorted by Ray, and not.
    monkeypatch.setattr(ultta.ray, "KEYS", keys)
    monkeypatch.setattr(ultta.ray, "ENOUGH", 100)
    name = "ray::_answer" if keys else "ray::_answer_some"
    rows = blocks(archive.ordered)
    with killing(lambda process: process.cmdline()[:1] == [name]) as killed:
        found = ultta.ray.adapt(rows, archive.head, key="camera", time="frame", partitions=40)
    assert killed
    archive.check(found.take_all())


def test_mistakes_are_named(archive: Archive) -> None:
    with pytest.raises(ValueError, match="vectors: expected a column of that name, got camera"):
        ultta.ray.adapt(read(archive), archive.head, features="vectors")
    none = read(archive).filter(expr="frame < 0")
    with pytest.raises(ValueError, match="at least 1 row"):
        ultta.ray.adapt(none, archive.head, key="camera", time="frame")
