"""Archives on Ray, in local mode."""

from __future__ import annotations

import pytest
import ray
from conftest import Archive, killing

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
