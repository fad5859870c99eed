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
    with pytest.raises(ImportError, match=r"pandas or polars.*pip install 'ultta\[pandas\]'"):
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
    # no spike from a window of a sample or two: a curve begins where its window is half full
    ax = ultta.plot.stream({"a": [0, 1, 1, 0, 1, 1]}, window=4)
    assert ax.get_lines()[0].get_xdata().tolist() == [2, 3, 4, 5, 6]
    assert ultta.plot.stream({"a": [1]}, window=200).get_lines()[0].get_ydata().tolist() == [1]
    with pytest.raises(ValueError, match="window"):
        ultta.plot.stream({"a": [1]}, window=0)


def test_a_name_has_one_colour_in_every_plot() -> None:
    lines = ultta.plot.stream({"zero-shot": [1, 0], "tda": [1, 1], "adapted": [1, 1]}, window=2).get_lines()
    other = ultta.plot.reliability([0.9] * 30, [True] * 30, label="tda").get_lines()[1]
    adapted = ultta.plot.reliability([0.9] * 30, [True] * 30, label="adapted").get_lines()[1]
    assert other.get_color() == lines[1].get_color() and adapted.get_color() == lines[2].get_color()
    assert len({line.get_color() for line in lines}) == 3


def test_bins_of_few_answers_are_pale() -> None:
    prob = [0.9] * 30 + [0.1] * 3
    _, sure, few = ultta.plot.reliability(prob, [True] * 33, bins=2).get_lines()
    assert (len(sure.get_xdata()), len(few.get_xdata())) == (1, 1)
    assert few.get_alpha() < 0.5 and sure.get_alpha() is None


def test_without_matplotlib_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'ultta\[plot\]'"):
        ultta.plot.stream({"a": [1]})
