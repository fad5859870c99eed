"""Parity with the Rust path: the command line, which is Rust through and through, gives the same bits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ultta
from conftest import DATA, simulate

#: The real streams, by dataset and encoder. Other packs may stand beside them.
PACKS = [
    "caltech62/clip-vit-b32",
    "cifar10/effnet-lite0-to-clip-b32",
    "dtd47-exemplar/clip-vit-b32",
    "flowers102-exemplar/clip-vit-b32",
    "imagenet6k/clip-vit-b32",
    "pacs-art_painting/effnet-lite0-to-clip-b32",
    "pacs-cartoon/effnet-lite0-to-clip-b32",
    "pets24/clip-vit-b32",
    "ucf101-exemplar/clip-vit-b32",
]


def read_features(path: Path) -> np.ndarray:
    """The tensor `features` of a safetensors file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + size])["features"]
    start, end = (8 + size + offset for offset in entry["data_offsets"])
    dtype = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[entry["dtype"]]
    return np.frombuffer(raw[start:end], dtype=dtype).reshape(entry["shape"])


def compare(features: Path, head: Path, rows: np.ndarray, tmp_path: Path, preset: str) -> None:
    command = ["ultta", "run", "--features", features, "--head", head, "--preset", preset]
    command += ["--out", tmp_path / "rust.jsonl", "--save-state", tmp_path / "rust.state", "--probs"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    session = ultta.Session(ultta.Head.load(head), preset=preset)
    steps = [session.step(rows[i : i + 64]) for i in range(0, len(rows), 64)]
    records = [record for step in steps for record in step.to_dicts()]
    with open(tmp_path / "rust.jsonl") as lines:
        for line, ours in zip(lines, records, strict=True):
            theirs = json.loads(line)
            for key in ("id", "label", "class", "admitted", "unknown"):
                assert theirs[key] == ours[key], key
            assert theirs["sample"] == ours["id"]
            for key in ("prob", "prob_pred"):
                assert np.float32(theirs[key]) == np.float32(ours[key]), key
            assert np.float32(theirs["zero_shot"]["prob"]) == np.float32(ours["zero_shot"]["prob"])
    with open(tmp_path / "rust.jsonl") as lines:
        theirs = np.array([json.loads(line)["probs"] for line in lines], dtype=np.float32)
    np.testing.assert_array_equal(theirs, np.concatenate([step.probs for step in steps]))
    assert ultta.State.load(tmp_path / "rust.state") == session.state()


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_simulated_stream_bit_for_bit(tmp_path: Path, preset: str) -> None:
    stream = simulate(rows=1500)
    stream.head.save(tmp_path / "head.safetensors")
    np.save(tmp_path / "features.npy", stream.features)
    compare(tmp_path / "features.npy", tmp_path / "head.safetensors", stream.features, tmp_path, preset)


@pytest.mark.parametrize("pack", PACKS)
def test_real_streams_bit_for_bit(pack: str, tmp_path: Path) -> None:
    head, features = DATA / pack / "head.safetensors", DATA / pack / "features.safetensors"
    if not head.exists():
        pytest.skip(f"{head} is not present")
    compare(features, head, read_features(features), tmp_path, "default")


def test_the_command_line_ships_in_the_wheel(tmp_path: Path) -> None:
    shown = subprocess.run(["ultta", "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["ultta", ultta.__version__]
    listed = subprocess.run(["ultta", "methods"], capture_output=True, text=True, check=True).stdout
    assert "ul-tta" in listed
    wrong = subprocess.run(["ultta", "inspect", tmp_path / "none"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "none" in wrong.stderr
    assert subprocess.run(["ultta", "dance"], capture_output=True).returncode == 2
