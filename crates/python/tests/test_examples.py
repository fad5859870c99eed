"""The examples run: notebooks cell by cell, in one namespace, and scripts in a process of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot
import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_notebook(path: Path) -> dict[str, object]:
    """Runs the code cells of a notebook in order; returns what they defined."""
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    return names


def shares(printed: str, name: str) -> list[float]:
    """The percentages that follow a name in what was printed."""
    return [float(share) for share in re.findall(rf"{name} ([\d.]+)%", printed)]


@pytest.mark.parametrize("name", ["open_clip", "drifting_stream"])
def test_notebooks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.pyplot.close("all")
    names = run_notebook(EXAMPLES / f"{name}.ipynb")
    printed = capsys.readouterr().out
    frozen, adapted = shares(printed, "zero-shot"), shares(printed, "adapted")
    assert len(frozen) == len(adapted) >= 2, printed
    assert sum(adapted) > sum(frozen) and adapted[1] > frozen[1], printed  # better, above all once the stream has changed
    assert matplotlib.pyplot.get_fignums(), "it draws a plot"
    assert names["session"].health.standing == "healthy"  # type: ignore[attr-defined]


def test_the_notebook_says_when_a_stand_in_takes_the_models_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    run_notebook(EXAMPLES / "open_clip.ipynb")
    assert "a stand-in encoder takes its place" in capsys.readouterr().out


def test_notebooks_are_kept_without_outputs() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells), path.name


def test_workers(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "workers.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    frozen, adapted = shares(done.stdout, "zero-shot"), shares(done.stdout, "adapted")
    assert len(frozen) == len(adapted) == 3 and all(a > f for f, a in zip(frozen, adapted)), done.stdout


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in filter(Path.is_file, EXAMPLES.iterdir()):
        assert path.name == "README.md" or f"]({path.name})" in listed, path.name
