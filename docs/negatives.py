"""Negative anchors: are words that are not among the labels worth having in the score of strangers? NumPy only.

    python docs/negatives.py --data DATA WIDE

The words are the classes of imagenet6k, whose texts stand in for a list that ships; those nearest to a label are left out. Packs with a
text head in the same space are streams of known pictures, 30 % strangers are pictures of other packs of the same encoder (never of
imagenet6k). `cone` is the score of crates/core/src/unknown/cone.rs, as it runs along the stream. AUROC of known against strangers, behind the first 300 rows.
"""
import argparse
import json
import pathlib
import struct

import numpy as np

SEEDS = 3
BEHIND = 300


def load(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    types = {"F16": np.float16, "F32": np.float32, "I64": np.int64}
    part = lambda e: np.frombuffer(raw[8 + size :][slice(*e["data_offsets"])], types[e["dtype"]]).reshape(e["shape"])
    return {k: part(e) for k, e in header.items() if k != "__metadata__"}, header.get("__metadata__", {})


def unit(a):
    a = a.astype(np.float64)
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


def auroc(known, strangers):
    both = np.concatenate([known, strangers])
    ranks = both.argsort().argsort() + 1.0
    return (ranks[: len(known)].sum() - len(known) * (len(known) + 1) / 2) / (len(known) * len(strangers))


class Moments:
    n = mean = variance = 0.0

    def push(self, x):
        self.n += 1
        ahead = x - self.mean
        self.mean += ahead / self.n
        self.variance += (ahead * (x - self.mean) - self.variance) / self.n

    def of(self, x):
        return (x - self.mean) / np.sqrt(self.variance + 1e-12) if self.n > 1 else 0.0


class Mean:
    def __init__(self, size):
        self.n, self.values = 0, np.zeros(size)

    def push(self, row):
        self.n += 1
        self.values += (row - self.values) / self.n


def cone(rows, anchors, scale, words, weight, in_sides):
    """The score of each row. `weight` times the standardised part by words is added; with `in_sides` it also tells which side is which."""
    centred = anchors - anchors.mean(0)
    lengths = np.linalg.norm(centred, axis=1)
    image, good, bad = (Mean(rows.shape[1]) for _ in range(3))
    fits, bests, sums, sides, by_words = (Moments() for _ in range(5))
    classes = np.zeros((len(anchors), 2))
    logits = scale * rows @ anchors.T
    others = scale * rows @ words.T
    top = np.maximum(logits.max(1), others.max(1))
    mass = lambda x: np.log(np.exp(x - top[:, None]).sum(1)) + top
    negative = mass(logits) - mass(others)
    out = np.zeros(len(rows))
    for i, z in enumerate(rows):
        answer = logits[i].argmax()
        apart = z - image.values
        fit = (centred @ apart / lengths).max() / np.linalg.norm(apart) if i else 0.0
        side = None
        if good.n > 8 and bad.n > 8:
            line = good.values - bad.values
            side = z @ line / np.linalg.norm(line)
        part = weight * by_words.of(negative[i])
        out[i] = fits.of(fit) + (sides.of(side) if side is not None else 0.0) + part
        if i > 8:
            total = fits.of(fit) + bests.of(logits[i].max()) + (part if in_sides else 0.0)
            fits.push(fit), bests.push(logits[i].max()), by_words.push(negative[i])
            if i > 16:
                n, mean = classes[answer]
                usual = (n * mean + 8 * sums.mean) / (n + 8)
                ahead = (total - usual) / (np.sqrt(sums.variance + 1e-12) if sums.n > 1 else 1.0)
                sums.push(total)
                classes[answer] = n + 1, mean + (total - mean) / (n + 1)
                if i > 32:
                    if ahead > 0:
                        good.push(z)
                    if ahead < -0.85:
                        bad.push(z)
            if side is not None:
                sides.push(side)
        image.push(z)
    return out, negative, mass(logits)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", nargs="+", type=pathlib.Path, required=True)
    packs = {}
    for root in arguments.parse_args().data:
        for path in sorted(root.rglob("features.safetensors")):
            tensors, _ = load(path)
            head, meta = load(path.parent / "head.safetensors")
            name = path.parent.parent.name
            encoder = path.parent.name.replace("vit-b-32", "vit-b32")
            packs[f"{name}/{encoder}"] = (unit(tensors["features"]), tensors["labels"], unit(head["prototypes"]), meta)
    _, _, all_words, word_meta = packs["imagenet6k/clip-vit-b32"]
    names = ["energy", "words alone", "cone", "cone + ½ words", "cone + words", "cone + words, in the sides, too"]
    print("| pack | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    table = []
    for pack, (z, y, anchors, meta) in packs.items():
        encoder = pack.split("/")[1]
        text = not pack.startswith(("imagenet6k", "dtd47", "ucf101", "flowers102", "food10"))
        if encoder not in ("clip-vit-b32", "effnet-lite0-to-clip-b32") or not text:
            continue
        scale = float(meta["logit_scale"])
        own = set(json.loads(meta["classes"]))
        # Words that mean about the same as a label are no strangers.
        words = all_words[(all_words @ anchors.T).max(1) < np.quantile((all_words @ anchors.T).max(1), 0.8)]
        cells = []
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            pool = []
            for other, (oz, oy, _, ometa) in packs.items():
                if other != pack and other.split("/")[1] == encoder and not other.startswith("imagenet6k"):
                    keep = np.array([c not in own for c in json.loads(ometa["classes"])])
                    pool.append(oz[keep[oy]])
            pool = np.concatenate(pool)
            strangers = pool[rng.choice(len(pool), min(len(pool), round(len(z) * 0.3 / 0.7)), replace=False)]
            rows = np.concatenate([z, strangers])
            order = rng.permutation(len(rows))[:3000]
            known = (order < len(z))[BEHIND:]
            row = []
            for weight, in_sides in [(0, False), (0.5, False), (1, False), (1, True)]:
                score, negative, energy = cone(rows[order], anchors, scale, words, weight, in_sides)
                score = score[BEHIND:]
                if weight == 0:
                    row += [auroc(s[BEHIND:][known], s[BEHIND:][~known]) for s in (energy, negative)]
                row.append(auroc(score[known], score[~known]))
            cells.append(row)
        table.append(np.mean(cells, 0))
        print(f"| {pack} | " + " | ".join(f"{v:.3f}" for v in table[-1]) + " |", flush=True)
    print("| mean | " + " | ".join(f"{v:.3f}" for v in np.mean(table, 0)) + " |")


main()
