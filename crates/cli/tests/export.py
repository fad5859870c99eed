"""The exported layer in ONNX Runtime and NumPy beside the session itself, on simulated or real packs.

    pip install numpy onnx onnxruntime safetensors
    python3 crates/cli/tests/export.py target/release/ultta [FOLDER WITH PACKS …]

For every pack: a run over its first half, the state exported, the second half answered by the layer and by
`ultta run --load-state` with learning off row by row (`predict`). Then the same with labels for 20 samples of the first half
(`ultta suggest`, `ultta correct`), where the pack has labels. A layer knows no scenes, and a row that continues the scene at
hand is answered from the mean of its scene: so the runs are made without scenes (`--set scenes=false`). The ONNX file must pass
`onnx.checker`, ONNX Runtime and NumPy must agree to 1e-5, and the labels must be the session's on 99.9 % of the rows (all of
them, and the probabilities to 1e-5, where all classes are candidates).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

CANDIDATES = 64


def simulated(folder: Path, classes: int = 20, dim: int = 64, rows: int = 2000) -> None:
    random = np.random.default_rng(0)
    unit = lambda x: (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)  # noqa: E731
    anchors = unit(random.normal(size=(classes, dim)))
    centres = unit(anchors + 0.4 * random.normal(size=dim) + 0.5 * unit(random.normal(size=(classes, dim))))
    labels = random.integers(classes, size=rows)
    folder.mkdir()
    features = unit(centres[labels] + 0.1 * random.normal(size=(rows, dim)))
    save_file({"features": features, "labels": labels}, folder / "features.safetensors")
    names = json.dumps([f"class {c}" for c in range(classes)])
    save_file({"prototypes": anchors}, folder / "head.safetensors", {"classes": names, "logit_scale": "30"})


def check(ultta: str, pack: Path, work: Path) -> str:
    data = load_file(pack / "features.safetensors")
    rows = data["features"].astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    order = np.random.default_rng(1).permutation(len(rows))
    half = len(rows) // 2
    first, second = rows[order[:half]], rows[order[half:]]
    save_file({"features": first}, work / "first.safetensors")
    save_file({"features": second, "learn": np.zeros(len(second), np.uint8)}, work / "second.safetensors")
    head, state = str(pack / "head.safetensors"), str(work / "state.safetensors")
    run = lambda *a: subprocess.run([ultta, *a], check=True, capture_output=True, text=True).stdout  # noqa: E731
    run("run", "--features", str(work / "first.safetensors"), "--head", head, "--set", "scenes=false",
        "--save-state", state, "--quiet")
    said = compare(run, pack, work, state, second)
    if "labels" in data:
        of_state = "--head", head, "--state", state
        wanted = [json.loads(line)["sample"] for line in run("suggest", *of_state, "--k", "20", "--json").splitlines()]
        run("correct", *of_state, *(f"{sample}={int(data['labels'][order[sample]])}" for sample in wanted))
        said += f"; with {len(wanted)} labels given: " + compare(run, pack, work, state, second)
    return said


def compare(run: Callable[..., str], pack: Path, work: Path, state: str, second: np.ndarray) -> str:
    """The layer of a state beside the session that goes on from it, on the second half."""
    head, out = str(pack / "head.safetensors"), str(work / "answers.jsonl")
    run("run", "--features", str(work / "second.safetensors"), "--head", head, "--load-state", state, "--out", out,
        "--quiet")
    answers = [json.loads(line) for line in open(out)]
    labels = np.array([answer["label"] for answer in answers])
    probs = np.array([answer["prob"] for answer in answers])
    for ending in ["onnx", "npz"]:
        run("export", "--head", head, "--state", state, "--out", str(work / f"layer.{ending}"))
    onnx.checker.check_model(onnx.load(work / "layer.onnx"), full_check=True)
    model = onnxruntime.InferenceSession(work / "layer.onnx", providers=["CPUExecutionProvider"])
    label, logits, emitted = model.run(["label", "logits", "probabilities"], {"features": second})
    layer = np.load(work / "layer.npz")
    plain = second @ layer["weights"].T + layer["bias"]
    assert np.abs(plain - logits).max() < 1e-3 and (plain.argmax(axis=1) == label).mean() > 0.9999
    same = (label == labels).mean()
    off = np.abs(emitted[np.arange(len(labels)), labels] - probs).max()
    classes = safe_open(pack / "head.safetensors", "np").get_slice("prototypes").get_shape()[0]
    everywhere = classes <= CANDIDATES
    said = f"{classes} classes, same label on {100 * same:.2f} %, probability off by {off:.1e}"
    assert same >= (0.9999 if everywhere else 0.999), said
    assert not everywhere or off < 1e-5, said
    return said


def main() -> None:
    ultta, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        simulated(work / "simulated")
        packs = [work / "simulated"]
        for folder in folders:
            packs += sorted(path.parent for path in Path(folder).rglob("features.safetensors"))
        failed = []
        for pack in packs:
            try:
                print(pack.parent.name, pack.name, check(ultta, pack, work), flush=True)
            except AssertionError as error:
                failed.append(f"{pack}: {error}")
                print("FAILED", failed[-1], flush=True)
        sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
