#!/usr/bin/env python3
"""Checks the documents: every page of docs/ is in the contents of the site, every link to a file or a heading leads there, and
none leads out of the site.

Needs Python alone: `python3 deploy/links.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The names of a document's headings, as GitHub and mdBook make them."""
    headings = re.findall(r"^#+ +(.*?) *$", outside_fences(text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def outside_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def problems(root: Path) -> list[str]:
    """What leads nowhere, a line each."""
    docs = root / "docs"
    files = [*root.glob("*.md"), *docs.glob("*.md"), *(root / "examples").glob("*.md")]
    found = []
    for path in sorted(files):
        for target in LINK.findall(outside_fences(path.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, heading = target.partition("#")
            goal = (path.parent / name).resolve() if name else path
            place = path.relative_to(root)
            if not goal.exists():
                found.append(f"{place}: {target} leads nowhere")
            elif path.parent == docs and docs not in goal.parents:
                found.append(f"{place}: {target} leads out of docs/, and so out of the site")
            elif heading and heading not in anchors(goal.read_text()):
                found.append(f"{place}: {target}: there is no such heading")
    listed = set(LINK.findall((docs / "SUMMARY.md").read_text()))
    for path in sorted(docs.glob("*.md")):
        if path.name != "SUMMARY.md" and path.name not in listed:
            found.append(f"docs/SUMMARY.md: {path.name} is missing")
    return found


if __name__ == "__main__":
    lines = problems(ROOT)
    print("\n".join(lines) or "every page is listed, every link leads somewhere")
    sys.exit(bool(lines))
