#!/usr/bin/env python3
"""Checks the licences and sources of all dependencies against deny.toml; `--sbom FILE` lists what is shipped (CycloneDX, JSON).

Needs cargo and Python 3.11 or later, nothing else: `python3 deploy/dependencies.py`. What is checked is everything, for every
feature, every system, tests and benchmarks; what is listed is what a program of these `--features` for this `--target` is built from.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def allowed(expression: str, licences: set[str]) -> bool:
    """Whether an SPDX expression can be met with these licences."""
    # Older crates write "MIT/Apache-2.0" for OR.
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either() -> bool:
        found = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            found = both() or found
        return found

    def both() -> bool:
        found = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            found = one() and found
        return found

    def one() -> bool:
        token = tokens.pop(0)
        if token == "(":
            found = either()
            tokens.pop(0)
            return found
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            token = f"{token} WITH {tokens.pop(0)}"
        return token in licences

    return either()


def problems(packages: list[dict], rules: dict) -> list[str]:
    """What deny.toml does not allow, a line each."""
    licences = set(rules["licenses"]["allow"])
    sources = {f"registry+{address}" for address in rules["sources"]["allow-registry"]}
    found = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["source"] is not None and package["source"] not in sources:
            found.append(f"{name}: the source {package['source']} is not among those of deny.toml")
        if not package["license"]:
            found.append(f"{name}: it names no licence")
        elif not allowed(package["license"], licences):
            found.append(f"{name}: the licence {package['license']!r} is not among those of deny.toml")
    return found


def shipped(metadata: dict, root: str) -> list[dict]:
    """The packages that a crate is built from, tests left out, in the order of their names."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    by_id = {package["id"]: package for package in metadata["packages"]}
    todo = [package["id"] for package in metadata["packages"] if package["name"] == root]
    seen: set[str] = set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return sorted((by_id[i] for i in seen), key=lambda package: (package["name"], package["version"]))


def sbom(packages: list[dict], root: str) -> dict:
    """A CycloneDX list of packages."""

    def component(package: dict) -> dict:
        kind = "application" if package["name"] == root else "library"
        return {
            "type": kind,
            "bom-ref": f"{package['name']}@{package['version']}",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"] or "NOASSERTION")}],
        }

    components = [component(package) for package in packages]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": next(c for c in components if c["name"] == root)},
        "components": [c for c in components if c["name"] != root],
    }


def resolved(*options: str) -> dict:
    """What cargo resolves with these options."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *options]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sbom", type=Path, help="write what the command line is built from")
    options.add_argument("--features", default="", help="of the listed program, besides the default ones")
    options.add_argument("--target", help="of the listed program; without it, every system")
    chosen = options.parse_args()
    metadata = resolved("--all-features")
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    found = problems(metadata["packages"], rules)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        return 1
    print(f"{len(metadata['packages'])} packages, all of allowed licences and sources")
    if chosen.sbom:
        platform = ["--filter-platform", chosen.target] if chosen.target else []
        listed = shipped(resolved("--features", chosen.features, *platform), "ultta-cli")
        print(f"{len(listed)} packages in the command line")
        chosen.sbom.write_text(json.dumps(sbom(listed, "ultta-cli"), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
