"""Archives on Ray, in local mode."""

from __future__ import annotations

import pyarrow as pa
import pytest
import ray
from conftest import ROWS, Archive, killing

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


def test_frames_of_pandas_are_answered_alike(archive: Archive) -> None:
    frames = ray.data.from_pandas(read(archive).to_pandas())
    found = ultta.ray.adapt(frames, archive.head, key="camera", time="frame")
    archive.check(found.take_all())


def test_a_stream_that_begins_in_a_block_waits_for_no_other(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(plan, block, start, end, key, state, leaves):
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


def test_mistakes_are_named(archive: Archive) -> None:
    with pytest.raises(ValueError, match="vectors: expected a column of that name, got camera"):
        ultta.ray.adapt(read(archive), archive.head, features="vectors")
    none = read(archive).filter(expr="frame < 0")
    with pytest.raises(ValueError, match="at least 1 row"):
        ultta.ray.adapt(none, archive.head, key="camera", time="frame")
