"""Data frames and pictures."""

from __future__ import annotations

import sys

import numpy as np
import pandas
import pytest

import ultta
import ultta.plot
from conftest import Stream


def test_steps_as_pandas_frames(stream: Stream) -> None:
    step = ultta.Session(stream.head).step(stream.features)
    frame = step.to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 600
    assert frame["class"][0] == step.names[0] and frame["prob"].dtype == np.float32
    frame["prob"] *= 100  # a frame is the user's own


def test_without_pandas_and_polars_it_says_so(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(RuntimeError, match="pandas or polars"):
        ultta.Session(stream.head).step(stream.features).to_frame()


def test_reliability_diagram(stream: Stream) -> None:
    step = ultta.Session(stream.head).step(stream.features)
    right = step.labels == stream.labels
    ax = ultta.plot.reliability(step.prob, right, label="adapted")
    ax = ultta.plot.reliability(step.zero_shot.prob, step.zero_shot.labels == stream.labels, label="frozen", ax=ax)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(labels) == 2 and labels[0].startswith("adapted: ECE")


def test_stream_curves() -> None:
    ax = ultta.plot.stream({"a": [1, 1, 0, 0]}, window=2)
    assert ax.get_lines()[0].get_ydata().tolist() == [1, 1, 0.5, 0]
    with pytest.raises(ValueError, match="window"):
        ultta.plot.stream({"a": [1]}, window=0)


def test_without_matplotlib_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(RuntimeError, match="pip install matplotlib"):
        ultta.plot.stream({"a": [1]})
