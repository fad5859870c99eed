#!/usr/bin/env python3
"""The picture of the README: the first chart of the demo's page, as a file of its own.

    python3 docs/picture.py [ULTTA] > docs/demo.svg      (ULTTA: the program, `ultta` unless told)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def first_chart(page: str) -> str:
    """The first chart of a page on white, with its styles inside and the colours written out: not every viewer of SVG
    files knows variables."""
    found = re.search(r"<svg\b.*?</svg>", page, flags=re.S)
    if not found:
        raise SystemExit("the page has no chart")
    chart = found.group()
    styles = "".join(re.findall(r"<style>(.*?)</style>", page, flags=re.S))
    light = re.search(r":root\{(.*?)\}", styles, flags=re.S)
    colours = dict(re.findall(r"(--\w+):([^;}]+)", light.group(1) if light else ""))
    used = set(" ".join(re.findall(r'class="([^"]*)"', chart)).split())
    rules = [
        f"{selector.strip()}{{{body}}}"
        for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", styles))
        if set(re.findall(r"\.([\w-]+)", selector)) & used or re.match(r"\s*(svg )?(text|svg)\b", selector)
    ]
    start = chart.index(">") + 1
    chart = f"{chart[:start]}<style>{''.join(rules)}</style><rect width='100%' height='100%' fill='#fff'/>{chart[start:]}"
    if "xmlns=" not in chart:
        chart = chart.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return re.sub(r"var\((--\w+)\)", lambda name: colours[name.group(1)], chart) + "\n"


if __name__ == "__main__":
    program = sys.argv[1] if len(sys.argv) > 1 else "ultta"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.html"
        subprocess.run([program, "demo", "--json", "--html", path], check=True, stdout=subprocess.DEVNULL)
        sys.stdout.write(first_chart(path.read_text()))
