"""What is published, before it is: the contents of crates and image, the scripts of a release in a copy of what they change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CRATES = sorted(path.parent.name for path in ROOT.glob("crates/*/Cargo.toml") if path.parent.name != "python")


@pytest.mark.parametrize("crate", CRATES)
def test_crates_carry_their_licences(crate: str) -> None:
    if not shutil.which("cargo"):
        pytest.skip("needs cargo")
    command = ["cargo", "package", "--list", "--allow-dirty", "--manifest-path", ROOT / "crates" / crate / "Cargo.toml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = {"THIRD_PARTY.md", "data/LICENSES.txt"} if crate == "encode" else set()
    assert {"LICENSE-APACHE", "LICENSE-MIT", "README.md", *data} <= set(done.stdout.split())
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        assert (ROOT / "crates" / crate / name).read_text() == (ROOT / name).read_text()


def test_every_list_of_others_has_its_notice() -> None:
    notices = (ROOT / "crates/encode/data/LICENSES.txt").read_text()
    for path in (ROOT / "crates/encode/data").glob("*/*.txt"):
        # Names are told as `text/{a,b}.txt`, `templates/imagenet-*.txt` or in full.
        told = re.findall(rf"{path.parent.name}/(\S+)\.txt", notices)
        names = [name.replace("*", ".*") for group in told for name in group.strip("{}").split(",")]
        assert any(re.fullmatch(name, path.stem) for name in names), path


def test_what_is_shipped_is_optimised() -> None:
    """Levels that `release` gives to packages hold in `dist`, too, unless it names them again."""
    tomllib = pytest.importorskip("tomllib")
    profiles = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]
    level = {name: told["opt-level"] for name, told in profiles["release"]["package"].items()}
    level |= {name: told["opt-level"] for name, told in profiles["dist"]["package"].items()}
    assert profiles["dist"]["inherits"] == "release" and profiles["dist"]["opt-level"] == 3
    assert "*" in level and {name: value for name, value in level.items() if value != 3} == {}


def test_the_image_takes_files_that_there_are() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    taken = {path for line in re.findall(r"^COPY --from=build (.*) \S+$", text, flags=re.M) for path in line.split()}
    made = {"/src/target/dist/ultta", "/src/THIRD_PARTY_LICENSES.txt", "/src/sbom.cdx.json"}
    assert made <= taken
    there = {path.removeprefix("/src/") for path in taken - made}
    assert there == {"LICENSE-APACHE", "LICENSE-MIT", "THIRD_PARTY.md"} and all((ROOT / name).is_file() for name in there)
    for path in made - {"/src/target/dist/ultta"}:
        assert f" {Path(path).name} " in text, f"nothing makes {path}"
    looked_for = (ROOT / "deploy" / "check-image.sh").read_text()
    assert all(Path(path).name in looked_for for path in taken)


def test_what_is_checked_is_what_is_released() -> None:
    """The same features in the workflow, in `deploy/check.sh` and in the page on releases."""
    (released,) = re.findall(r"^  FEATURES: (\S+)$", (ROOT / ".github/workflows/release.yml").read_text(), flags=re.M)
    (checked,) = re.findall(r"^features=(\S+)$", (ROOT / "deploy/check.sh").read_text(), flags=re.M)
    told = re.findall(r"--profile dist --features ([\w,]+)", (ROOT / "docs/release.md").read_text())
    assert len(told) == 2 and {released, checked, *told} == {"gradient,mqtt"}


@pytest.mark.parametrize("said, code", [(" INFO Book building has started", 0), (" WARN something is odd", 1)])
def test_the_site_is_built_from_a_fresh_checkout(said: str, code: int, tmp_path: Path) -> None:
    """A stand-in for mdBook says something; there is no folder `target` yet."""
    copy = tmp_path / "copy"
    for folder in ("docs", "examples", "deploy"):
        shutil.copytree(ROOT / folder, copy / folder)
    for file in ("book.toml", *(path.name for path in ROOT.glob("*.md"))):
        shutil.copy(ROOT / file, copy)
    (copy / "crates").symlink_to(ROOT / "crates")
    program = tmp_path / "bin" / "mdbook"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run([copy / "deploy/site.sh"], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr


def test_the_address_is_written_once(tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    if "\nrepository = " in (ROOT / "Cargo.toml").read_text():
        pytest.skip("this tree has its address")
    changed = ["Cargo.toml", "pyproject.toml", "README.md", "docs/python.md"]
    changed += [str(path.relative_to(ROOT)) for path in ROOT.glob("crates/*/Cargo.toml")]
    for name in [*changed, "deploy/set-repository.sh"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    script = [tmp_path / "deploy/set-repository.sh", "https://host/owner/ultta"]
    subprocess.run(script, check=True, capture_output=True)
    texts = {name: (tmp_path / name).read_text() for name in changed}
    manifests = {name: tomllib.loads(text) for name, text in texts.items() if name.endswith(".toml")}
    assert manifests["Cargo.toml"]["workspace"]["package"]["repository"] == "https://host/owner/ultta"
    assert manifests["pyproject.toml"]["project"]["urls"] == {"Repository": "https://host/owner/ultta"}
    for name, told in manifests.items():
        if name.startswith("crates/"):
            assert told["package"]["repository"] == {"workspace": True}, name
    # On crates.io and PyPI a link without an address leads nowhere.
    for name in ("README.md", "docs/python.md"):
        assert re.findall(r"\]\((?!https:|#)[^)]*\)", texts[name]) == [], name
        assert "pip install ultta" in texts[name] and "not on PyPI" not in texts[name]
        assert "pip install '.[" not in texts[name]
        for kind, target in re.findall(r"\]\(https://host/owner/ultta/(\w+)/main/([^)#]*)", texts[name]):
            assert (ROOT / target).exists() and kind == ("raw" if target.endswith(".svg") else "blob"), target
    # A second time nothing changes.
    again = subprocess.run(script, capture_output=True, text=True)
    assert again.returncode == 1 and "already" in again.stderr
    assert texts == {name: (tmp_path / name).read_text() for name in changed}
