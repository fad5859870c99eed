"""What three failure modes of docs/limits.md cost: `pip install .`, then

    python3 docs/limits.py [FOLDER …]

On a simulated stream (50 classes, 6,000 rows, with the geometry of CLIP ViT-B/32) and on the packs in the folders that are given (`features.safetensors`
with labels, `head.safetensors`). Means over five seeds; points of top-1 and of calibration error (ECE) against zero-shot on the same rows.
"""
import sys

import numpy as np
import ultta
from ultta._ultta import _Simulator

SEEDS = range(5)


def against_zero_shot(head, features, labels, skip=0):
    """Points of top-1 and of ECE that one session gains over zero-shot, behind the first `skip` rows."""
    step = ultta.Session(head).step(features)
    quality = lambda probs: ultta.metrics.quality(probs[skip:], labels[skip:])
    adapted, frozen = quality(step.probs), quality(step.zero_shot.probs)
    return np.array([100 * (adapted[name] - frozen[name]) for name in ("top1", "ece")])


def early_errors(head, features, labels, random):
    """The stream begins with 200 of the rows that zero-shot mistakes, the surest first. Gain on the rest; and without such a beginning."""
    zero_shot = ultta.Session(head).predict(features).zero_shot
    wrong = np.flatnonzero(zero_shot.labels != labels)
    first = wrong[np.argsort(-zero_shot.prob[wrong])][:200]
    rest = random.permutation(np.setdiff1d(np.arange(len(labels)), first))
    both = np.concatenate([first, rest])
    return {
        f"{len(first)} mistaken rows first": against_zero_shot(head, features[both], labels[both], len(first)),
        f"the same {len(rest)} rows without them": against_zero_shot(head, features[rest], labels[rest]),
    }


def cameras(head, features, labels, random):
    """Four cameras that show a quarter of the classes each, class after class; their rows come in turns."""
    share = np.array_split(random.permutation(head.n_classes), 4)
    order = [np.concatenate([random.permutation(np.flatnonzero(labels == c)) for c in classes]) for classes in share]
    length = min(len(rows) for rows in order)
    order = [rows[:length] for rows in order]
    turns = np.stack(order, axis=1).ravel()
    return {
        "one stream": against_zero_shot(head, features[turns], labels[turns]),
        "a stream each": np.mean([against_zero_shot(head, features[rows], labels[rows]) for rows in order], axis=0),
    }


def small_scale(head, features, labels, random):
    """A head whose scale is a fifth and a twentieth of what it should be; a fifth of the classes occurs, shuffled."""
    occurring = random.permutation(head.n_classes)[: head.n_classes // 5]
    order = random.permutation(np.flatnonzero(np.isin(labels, occurring)))
    of = lambda part: against_zero_shot(head.with_logit_scale(head.logit_scale * part), features[order], labels[order])
    return {f"scale × {part:g}": of(part) for part in (1, 0.2, 0.05)}


def load(folder):
    """Head, rows and labels of a pack."""
    from safetensors.numpy import load_file

    held = load_file(f"{folder}/features.safetensors")
    rows = held["features"].astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return ultta.Head.load(f"{folder}/head.safetensors"), rows, held["labels"]


def main():
    simulator = _Simulator(50, 512, 7)
    streams = {"simulated": (simulator.head, *simulator.rows(6000))}
    streams |= {folder: load(folder) for folder in sys.argv[1:]}
    for measure in (early_errors, cameras, small_scale):
        print(measure.__doc__)
        for name, (head, features, labels) in streams.items():
            runs = [measure(head, features, labels, np.random.default_rng(seed)) for seed in SEEDS]
            for case in runs[0]:
                top1, ece = np.mean([run[case] for run in runs], axis=0)
                print(f"  {name}, {case}: top-1 {top1:+.1f}, ECE {ece:+.1f}")


if __name__ == "__main__":
    main()
