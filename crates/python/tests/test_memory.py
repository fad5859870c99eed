"""No leak: one million steps, and resident memory stays flat."""

from __future__ import annotations

import gc
import resource

import numpy as np
import pytest

import ultta
from conftest import simulate


def resident_kb() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


@pytest.mark.skipif(not __import__("os").path.exists("/proc/self/statm"), reason="needs /proc")
def test_one_million_steps_in_flat_memory() -> None:
    stream = simulate(rows=1000, classes=5, dim=8)
    session = ultta.Session(stream.head)
    rows = [stream.features[i] for i in range(1000)]

    def steps(thousands: int) -> None:
        for _ in range(thousands):
            for row in rows:
                step = session.step(row)
            step.probs, step.scores, step.zero_shot.probs, step.labels, step.health, step.to_dicts()

    steps(100)
    gc.collect()
    before = resident_kb()
    steps(900)
    gc.collect()
    assert session.seen == 1_000_000
    assert resident_kb() - before < 2048


def test_errors_copies_and_pickles_do_not_leak() -> None:
    import copy
    import pickle

    stream = simulate(rows=200, classes=50, dim=64)
    session = ultta.Session(stream.head)
    session.step(stream.features)

    def rounds(n: int) -> None:
        for _ in range(n):
            copy.copy(session)
            pickle.loads(pickle.dumps(session))
            with pytest.raises(ValueError):
                session.step(stream.features * 2)
            session.step(stream.features.astype(np.float64)).scores[:1]

    rounds(20)
    gc.collect()
    before = resident_kb()
    rounds(100)
    gc.collect()
    assert resident_kb() - before < 8192
