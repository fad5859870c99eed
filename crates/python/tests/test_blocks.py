"""Blocks of the documents beside the Python guide: files that they write are read, lines that they show are taken,
requests that they make are answered. (Shell commands are parsed by `crates/cli/src/documents.rs`.)"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultta
from conftest import simulate, unit

DOCS = Path(__file__).parents[3] / "docs"
ULTTA = [sys.executable, "-m", "ultta"]


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), flags=re.S | re.M)
    assert found, f"{page} has no block of {language}"
    return found


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A head of two dimensions, as the examples of the documents have it."""
    path = tmp_path / "pets.safetensors"
    ultta.Head.from_text_features(np.eye(2), ["cat", "dog"], 20.0).save(path)
    return path


def test_files_as_the_page_on_formats_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    text = unit(random.normal(size=(5, 16)))
    y = random.integers(5, size=200)
    z = unit(text[y] + 0.1 * random.normal(size=(200, 16)))
    names: dict[str, object] = {"z": z, "y": y, "text": text, "names": [f"class {i}" for i in range(5)]}
    for block in blocks("formats.md", "python"):
        exec(compile(block, "docs/formats.md", "exec"), names)
    head = ultta.Head.load("head.safetensors")
    assert head.logit_scale == 100 and head.classes == names["names"]
    for features in ("features.npz", "features.safetensors"):
        found = ultta.evaluate((features, "head.safetensors"), methods=["zero-shot"])
        assert found["runs"][0]["top1"] > 0.9


def test_lines_as_the_page_on_formats_shows_them(head: Path) -> None:
    answer, lines, summary = blocks("formats.md", "json")
    command = [*ULTTA, "run", "--features", "-", "--head", str(head)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 2
    shown = json.loads(answer)
    for given in answers:
        assert set(given) >= set(shown) and set(given["zero_shot"]) >= set(shown["zero_shot"])
    assert {"n", "classes", "method", "zero_shot"} <= set(json.loads(summary))


@pytest.fixture
def server(head: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server with that head, under the settings that the page on the service shows."""
    settings = re.sub(r"port = \d+", "port = 0", blocks("service.md", "toml")[0])
    (tmp_path / "service.toml").write_text(re.sub(r"^data_dir.*\n", "", settings, flags=re.M))
    command = [*ULTTA, "serve", "--head", str(head), "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "service.toml")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    address, said = None, ""
    for line in process.stdout:
        said += line
        if found := re.search(r"127\.0\.0\.1:\d+", line):
            address = f"http://{found.group()}"
            break
    assert address, said
    yield address
    process.terminate()
    process.communicate(timeout=60)


def test_requests_as_the_page_on_the_service_makes_them(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The shell commands of the page are run by the tests of the command line.
    (program,) = blocks("service.md", "python")
    names: dict[str, object] = {"features": unit(np.random.default_rng(0).normal(size=(3, 2)))}
    exec(compile(program.replace("http://127.0.0.1:8080", server), "docs/service.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("language", ["curl", "python"])
def test_printed_examples_run_and_teach_nothing(language: str, server: str, tmp_path: Path) -> None:
    if language == "curl" and not shutil.which("curl"):
        pytest.skip("needs curl")

    def client(*arguments: str) -> str:
        command = [*ULTTA, "client", "--url", server, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    # Something was learnt before.
    np.save(tmp_path / "rows.npy", unit(np.random.default_rng(0).normal(size=(30, 2))).astype(np.float32))
    client("classify", str(tmp_path / "rows.npy"))
    before = json.loads(client("status", "--json"))["status"]["health"]["seen"]
    runs = {"curl": ["sh"], "python": [sys.executable, "-"]}[language]
    done = subprocess.run(runs, input=client("example", language), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if language == "curl":
        (row,) = json.loads(done.stdout)["rows"]
        assert row["class"] in ("cat", "dog") and len(row["top"]) == 2
    else:
        assert len(re.findall(r"^(?:cat|dog) [\d.]+ zero-shot: (?:cat|dog)$", done.stdout, flags=re.M)) == 8
    assert json.loads(client("status", "--json"))["status"]["health"]["seen"] == before == 30


@pytest.mark.parametrize("page", ["alarms.md", "fleet.md", "service.md"])
def test_settings_of_the_service_are_taken(page: str, tmp_path: Path) -> None:
    """Every key of a TOML block: one that is none is refused. Then the head is missing, and nothing starts."""
    for block in blocks(page, "toml"):
        (tmp_path / "service.toml").write_text(block)
        command = [*ULTTA, "serve", "--config", tmp_path / "service.toml", "--data-dir", tmp_path, "--port", "0"]
        done = subprocess.run([*command, "--head", tmp_path / "no-head"], capture_output=True, text=True)
        assert done.returncode == 2 and "no-head" in done.stderr and "service.toml" not in done.stderr, done.stderr


def test_settings_of_methods_that_change_the_encoder_are_taken(tmp_path: Path) -> None:
    (block,) = blocks("gradient.md", "toml")
    (tmp_path / "methods.toml").write_text(block)
    subprocess.run([*ULTTA, "demo", "--pictures", "shapes"], cwd=tmp_path, check=True, capture_output=True)
    methods = ",".join(re.findall(r'^\[method\."?([\w+]+)"?\]', block, flags=re.M))
    command = [*ULTTA, "eval", "--images", "shapes", "--model", "tiny", "--methods", methods, "--config", "methods.toml"]
    done = subprocess.run([*command, "--protocols", "iid", "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and methods == "tent,ttt++", done.stderr


def test_the_exported_layer_as_the_page_on_operating_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stream = simulate()
    session = ultta.Session(stream.head)
    session.step(stream.features)
    session.export("head.npz")

    def softmax(scores: np.ndarray) -> np.ndarray:
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    names: dict[str, Any] = {"np": np, "z": stream.features, "softmax": softmax}
    (program,) = blocks("operating.md", "python")
    exec(compile(program, "docs/operating.md", "exec"), names)
    step = session.predict(stream.features)
    assert np.mean(names["label"] == step.labels) > 0.99
    assert np.abs(names["adapted"].max(axis=1) - step.prob).mean() < 0.1


def test_every_python_block_of_every_page_is_python() -> None:
    """Those that need Ray, Spark, PyTorch or a download are not run here; what they call is there."""
    for page in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M):
            tree = ast.parse(block, page.name)
            for node in ast.walk(tree):
                # `ultta.Session` and the like; modules of extras are not imported.
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ultta":
                    assert node.attr in dir(ultta), f"{page.name}: ultta.{node.attr}"


def test_no_block_is_of_a_language_that_nothing_tests() -> None:
    tested = {"sh", "python", "json", "toml", "rust", "rust,no_run", "text"}
    for page in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        for language in re.findall(r"^ *```(\S+)", page.read_text(), flags=re.M):
            assert language in tested, f"{page.name}: {language}"
