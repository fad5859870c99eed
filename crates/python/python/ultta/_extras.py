"""What is said when an optional package is not installed."""

from __future__ import annotations


def missing(what: str, package: str, extra: str) -> ImportError:
    """The error for something that needs a package of an extra.

    >>> str(missing("plot", "matplotlib", "plot"))
    "plot: it needs matplotlib, which is not installed (pip install 'ultta[plot]')"
    """
    words = f"{what}: it needs {package}, which is not installed (pip install 'ultta[{extra}]')"
    return ImportError(words, name=package)
