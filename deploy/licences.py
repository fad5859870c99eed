#!/usr/bin/env python3
"""Writes the licence texts of everything that is compiled into the program or the wheel into one file, which archives, wheels and
the container image carry.

    python3 deploy/licences.py ROOT OUT [--target TARGET]    ROOT: ultta-cli (the program) or ultta-python (the wheel)

The texts are those of the crates' own packages, each once, with the names of the crates that it is for; those of the lists that
the encoder embeds follow. Needs cargo and Python 3.11 or later. All features are counted, so the file may name crates that a build leaves out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from dependencies import ROOT, shipped

#: Files that hold a licence; code of others inside a crate has its own, deeper down.
NAMES = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)
#: Endings of files that are no texts, whatever they are called.
CODE = {".rs", ".py", ".c", ".h", ".go", ".js", ".json", ".toml", ".yml", ".yaml", ".sh", ".html", ".hbs"}
#: Notices of the lists of others that are compiled in; data/make.py makes it.
DATA = ROOT / "crates" / "encode" / "data" / "LICENSES.txt"
#: Stands between the texts.
LINE = "\n" + 100 * "=" + "\n"


def texts(folder: Path) -> list[str]:
    """The licence texts of a package, the outermost first."""
    found = [
        path
        for path in folder.rglob("*")
        if NAMES.match(path.name) and path.suffix.lower() not in CODE and path.is_file()
    ]
    found.sort(key=lambda path: (len(path.parts), path.as_posix()))
    return list(dict.fromkeys(path.read_text(errors="replace").strip() for path in found))


def standard(package: dict) -> str | None:
    """The text of the licence that a package names without having it."""
    names = re.split(r"[\s/()]+", package["license"] or "")
    if "Apache-2.0" in names:
        return (ROOT / "LICENSE-APACHE").read_text().strip()
    if "MIT" in names:
        whose = ", ".join(package["authors"]) or f"the authors of {package['name']}"
        return re.sub(r"Copyright .*", lambda _: f"Copyright (c) {whose}", (ROOT / "LICENSE-MIT").read_text()).strip()
    return None


def collect(packages: list[dict]) -> tuple[dict[str, list[str]], list[str]]:
    """Texts with the packages that they are for, and the packages that have none."""
    by_text: dict[str, tuple[str, list[str]]] = {}
    without = []
    for package in packages:
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license']})"
        own = texts(Path(package["manifest_path"]).parent) or [standard(package)]
        for text in own:
            if text is None:
                without.append(name)
            elif text:
                # Copies of one licence differ in line breaks and blanks.
                by_text.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    return {text: names for text, names in by_text.values()}, without


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("root", choices=["ultta-cli", "ultta-python"])
    options.add_argument("out", type=Path)
    options.add_argument("--target", help="leave out crates of other systems")
    chosen = options.parse_args()
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    command += ["--filter-platform", chosen.target] if chosen.target else []
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = shipped(metadata, chosen.root)
    found, without = collect(packages)
    for name in without:
        print(f"{name}: its package has no licence text", file=sys.stderr)
    if without:
        return 1
    of_others = sum(package["source"] is not None for package in packages)
    parts = [f"Licences of the {of_others} packages of others that {chosen.root} is built from, each text once.\n"]
    for text, names in found.items():
        parts.append("For " + "\n    ".join(names) + "\n\n" + text + "\n")
    parts.append(DATA.read_text())
    chosen.out.write_text(LINE.join(parts))
    print(f"{chosen.out}: {len(found)} texts of {of_others} packages, and those of the data")
    return 0


if __name__ == "__main__":
    sys.exit(main())
