"""Pictures and class names through the encoder that the package has of its own, and what is said when it fails."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot
import numpy as np
import pytest

import ultta

ULTTA = [sys.executable, "-m", "ultta"]
README = Path(__file__).parents[3] / "README.md"
SHAPES = "circle square triangle cross ring diamond star crescent hexagon bar".split()


@pytest.fixture(scope="module")
def encoder() -> ultta.Encoder:
    return ultta.Encoder("tiny")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the folder `shapes` is, as the README makes it."""
    place = tmp_path_factory.mktemp("drawn")
    subprocess.run([*ULTTA, "demo", "--pictures", "shapes"], cwd=place, check=True, capture_output=True)
    return place


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_features_are_those_of_the_command(encoder: ultta.Encoder, shapes: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    out = tmp_path / "features.safetensors"
    subprocess.run([*ULTTA, "encode", "shapes", "--model", "tiny", "--out", out, "-q"], cwd=shapes, check=True)
    expected = safetensors.load_file(out)
    paths = sorted((shapes / "shapes").glob("*/*.png"))
    found = encoder.encode(paths)
    assert found.dtype == np.float32 and found.shape == (200, encoder.dim) == (200, 32)
    np.testing.assert_allclose(found, expected["features"], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_one_text_is_no_list_of_class_names(encoder: ultta.Encoder) -> None:
    told = re.escape("expected a list of class names, got one str; did you mean .split()?")
    with pytest.raises(TypeError, match=told):
        encoder.head("circle star")
    with pytest.raises(TypeError, match=told):
        ultta.Head.from_text_features(np.eye(2), "circle star")
    with pytest.raises(TypeError, match=told):
        ultta.Head.from_anchors(np.eye(2), [0, 1], "circle star")
    with pytest.raises(TypeError, match="classes: expected a list of class names: "):
        encoder.head([1, 2])  # type: ignore[list-item]
    assert encoder.head(("circle", "star")).classes == ["circle", "star"]


def test_a_picture_is_a_path_bytes_an_array_or_an_image(encoder: ultta.Encoder, shapes: Path) -> None:
    path = shapes / "shapes" / "star" / "0003.png"
    expected = encoder.encode(path)
    assert expected.shape == (1, 32)
    array = np.round(matplotlib.pyplot.imread(path)[..., :3] * 255).astype(np.uint8)
    wide = np.zeros((32, 64, 3), np.uint8)
    wide[:, ::2] = array
    given = [str(path), path.read_bytes(), bytearray(path.read_bytes()), array, wide[:, ::2]]
    for one in given:
        np.testing.assert_array_equal(encoder.encode(one), expected)
    np.testing.assert_allclose(encoder.encode(given), np.repeat(expected, 5, axis=0), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(np.stack([array] * 20)), np.repeat(expected, 20, axis=0), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(p for p in [path, path]), np.repeat(expected, 2, axis=0), atol=1e-6)
    assert encoder.encode([]).shape == (0, 32)
    image = pytest.importorskip("PIL.Image")
    np.testing.assert_array_equal(encoder.encode(image.open(path)), expected)
    np.testing.assert_array_equal(encoder.encode(image.fromarray(array).convert("RGBA")), expected)


def test_heads_are_those_of_the_command(encoder: ultta.Encoder, tmp_path: Path) -> None:
    out = tmp_path / "head.safetensors"
    command = [*ULTTA, "head", "--model", "tiny", "--labels", "circle,star,ring", "--out", out, "-q"]
    subprocess.run(command, check=True, capture_output=True)
    names = ["circle", "star", "ring"]
    head = encoder.head(names)
    assert head == ultta.Head.load(out) and head.metadata["encoder"] == "tiny"
    assert head.logit_scale == pytest.approx(encoder.logit_scale)
    assert encoder.head(names, "a photo of a {}.") == encoder.head(names, ["a photo of a {}."]) == head
    assert encoder.head(names, "imagenet-7") != head and encoder.head(names, ["a {}.", "the {}."]) != head


def test_what_is_wrong_is_named(encoder: ultta.Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no.png").write_text("no picture")
    for call, error, words in (
        (lambda: encoder.encode(tmp_path / "none.png"), FileNotFoundError, "none.png"),
        (lambda: encoder.encode([tmp_path / "no.png"]), ValueError, r"no\.png: .*"),
        (lambda: encoder.encode([np.zeros((9, 9, 3), np.uint8)] * 9 + [b"no picture"]), ValueError, "picture 9: "),
        (lambda: encoder.encode(np.zeros((9, 9))), ValueError, "picture: expected rows × columns × 3"),
        (lambda: encoder.encode(np.zeros((0, 9, 3), np.uint8)), ValueError, "got 0 × 9 × 3 of uint8"),
        (lambda: encoder.encode(3), TypeError, "picture: expected a path, the bytes of a file, an array or a PIL image, got int"),
        (lambda: encoder.encode([None]), TypeError, "got NoneType"),
        (lambda: encoder.head(["circle"]), ValueError, "expected at least two class names, got 1"),
        (lambda: encoder.head(["circle", "star"], "imagenet"), ValueError, "templates: expected none, photo, imagenet-7"),
        (lambda: encoder.head(["circle", "star"], ["a photo"]), ValueError, "where the class name goes, got \"a photo\""),
        (lambda: ultta.Encoder("ViT-B-61"), ValueError, "did you mean ViT-B-16?"),
    ):
        with pytest.raises(error, match=words):
            call()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match=r"HF_ENDPOINT.*config\.json.*model\.safetensors.*as the model.*`tiny`"):
        ultta.Encoder("ViT-B-16")


def test_the_tiny_model_warns_of_words_that_it_does_not_know(encoder: ultta.Encoder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.head(["circle", "star"])
    with pytest.warns(UserWarning, match=r"knows ten shapes \(circle, .*not cat: its answers mean nothing"):
        encoder.head(["cat", "star"])


def test_it_travels_by_its_name(encoder: ultta.Encoder) -> None:
    picture = np.full((40, 30, 3), 7, np.uint8)
    for other in (pickle.loads(pickle.dumps(encoder)), copy.copy(encoder), copy.deepcopy(encoder)):
        assert other.model == "tiny"
        np.testing.assert_array_equal(other.encode(picture), encoder.encode(picture))


def test_the_lines_of_the_readme(shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They run as they stand, and print what is said that they print."""
    text = README.read_text()
    (program,) = [block for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M) if "tiny" in block]
    assert len(program.strip().splitlines()) <= 12
    monkeypatch.chdir(shapes)
    exec(compile(program, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    shown = text.split(program)[1].split("```text\n")[1].split("```")[0]
    assert printed == shown
