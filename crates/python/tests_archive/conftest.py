"""An archive of several cameras as Parquet files, and what one machine answers."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ultta
from ultta._ultta import _Simulator

# Workers run the interpreter of the tests.
os.environ["PYSPARK_PYTHON"] = sys.executable

CAMERAS, ROWS = 5, 6000


@dataclass
class Archive:
    #: Of files whose rows come in any order.
    folder: Path
    #: Of files with the rows of all cameras in the order of time, in that of their names.
    ordered: Path
    head: ultta.Head
    labels: np.ndarray
    camera: np.ndarray
    features: np.ndarray

    def answers(self, **options: Any) -> dict[int, dict[str, Any]]:
        """By frame: what a session of its own answers for every camera."""
        found = {}
        for camera in set(self.camera):
            own = np.flatnonzero(self.camera == camera)
            step = ultta.Session(self.head).step(self.features[own], **options)
            columns = step.labels, step.names, step.prob, step.zero_shot.labels, step.scenes, step.admitted
            for frame, *row in zip(own, *columns):
                found[int(frame)] = dict(zip(NAMES, row))
        return found

    def check(self, rows: list[dict[str, Any]]) -> None:
        """Every row is answered once, exactly as on one machine."""
        wanted = self.answers()
        assert sorted(row["frame"] for row in rows) == sorted(wanted)
        for row in rows:
            assert row["camera"] == self.camera[row["frame"]]
            assert {name: row[name] for name in NAMES} == wanted[row["frame"]], row
            assert row["hindsight"] is False

    def check_hindsight(self, rows: list[dict[str, Any]]) -> None:
        """Every row is answered once, and better than by zero-shot."""
        assert sorted(row["frame"] for row in rows) == list(range(ROWS))
        assert all(row["hindsight"] for row in rows)
        right = [row["label"] == self.labels[row["frame"]] for row in rows]
        frozen = [row["zero_shot_label"] == self.labels[row["frame"]] for row in rows]
        assert sum(right) > sum(frozen)


NAMES = "label", "class", "prob", "zero_shot_label", "scene", "admitted"


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    folder, ordered = tmp_path_factory.mktemp("archive"), tmp_path_factory.mktemp("ordered")
    simulator = _Simulator(40, 64, 0)
    features, labels = simulator.rows(ROWS)
    random = np.random.default_rng(0)
    # One camera has more frames than the others, and more than a partition.
    camera = np.array([f"camera {c}" for c in np.minimum(random.integers(2 * CAMERAS, size=ROWS), CAMERAS - 1)])
    order = random.permutation(ROWS)
    table = pa.table(
        {
            "camera": camera[order],
            "frame": order,
            "features": pa.array(list(features[order]), pa.list_(pa.float32())),
        }
    )
    by_time = table.sort_by("frame")
    for part in range(6):
        pq.write_table(table.slice(part * 1000, 1000), folder / f"{part}.parquet")
        pq.write_table(by_time.slice(part * 1000, 1000), ordered / f"{part}.parquet")
    return Archive(folder, ordered, simulator.head, labels, camera, features)


@contextmanager
def killing(chosen: Callable[[psutil.Process], bool]) -> Iterator[list[int]]:
    """Kills the first process below this one that is chosen, once."""
    killed: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set() and not killed:
            for process in psutil.Process().children(recursive=True):
                try:
                    if chosen(process):
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
                        break
                except psutil.Error:
                    continue
            time.sleep(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
