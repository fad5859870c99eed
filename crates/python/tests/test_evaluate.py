"""Metrics and evaluations."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss, recall_score, roc_auc_score

import ultta
from conftest import Stream


def test_metrics_agree_with_scikit_learn(stream: Stream) -> None:
    step = ultta.Session(stream.head).step(stream.features)
    found = ultta.metrics.quality(step.probs, stream.labels, step.labels)
    right = step.labels == stream.labels
    assert found["top1"] == pytest.approx(right.mean()) == ultta.metrics.top1(step.labels, stream.labels)
    assert found["nll"] == pytest.approx(log_loss(stream.labels, step.probs.astype(float)), rel=1e-4)
    assert found["class_recall"] == pytest.approx(recall_score(stream.labels, step.labels, average="macro"))
    hot = np.eye(7)[stream.labels]
    assert found["brier"] == pytest.approx(((step.probs - hot) ** 2).sum(1).mean(), rel=1e-4)
    assert found["ece"] == pytest.approx(ultta.metrics.ece(step.prob, right), abs=1e-6)
    assert found["aurc"] == pytest.approx(ultta.metrics.aurc(step.prob, right), abs=1e-6)
    assert found["mce"] == pytest.approx(ultta.metrics.mce(step.prob, right), abs=1e-6)
    assert found["ece_adaptive"] == pytest.approx(ultta.metrics.adaptive_ece(step.prob, right), abs=1e-6)
    assert found["ece_right"] == pytest.approx(ultta.metrics.ece(step.prob, right, closed="right"), abs=1e-6)


def test_missing_values_are_refused() -> None:
    with pytest.raises(ValueError, match="row 1"):
        ultta.metrics.quality([[0.5, 0.5], [np.nan, 1.0]], [0, 1])
    with pytest.raises(ValueError, match="masked"):
        ultta.metrics.top1(np.ma.array([0, 1], mask=[False, True]), [0, 1])


def test_detection_agrees_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    known, strangers = random.normal(1, 1, 300), random.normal(0, 1, 200)
    found = ultta.metrics.detection(known, strangers)
    truth = np.r_[np.ones(300), np.zeros(200)]
    scores = np.r_[known, strangers].astype(np.float32)
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores))
    assert found["aupr"] == pytest.approx(average_precision_score(truth, scores))


def test_bad_metrics_arguments_are_named() -> None:
    m = ultta.metrics
    for call, words in [
        (lambda: m.ece([0.5], [True, False]), "right: expected 1, got 2"),
        (lambda: m.ece([1.5], [True]), "prob: row 0: expected a probability"),
        (lambda: m.ece([float("nan")], [True]), "expected a probability"),
        (lambda: m.ece([0.5], [True], bins=0), "bins: expected at least 1"),
        (lambda: m.ece([0.5], [True], closed="both"), "closed"),
        (lambda: m.quality([0.5], [0]), "rows × classes"),
        (lambda: m.quality([[0.5, 0.5]], [2]), "not below the number of classes, 2"),
        (lambda: m.quality([[0.5, 0.5]], [0.5]), "expected class indices"),
        (lambda: m.detection([], [1.0]), "strangers"),
        (lambda: m.top1([0], [0, 1]), "labels: expected 1, got 2"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_an_evaluation_equals_the_plain_loop(stream: Stream) -> None:
    found = ultta.evaluate((stream.features, stream.labels, stream.head), methods=["ul-tta"], protocols=["file"])
    session = ultta.Session(stream.head)
    steps = [session.step(stream.features[i : i + 128]) for i in range(0, 600, 128)]
    probs = np.concatenate([step.probs for step in steps])
    answers = np.concatenate([step.labels for step in steps])
    plain = ultta.metrics.quality(probs, stream.labels, answers)
    (run,) = found["runs"]
    assert {name: run[name] for name in ("top1", "ece", "brier")} == {
        name: plain[name] for name in ("top1", "ece", "brier")
    }
    assert run["zero_shot"]["top1"] == np.mean(stream.head.zero_shot(stream.features).argmax(1) == stream.labels)


def test_an_evaluation_of_files_and_frames(stream: Stream, tmp_path: Path) -> None:
    np.savez(tmp_path / "features.npz", features=stream.features, labels=stream.labels)
    stream.head.save(tmp_path / "head.safetensors")
    pack = (tmp_path / "features.npz", tmp_path / "head.safetensors")
    found = ultta.evaluate(
        [pack], methods=["zero-shot", "ul-tta", "tda"], protocols=["iid", "sorted"], seeds=range(2), out=tmp_path / "runs",
        progress=True,
    )
    assert len(found["runs"]) == 12 and len(found["summary"]) == 6
    frame = found.to_frame()
    assert len(frame) == 12 and {"method", "protocol", "top1", "zero_shot.top1"} <= set(frame.columns)
    assert len(found.summary_frame()) == 6
    assert "12 runs" in found._repr_html_()
    json.dumps(found)
    again = ultta.evaluate([pack], methods=["ul-tta"], protocols="iid", seeds=1, out=tmp_path / "runs")
    timings = [run["timing"]["step_p50_us"] for run in found["runs"]]
    kept = again["runs"][0]["timing"]["step_p50_us"]
    assert any(kept == pytest.approx(timing, rel=1e-12) for timing in timings)  # not run again


def test_a_pack_in_distribution_is_told_from_the_stream(stream: Stream, tmp_path: Path) -> None:
    # The anchors themselves are answered more surely than any sample.
    np.save(tmp_path / "known.npy", np.asarray(stream.head.prototypes))
    found = ultta.evaluate(
        (stream.features, stream.labels, stream.head), methods=["zero-shot"], in_distribution=tmp_path / "known.npy"
    )
    told = found["runs"][0]["open"]
    assert told["strangers"] == len(stream.features) and told["zero_shot_max_softmax"]["auroc"] > 0.9
    with pytest.raises(OSError, match="nowhere"):
        ultta.evaluate(
            (stream.features, stream.labels, stream.head), in_distribution=tmp_path / "nowhere.npy"
        )


def test_bad_plans_are_named(stream: Stream, tmp_path: Path) -> None:
    pack = (stream.features, stream.labels, stream.head)
    for options, words in [
        (dict(methods=["ul-ta"]), "did you mean ul-tta"),
        (dict(protocols=["idd"]), "did you mean iid"),
        (dict(config="[method"), "config"),
    ]:
        with pytest.raises(ValueError, match=words):
            ultta.evaluate(pack, **options)
    with pytest.raises(ValueError, match="packs"):
        ultta.evaluate([])
    with pytest.raises(ValueError, match="packs"):
        ultta.evaluate([1])
    with pytest.raises(FileNotFoundError):
        ultta.evaluate((tmp_path / "none", tmp_path / "none"))
    with pytest.raises(ValueError):
        ultta.evaluate((stream.features, stream.labels + 7, stream.head))


def test_an_interrupt_stops_an_evaluation() -> None:
    program = textwrap.dedent(
        """
        import signal
        import numpy as np, ultta
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where the tests run
        rows = np.tile(np.eye(40, dtype=np.float32), (100, 1))
        head = ultta.Head.from_text_features(np.eye(40), [str(i) for i in range(40)])
        print("ready", flush=True)
        try:
            ultta.evaluate((rows, np.tile(np.arange(40), 100), head), protocols=["iid+cycle:5000000"])
        except KeyboardInterrupt:
            print("stopped")
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120)[0] == "stopped\n"
