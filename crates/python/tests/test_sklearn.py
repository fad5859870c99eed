"""The scikit-learn wrapper: its own behaviour, and scikit-learn's estimator checks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import ultta
from conftest import Stream

#: Checks that ask for something a zero-shot classifier is not, with the reason.
DOES_NOT_APPLY = {
    "check_estimators_dtypes": "rounds some rows to zero, and a row of zeros has no direction",
}


@parametrize_with_checks([ultta.ZeroShotClassifier()], expected_failed_checks=lambda _: DOES_NOT_APPLY)
def test_estimator_checks(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def test_with_a_head_it_needs_no_labels(stream: Stream) -> None:
    model = ultta.ZeroShotClassifier(stream.head).fit(stream.features)
    assert model.session_.seen == 600
    probs = model.predict_proba(stream.features)
    assert probs.shape == (600, 7)
    answers = model.predict(stream.features)
    np.testing.assert_array_equal(answers, model.classes_[probs.argmax(1)])
    names = np.array(stream.head.classes)[stream.labels]
    zero_shot = np.array(stream.head.classes)[stream.head.zero_shot(stream.features).argmax(1)]
    assert model.score(stream.features, names) >= (zero_shot == names).mean()
    assert model.session_.seen == 600  # prediction is pure


def test_partial_fit_goes_on_and_takes_labels_as_feedback(stream: Stream) -> None:
    model = ultta.ZeroShotClassifier(stream.head)
    model.partial_fit(stream.features[:300]).partial_fit(stream.features[300:])
    assert model.session_.seen == 600
    names = np.array(stream.head.classes)[stream.labels]
    model.partial_fit(stream.features, names)
    with pytest.raises(ValueError, match="expected only classes seen"):
        model.partial_fit(stream.features[:1], ["zebra"])
    model.fit(stream.features[:10])
    assert model.session_.seen == 10


def test_without_a_head_labelled_rows_make_one(stream: Stream) -> None:
    scores = cross_val_score(ultta.ZeroShotClassifier(), stream.features, stream.labels, cv=3)
    assert scores.mean() > 0.8


def test_it_is_cloned_pickled_and_piped(stream: Stream) -> None:
    model = ultta.ZeroShotClassifier(stream.head, settings={"advanced": {"update_every": 64}})
    pipe = make_pipeline(Normalizer(), clone(model)).fit(stream.features * 3)
    again = pickle.loads(pickle.dumps(pipe))
    np.testing.assert_array_equal(again.predict(stream.features), pipe.predict(stream.features))
    assert model.get_params()["settings"] == {"advanced": {"update_every": 64}}
