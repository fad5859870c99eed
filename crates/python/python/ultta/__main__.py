"""``python -m ultta``: the command line, where the command ``ultta`` is not on the path."""

from __future__ import annotations

import sys

from ._cli import main

if __name__ == "__main__":
    sys.exit(main())
