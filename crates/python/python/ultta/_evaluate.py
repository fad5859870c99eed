"""Evaluations: methods × packs × protocols × seeds, by the crate that knows labels."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Union

import numpy as np

from . import _progress, _ultta
from ._arrays import float32, vector
from ._frames import frame
from ._ultta import Head

_Path = Union[str, "os.PathLike[str]"]

#: A folder of packs, a pair of files (features with labels, head), or arrays: features, labels and a head.
Pack = Union[_Path, tuple[_Path, _Path], tuple[Any, Any, Head]]


class Evaluation(dict[str, Any]):
    """What came of an evaluation: a dictionary with "runs", the "summary" over seeds, and what was "skipped"."""

    def to_frame(self) -> Any:
        """One line per run: pandas if it is there, else polars."""
        lines = [_flat(run) for run in self["runs"]]
        names = list(dict.fromkeys(name for line in lines for name in line))
        return frame({name: [line.get(name) for line in lines] for name in names})

    def summary_frame(self) -> Any:
        """One line per dataset × method × protocol, with mean and spread over the seeds."""
        lines = [_flat(cell) for cell in self["summary"]]
        return frame({name: [line[name] for line in lines] for name in (lines[0] if lines else {})})

    def _table(self) -> list[list[str]]:
        """A line per dataset, method and protocol, below the names of its columns."""
        names = ("protocol", "dataset", "method", "top1", "zero_shot_top1", "ece", "zero_shot_ece")
        lines = [list(names)]
        for cell in self["summary"]:
            shown = (cell[name] for name in names)
            lines.append([f"{100 * value['mean']:.1f} %" if isinstance(value, Mapping) else str(value) for value in shown])
        return lines

    def __repr__(self) -> str:
        lines = self._table()
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([f"Evaluation: {len(self['runs'])} runs", *table])

    def _repr_html_(self) -> str:
        heads, *lines = self._table()
        rows = ["".join(f"<th>{name}</th>" for name in heads)]
        rows += ["".join(f"<td>{_escape(value)}</td>" for value in line) for line in lines]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><caption>Evaluation: {len(self['runs'])} runs</caption>{body}</table>"


def evaluate(
    packs: Pack | Sequence[Pack],
    methods: Iterable[str] = ("zero-shot", "ul-tta"),
    protocols: Iterable[str] = ("iid",),
    seeds: int | Iterable[int] = (0,),
    *,
    strangers: Sequence[tuple[_Path, _Path]] = (),
    in_distribution: _Path | None = None,
    config: str | None = None,
    out: _Path | None = None,
    jobs: int | None = None,
    progress: bool = False,
) -> Evaluation:
    """Compares methods on labelled features under named protocols (``docs/protocols.md``).

    ``packs``: folders that hold packs, pairs of files (features with labels, head), or arrays (features, labels,
    head). ``config`` is TOML with a ``[method.NAME]`` per method. Runs are kept in ``out`` and not made twice;
    without it nothing is kept. ``in_distribution`` is a features file that detection metrics (AUROC, …) tell from each
    stream. Every run is, in plain words::

        session = ultta.Session(head, method)
        for block in blocks_of(protocol, features, labels, seed):
            step = session.step(block.features)         # answer, then learn (or as the method's card says)
            tally(step.probs, step.labels, block.labels)

    >>> import numpy as np, ultta
    >>> head = ultta.Head.from_text_features(np.eye(2), ["cat", "dog"], logit_scale=20.0)
    >>> rows = np.tile([[0.8, 0.6], [0.6, 0.8]], (50, 1))
    >>> found = ultta.evaluate((rows, np.tile([0, 1], 50), head), methods=["zero-shot"])
    >>> found["runs"][0]["top1"]
    1.0
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ultta-")))
        given = [packs] if _is_pack(packs) else list(packs)  # type: ignore[arg-type]
        files = [pair for i, pack in enumerate(given) for pair in _files(pack, scratch / f"pack-{i}")]
        if not files:
            raise ValueError("packs: expected at least 1, got none")
        names, orders = _list(methods), _list(protocols)
        if isinstance(seeds, str):
            raise TypeError(f"seeds: expected whole numbers, such as range(5), got the text {seeds!r}")
        numbers = [seeds] if isinstance(seeds, int) else list(seeds)
        bar = None
        if progress:
            bar = _progress.bar(len(files) * len(names) * len(orders) * len(numbers), unit="run")
            stack.callback(bar.close)
        text = _ultta._evaluate(
            files,
            list(strangers),
            in_distribution,
            names,
            orders,
            numbers,
            config,
            scratch / "runs" if out is None else out,
            jobs or os.cpu_count() or 1,
            bar,
        )
    return Evaluation(json.loads(text))


def _list(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _is_pack(pack: Any) -> bool:
    if isinstance(pack, (str, os.PathLike)):
        return True
    if not isinstance(pack, tuple):
        return False
    if len(pack) == 3:
        return isinstance(pack[2], Head)
    return len(pack) == 2 and all(isinstance(p, (str, os.PathLike)) for p in pack)


def _files(pack: Any, folder: Path) -> list[tuple[_Path, _Path]]:
    """The features and head files of a pack; arrays are written to ``folder``."""
    if not _is_pack(pack):
        raise ValueError("packs: expected a folder, a pair of files or (features, labels, head)")
    if not isinstance(pack, tuple):
        return list(_ultta._find_packs(pack))
    if len(pack) == 2:
        return [pack]
    features, labels, head = pack
    rows, classes = np.atleast_2d(float32("features", features)), vector("labels", "int64", labels)
    # What is wrong is said of the arrays here, not of files that the caller never saw.
    _ultta._check_rows(rows, head)
    if len(rows) != len(classes):
        counts = f"{len(classes)} labels, {len(rows)} rows"
        raise ValueError(f"labels: expected {len(rows)}, got {len(classes)}: {counts}")
    strange = (classes < 0) | (classes >= head.n_classes)
    if strange.any():
        first = int(strange.argmax())
        raise ValueError(f"labels: row {first}: {classes[first]} is not below the number of classes, {head.n_classes}")
    folder.mkdir()
    np.savez(folder / "features.npz", features=rows, labels=classes)
    head.save(folder / "head.safetensors")
    return [(folder / "features.npz", folder / "head.safetensors")]


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Numbers and texts of nested dictionaries, their names joined by dots; lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif not isinstance(value, list):
            flat[f"{prefix}{name}"] = value
    return flat


def _escape(text: object) -> str:
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
