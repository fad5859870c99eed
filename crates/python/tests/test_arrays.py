"""What may be handed over as an array, what may not, and that a refusal leaves the session as it was."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

import ultta
from conftest import Stream, simulate


class Speaks:
    """Something that is no NumPy array but speaks one of the protocols."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


class SpeaksArray(Speaks):
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


class SpeaksDlpack(Speaks):
    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OnDevice(SpeaksDlpack):
    device = "cuda:0"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def read_only(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


def unaligned(rows: np.ndarray) -> np.ndarray:
    odd = np.zeros(rows.nbytes + 1, dtype=np.uint8)[1:].view(np.float32).reshape(rows.shape)
    odd[:] = rows
    return odd


SAME_VALUES = {
    "fortran": np.asfortranarray,
    "strided": lambda rows: np.repeat(rows, 2, axis=0)[::2],
    "columns": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "reversed": lambda rows: rows[::-1].copy()[::-1],
    "read-only": read_only,
    "big-endian": lambda rows: rows.astype(">f4"),
    "unaligned": unaligned,
    "float64": lambda rows: rows.astype(np.float64),
    "list": lambda rows: rows.tolist(),
    "subclass": lambda rows: np.asmatrix(rows),
    "__array__": SpeaksArray,
    "dlpack": SpeaksDlpack,
}


@pytest.mark.parametrize("kind", SAME_VALUES)
def test_the_same_values_give_the_same_bits(stream: Stream, kind: str) -> None:
    rows = stream.features[:200]
    expected = ultta.Session(stream.head).step(rows)
    step = ultta.Session(stream.head).step(SAME_VALUES[kind](rows))
    np.testing.assert_array_equal(step.scores, expected.scores)


def test_half_precision_is_renormalised(stream: Stream) -> None:
    rows = stream.features[:200].astype(np.float16)
    step = ultta.Session(stream.head).step(rows)
    np.testing.assert_allclose(step.scores, ultta.Session(stream.head).step(stream.features[:200]).scores, atol=0.1)


def test_normalize_accepts_any_length(stream: Stream) -> None:
    step = ultta.Session(stream.head).step(stream.features * 7, normalize=True)
    expected = ultta.Session(stream.head).step(stream.features)
    np.testing.assert_allclose(step.zero_shot.scores, expected.zero_shot.scores, atol=1e-4)


def test_contiguous_float32_is_not_copied() -> None:
    head = ultta.Head.from_text_features(np.eye(2, 512), ["a", "b"])
    rows = np.zeros((200_000, 512), dtype=np.float32)  # 400 MB
    rows[:, 3] = 1
    session = ultta.Session(head, "zero_shot")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session.step(rows, keep_scores=False)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, f"{grown} kB more"


def test_no_rows_are_a_step_of_none(session: ultta.Session, stream: Stream) -> None:
    before = session.state()
    step = session.step(stream.features[:0])
    assert len(step) == 0 and step.probs.shape == (0, 7) and step.scores.shape == (0, 7)
    assert step.top(2)[0].shape == (0, 2)
    assert session.predict(np.zeros((0, 32))).labels.shape == (0,)
    assert session.state() == before


def bad_rows(stream: Stream) -> dict[str, tuple[object, type[Exception], str]]:
    rows = stream.features[:8]
    nan, inf, zero = rows.copy(), rows.copy(), rows.copy()
    nan[3, 1], inf[4, 0], zero[5] = np.nan, np.inf, 0
    return {
        "wrong dimension": (rows[:, :31], ValueError, "feature dimension: expected 32, got 31"),
        "no columns": (rows[:, :0], ValueError, "feature dimension"),
        "three dimensions": (rows[None], ValueError, "got 3 dimensions"),
        "a scalar": (np.float32(1), ValueError, "got 0 dimensions"),
        "nan": (nan, ValueError, "features: row 3 holds a value that is not finite"),
        "infinity": (inf, ValueError, "features: row 4 holds a value that is not finite"),
        "zero row": (zero, ValueError, "features: row 5 has norm 0.0000, expected 1"),
        "not unit": (rows * 2, ValueError, r"normalize=True"),
        "huge values": (rows * 1e30, ValueError, "has norm"),
        "beyond float32": (rows.astype(np.float64) * 1e300, ValueError, "not finite"),
        "integers": (np.ones((8, 32), dtype=np.int64), ValueError, "expected dtype float16, float32 or float64"),
        "booleans": (np.ones((8, 32), dtype=bool), ValueError, "got bool"),
        "complex": (rows.astype(np.complex64), ValueError, "got complex64"),
        "strings": (np.full((8, 32), "x"), ValueError, "expected dtype"),
        "objects": (np.full((8, 32), None), ValueError, "got object"),
        "ragged": ([[1.0, 0.0], [1.0]], ValueError, "expected rows of one length"),
        "a dict": ({"a": 1}, TypeError, "expected an array of numbers, got dict"),
        "none": (None, TypeError, "expected an array, got NoneType"),
        "text": ("features", TypeError, "expected an array, got str"),
        "on a device": (OnDevice(rows), ValueError, r"on the CPU, got one on device cuda:0.*\.cpu\(\)"),
        "a million million rows": (np.broadcast_to(rows[0], (10**12, 32)), MemoryError, ""),
    }


@pytest.mark.parametrize("kind", bad_rows(simulate(rows=8)))
def test_bad_rows_are_refused_and_nothing_changes(session: ultta.Session, stream: Stream, kind: str) -> None:
    session.step(stream.features[:200])
    before = session.state()
    value, error, words = bad_rows(stream)[kind]
    for act in (session.step, session.predict, session.observe):
        with pytest.raises(error, match=words):
            act(value)
    assert session.state() == before


BAD_EXTRAS = {
    "learn of another length": (dict(learn=[True]), ValueError, "learn marks: expected 8, got 1"),
    "learn of numbers": (dict(learn=np.ones(8)), ValueError, "learn marks: expected bool values, got float64"),
    "times not finite": (dict(times=[np.nan] * 8), ValueError, "times: row 0"),
    "times in two dimensions": (dict(times=np.zeros((8, 1))), ValueError, "one value per row"),
    "views of another dimension": (dict(views=np.full((8, 2, 4), 0.5)), ValueError, "length of a view"),
    "views not unit": (dict(views=np.ones((8, 2, 32))), ValueError, "norm"),
    "too few views": (dict(views=np.eye(2, 32), view_counts=[1] * 8), ValueError, "views: expected 8, got 2"),
    "an unknown argument": (dict(lern=[True] * 8), TypeError, "lern"),
}


@pytest.mark.parametrize("kind", BAD_EXTRAS)
def test_bad_extras_are_refused_and_nothing_changes(session: ultta.Session, stream: Stream, kind: str) -> None:
    session.step(stream.features[:200])
    before = session.state()
    extras, error, words = BAD_EXTRAS[kind]
    with pytest.raises(error, match=words):
        session.step(stream.features[:8], **extras)
    assert session.state() == before


BAD_FEEDBACK = {
    "a label that is no class": ([0, 1], [0, 7], ValueError, "label 7 is not below the number of classes, 7"),
    "a negative label": ([0], [-1], ValueError, "not below the number of classes"),
    "a name that is no class": ([0], ["zebra"], ValueError, '"zebra" is not a class'),
    "a sample that was not": ([1, 10_000], [0, 0], ValueError, "sample 10000 is not among"),
    "a negative sample": ([-1], [0], ValueError, "is not among"),
    "labels missing": ([0, 1], [0], ValueError, "labels: expected 2, got 1"),
    "broken ids": ([0.5], [0], ValueError, "ids: expected int64"),
}


@pytest.mark.parametrize("kind", BAD_FEEDBACK)
def test_bad_feedback_is_refused_and_nothing_changes(stream: Stream, kind: str) -> None:
    session = ultta.Session(stream.head, feedback={"teach": True})
    session.step(stream.features[:200])
    before = session.state()
    ids, labels, error, words = BAD_FEEDBACK[kind]
    with pytest.raises(error, match=words):
        session.feedback(ids, labels)
    assert session.state() == before


BAD_SETTINGS = {
    "an unknown key": (dict(gate__keeep=0.5), ValueError, "keeep"),
    "a wrong type": (dict(gate__keep="much"), ValueError, "keep"),
    "an unknown method": (dict(method="ul-ta"), ValueError, "did you mean ul-tta"),
    "a method that changes the encoder": (
        dict(method="Tent"),
        ValueError,
        "tent changes the encoder and so needs pictures, not features; it runs in an evaluation: ultta eval --images",
    ),
    "an unknown preset": (dict(preset="papre"), ValueError, "paper"),
    "out of range": (dict(guard__advanced__window=1), ValueError, "guard.advanced.window: expected a number from 16"),
    "no value": (dict(gate__keep=None), TypeError, "gate.keep: expected a number"),
    "too large": (dict(update__every=10**30), ValueError, "64-bit"),
}


@pytest.mark.parametrize("kind", BAD_SETTINGS)
def test_bad_settings_are_named(stream: Stream, kind: str) -> None:
    settings, error, words = BAD_SETTINGS[kind]
    with pytest.raises(error, match=words):
        ultta.Session(stream.head, **settings)


BAD_HEADS = {
    "no classes": (np.zeros((0, 2)), [], ValueError, "no classes"),
    "one class": (np.eye(1, 2), ["a"], ValueError, "one class"),
    "a name twice": (np.eye(2), ["a", "a"], ValueError, "occurs twice"),
    "an empty name": (np.eye(2), ["a", " "], ValueError, "empty name"),
    "too many names": (np.eye(2), ["a", "b", "c"], ValueError, "prototypes"),
    "not unit": (np.eye(2) * 3, ["a", "b"], ValueError, "prototypes: row 0 has norm 3"),
    "one dimension": (np.eye(2)[0], ["a", "b"], ValueError, "classes × dim"),
    "other classes than anchors": (np.ones((3, 2, 2)), ["a", "b"], ValueError, "expected 2, got 3"),
    "names that are none": (np.eye(2), [1, 2], TypeError, ""),
}


@pytest.mark.parametrize("kind", BAD_HEADS)
def test_bad_heads_are_refused(kind: str) -> None:
    rows, classes, error, words = BAD_HEADS[kind]
    with pytest.raises(error, match=words):
        ultta.Head.from_text_features(rows, classes)


def test_bad_scales_are_refused() -> None:
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a number from"):
            ultta.Head.from_text_features(np.eye(2), ["a", "b"], scale)


def test_bad_files_are_refused_and_nothing_changes(session: ultta.Session, stream: Stream, tmp_path: Path) -> None:
    session.step(stream.features[:200])
    session.save(tmp_path / "good")
    before = session.state()
    good = (tmp_path / "good").read_bytes()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "torn").write_bytes(good[:-7])
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 9)
    stream.head.save(tmp_path / "head")
    for name in ("empty", "torn", "noise", "head"):
        with pytest.raises(ValueError):
            session.load(tmp_path / name)
    with pytest.raises(ValueError, match="another head"):
        ultta.Session(stream.head.with_logit_scale(3)).load(tmp_path / "good")
    with pytest.raises(FileNotFoundError):
        session.load(tmp_path / "none")
    with pytest.raises(OSError):
        session.save(tmp_path / "no such folder" / "state")
    with pytest.raises(FileNotFoundError):
        ultta.Head.load(tmp_path / "none")
    with pytest.raises(ValueError, match="prototypes"):
        ultta.Head.load(tmp_path / "good")
    assert session.state() == before
