"""A scikit-learn classifier around a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._extras import missing
from ._ultta import Head, Session

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise missing("ZeroShotClassifier", "scikit-learn 1.6 or later", "sklearn") from error

__all__ = ["ZeroShotClassifier"]


class ZeroShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A zero-shot classifier that keeps learning from the unlabelled rows it is shown.

    With a ``head``, ``fit(X)`` starts a session and lets the rows of ``X`` teach; labels are not needed. Without
    one, ``fit(X, y)`` makes the head itself: the normalised mean of each class's rows.

    ``partial_fit(X)`` lets more rows teach; labels given with them come as feedback. ``predict`` and
    ``predict_proba`` change nothing. Rows are scaled to unit length.

    >>> import numpy as np, ultta
    >>> head = ultta.Head.from_text_features(np.eye(2), ["cat", "dog"], logit_scale=20.0)
    >>> X = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.1]])
    >>> ultta.ZeroShotClassifier(head).fit(X).predict(X)
    array(['cat', 'dog', 'cat'], dtype='<U3')
    """

    def __init__(
        self,
        head: Head | None = None,
        method: str = "ul_tta",
        preset: str = "default",
        settings: Mapping[str, Any] | None = None,
        logit_scale: float = 20.0,
    ) -> None:
        self.head = head
        self.method = method
        self.preset = preset
        self.settings = settings
        self.logit_scale = logit_scale

    def fit(self, X: Any, y: Any = None) -> ZeroShotClassifier:
        """Starts anew: takes the head given or makes one from labelled rows; unlabelled rows teach."""
        if self.head is None:
            rows, y = self._labelled(X, y)
            self.classes_, labels = np.unique(y, return_inverse=True)
            names = [str(name) for name in self.classes_]
            head = Head.from_anchors(rows, labels, names, self.logit_scale)
        else:
            head = self.head
            rows = self._rows(X, reset=True)
            self.classes_ = np.array(head.classes)
        self.session_ = Session(head, self.method, self.preset, **dict(self.settings or {}))
        if self.head is not None:
            self.session_.observe(rows, normalize=True)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> ZeroShotClassifier:
        """Lets more rows teach. Labels, where there are any, come as feedback for the same rows."""
        if not hasattr(self, "session_"):
            if self.head is None and classes is not None:
                missing = np.setdiff1d(classes, np.unique(y))
                if len(missing):
                    raise ValueError(f"head: no rows of the classes {missing.tolist()}; expected some of each")
            return self.fit(X, y)
        rows = self._rows(X, reset=False)
        labels = None
        if y is not None:
            y = np.asarray(y)
            labels = np.searchsorted(self.classes_, y) if self.head is None else self._indices(y)
            known = (labels >= 0) & (labels < len(self.classes_))
            if not known.all() or (self.classes_[labels] != y).any():
                raise ValueError("labels: expected only classes seen in the first fit")
        step = self.session_.step(rows, normalize=True, keep_scores=False)
        if labels is not None:
            # Only the latest samples are remembered for feedback.
            kept = int(self._setting("feedback.remember", len(step)))
            self.session_.feedback(step.ids[-kept:], labels[-kept:])
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The classes answered."""
        check_is_fitted(self)
        labels = self.session_.predict(self._rows(X, reset=False), normalize=True).labels
        answers: NDArray[Any] = self.classes_[labels]
        return answers

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Calibrated probabilities, one column per class of ``classes_``."""
        check_is_fitted(self)
        return self.session_.predict(self._rows(X, reset=False), normalize=True).probs

    def _rows(self, X: Any, reset: bool) -> NDArray[Any]:
        rows: NDArray[Any] = validate_data(self, X, reset=reset, dtype=[np.float32, np.float64])
        return rows

    def _labelled(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        if y is None:
            raise ValueError(
                "requires y to be passed, but the target y is None: without a head, one is made from labelled rows"
            )
        rows, y = validate_data(self, X, y, dtype=[np.float32, np.float64])
        check_classification_targets(y)
        if len(np.unique(y)) < 2:
            raise ValueError("head: one class leaves nothing to decide; expected at least 2")
        return rows, y

    def _indices(self, y: NDArray[Any]) -> NDArray[np.int64]:
        index = {name: i for i, name in reversed(list(enumerate(self.classes_)))}
        return np.array([index.get(name, -1) for name in y], dtype=np.int64)

    def _setting(self, key: str, otherwise: Any) -> Any:
        found: Any = next(iter(self.session_.config["method"].values()))
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                return otherwise
            found = found[part]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.head is None
        return tags
