"""Progress bars, by tqdm."""

from __future__ import annotations

from typing import Any, Protocol


class Bar(Protocol):
    """What is used of a tqdm bar."""

    def update(self, n: int) -> Any: ...

    def close(self) -> Any: ...


def bar(total: int, unit: str = "row") -> Bar:
    """A bar that runs to ``total``; in a notebook, a widget."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise RuntimeError("progress: it is shown by tqdm, which is not installed (pip install tqdm)") from None
    made: Bar = tqdm(total=total, unit=unit)
    return made
