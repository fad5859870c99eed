"""The simulated stream of the other tests."""


import numpy as np
import pytest

import ultta


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def stream():
    random = np.random.default_rng(0)
    texts = unit(random.normal(size=(6, 24)))
    labels = random.integers(6, size=500)
    features = unit(texts[labels] + 0.25 * random.normal(size=(500, 24)))
    head = ultta.Head.from_text_features(texts, [f"class {i}" for i in range(6)], 20.0)
    return head, features, labels
