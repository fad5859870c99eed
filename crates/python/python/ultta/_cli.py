"""The ``ultta`` command of the wheel: the command line of the Rust crate, called in this process."""

from __future__ import annotations

import signal
import sys

from . import _ultta


def main() -> int:
    """Runs the command line; returns its exit code."""
    # The command line has its own way with interrupts (it saves the state); Python's handler would come first.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _ultta._main(["ultta", *sys.argv[1:]])
