"""What a release needs besides code that works: licences of dependencies, and files that belong together."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def dependencies() -> ModuleType:
    pytest.importorskip("tomllib")
    spec = importlib.util.spec_from_file_location("dependencies", ROOT / "deploy" / "dependencies.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "expression, fits",
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("MIT/GPL-3.0", True),
        ("MIT AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND ISC", True),
        ("GPL-3.0 OR (MIT AND ISC)", True),
        ("ISC AND (GPL-3.0 OR LGPL-3.0)", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Other-exception", False),
    ],
)
def test_licence_expressions(dependencies: ModuleType, expression: str, fits: bool) -> None:
    assert dependencies.allowed(expression, {"MIT", "ISC", "Apache-2.0 WITH LLVM-exception"}) is fits


def test_what_is_not_allowed_is_named(dependencies: ModuleType) -> None:
    rules = {"licenses": {"allow": ["MIT"]}, "sources": {"allow-registry": ["https://here"]}}

    def package(name: str, licence: str | None, source: str | None = "registry+https://here") -> dict[str, object]:
        return {"name": name, "version": "1.0.0", "license": licence, "source": source}

    assert dependencies.problems([package("good", "MIT"), package("own", "MIT", None)], rules) == []
    found = dependencies.problems(
        [package("copyleft", "GPL-3.0"), package("silent", None), package("elsewhere", "MIT", "git+https://x")], rules
    )
    assert [line.split(":")[0] for line in found] == ["copyleft 1.0.0", "silent 1.0.0", "elsewhere 1.0.0"]


def test_all_dependencies_have_allowed_licences(dependencies: ModuleType, tmp_path: Path) -> None:
    if not shutil.which("cargo"):
        pytest.skip("needs cargo")
    command = [sys.executable, ROOT / "deploy" / "dependencies.py", "--sbom", tmp_path / "sbom.json", "--features", "nats"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = json.loads((tmp_path / "sbom.json").read_text())
    assert listed["metadata"]["component"]["name"] == "ultta-cli"
    names = {component["name"] for component in listed["components"]}
    assert {"ultta", "ultta-server", "clap", "safetensors", "async-nats", "windows-sys"} <= names
    assert not {"proptest", "rumqttc"} & names  # of tests; of a feature that was not asked for


def test_archives_carry_what_a_release_promises(tmp_path: Path) -> None:
    """A program that only looks like one is packed as a release is: licences, completions, man pages, the list of crates."""
    tomllib = pytest.importorskip("tomllib")
    if not shutil.which("cargo"):
        pytest.skip("needs cargo")
    program = tmp_path / "ultta"
    program.write_text('#!/bin/sh\nif [ $1 = man ]; then echo .TH > "$2/ultta.1"; else echo completion $2; fi\n')
    program.chmod(0o755)
    target = "x86_64-unknown-linux-gnu"
    command = [ROOT / "deploy" / "archive.sh", program, target, "gradient,mqtt", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    archive = tmp_path / "out" / f"ultta-{target}.tar.gz"
    digest, name = archive.with_name(f"{archive.name}.sha256").read_text().split()
    assert digest == hashlib.sha256(archive.read_bytes()).hexdigest() and name == archive.name
    shutil.unpack_archive(archive, tmp_path)
    folder = tmp_path / f"ultta-{target}"
    assert (folder / "ultta").stat().st_mode & 0o777 == 0o755
    for shell in ("bash", "zsh", "fish", "elvish", "powershell"):
        assert (folder / "completions" / f"ultta.{shell}").read_text() == f"completion {shell}\n"
    assert (folder / "man" / "ultta.1").read_text() == ".TH\n"
    for file in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD_PARTY.md", "README.md", "CHANGELOG.md"):
        assert (folder / file).read_text() == (ROOT / file).read_text()
    told = (folder / "THIRD_PARTY_LICENSES.txt").read_text()
    assert "Apache License" in told and "Permission is hereby granted" in told
    listed = json.loads((folder / "sbom.cdx.json").read_text())["components"]
    for name in ("clap", "safetensors", "ring", "rumqttc"):
        version = next(entry["version"] for entry in listed if entry["name"] == name)
        assert f" {name} {version} (" in told, name
    # Both are for the system of the archive, the list for its features, too.
    assert " windows-sys " not in told and " proptest " not in told
    assert not {"windows-sys", "proptest", "ort", "async-nats"} & {entry["name"] for entry in listed}
    # The lists that the encoder embeds.
    for whose in ("2021 OpenAI", "Gabriel Ilharco", "Robyn Speer", "Ross Wightman", "Python Software Foundation"):
        assert whose in told, whose
    # `cargo binstall` finds the archive, and the program in it.
    metadata = tomllib.loads((ROOT / "crates/cli/Cargo.toml").read_text())["package"]["metadata"]["binstall"]
    fill = {"target": target, "bin": "ultta", "version": "0", "repo": "https://host/owner/ultta"}
    address, inside = (re.sub(r"\{ (\w+) \}", lambda m: fill[m[1]], metadata[key]) for key in ("pkg-url", "bin-dir"))
    assert address == f"https://host/owner/ultta/releases/download/v0/{archive.name}" and metadata["pkg-fmt"] == "tgz"
    assert (tmp_path / inside).samefile(folder / "ultta")
    # A wheel takes what lies beside pyproject.toml under this name.
    assert '"THIRD_PARTY*"' in (ROOT / "pyproject.toml").read_text()


def test_a_package_without_a_licence_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomllib")
    monkeypatch.syspath_prepend(ROOT / "deploy")
    import licences

    def package(name: str, licence: str, files: dict[str, str]) -> dict[str, object]:
        folder = tmp_path / name
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        manifest = str(folder / "Cargo.toml")
        return {"name": name, "version": "1.0", "license": licence, "source": "x", "authors": ["A"], "manifest_path": manifest}

    found, without = licences.collect(
        [
            package("a", "ISC", {"LICENSE": "text  one\n", "src/license.rs": "no text", "vendor/COPYING": "text two"}),
            package("b", "ISC", {"licence.md": "text one"}),
            package("c", "MIT", {"README.md": ""}),
            package("d", "ISC", {"README.md": ""}),
        ]
    )
    assert found["text  one"] == ["a 1.0 (ISC)", "b 1.0 (ISC)"] and found["text two"] == ["a 1.0 (ISC)"]
    (standard,) = (text for text, names in found.items() if names == ["c 1.0 (MIT)"])
    assert "Copyright (c) A\n" in standard and "ultta" not in standard and without == ["d 1.0 (ISC)"]


def test_the_source_package_stands_alone(tmp_path: Path) -> None:
    """Every crate that its manifests refer to is in it; `deploy/check.sh` installs it."""
    if not shutil.which("cargo") or not shutil.which("maturin"):
        pytest.skip("needs cargo and maturin")
    subprocess.run(["maturin", "sdist", "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (package,) = tmp_path.glob("ultta-*.tar.gz")
    shutil.unpack_archive(package, tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--all-features"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {Path(package["manifest_path"]).parent.name for package in json.loads(done.stdout)["packages"]}
    assert {"core", "cli", "python", "gradient"} <= names


def test_documents_lead_somewhere() -> None:
    done = subprocess.run([sys.executable, ROOT / "deploy" / "links.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_extras_are_the_ones_that_messages_name() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    told = text.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    extras = {line.split(" = ")[0] for line in told.strip().splitlines()}
    source = "".join(path.read_text() for path in (ROOT / "crates/python/python/ultta").glob("*.py"))
    named = set(re.findall(r'missing\([^()]*"([\w-]+)"\)', source))
    assert named and named <= extras
    guide = (ROOT / "docs" / "python.md").read_text()
    assert {name for name in re.findall(r"`ultta\[([\w-]+)\]`", guide)} == extras


def test_the_version_is_one() -> None:
    import ultta

    manifest = (ROOT / "Cargo.toml").read_text()
    versions = set(re.findall(r'^(?:version|ultta[\w-]*) = (?:"|.*version = ")([\d.]+)"', manifest, flags=re.M))
    assert versions == {ultta.__version__}
    assert re.search(rf"^## {re.escape(ultta.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
