"""The pipeline-shaped wrapper around an encoder that stands in for transformers' (`tests_torch` has the real one)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ultta
from conftest import Stream
from ultta.transformers import SETS, AdaptedPipeline, pipeline


class Standing(AdaptedPipeline):
    """Pictures are row numbers of a stream; labels are its classes."""

    def __init__(self, stream: Stream, **options: Any) -> None:
        super().__init__(None, **options)
        self.stream = stream
        self.templates: list[str] = []
        self.batches: list[int] = []

    def _head(self, labels: tuple[str, ...], template: str) -> ultta.Head:
        self.templates.append(template)
        rows = [self.stream.head.classes.index(label) for label in labels]
        return ultta.Head.from_text_features(self.stream.head.prototypes[rows], list(labels), 20.0)

    def _features(self, images: list[Any], timeout: float | None) -> np.ndarray:
        self.batches.append(len(images))
        return 3 * self.stream.features[images]


def test_the_same_dictionaries_come_out_adapted(stream: Stream) -> None:
    pipe = Standing(stream)
    labels = stream.head.classes
    expected = ultta.Session(stream.head).step(3 * stream.features, normalize=True)
    found = pipe(list(range(600)), candidate_labels=labels)
    assert len(found) == 600 and all(len(answer) == len(labels) for answer in found)
    for row, answer in enumerate(found):
        scores = [entry["score"] for entry in answer]
        assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1, abs=1e-5)
        assert {entry["label"]: entry["score"] for entry in answer} == dict(zip(labels, expected.probs[row].tolist()))
    assert pipe.last is not None and (pipe.last.labels != pipe.last.zero_shot.labels).any()
    right = [answer[0]["label"] for answer in found] == np.array(labels)[stream.labels]
    frozen = pipe.last.zero_shot.labels == stream.labels
    assert right.mean() > frozen.mean()


def test_one_picture_gives_one_list(stream: Stream) -> None:
    pipe = Standing(stream)
    one = pipe(0, candidate_labels=stream.head.classes)
    assert one == Standing(stream)([0], stream.head.classes)[0]
    assert set(one[0]) == {"score", "label"}
    assert pipe([], candidate_labels=stream.head.classes) == []
    assert pipe(0, candidate_labels=["class 3"]) == [{"score": 1.0, "label": "class 3"}]


def test_batches_are_answered_as_one_by_one(stream: Stream) -> None:
    labels, pictures = stream.head.classes, list(range(200))
    single = Standing(stream)
    expected = [single(picture, candidate_labels=labels) for picture in pictures]
    made_with_batches = SimpleNamespace(_batch_size=64)
    for size, made, batches in ((64, None, [64, 64, 64, 8]), (None, made_with_batches, [64, 64, 64, 8]), (None, None, [1] * 200)):
        pipe = Standing(stream)
        pipe.pipe = made
        assert pipe(pictures, candidate_labels=labels, batch_size=size) == expected
        assert pipe.batches == batches and pipe.last is not None and len(pipe.last.labels) == 200
    with pytest.raises(ValueError, match="batch_size: expected 1 or more, got -1"):
        single(pictures, candidate_labels=labels, batch_size=-1)


def test_every_set_of_labels_has_a_session(stream: Stream) -> None:
    pipe = Standing(stream, advanced__update_every=64)
    pipe([0, 1, 2], candidate_labels=["class 0", "class 1"])
    pipe([0, 1], candidate_labels=["class 1", "class 2"], hypothesis_template="a {}.")
    pipe(3, candidate_labels=["class 0", "class 1"])
    assert pipe.session(["class 0", "class 1"]).seen == 4
    assert pipe.session(["class 1", "class 2"], "a {}.").seen == 2
    assert pipe.templates == ["This is a photo of {}.", "a {}."]
    assert pipe.session(["class 0", "class 1"]).config["method"]["ul_tta"]["advanced"]["update_every"] == 64
    for a in range(7):
        for b in range(2):
            if a != b:
                pipe(0, candidate_labels=[f"class {a}", f"class {b}"])
    assert len(pipe.sessions) == SETS


def test_it_can_hold_still(stream: Stream) -> None:
    pipe = Standing(stream, adapt=False)
    pipe([0, 1, 2], candidate_labels=stream.head.classes)
    assert pipe.session(stream.head.classes).seen == 0


def test_what_is_wrong_is_named(stream: Stream) -> None:
    pipe = Standing(stream)
    with pytest.raises(ValueError, match="candidate_labels: expected a list of names, got none"):
        pipe(0)
    with pytest.raises(TypeError, match="candidate_labels: expected a list of names, got the text 'cat'"):
        pipe(0, candidate_labels="cat")
    with pytest.raises(ValueError, match="task: expected 'zero-shot-image-classification', got 'translation'"):
        pipeline("translation")
