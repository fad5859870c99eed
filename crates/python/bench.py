#!/usr/bin/env python3
"""What Python costs and what Rust saves, as ratios of one interleaved run on one thread.

    python crates/python/bench.py [--rounds 200] [--classes 1000] [--dim 512]

Prints a table in Markdown (docs/benchmarks-python.md). Compared are, on the same simulated stream,

* the core's own call, timed inside the extension,
* ``session.step`` as a user calls it,
* the same algorithm written in NumPy and, where it is installed, in PyTorch: vectorised over the rows of a block and
  over the classes, with the schedule of the core (moments in blocks and thinned, updates that become rarer, the
  covariance factorised again only when it has grown, temperatures fitted to at most 256 samples and their candidate
  classes, the prior sample by sample).

Each round times every variant once, in turn; minima and medians over the rounds are compared, so that other load on
the machine hits all alike.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")})

import numpy as np

import ultta
from ultta import _ultta

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    torch = None


class NumPy:
    """The few functions that differ between the two libraries."""

    name = "NumPy"
    exp, log, where, sqrt = np.exp, np.log, np.where, np.sqrt
    array = staticmethod(lambda x: np.asarray(x, dtype=np.float32))
    zeros = staticmethod(lambda *shape: np.zeros(shape, dtype=np.float32))
    eye = staticmethod(lambda n: np.eye(n, dtype=np.float32))
    cat = staticmethod(lambda parts: np.concatenate(parts))
    largest = staticmethod(lambda x: x.max(-1, keepdims=True))
    smallest = staticmethod(lambda x: x.min(-1, keepdims=True))
    clip = staticmethod(np.clip)
    quantile = staticmethod(lambda x, q: np.quantile(x, q))
    pick = staticmethod(lambda x, at: np.take_along_axis(x, at, axis=1))
    best = staticmethod(lambda x, k: np.argpartition(x, -k, axis=1)[:, -k:])
    top2 = staticmethod(lambda x: np.partition(x, -2, axis=1)[:, -2:])
    labels = staticmethod(lambda x: x.argmax(1))
    inverse = staticmethod(np.linalg.inv)


class Torch:
    name = "PyTorch"
    if torch is not None:
        exp, log, where, sqrt = torch.exp, torch.log, torch.where, torch.sqrt
        array = staticmethod(lambda x: torch.as_tensor(x, dtype=torch.float32))
        zeros = staticmethod(lambda *shape: torch.zeros(shape))
        eye = staticmethod(torch.eye)
        cat = staticmethod(torch.cat)
        largest = staticmethod(lambda x: x.amax(-1, keepdim=True))
        smallest = staticmethod(lambda x: x.amin(-1, keepdim=True))
        clip = staticmethod(torch.clamp)
        quantile = staticmethod(torch.quantile)
        pick = staticmethod(lambda x, at: x.gather(1, at))
        best = staticmethod(lambda x, k: x.topk(k, dim=1, sorted=False).indices)
        top2 = staticmethod(lambda x: x.topk(2, dim=1).values)
        labels = staticmethod(lambda x: x.argmax(1))
        inverse = staticmethod(torch.linalg.inv)


class Plain:
    """The default of UL-TTA, as one would write it in an array library."""

    HALF_LIVES = (4.0, 16.0, 64.0, 256.0, 1e30)
    CANDIDATES, EVERY, EVERY_MOST, WARM_UP, WINDOW, SCALE_ROWS, CAL_ROWS = 64, 128, 1024, 100, 512, 768, 1024
    FIT_ROWS, REFRESH, LEAST = 256, 0.4, 3e-3

    def __init__(self, xp, prototypes, scale):
        self.xp, self.M, self.scale = xp, xp.array(prototypes), scale
        self.C, self.d = prototypes.shape
        self.half_life = max(1000.0, 32.0 * self.C)
        self.experts = len(self.HALF_LIVES)
        self.R, self.total = xp.zeros(self.experts, self.C), xp.zeros(self.experts)
        self.decay = xp.array([0.5 ** (1 / h) for h in self.HALF_LIVES])
        self.gamma = xp.array([min(0.05 * self.C, h / 4) for h in self.HALF_LIVES])
        self.w = xp.zeros(self.experts + 1)
        self.bias = xp.array([7.0] + [0.0] * self.experts)
        self.S, self.N, self.fresh = xp.zeros(self.C, self.d), xp.zeros(self.C), xp.zeros(self.C)
        self.n, self.n2, self.sum, self.second = 0.0, 0.0, xp.zeros(self.d), xp.zeros(self.d, self.d)
        self.A, self.b, self.inverse = xp.zeros(self.C, self.d), xp.zeros(self.C), None
        self.at_n, self.at_seen, self.seen, self.since = 0.0, 0, 0, 0
        self.a = self.trust = self.foretold = 0.0
        self.tau_cal = self.tau_match = 1.0
        self.H, self.D, self.recent = [], [], []

    def softmax(self, x):
        e = self.xp.exp(x - self.xp.largest(x))
        return e / e.sum(-1)[..., None]

    def step(self, Z):
        """Answers a block and lets it teach; a block never crosses an update."""
        xp, Z = self.xp, self.xp.array(Z)
        text = self.scale * (Z @ self.M.T)
        frozen = self.softmax(text)
        at = xp.best(text, min(self.CANDIDATES, self.C))
        scores = text + 0.0
        image = None
        if self.inverse is not None:
            v = Z @ self.A.T + self.b
            image = xp.pick(v, at)
            image = image - xp.smallest(image)
            low = xp.smallest(xp.pick(v, at))
            scores = scores + self.trust * self.a * xp.clip(v - low, 0.0, None)
        fused = self.softmax(scores)
        priors = []
        edge = float(np.exp(0.6))
        for i in range(len(Z)):  # the prior moves with every sample
            x = (self.gamma[:, None] + self.R * self.C) / (self.gamma + self.total)[:, None]
            x = xp.where(x > edge, x / edge, xp.where(x < 1 / edge, x * edge, x * 0 + 1))
            x = x / (x.sum(-1) / self.C)[:, None]
            share = self.softmax(self.w + self.bias)
            ratio = share[0] + share[1:] @ x
            log_prior = xp.log(ratio)
            scores[i] += log_prior
            priors.append(log_prior)
            own = self.softmax(scores[i])
            foretold = x @ frozen[i]
            self.w = 0.98 * self.w
            self.w[1:] += xp.log(foretold + 1e-6)
            self.R = self.R * self.decay[:, None] + own
            self.total = self.total * self.decay + 1
        probs = self.softmax(self.tau_cal * scores)
        self.learn(Z, text, fused, scores, image, at, priors)
        return xp.labels(scores), probs

    def learn(self, Z, text, fused, scores, image, at, priors):
        xp, n = self.xp, len(Z)
        p = self.softmax(scores)
        H = -(p * xp.log(p + 1e-12)).sum(-1)
        top = xp.top2(scores)
        D = abs(top[:, 1] - top[:, 0])
        admitted = xp.zeros(n) > 1
        if self.seen >= self.WARM_UP:
            admitted = (H <= xp.quantile(xp.cat(self.H), 0.9)) & (D >= xp.quantile(xp.cat(self.D), 0.1))
        self.H, self.D = (self.H + [H])[-self.WINDOW // n :], (self.D + [D])[-self.WINDOW // n :]
        keep = 0.5 ** (n / self.half_life)
        self.n, self.sum = self.n * keep + n, self.sum * keep + Z.sum(0)
        stride = 1 if self.seen < 4 * self.d else int(min(max(self.half_life // 256, 8), 16))
        thin = Z[::stride]
        self.n2, self.second = self.n2 * keep + stride * len(thin), self.second * keep + stride * (thin.T @ thin)
        r = fused[admitted]
        r = xp.where(r > self.LEAST, r, r * 0)
        self.S, self.N = self.S * keep + r.T @ Z[admitted], self.N * keep + r.sum(0)
        self.fresh = self.fresh + r.sum(0)
        log_prior = xp.cat([row[None] for row in priors])
        base = text - xp.largest(text)
        rows = (xp.pick(base, at), xp.pick(log_prior, at), image, xp.pick(scores - xp.largest(text), at))
        self.recent = (self.recent + [rows])[-self.CAL_ROWS // n :]
        self.seen, self.since = self.seen + n, self.since + n
        if self.since >= max(self.EVERY, min(self.EVERY_MOST, self.half_life // 2, self.seen // 8)):
            self.since = 0
            self.update()

    def newton(self, x, offset, target, t, low, high, relative, absolute):
        """The t at which softmax(t x + offset) comes closest to the target in cross-entropy."""
        wanted = float((target * x).sum(-1).mean())
        for _ in range(10):
            q = self.softmax(t * x + offset)
            mean = (q * x).sum(-1)
            slope = float(mean.mean()) - wanted
            curvature = float((q * (x - mean[:, None]) ** 2).sum(-1).mean())
            step = min(max(slope / (curvature + 1e-9), -relative * t), relative * t + absolute)
            following = min(max(t - step, low), high)
            change, t = abs(following - t), following
            if change <= 1e-3 * t:
                break
        return t

    def fit_rows(self, blocks, parts):
        step = -(-sum(len(block[0]) for block in blocks) // self.FIT_ROWS)
        return (self.xp.cat([block[k] for block in blocks])[::step] for k in parts)

    def update(self):
        xp = self.xp
        text, prior, scores = self.fit_rows(self.recent, (0, 1, 3))
        self.tau_match = self.newton(scores, 0.0, self.softmax(text + prior), self.tau_match, 0.2, 5.0, 0.3, 0.0)
        self.tau_cal = self.tau_match**0.8
        scored = [row for row in self.recent if row[2] is not None][-self.SCALE_ROWS // len(self.recent[0][0]) :]
        if sum(len(row[0]) for row in scored) >= 100:
            text, prior, image = self.fit_rows(scored, (0, 1, 2))
            target = self.softmax(text + prior)
            fitted = self.newton(image, prior, target, self.a if self.a > 1 else 300.0, 0.0, 2000.0, 0.5, 1.0)
            missed = [
                float((target * xp.log((target + 1e-12) / (self.softmax(t * image + prior) + 1e-12))).sum())
                for t in (fitted, 0.0)
            ]
            self.foretold = 1 - missed[0] / max(missed[1], 1e-9)
            self.a = fitted if self.a == 0 else 0.7 * self.a + 0.3 * fitted
        if self.seen > self.WARM_UP:
            self.fold()
        mean = float(self.N.sum()) / self.C
        self.trust = max(self.foretold, 0.0) ** 2 * 6.0 * mean / (mean + 120.0)

    def fold(self):
        xp, g = self.xp, self.sum / self.n
        if self.inverse is None and self.n < self.C:
            return
        grown = self.n >= max(1.5 * self.at_n, self.at_n + 2 * self.C)
        if self.inverse is None or grown or self.seen - self.at_seen >= max(1024 + 16 * self.C, self.half_life / 4):
            cov = self.second / self.n2 - g[:, None] * g[None]
            shrink = max(0.3, self.d / (self.d + self.n))
            trace = float(cov.diagonal().sum()) / self.d
            self.inverse = xp.inverse((1 - shrink) * cov / trace + shrink * xp.eye(self.d))
            self.at_n, self.at_seen = self.n, self.seen
            changed = self.N > 0
        else:
            changed = self.fresh >= self.REFRESH * (self.N + 3.0)
        m = (self.S[changed] - self.N[changed][:, None] * g) / (self.N[changed] + 3.0)[:, None]
        rows = m @ self.inverse
        self.A[changed], self.b[changed] = rows, -(rows @ g) - 0.5 * (rows * m).sum(-1)
        self.fresh[changed] = 0


def simulate(classes, dim, rows, seed=0):
    random = np.random.default_rng(seed)
    unit = lambda x: (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)
    texts = unit(random.normal(size=(classes, dim)) + 1.2 * random.normal(size=dim))
    images = unit(texts * 0.35 + unit(random.normal(size=(classes, dim))) * 0.4 + unit(random.normal(size=dim)) * 0.8)
    labels = random.integers(classes, size=rows)
    return texts, unit(images[labels] + 0.55 / np.sqrt(dim) * random.normal(size=(rows, dim)))


def timed(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(texts, features, block, rounds, warm, others):
    """Seconds per call of every variant, round by round; all have seen the same rows."""
    head = ultta.Head.from_text_features(texts, [f"class {i}" for i in range(len(texts))])
    core, python = ultta.Session(head), ultta.Session(head)
    plain = [Plain(xp, texts, 100.0) for xp in others]
    times = {"core": [], "python": [], **{xp.name: [] for xp in others}}
    n = len(features) - block
    for round in range(warm + rounds):
        start = round * block % (n - n % block)
        rows = np.ascontiguousarray(features[start : start + block])
        rows = rows[0] if block == 1 else rows
        spent = {"core": _ultta._core_seconds(core, rows), "python": timed(lambda: python.step(rows))}
        for p in plain:
            spent[p.xp.name] = timed(lambda: p.step(rows.reshape(block, -1)))
        if round >= warm:
            for name, seconds in spent.items():
                times[name].append(seconds)
    assert core.state() == python.state()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=512)
    args = parser.parse_args()
    texts, features = simulate(args.classes, args.dim, 8192)
    others = [NumPy] + ([Torch] if torch is not None else [])

    times = compare(texts, features, 64, args.rounds, 16, others)
    low = {name: min(seconds) for name, seconds in times.items()}
    mid = {name: float(np.median(seconds)) for name, seconds in times.items()}
    total = {name: sum(seconds) for name, seconds in times.items()}
    print(f"C = {args.classes}, d = {args.dim}, {args.rounds} rounds\n")
    print("| blocks of 64 rows | ratio of minima | of medians | of totals |")
    print("|---|---|---|---|")
    ratio = lambda a, b: " | ".join(f"{t[a] / t[b]:.2f}" for t in (low, mid, total))
    print(f"| `session.step` / the core's call | {ratio('python', 'core')} |")
    for xp in others:
        print(f"| {xp.name} / `session.step` | {ratio(xp.name, 'python')} |")
    pairs = np.array(times["python"]) / np.array(times["core"])
    print(f"\nmedian over rounds of `session.step` / the core's call: {np.median(pairs):.3f}")

    times = compare(texts, features, 1, 20 * args.rounds, 2000, [])
    low = {name: 1e6 * min(seconds) for name, seconds in times.items()}
    mid = {name: 1e6 * float(np.median(seconds)) for name, seconds in times.items()}
    print("\n| one row | minimum | median |")
    print("|---|---|---|")
    print(f"| what Python adds, µs | {low['python'] - low['core']:+.1f} | {mid['python'] - mid['core']:+.1f} |")


if __name__ == "__main__":
    main()
