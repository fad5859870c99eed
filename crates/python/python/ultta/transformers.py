"""A pipeline in the shape of transformers' ``zero-shot-image-classification``, whose answers adapt to its stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ._extras import missing
from ._ultta import Head, Session, Step

__all__ = ["AdaptedPipeline", "pipeline"]

#: The task this stands in for.
TASK = "zero-shot-image-classification"

#: What transformers' own pipeline puts a label into.
TEMPLATE = "This is a photo of {}."

#: Sets of labels that are remembered, each with a session of its own.
SETS = 8


class Answer(TypedDict):
    """A label and its calibrated probability."""

    score: float
    label: str


def pipeline(
    task: str = TASK, model: Any = None, *, settings: dict[str, Any] | None = None, **options: Any
) -> AdaptedPipeline:
    """Makes transformers' pipeline for the task and wraps it.

    ``model`` and ``options`` are those of ``transformers.pipeline``; ``settings`` those of a ``Session``. Needs
    transformers and PyTorch (``pip install 'ultta[transformers]'``).
    """
    if task != TASK:
        raise ValueError(f"task: expected {TASK!r}, got {task!r}")
    try:
        import transformers
    except ImportError as error:
        raise missing("pipeline", "transformers", "transformers") from error
    return AdaptedPipeline(transformers.pipeline(task, model=model, **options), **(settings or {}))


class AdaptedPipeline:
    """Called as transformers' pipeline is, and answering in the same dictionaries, best first; the scores are the
    calibrated probabilities of a session that every picture teaches.

    A pipeline serves one stream. Each set of labels has a session of its own, the latest eight are remembered;
    ``last`` is the last step, with the zero-shot answers and the health. ``adapt = False`` answers without learning.
    SigLIP's scores are probabilities over the labels here, which sum to one.
    """

    def __init__(
        self, pipe: Any, method: str = "ul_tta", preset: str = "default", *, adapt: bool = True, **settings: Any
    ) -> None:
        self.pipe = pipe
        self.adapt = adapt
        self.last: Step | None = None
        self.sessions: OrderedDict[tuple[str, ...], Session] = OrderedDict()
        self._options = (method, preset, settings)

    def __call__(
        self,
        image: Any,
        candidate_labels: Iterable[str] | None = None,
        *,
        hypothesis_template: str = TEMPLATE,
        timeout: float | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """A picture (a file, an address or a PIL image), or a list of them: the labels with their scores, best
        first; for a list, a list of these.

        The encoder sees ``batch_size`` pictures at a time, as in transformers: by default as many as the pipeline was
        made with, else one. Answers do not depend on it.
        """
        size = batch_size or getattr(self.pipe, "_batch_size", None) or 1
        if size < 1:
            raise ValueError(f"batch_size: expected 1 or more, got {batch_size}")
        if candidate_labels is None:
            raise ValueError("candidate_labels: expected a list of names, got none")
        if isinstance(candidate_labels, str):
            raise TypeError(f"candidate_labels: expected a list of names, got the text {candidate_labels!r}")
        labels = list(candidate_labels)
        several = isinstance(image, (list, tuple))
        images = list(image) if several else [image]
        answers = self._answers(images, labels, hypothesis_template, timeout, size) if images else []
        return answers if several else answers[0]

    def session(self, candidate_labels: Iterable[str], hypothesis_template: str = TEMPLATE) -> Session:
        """The session of a set of labels; a new one begins where there is none."""
        labels = tuple(candidate_labels)
        key = (hypothesis_template, *labels)
        if key not in self.sessions:
            method, preset, settings = self._options
            self.sessions[key] = Session(self._head(labels, hypothesis_template), method, preset, **settings)
            if len(self.sessions) > SETS:
                self.sessions.popitem(last=False)
        self.sessions.move_to_end(key)
        return self.sessions[key]

    def _answers(
        self, images: list[Any], labels: list[str], template: str, timeout: float | None, size: int
    ) -> list[list[Answer]]:
        if len(labels) == 1:  # nothing to decide, and nothing to learn from
            return [[{"score": 1.0, "label": labels[0]}] for _ in images]
        session = self.session(labels, template)
        # Pictures are opened batch by batch, so that a long list needs no more memory than a batch.
        batches = (images[first : first + size] for first in range(0, len(images), size))
        rows = np.concatenate([self._features(batch, timeout) for batch in batches])
        self.last = (session.step if self.adapt else session.predict)(rows, normalize=True)
        probs = self.last.probs
        orders = np.argsort(-probs, axis=1, kind="stable")
        return [
            [{"score": float(probs[i, c]), "label": labels[c]} for c in order] for i, order in enumerate(orders)
        ]

    def _head(self, labels: tuple[str, ...], template: str) -> Head:
        processor = self.pipe.tokenizer or self.pipe.processor
        return Head.from_transformers(self.pipe.model, processor, labels, [template])

    def _features(self, images: list[Any], timeout: float | None) -> NDArray[np.float32]:
        """What the model makes of pictures, one row each."""
        import torch
        from transformers.image_utils import load_image

        pictures = [load_image(image, timeout=timeout) for image in images]
        pixels = self.pipe.image_processor(images=pictures, return_tensors="pt")["pixel_values"]
        weights = next(self.pipe.model.parameters())
        with torch.no_grad():
            found = self.pipe.model.get_image_features(pixel_values=pixels.to(weights.device, weights.dtype))
        # Newer versions return an object with the vectors inside.
        rows: NDArray[np.float32] = getattr(found, "pooler_output", found).float().cpu().numpy()
        return rows

    def __repr__(self) -> str:
        model = type(self.pipe.model).__name__
        return f"AdaptedPipeline({model}, {len(self.sessions)} of {SETS} sets of labels)"
