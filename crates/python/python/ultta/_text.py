"""Heads from text encoders: every class name in every template, encoded, normalised and averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

from ._extras import missing
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


def checked(
    classes: Iterable[str], templates: str | Iterable[Template] | None
) -> tuple[list[str], list[Template]]:
    """Class names and templates as lists; a single text is one template.

    >>> checked(["cat", "dog"], "a {}.")
    (['cat', 'dog'], ['a {}.'])
    >>> checked("cat", None)
    Traceback (most recent call last):
    ...
    TypeError: classes: expected a list of class names, got one str; did you mean .split()?
    """
    if isinstance(classes, str):
        raise TypeError("classes: expected a list of class names, got one str; did you mean .split()?")
    if templates is None:
        chosen = list(DEFAULT_TEMPLATES)
    else:
        chosen = [templates] if isinstance(templates, str) or callable(templates) else list(templates)
    if not chosen:
        raise ValueError("templates: expected at least 1, got 0")
    for template in chosen:
        if isinstance(template, str) and "{}" not in template:
            raise ValueError(f"templates: expected {{}} where the name goes, got {template!r}")
    return list(classes), chosen


def head_from_open_clip(
    model: Any, tokenizer: Any, classes: Iterable[str], templates: str | Sequence[Template] | None, batch_size: int
) -> Head:
    """See ``Head.from_open_clip``."""
    device = next(model.parameters()).device

    def encode(texts: list[str]) -> Any:
        return model.encode_text(tokenizer(texts).to(device))

    return _head(model, encode, classes, templates, batch_size, "open_clip")


def head_from_transformers(
    model: Any, processor: Any, classes: Iterable[str], templates: str | Sequence[Template] | None, batch_size: int
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
    templates: str | Sequence[Template] | None,
    batch_size: int,
    source: str,
) -> Head:
    names, chosen = checked(classes, templates)
    try:
        import torch
    except ImportError as error:
        raise missing(f"head from {source}", "PyTorch", "torch") from error

    texts = [text for name in names for text in prompts(name, chosen)]
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
    anchors = features.reshape(len(names), len(chosen), features.shape[-1])
    scale = float(model.logit_scale.detach().float().exp().cpu())
    metadata = {"source": source, "encoder": type(model).__name__, "templates": str(len(chosen))}
    return Head.from_text_features(anchors, names, scale, metadata=metadata)
