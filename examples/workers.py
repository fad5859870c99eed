"""One stream per camera, each in a process of its own; answers and sessions come back by pickle.

Ray and joblib move the same objects. Needs NumPy only: `python examples/workers.py`.
"""

from __future__ import annotations

from multiprocessing import get_context

import numpy as np

import ultta

CLASSES, DIM = 12, 64


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def camera(number: int) -> tuple[np.ndarray, np.ndarray]:
    """What a camera sees: features around centres that are its own, and the classes, for judging only."""
    random = np.random.default_rng(number)
    centres = unit(TEXTS + 0.4 * random.normal(size=DIM) / 2 + 0.6 * unit(random.normal(size=TEXTS.shape)))
    labels = random.integers(CLASSES, size=3000)
    return unit(centres[labels] + 0.14 * random.normal(size=(len(labels), DIM))), labels


def watch(task: tuple[int, ultta.Session]) -> tuple[int, ultta.Session, ultta.Step]:
    """The work of one process: a session comes in, the session and its answers go back."""
    number, session = task
    features, _ = camera(number)
    return number, session, session.step(features, keep_scores=False)


TEXTS = unit(np.random.default_rng(0).normal(size=(CLASSES, DIM)))

if __name__ == "__main__":
    head = ultta.Head.from_text_features(TEXTS, [f"kind {i}" for i in range(CLASSES)], logit_scale=15.0)
    tasks = [(number, ultta.Session(head)) for number in (1, 2, 3)]
    with get_context("spawn").Pool(2) as pool:
        for number, session, step in pool.imap_unordered(watch, tasks):
            _, labels = camera(number)
            frozen, adapted = (step.zero_shot.labels == labels).mean(), (step.labels == labels).mean()
            print(f"camera {number}: zero-shot {frozen:.1%}, adapted {adapted:.1%}, {session.seen} seen, {step.health.standing}")
