"""Parity with the Rust path: the command line, which is Rust through and through, gives the same bits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ultta
from conftest import DATA, simulate, unit

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
            for key in ("id", "label", "class", "admitted", "unknown", "garbage"):
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


def test_what_is_told_beside_the_answers(tmp_path: Path) -> None:
    """Estimates, sets, rejection and alarms: as the command line tells them, and as they are."""
    stream = simulate(rows=2400, dim=96)
    features = stream.features.copy()
    features[1800:] = unit(features[1800:] + 0.4 * unit(np.random.default_rng(5).normal(size=96)))
    stream.head.save(tmp_path / "head.safetensors")
    np.save(tmp_path / "features.npy", features)
    command = ["ultta", "run", "--features", tmp_path / "features.npy", "--head", tmp_path / "head.safetensors"]
    command += ["--coverage", "0.9", "--unknown", "5%", "--out", tmp_path / "rows.jsonl", "--json"]
    run = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    summary = json.loads(run.stdout)
    session = ultta.Session(stream.head, coverage=0.9, unknown={"score": "cone", "cost": 0.05})
    steps = [session.step(features[i : i + 64]) for i in range(0, len(features), 64)]
    health = session.health
    for theirs, ours in (
        (summary["estimate"], health.estimate),
        (summary["zero_shot"]["estimate"], health.estimate_zero_shot),
    ):
        assert {key: theirs[key] for key in ("top1", "low", "high")} == ours.to_dict()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["set"] for row in rows] == [found for step in steps for found in step.sets]
    assert [row["unknown"] for row in rows] == [bool(one) for step in steps for one in step.unknown]
    told = [alarm for step in steps for alarm in step.alarms]
    assert told and told == session.alarms and health.alarms == len(told)
    for theirs, ours in zip(summary["alarms"], told, strict=True):
        assert theirs.items() >= ours.items()
    assert 1780 <= told[0]["since"] <= told[0]["id"] < 1950 and told[0]["advice"], told
    # Held to the truth, before the change: sets that cover, little of the known rejected, and an estimate that labels put right. (The
    # head of these made-up pictures is right more often than it is sure, and without labels the estimate follows it.)
    fresh = ultta.Session(stream.head, coverage=0.9, unknown={"score": "cone", "cost": 0.05})
    step = fresh.step(features[:1800])
    right = (step.labels == stream.labels[:1800]).mean()
    unlabelled = fresh.health.estimate
    assert unlabelled.low <= right and abs(unlabelled.top1 - right) < 0.2
    assert not fresh.health.coverage_promise and fresh.health.coverage == 0.9 and fresh.health.set_size > 0
    # Labels for a fair draw of what was answered: with such a draw the estimate is right whatever the probabilities say.
    fresh.feedback(step.ids[::9], stream.labels[:1800:9])
    assert fresh.health.coverage_promise and fresh.health.coverage_labels == 200
    assert abs(fresh.health.estimate.top1 - right) < 0.5 * abs(unlabelled.top1 - right)
    assert fresh.health.estimate_labels == 200 - step.unknown[::9].sum(), "what fits no class is neither right nor wrong"
    held = np.mean([label in found for label, found in zip(stream.labels[:1800:9], step.sets[::9])])
    assert abs(fresh.health.coverage_held - held) < 1e-9
    assert step.unknown.mean() < 0.1 and abs(fresh.health.unknown_share - step.unknown.mean()) < 0.02
    per_class = fresh.per_class()
    assert per_class["answers"].sum() == 1800 - step.unknown.sum()
    for side in ("estimate", "estimate_zero_shot"):
        assert (per_class[f"{side}_low"] <= per_class[side]).all()
        assert (per_class[side] <= per_class[f"{side}_high"]).all()


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
