"""Progress bars, by tqdm."""

from __future__ import annotations

from typing import Any, Protocol

from ._extras import missing


class Bar(Protocol):
    """What is used of a tqdm bar."""

    def update(self, n: int) -> Any: ...

    def close(self) -> Any: ...


def bar(total: int, unit: str = "row") -> Bar:
    """A bar that runs to ``total``; in a notebook, a widget."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise missing("progress", "tqdm", "progress") from None
    made: Bar = tqdm(total=total, unit=unit)
    return made
