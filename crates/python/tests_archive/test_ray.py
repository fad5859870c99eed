"""Archives on Ray, in local mode."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
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


def test_keyed_streams_are_answered_as_on_one_machine(archive: Archive) -> None:
    found = ultta.ray.adapt(read(archive), archive.head, key="camera", time="frame", partitions=8)
    assert "features" not in found.columns()
    archive.check(found.take_all())


def in_order(archive: Archive):
    return ray.data.read_parquet([str(archive.ordered / f"{part}.parquet") for part in range(6)])


def none_sorted(*_: object) -> list:
    raise AssertionError("rows that come in the order of time were sorted")


@pytest.mark.parametrize("room", [None, 1])
def test_rows_in_the_order_of_time_are_answered_as_they_come(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    monkeypatch.setattr(ultta.ray, "_sorted", none_sorted)
    monkeypatch.setattr(ultta.ray, "ENOUGH", 300)
    if room is not None:
        monkeypatch.setattr(ultta.ray, "_room", lambda: room)
    found = ultta.ray.adapt(in_order(archive), archive.head, key="camera", time="frame").take_all()
    archive.check(found)
    # One camera after another, each in the order of time.
    cameras = list(dict.fromkeys(row["camera"] for row in found))
    assert found == sorted(found, key=lambda row: (cameras.index(row["camera"]), row["frame"]))


def test_files_of_one_camera_each_are_answered_as_they_come(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ultta.ray, "_sorted", none_sorted)
    table = in_order(archive).to_pandas()
    for number, camera in enumerate(sorted(set(archive.camera))):
        own = table[table["camera"] == camera]
        # Within a file rows may come in any order.
        own = own.sample(frac=1.0, random_state=0) if number % 2 else own
        own.to_parquet(tmp_path / f"{number}.parquet", index=False)
    rows = ray.data.read_parquet(str(tmp_path))
    archive.check(ultta.ray.adapt(rows, archive.head, key="camera", time="frame").take_all())


@pytest.mark.parametrize("last", [0, 5])
def test_a_file_out_of_order_is_noticed_late_or_early(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    monkeypatch.setattr(ultta.ray, "ENOUGH", 300)
    # Read first, it makes all others come too late; read last, it comes after all of them.
    parts = [1, 2, 3, 4, 5, 0] if last == 0 else [5, 0, 1, 2, 3, 4]
    rows = ray.data.read_parquet([str(archive.ordered / f"{part}.parquet") for part in parts])
    archive.check(ultta.ray.adapt(rows, archive.head, key="camera", time="frame").take_all())


def test_more_keys_than_states_are_worth_are_sorted(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ultta.ray, "KEYS", CAMERAS - 1)
    sorted_rows = []
    before = ultta.ray._sorted
    monkeypatch.setattr(ultta.ray, "_sorted", lambda *given: sorted_rows.append(1) or before(*given))
    archive.check(ultta.ray.adapt(in_order(archive), archive.head, key="camera", time="frame").take_all())
    assert sorted_rows


def test_frames_of_pandas_are_answered_alike(archive: Archive) -> None:
    frames = ray.data.from_pandas(read(archive).to_pandas())
    found = ultta.ray.adapt(frames, archive.head, key="camera", time="frame")
    archive.check(found.take_all())


def test_a_stream_that_begins_in_a_block_waits_for_no_other(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(plan, key, state, leaves, span, block):
        start, end = span
        rows = block.column("camera").slice(start, end - start)
        found = {"waits": [key is not None], "streams": [len(rows.unique())], "rows": [len(rows)]}
        return pa.table(found), b"state" if leaves else None

    monkeypatch.setattr(ultta.ray, "_answer", noted)
    parts = ultta.ray.adapt(read(archive), archive.head, key="camera", time="frame", partitions=8).take_all()
    assert sum(part["rows"] for part in parts) == ROWS
    # Blocks end where Ray likes, most of them in the middle of a stream: its rest waits, and nothing else with it.
    assert any(part["waits"] for part in parts)
    assert all(part["streams"] == 1 for part in parts if part["waits"])


def test_without_a_key_answers_have_seen_the_whole_set(archive: Archive) -> None:
    archive.check_hindsight(ultta.ray.adapt(read(archive), archive.head).take_all())


def test_a_killed_worker_does_no_harm(archive: Archive) -> None:
    # Small blocks, so that there is time to meet one.
    with killing(lambda process: process.cmdline()[:1] == ["ray::_answer"]) as killed:
        found = ultta.ray.adapt(read(archive), archive.head, key="camera", time="frame", partitions=40)
    assert killed
    archive.check(found.take_all())


def test_a_worker_killed_in_the_middle_of_streams_does_no_harm(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ultta.ray, "_sorted", none_sorted)
    monkeypatch.setattr(ultta.ray, "ENOUGH", 100)
    with killing(lambda process: process.cmdline()[:1] == ["ray::_answer"]) as killed:
        found = ultta.ray.adapt(in_order(archive), archive.head, key="camera", time="frame")
    assert killed
    archive.check(found.take_all())


def test_mistakes_are_named(archive: Archive) -> None:
    with pytest.raises(ValueError, match="vectors: expected a column of that name, got camera"):
        ultta.ray.adapt(read(archive), archive.head, features="vectors")
    none = read(archive).filter(expr="frame < 0")
    with pytest.raises(ValueError, match="at least 1 row"):
        ultta.ray.adapt(none, archive.head, key="camera", time="frame")
