"""What a user of Python takes for granted: pickles, copies, ``python -m``, extras, names, and messages that fit."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import ultta
from conftest import Stream, simulate

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def assert_same(one: ultta.Step, other: ultta.Step) -> None:
    """Two steps agree in everything that can be asked."""
    for name in ("ids", "labels", "prob", "prob_pred", "admitted", "unknown", "garbage", "scenes", "begins_scene"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.names == other.names and one.to_dicts() == other.to_dicts() and one.health == other.health


@pytest.mark.parametrize("keep_scores", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_steps_travel(session: ultta.Session, stream: Stream, protocol: int, keep_scores: bool) -> None:
    session.step(stream.features[:200])
    step = session.step(stream.features[200:], keep_scores=keep_scores)
    for other in (pickle.loads(pickle.dumps(step, protocol)), copy.copy(step), copy.deepcopy(step)):
        assert_same(step, other)
        if keep_scores:
            for name in ("probs", "probs_pred", "scores"):
                np.testing.assert_array_equal(getattr(step, name), getattr(other, name), err_msg=name)
            np.testing.assert_array_equal(step.top(3)[1], other.top(3)[1])
        else:
            with pytest.raises(RuntimeError, match="keep_scores=True"):
                other.probs


def test_an_empty_step_travels(session: ultta.Session, stream: Stream) -> None:
    step = pickle.loads(pickle.dumps(session.step(stream.features[:0])))
    assert len(step) == 0 and step.probs.shape == (0, 7)


def test_what_the_frozen_model_says_travels(stream: Stream) -> None:
    frozen = ultta.Session(stream.head).step(stream.features).zero_shot
    for other in (pickle.loads(pickle.dumps(frozen)), copy.copy(frozen), copy.deepcopy(frozen)):
        np.testing.assert_array_equal(other.labels, frozen.labels)
        np.testing.assert_array_equal(other.probs, frozen.probs)
        np.testing.assert_array_equal(other.scores, frozen.scores)


def test_health_travels(session: ultta.Session, stream: Stream) -> None:
    session.step(stream.features)
    health = session.health
    for other in (pickle.loads(pickle.dumps(health)), copy.copy(health), copy.deepcopy(health)):
        assert other == health and other.to_dict() == health.to_dict()
    estimate = health.estimate
    for told in (pickle.loads(pickle.dumps(estimate)), copy.copy(estimate), copy.deepcopy(estimate)):
        assert told == estimate and told.to_dict() == estimate.to_dict()


def test_evaluations_travel(stream: Stream) -> None:
    found = ultta.evaluate((stream.features, stream.labels, stream.head), methods=["zero-shot"])
    for other in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert other == found and isinstance(other, ultta.Evaluation)


def test_evaluations_are_shown_as_a_table(stream: Stream) -> None:
    pack = (stream.features, stream.labels, stream.head)
    found = ultta.evaluate(pack, methods=["zero-shot", "ul-tta"], seeds=range(2))
    first, names, *lines = repr(found).splitlines()
    assert first == "Evaluation: 4 runs" and names.split()[:4] == ["protocol", "dataset", "method", "top1"]
    assert sorted(line.split()[2] for line in lines) == ["ul-tta", "zero-shot"] and len(repr(found)) < 1000
    with pytest.raises(TypeError, match=r"seeds: expected whole numbers, such as range\(5\), got the text '0-4'"):
        ultta.evaluate(pack, seeds="0-4")  # type: ignore[arg-type]


def test_pickles_that_were_tampered_with_are_refused(stream: Stream) -> None:
    from ultta import _ultta

    step = ultta.Session(stream.head).step(stream.features[:4])
    restore, (head, rows, health, kept) = step.__reduce__()
    assert restore is _ultta._restore_step
    frozen, scores, calibrated, tau = kept
    for arguments in (
        (head, rows[:-1], health, kept),
        (head, rows.replace(b'"label":', b'"label":9'), health, kept),
        (head, rows, "seen = 3", kept),
        (head, rows, health, (frozen[:3], scores, calibrated, tau)),
        (head, rows, health, (frozen, scores[:, :3], calibrated, tau)),
        (head, rows, health, (frozen, scores, calibrated, tau[:3])),
    ):
        with pytest.raises(ValueError, match="pickle: it holds no step or health of this version"):
            restore(*arguments)


def work(task: tuple[ultta.Session, np.ndarray]) -> tuple[ultta.Session, ultta.Step, ultta.Health]:
    """What a worker of Ray or multiprocessing does."""
    session, rows = task
    step = session.step(rows)
    return session, step, step.health


def test_workers_of_other_processes_get_and_return_everything(stream: Stream) -> None:
    session = ultta.Session(stream.head)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ((other, step, health),) = pool.map(work, [(session, stream.features)])
    expected = session.step(stream.features)
    assert_same(expected, step)
    assert health == expected.health and other.state() == session.state()


def test_python_m_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ultta", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"ultta {ultta.__version__}\n"), done.stderr
    done = subprocess.run([sys.executable, "-m", "ultta", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_dir_shows_the_public_names_only() -> None:
    shown = dir(ultta)
    assert shown == sorted([*ultta.__all__, "plot", "ray", "sklearn", "spark", "torch", "transformers"])
    assert not {"Any", "TYPE_CHECKING", "annotations", "_ultta", "_evaluate"} & set(shown)
    assert all(hasattr(ultta, name) for name in ultta.__all__)


EXTRAS = {
    "ray": ("ultta.ray", "ray", "ray"),
    "sklearn": ("ultta.sklearn", "sklearn.base", "sklearn"),
    "spark": ("ultta.spark", "pyspark.sql", "spark"),
    "torch": ("ultta.torch", "torch", "torch"),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_modules_name_the_extra_they_need(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, blocked, named = EXTRAS[extra]
    monkeypatch.setitem(sys.modules, blocked, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=rf"which is not installed \(pip install 'ultta\[{named}\]'\)"):
        importlib.import_module(module)


def test_the_lazy_names_name_their_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "ultta.sklearn", raising=False)
    monkeypatch.delattr(ultta, "sklearn", raising=False)
    with pytest.raises(ImportError, match=r"ZeroShotClassifier: it needs scikit-learn.*ultta\[sklearn\]"):
        ultta.ZeroShotClassifier  # noqa: B018


def test_calls_name_the_extra_they_need(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tqdm", "tqdm.auto", "transformers", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"progress: it needs tqdm.*ultta\[progress\]"):
        ultta.Session(stream.head).step(stream.features, progress=True)
    with pytest.raises(ImportError, match=r"pipeline: it needs transformers.*ultta\[transformers\]"):
        ultta.transformers.pipeline()
    model = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device="cpu")]))
    with pytest.raises(ImportError, match=r"head from open_clip: it needs PyTorch.*ultta\[torch\]"):
        ultta.Head.from_open_clip(model, None, ["cat", "dog"])
    with pytest.raises(ImportError, match=r"head from transformers: it needs PyTorch.*ultta\[torch\]"):
        ultta.Head.from_transformers(SimpleNamespace(config=SimpleNamespace(), **vars(model)), None, ["cat", "dog"])


def counts(stream: Stream) -> dict[str, tuple[object, str]]:
    """Calls with counts that do not fit, and how the caller would say it."""
    rows, labels, head = stream.features[:10], stream.labels[:10], stream.head
    session = ultta.Session(head)
    make = ultta.Head.from_text_features
    return {
        "names": (lambda: make(np.eye(3), ["a", "b"]), "3 prototypes, 2 class names"),
        "names of prompts": (lambda: make(np.ones((3, 2, 4)), ["a", "b"]), "3 prototypes, 2 class names"),
        "anchors": (lambda: ultta.Head.from_anchors(np.eye(3), [0, 1], ["a", "b"]), "2 labels, 3 anchors"),
        "weights": (lambda: ultta.Head.from_anchors(np.eye(2), [0, 1], ["a", "b"], weights=[1.0]), "1 weight, 2 anchors"),
        "times": (lambda: session.step(rows, times=[1, 2, 3]), "3 times, 10 rows"),
        "learn": (lambda: session.step(rows, learn=[True]), "1 learn mark, 10 rows"),
        "view counts": (lambda: session.step(rows, views=rows, view_counts=[1]), "1 view count, 10 rows"),
        "feedback": (lambda: session.feedback([0, 1], [0]), "1 label, 2 ids"),
        "dimension": (lambda: session.step(np.eye(31)), "rows have 31 numbers, the head's 32.*one encoder"),
        "dimension of the frozen": (lambda: head.zero_shot(np.eye(31)), "rows have 31 numbers, the head's 32"),
        "top1": (lambda: ultta.metrics.top1([0, 1, 2], [0, 1]), "2 labels, 3 answers"),
        "quality": (lambda: ultta.metrics.quality(np.eye(3), [0, 1]), "2 labels, 3 rows"),
        "ece": (lambda: ultta.metrics.ece([0.5, 0.6], [True]), "1 mark, 2 probs"),
        "evaluate": (lambda: ultta.evaluate((rows, labels[:9], head)), "9 labels, 10 rows"),
        "evaluate, dimension": (lambda: ultta.evaluate((np.eye(31), np.zeros(31, int), head)), "rows have 31 numbers"),
    }


@pytest.mark.parametrize("kind", counts(simulate(rows=10)))
def test_wrong_counts_are_told_in_the_callers_terms(stream: Stream, kind: str) -> None:
    call, words = counts(stream)[kind]
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]


def test_advice_fits_what_was_passed(stream: Stream) -> None:
    session, rows = ultta.Session(stream.head), stream.features[:3]
    zeros = np.zeros((2, 32))
    names = stream.head.classes
    unscaled = [
        lambda: session.step(rows * 3),
        lambda: session.predict(rows * 3),
        lambda: stream.head.zero_shot(rows * 3),
        lambda: ultta.Head.from_text_features(stream.head.prototypes * 3, names),
    ]
    for call in unscaled:
        with pytest.raises(ValueError, match="or pass normalize=True$"):
            call()
    empty = [
        lambda: session.step(zeros),
        lambda: session.step(zeros, normalize=True),
        lambda: session.predict(zeros, normalize=True),
        lambda: stream.head.zero_shot(zeros, normalize=True),
        lambda: ultta.Head.from_text_features(np.zeros((7, 32)), names, normalize=True),
        lambda: ultta.Head.from_anchors(np.zeros((7, 32)), range(7), names),
    ]
    for call in empty:
        with pytest.raises(ValueError, match="a row of zeros has no direction, so leave it out$"):
            call()


def test_arrays_that_make_no_pack_are_refused_as_arrays(stream: Stream) -> None:
    with pytest.raises(ValueError) as raised:
        ultta.evaluate((stream.features * 2, stream.labels, stream.head))
    assert str(raised.value).endswith("scale the rows to unit length first")  # evaluate has no `normalize`
    with pytest.raises(ValueError, match="labels: row 3: 7 is not below the number of classes, 7"):
        ultta.evaluate((stream.features, np.where(np.arange(600) == 3, 7, stream.labels), stream.head))
