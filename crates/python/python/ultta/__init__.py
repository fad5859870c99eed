"""Ultra-light test-time adaptation for frozen zero-shot classifiers (CLIP and its kin).

>>> import numpy as np, ultta
>>> head = ultta.Head.from_text_features(np.eye(3), ["cat", "dog", "owl"], logit_scale=20.0)
>>> session = ultta.Session(head)
>>> step = session.step(np.array([[0.8, 0.6, 0.0], [0.0, 0.6, 0.8]], dtype=np.float32))
>>> step.names
['cat', 'owl']
>>> step.probs.shape
(2, 3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import metrics
from ._evaluate import Evaluation, evaluate
from ._ultta import (
    Encoder,
    Estimate,
    Head,
    Health,
    Session,
    State,
    Step,
    ZeroShot,
    __version__,
    default_config,
    methods,
    suggest_from_answers,
)

if TYPE_CHECKING:
    from .sklearn import ZeroShotClassifier

__all__ = [
    "Encoder",
    "Estimate",
    "Evaluation",
    "Head",
    "Health",
    "Session",
    "State",
    "Step",
    "ZeroShot",
    "ZeroShotClassifier",
    "__version__",
    "default_config",
    "evaluate",
    "methods",
    "metrics",
    "suggest_from_answers",
]


#: Modules that need packages of their own, and are imported when they are first asked for.
_EXTRAS = ("plot", "ray", "sklearn", "spark", "torch", "transformers")


def __dir__() -> list[str]:
    return sorted([*__all__, *_EXTRAS])


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import, and not everyone has it.
    if name == "ZeroShotClassifier":
        from .sklearn import ZeroShotClassifier

        return ZeroShotClassifier
    if name in _EXTRAS:
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
