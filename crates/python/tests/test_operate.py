"""Why, corrections, suggestions, and the layer that is taken along."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import ultta
import ultta.plot
from conftest import Stream


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_explanations_add_up_and_are_drawn(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    session.step(stream.features[:-1])
    row = stream.features[-1]
    explained = session.explain(row, best=3)
    scores = session.predict(row).scores[0]
    for entry in explained["classes"]:
        assert len(entry["nats"]) == len(explained["levers"])
        assert abs(sum(entry["nats"]) - scores[entry["label"]]) < 1e-4
    assert explained["class"] == session.predict(row).names[0]
    ax = ultta.plot.explanation(explained)
    assert len(ax.get_yticklabels()) == len(explained["classes"])
    assert len(explained["similar"]) == 5
    by_id = session.explain(id=explained["similar"][0]["id"])
    assert by_id["class"] in stream.head.classes
    with pytest.raises(ValueError, match="either"):
        session.explain()
    with pytest.raises(ValueError, match="^sample 1000000000 is not among"):
        session.explain(id=10**9)
    frozen = ultta.Session(stream.head, method="zero-shot")
    frozen.step(stream.features)
    with pytest.raises(ValueError, match="keeps no samples"):
        frozen.explain(id=0)


def command(*arguments: object) -> str:
    """The command line of the wheel, in a process of its own."""
    called = [sys.executable, "-m", "ultta", *map(str, arguments)]
    return subprocess.run(called, check=True, capture_output=True, text=True).stdout


def test_explanations_are_those_of_the_command_line(stream: Stream, tmp_path: Path) -> None:
    session = ultta.Session(stream.head)
    step = session.step(stream.features)
    id = int(step.ids[-1])
    session.correct(id, 1)
    head, state = tmp_path / "head.safetensors", tmp_path / "state.safetensors"
    stream.head.save(head)
    session.save(state)
    told = command("explain", "--head", head, "--state", state, "--id", id, "--best", 3, "--json")
    explained = session.explain(id=id, best=3)
    assert json.loads(told) == explained
    assert explained["standing"] == "healthy" and explained["corrected"] == stream.head.classes[1]


def test_what_to_label_of_a_run(stream: Stream, tmp_path: Path) -> None:
    head, features, answers = (tmp_path / name for name in ("head.safetensors", "features.npy", "answers.jsonl"))
    stream.head.save(head)
    np.save(features, stream.features)
    command("run", "--features", features, "--head", head, "--shuffle", 1, "--out", answers)
    told = command("suggest", "--answers", answers, "--features", features, "--k", 5, "--json")
    suggested = ultta.suggest_from_answers(answers, features, 5)
    assert suggested == [json.loads(line) for line in told.splitlines()] and len(suggested) == 5
    assert {"row", "sample", "label", "class", "prob", "expected_use"} == set(suggested[0])
    with pytest.raises(ValueError, match="no such file or folder"):
        ultta.suggest_from_answers(answers, tmp_path / "none.npy")
    with pytest.raises(ValueError, match="k: expected 1 or more, got 0"):
        ultta.suggest_from_answers(answers, features, 0)


def test_a_label_counts_at_once_and_can_be_taken_back(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    step = session.step(stream.features)
    id, row = int(step.ids[-1]), stream.features[-1]
    before = session.predict(row)
    other = session.explain(row, best=2)["classes"][1]["label"]
    assert session.correct(id, other) == 1
    assert session.corrections == {id: other}
    assert session.predict(row).labels[0] == other
    assert session.explain(row)["flipped_by"] == "labels"
    assert session.explain(id=id)["corrected"] == stream.head.classes[other]
    assert session.withdraw([id]) == 1 and session.withdraw(id) == 0
    np.testing.assert_allclose(session.predict(row).scores, before.scores, atol=1e-6)
    with pytest.raises(ValueError, match='^"no such class" is not a class'):
        session.correct(id, "no such class")


def test_suggestions_have_a_use(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    assert session.suggest() == []
    session.step(stream.features)
    suggested = session.suggest(7)
    uses = [entry["expected_use"] for entry in suggested]
    assert len(suggested) == 7 and uses == sorted(uses, reverse=True) and uses[0] > 0
    assert session.correct([entry["id"] for entry in suggested], [0] * 7) == 7
    assert not {entry["id"] for entry in session.suggest(7)} & {entry["id"] for entry in suggested}


def test_an_exported_layer_is_the_session_in_numpy(stream: Stream, tmp_path: Path) -> None:
    session = ultta.Session(stream.head, scenes=False)
    session.step(stream.features)
    step = session.predict(stream.features[:50])
    session.export(tmp_path / "layer.npz")
    layer = np.load(tmp_path / "layer.npz")
    assert list(layer["classes"]) == list(stream.head.classes)
    z = stream.features[:50]
    logits = z @ layer["weights"].T + layer["bias"]
    assert (logits.argmax(axis=1) == step.labels).all()
    adapted = softmax(layer["temperature"] * logits)
    frozen = softmax(z @ layer["frozen_weights"].T + layer["frozen_bias"])
    rows = np.arange(50)
    own = frozen[rows, step.labels][:, None]
    lead, pull = adapted[rows, step.labels][:, None] - adapted, frozen - own
    bound = np.where(pull > 0, 0.99 * lead / np.maximum(lead + pull, 1e-30), layer["frozen_share"])
    share = np.minimum(bound.min(axis=1, keepdims=True), layer["frozen_share"])
    mixed = (1 - share) * adapted + share * frozen
    probs = (1 - layer["floor"]) * mixed + layer["floor"] / logits.shape[1]
    np.testing.assert_allclose(probs[rows, step.labels], step.prob, atol=1e-5)
    session.export(tmp_path / "layer.onnx")
    assert (tmp_path / "layer.onnx").read_bytes().startswith(b"\x08\x08")
    assert zipfile.is_zipfile(tmp_path / "layer.npz")
    with pytest.raises(ValueError, match="onnx"):
        session.export(tmp_path / "layer.pt")
