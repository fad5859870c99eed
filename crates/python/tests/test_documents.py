"""What is written runs: docstrings, the guide, the types."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ultta

ROOT = Path(__file__).parents[3]
PACKAGE = Path(ultta.__file__).parent
MODULES = sorted(p.stem for p in PACKAGE.glob("*.py") if p.stem not in ("ray", "spark", "torch", "__init__"))


@pytest.mark.parametrize("name", ["", *MODULES])
def test_docstrings_of_modules(name: str) -> None:
    module = importlib.import_module(f"ultta.{name}".rstrip("."))
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("name", ["Head", "Session", "State", "Step", "ZeroShot", "Health"])
def test_docstrings_of_compiled_classes(name: str) -> None:
    owner = getattr(ultta, name)
    assert owner.__doc__
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    for attribute in ["", *(a for a in dir(owner) if not a.startswith("_"))]:
        thing = getattr(owner, attribute) if attribute else owner
        assert thing.__doc__, f"{name}.{attribute} has no docstring"
        where = f"{name}.{attribute}"
        runner.run(parser.get_doctest(thing.__doc__, {"np": np, "ultta": ultta}, where, None, None))
    assert runner.failures == 0


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python cell of docs/python.md, in order, in one namespace, but for those that need PyTorch."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text()
    cells = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    assert len(cells) >= 8
    names: dict[str, object] = {}
    for cell in cells:
        if "torch" not in cell and "open_clip" not in cell:
            exec(compile(cell, "docs/python.md", "exec"), names)


def test_types_are_complete_and_strict() -> None:
    pytest.importorskip("mypy")
    for command in (
        ["mypy", "--strict", "--ignore-missing-imports", "-p", "ultta"],
        ["mypy.stubtest", "ultta._ultta"],
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
