"""A small simulated stream, and the real ones where they are present."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import matplotlib
import numpy as np
import pytest

import ultta

matplotlib.use("agg")

#: Real feature packs, read only when present: `<dataset>/<encoder>/{features,head}.safetensors`.
DATA = Path(os.environ.get("ULTTA_DATA", Path(__file__).parents[3].parent / "shared" / "data"))


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@dataclass
class Stream:
    """Rows around class directions that lie beside the anchors, as images lie beside texts."""

    head: ultta.Head
    features: np.ndarray
    labels: np.ndarray


def simulate(rows: int = 600, classes: int = 7, dim: int = 32, seed: int = 0) -> Stream:
    random = np.random.default_rng(seed)
    anchors = unit(random.normal(size=(classes, dim)))
    gap = random.normal(size=dim) * 0.4
    centres = unit(anchors + gap + 0.5 * unit(random.normal(size=(classes, dim))))
    labels = random.integers(classes, size=rows)
    features = unit(centres[labels] + 0.12 * random.normal(size=(rows, dim)))
    names = [f"class {c}" for c in range(classes)]
    return Stream(ultta.Head.from_text_features(anchors, names, 20.0), features, labels)


@pytest.fixture
def stream() -> Stream:
    return simulate()


@pytest.fixture(params=["ul_tta", "ul_tta:paper", "zero_shot"])
def session(request: pytest.FixtureRequest, stream: Stream) -> Iterator[ultta.Session]:
    method, _, preset = request.param.partition(":")
    yield ultta.Session(stream.head, method, preset or "default")
