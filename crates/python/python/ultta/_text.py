"""Heads from text encoders: every class name in every template, encoded, normalised and averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

from ._ultta import Head

Template = Union[str, Callable[[str], str]]

#: What CLIP's authors use when nothing more is known about the classes.
DEFAULT_TEMPLATES: tuple[Template, ...] = ("a photo of a {}.",)


def prompts(name: str, templates: Iterable[Template]) -> list[str]:
    """A class name in every template.

    >>> prompts("cat", ["a {}.", lambda name: f"the {name}"])
    ['a cat.', 'the cat']
    """
    return [t.replace("{}", name) if isinstance(t, str) else t(name) for t in templates]


def head_from_open_clip(
    model: Any, tokenizer: Any, classes: Iterable[str], templates: Sequence[Template] | None, batch_size: int
) -> Head:
    """See ``Head.from_open_clip``."""
    device = next(model.parameters()).device

    def encode(texts: list[str]) -> Any:
        return model.encode_text(tokenizer(texts).to(device))

    return _head(model, encode, classes, templates, batch_size, "open_clip")


def head_from_transformers(
    model: Any, processor: Any, classes: Iterable[str], templates: Sequence[Template] | None, batch_size: int
) -> Head:
    """See ``Head.from_transformers``."""
    tokenizer = getattr(processor, "tokenizer", processor)
    # SigLIP was trained on texts padded to full length, and answers differently without.
    padding = "max_length" if "siglip" in getattr(model.config, "model_type", "") else True
    device = next(model.parameters()).device

    def encode(texts: list[str]) -> Any:
        tokens = tokenizer(texts, padding=padding, truncation=True, return_tensors="pt")
        found = model.get_text_features(**{name: values.to(device) for name, values in tokens.items()})
        # Newer versions return an object with the vectors inside.
        return getattr(found, "pooler_output", found)

    return _head(model, encode, classes, templates, batch_size, "transformers")


def _head(
    model: Any,
    encode: Callable[[list[str]], Any],
    classes: Iterable[str],
    templates: Sequence[Template] | None,
    batch_size: int,
    source: str,
) -> Head:
    import torch

    names = list(classes)
    templates = list(DEFAULT_TEMPLATES if templates is None else templates)
    if not templates:
        raise ValueError("templates: expected at least 1, got 0")
    texts = [text for name in names for text in prompts(name, templates)]
    rows = []
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(texts), max(1, batch_size)):
                rows.append(encode(texts[start : start + max(1, batch_size)]).float().cpu())
    finally:
        model.train(was_training)
    if not rows:
        raise ValueError("head: no classes; expected at least 2")
    features = torch.cat(rows)
    anchors = features.reshape(len(names), len(templates), features.shape[-1])
    scale = float(model.logit_scale.detach().float().exp().cpu())
    metadata = {"source": source, "encoder": type(model).__name__, "templates": str(len(templates))}
    return Head.from_text_features(anchors, names, scale, metadata=metadata)
