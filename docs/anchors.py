"""Several anchors per class: the folded mean beside the soft maximum over anchors (docs/results.md). Zero-shot answers only, NumPy only.

    python docs/anchors.py --data DATA WIDE

Packs with a `head-weak.safetensors` beside their head have two texts per class. Of the other packs named, 4 and 8 labelled rows per class are held
out as exemplars, three times; the rest is answered.
"""
import argparse
import json
import pathlib
import struct

import numpy as np

SHARPNESS = [0.05, 0.2, 1.0, 5.0]
EXEMPLARS = ["dtd47-exemplar", "retinal8-exemplar", "food10-exemplar", "pets24", "flowers102-exemplar"]
EXEMPLAR_SCALE = 60.0


def load(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    types = {"F16": np.float16, "F32": np.float32, "I64": np.int64}
    part = lambda e: np.frombuffer(raw[8 + size :][slice(*e["data_offsets"])], types[e["dtype"]]).reshape(e["shape"])
    return {k: part(e) for k, e in header.items() if k != "__metadata__"}, header.get("__metadata__", {})


def unit(a):
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


def soft_maximum(logits, t):
    """(1/t) log mean_k exp(t l_k) over the last axis."""
    most = logits.max(-1)
    return most + np.log(np.exp(t * (logits - most[..., None])).mean(-1)) / t


def figures(logits, labels):
    top1 = 100 * (logits.argmax(1) == labels).mean()
    shifted = logits - logits.max(1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return np.array([top1, -log[np.arange(len(labels)), labels].mean()])


def compare(z, labels, anchors, scale):
    """Folded mean, then each sharpness. `anchors` is classes × anchors × dim."""
    classes, each, dim = anchors.shape
    logits = scale * (z @ anchors.reshape(-1, dim).T).reshape(len(z), classes, each)
    folded = scale * z @ unit(anchors.mean(1)).T
    return [figures(folded, labels)] + [figures(soft_maximum(logits, t), labels) for t in SHARPNESS]


def row(name, results):
    print(f"| {name} | " + " | ".join(f"{top1:.1f}, {nll:.2f}" for top1, nll in results) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", type=pathlib.Path, required=True)
    args = parser.parse_args()
    print("| top-1, NLL | folded mean | " + " | ".join(f"t = {t:g}" for t in SHARPNESS) + " |\n" + "|---" * 6 + "|")
    for path in sorted(p for root in args.data for p in root.rglob("features.safetensors")):
        pack, _ = load(path)
        z, labels = unit(pack["features"].astype(np.float32)), pack["labels"]
        name = "/".join(path.parts[-3:-1])
        if (path.parent / "head-weak.safetensors").exists():
            if len(z) > 3000:
                chosen = np.random.default_rng(0).permutation(len(z))[:1500]
                z, labels = z[chosen], labels[chosen]
            head, meta = load(path.parent / "head.safetensors")
            weak, _ = load(path.parent / "head-weak.safetensors")
            row(f"{name}, two texts", compare(z, labels, np.stack([head["prototypes"], weak["prototypes"]], 1), float(meta["logit_scale"])))
        elif path.parts[-3] in EXEMPLARS:
            for each in (4, 8):
                results = []
                for seed in range(3):
                    random = np.random.default_rng(seed)
                    held = np.array([random.permutation(np.flatnonzero(labels == c))[:each] for c in range(labels.max() + 1)])
                    rest = np.setdiff1d(np.arange(len(z)), held.ravel())
                    results.append(compare(z[rest], labels[rest], z[held], EXEMPLAR_SCALE))
                row(f"{name}, {each} exemplars", np.mean(results, 0))
